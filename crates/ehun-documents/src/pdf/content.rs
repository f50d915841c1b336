//! The content stream interpreter: operators in, [`PageContent`] out.
//!
//! Nothing is drawn. Kept are glyphs with their place, lines that may rule a table, and where pictures are; of colours
//! only what is needed to tell text that a reader cannot see.

use std::collections::HashSet;
use std::rc::Rc;

use hayro_font::kurbo::{Affine, Point};
use hayro_syntax::content::TypedIter;
use hayro_syntax::content::ops::TypedInstruction as Op;
use hayro_syntax::object::{Array, Dict, Name, ObjRef, Object, Stream, dict_or_stream};
use hayro_syntax::page::{Page, Resources};

use super::annotations::{appearance, appearance_transform};
use super::font::{Fonts, LoadedFont};
use super::glyph::{Direction, Glyph, PageContent, Rect};
use super::layers::Layers;
use super::metadata::text_string;
use super::paint::{Ground, Path};
use super::state::{ColorSpace, State, cmyk, gray};
use crate::HiddenReason;

/// Forms within forms.
const MAX_FORM_DEPTH: usize = 24;
/// Saved graphics states.
const MAX_STATES: usize = 512;
/// Operators of one page with all its forms.
const MAX_OPERATORS: usize = 10_000_000;
/// Forms drawn on one page: forms that draw forms can multiply without end.
const MAX_FORMS: usize = 50_000;
const MAX_GLYPHS: usize = 2_000_000;
/// Smaller than this nobody can read it (points).
const TINY: f32 = 0.9;

/// Reads one page.
pub(super) fn read_page<'a>(page: &Page<'a>, fonts: &Fonts<'a>, layers: &Layers) -> PageContent {
    let (width, height) = page.render_dimensions();
    let initial = Affine::new(page.initial_transform(true).as_coeffs());
    let bounds = Rect { x0: 0.0, y0: 0.0, x1: width, y1: height };
    let mut reader = Reader {
        fonts,
        layers,
        content: PageContent { width, height, ..PageContent::default() },
        ground: Ground::new(),
        state: State::new(initial, bounds),
        saved: Vec::new(),
        path: Path::default(),
        last_point: (0.0, 0.0),
        clip_pending: false,
        text_matrix: Affine::IDENTITY,
        line_matrix: Affine::IDENTITY,
        marked: Vec::new(),
        forms: HashSet::new(),
        operators: 0,
        forms_drawn: 0,
    };
    reader.run(page.typed_operations(), page.resources());
    if reader.operators == 0 && page.page_stream().is_some_and(|stream| !stream.trim_ascii().is_empty()) {
        reader.content.truncated = Some("its content stream cannot be parsed");
    }
    reader.annotations(page, initial, bounds);
    reader.content
}

/// One open marked-content sequence.
struct Marked {
    artifact: bool,
    off: bool,
    /// Text that stands for all glyphs since an index.
    actual_text: Option<(String, usize)>,
}

struct Reader<'r, 'a> {
    fonts: &'r Fonts<'a>,
    layers: &'r Layers,
    content: PageContent,
    ground: Ground,
    state: State<'a>,
    saved: Vec<State<'a>>,
    path: Path,
    last_point: (f64, f64),
    clip_pending: bool,
    text_matrix: Affine,
    line_matrix: Affine,
    marked: Vec<Marked>,
    /// Forms that are being drawn, by object.
    forms: HashSet<(u32, i32)>,
    operators: usize,
    forms_drawn: usize,
}

