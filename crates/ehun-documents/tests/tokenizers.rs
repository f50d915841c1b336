//! The laws of chunks with the tokenizers that models have: ten of different kinds, trained here or taken from the
//! repository. Whatever a tokenizer makes of a text, no chunk exceeds the limit, and every visible block is in the chunks
//! exactly once.

use std::path::Path;
use std::str::FromStr;

use ehun_documents::{
    BlockKind, CellText, Chunk, ChunkOptions, Document, DocumentBuilder, HiddenReason, Layer, Limits, Place,
    TokenCounter, chunk,
};
use proptest::prelude::*;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::models::unigram::{Unigram, UnigramTrainerBuilder};
use tokenizers::models::wordlevel::{WordLevel, WordLevelTrainerBuilder};
use tokenizers::models::wordpiece::{WordPiece, WordPieceTrainerBuilder};
use tokenizers::normalizers::{BertNormalizer, NFKC};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::whitespace::Whitespace;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer};

/// Counts as a model's tokenizer does.
struct Counter {
    name: String,
    tokenizer: Tokenizer,
    special: usize,
}

impl Counter {
    fn new(name: &str, tokenizer: Tokenizer) -> Self {
        let special = tokenizer.encode("", true).unwrap().len();
        Counter { name: name.to_owned(), tokenizer, special }
    }

    /// Tokens that a model would see for this text.
    fn whole(&self, text: &str) -> usize {
        self.tokenizer.encode(text, true).unwrap().len()
    }
}

impl TokenCounter for Counter {
    fn count(&self, text: &str) -> usize {
        self.whole(text) - self.special
    }

    fn special_tokens(&self) -> usize {
        self.special
    }
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn from_file(path: &str) -> Counter {
    let mut tokenizer = Tokenizer::from_file(root().join(path)).unwrap();
    tokenizer.with_truncation(None).unwrap().with_padding(None);
    Counter::new(path, tokenizer)
}

fn corpus() -> Vec<String> {
    let folder = root().join("examples/documents");
    let files = ["bread-without-yeast.md", "lighthouse-keepers-log.txt", "heat-pump-faq.html"];
    let texts = files.iter().map(|file| std::fs::read_to_string(folder.join(file)).unwrap());
    texts
        .chain(["漢字 🙂 äöü ß é ﬁ ①".to_owned()])
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Trains a tokenizer; `around` are special tokens before and after every text.
fn trained(
    name: &str,
    model: impl Into<ModelWrapper>,
    mut trainer: TrainerWrapper,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    around: Option<(&str, &str)>,
) -> Counter {
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(normalizer).with_pre_tokenizer(pre_tokenizer).with_decoder(None::<DecoderWrapper>);
    tokenizer.train(&mut trainer, corpus().into_iter()).unwrap();
    if let Some((before, after)) = around {
        tokenizer.add_special_tokens(&[AddedToken::from(before, true), AddedToken::from(after, true)]);
        let ids = [before, after].map(|token| (token.to_owned(), tokenizer.token_to_id(token).unwrap()));
        let template = TemplateProcessing::builder()
            .try_single(format!("{before} $A {after}"))
            .unwrap()
            .special_tokens(ids.to_vec())
            .build()
            .unwrap();
        tokenizer.with_post_processor(Some(PostProcessorWrapper::from(template)));
    }
    // As a model's file would be read.
    let text = tokenizer.to_string(false).unwrap();
    Counter::new(name, Tokenizer::from_str(&text).unwrap())
}

fn special(tokens: &[&str]) -> Vec<AddedToken> {
    tokens.iter().map(|token| AddedToken::from(*token, true)).collect()
}

fn ten() -> Vec<Counter> {
    let bpe = |alphabet| {
        let builder = BpeTrainerBuilder::new().show_progress(false).vocab_size(500).initial_alphabet(alphabet);
        TrainerWrapper::from(builder.special_tokens(special(&["<unk>", "<s>", "</s>"])).build())
    };
    let unigram = || {
        let mut builder = UnigramTrainerBuilder::default();
        builder.show_progress(false).vocab_size(400).unk_token(Some("<unk>".to_owned()));
        TrainerWrapper::from(builder.special_tokens(special(&["<unk>", "<s>", "</s>"])).build().unwrap())
    };
    let pieces = || {
        let builder = WordPieceTrainerBuilder::new().show_progress(false).vocab_size(400);
        TrainerWrapper::from(builder.special_tokens(special(&["[UNK]", "[CLS]", "[SEP]"])).build())
    };
    let metaspace = || Some(Metaspace::new('▁', PrependScheme::Always, true).into());
    let byte_level = |prefix| Some(ByteLevel::new(prefix, true, true).into());
    let sentence = Some(("<s>", "</s>"));
    let word_piece = || WordPiece::builder().unk_token("[UNK]".to_owned()).build().unwrap();
    let unknown = || BPE::builder().unk_token("<unk>".to_owned());
    let levels =
        WordLevelTrainerBuilder::default().show_progress(false).special_tokens(special(&["<unk>"])).build().unwrap();
    vec![
        from_file("goldens/bert/tokenizer.json"),
        from_file("goldens/eurobert/tokenizer.json"),
        from_file("goldens/camembert.sequence-classification/tokenizer.json"),
        trained(
            "WordPiece, lower case",
            word_piece(),
            pieces(),
            Some(BertNormalizer::default().into()),
            Some(BertPreTokenizer.into()),
            Some(("[CLS]", "[SEP]")),
        ),
        trained("WordPiece, cased", word_piece(), pieces(), None, Some(Whitespace {}.into()), Some(("[CLS]", "[SEP]"))),
        trained(
            "BPE over bytes",
            BPE::default(),
            bpe(ByteLevel::alphabet().into_iter().collect()),
            None,
            byte_level(false),
            None,
        ),
        trained(
            "BPE with SentencePiece's spaces",
            unknown().build().unwrap(),
            bpe(Default::default()),
            Some(NFKC.into()),
            metaspace(),
            sentence,
        ),
        trained(
            "BPE over characters, nothing before it",
            unknown().fuse_unk(true).build().unwrap(),
            bpe(Default::default()),
            None,
            None,
            None,
        ),
        trained("Unigram", Unigram::default(), unigram(), None, metaspace(), sentence),
        trained("Unigram, NFKC", Unigram::default(), unigram(), Some(NFKC.into()), metaspace(), None),
        trained(
            "whole words",
            WordLevel::builder().unk_token("<unk>".to_owned()).build().unwrap(),
            levels.into(),
            None,
            Some(Whitespace {}.into()),
            None,
        ),
    ]
}

/// Words as documents have them, and what tokenizers stumble over: long runs, joined emoji, combining marks, ligatures
/// that normalisation takes apart, characters that it takes away.
fn text() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        8 => "[a-zA-Z]{1,12}[.!?,;:]?",
        2 => "[0-9]{1,8}",
        1 => "[a-z]{80,200}",
        1 => "[äßéñ漢字かな한글]{1,12}",
        1 => proptest::sample::select(vec!["👩‍👩‍👧", "e\u{301}\u{301}\u{301}", "ﬃ", "①⑳", "\u{fdfa}", "\u{200b}", "㌀", "▁", "<s>", "[SEP]"])
            .prop_map(str::to_owned),
        1 => Just("\n".to_owned()),
    ];
    proptest::collection::vec(word, 0..90).prop_map(|words| words.join(" "))
}

