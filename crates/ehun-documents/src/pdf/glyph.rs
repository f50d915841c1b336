//! What a page's content stream comes down to: glyphs with a place and a style, rules, and pictures.

use std::ops::Range;

use crate::HiddenReason;

/// A rectangle in points, y growing downwards, on the page as it is shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rect {
    pub x0: f32,
    pub y0: f32,
    pub x1: f32,
    pub y1: f32,
}

impl Rect {
    /// The box around two corners given in any order.
    pub fn around(ax: f32, ay: f32, bx: f32, by: f32) -> Self {
        Rect { x0: ax.min(bx), y0: ay.min(by), x1: ax.max(bx), y1: ay.max(by) }
    }

    pub fn width(&self) -> f32 {
        self.x1 - self.x0
    }

    pub fn height(&self) -> f32 {
        self.y1 - self.y0
    }

    pub fn area(&self) -> f32 {
        self.width().max(0.0) * self.height().max(0.0)
    }

    pub fn center(&self) -> (f32, f32) {
        ((self.x0 + self.x1) / 2.0, (self.y0 + self.y1) / 2.0)
    }

    pub fn union(&self, other: &Rect) -> Rect {
        Rect {
            x0: self.x0.min(other.x0),
            y0: self.y0.min(other.y0),
            x1: self.x1.max(other.x1),
            y1: self.y1.max(other.y1),
        }
    }

    pub fn contains(&self, (x, y): (f32, f32)) -> bool {
        x >= self.x0 && x <= self.x1 && y >= self.y0 && y <= self.y1
    }

    /// Length of the common part of both vertical extents.
    pub fn overlap_y(&self, other: &Rect) -> f32 {
        (self.y1.min(other.y1) - self.y0.max(other.y0)).max(0.0)
    }

    /// Length of the common part of both horizontal extents.
    pub fn overlap_x(&self, other: &Rect) -> f32 {
        (self.x1.min(other.x1) - self.x0.max(other.x0)).max(0.0)
    }
}

/// The box around many; `None` for none.
pub(super) fn bounds<'a>(rects: impl IntoIterator<Item = &'a Rect>) -> Option<Rect> {
    rects.into_iter().copied().reduce(|a, b| a.union(&b))
}

/// Which way a baseline runs on the page as shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Direction {
    /// Left to right, upright.
    Right,
    /// Top to bottom: turned clockwise.
    Down,
    /// Upside down.
    Left,
    /// Bottom to top: turned counter-clockwise.
    Up,
    /// Any other angle, in whole degrees clockwise from `Right`: a watermark, a label in a figure.
    Oblique(i16),
    /// Columns of upright characters from top to bottom, right to left (vertical CJK).
    Vertical,
}

impl Direction {
    /// The direction of a vector, y downwards; within three degrees of an axis it is the axis.
    pub fn of(x: f64, y: f64) -> Self {
        let degrees = y.atan2(x).to_degrees().round() as i16;
        match degrees.rem_euclid(360) {
            0..=3 | 357..=359 => Direction::Right,
            87..=93 => Direction::Down,
            177..=183 => Direction::Left,
            267..=273 => Direction::Up,
            other => Direction::Oblique(other),
        }
    }

    /// The angle of the baseline in radians, clockwise.
    pub fn angle(self) -> f32 {
        let degrees = match self {
            Direction::Right => 0,
            // Downwards, and the next column lies to the left: as text turned clockwise.
            Direction::Down | Direction::Vertical => 90,
            Direction::Left => 180,
            Direction::Up => 270,
            Direction::Oblique(degrees) => degrees,
        };
        f32::from(degrees).to_radians()
    }
}

/// What a font's dictionary says about its looks.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct FontStyle {
    pub bold: bool,
    pub mono: bool,
}

/// One glyph.
#[derive(Debug, Clone)]
pub(super) struct Glyph {
    /// Its characters in [`PageContent::text`].
    pub text: Range<u32>,
    /// Start of its baseline.
    pub x: f32,
    /// Start of its baseline.
    pub y: f32,
    /// Width along the baseline.
    pub width: f32,
    /// Font size as shown.
    pub size: f32,
    pub direction: Direction,
    pub bold: bool,
    pub mono: bool,
    /// Inside marked content that is no content: running headers and footers, decoration.
    pub artifact: bool,
    pub hidden: Option<HiddenReason>,
}

/// A drawn line, or a thin filled box: it may be a table's rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rule {
    pub rect: Rect,
    pub horizontal: bool,
}

/// A page's content.
#[derive(Debug, Default)]
pub(super) struct PageContent {
    pub width: f32,
    pub height: f32,
    /// Characters of all glyphs in drawing order.
    pub text: String,
    pub glyphs: Vec<Glyph>,
    pub rules: Vec<Rule>,
    /// Where pictures lie.
    pub images: Vec<Rect>,
    /// Glyphs whose character is not known; each stands in the text as U+FFFD.
    pub unmapped: usize,
    /// Shapes were painted: a page may be text turned to outlines.
    pub paths: usize,
    /// Part of the content was left out, and why.
    pub truncated: Option<&'static str>,
}

impl PageContent {
    /// The characters of a glyph.
    pub fn glyph_text(&self, glyph: &Glyph) -> &str {
        &self.text[glyph.text.start as usize..glyph.text.end as usize]
    }
}
