//! How static shapes are asked for: by a flag of a command or a key of a configuration.

use std::path::PathBuf;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// What is to decide on the static shapes, before it was read; a [`crate::BucketChoice`] is what it comes to.
///
/// As text it is `auto` or a list of `BATCHxLENGTH`; in a configuration also a table with one of the keys `lengths` and
/// `sample`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum BucketSource {
    /// The backend's default distribution of lengths.
    #[default]
    Auto,
    /// These, `(batch, length)`, none of them 0.
    List(Vec<(usize, usize)>),
    /// A histogram of lengths, see [`crate::buckets::histogram`].
    Lengths(PathBuf),
    /// A text a line, of which the model's tokenizer counts the tokens.
    Sample(PathBuf),
}

impl std::fmt::Display for BucketSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::List(list) => {
                let shapes: Vec<String> = list.iter().map(|(batch, length)| format!("{batch}x{length}")).collect();
                f.write_str(&shapes.join(","))
            }
            Self::Lengths(path) => write!(f, "auto by the lengths in {}", path.display()),
            Self::Sample(path) => write!(f, "auto by the texts in {}", path.display()),
        }
    }
}

impl std::str::FromStr for BucketSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "auto" {
            return Ok(Self::Auto);
        }
        let shape = |shape: &str| {
            let sides = shape
                .trim()
                .split_once('x')
                .and_then(|(batch, length)| Some((batch.parse::<usize>().ok()?, length.parse::<usize>().ok()?)));
            match sides {
                Some((0, _) | (_, 0)) => Err(format!("bucket `{shape}` holds nothing; batch and length are from 1")),
                Some(sides) => Ok(sides),
                None => Err(format!("`{shape}` is neither auto nor BATCHxLENGTH, for example 32x128,8x512")),
            }
        };
        text.split(',').map(shape).collect::<Result<_, _>>().map(Self::List)
    }
}

impl<'de> Deserialize<'de> for BucketSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrTable)
    }
}

/// The table's keys; exactly one is given.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Files {
    lengths: Option<PathBuf>,
    sample: Option<PathBuf>,
}

struct TextOrTable;

impl<'de> Visitor<'de> for TextOrTable {
    type Value = BucketSource;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("auto, a list of BATCHxLENGTH, or a table with `lengths` or `sample`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<BucketSource, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<BucketSource, A::Error> {
        match Files::deserialize(MapAccessDeserializer::new(map))? {
            Files { lengths: Some(path), sample: None } => Ok(BucketSource::Lengths(path)),
            Files { lengths: None, sample: Some(path) } => Ok(BucketSource::Sample(path)),
            _ => Err(A::Error::custom("`buckets` takes one of `lengths` and `sample`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_and_tables_are_read_or_refused() {
        let read = |json: &str| serde_json::from_str::<BucketSource>(json).map_err(|error| error.to_string());
        for (json, source) in [
            (r#""auto""#, BucketSource::Auto),
            (r#""2x8""#, BucketSource::List(vec![(2, 8)])),
            (r#""32x128, 8x512""#, BucketSource::List(vec![(32, 128), (8, 512)])),
            (r#"{"lengths": "a"}"#, BucketSource::Lengths("a".into())),
            (r#"{"sample": "b"}"#, BucketSource::Sample("b".into())),
        ] {
            assert_eq!(read(json).unwrap(), source, "{json}");
        }
        for (json, words) in [
            (r#""2x""#, "BATCHxLENGTH"),
            (r#""""#, "BATCHxLENGTH"),
            (r#""auto,2x8""#, "`auto` is neither"),
            (r#""2x8,""#, "BATCHxLENGTH"),
            (r#""2x8x1""#, "`2x8x1`"),
            (r#""-2x8""#, "`-2x8`"),
            (r#""0x8""#, "holds nothing"),
            (r#""2x8,2x0""#, "`2x0` holds nothing"),
            ("{}", "one of"),
            (r#"{"lengths": "a", "sample": "b"}"#, "one of"),
            (r#"{"length": "a"}"#, "`length`"),
            ("12", "a list of BATCHxLENGTH"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(words), "{json}: {error}");
        }
    }

    proptest! {
        #[test]
        fn lists_are_shown_as_they_are_read(list in proptest::collection::vec((1usize.., 1usize..), 1..5)) {
            let source = BucketSource::List(list);
            prop_assert_eq!(source.to_string().parse::<BucketSource>().unwrap(), source);
        }
    }
}