fn document() -> impl Strategy<Value = Document> {
    let kind = prop_oneof![
        (1u8..4).prop_map(|level| BlockKind::Heading { level }),
        Just(BlockKind::Paragraph),
        Just(BlockKind::ListItem { depth: 0 }),
        Just(BlockKind::Code),
    ];
    let layer =
        prop_oneof![5 => Just(Layer::Body), 1 => Just(Layer::Unplaced), 1 => Just(Layer::Hidden(HiddenReason::Marked))];
    let block = (kind, text(), layer);
    let table = proptest::collection::vec(proptest::collection::vec("[a-zé ]{0,40}", 1..4), 0..8);
    (proptest::collection::vec(block, 0..8), table).prop_map(|(blocks, rows)| {
        let mut out = DocumentBuilder::new("", &Limits::default());
        for (kind, text, layer) in blocks {
            out.push_at(kind, &text, Place { layer, ..Place::default() }).unwrap();
        }
        let rows = rows.into_iter().map(|row| row.into_iter().map(CellText::from).collect()).collect();
        out.push_table(rows, 1, Place::default()).unwrap();
        out.finish().unwrap()
    })
}

/// How often each byte of the text is in the new part of a chunk.
fn covered(document: &Document, chunks: &[Chunk]) -> Vec<u8> {
    let mut covered = vec![0u8; document.text.len()];
    for chunk in chunks {
        for at in chunk.ranges.iter().flat_map(Clone::clone).filter(|at| *at >= chunk.new_from) {
            covered[at] += 1;
        }
    }
    covered
}

#[test]
fn laws_hold_with_every_kind_of_tokenizer() {
    let counters = ten();
    assert!(counters.len() >= 10);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let input = (document(), 24usize..140, 0usize..3);
    let outcome = runner.run(&input, |(document, max_tokens, share)| {
        for counter in &counters {
            let options = ChunkOptions { max_tokens, overlap: (max_tokens - 2) / 8 * share, ..ChunkOptions::default() };
            let chunks = chunk(&document, &options, counter).unwrap();
            for chunk in &chunks {
                let tokens = counter.whole(&chunk.text);
                prop_assert!(tokens <= max_tokens, "{}: {tokens} tokens of {max_tokens}", counter.name);
                prop_assert_eq!(tokens, chunk.token_count, "{}", counter.name);
            }
            let covered = covered(&document, &chunks);
            for block in &document.blocks {
                let expected = u8::from(options.includes(block));
                let visible = document.block_text(block).char_indices().filter(|(_, c)| !c.is_whitespace());
                for (at, _) in visible {
                    prop_assert_eq!(covered[block.range.start + at], expected, "{}", counter.name);
                }
            }
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
