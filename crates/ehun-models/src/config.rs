//! A configuration file in which every key must be understood.
//!
//! A family asks for the keys that it knows. What is present and was asked for by nobody, and is not on the list of keys
//! that cannot change a result, is an error that names it: a key that is ignored silently is how a model starts to give
//! other vectors after an update.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::error::{ModelError, Result};

/// Keys of any family that matter only in training, in generation, or to a program that reads the file.
const WITHOUT_EFFECT: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_pdrop",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "classifier_dropout_prob",
    "cls_token_id",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dropout",
    "dropout_rate",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "embedding_dropout",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout_prob",
    "id2label",
    "initializer_cutoff_factor",
    "initializer_factor",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "language",
    "length_penalty",
    "mask_token_id",
    "max_length",
    "min_length",
    "model_type",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_scores",
    "pad_token_id",
    "pooler_dropout",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "sbert_ce_default_activation_function",
    "sentence_transformers",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tie_word_embeddings",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "use_bfloat16",
    "use_cache",
];

/// The keys of one JSON object, each of which must be asked for.
#[derive(Debug)]
pub struct Config {
    path: String,
    prefix: String,
    map: Map<String, Value>,
    asked: RefCell<BTreeSet<String>>,
    /// Whether the keys without effect may be there: in `config.json`, and nowhere else.
    of_model: bool,
}

impl Config {
    /// The object `map` of the model's `config.json` at `path`.
    pub fn new(path: impl Into<String>, map: Map<String, Value>) -> Self {
        Self { of_model: true, ..Self::of_module(path, map) }
    }

    /// The object `map` of another file, at `path`.
    pub fn of_module(path: impl Into<String>, map: Map<String, Value>) -> Self {
        Self { path: path.into(), prefix: String::new(), map, asked: RefCell::default(), of_model: false }
    }

