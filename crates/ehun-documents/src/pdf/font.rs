//! Fonts: code to character and width, and what the looks of a font are.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use hayro_cmap::{BfString, CMap, CMapName, CharacterCollection, CidFamily, load_embedded};
use hayro_font::{CMapResolverFn, Font, FontCache, FontGlyph, FontQuery, FontResolverFn, OutlineGlyph, StandardFont};
use hayro_syntax::object::{Array, Dict, Name, Object, Stream, String as PdfString};
use skrifa::MetadataProvider;

use super::glyph::FontStyle;

/// The fonts of one document.
pub(super) struct Fonts<'a> {
    cache: FontCache<'a>,
    resolver: FontResolverFn,
    cmaps: CMapResolverFn,
    loaded: RefCell<HashMap<Vec<u8>, Option<std::rc::Rc<LoadedFont<'a>>>>>,
}

/// A font that is ready to read codes with.
pub(super) struct LoadedFont<'a> {
    pub font: Font<'a>,
    pub style: FontStyle,
    /// Height of its em square for a font size of 1; only Type 3 fonts may have another than 1.
    pub em: f64,
    simple: bool,
    embedded: bool,
    /// `ToUnicode` is the name Identity: codes are UTF-16.
    codes_are_unicode: bool,
    /// For composite fonts without `ToUnicode`.
    by_cid: Option<CidUnicode>,
    /// Glyph to character by the embedded font's own table, once it is asked for.
    by_glyph: OnceCell<HashMap<u32, char>>,
    /// Characters by code, as they are first asked for; `None` where nobody knows.
    characters: RefCell<HashMap<u32, Option<Arc<str>>>>,
}

impl<'a> Fonts<'a> {
    pub fn new() -> Self {
        Fonts {
            cache: FontCache::new(),
            resolver: Arc::new(|query| {
                Some(match query {
                    FontQuery::Standard(font) => font.get_font_data(),
                    FontQuery::Fallback(query) => query.pick_standard_font().get_font_data(),
                })
            }),
            cmaps: Arc::new(load_embedded),
            loaded: RefCell::new(HashMap::new()),
        }
    }

    /// The font of a dictionary. `None` if the dictionary describes no font.
    pub fn load(&self, dict: &Dict<'a>) -> Option<std::rc::Rc<LoadedFont<'a>>> {
        let key = dict.data().to_vec();
        if let Some(known) = self.loaded.borrow().get(&key) {
            return known.clone();
        }
        let font = self
            .cache
            .font(dict, &self.resolver, &self.cmaps)
            .map(|font| std::rc::Rc::new(LoadedFont::new(font, dict)));
        self.loaded.borrow_mut().insert(key, font.clone());
        font
    }

    /// Stands in where a stream names no font or one that is not there.
    pub fn fallback(&self) -> Option<std::rc::Rc<LoadedFont<'a>>> {
        let font = self.cache.standard_font(StandardFont::Helvetica, &self.resolver)?;
        Some(std::rc::Rc::new(LoadedFont {
            font,
            style: FontStyle::default(),
            em: 1.0,
            simple: true,
            embedded: false,
            codes_are_unicode: false,
            by_cid: None,
            by_glyph: OnceCell::new(),
            characters: RefCell::default(),
        }))
    }
}

impl<'a> LoadedFont<'a> {
    fn new(font: Font<'a>, dict: &Dict<'a>) -> Self {
        let subtype = dict.get::<Name<'_>>("Subtype");
        let simple = subtype.as_ref().is_none_or(|name| name.as_ref() != b"Type0");
        LoadedFont {
            font,
            style: style(dict),
            em: if subtype.is_some_and(|name| name.as_ref() == b"Type3") { type3_em(dict) } else { 1.0 },
            simple,
            embedded: is_embedded(dict),
            codes_are_unicode: dict
                .get::<Name<'_>>("ToUnicode")
                .is_some_and(|name| name.as_ref().starts_with(b"Identity")),
            by_glyph: OnceCell::new(),
            by_cid: if simple { None } else { CidUnicode::new(dict) },
            characters: RefCell::default(),
        }
    }

    /// The characters of a code; `None` if they are not known.
    pub fn characters(&self, code: u32) -> Option<Arc<str>> {
        if let Some(known) = self.characters.borrow().get(&code) {
            return known.clone();
        }
        let found = self.look_up(code).map(|s| Arc::from(s.as_str()));
        self.characters.borrow_mut().insert(code, found.clone());
        found
    }

