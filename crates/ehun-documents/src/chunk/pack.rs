//! Packing pieces of blocks into chunks, first come first served.

use std::ops::Range;

use super::Chunk;
use super::split::{Measure, trimmed};
use crate::model::{Block, BlockKind, Document, Table};

/// A part of one block that goes into one chunk.
#[derive(Debug, Clone)]
struct Piece {
    range: Range<usize>,
    block: usize,
    tokens: usize,
    heading: bool,
    /// For a row that is not its table's first: the header to be repeated if no earlier row is in the chunk.
    header: Option<Header>,
    /// Repeated from the end of the previous chunk.
    overlap: bool,
    /// A block that is left out stands right before it.
    after_gap: bool,
}

#[derive(Debug, Clone)]
struct Header {
    range: Range<usize>,
    tokens: usize,
}

pub(super) struct Packer<'p> {
    document: &'p Document,
    measure: Measure<'p>,
    overlap: usize,
    special: usize,
    chunks: Vec<Chunk>,
    open: Vec<Piece>,
    /// Sum over the open pieces with their joints and a repeated header.
    tokens: usize,
    gap: bool,
}

impl<'p> Packer<'p> {
    pub fn new(document: &'p Document, measure: Measure<'p>, overlap: usize, special: usize) -> Self {
        Packer { document, measure, overlap, special, chunks: Vec::new(), open: Vec::new(), tokens: 0, gap: false }
    }

    /// A block that is left out.
    pub fn skip(&mut self) {
        self.gap = true;
    }

    /// The next block.
    pub fn block(&mut self, index: usize, block: &Block) {
        let heading = matches!(block.kind, BlockKind::Title | BlockKind::Heading { .. });
        // A heading begins a chunk; headings that follow one another stay together.
        if heading && self.open.iter().any(|p| !p.heading) {
            self.emit();
            self.start_fresh();
        }
        let whole = self.piece(index, trimmed_for(&block.kind, &self.document.text, &block.range), heading);
        if let Some(mut piece) = whole {
            let only_headings = self.open.iter().all(|p| p.heading || p.overlap);
            if self.fits(&piece) || !only_headings || self.open.is_empty() {
                self.add(piece);
                return;
            }
            // It would fit a chunk of its own, but the headings must not stand alone.
            let tight = self.tokens * 2 > self.measure.room;
            if tight || heading {
                piece.overlap = false;
                self.add(piece);
                return;
            }
        }
        match &block.kind {
            BlockKind::Table(table) if !table.rows.is_empty() => self.rows(index, table),
            BlockKind::Code => {
                for line in self.measure.lines(block.range.clone()) {
                    self.part(index, line, heading);
                }
            }
            _ => {
                for sentence in self.measure.sentences(block.range.clone()) {
                    self.part(index, sentence, heading);
                }
            }
        }
    }

    /// Closes the last chunk.
    pub fn finish(mut self) -> Vec<Chunk> {
        self.emit();
        self.chunks
    }

    /// A piece, if the range fits a chunk of its own.
    fn piece(&mut self, block: usize, range: Range<usize>, heading: bool) -> Option<Piece> {
        let tokens = self.measure.tokens(&range)?;
        Some(Piece { range, block, tokens, heading, header: None, overlap: false, after_gap: false })
    }

    /// A sentence or line, cut into words if it is too long.
    fn part(&mut self, block: usize, range: Range<usize>, heading: bool) {
        if let Some(piece) = self.piece(block, range.clone(), heading) {
            self.add(piece);
            return;
        }
        let mut rest = range;
        while !rest.is_empty() {
            if let Some(piece) = self.piece(block, rest.clone(), heading) {
                self.add(piece);
                return;
            }
            let mut room = self.measure.room.saturating_sub(self.tokens + self.measure.joint);
            if room * 4 < self.measure.room {
                self.turn_over();
                room = self.measure.room.saturating_sub(self.tokens + self.measure.joint);
            }
            let (end, tokens) = self.measure.prefix(&rest, room);
            let range = trimmed(self.measure.text, rest.start..end);
            rest = trimmed(self.measure.text, end..rest.end);
            if !range.is_empty() {
                let header = None;
                self.add(Piece { range, block, tokens, heading, header, overlap: false, after_gap: false });
            }
        }
    }

    fn rows(&mut self, block: usize, table: &Table) {
        let header = header_of(table).and_then(|range| {
            let tokens = self.measure.tokens(&range)? + self.measure.joint;
            // A header that takes half of each chunk is not worth repeating.
            (tokens * 2 <= self.measure.room).then_some(Header { range, tokens })
        });
        for (n, row) in table.rows.iter().enumerate() {
            let range = trimmed(self.measure.text, row.range.clone());
            if range.is_empty() {
                continue;
            }
            let repeats = header.clone().filter(|_| n >= table.header_rows as usize);
            let cost = repeats.as_ref().map_or(0, |h| h.tokens);
            match self.piece(block, range.clone(), false) {
                Some(piece) if piece.tokens + cost <= self.measure.room => {
                    self.add(Piece { header: repeats, ..piece });
                }
                Some(piece) => self.add(piece),
                None => self.part(block, range, false),
            }
        }
    }

