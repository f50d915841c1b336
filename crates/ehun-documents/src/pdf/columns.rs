//! Reading order: a page is cut into areas of one column each.
//!
//! An area with a gutter through its whole height is cut there if both sides look like running text. Without one, the
//! tallest band of it that has a gutter is cut out, with what stands above and below (titles and figures across
//! columns), and each part is looked at again. Side-by-side pieces that do not look like columns of text (cells, labels
//! and values, names of authors) stay together and are read line by line.

use super::glyph::{Rect, bounds};

/// A narrower gap is no gutter (font sizes).
const GUTTER: f32 = 0.75;
const MAX_DEPTH: usize = 40;
/// Places for a gutter that are looked at in one area.
const MAX_CANDIDATES: usize = 200;

/// Something to put in order.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub rect: Rect,
    pub size: f32,
}

/// The areas in reading order, each as indices into `items`.
pub(super) fn reading_order(items: &[Item], right_to_left: bool) -> Vec<Vec<usize>> {
    let mut areas = Vec::new();
    let cutter = Cutter { items, right_to_left, gutter: GUTTER * median_size(items) };
    cutter.cut((0..items.len()).collect(), 0, &mut areas);
    areas
}

fn median_size(items: &[Item]) -> f32 {
    let mut sizes: Vec<f32> = items.iter().map(|item| item.size).collect();
    sizes.sort_by(f32::total_cmp);
    sizes.get(sizes.len() / 2).copied().unwrap_or(10.0)
}

struct Cutter<'i> {
    items: &'i [Item],
    right_to_left: bool,
    gutter: f32,
}

