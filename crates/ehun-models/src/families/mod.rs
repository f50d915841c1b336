//! The model families, one file each. This is the only place that knows their names.
//!
//! A family says which `model_type` values are its own, how its tensors are named, and builds the token rows of its last layer
//! out of the pieces in `blocks`. To add one: write its file, name it in [`FAMILIES`], and put a checkpoint with expected
//! outputs into `goldens/`. No backend is touched.

mod albert;
mod bert;
mod deberta;
mod distilbert;
mod electra;
mod eurobert;
mod gemma3;
mod gte;
mod jina;
mod llama;
mod modernbert;
mod mpnet;
mod nomic_bert;
mod qwen;
mod roberta;
mod t5;

use ehun_graph::ValueId;

use crate::blocks::Ctx;
use crate::config::Config;
use crate::error::{ModelError, Result};

/// Builds logits from token rows, for so many labels.
pub(crate) type Head = fn(&mut Ctx, ValueId, usize) -> Result<ValueId>;

/// A model family.
pub(crate) struct Family {
    /// Its name, for messages and reports.
    pub name: &'static str,
    /// The values of `model_type` that are this family.
    pub model_types: &'static [&'static str],
    /// What a checkpoint may put in front of the names of the encoder's tensors.
    pub prefixes: &'static [&'static str],
    /// Tensors of which every checkpoint has one: the word embeddings.
    pub probes: &'static [&'static str],
    /// Token rows of the last layer.
    pub encoder: fn(&mut Ctx) -> Result<ValueId>,
    /// Logits of a sequence.
    pub sequence_head: Option<Head>,
    /// Logits of a token.
    pub token_head: Option<Head>,
    /// Logits of every term of the vocabulary, for each token.
    pub vocabulary_head: Option<fn(&mut Ctx, ValueId) -> Result<ValueId>>,
    /// Beginnings of the names of tensors, without the encoder's prefix, that a checkpoint may have and the graph not use.
    pub unused: &'static [&'static str],
}

/// All families.
const FAMILIES: &[&Family] = &[
    &albert::ALBERT,
    &bert::BERT,
    &deberta::DEBERTA_V2,
    &distilbert::DISTILBERT,
    &electra::ELECTRA,
    &eurobert::EUROBERT,
    &gemma3::GEMMA3,
    &gte::GTE,
    &jina::JINA_V3,
    &llama::LLAMA,
    &llama::MISTRAL,
    &modernbert::MODERNBERT,
    &mpnet::MPNET,
    &nomic_bert::NOMIC_BERT,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &roberta::ROBERTA,
    &t5::T5,
];

/// The family of a configuration.
pub(crate) fn find(config: &Config) -> Result<&'static Family> {
    let model_type = config.str(&["model_type"])?;
    // Jina v3's published checkpoints call themselves XLM-RoBERTa, whose positions are never rotary.
    if model_type == "xlm-roberta" && config.get("position_embedding_type") == Some(&"rotary".into()) {
        return Ok(&jina::JINA_V3);
    }
    FAMILIES.iter().copied().find(|family| family.model_types.contains(&model_type)).ok_or_else(|| {
        ModelError::UnknownFamily {
            path: config.path().to_owned(),
            model_type: model_type.to_owned(),
            known: model_types().join(", "),
        }
    })
}

/// All values of `model_type` that can be loaded.
pub fn model_types() -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|family| family.model_types).copied().collect()
}
