//! The graphics state, and the colours that it can be told apart by.

use std::rc::Rc;

use hayro_font::kurbo::Affine;
use hayro_syntax::object::{Array, Name, Number, Object};
use hayro_syntax::page::Resources;

use super::font::LoadedFont;
use super::glyph::Rect;

/// An RGB colour, each part from 0 to 1.
pub(super) type Rgb = [f32; 3];

/// How the numbers of a colour operator are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColorSpace {
    Gray,
    Rgb,
    Cmyk,
    /// Patterns, tints, Lab: what it looks like is not worked out.
    Other,
}

impl ColorSpace {
    /// The space that a resource name stands for.
    pub fn named(name: &Name<'_>, resources: &Resources<'_>) -> Self {
        match name.as_ref() {
            b"DeviceGray" | b"G" | b"CalGray" => ColorSpace::Gray,
            b"DeviceRGB" | b"RGB" | b"CalRGB" => ColorSpace::Rgb,
            b"DeviceCMYK" | b"CMYK" => ColorSpace::Cmyk,
            _ => resources.get_color_space(name).map_or(ColorSpace::Other, |object| Self::of_object(&object)),
        }
    }

    fn of_object(object: &Object<'_>) -> Self {
        let of_family = |family: &[u8]| match family {
            b"DeviceGray" | b"CalGray" => ColorSpace::Gray,
            b"DeviceRGB" | b"CalRGB" => ColorSpace::Rgb,
            b"DeviceCMYK" => ColorSpace::Cmyk,
            _ => ColorSpace::Other,
        };
        match object {
            Object::Name(name) => of_family(name.as_ref()),
            Object::Array(array) => Self::of_array(array, of_family),
            _ => ColorSpace::Other,
        }
    }

    fn of_array(array: &Array<'_>, of_family: impl Fn(&[u8]) -> Self) -> Self {
        let mut items = array.iter::<Object<'_>>();
        let Some(Object::Name(family)) = items.next() else {
            return ColorSpace::Other;
        };
        if family.as_ref() != b"ICCBased" {
            return of_family(family.as_ref());
        }
        let Some(Object::Stream(profile)) = items.next() else {
            return ColorSpace::Other;
        };
        match profile.dict().get::<i64>("N") {
            Some(1) => ColorSpace::Gray,
            Some(3) => ColorSpace::Rgb,
            Some(4) => ColorSpace::Cmyk,
            _ => ColorSpace::Other,
        }
    }

    /// The colour of some numbers; `None` if it is not worked out.
    pub fn color(self, numbers: &[Number]) -> Option<Rgb> {
        let n = |i: usize| numbers.get(i).map(|n| n.as_f32());
        match self {
            ColorSpace::Gray => n(0).map(gray),
            ColorSpace::Rgb => Some([n(0)?, n(1)?, n(2)?]),
            ColorSpace::Cmyk => Some(cmyk(n(0)?, n(1)?, n(2)?, n(3)?)),
            ColorSpace::Other => None,
        }
    }

    /// What a space begins with.
    pub fn initial(self) -> Option<Rgb> {
        (self != ColorSpace::Other).then_some([0.0; 3])
    }
}

pub(super) fn gray(g: f32) -> Rgb {
    [g; 3]
}

pub(super) fn cmyk(c: f32, m: f32, y: f32, k: f32) -> Rgb {
    [(1.0 - c) * (1.0 - k), (1.0 - m) * (1.0 - k), (1.0 - y) * (1.0 - k)]
}

/// True if no reader could tell text of one colour from a ground of the other.
pub(super) fn same_color(a: Rgb, b: Rgb) -> bool {
    a.iter().zip(b).all(|(a, b)| (a - b).abs() < 0.02)
}

/// Everything that `q` saves.
#[derive(Clone)]
pub(super) struct State<'a> {
    pub ctm: Affine,
    /// What rectangular clip paths leave of the page.
    pub clip: Rect,
    pub fill: Option<Rgb>,
    pub fill_space: ColorSpace,
    pub stroke: Option<Rgb>,
    pub stroke_space: ColorSpace,
    pub fill_alpha: f32,
    pub font: Option<Rc<LoadedFont<'a>>>,
    pub font_size: f64,
    pub char_space: f64,
    pub word_space: f64,
    /// 1 is normal.
    pub horizontal_scale: f64,
    pub leading: f64,
    pub rise: f64,
    pub render_mode: i64,
}

impl State<'_> {
    pub fn new(ctm: Affine, page: Rect) -> Self {
        State {
            ctm,
            clip: page,
            fill: Some([0.0; 3]),
            fill_space: ColorSpace::Gray,
            stroke: Some([0.0; 3]),
            stroke_space: ColorSpace::Gray,
            fill_alpha: 1.0,
            font: None,
            font_size: 0.0,
            char_space: 0.0,
            word_space: 0.0,
            horizontal_scale: 1.0,
            leading: 0.0,
            rise: 0.0,
            render_mode: 0,
        }
    }
}