    /// Tokens that a piece adds to the open chunk.
    fn cost(&self, piece: &Piece) -> usize {
        let header = match (&piece.header, self.open.iter().any(|p| p.block == piece.block && !p.overlap)) {
            (Some(header), false) => header.tokens,
            _ => 0,
        };
        let joint = if self.open.is_empty() { 0 } else { self.measure.joint };
        piece.tokens + header + joint
    }

    fn fits(&self, piece: &Piece) -> bool {
        let bytes: usize = self.open.iter().map(|p| p.range.len() + 2).sum();
        self.tokens + self.cost(piece) <= self.measure.room && bytes + piece.range.len() <= self.measure.max_bytes
    }

    fn add(&mut self, mut piece: Piece) {
        if !self.fits(&piece) {
            self.turn_over();
            if !self.fits(&piece) {
                // The overlap takes the room that the piece needs.
                self.start_fresh();
            }
        }
        piece.after_gap = std::mem::take(&mut self.gap);
        self.tokens += self.cost(&piece);
        self.open.push(piece);
    }

    /// Emits the open chunk and begins the next within the same section.
    fn turn_over(&mut self) {
        let before = self.chunks.len();
        let last = self.open.clone();
        self.emit();
        self.start_fresh();
        if self.overlap == 0 || self.chunks.len() == before {
            return;
        }
        let mut kept = Vec::new();
        let mut tokens = 0;
        for piece in last.iter().rev() {
            if piece.heading || piece.header.is_some() || piece.overlap {
                break;
            }
            if tokens + piece.tokens + self.measure.joint > self.overlap {
                if kept.is_empty()
                    && let Some((range, count)) = self.measure.suffix(&piece.range, self.overlap)
                {
                    tokens += count;
                    kept.push(Piece { range, tokens: count, overlap: true, ..piece.clone() });
                }
                break;
            }
            tokens += piece.tokens + self.measure.joint;
            kept.push(Piece { overlap: true, ..piece.clone() });
        }
        kept.reverse();
        self.open = kept;
        self.tokens = tokens;
    }

    fn start_fresh(&mut self) {
        self.open.clear();
        self.tokens = 0;
    }

    /// Emits the open pieces as one chunk, or as more if the sum of the pieces' counts was too low for the whole.
    fn emit(&mut self) {
        let mut pieces = std::mem::take(&mut self.open);
        self.tokens = 0;
        while pieces.iter().any(|p| !p.overlap) {
            let mut take = pieces.len();
            loop {
                let chunk = self.assemble(&pieces[..take], take > 1 || pieces[0].header.is_some());
                if chunk.token_count <= self.measure.room + self.special || take == 1 {
                    let sound = chunk.token_count <= self.measure.room + self.special;
                    // A single piece fits without a header: its own count said so.
                    let chunk = if sound { chunk } else { self.assemble(&pieces[..1], false) };
                    if pieces[..take].iter().any(|p| !p.overlap) {
                        self.chunks.push(chunk);
                    }
                    pieces.drain(..take);
                    break;
                }
                take -= 1;
            }
        }
    }

    fn assemble(&self, pieces: &[Piece], with_header: bool) -> Chunk {
        let document = self.document;
        let new = pieces.iter().position(|p| !p.overlap).unwrap_or(0);
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for piece in pieces {
            match ranges.last_mut() {
                Some(last) if !piece.after_gap => last.end = piece.range.end,
                _ => ranges.push(piece.range.clone()),
            }
        }
        let first = &pieces[0];
        let repeated = first.header.as_ref().filter(|_| with_header).map(|h| h.range.clone());
        let mut text = String::new();
        for range in repeated.iter().chain(&ranges) {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&document.text[range.clone()]);
        }
        let page = |piece: &Piece| document.blocks[piece.block].page;
        let body = pieces[new..].iter().find(|p| !p.heading);
        let heading_path = match body {
            Some(piece) => document.heading_path(&document.blocks[piece.block]),
            None => {
                let block = &document.blocks[pieces[pieces.len() - 1].block];
                let mut path = document.heading_path(block);
                path.push(document.block_text(block));
                path
            }
        };
        Chunk {
            number: self.chunks.len() as u32,
            token_count: self.measure.count(&text) + self.special,
            text,
            ranges,
            repeated,
            new_from: pieces[new].range.start,
            heading_path: heading_path.into_iter().map(str::to_owned).collect(),
            page: page(&pieces[new]),
            last_page: page(&pieces[pieces.len() - 1]),
        }
    }
}

/// Code keeps its indentation.
fn trimmed_for(kind: &BlockKind, text: &str, range: &Range<usize>) -> Range<usize> {
    match kind {
        BlockKind::Code => range.clone(),
        _ => trimmed(text, range.clone()),
    }
}

fn header_of(table: &Table) -> Option<Range<usize>> {
    let rows = table.rows.get(..table.header_rows as usize)?;
    Some(rows.first()?.range.start..rows.last()?.range.end)
}