    /// The file, for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The value of `key`; a null is as if it were absent.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.asked.borrow_mut().insert(key.to_owned());
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The value of the first of `keys` that is present: a key and its older names.
    fn first<'k>(&self, keys: &[&'k str]) -> Option<(&'k str, &Value)> {
        // Every name counts as asked for, so that a file with both is fine.
        let found: Vec<_> = keys.iter().filter_map(|key| Some((*key, self.get(key)?))).collect();
        found.into_iter().next()
    }

    /// An error about `key`.
    pub fn error(&self, key: &str, reason: impl Into<String>) -> ModelError {
        ModelError::Config { path: self.path.clone(), key: format!("{}{key}", self.prefix), reason: reason.into() }
    }

    fn missing(&self, key: &str) -> ModelError {
        self.error(key, "this key is needed and is not there")
    }

    /// A whole number from 0 of the first of `keys` that is present.
    pub fn opt_usize(&self, keys: &[&str]) -> Result<Option<usize>> {
        let Some((key, value)) = self.first(keys) else { return Ok(None) };
        // Some tools write whole numbers as floats.
        let whole =
            value.as_u64().or_else(|| value.as_f64().filter(|x| x.fract() == 0.0 && *x >= 0.0).map(|x| x as u64));
        match whole.filter(|&n| n <= 1 << 40) {
            Some(n) => Ok(Some(n as usize)),
            None => Err(self.error(key, format!("a whole number is expected, found {value}"))),
        }
    }

    /// As [`Config::opt_usize`], needed.
    pub fn usize(&self, keys: &[&str]) -> Result<usize> {
        self.opt_usize(keys)?.ok_or_else(|| self.missing(keys.first().copied().unwrap_or_default()))
    }

    /// As [`Config::usize`], and above 0.
    pub fn positive(&self, keys: &[&str]) -> Result<usize> {
        match self.usize(keys)? {
            0 => Err(self.error(keys.first().copied().unwrap_or_default(), "must be above 0")),
            n => Ok(n),
        }
    }

    /// A whole number above 0; `None` where the key is absent or its value is below 1, which configurations write for "none".
    pub fn count_or_minus_one(&self, key: &str) -> Result<Option<usize>> {
        match self.get(key).and_then(Value::as_i64) {
            Some(n) if n < 1 => Ok(None),
            _ => self.opt_usize(&[key]),
        }
    }

    /// A number of the first of `keys` that is present.
    pub fn opt_f64(&self, keys: &[&str]) -> Result<Option<f64>> {
        let Some((key, value)) = self.first(keys) else { return Ok(None) };
        match value.as_f64().filter(|x| x.is_finite()) {
            Some(x) => Ok(Some(x)),
            None => Err(self.error(key, format!("a number is expected, found {value}"))),
        }
    }

    /// As [`Config::opt_f64`], or `default`.
    pub fn f64_or(&self, keys: &[&str], default: f64) -> Result<f64> {
        Ok(self.opt_f64(keys)?.unwrap_or(default))
    }

    /// A truth value, or `default`.
    pub fn bool_or(&self, keys: &[&str], default: bool) -> Result<bool> {
        match self.first(keys) {
            None => Ok(default),
            Some((_, Value::Bool(b))) => Ok(*b),
            Some((key, value)) => Err(self.error(key, format!("true or false is expected, found {value}"))),
        }
    }

    /// A text.
    pub fn opt_str(&self, keys: &[&str]) -> Result<Option<&str>> {
        match self.first(keys) {
            None => Ok(None),
            Some((_, Value::String(text))) => Ok(Some(text)),
            Some((key, value)) => Err(self.error(key, format!("a text is expected, found {value}"))),
        }
    }

    /// A text, needed.
    pub fn str(&self, keys: &[&str]) -> Result<&str> {
        self.opt_str(keys)?.ok_or_else(|| self.missing(keys.first().copied().unwrap_or_default()))
    }

    /// A list of texts.
    pub fn opt_strings(&self, key: &str) -> Result<Option<Vec<String>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let texts = value.as_array().and_then(|list| {
            let texts: Option<Vec<String>> = list.iter().map(|item| item.as_str().map(str::to_owned)).collect();
            texts
        });
        texts.map(Some).ok_or_else(|| self.error(key, format!("a list of texts is expected, found {value}")))
    }

    /// The object under `key` as a configuration of its own; call [`Config::finish`] on it too.
    pub fn opt_object(&self, key: &str) -> Result<Option<Config>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Config {
                path: self.path.clone(),
                prefix: format!("{}{key}.", self.prefix),
                map: map.clone(),
                asked: RefCell::default(),
                of_model: false,
            })),
            Some(value) => Err(self.error(key, format!("an object is expected, found {value}"))),
        }
    }

    /// Refuses any value of `key` but `only`: an option that the family has and that this crate does not compute.
    pub fn only(&self, key: &str, only: Value, why: &str) -> Result<()> {
        match self.get(key) {
            None => Ok(()),
            Some(value) if *value == only => Ok(()),
            Some(value) => Err(self.error(key, format!("{value} is not supported, only {only}: {why}"))),
        }
    }

    /// Marks keys as understood without reading them: they cannot change a result of this family.
    pub fn ignore(&self, keys: &[&str]) {
        self.asked.borrow_mut().extend(keys.iter().map(|key| (*key).to_owned()));
    }

    /// Fails where a key is present that nobody asked for. `family` is named in the message.
    pub fn finish(&self, family: &str) -> Result<()> {
        let asked = self.asked.borrow();
        let unknown = self.map.iter().filter(|(key, value)| {
            let without_effect = self.of_model && WITHOUT_EFFECT.contains(&key.as_str());
            !value.is_null() && !asked.contains(*key) && !without_effect
        });
        let keys: Vec<String> = unknown.map(|(key, _)| format!("`{}{key}`", self.prefix)).collect();
        if keys.is_empty() {
            return Ok(());
        }
        Err(ModelError::UnknownConfigKey { path: self.path.clone(), family: family.to_owned(), keys })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> Config {
        Config::new("config.json", serde_json::from_str(json).unwrap())
    }

    #[test]
    fn a_key_that_nobody_asked_for_is_named() {
        let config = config(r#"{"hidden_size": 8, "secret": 1, "unset": null, "use_cache": true}"#);
        assert_eq!(config.usize(&["hidden_size"]).unwrap(), 8);
        let message = config.finish("BERT").unwrap_err().to_string();
        assert!(
            message.contains("`secret`") && !message.contains("unset") && !message.contains("use_cache"),
            "{message}"
        );
        assert_eq!(config.opt_usize(&["secret"]).unwrap(), Some(1));
        config.finish("BERT").unwrap();
    }

    #[test]
    fn values_of_another_kind_are_named() {
        let config = config(r#"{"a": "x", "b": -1, "c": {"d": 1}, "e": 4.0, "f": 1e99, "g": false}"#);
        for message in [
            config.usize(&["a"]).unwrap_err().to_string(),
            config.usize(&["missing"]).unwrap_err().to_string(),
            config.usize(&["b"]).unwrap_err().to_string(),
            config.usize(&["f"]).unwrap_err().to_string(),
            config.only("g", Value::Bool(true), "why").unwrap_err().to_string(),
        ] {
            assert!(message.starts_with("config.json: `"), "{message}");
        }
        assert_eq!(config.usize(&["old", "e"]).unwrap(), 4);
        let inner = config.opt_object("c").unwrap().unwrap();
        assert!(inner.finish("BERT").unwrap_err().to_string().contains("`c.d`"));
    }
}
