//! Whether bytes are JSON that can be held as values, found out without holding any.
//!
//! `serde::de::IgnoredAny` is no use for this: it passes over numbers that no `f64` holds and over any depth of nesting, which fail
//! whoever reads the values afterwards.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Fails with the place of the first byte that is not JSON.
pub(crate) fn check(bytes: &[u8]) -> serde_json::Result<()> {
    serde_json::from_slice::<Anything>(bytes).map(drop)
}

struct Anything;

impl<'de> Deserialize<'de> for Anything {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Anything {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E: Error>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn what_values_can_hold_passes_and_nothing_else() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        let cases = [
            r#"{"a": [1, -2, 3.5, null, true, "é\n", {"b": {}}]}"#,
            "[]",
            "",
            "{",
            "[1,]",
            "1e999",
            "\"a\u{0}b\"",
            "[1] 2",
            r#"{"a" 1}"#,
            r#""\ud800""#,
            deep.as_str(),
        ];
        for case in cases {
            let held = serde_json::from_str::<serde_json::Value>(case).map(drop).map_err(|e| e.to_string());
            assert_eq!(check(case.as_bytes()).map_err(|e| e.to_string()), held, "{case}");
        }
        assert!(check(b"\"\xff\"").is_err());
    }
}
