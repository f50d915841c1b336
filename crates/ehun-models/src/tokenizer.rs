//! Texts become token ids, types and offsets, exactly as Hugging Face's tokenizers make them.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ehun_graph::SequenceInput;
use serde_json::{Map, Value};
use tokenizers::normalizers::{Lowercase, NormalizerWrapper, Sequence as NormalizerSequence};
use tokenizers::{EncodeInput, Encoding};

use crate::checkpoint::Checkpoint;
use crate::error::{ModelError, Result};
use crate::well_formed;

/// Tokenizer classes of transformers whose models get token types. Others leave them out, and all types are 0.
const CLASSES_WITH_TYPES: &[&str] =
    &["BertTokenizer", "ElectraTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer", "NomicBertTokenizer"];

/// A text, or two texts that one sequence holds together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextInput<'a> {
    /// One text.
    Single(&'a str),
    /// A query and a passage, a premise and a hypothesis.
    Pair(&'a str, &'a str),
}

impl<'a> From<&'a str> for TextInput<'a> {
    fn from(text: &'a str) -> Self {
        Self::Single(text)
    }
}

/// The end of a text that truncation cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Side {
    /// The beginning is cut.
    Left,
    /// The end is cut.
    #[default]
    Right,
}

/// A text as tokens, special tokens included. All lists have one entry for each token.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tokenized {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Token types; empty where the model gets none.
    pub types: Vec<u32>,
    /// Byte ranges in the text (of a pair: in the text that the token is of); `0..0` for special tokens.
    pub offsets: Vec<Range<usize>>,
    /// Which word of its text a token is of; `None` for special tokens.
    pub words: Vec<Option<u32>>,
    /// Which text a token is of: 0 or 1, `None` for special tokens that were added.
    pub texts: Vec<Option<usize>>,
    /// Number of tokens before truncation, special tokens included.
    pub total: usize,
}

impl Tokenized {
    /// Whether tokens were cut off.
    pub fn truncated(&self) -> bool {
        self.ids.len() < self.total
    }

    /// The input of a graph; pooling leaves out the first `pooling_start` tokens.
    pub fn into_input(self, pooling_start: usize) -> SequenceInput {
        SequenceInput { token_ids: self.ids, token_types: self.types, pooling_start }
    }
}

/// The tokenizer of a checkpoint. Truncation and padding that its file asks for are left out: the limit is the model's, and
/// batches are not padded.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: String,
    with_types: bool,
    max_length: Option<usize>,
    side: Side,
    largest_id: u32,
    special_ids: Vec<u32>,
}

impl Tokenizer {
    /// Reads the tokenizer of `checkpoint`, a model of `model_type`. `lower_case` is the wish of `sentence_bert_config.json`
    /// that texts are lower-cased first.
    pub fn load(checkpoint: &Checkpoint, model_type: &str, lower_case: bool) -> Result<Self> {
        let settings = checkpoint.json_object("tokenizer_config.json")?.unwrap_or_default();
        let path = checkpoint.path_of("tokenizer.json");
        let Some(bytes) = checkpoint.tokenizer_file("tokenizer.json")? else {
            let advice =
                if checkpoint.has("vocab.txt") || checkpoint.has("vocab.json") || checkpoint.has("spiece.model") {
                    "only the older vocabulary files are there; make it with \
                 `AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)`"
                } else {
                    "a model needs its tokenizer; download it from where the model comes from"
                };
            return Err(checkpoint.missing("tokenizer.json", advice));
        };
        let mut inner = parse(&bytes).map_err(|e| ModelError::InvalidFile {
            path: path.clone(),
            reason: format!("not a usable tokenizer: {e}"),
        })?;
        // The error of `with_truncation` is about the parameters, of which there are none.
        inner.with_truncation(None).map_err(|e| ModelError::Tokenize(e.to_string()))?;
        inner.with_padding(None);
        if lower_case {
            let mut steps: Vec<NormalizerWrapper> = vec![Lowercase.into()];
            steps.extend(inner.get_normalizer().cloned());
            inner.with_normalizer(Some(NormalizerSequence::new(steps)));
        }
        check_end(&inner, &settings, &path)?;
        let largest_id = inner.get_vocab(true).into_values().max().unwrap_or(0);
        let special = inner.get_added_tokens_decoder().into_iter().filter(|(_, token)| token.special);
        let special_ids = special.map(|(id, _)| id).collect();
        Ok(Self {
            path,
            with_types: with_types(&settings, model_type),
            max_length: settings
                .get("model_max_length")
                .and_then(Value::as_f64)
                .filter(|n| (1.0..1e9).contains(n))
                .map(|n| n as usize),
            side: if settings.get("truncation_side") == Some(&"left".into()) { Side::Left } else { Side::Right },
            largest_id,
            special_ids,
            inner,
        })
    }

