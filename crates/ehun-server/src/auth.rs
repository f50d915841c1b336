//! API keys. The configuration holds their blake3 hashes, never the keys.

use axum::http::{HeaderMap, header};
use serde::Deserialize;

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
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// A name for logs.
    pub name: String,
    /// blake3 of the key, in hexadecimal digits.
    pub blake3: String,
    /// What it allows.
    pub scope: Scope,
}

/// Checks the key of a request. Without any key in the configuration everything is allowed: then the server is meant for
/// a trusted network.
pub fn check(keys: &[Key], headers: &HeaderMap, needed: Scope) -> Result<(), Fault> {
    if keys.is_empty() {
        return Ok(());
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
        Some(_) => Ok(()),
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
        let keys = [key("reader", Scope::Infer), key("root", Scope::Admin)];
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
        assert!(check(&[], &HeaderMap::new(), Scope::Admin).is_ok());
    }
}
