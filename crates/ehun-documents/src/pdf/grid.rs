//! Tables with drawn rules: rules that meet form a grid, and the grid's meshes are cells.

use super::glyph::{Rect, Rule};

/// Rules this near to one another are one (points).
const SNAP: f32 = 2.5;
/// More rules than this are a drawing.
const MAX_GRID_RULES: usize = 1_500;
const MAX_CELLS: usize = 20_000;

/// A grid of cells.
#[derive(Debug)]
pub(super) struct Grid {
    pub rect: Rect,
    xs: Vec<f32>,
    ys: Vec<f32>,
    /// Which cell each mesh belongs to: meshes without a rule between them are one cell. Row by row.
    owner: Vec<usize>,
}

/// A cell as its meshes make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CellSpan {
    pub row: usize,
    pub column: usize,
    pub row_span: usize,
    pub column_span: usize,
}

/// Finds grids of at least two cells.
pub(super) fn find_grids(rules: &[Rule]) -> Vec<Grid> {
    let rules = distinct(rules);
    if rules.len() > MAX_GRID_RULES {
        return Vec::new();
    }
    let mut groups: Vec<Vec<Rule>> = Vec::new();
    let mut left: Vec<Rule> = rules;
    while let Some(first) = left.pop() {
        let mut group = vec![first];
        let mut at = 0;
        while at < group.len() {
            let rule = group[at];
            at += 1;
            left.retain(|other| {
                let meets = meet(&rule, other);
                if meets {
                    group.push(*other);
                }
                !meets
            });
        }
        groups.push(group);
    }
    let mut grids: Vec<Grid> = groups.iter().filter_map(|group| grid(group)).collect();
    grids.sort_by(|a, b| a.rect.y0.total_cmp(&b.rect.y0).then(a.rect.x0.total_cmp(&b.rect.x0)));
    grids
}

/// Leaves out rules that repeat another (both sides of a thin box, a line drawn twice).
fn distinct(rules: &[Rule]) -> Vec<Rule> {
    let mut sorted = rules.to_vec();
    let key = |rule: &Rule| [rule.rect.x0, rule.rect.y0, rule.rect.x1, rule.rect.y1].map(|n| (n * 2.0) as i32);
    sorted.sort_by_key(|rule| (rule.horizontal, key(rule)));
    sorted.dedup_by_key(|rule| (rule.horizontal, key(rule)));
    sorted
}

fn meet(a: &Rule, b: &Rule) -> bool {
    let grown = Rect { x0: a.rect.x0 - SNAP, y0: a.rect.y0 - SNAP, x1: a.rect.x1 + SNAP, y1: a.rect.y1 + SNAP };
    grown.x0 <= b.rect.x1 && grown.x1 >= b.rect.x0 && grown.y0 <= b.rect.y1 && grown.y1 >= b.rect.y0
}

fn snap(mut values: Vec<f32>) -> Vec<f32> {
    values.sort_by(f32::total_cmp);
    values.dedup_by(|next, kept| *next - *kept < SNAP);
    values
}

fn grid(group: &[Rule]) -> Option<Grid> {
    let (horizontal, vertical): (Vec<&Rule>, Vec<&Rule>) = group.iter().partition(|rule| rule.horizontal);
    let ys = snap(horizontal.iter().map(|rule| rule.rect.center().1).collect());
    let xs = snap(vertical.iter().map(|rule| rule.rect.center().0).collect());
    if xs.len() < 2 || ys.len() < 2 || xs.len() + ys.len() < 5 {
        return None;
    }
    let (columns, rows) = (xs.len() - 1, ys.len() - 1);
    if columns * rows > MAX_CELLS {
        return None;
    }
    let rect = Rect { x0: xs[0], y0: ys[0], x1: xs[columns], y1: ys[rows] };
    let mut owner: Vec<usize> = (0..columns * rows).collect();
    let covered = |rules: &[&Rule], at: f32, from: f32, to: f32, horizontal: bool| {
        rules.iter().any(|rule| {
            let (x, y) = rule.rect.center();
            let (place, start, end) =
                if horizontal { (y, rule.rect.x0, rule.rect.x1) } else { (x, rule.rect.y0, rule.rect.y1) };
            (place - at).abs() <= SNAP && start <= (from + to) / 2.0 && end >= (from + to) / 2.0
        })
    };
    for row in 0..rows {
        for column in 0..columns {
            let n = row * columns + column;
            if column > 0 && !covered(&vertical, xs[column], ys[row], ys[row + 1], false) {
                owner[n] = owner[n - 1];
            }
            if row > 0 && owner[n] == n && !covered(&horizontal, ys[row], xs[column], xs[column + 1], true) {
                owner[n] = owner[n - columns];
            }
        }
    }
    Some(Grid { rect, xs, ys, owner })
}

