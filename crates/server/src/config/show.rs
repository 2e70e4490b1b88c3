//! Output of the settings with their sources: as TOML for people, as JSON for programs.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::declare::Key;
use super::keys::{self, Config, SECTIONS};

impl Config {
    /// A file with the same settings. Comments are enclosed in the terminal styles `dim` and `plain`.
    pub(crate) fn to_toml(&self, dim: &str, plain: &str) -> String {
        let mut out = String::new();
        for section in SECTIONS {
            let gap = if out.is_empty() { "" } else { "\n" };
            let _ = writeln!(out, "{gap}[{}]", section.name);
            for key in section.keys {
                let source = self.source(key.path);
                let _ = match (key.to_toml)(self) {
                    Some(value) => writeln!(out, "{} = {value} {dim}# {source}{plain}", key.name),
                    None => writeln!(out, "{dim}# {} is not set ({source}){plain}", key.name),
                };
            }
        }
        out
    }

    /// A map of key paths to values and sources.
    pub(crate) fn to_json(&self) -> Value {
        let entry = |key: &'static Key| {
            let value = (key.to_toml)(self).and_then(|value| serde_json::to_value(value).ok());
            (key.path.to_owned(), json!({ "value": value, "source": self.source(key.path).to_string() }))
        };
        Value::Object(keys::all().map(entry).collect::<Map<_, _>>())
    }
}
