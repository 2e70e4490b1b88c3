//! The settings as they are, and where each comes from: as TOML for people, as JSON for programs.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::keys::{self, Config, SECTIONS};

impl Config {
    /// A file that would set the same. `dim` stands before what is comment, `plain` after it.
    pub(crate) fn to_toml(&self, dim: &str, plain: &str) -> String {
        let mut out = String::new();
        for section in SECTIONS {
            let gap = if out.is_empty() { "" } else { "\n" };
            let _ = writeln!(out, "{gap}[{}]", section.name);
            for key in section.keys {
                let place = self.place(key.path);
                let _ = match (key.shown)(self) {
                    Some(value) => writeln!(out, "{} = {value} {dim}# {place}{plain}", key.name),
                    None => writeln!(out, "{dim}# {} is not set ({place}){plain}", key.name),
                };
            }
        }
        out
    }

    /// Each key with its value and where it comes from.
    pub(crate) fn to_json(&self) -> Value {
        let entry = |key: &'static super::declare::Key| {
            let value = (key.shown)(self).and_then(|value| serde_json::to_value(value).ok());
            (key.path.to_owned(), json!({ "value": value, "source": self.place(key.path).to_string() }))
        };
        Value::Object(keys::all().map(entry).collect::<Map<_, _>>())
    }
}
