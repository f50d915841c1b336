//! Chunks: parts of a document that fit a model's window.
//!
//! Structure decides first: a heading begins a chunk, blocks stay whole where they fit, then sentences, then words, and
//! only a word that is longer than the window is cut. Tables are cut between rows, and the header is repeated before the rows
//! that follow. The limit is measured by the model's own tokenizer, on the very text that is handed over.

mod pack;
mod split;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::model::{Block, BlockKind, Document, Layer};

/// Counts tokens as the model does.
pub trait TokenCounter {
    /// Tokens of a text, without the special tokens around it and without any truncation.
    fn count(&self, text: &str) -> usize;

    /// Special tokens (such as `[CLS]` and `[SEP]`) and prompt tokens that every sequence gets in addition.
    fn special_tokens(&self) -> usize;
}

/// How a document is cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkOptions {
    /// Tokens of a chunk at most, special tokens included. The caller sees to it that the model takes as many.
    pub max_tokens: usize,
    /// Tokens at the end of a chunk that the next one of the same section begins with, at most; below half of the room.
    pub overlap: usize,
    /// Also hidden text.
    pub include_hidden: bool,
    /// Also boilerplate, and running headers and footers.
    pub include_boilerplate: bool,
}

impl Default for ChunkOptions {
    fn default() -> Self {
        ChunkOptions { max_tokens: 256, overlap: 0, include_hidden: false, include_boilerplate: false }
    }
}

impl ChunkOptions {
    /// Whether a block is cut into chunks at all.
    pub fn includes(&self, block: &Block) -> bool {
        let running = matches!(block.kind, BlockKind::PageHeader | BlockKind::PageFooter);
        match block.layer {
            Layer::Body | Layer::Unplaced => !running || self.include_boilerplate,
            Layer::Hidden(_) => self.include_hidden,
            Layer::Boilerplate(_) => self.include_boilerplate,
        }
    }
}

/// A part of a document.
///
/// `text` is, joined by line ends: the texts of `repeated`, then the texts of `ranges`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// 0-based, in reading order.
    pub number: u32,
    /// What the model gets.
    pub text: String,
    /// Byte ranges of the document's text that the chunk is made of, ordered; one, unless a block between them is
    /// hidden or boilerplate.
    pub ranges: Vec<Range<usize>>,
    /// Table header that is repeated from further up, because the chunk begins within the table.
    pub repeated: Option<Range<usize>>,
    /// Where in the document's text the part begins that the previous chunk does not have: `ranges[0].start` without
    /// overlap.
    pub new_from: usize,
    /// Headings that the chunk stands under, outermost first, with the one it begins with.
    pub heading_path: Vec<String>,
    /// Page where the new part begins.
    pub page: Option<u32>,
    /// Page where the chunk ends.
    pub last_page: Option<u32>,
    /// Tokens of `text`, special tokens included.
    pub token_count: usize,
}

impl Chunk {
    /// From the first range's start to the last one's end.
    pub fn span(&self) -> Range<usize> {
        let start = self.ranges.first().map_or(0, |r| r.start);
        start..self.ranges.last().map_or(start, |r| r.end)
    }

    /// Equal for chunks whose words are equal, whatever their whitespace: for keeping repeated boilerplate once.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for word in self.text.split_whitespace() {
            hasher.update(word.as_bytes());
            hasher.update(b" ");
        }
        *hasher.finalize().as_bytes()
    }
}

/// Why a document cannot be cut as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// The limit leaves no room.
    #[error(
        "chunks of {max_tokens} tokens leave {room} beside {special} special tokens: at least {MIN_ROOM} are needed; raise the chunk size"
    )]
    LimitTooSmall {
        /// As asked.
        max_tokens: usize,
        /// As the tokenizer says.
        special: usize,
        /// What is left.
        room: usize,
    },
    /// The overlap leaves too little that is new.
    #[error("an overlap of {overlap} tokens is more than half of the {room} that a chunk has: lower the overlap")]
    OverlapTooLarge {
        /// As asked.
        overlap: usize,
        /// What a chunk has.
        room: usize,
    },
}

/// Tokens that a chunk must have room for: one character may need several (bytes of an emoji).
pub const MIN_ROOM: usize = 16;

/// Cuts a document. Time is linear in the length of the text, whatever its lines and words look like.
///
/// # Errors
/// If the options leave no room.
pub fn chunk(
    document: &Document,
    options: &ChunkOptions,
    counter: &dyn TokenCounter,
) -> Result<Vec<Chunk>, ChunkError> {
    let special = counter.special_tokens();
    let room = options.max_tokens.saturating_sub(special);
    if room < MIN_ROOM {
        return Err(ChunkError::LimitTooSmall { max_tokens: options.max_tokens, special, room });
    }
    if options.overlap * 2 > room {
        return Err(ChunkError::OverlapTooLarge { overlap: options.overlap, room });
    }
    let measure = split::Measure::new(&document.text, counter, room);
    let mut packer = pack::Packer::new(document, measure, options.overlap, special);
    for (index, block) in document.blocks.iter().enumerate() {
        if options.includes(block) {
            packer.block(index, block);
        } else {
            packer.skip();
        }
    }
    Ok(packer.finish())
}

#[cfg(test)]
mod tests;
