//! Paths as far as a reader of text needs them: rules of tables, and what lies behind a text.

use hayro_font::kurbo::{Affine, Point};

use super::glyph::{PageContent, Rect, Rule};
use super::state::{Rgb, same_color};

/// Thicker than this is an area, not a line (points).
const RULE_THICKNESS: f32 = 3.0;
/// Shorter lines are parts of drawings, not rules (points).
const RULE_LENGTH: f32 = 6.0;
/// A page with more lines than this is a drawing; no table is looked for among them.
const MAX_RULES: usize = 20_000;
const MAX_SHAPES: usize = 20_000;
const MAX_POINTS: usize = 100_000;

/// The path under construction, in page coordinates.
#[derive(Default)]
pub(super) struct Path {
    parts: Vec<Part>,
    points: usize,
}

#[derive(Default)]
struct Part {
    points: Vec<(f32, f32)>,
    curved: bool,
    closed: bool,
}

impl Path {
    pub fn move_to(&mut self, ctm: Affine, x: f64, y: f64) {
        if self.points < MAX_POINTS {
            self.points += 1;
            let point = place(ctm, x, y);
            self.parts.push(Part { points: vec![point], ..Part::default() });
        }
    }

    pub fn line_to(&mut self, ctm: Affine, x: f64, y: f64) {
        if self.points < MAX_POINTS {
            self.points += 1;
            let point = place(ctm, x, y);
            match self.parts.last_mut() {
                Some(part) => part.points.push(point),
                None => self.parts.push(Part { points: vec![point], ..Part::default() }),
            }
        }
    }

    /// Only the end point counts: a curve is neither a rule nor a plain area.
    pub fn curve_to(&mut self, ctm: Affine, x: f64, y: f64) {
        self.line_to(ctm, x, y);
        if let Some(part) = self.parts.last_mut() {
            part.curved = true;
        }
    }

    pub fn close(&mut self) {
        if let Some(part) = self.parts.last_mut() {
            part.closed = true;
        }
    }

    pub fn rect(&mut self, ctm: Affine, [x, y, w, h]: [f64; 4]) {
        self.move_to(ctm, x, y);
        self.line_to(ctm, x + w, y);
        self.line_to(ctm, x + w, y + h);
        self.line_to(ctm, x, y + h);
        self.close();
    }

    pub fn clear(&mut self) {
        self.parts.clear();
        self.points = 0;
    }

    /// The rectangle that the whole path is, if it is one.
    pub fn as_rect(&self) -> Option<Rect> {
        match self.parts.as_slice() {
            [part] => part.as_rect(),
            _ => None,
        }
    }

    /// Lines of a stroked path.
    pub fn stroke(&self, content: &mut PageContent) {
        content.paths += 1;
        for part in &self.parts {
            let closing = part.closed.then(|| (part.points.last().copied(), part.points.first().copied()));
            let closing = closing.and_then(|(a, b)| Some((a?, b?)));
            let lines = part.points.windows(2).map(|pair| (pair[0], pair[1])).chain(closing);
            if part.curved {
                continue;
            }
            for ((ax, ay), (bx, by)) in lines {
                push_rule(content, Rect::around(ax, ay, bx, by));
            }
        }
    }

    /// Thin boxes of a filled path are rules, others may lie behind text.
    pub fn fill(&self, content: &mut PageContent, ground: &mut Ground, color: Option<Rgb>) {
        content.paths += 1;
        for part in &self.parts {
            let Some(bounds) = part.bounds() else { continue };
            let rect = part.as_rect();
            if let Some(rect) = rect.filter(|r| r.width().min(r.height()) <= RULE_THICKNESS) {
                push_rule(content, rect);
                continue;
            }
            // Part of a path with more parts may be a hole.
            let color = color.filter(|_| rect.is_some() && self.parts.len() == 1);
            ground.push(bounds, color);
        }
    }
}

impl Part {
    fn bounds(&self) -> Option<Rect> {
        let points = self.points.iter().map(|(x, y)| Rect::around(*x, *y, *x, *y));
        points.reduce(|a, b| a.union(&b))
    }

    fn as_rect(&self) -> Option<Rect> {
        let mut points = self.points.as_slice();
        if points.len() == 5 && points[0] == points[4] {
            points = &points[..4];
        }
        if points.len() != 4 || self.curved {
            return None;
        }
        let near = |a: f32, b: f32| (a - b).abs() < 0.05;
        let straight = (0..4).all(|i| {
            let (a, b) = (points[i], points[(i + 1) % 4]);
            near(a.0, b.0) || near(a.1, b.1)
        });
        straight.then(|| self.bounds()).flatten()
    }
}

fn place(ctm: Affine, x: f64, y: f64) -> (f32, f32) {
    let point = ctm * Point::new(x, y);
    (point.x as f32, point.y as f32)
}

fn push_rule(content: &mut PageContent, rect: Rect) {
    let (w, h) = (rect.width(), rect.height());
    if w.max(h) >= RULE_LENGTH && w.min(h) <= RULE_THICKNESS && content.rules.len() < MAX_RULES {
        content.rules.push(Rule { rect, horizontal: w >= h });
    }
}

/// What was painted so far, the latest last.
pub(super) struct Ground {
    shapes: Vec<(Rect, Option<Rgb>)>,
}

impl Ground {
    pub fn new() -> Self {
        Ground { shapes: Vec::new() }
    }

    /// `color`: `None` if it is not one colour, or its shape no box.
    pub fn push(&mut self, rect: Rect, color: Option<Rgb>) {
        if rect.area() > 1.0 && self.shapes.len() < MAX_SHAPES {
            self.shapes.push((rect, color));
        }
    }

    /// True if something of this colour vanishes at this place.
    pub fn hides(&self, at: (f32, f32), color: Rgb) -> bool {
        let below = self.shapes.iter().rev().find(|(rect, _)| rect.contains(at));
        match below {
            Some((_, ground)) => ground.is_some_and(|ground| same_color(ground, color)),
            None => same_color([1.0; 3], color),
        }
    }
}