impl Grid {
    fn columns(&self) -> usize {
        self.xs.len() - 1
    }

    /// Rows of the grid.
    pub fn rows(&self) -> usize {
        self.ys.len() - 1
    }

    /// The cell (by its number) that a point lies in.
    pub fn cell_at(&self, (x, y): (f32, f32)) -> Option<usize> {
        if !self.rect.contains((x, y)) {
            return None;
        }
        let column = self.xs.partition_point(|edge| *edge <= x).checked_sub(1)?.min(self.columns() - 1);
        let row = self.ys.partition_point(|edge| *edge <= y).checked_sub(1)?.min(self.rows() - 1);
        Some(self.owner[row * self.columns() + column])
    }

    /// All cells, by row and column of their top left mesh, with their numbers.
    pub fn cells(&self) -> Vec<(usize, CellSpan)> {
        let columns = self.columns();
        let mut spans: std::collections::BTreeMap<usize, (usize, usize, usize, usize)> = Default::default();
        for (n, owner) in self.owner.iter().enumerate() {
            let (row, column) = (n / columns, n % columns);
            let span = spans.entry(*owner).or_insert((row, column, row, column));
            *span = (span.0.min(row), span.1.min(column), span.2.max(row), span.3.max(column));
        }
        spans
            .into_iter()
            .map(|(owner, (top, left, bottom, right))| {
                let span =
                    CellSpan { row: top, column: left, row_span: bottom - top + 1, column_span: right - left + 1 };
                (owner, span)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(x0: f32, y0: f32, x1: f32, y1: f32) -> Rule {
        let rect = Rect { x0, y0, x1, y1 };
        Rule { rect, horizontal: rect.width() >= rect.height() }
    }

    #[test]
    fn a_merged_cell_spans_two_columns() {
        let mut rules: Vec<Rule> = [0.0, 20.0, 40.0].map(|y| rule(0.0, y, 100.0, y)).to_vec();
        rules.extend([0.0, 100.0].map(|x| rule(x, 0.0, x, 40.0)));
        // The rule in the middle divides only the lower row.
        rules.push(rule(50.0, 20.0, 50.0, 40.0));
        let grids = find_grids(&rules);
        assert_eq!(grids.len(), 1);
        let spans: Vec<_> =
            grids[0].cells().into_iter().map(|(_, s)| (s.row, s.column, s.row_span, s.column_span)).collect();
        assert_eq!(spans, [(0, 0, 1, 2), (1, 0, 1, 1), (1, 1, 1, 1)]);
        assert_eq!(grids[0].cell_at((80.0, 10.0)), grids[0].cell_at((10.0, 10.0)));
        assert_ne!(grids[0].cell_at((80.0, 30.0)), grids[0].cell_at((10.0, 30.0)));
    }

    #[test]
    fn a_frame_is_no_table() {
        let mut rules: Vec<Rule> = [0.0, 40.0].map(|y| rule(0.0, y, 100.0, y)).to_vec();
        rules.extend([0.0, 100.0].map(|x| rule(x, 0.0, x, 40.0)));
        assert!(find_grids(&rules).is_empty());
    }
}