    /// The most tokens that the tokenizer's configuration allows, where it says so.
    pub fn max_length(&self) -> Option<usize> {
        self.max_length
    }

    /// The end that the tokenizer's configuration cuts.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Fails where the vocabulary is not that of a model with `rows` token embeddings. Tables are often padded by some
    /// rows, so fewer tokens than rows are fine, but not much fewer.
    pub fn check_vocabulary(&self, rows: usize) -> Result<()> {
        let size = self.largest_id as usize + 1;
        if size <= rows && size >= rows - rows / 10 {
            return Ok(());
        }
        Err(ModelError::Vocabulary {
            path: self.path.clone(),
            reason: format!("the tokenizer has ids up to {}, the model embeds {rows} tokens", self.largest_id),
        })
    }

    /// Tokens of `text`, at most `limit` of them, special tokens included; what is beyond is cut at `side`, of a pair the
    /// longer text first. Fails where the limit has no room for the special tokens.
    pub fn encode(&self, text: TextInput<'_>, limit: Option<usize>, side: Side) -> Result<Tokenized> {
        let input = match text {
            TextInput::Single(text) => EncodeInput::Single(text.into()),
            TextInput::Pair(first, second) => EncodeInput::Dual(first.into(), second.into()),
        };
        let encoding = caught(|| self.inner.encode(input, true)).map_err(ModelError::Tokenize)?;
        let total = encoding.len();
        let texts = encoding.get_sequence_ids();
        let keep = match limit.filter(|&limit| limit < total) {
            Some(limit) => Some(kept(&texts, limit, side)?),
            None => None,
        };
        Ok(self.take(&encoding, &texts, keep.as_deref(), total))
    }

    fn take(&self, encoding: &Encoding, texts: &[Option<usize>], keep: Option<&[usize]>, total: usize) -> Tokenized {
        fn pick<T: Clone>(all: &[T], keep: Option<&[usize]>) -> Vec<T> {
            keep.map_or_else(|| all.to_vec(), |keep| keep.iter().map(|&i| all[i].clone()).collect())
        }
        Tokenized {
            ids: pick(encoding.get_ids(), keep),
            types: if self.with_types { pick(encoding.get_type_ids(), keep) } else { Vec::new() },
            offsets: pick(encoding.get_offsets(), keep).into_iter().map(|(start, end)| start..end).collect(),
            words: pick(encoding.get_word_ids(), keep),
            texts: pick(texts, keep),
            total,
        }
    }

    /// Number of tokens of `text`, special tokens included, without any limit.
    pub fn count(&self, text: &str) -> Result<usize> {
        let encoding = caught(|| self.inner.encode_fast(text, true)).map_err(ModelError::Tokenize)?;
        Ok(encoding.len())
    }

    /// Number of leading tokens that a prompt takes, by the rule of sentence-transformers: its own tokens with special ones,
    /// less a trailing special one.
    pub fn prompt_tokens(&self, prompt: &str) -> Result<usize> {
        let encoding = caught(|| self.inner.encode_fast(prompt, true)).map_err(ModelError::Tokenize)?;
        let trailing = encoding.get_ids().last().is_some_and(|id| self.special_ids.contains(id));
        Ok(encoding.len() - usize::from(trailing))
    }

    /// The token with this id.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Whether the token is a special one (CLS, SEP, a mask...).
    pub fn is_special(&self, id: u32) -> bool {
        self.special_ids.contains(&id)
    }

    /// Text of token ids.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        caught(|| self.inner.decode(ids, skip_special)).map_err(ModelError::Tokenize)
    }

    /// All token types are 0 from now on: the model has no table for others.
    pub(crate) fn drop_types(&mut self) {
        self.with_types = false;
    }
}

/// The tokenizer that a `tokenizer.json` describes. The library panics where a step of its own meets what is no JSON, so the file is
/// looked through first.
fn parse(bytes: &[u8]) -> std::result::Result<tokenizers::Tokenizer, String> {
    well_formed::check(bytes).map_err(|e| e.to_string())?;
    caught(|| tokenizers::Tokenizer::from_bytes(bytes))
}

/// What the tokenizers library answers; a panic of it is an error like any other, for its steps come from a file.
fn caught<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(answer) => answer.map_err(|e| e.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given");
            Err(format!("the tokenizers library gave up: {text}"))
        }
    }
}