    fn look_up(&self, code: u32) -> Option<String> {
        let glyph = self.font.glyph(self.font.map_code(code), code);
        let mapped = match &glyph {
            FontGlyph::Outline(outline) => outline.as_unicode(),
            FontGlyph::Type3(type3) => type3.as_unicode(),
        };
        let mapped = match mapped {
            Some(BfString::Char(c)) => Some(c.to_string()),
            Some(BfString::String(s)) => Some(s),
            None => None,
        };
        if let Some(text) = mapped.filter(|s| usable(s)) {
            return Some(text);
        }
        if self.codes_are_unicode {
            return char::from_u32(code).filter(|c| !c.is_control()).map(String::from);
        }
        let by_cid = self.by_cid.as_ref().and_then(|cids| cids.character(code));
        if by_cid.is_some() {
            return by_cid;
        }
        if let FontGlyph::Outline(outline) = &glyph
            && let Some(c) = self.by_glyph(outline)
        {
            return Some(c.to_string());
        }
        // Viewers read a simple font without a usable encoding as Latin; what the glyph shows is unknown, but what the
        // producer typed is nearly always this.
        if self.simple {
            let byte = u8::try_from(code & 0xff).ok()?;
            return (byte >= 0x20).then(|| encoding_of_byte(byte)).flatten().map(String::from);
        }
        None
    }
}

/// More entries than this are no real font's.
const MAX_MAPPINGS: usize = 100_000;

impl LoadedFont<'_> {
    /// What the font itself calls a glyph. Only an embedded one is the producer's; a stand-in numbers its glyphs its
    /// own way.
    fn by_glyph(&self, outline: &OutlineGlyph) -> Option<char> {
        if !self.embedded || outline.glyph_id().to_u32() == 0 {
            return None;
        }
        let table = self.by_glyph.get_or_init(|| {
            let Some(data) = outline.font_data() else { return HashMap::new() };
            let Ok(font) = skrifa::FontRef::new((*data.data).as_ref()) else { return HashMap::new() };
            let mut table = HashMap::new();
            for (character, glyph) in font.charmap().mappings().take(MAX_MAPPINGS) {
                // Symbol fonts map codes, not characters; several characters may share a glyph, the first is the plain one.
                if let Some(c) =
                    char::from_u32(character).filter(|c| !('\u{e000}'..='\u{f8ff}').contains(c) && !c.is_control())
                {
                    table.entry(glyph.to_u32()).or_insert(c);
                }
            }
            table
        });
        table.get(&outline.glyph_id().to_u32()).copied()
    }
}

/// A mapping to nothing, to NUL or to a replacement character is none.
fn usable(text: &str) -> bool {
    !text.is_empty() && !text.chars().all(|c| c == '\u{fffd}' || (c.is_control() && !c.is_whitespace()))
}

/// Windows-1252 where it is defined.
fn encoding_of_byte(byte: u8) -> Option<char> {
    const HIGH: [char; 32] = [
        '€', '\u{fffd}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{fffd}', 'Ž', '\u{fffd}',
        '\u{fffd}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{fffd}', 'ž', 'Ÿ',
    ];
    let c = match byte {
        0x80..=0x9f => HIGH[usize::from(byte - 0x80)],
        0x7f => return None,
        _ => char::from(byte),
    };
    (c != '\u{fffd}').then_some(c)
}

fn descriptor<'a>(dict: &Dict<'a>) -> Option<Dict<'a>> {
    dict.get::<Dict<'a>>("FontDescriptor").or_else(|| {
        let descendant = dict.get::<Array<'a>>("DescendantFonts")?.iter::<Dict<'a>>().next()?;
        descendant.get::<Dict<'a>>("FontDescriptor")
    })
}

fn is_embedded(dict: &Dict<'_>) -> bool {
    descriptor(dict).is_some_and(|d| ["FontFile", "FontFile2", "FontFile3"].iter().any(|key| d.contains_key(key)))
}

