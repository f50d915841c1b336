//! One page: from its content to drafts of blocks.

use std::collections::HashMap;

use super::bidi;
use super::columns::{Item, reading_order};
use super::fragments::{Fragment, Placed, fragments, into_frame, onto_page, place};
use super::furniture::Edge;
use super::glyph::{Direction, Glyph, PageContent, Rect, bounds};
use super::grid::{Grid, find_grids};
use super::lines::{Line, lines};
use super::paragraphs::paragraphs;
use super::tables::{Part, split_tables};
use crate::{CellText, HiddenReason, PageStatus};

/// Share of a page that a picture has to cover to be the page.
const SCAN_COVER: f32 = 0.5;

/// All text of one direction.
pub(super) struct Frame {
    pub direction: Direction,
    pub fragments: Vec<Fragment>,
    pub tables: Vec<RuledTable>,
    /// The page in this frame.
    pub page: Rect,
    glyphs: usize,
}

/// A table whose cells were found by its rules.
pub(super) struct RuledTable {
    pub rect: Rect,
    pub rows: Vec<Vec<CellText>>,
}

/// A page before its blocks are told apart: what the whole document is needed for comes later.
pub(super) struct ReadPage {
    pub number: u32,
    pub width: f32,
    pub height: f32,
    pub status: PageStatus,
    /// The one with the most text first.
    pub frames: Vec<Frame>,
    pub hidden: Vec<(HiddenReason, Frame)>,
    /// The page's text is the invisible layer that OCR put over a scan.
    pub ocr_layer: bool,
    pub truncated: Option<&'static str>,
}

/// A block in the making.
pub(super) struct Draft {
    pub page: u32,
    /// On the page as shown.
    pub rect: Rect,
    pub content: DraftContent,
    /// Columns of the document are numbered; paragraphs may go on from one to the next.
    pub area: usize,
    pub placed: bool,
}

/// What a draft holds.
pub(super) enum DraftContent {
    Text { lines: Vec<Line>, column: Rect },
    Table { rows: Vec<Vec<CellText>>, header_rows: usize },
    Furniture(Edge, String),
    Hidden(HiddenReason, String),
}

/// Sorts a page's glyphs into frames.
pub(super) fn analyse(number: u32, content: &PageContent) -> ReadPage {
    let ocr_layer = is_ocr_layer(content);
    let visible =
        |glyph: &Glyph| glyph.hidden.is_none() || (ocr_layer && glyph.hidden == Some(HiddenReason::RenderMode));
    let mut directions: HashMap<Direction, usize> = HashMap::new();
    for glyph in content.glyphs.iter().filter(|glyph| visible(glyph)) {
        *directions.entry(glyph.direction).or_default() += 1;
    }
    let mut directions: Vec<(Direction, usize)> = directions.into_iter().collect();
    directions.sort_by_key(|(direction, count)| (std::cmp::Reverse(*count), *direction));
    let frames: Vec<Frame> =
        directions.iter().map(|(direction, _)| frame(content, *direction, |glyph| visible(glyph))).collect();
    let mut reasons: Vec<(HiddenReason, Direction)> = Vec::new();
    for glyph in content.glyphs.iter().filter(|glyph| !visible(glyph)) {
        if let Some(reason) = glyph.hidden.map(|reason| (reason, glyph.direction))
            && !reasons.contains(&reason)
        {
            reasons.push(reason);
        }
    }
    let hidden = reasons
        .into_iter()
        .map(|(reason, direction)| {
            (reason, frame(content, direction, |glyph| !visible(glyph) && glyph.hidden == Some(reason)))
        })
        .collect();
    ReadPage {
        number,
        width: content.width,
        height: content.height,
        status: status(content, frames.iter().map(|frame| frame.glyphs).sum()),
        frames,
        hidden,
        ocr_layer,
        truncated: content.truncated,
    }
}

/// Invisible text over a picture of the page is what OCR read there. It is taken as the page's text where the page
/// shows hardly any other; beside real text it stays hidden.
fn is_ocr_layer(content: &PageContent) -> bool {
    let page = content.width * content.height;
    let scan = content.images.iter().any(|image| image.area() > SCAN_COVER * page);
    let invisible = content.glyphs.iter().filter(|glyph| glyph.hidden == Some(HiddenReason::RenderMode)).count();
    let visible = content.glyphs.iter().filter(|glyph| glyph.hidden.is_none()).count();
    scan && invisible > 4 * visible
}