/// Fails where `tokenizer_config.json` says that texts end with a token and `tokenizer.json` does not add it: transformers then
/// adds it by code of the tokenizer's class, and last-token pooling would read another row.
fn check_end(inner: &tokenizers::Tokenizer, settings: &Map<String, Value>, path: &str) -> Result<()> {
    let token = settings.get("eos_token").and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
    let (Some(Value::Bool(true)), Some(token)) = (settings.get("add_eos_token"), token) else { return Ok(()) };
    let encoding = caught(|| inner.encode_fast("a", true)).map_err(ModelError::Tokenize)?;
    if encoding.get_ids().last().copied() == inner.token_to_id(token) {
        return Ok(());
    }
    Err(ModelError::InvalidFile {
        path: path.to_owned(),
        reason: format!(
            "it does not end a text with `{token}`, as tokenizer_config.json asks for (add_eos_token); write it again with \
             `AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)` of transformers 5"
        ),
    })
}

/// Whether transformers gives the model token types: what the file says, else the default of the tokenizer's class, else that
/// of the model's type.
fn with_types(settings: &Map<String, Value>, model_type: &str) -> bool {
    if let Some(Value::Array(names)) = settings.get("model_input_names") {
        return names.iter().any(|name| name == "token_type_ids");
    }
    match settings.get("tokenizer_class").and_then(Value::as_str) {
        Some(class) => CLASSES_WITH_TYPES.contains(&class.strip_suffix("Fast").unwrap_or(class)),
        None => matches!(model_type, "bert" | "electra" | "deberta-v2" | "nomic_bert"),
    }
}

/// Which tokens stay when only `limit` may: the special ones, and of the texts as many as Hugging Face's `longest_first` keeps.
fn kept(texts: &[Option<usize>], limit: usize, side: Side) -> Result<Vec<usize>> {
    let count = |which: usize| texts.iter().filter(|text| **text == Some(which)).count();
    let (first, second) = (count(0), count(1));
    let special = texts.len() - first - second;
    let Some(room) = limit.checked_sub(special) else {
        return Err(ModelError::Request(format!("a limit of {limit} tokens has no room for {special} special tokens")));
    };
    let (first_kept, second_kept) = longest_first(first, second, room);
    let mut seen = [0, 0];
    let mut keep = Vec::with_capacity(limit);
    for (i, text) in texts.iter().enumerate() {
        let Some(which) = *text else {
            keep.push(i);
            continue;
        };
        let (all, quota) = if which == 0 { (first, first_kept) } else { (second, second_kept) };
        let place = seen[which.min(1)];
        seen[which.min(1)] += 1;
        let stays = match side {
            Side::Right => place < quota,
            Side::Left => place >= all - quota,
        };
        if stays {
            keep.push(i);
        }
    }
    Ok(keep)
}

/// Lengths of two texts of `first` and `second` tokens that share `room`, by the rule of Hugging Face's `longest_first`: the
/// shorter one stays whole where it can.
fn longest_first(first: usize, second: usize, room: usize) -> (usize, usize) {
    if first + second <= room {
        return (first, second);
    }
    let (short, long) = (first.min(second), first.max(second));
    let mut lengths = (short, if short > room { short } else { short.max(room - short) });
    if lengths.0 + lengths.1 > room {
        lengths = (room / 2, room / 2 + room % 2);
    }
    debug_assert!(lengths.1 <= long);
    if first > second { (lengths.1, lengths.0) } else { lengths }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longer_text_is_cut_first() {
        for (first, second, room, want) in [
            (3, 4, 10, (3, 4)),
            (3, 40, 10, (3, 7)),
            (40, 3, 10, (7, 3)),
            (40, 30, 10, (5, 5)),
            (30, 40, 11, (5, 6)),
            (40, 30, 11, (6, 5)),
            (40, 0, 11, (11, 0)),
        ] {
            assert_eq!(longest_first(first, second, room), want, "{first} and {second} in {room}");
        }
    }

    proptest! {
        #[test]
        fn truncation_fills_the_room(first in 0usize..50, second in 0usize..50, room in 0usize..60) {
            let (a, b) = longest_first(first, second, room);
            prop_assert!(a <= first && b <= second);
            prop_assert_eq!(a + b, room.min(first + second));
        }
    }

    #[test]
    fn special_tokens_stay() {
        let texts = [None, Some(0), Some(0), Some(0), None, Some(1), Some(1), None];
        assert_eq!(kept(&texts, 6, Side::Right).unwrap(), [0, 1, 2, 4, 5, 7]);
        assert_eq!(kept(&texts, 6, Side::Left).unwrap(), [0, 2, 3, 4, 6, 7]);
        assert!(kept(&texts, 2, Side::Right).is_err());
    }
}
