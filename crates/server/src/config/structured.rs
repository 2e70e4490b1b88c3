//! Settings that are tables of their own, which serde reads.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeValue, ValueDeserializer};

use super::setting::{ReadContext, Setting, SettingError};

/// A setting that can only be written in the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Structured<T>(pub T);

/// What a structured setting looks like in the file.
pub(super) trait Shape: Default + PartialEq + Serialize + DeserializeOwned {
    const SHAPE: &'static str;
}

impl<T: PartialEq + Serialize + DeserializeOwned> Shape for BTreeMap<String, T> {
    const SHAPE: &'static str = "a table by name (in the file only)";
}

impl<T: PartialEq + Serialize + DeserializeOwned> Shape for Vec<T> {
    const SHAPE: &'static str = "a list of tables (in the file only)";
}

impl<T: PartialEq + Serialize + DeserializeOwned> Shape for Option<T> {
    const SHAPE: &'static str = "a reference to a secret, `{ secret = \"NAME\" }` (in the file only)";
}

impl<T: Shape> Setting for Structured<T> {
    fn expected() -> String {
        T::SHAPE.to_owned()
    }

    fn from_text(_: &str, _: &ReadContext) -> Result<Self, SettingError> {
        Err(SettingError::new("this setting can be written in steprail.toml only"))
    }

    fn from_toml(value: &Spanned<DeValue>, _: &ReadContext) -> Result<Self, SettingError> {
        let read = T::deserialize(ValueDeserializer::from(value.clone()));
        read.map(Self).map_err(|error| {
            let span = error.span().unwrap_or(value.span());
            SettingError::new(without_values(error.message())).at(span)
        })
    }

    fn to_toml(&self) -> Option<toml::Value> {
        toml::Value::try_from(&self.0).ok().filter(|_| self.0 != T::default())
    }
}

/// An error of serde without the value that it quotes: where a reference belongs, the value may be the secret itself.
fn without_values(message: &str) -> String {
    let wrong_type = message.strip_prefix("invalid type: ").and_then(|rest| rest.rsplit_once(", expected "));
    match wrong_type {
        Some((found, "struct SecretRef")) if found.starts_with("string") => {
            "a secret is a reference: write `{ secret = \"NAME\" }`".to_owned()
        }
        Some((found, expected)) => {
            let kind = found.split(' ').next().unwrap_or_default();
            format!("expected {expected}, found {kind}")
        }
        None => message.to_owned(),
    }
}