impl Cutter<'_> {
    fn cut(&self, area: Vec<usize>, depth: usize, out: &mut Vec<Vec<usize>>) {
        if area.len() < 4 || depth > MAX_DEPTH {
            if !area.is_empty() {
                out.push(area);
            }
            return;
        }
        if let Some((left, right)) = self.columns(&area) {
            let (first, second) = if self.right_to_left { (right, left) } else { (left, right) };
            self.cut(first, depth + 1, out);
            self.cut(second, depth + 1, out);
            return;
        }
        match self.band(&area) {
            Some((top, bottom)) => {
                let mut parts = [Vec::new(), Vec::new(), Vec::new()];
                for n in area {
                    let (_, y) = self.items[n].rect.center();
                    parts[usize::from(y >= top) + usize::from(y > bottom)].push(n);
                }
                for part in parts {
                    self.cut(part, depth + 1, out);
                }
            }
            None => out.push(area),
        }
    }

    /// Cuts along the widest gutter through the whole area that has columns at its sides.
    fn columns(&self, area: &[usize]) -> Option<(Vec<usize>, Vec<usize>)> {
        let mut spans: Vec<(f32, f32)> =
            area.iter().map(|n| (self.items[*n].rect.x0, self.items[*n].rect.x1)).collect();
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut gaps = Vec::new();
        let mut end = f32::MIN;
        for (x0, x1) in spans {
            if end > f32::MIN && x0 - end >= self.gutter {
                gaps.push((x0 - end, (x0 + end) / 2.0));
            }
            end = end.max(x1);
        }
        gaps.sort_by(|a, b| b.0.total_cmp(&a.0));
        gaps.into_iter().find_map(|(_, middle)| {
            let (left, right): (Vec<usize>, Vec<usize>) = area.iter().partition(|n| self.items[**n].rect.x1 < middle);
            self.are_columns(&left, &right).then_some((left, right))
        })
    }

    /// The tallest band (top, bottom) that has columns in it and is not the whole area.
    fn band(&self, area: &[usize]) -> Option<(f32, f32)> {
        let mut by_top = area.to_vec();
        by_top.sort_by(|a, b| self.items[*a].rect.y0.total_cmp(&self.items[*b].rect.y0));
        let mut best: Option<(usize, f32, f32)> = None;
        for middle in self.candidates(area) {
            let crosses = |n: usize| {
                let rect = &self.items[n].rect;
                rect.x0 < middle + self.gutter * 0.4 && rect.x1 > middle - self.gutter * 0.4
            };
            let mut start = 0;
            for at in 0..=by_top.len() {
                if at < by_top.len() && !crosses(by_top[at]) {
                    continue;
                }
                let run = &by_top[start..at];
                start = at + 1;
                if run.len() < 4 || run.len() == area.len() || best.is_some_and(|(size, ..)| run.len() <= size) {
                    continue;
                }
                let (left, right): (Vec<usize>, Vec<usize>) =
                    run.iter().partition(|n| self.items[**n].rect.x1 < middle);
                if !self.are_columns(&left, &right) {
                    continue;
                }
                let centers = run.iter().map(|n| self.items[*n].rect.center().1);
                let top = centers.clone().fold(f32::MAX, f32::min);
                let bottom = centers.fold(f32::MIN, f32::max);
                let inside = area.iter().filter(|n| (top..=bottom).contains(&self.items[**n].rect.center().1)).count();
                if inside < area.len() {
                    best = Some((run.len(), top, bottom));
                }
            }
        }
        best.map(|(_, top, bottom)| (top, bottom))
    }

    /// Middles of gaps between neighbours on a line.
    fn candidates(&self, area: &[usize]) -> Vec<f32> {
        let lines = self.lines(area);
        let mut middles = Vec::new();
        for line in &lines {
            for pair in line.windows(2) {
                let (a, b) = (&self.items[pair[0]].rect, &self.items[pair[1]].rect);
                if b.x0 - a.x1 >= self.gutter {
                    // The gutter may lie anywhere in a wide gap: both its ends are tried.
                    middles.push((a.x1 + b.x0) / 2.0);
                    if b.x0 - a.x1 > 3.0 * self.gutter {
                        middles.push(a.x1 + self.gutter);
                        middles.push(b.x0 - self.gutter);
                    }
                }
            }
        }
        middles.sort_by(f32::total_cmp);
        middles.dedup_by(|a, b| (*a - *b).abs() < self.gutter * 0.3);
        let step = middles.len().div_ceil(MAX_CANDIDATES).max(1);
        middles.into_iter().step_by(step).collect()
    }

    fn lines(&self, area: &[usize]) -> Vec<Vec<usize>> {
        group_lines(area, |n| self.items[n].rect)
    }

    /// Whether what stands left and right of a gutter is two columns of running text.
    fn are_columns(&self, left: &[usize], right: &[usize]) -> bool {
        if left.len() < 2 || right.len() < 2 {
            return false;
        }
        let around = |side: &[usize]| bounds(side.iter().map(|n| &self.items[*n].rect));
        let (Some(a), Some(b)) = (around(left), around(right)) else { return false };
        // One below the other are no columns.
        if a.overlap_y(&b) < 0.6 * a.height().min(b.height()) {
            return false;
        }
        let (left_lines, right_lines) = (self.lines(left), self.lines(right));
        if left_lines.len() < 2 || right_lines.len() < 2 {
            return false;
        }
        let running = |lines: &[Vec<usize>]| self.is_running_text(lines);
        if running(&left_lines) && running(&right_lines) {
            return true;
        }
        // Lists or verse beside one another: their lines do not stand at the same heights, as cells do.
        left_lines.len() >= 3 && right_lines.len() >= 3 && self.aligned(&left_lines, &right_lines) < 0.4
    }

    fn is_running_text(&self, lines: &[Vec<usize>]) -> bool {
        let all = lines.iter().flatten().map(|n| &self.items[*n].rect);
        let Some(around) = bounds(all) else { return false };
        let size = self.items[lines[0][0]].size.max(1.0);
        if around.width() < 9.0 * size {
            return false;
        }
        let mut fills: Vec<f32> = lines
            .iter()
            .map(|line| line.iter().map(|n| self.items[*n].rect.width()).sum::<f32>() / around.width())
            .collect();
        fills.sort_by(f32::total_cmp);
        fills[fills.len() / 2] > 0.6
    }

    /// The share of lines of the shorter side that stand at the height of a line of the other.
    fn aligned(&self, a: &[Vec<usize>], b: &[Vec<usize>]) -> f32 {
        let bottoms =
            |lines: &[Vec<usize>]| -> Vec<f32> { lines.iter().map(|line| self.items[line[0]].rect.y1).collect() };
        let (short, long) = if a.len() < b.len() { (bottoms(a), bottoms(b)) } else { (bottoms(b), bottoms(a)) };
        let near = |y: f32| long.iter().any(|other| (other - y).abs() < 1.0);
        short.iter().filter(|y| near(**y)).count() as f32 / short.len().max(1) as f32
    }
}