impl<'a> Reader<'_, 'a> {
    fn run(&mut self, mut ops: TypedIter<'_>, resources: &Resources<'a>) {
        let states = self.saved.len();
        let marks = self.marked.len();
        while let Some(op) = ops.next() {
            self.operators += 1;
            if self.operators > MAX_OPERATORS || self.forms_drawn > MAX_FORMS || self.content.glyphs.len() > MAX_GLYPHS
            {
                self.content.truncated = Some("more operators, forms or glyphs than any real page has");
                break;
            }
            self.path_op(&op);
            self.state_op(&op, resources);
            self.text_op(&op, resources);
            self.object_op(&op, resources, states);
        }
        while self.marked.len() > marks {
            self.end_marked();
        }
        if self.saved.len() > states {
            self.state = self.saved.swap_remove(states);
            self.saved.truncate(states);
        }
        self.path.clear();
        self.clip_pending = false;
    }

    fn path_op(&mut self, op: &Op<'_, '_>) {
        let ctm = self.state.ctm;
        match op {
            Op::MoveTo(p) => {
                self.path.move_to(ctm, p.0.as_f64(), p.1.as_f64());
                self.last_point = (p.0.as_f64(), p.1.as_f64());
            }
            Op::LineTo(p) => {
                self.path.line_to(ctm, p.0.as_f64(), p.1.as_f64());
                self.last_point = (p.0.as_f64(), p.1.as_f64());
            }
            Op::CubicTo(c) => self.path.curve_to(ctm, c.4.as_f64(), c.5.as_f64()),
            Op::CubicStartTo(c) => self.path.curve_to(ctm, c.2.as_f64(), c.3.as_f64()),
            Op::CubicEndTo(c) => self.path.curve_to(ctm, c.2.as_f64(), c.3.as_f64()),
            Op::ClosePath(_) => self.path.close(),
            Op::RectPath(r) => {
                let rect = [r.0.as_f64(), r.1.as_f64(), r.2.as_f64(), r.3.as_f64()];
                self.path.rect(ctm, rect);
            }
            Op::StrokePath(_) => self.paint(true, false, false),
            Op::CloseAndStrokePath(_) => self.paint(true, false, true),
            Op::FillPathNonZero(_) | Op::FillPathNonZeroCompatibility(_) | Op::FillPathEvenOdd(_) => {
                self.paint(false, true, false);
            }
            Op::FillAndStrokeNonZero(_) | Op::FillAndStrokeEvenOdd(_) => self.paint(true, true, false),
            Op::CloseFillAndStrokeNonZero(_) | Op::CloseFillAndStrokeEvenOdd(_) => {
                self.paint(true, true, true);
            }
            Op::EndPath(_) => self.paint(false, false, false),
            Op::ClipNonZero(_) | Op::ClipEvenOdd(_) => self.clip_pending = true,
            _ => {}
        }
    }

    fn paint(&mut self, stroke: bool, fill: bool, close: bool) {
        if close {
            self.path.close();
        }
        if !self.layer_off() {
            if fill {
                let color = self.state.fill.filter(|_| self.state.fill_alpha > 0.99);
                self.path.fill(&mut self.content, &mut self.ground, color);
            }
            if stroke {
                self.path.stroke(&mut self.content);
            }
        }
        if std::mem::take(&mut self.clip_pending)
            && let Some(rect) = self.path.as_rect()
        {
            self.clip(rect);
        }
        self.path.clear();
    }

    fn clip(&mut self, rect: Rect) {
        let clip = &mut self.state.clip;
        clip.x0 = clip.x0.max(rect.x0);
        clip.y0 = clip.y0.max(rect.y0);
        clip.x1 = clip.x1.min(rect.x1);
        clip.y1 = clip.y1.min(rect.y1);
    }

    fn state_op(&mut self, op: &Op<'_, '_>, resources: &Resources<'a>) {
        let state = &mut self.state;
        match op {
            Op::Transform(t) => {
                let t = [&t.0, &t.1, &t.2, &t.3, &t.4, &t.5].map(|n| n.as_f64());
                state.ctm *= Affine::new(t);
            }
            Op::NonStrokeColorDeviceGray(g) => {
                state.fill_space = ColorSpace::Gray;
                state.fill = Some(gray(g.0.as_f32()));
            }
            Op::NonStrokeColorDeviceRgb(c) => {
                state.fill_space = ColorSpace::Rgb;
                state.fill = Some([c.0.as_f32(), c.1.as_f32(), c.2.as_f32()]);
            }
            Op::NonStrokeColorCmyk(c) => {
                state.fill_space = ColorSpace::Cmyk;
                state.fill = Some(cmyk(c.0.as_f32(), c.1.as_f32(), c.2.as_f32(), c.3.as_f32()));
            }
            Op::ColorSpaceNonStroke(name) => {
                state.fill_space = ColorSpace::named(name.0, resources);
                state.fill = state.fill_space.initial();
            }
            Op::NonStrokeColor(c) => state.fill = state.fill_space.color(&c.0),
            Op::NonStrokeColorNamed(c) => {
                state.fill = if c.1.is_some() { None } else { state.fill_space.color(&c.0) };
            }
            Op::StrokeColorDeviceGray(g) => {
                state.stroke_space = ColorSpace::Gray;
                state.stroke = Some(gray(g.0.as_f32()));
            }
            Op::StrokeColorDeviceRgb(c) => {
                state.stroke_space = ColorSpace::Rgb;
                state.stroke = Some([c.0.as_f32(), c.1.as_f32(), c.2.as_f32()]);
            }
            Op::StrokeColorCmyk(c) => {
                state.stroke_space = ColorSpace::Cmyk;
                state.stroke = Some(cmyk(c.0.as_f32(), c.1.as_f32(), c.2.as_f32(), c.3.as_f32()));
            }
            Op::ColorSpaceStroke(name) => {
                state.stroke_space = ColorSpace::named(name.0, resources);
                state.stroke = state.stroke_space.initial();
            }
            Op::StrokeColor(c) => state.stroke = state.stroke_space.color(&c.0),
            Op::StrokeColorNamed(c) => {
                state.stroke = if c.1.is_some() { None } else { state.stroke_space.color(&c.0) };
            }
            Op::SetGraphicsState(name) => {
                if let Some(dict) = resources.get_ext_g_state(name.0) {
                    self.graphics_state(&dict);
                }
            }
            _ => {}
        }
    }

    fn graphics_state(&mut self, dict: &Dict<'a>) {
        if let Some(alpha) = dict.get::<f32>("ca") {
            self.state.fill_alpha = alpha;
        }
        if let Some(font) = dict.get::<Array<'a>>("Font") {
            let mut items = font.iter::<Object<'a>>();
            if let (Some(Object::Dict(font)), Some(Object::Number(size))) = (items.next(), items.next()) {
                self.state.font = self.fonts.load(&font);
                self.state.font_size = size.as_f64();
            }
        }
    }

    fn text_op(&mut self, op: &Op<'_, '_>, resources: &Resources<'a>) {
        match op {
            Op::BeginText(_) => self.set_text_matrix(Affine::IDENTITY),
            Op::SetTextMatrix(m) => {
                let m = [&m.0, &m.1, &m.2, &m.3, &m.4, &m.5].map(|n| n.as_f64());
                self.set_text_matrix(Affine::new(m));
            }
            Op::NextLine(d) => self.next_line(d.0.as_f64(), d.1.as_f64()),
            Op::NextLineAndSetLeading(d) => {
                self.state.leading = -d.1.as_f64();
                self.next_line(d.0.as_f64(), d.1.as_f64());
            }
            Op::NextLineUsingLeading(_) => self.next_line(0.0, -self.state.leading),
            Op::TextFont(f) => {
                self.state.font = match resources.get_font(f.0) {
                    Some(dict) => self.fonts.load(&dict).or_else(|| self.fonts.fallback()),
                    None => self.fonts.fallback(),
                };
                self.state.font_size = f.1.as_f64();
            }
            Op::CharacterSpacing(n) => self.state.char_space = n.0.as_f64(),
            Op::WordSpacing(n) => self.state.word_space = n.0.as_f64(),
            Op::HorizontalScaling(n) => self.state.horizontal_scale = n.0.as_f64() / 100.0,
            Op::TextLeading(n) => self.state.leading = n.0.as_f64(),
            Op::TextRise(n) => self.state.rise = n.0.as_f64(),
            Op::TextRenderingMode(n) => self.state.render_mode = n.0.as_i64(),
            Op::ShowText(s) => self.show(s.0.as_bytes()),
            Op::NextLineAndShowText(s) => {
                self.next_line(0.0, -self.state.leading);
                self.show(s.0.as_bytes());
            }
            Op::ShowTextWithParameters(s) => {
                self.state.word_space = s.0.as_f64();
                self.state.char_space = s.1.as_f64();
                self.next_line(0.0, -self.state.leading);
                self.show(s.2.as_bytes());
            }
            Op::ShowTexts(array) => {
                for item in array.0.iter::<Object<'_>>() {
                    match item {
                        Object::String(s) => self.show(s.as_bytes()),
                        Object::Number(n) => self.adjust(n.as_f64()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn set_text_matrix(&mut self, matrix: Affine) {
        self.text_matrix = matrix;
        self.line_matrix = matrix;
    }

    fn next_line(&mut self, x: f64, y: f64) {
        self.set_text_matrix(self.line_matrix * Affine::translate((x, y)));
    }

    /// Moves against the writing direction by thousandths of the font size.
    fn adjust(&mut self, thousandths: f64) {
        let state = &self.state;
        let by = -thousandths / 1000.0 * state.font_size;
        let horizontal = state.font.as_ref().is_none_or(|font| font.font.is_horizontal());
        let step = if horizontal { (by * state.horizontal_scale, 0.0) } else { (0.0, by) };
        self.text_matrix *= Affine::translate(step);
    }

    fn show(&mut self, bytes: &[u8]) {
        if self.state.font.is_none() {
            self.state.font = self.fonts.fallback();
        }
        let Some(font) = self.state.font.clone() else { return };
        let mut at = 0;
        while at < bytes.len() && self.content.glyphs.len() <= MAX_GLYPHS {
            let (code, length) = font.font.read_code(bytes, at);
            let length = length.max(1);
            let is_space = length == 1 && bytes[at] == b' ';
            at += length;
            self.show_code(&font, code, is_space);
        }
    }

    fn show_code(&mut self, font: &Rc<LoadedFont<'a>>, code: u32, is_space: bool) {
        let state = &self.state;
        let (size, scale) = (state.font_size, state.horizontal_scale);
        let advance = font.font.code_advance(code) / 1000.0;
        let spacing = state.char_space + if is_space { state.word_space } else { 0.0 };
        let to_page = state.ctm * self.text_matrix;
        let step = if font.font.is_horizontal() {
            self.push_horizontal(font, code, to_page, advance.x * size * scale);
            ((advance.x * size + spacing) * scale, 0.0)
        } else {
            self.push_vertical(font, code, to_page, advance.y * size);
            (0.0, advance.y * size + spacing)
        };
        self.text_matrix *= Affine::translate(step);
    }

    fn push_horizontal(&mut self, font: &LoadedFont<'a>, code: u32, to_page: Affine, width: f64) {
        let (size, rise) = (self.state.font_size, self.state.rise);
        let start = to_page * Point::new(0.0, rise);
        let end = to_page * Point::new(width, rise);
        let across = to_page * Point::new(self.state.horizontal_scale.signum(), rise) - start;
        let up = to_page * Point::new(0.0, rise + size * font.em) - start;
        // A negative size turns the text around, baseline and all.
        let along = across * if size < 0.0 { -1.0 } else { 1.0 };
        let direction = Direction::of(along.x, along.y);
        let width = (end - start).hypot();
        // Measured against the direction, a glyph may run backwards.
        let backwards = (end - start).dot(along) < 0.0;
        let start = if backwards { end } else { start };
        self.push_glyph(font, code, (start.x as f32, start.y as f32), width as f32, up.hypot() as f32, direction);
    }

    fn push_vertical(&mut self, font: &LoadedFont<'a>, code: u32, to_page: Affine, height: f64) {
        let size = self.state.font_size;
        let start = to_page * Point::new(0.0, 0.0);
        let end = to_page * Point::new(0.0, height);
        let up = to_page * Point::new(0.0, size * font.em) - start;
        // Text runs to the feet of its letters.
        let direction = match Direction::of(-up.x, -up.y) {
            Direction::Down => Direction::Vertical,
            other => other,
        };
        let (width, size) = ((end - start).hypot() as f32, up.hypot() as f32);
        self.push_glyph(font, code, (start.x as f32, start.y as f32), width, size, direction);
    }

    fn push_glyph(
        &mut self,
        font: &LoadedFont<'a>,
        code: u32,
        (x, y): (f32, f32),
        width: f32,
        size: f32,
        direction: Direction,
    ) {
        if ![x, y, width, size].iter().all(|n| n.is_finite()) {
            return;
        }
        let from = self.content.text.len() as u32;
        match font.characters(code) {
            Some(text) => self.content.text.push_str(&text),
            None => {
                self.content.unmapped += 1;
                self.content.text.push('\u{fffd}');
            }
        }
        let angle = direction.angle();
        // Middle of a lower-case letter.
        let (mid_x, mid_y) = (width / 2.0, -size / 4.0);
        let middle = (x + mid_x * angle.cos() - mid_y * angle.sin(), y + mid_x * angle.sin() + mid_y * angle.cos());
        let glyph = Glyph {
            text: from..self.content.text.len() as u32,
            x,
            y,
            width,
            size,
            direction,
            bold: font.style.bold || self.state.render_mode == 2,
            mono: font.style.mono,
            artifact: self.marked.iter().any(|marked| marked.artifact),
            hidden: self.hidden(middle, size),
        };
        self.content.glyphs.push(glyph);
    }

    fn layer_off(&self) -> bool {
        self.marked.iter().any(|marked| marked.off)
    }

    fn hidden(&self, at: (f32, f32), size: f32) -> Option<HiddenReason> {
        let state = &self.state;
        if self.layer_off() {
            return Some(HiddenReason::LayerOff);
        }
        if size < TINY {
            return Some(HiddenReason::ZeroSize);
        }
        // Mode 7 only adds to the clip: a picture may shine through, so only 3 hides for certain.
        if state.render_mode == 3 || (state.fill_alpha < 0.01 && state.render_mode == 0) {
            return Some(HiddenReason::RenderMode);
        }
        let slack = size / 2.0;
        let clip = &state.clip;
        let seen = Rect { x0: clip.x0 - slack, y0: clip.y0 - slack, x1: clip.x1 + slack, y1: clip.y1 + slack };
        if !seen.contains(at) {
            return Some(HiddenReason::OffPage);
        }
        let color = match state.render_mode {
            0 | 4 => state.fill,
            1 | 5 => state.stroke,
            _ => None,
        };
        color.is_some_and(|color| self.ground.hides(at, color)).then_some(HiddenReason::SameColour)
    }

    fn object_op(&mut self, op: &Op<'_, '_>, resources: &Resources<'a>, states: usize) {
        match op {
            Op::SaveState(_) if self.saved.len() < MAX_STATES => self.saved.push(self.state.clone()),
            Op::RestoreState(_) => {
                if self.saved.len() > states
                    && let Some(state) = self.saved.pop()
                {
                    self.state = state;
                }
            }
            Op::XObject(name) => {
                if let Some(stream) = resources.get_x_object(name.0) {
                    self.x_object(&stream, resources);
                }
            }
            Op::InlineImage(_) => self.image(),
            Op::Shading(_) => {
                let clip = self.state.clip;
                self.ground.push(clip, None);
            }
            Op::BeginMarkedContent(mark) => self.begin_marked(mark.0, None, None),
            Op::BeginMarkedContentWithProperties(mark) => {
                let (dict, reference) = match &mark.1 {
                    Object::Name(name) => (
                        resources.properties.get::<Dict<'a>>(name.as_ref()),
                        resources.properties.get_ref(name.as_ref()),
                    ),
                    other => {
                        let inline = dict_or_stream(other).map(|(dict, _)| dict);
                        self.begin_marked(mark.0, inline, None);
                        return;
                    }
                };
                self.begin_marked(mark.0, dict.as_ref(), reference);
            }
            Op::EndMarkedContent(_) => self.end_marked(),
            _ => {}
        }
    }

    fn begin_marked(&mut self, tag: &Name<'_>, dict: Option<&Dict<'_>>, reference: Option<ObjRef>) {
        let actual_text = dict
            .and_then(|dict| dict.get::<hayro_syntax::object::String<'_>>("ActualText"))
            .map(|text| (text_string(text.as_bytes()), self.content.glyphs.len()));
        self.marked.push(Marked {
            artifact: tag.as_ref() == b"Artifact",
            off: tag.as_ref() == b"OC" && dict.is_some_and(|dict| self.layers.is_off(dict, reference)),
            actual_text,
        });
    }

    fn end_marked(&mut self) {
        let Some(Marked { actual_text: Some((text, first)), .. }) = self.marked.pop() else {
            return;
        };
        let content = &mut self.content;
        let Some(glyphs) = content.glyphs.get_mut(first..).filter(|glyphs| !glyphs.is_empty()) else {
            return;
        };
        // A replacement for more than a line would tear what it stands for out of its place.
        let (y, size) = (glyphs[0].y, glyphs[0].size);
        if glyphs.iter().any(|glyph| (glyph.y - y).abs() > size || glyph.direction != glyphs[0].direction) {
            return;
        }
        let from = content.text.len() as u32;
        content.text.push_str(&text);
        let end = content.text.len() as u32;
        let angle = glyphs[0].direction.angle();
        let along = |glyph: &Glyph| glyph.x * angle.cos() + glyph.y * angle.sin();
        let left = glyphs.iter().min_by(|a, b| along(a).total_cmp(&along(b)));
        let Some(mut whole) = left.cloned() else { return };
        let right = glyphs.iter().map(|glyph| along(glyph) + glyph.width).fold(f32::MIN, f32::max);
        whole.width = right - along(&whole);
        whole.text = from..end;
        content.glyphs.truncate(first);
        content.glyphs.push(whole);
    }

    fn x_object(&mut self, stream: &Stream<'a>, resources: &Resources<'a>) {
        let dict = stream.dict();
        let group = dict.get::<Dict<'_>>("OC");
        let off = group.is_some_and(|group| self.layers.is_off(&group, dict.get_ref("OC")));
        self.marked.push(Marked { artifact: false, off, actual_text: None });
        match dict.get::<Name<'_>>("Subtype").as_ref().map(|name| name.as_ref()) {
            Some(b"Image") => self.image(),
            // Some writers leave the subtype out.
            Some(b"Form") | None => self.form(stream, resources),
            _ => {}
        }
        self.marked.pop();
    }

    fn image(&mut self) {
        if self.layer_off() {
            return;
        }
        let corner = |x: f64, y: f64| self.state.ctm * Point::new(x, y);
        let corners = [corner(0.0, 0.0), corner(1.0, 0.0), corner(0.0, 1.0), corner(1.0, 1.0)];
        let rects = corners.map(|p| Rect::around(p.x as f32, p.y as f32, p.x as f32, p.y as f32));
        let Some(rect) = super::glyph::bounds(&rects) else { return };
        if self.content.images.len() < 10_000 {
            self.content.images.push(rect);
        }
        self.ground.push(rect, None);
    }

    fn form(&mut self, stream: &Stream<'a>, parent: &Resources<'a>) {
        let id = stream.obj_id();
        let key = (id.obj_number, id.gen_number);
        if self.forms.len() >= MAX_FORM_DEPTH || !self.forms.insert(key) {
            self.content.truncated.get_or_insert("a form draws itself, or forms are nested without end");
            return;
        }
        self.forms_drawn += 1;
        let saved = self.state.clone();
        let (text, line) = (self.text_matrix, self.line_matrix);
        let dict = stream.dict();
        if let Some(matrix) = dict.get::<[f64; 6]>("Matrix") {
            self.state.ctm *= Affine::new(matrix);
        }
        let resources = dict.get::<Dict<'a>>("Resources").map(Resources::new);
        if let Ok(data) = stream.decoded_data() {
            self.run(TypedIter::new(&data), resources.as_ref().unwrap_or(parent));
        }
        self.state = saved;
        (self.text_matrix, self.line_matrix) = (text, line);
        self.forms.remove(&key);
    }

    /// Appearances of annotations: form fields, free text, stamps.
    fn annotations(&mut self, page: &Page<'a>, initial: Affine, bounds: Rect) {
        const HIDDEN: i64 = 1 << 1;
        const NO_VIEW: i64 = 1 << 5;
        let Some(annotations) = page.raw().get::<Array<'a>>("Annots") else { return };
        for annotation in annotations.iter::<Dict<'a>>() {
            if annotation.get::<i64>("F").unwrap_or(0) & (HIDDEN | NO_VIEW) != 0 {
                continue;
            }
            let Some(form) = appearance(&annotation) else { continue };
            let Some(rect) = annotation.get::<[f64; 4]>("Rect") else { continue };
            self.state = State::new(initial * appearance_transform(&form, rect), bounds);
            self.form(&form, page.resources());
        }
    }
}
