//! The model that is part of the program: all-MiniLM-L6-v2 (Apache-2.0), weights rounded to float16. See NOTICE.

use ehun_models::Checkpoint;

/// The name by which it is asked for and reported.
pub const NAME: &str = "sentence-transformers/all-MiniLM-L6-v2";

/// Data that starts at an address that is a multiple of 64, so that tensors are read where they lie.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../../assets/model/", $name)).as_slice())
    };
}

static WEIGHTS: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../assets/model/model.safetensors"));

static FILES: &[(&str, &[u8])] = &[
    file!("config.json"),
    file!("config_sentence_transformers.json"),
    file!("modules.json"),
    file!("sentence_bert_config.json"),
    file!("tokenizer.json"),
    file!("tokenizer_config.json"),
    file!("1_Pooling/config.json"),
    ("model.safetensors", &WEIGHTS.0),
];

/// The embedded checkpoint. Nothing is read until it is used.
pub fn checkpoint() -> Checkpoint {
    Checkpoint::embedded(NAME, FILES)
}