fn status(content: &PageContent, glyphs: usize) -> PageStatus {
    // Glyphs that nothing names are a picture of text.
    let unread = content.unmapped * 2 > content.glyphs.len();
    let pictures = content.images.iter().any(|image| image.width() > 20.0 && image.height() > 20.0);
    match glyphs {
        0 if pictures => PageStatus::NeedsOcr,
        0 if content.glyphs.is_empty() => PageStatus::Empty,
        _ if unread && !content.glyphs.is_empty() => PageStatus::NeedsOcr,
        // A stamp or page number on a scan.
        1..=12 if content.images.iter().any(|image| image.area() > SCAN_COVER * content.width * content.height) => {
            PageStatus::NeedsOcr
        }
        0 => PageStatus::Empty,
        _ => PageStatus::Text,
    }
}

fn frame(content: &PageContent, direction: Direction, keep: impl Fn(&Glyph) -> bool) -> Frame {
    let mut placed = place(content, |glyph| glyph.direction == direction && keep(glyph));
    let glyphs = placed.len();
    let corners = [(0.0, 0.0), (content.width, 0.0), (0.0, content.height), (content.width, content.height)];
    let corners = corners.map(|(x, y)| {
        let (u, v) = into_frame(direction, x, y);
        Rect::around(u, v, u, v)
    });
    let page = bounds(&corners).unwrap_or(Rect { x0: 0.0, y0: 0.0, x1: 0.0, y1: 0.0 });
    let mut tables = Vec::new();
    if direction == Direction::Right && glyphs > 0 {
        for grid in find_grids(&content.rules) {
            let (inside, outside): (Vec<Placed>, Vec<Placed>) =
                placed.iter().partition(|glyph| grid.cell_at(glyph.center()).is_some());
            if let Some(rows) = ruled_table(content, &grid, &inside) {
                tables.push(RuledTable { rect: grid.rect, rows });
                placed = outside;
            }
        }
    }
    Frame { direction, fragments: fragments(content, &placed), tables, page, glyphs }
}

/// The rows of a grid, if what is in it looks like a table.
fn ruled_table(content: &PageContent, grid: &Grid, inside: &[Placed]) -> Option<Vec<Vec<CellText>>> {
    let mut by_cell: HashMap<usize, Vec<Placed>> = HashMap::new();
    for glyph in inside {
        by_cell.entry(grid.cell_at(glyph.center())?).or_default().push(*glyph);
    }
    let cells = grid.cells();
    let filled = by_cell.len();
    let largest = by_cell.values().map(Vec::len).max().unwrap_or(0);
    // One cell with nearly everything is a frame around text; mostly empty meshes are a drawing.
    if filled < 2 || filled * 5 < cells.len() || (largest > 400 && largest * 10 > inside.len() * 7) {
        return None;
    }
    let mut rows: Vec<Vec<CellText>> = vec![Vec::new(); grid.rows()];
    for (number, span) in cells {
        let glyphs = by_cell.remove(&number).unwrap_or_default();
        let text = lines(fragments(content, &glyphs)).into_iter().map(|line| line.text).collect::<Vec<_>>().join(" ");
        rows[span.row].push(CellText { text, row_span: span.row_span as u32, col_span: span.column_span as u32 });
    }
    Some(rows)
}

impl ReadPage {
    /// Drafts in reading order. `furniture`: fragments of the first frame that are running headers or footers.
    /// `area` counts columns through the document.
    pub fn drafts(self, furniture: &HashMap<usize, Edge>, area: &mut usize) -> Vec<Draft> {
        let mut drafts = Vec::new();
        let main_glyphs = self.frames.first().map_or(0, |frame| frame.glyphs);
        let mut footers = Vec::new();
        for (n, frame) in self.frames.into_iter().enumerate() {
            // A line up the margin, a label of an axis, a watermark: nobody can say where it belongs in the text.
            let placed =
                n == 0 || (!matches!(frame.direction, Direction::Oblique(_)) && frame.glyphs * 3 > main_glyphs);
            let edges = if n == 0 { Some(furniture) } else { None };
            let (headers, own_footers, body) = frame_drafts(self.number, frame, edges, area);
            drafts.extend(headers);
            footers.extend(own_footers);
            drafts.extend(body.into_iter().map(|draft| Draft { placed, ..draft }));
        }
        drafts.extend(footers);
        for (reason, frame) in self.hidden {
            let (_, _, body) = frame_drafts(self.number, frame, None, area);
            drafts.extend(body.into_iter().map(|draft| hide(draft, reason)));
        }
        drafts
    }
}

