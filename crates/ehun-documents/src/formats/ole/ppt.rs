//! PPT (PowerPoint 97 to 2003): the text atoms of slides and notes ([MS-PPT] 2.3).

use super::{Ole, u16_at, u32_at, utf16, windows_1252};
use crate::builder::{DocumentBuilder, Place};
use crate::error::{DocumentError, Limit};
use crate::formats::ParseOptions;
use crate::model::{BlockKind, Document, PageInfo, PageStatus};

const SLIDE: u16 = 0x03ee;
const NOTES: u16 = 0x03f0;
const SLIDE_PERSIST: u16 = 0x03f3;
const MAIN_MASTER: u16 = 0x03f8;
const TEXT_HEADER: u16 = 0x0f9f;
const TEXT_CHARS: u16 = 0x0fa0;
const TEXT_BYTES: u16 = 0x0fa8;
const SLIDE_LIST: u16 = 0x0ff0;

/// Parses a PPT file.
pub(crate) fn parse(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let mut ole = Ole::open(bytes, &options.limits)?;
    let user = ole.stream("Current User").unwrap_or_default();
    if u32_at(&user, 12) == 0xf3d1_c4df {
        return Err(DocumentError::Encrypted { format: "PPT".to_owned() });
    }
    // A file for PowerPoint 95 and 97 at once has the newer form beside the older.
    let stream = ole.stream("PP97_DUALSTORAGE/PowerPoint Document");
    if stream.is_none() && ole.stream("Text_Content").is_some() {
        return Err(DocumentError::unsupported("PowerPoint 95"));
    }
    let stream = stream.or_else(|| ole.stream("PowerPoint Document")).unwrap_or_default();
    let mut out = DocumentBuilder::new("application/vnd.ms-powerpoint", &options.limits);
    ole.properties(&mut out);
    let mut walk = Walk { max_depth: options.limits.nesting, ..Walk::default() };
    walk.records(&stream, 0, Section::None)?;
    for (texts, number) in walk.slides.iter().zip(1u32..) {
        let place = Place::on_page(number, None);
        for text in texts {
            // Vertical tabs are line breaks, returns end paragraphs.
            for line in text.words.split('\r') {
                let kind = match text.role {
                    Role::Title => BlockKind::Heading { level: 1 },
                    Role::Notes => BlockKind::Footnote,
                    Role::Body => BlockKind::Paragraph,
                };
                out.push_at(kind, &line.replace('\u{b}', "\n"), place)?;
            }
        }
        let status = if texts.is_empty() { PageStatus::Empty } else { PageStatus::Text };
        out.push_page(PageInfo { number, width: 0.0, height: 0.0, status });
    }
    out.finish()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Title,
    Body,
    Notes,
}

#[derive(Debug, PartialEq, Eq)]
struct Text {
    role: Role,
    words: String,
}

/// Which part of the stream a record is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    None,
    /// The outline, which has the text of placeholders slide by slide.
    Outline,
    /// A slide's own drawing; 0-based.
    Slide(usize),
    Notes(usize),
}

#[derive(Debug, Default)]
struct Walk {
    slides: Vec<Vec<Text>>,
    in_outline: usize,
    drawn: usize,
    noted: usize,
    role: Option<Role>,
    max_depth: u32,
}

impl Walk {
    fn records(&mut self, bytes: &[u8], depth: u32, section: Section) -> Result<(), DocumentError> {
        if depth > self.max_depth {
            return Err(DocumentError::LimitExceeded { limit: Limit::Nesting, value: self.max_depth.into() });
        }
        let mut at = 0;
        while at + 8 <= bytes.len() {
            let (version, kind) = (u16_at(bytes, at), u16_at(bytes, at + 2));
            let end = (at + 8).saturating_add(u32_at(bytes, at + 4)).min(bytes.len());
            let content = &bytes[at + 8..end];
            at = end;
            match kind {
                MAIN_MASTER => {}
                SLIDE => {
                    self.records(content, depth + 1, Section::Slide(self.drawn))?;
                    self.drawn += 1;
                }
                NOTES => {
                    self.records(content, depth + 1, Section::Notes(self.noted))?;
                    self.noted += 1;
                }
                // Instances 1 and 2 are masters and notes.
                SLIDE_LIST if version >> 4 == 0 => self.records(content, depth + 1, Section::Outline)?,
                SLIDE_LIST => {}
                SLIDE_PERSIST if section == Section::Outline => self.in_outline += 1,
                TEXT_HEADER => {
                    self.role = Some(match u32_at(content, 0) {
                        0 | 6 => Role::Title,
                        2 => Role::Notes,
                        _ => Role::Body,
                    });
                }
                TEXT_CHARS => self.add(utf16(content), section),
                TEXT_BYTES => self.add(windows_1252(content), section),
                _ if version & 0xf == 0xf => self.records(content, depth + 1, section)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn add(&mut self, words: String, section: Section) {
        let slide = match section {
            Section::None => return,
            Section::Outline => self.in_outline.saturating_sub(1),
            Section::Slide(n) | Section::Notes(n) => n,
        };
        // A saved-over file has slides more than once; a bound keeps a hostile one small.
        if words.trim().is_empty() || slide >= 100_000 {
            return;
        }
        let role = if matches!(section, Section::Notes(_)) { Role::Notes } else { self.role.unwrap_or(Role::Body) };
        if self.slides.len() <= slide {
            self.slides.resize_with(slide + 1, Vec::new);
        }
        let text = Text { role, words };
        if !self.slides[slide].contains(&text) {
            self.slides[slide].push(text);
        }
    }
}
