//! `let`: computes values.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Data, MapEntry, Node};
use crate::expr::is_word;
use crate::limits;
use crate::plan::{KEYWORDS, ROOTS};
use crate::spec::fields::{FromNode, Reader, record};

record! {
    /// Computes values. The output is the map of the values, which later steps read as `steps.<id>.output.<name>` or
    /// `<id>.<name>`. The step does not wait, and its output is recorded: it is the same after a restart.
    pub struct Let {
        /// Values by name, such as `{ total: "{{ sum(inputs.prices) }}", vat: "{{ round(total * 0.19, 2) }}" }`. A value can
        /// read the other names of the same step, in any order; strings can contain references.
        @required r#let: LetValues,
    }
}

/// The values of a `let` step by name, as a map.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(transparent)]
pub struct LetValues(pub Node);

impl LetValues {
    /// The names and values, in the order of the names.
    pub(crate) fn sorted(&self) -> Vec<&MapEntry> {
        let mut entries: Vec<&MapEntry> = match &self.0.data {
            Data::Map(entries) => entries.iter().collect(),
            _ => Vec::new(),
        };
        entries.sort_by(|a, b| a.key.cmp(&b.key));
        entries
    }
}

impl FromNode for LetValues {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        let Data::Map(entries) = &node.data else {
            reader.wrong_type(&node, "a map of name to value");
            return None;
        };
        if entries.is_empty() {
            reader.report(Diagnostic::new(Code::MissingField, node.span, "`let` needs at least one name"));
        }
        if entries.len() > limits::LET_VALUES {
            let message = format!("a `let` step has at most {} names", limits::LET_VALUES);
            reader.report(Diagnostic::new(Code::LimitExceeded, node.span, message).hint("use several steps"));
        }
        for entry in entries {
            let name = &*entry.key;
            if !is_word(name) || KEYWORDS.contains(&name) || ROOTS.contains(&name) {
                let hint = "use letters, digits and `_`, such as `total`";
                reader.invalid(entry.key_span, format!("`{name}` is not a valid name for a value"), hint);
            }
        }
        Some(Self(node))
    }
}

impl JsonSchema for LetValues {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "LetValues".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "minProperties": 1,
            "maxProperties": limits::LET_VALUES,
            "propertyNames": { "pattern": "^[A-Za-z_][A-Za-z0-9_]*$" },
            "additionalProperties": {},
        })
    }
}
