//! Tables without a full grid of rules: lines whose pieces stand in columns.

use super::bidi;
use super::fragments::Fragment;
use super::glyph::{Rect, bounds};
use super::lines::Line;
use super::lists;

/// A narrower gap does not part cells (font sizes).
const CELL_GAP: f32 = 1.0;

/// A part of a column of a page.
#[derive(Debug)]
pub(super) enum Part {
    Lines(Vec<Line>),
    Table { rect: Rect, rows: Vec<Vec<String>>, header_rows: usize },
}

/// Takes tables out of a column's lines.
pub(super) fn split_tables(lines: Vec<Line>) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut plain: Vec<Line> = Vec::new();
    let mut rest = std::collections::VecDeque::from(lines);
    while !rest.is_empty() {
        match table_at(rest.make_contiguous()) {
            Some((length, part)) => {
                if !plain.is_empty() {
                    parts.push(Part::Lines(std::mem::take(&mut plain)));
                }
                parts.push(part);
                rest.drain(..length);
            }
            None => plain.extend(rest.pop_front()),
        }
    }
    if !plain.is_empty() {
        parts.push(Part::Lines(plain));
    }
    parts
}

/// A cell as it stands on one line.
struct Piece {
    x0: f32,
    x1: f32,
    text: String,
}

fn pieces(line: &Line) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut cells: Vec<&Fragment> = line.cells.iter().collect();
    cells.sort_by(|a, b| a.rect.x0.total_cmp(&b.rect.x0));
    for cell in cells {
        match pieces.last_mut() {
            Some(last) if cell.rect.x0 - last.x1 < CELL_GAP * line.size => {
                last.text.push(' ');
                last.text.push_str(&cell.text);
                last.x1 = last.x1.max(cell.rect.x1);
            }
            _ => pieces.push(Piece { x0: cell.rect.x0, x1: cell.rect.x1, text: cell.text.clone() }),
        }
    }
    pieces
}

/// Columns as intervals; a piece joins those that it touches.
fn add_to_columns(columns: &[(f32, f32)], pieces: &[Piece]) -> Vec<(f32, f32)> {
    let mut all: Vec<(f32, f32)> = columns.iter().copied().chain(pieces.iter().map(|p| (p.x0, p.x1))).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all.dedup_by(|next, kept| {
        let touches = next.0 < kept.1 + 1.0;
        if touches {
            kept.1 = kept.1.max(next.1);
        }
        touches
    });
    all
}

/// A table that begins with the first line: how many lines it takes.
fn table_at(lines: &[Line]) -> Option<(usize, Part)> {
    let first = pieces(lines.first()?);
    if first.len() < 2 {
        return None;
    }
    let mut columns = add_to_columns(&[], &first);
    let mut rows: Vec<Vec<Piece>> = vec![first];
    let mut full = 1;
    for (n, line) in lines.iter().enumerate().skip(1) {
        let pitch = line.baseline - lines[n - 1].baseline;
        if pitch > 3.0 * line.size.max(lines[n - 1].size) {
            break;
        }
        let own = pieces(line);
        let grown = add_to_columns(&columns, &own);
        // A line across columns ends the table.
        if grown.len() < columns.len() {
            break;
        }
        if own.len() < 2 {
            let goes_on = lines.get(n + 1).is_some_and(|next| pieces(next).len() > 1);
            let in_first = own.first().is_some_and(|piece| columns.first().is_some_and(|(_, end)| piece.x0 <= *end));
            if grown.len() > columns.len() || (in_first && !goes_on) {
                break;
            }
        } else {
            full += 1;
        }
        columns = grown;
        rows.push(own);
    }
    let enough = if columns.len() > 2 { full >= 2 } else { full >= 3 };
    let leaders = rows.iter().flatten().filter(|piece| lists::has_leader(&piece.text)).count();
    let marks = rows.iter().filter(|row| begins_with_mark(row)).count();
    if !enough || columns.len() < 2 || leaders * 3 > rows.len() || marks * 2 > full {
        return None;
    }
    // Long pieces at both sides are text, whatever stands between them.
    let longest = |column: usize| {
        let (x0, x1) = columns[column];
        rows.iter().flatten().filter(|p| p.x0 >= x0 && p.x1 <= x1).map(|p| p.text.len()).max().unwrap_or(0)
    };
    if columns.len() == 2 && longest(0) > 60 && longest(1) > 60 {
        return None;
    }
    let taken = &lines[..rows.len()];
    let rect = bounds(taken.iter().map(|line| &line.rect))?;
    let rows = join_rows(&columns, rows, taken);
    let header_rows = usize::from(has_header(&rows, taken));
    Some((taken.len(), Part::Table { rect, rows, header_rows }))
}

/// Whether a line is an item of a list, with its mark at the side from which it is read.
fn begins_with_mark(row: &[Piece]) -> bool {
    let [first, .., last] = row else { return false };
    lists::is_mark(&first.text) || (lists::is_mark(&last.text) && bidi::reads_right_to_left(&first.text))
}

/// A first row that is set bold above others that are not, or that has no numbers above others that have.
fn has_header(rows: &[Vec<String>], lines: &[Line]) -> bool {
    let numbers = |row: &Vec<String>| row.iter().any(|cell| cell.contains(|c: char| c.is_ascii_digit()));
    let bold = lines[0].bold && !lines[lines.len() - 1].bold;
    let below = rows.iter().skip(1).filter(|row| numbers(row)).count();
    bold || (rows.len() > 1 && !numbers(&rows[0]) && below * 2 > rows.len() - 1)
}

/// Lines whose first cell is empty go on with the row above, if they stand close below it.
fn join_rows(columns: &[(f32, f32)], rows: Vec<Vec<Piece>>, lines: &[Line]) -> Vec<Vec<String>> {
    let mut table: Vec<Vec<String>> = Vec::new();
    for (n, row) in rows.into_iter().enumerate() {
        let mut cells = vec![String::new(); columns.len()];
        for piece in row {
            let column = columns.iter().position(|(_, end)| piece.x0 <= *end).unwrap_or(columns.len() - 1);
            let cell = &mut cells[column];
            if !cell.is_empty() {
                cell.push(' ');
            }
            cell.push_str(&piece.text);
        }
        let close = n > 0 && lines[n].baseline - lines[n - 1].baseline < 1.35 * lines[n].size;
        match table.last_mut() {
            Some(above) if close && cells[0].is_empty() && n > 1 => {
                for (above, cell) in above.iter_mut().zip(cells) {
                    if !above.is_empty() && !cell.is_empty() {
                        above.push(' ');
                    }
                    above.push_str(&cell);
                }
            }
            _ => table.push(cells),
        }
    }
    table
}
