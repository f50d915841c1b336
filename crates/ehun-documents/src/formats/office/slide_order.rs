//! Reading order of boxes on a slide, which need not be the order in which they were drawn.
//!
//! The boxes are cut in two along the widest gap that goes through all of them, level or upright, and each part again:
//! what stands close together is read together (the recursive X-Y cut of Nagy and Seth, 1984). Parts are read from top
//! to bottom and from left to right.

use crate::model::BBox;

/// Boxes are drawn with room around their text, and overlap by it: each is taken for this much smaller at every side, in
/// parts of its extent.
const INSET: f32 = 0.1;
const MAX_DEPTH: usize = 64;

/// A slide is read from its title, whatever the order of drawing; date, footer and number come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Titles,
    Content,
    Margins,
}

/// Indices into `boxes` in reading order. What has no box comes after the one before it in the order of drawing.
pub(super) fn reading_order(boxes: &[Option<BBox>]) -> Vec<usize> {
    let mut order = Vec::with_capacity(boxes.len());
    let placed: Vec<usize> = (0..boxes.len()).filter(|n| boxes[*n].is_some_and(is_finite)).collect();
    cut(boxes, placed, 0, &mut order);
    let mut followers = vec![Vec::new(); boxes.len()];
    let mut out = Vec::with_capacity(boxes.len());
    let mut leader = None;
    for (n, bbox) in boxes.iter().enumerate() {
        match (bbox.is_some_and(is_finite), leader) {
            (true, _) => leader = Some(n),
            (false, Some(leader)) => followers[leader].push(n),
            (false, None) => out.push(n),
        }
    }
    for n in order {
        out.push(n);
        out.append(&mut followers[n]);
    }
    out
}

fn is_finite(bbox: BBox) -> bool {
    [bbox.x0, bbox.y0, bbox.x1, bbox.y1].iter().all(|v| v.is_finite())
}

fn cut(boxes: &[Option<BBox>], part: Vec<usize>, depth: usize, out: &mut Vec<usize>) {
    let span = |n: &usize, upright: bool| match boxes[*n] {
        Some(b) if upright => shrunk(b.x0, b.x1),
        Some(b) => shrunk(b.y0, b.y1),
        None => (0.0, 0.0),
    };
    let gap = |upright| widest_gap(part.iter().map(|n| span(n, upright)).collect());
    let (level, upright) = match depth < MAX_DEPTH {
        true => (gap(false), gap(true)),
        false => (None, None),
    };
    let at = match (level, upright) {
        // Of equals the upright one: the cells of a grid of text boxes are columns.
        (Some(y), Some(x)) => Some(if y.width > x.width { (y.middle, false) } else { (x.middle, true) }),
        (Some(y), None) => Some((y.middle, false)),
        (None, Some(x)) => Some((x.middle, true)),
        (None, None) => None,
    };
    match at {
        Some((middle, upright)) => {
            let (before, after) = part.into_iter().partition(|n| span(n, upright).1 <= middle);
            cut(boxes, before, depth + 1, out);
            cut(boxes, after, depth + 1, out);
        }
        None => {
            let mut part = part;
            part.sort_by(|a, b| {
                span(a, false).0.total_cmp(&span(b, false).0).then(span(a, true).0.total_cmp(&span(b, true).0))
            });
            out.append(&mut part);
        }
    }
}

fn shrunk(start: f32, end: f32) -> (f32, f32) {
    let (start, end) = (start.min(end), start.max(end));
    let inset = (end - start) * INSET;
    (start + inset, end - inset)
}

#[derive(Clone, Copy)]
struct Gap {
    width: f32,
    middle: f32,
}

fn widest_gap(mut spans: Vec<(f32, f32)>) -> Option<Gap> {
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut end = spans.first()?.1;
    let mut best: Option<Gap> = None;
    for (start, stop) in spans {
        let width = start - end;
        if width > 0.0 && best.is_none_or(|best| width > best.width) {
            best = Some(Gap { width, middle: (start + end) / 2.0 });
        }
        end = end.max(stop);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(boxes: &[Option<[f32; 4]>]) -> Vec<usize> {
        let boxes: Vec<Option<BBox>> =
            boxes.iter().map(|b| b.map(|[x0, y0, x1, y1]| BBox { x0, y0, x1, y1 })).collect();
        reading_order(&boxes)
    }

    /// What it is, boxes as they are drawn, their order.
    type Case = (&'static str, Vec<Option<[f32; 4]>>, Vec<usize>);

    #[test]
    fn orders() {
        let cases: [Case; 6] = [
            (
                "drawn from below",
                vec![Some([0., 80., 100., 90.]), Some([0., 40., 100., 60.]), Some([0., 0., 100., 20.])],
                vec![2, 1, 0],
            ),
            (
                "two columns, each with a heading close above its text, below a box across",
                vec![
                    Some([520., 160., 900., 500.]),
                    Some([40., 160., 420., 500.]),
                    Some([520., 120., 900., 160.]),
                    Some([40., 120., 420., 160.]),
                    Some([40., 20., 900., 80.]),
                ],
                vec![4, 3, 1, 2, 0],
            ),
            (
                "rows of labels and values that stand further apart than the two",
                vec![
                    Some([120., 200., 200., 220.]),
                    Some([0., 200., 100., 220.]),
                    Some([120., 0., 200., 20.]),
                    Some([0., 0., 100., 20.]),
                ],
                vec![3, 2, 1, 0],
            ),
            ("overlapping a little", vec![Some([0., 95., 100., 200.]), Some([0., 0., 100., 100.])], vec![1, 0]),
            ("a tangle, from the top", vec![Some([0., 30., 100., 90.]), Some([10., 20., 90., 80.])], vec![1, 0]),
            (
                "without a box",
                vec![None, Some([0., 80., 100., 90.]), None, Some([0., 0., 100., 20.])],
                vec![0, 3, 1, 2],
            ),
        ];
        for (name, boxes, expected) in cases {
            assert_eq!(order(&boxes), expected, "{name}");
        }
    }

    #[test]
    fn nothing_is_lost_whatever_the_numbers() {
        let odd = [f32::NAN, f32::INFINITY, -1e30, 0.0, 0.0, 1e30, 5.0];
        let boxes: Vec<Option<[f32; 4]>> = (0..300)
            .map(|n| (n % 5 > 0).then(|| [n, n * 3 + 1, n * 5 + 2, n * 7 + 3].map(|k| odd[k % odd.len()])))
            .collect();
        let mut all = order(&boxes);
        all.sort_unstable();
        assert_eq!(all, (0..300).collect::<Vec<_>>());
    }
}