fn style(dict: &Dict<'_>) -> FontStyle {
    let descriptor = descriptor(dict);
    let mut name = dict.get::<Name<'_>>("BaseFont").map(|name| name.as_str().to_ascii_lowercase()).unwrap_or_default();
    if let Some(at) = name.find('+') {
        name.drain(..=at);
    }
    let flags = descriptor.as_ref().and_then(|d| d.get::<i64>("Flags")).unwrap_or(0);
    let weight = descriptor.as_ref().and_then(|d| d.get::<f64>("FontWeight")).unwrap_or(0.0);
    // Computer Modern: cmbx is bold extended, cmtt a typewriter face.
    let bold_names = ["bold", "black", "heavy", "demi", "cmbx", "sfbx", "cmssbx"];
    let mono_names = ["courier", "mono", "consolas", "menlo", "cmtt", "sftt", "typewriter", "lmtt"];
    FontStyle {
        bold: weight >= 600.0 || flags & (1 << 18) != 0 || bold_names.iter().any(|n| name.contains(n)),
        mono: flags & 1 != 0 || mono_names.iter().any(|n| name.contains(n)),
    }
}

/// A Type 3 font draws in a space of its own; its box, or else its widths, tell how large the letters are.
fn type3_em(dict: &Dict<'_>) -> f64 {
    let matrix = dict.get::<[f64; 6]>("FontMatrix").unwrap_or([0.001, 0.0, 0.0, 0.001, 0.0, 0.0]);
    let height = dict.get::<[f64; 4]>("FontBBox").map_or(0.0, |bbox| (bbox[3] - bbox[1]).abs());
    let mut em = height * matrix[3].abs();
    if em == 0.0 {
        let widths = dict.get::<Array<'_>>("Widths");
        let widths = widths.map(|widths| widths.iter::<f64>().filter(|w| *w > 0.0).collect::<Vec<_>>());
        let widths = widths.unwrap_or_default();
        // A letter is about half as wide as its font is high.
        em = 2.0 * widths.iter().sum::<f64>() / widths.len().max(1) as f64 * matrix[0].abs();
    }
    if em.is_finite() && em > 0.0 { em } else { 1.0 }
}

/// Code to character by way of the CID, for the character collections that Adobe defined.
struct CidUnicode {
    /// Code to CID; `None` where the code is the CID (Identity).
    codes: Option<CMap>,
    unicode: CMap,
}

impl CidUnicode {
    fn new(dict: &Dict<'_>) -> Option<Self> {
        let descendant = dict.get::<Array<'_>>("DescendantFonts")?.iter::<Dict<'_>>().next()?;
        let codes = match dict.get::<Object<'_>>("Encoding")? {
            Object::Name(name) if name.as_ref().starts_with(b"Identity") => None,
            Object::Name(name) => {
                let data = load_embedded(CMapName::from_bytes(name.as_ref()))?;
                Some(CMap::parse(data, load_embedded)?)
            }
            Object::Stream(stream) => Some(parse_stream(&stream)?),
            _ => return None,
        };
        let declared = codes
            .as_ref()
            .and_then(|cmap| cmap.metadata().character_collection.clone())
            .filter(|collection| collection.family != CidFamily::AdobeIdentity);
        let collection = declared.or_else(|| system_info(&descendant))?;
        let unicode = CMap::parse(load_embedded(collection.family.ucs2_cmap()?)?, load_embedded)?;
        Some(CidUnicode { codes, unicode })
    }

    fn character(&self, code: u32) -> Option<String> {
        let cid = match &self.codes {
            None => code,
            Some(cmap) => (1..=4).find_map(|length| cmap.lookup_cid_code(code, length))?,
        };
        match self.unicode.lookup_bf_string(cid)? {
            BfString::Char(c) => Some(c.to_string()),
            BfString::String(s) => Some(s),
        }
    }
}

fn parse_stream(stream: &Stream<'_>) -> Option<CMap> {
    CMap::parse(&stream.decoded_data().ok()?, load_embedded)
}

fn system_info(descendant: &Dict<'_>) -> Option<CharacterCollection> {
    let info = descendant.get::<Dict<'_>>("CIDSystemInfo")?;
    let registry = info.get::<PdfString<'_>>("Registry")?;
    let ordering = info.get::<PdfString<'_>>("Ordering")?;
    Some(CharacterCollection {
        family: CidFamily::from_registry_ordering(registry.as_bytes(), ordering.as_bytes()),
        supplement: 0,
    })
}