/// Groups boxes into lines from top to bottom, each from left to right.
pub(super) fn group_lines(area: &[usize], rect: impl Fn(usize) -> Rect) -> Vec<Vec<usize>> {
    let mut order = area.to_vec();
    order.sort_by(|a, b| rect(*a).center().1.total_cmp(&rect(*b).center().1));
    let mut lines: Vec<(Rect, Vec<usize>)> = Vec::new();
    for n in order {
        let own = rect(n);
        // Only the last few lines can reach down to this box.
        let line = lines.iter_mut().rev().take(3).find(|(line, _)| {
            line.overlap_y(&own) > 0.5 * line.height().min(own.height())
                && (line.center().1 - own.center().1).abs() < 0.45 * line.height().max(own.height())
        });
        match line {
            // The first box gives the line its height: a line must not grow down the page by steps.
            Some((_, members)) => members.push(n),
            None => lines.push((own, vec![n])),
        }
    }
    let mut lines: Vec<Vec<usize>> = lines.into_iter().map(|(_, members)| members).collect();
    for line in &mut lines {
        line.sort_by(|a, b| rect(*a).x0.total_cmp(&rect(*b).x0));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page as a picture: each letter run is an item, its letter the expected place in the order.
    fn order_of(picture: &str) -> String {
        let mut items = Vec::new();
        let mut names = Vec::new();
        for (row, line) in picture.lines().enumerate() {
            let mut at = 0;
            for piece in line.split(' ') {
                if let Some(first) = piece.chars().next() {
                    let (x0, y0) = (at as f32 * 5.0, row as f32 * 12.0);
                    let rect = Rect { x0, y0, x1: x0 + piece.len() as f32 * 5.0, y1: y0 + 10.0 };
                    items.push(Item { rect, size: 10.0 });
                    names.push(first);
                }
                at += piece.len() + 1;
            }
        }
        let mut text = String::new();
        for area in reading_order(&items, false) {
            for line in group_lines(&area, |n| items[n].rect) {
                text.extend(line.iter().map(|n| names[*n]));
            }
        }
        text
    }

    #[test]
    fn columns_under_a_title() {
        let picture = "\
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa

bbbbbbbbbbbbbbbbbbbbb   gggggggggggggggggggg
ccccccccccccccccccccc   hhhhhhhhhhhhhhhhhhhh
ddddddddddddddddddddd   iiiiiiiiiiiiiiiiiiii
eeeeeeeeeeeeeeeeeeeee   jjjjjjjjjjjjjjjjjjjj
ffffff                  kkkkkkkkkkkkkkkkkkkk

lllllllllllllllllllllllllllllllllllllllllllll";
        assert_eq!(order_of(picture), "abcdefghijkl");
    }

    #[test]
    fn a_table_is_read_by_rows() {
        let picture = "\
aaaa       bbbb       cccc
dd         eeee       ffff
gggggg     hhhh       iii
jj         kkk        llll";
        assert_eq!(order_of(picture), "abcdefghijkl");
    }

    #[test]
    fn a_figure_across_columns_divides_them() {
        let picture = "\
aaaaaaaaaaaaaaaaaaaaa   dddddddddddddddddddd
bbbbbbbbbbbbbbbbbbbbb   eeeeeeeeeeeeeeeeeeee
ccccccccccccccccccccc   ffffffffffffffffffff

ggggggggggggggggggggggggggggggggggggggggggggg

hhhhhhhhhhhhhhhhhhhhh   kkkkkkkkkkkkkkkkkkkk
iiiiiiiiiiiiiiiiiiiii   llllllllllllllllllll
jjjjjjjjjjjjjjjjjjjjj   mmmmmmmmmmmmmmmmmmmm";
        assert_eq!(order_of(picture), "abcdefghijklm");
    }
}
