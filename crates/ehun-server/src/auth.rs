//! API keys. The configuration holds their blake3 hashes, never the keys.

use std::sync::{Arc, PoisonError, RwLock};

use axum::http::{HeaderMap, header};
use serde::{Deserialize, Deserializer};

use crate::fault::{Fault, Kind};

/// What a key allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// To ask models.
    Infer,
    /// To change services as well.
    Admin,
}

/// A key as the configuration has it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// A name for logs.
    pub name: String,
    /// blake3 of the key, in hexadecimal digits.
    #[serde(deserialize_with = "hash")]
    pub blake3: String,
    /// What it allows.
    pub scope: Scope,
}

fn hash<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    match blake3::Hash::from_hex(&text) {
        Ok(_) => Ok(text),
        Err(_) => Err(serde::de::Error::custom(format!("`blake3` must be 64 hexadecimal digits, not `{text}`"))),
    }
}

/// The keys that are valid now.
#[derive(Debug, Default)]
pub struct Keys(RwLock<Arc<[Key]>>);

impl Keys {
    /// These.
    pub fn new(keys: Vec<Key>) -> Self {
        Self(RwLock::new(keys.into()))
    }

    /// These from now on.
    pub fn replace(&self, keys: Vec<Key>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys.into();
    }

    /// Whether any allows to change services.
    pub fn has_admin(&self) -> bool {
        self.all().iter().any(|key| key.scope == Scope::Admin)
    }

    fn all(&self) -> Arc<[Key]> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Checks the key of a request. Without any key in the configuration everything is allowed: then the server is meant for
/// a trusted network.
pub fn check(keys: &Keys, headers: &HeaderMap, needed: Scope) -> Result<(), Fault> {
    who(keys, headers, needed).map(drop)
}

/// Checks the key of a request: its name, or `None` where there are no keys.
pub fn who(keys: &Keys, headers: &HeaderMap, needed: Scope) -> Result<Option<String>, Fault> {
    let keys = keys.all();
    if keys.is_empty() {
        return Ok(None);
    }
    let given = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer ").or_else(|| value.strip_prefix("bearer ")))
        .ok_or_else(|| Fault::new(Kind::Unauthorized, "an API key is needed: `Authorization: Bearer KEY`"))?;
    let hash = blake3::hash(given.trim().as_bytes());
    // `blake3::Hash` compares in constant time.
    let known = keys.iter().find(|key| blake3::Hash::from_hex(&key.blake3).is_ok_and(|known| known == hash));
    match known {
        None => Err(Fault::new(Kind::Unauthorized, "the API key is not known here")),
        Some(key) if needed == Scope::Admin && key.scope != Scope::Admin => {
            Err(Fault::new(Kind::Forbidden, format!("the key `{}` may not change services", key.name)))
        }
        Some(key) => Ok(Some(key.name.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let key = |name: &str, scope| Key {
            name: name.into(),
            blake3: blake3::hash(name.as_bytes()).to_hex().to_string(),
            scope,
        };
        let keys = Keys::new(vec![key("reader", Scope::Infer), key("root", Scope::Admin)]);
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            headers
        };
        for (headers, needed, want) in [
            (with("Bearer reader"), Scope::Infer, None),
            (with("Bearer reader"), Scope::Admin, Some(Kind::Forbidden)),
            (with("Bearer root"), Scope::Admin, None),
            (with("Bearer other"), Scope::Infer, Some(Kind::Unauthorized)),
            (with("Basic reader"), Scope::Infer, Some(Kind::Unauthorized)),
            (HeaderMap::new(), Scope::Infer, Some(Kind::Unauthorized)),
        ] {
            assert_eq!(check(&keys, &headers, needed).err().map(|fault| fault.kind), want, "{headers:?}");
        }
        assert_eq!(who(&keys, &with("Bearer root"), Scope::Admin), Ok(Some("root".to_owned())));
        keys.replace(vec![key("other", Scope::Infer)]);
        assert!(check(&keys, &with("Bearer reader"), Scope::Infer).is_err(), "a key that was taken away");
        assert_eq!(who(&Keys::default(), &HeaderMap::new(), Scope::Admin), Ok(None));
    }
}