fn hide(draft: Draft, reason: HiddenReason) -> Draft {
    let text = match &draft.content {
        DraftContent::Text { lines, .. } => lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join(" "),
        DraftContent::Table { rows, .. } => {
            let row = |cells: &Vec<CellText>| cells.iter().map(|cell| cell.text.as_str()).collect::<Vec<_>>().join(" ");
            rows.iter().map(row).collect::<Vec<_>>().join("\n")
        }
        DraftContent::Furniture(_, text) | DraftContent::Hidden(_, text) => text.clone(),
    };
    Draft { content: DraftContent::Hidden(reason, text), ..draft }
}

type Drafts = Vec<Draft>;

/// Headers, footers and the rest of one frame.
fn frame_drafts(
    page: u32,
    frame: Frame,
    edges: Option<&HashMap<usize, Edge>>,
    area: &mut usize,
) -> (Drafts, Drafts, Drafts) {
    let direction = frame.direction;
    let draft = |rect: &Rect, content: DraftContent, area: usize| Draft {
        page,
        rect: onto_page(direction, rect),
        content,
        area,
        placed: true,
    };
    let (mut headers, mut footers, mut body) = (Vec::new(), Vec::new(), Vec::new());
    let mut fragments = Vec::new();
    let mut edge_fragments: [Vec<Fragment>; 2] = [Vec::new(), Vec::new()];
    for (n, fragment) in frame.fragments.into_iter().enumerate() {
        match edges.and_then(|edges| edges.get(&n)) {
            Some(Edge::Header) => edge_fragments[0].push(fragment),
            Some(Edge::Footer) => edge_fragments[1].push(fragment),
            None => fragments.push(Some(fragment)),
        }
    }
    let [top, bottom] = edge_fragments;
    for (edge, fragments) in [(Edge::Header, top), (Edge::Footer, bottom)] {
        for line in lines(fragments) {
            let out = if edge == Edge::Header { &mut headers } else { &mut footers };
            out.push(draft(&line.rect, DraftContent::Furniture(edge, line.text), *area));
        }
    }
    let mut items: Vec<Item> = fragments
        .iter()
        .flatten()
        .map(|fragment: &Fragment| Item { rect: fragment.rect, size: fragment.size })
        .collect();
    let first_table = items.len();
    items.extend(frame.tables.iter().map(|table| Item { rect: table.rect, size: 10.0 }));
    let mut tables: Vec<Option<RuledTable>> = frame.tables.into_iter().map(Some).collect();
    let rtl = {
        let sample: String = fragments.iter().flatten().take(200).map(|fragment| fragment.text.as_str()).collect();
        bidi::reads_right_to_left(&sample)
    };
    for members in reading_order(&items, rtl) {
        *area += 1;
        let mut column_tables: Vec<RuledTable> = Vec::new();
        let mut column: Vec<Fragment> = Vec::new();
        for n in members {
            match n.checked_sub(first_table) {
                Some(table) => column_tables.extend(tables[table].take()),
                None => column.extend(fragments[n].take()),
            }
        }
        column_tables.sort_by(|a, b| a.rect.y0.total_cmp(&b.rect.y0));
        let mut rest = lines(column);
        for table in column_tables {
            let below = rest.iter().position(|line| line.rect.center().1 > table.rect.y0).unwrap_or(rest.len());
            let tail = rest.split_off(below);
            column_drafts(std::mem::replace(&mut rest, tail), *area, &draft, &mut body);
            let content = DraftContent::Table { rows: table.rows, header_rows: 1 };
            body.push(draft(&table.rect, content, *area));
        }
        column_drafts(rest, *area, &draft, &mut body);
    }
    (headers, footers, body)
}

fn column_drafts(
    lines: Vec<Line>,
    area: usize,
    draft: &impl Fn(&Rect, DraftContent, usize) -> Draft,
    out: &mut Vec<Draft>,
) {
    let Some(column) = bounds(lines.iter().map(|line| &line.rect)) else {
        return;
    };
    for part in split_tables(lines) {
        match part {
            Part::Table { rect, rows, header_rows } => {
                let rows = rows.into_iter().map(|row| row.into_iter().map(CellText::from).collect()).collect();
                out.push(draft(&rect, DraftContent::Table { rows, header_rows }, area));
            }
            Part::Lines(lines) => {
                for lines in paragraphs(lines) {
                    if let Some(rect) = bounds(lines.iter().map(|line| &line.rect)) {
                        out.push(draft(&rect, DraftContent::Text { lines, column }, area));
                    }
                }
            }
        }
    }
}
