//! Parses the declarations of inputs, each a JSON Schema.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::{JsonSchema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use super::fields::{FromNode, Reader};
use crate::diagnostic::{Code, Diagnostic, nearest, quoted, suggest};
use crate::document::{Data, MapEntry, Node};
use crate::schema::Schema;

/// A declared input.
#[derive(Debug, Clone)]
pub struct Input {
    /// The JSON Schema, with `default` and without `optional`.
    pub schema: Node,
    /// Whether a run can start without a value.
    pub optional: bool,
    /// The schema, ready to check values; `None` after an error was reported.
    pub compiled: Option<Arc<Schema>>,
}

/// The JSON Schema keywords whose value is a number.
const NUMBERS: &[&str] = &[
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minItems",
    "maxItems",
    "minContains",
    "maxContains",
    "minProperties",
    "maxProperties",
];
/// The other JSON Schema keywords, and `optional`.
const KEYWORDS: &[&str] = &[
    "type",
    "title",
    "description",
    "default",
    "examples",
    "enum",
    "const",
    "format",
    "pattern",
    "items",
    "prefixItems",
    "contains",
    "uniqueItems",
    "properties",
    "patternProperties",
    "additionalProperties",
    "propertyNames",
    "required",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$ref",
    "$defs",
    "$comment",
    "$id",
    "$schema",
    "$anchor",
    "optional",
];
const TYPES: &[&str] = &["string", "number", "integer", "boolean", "array", "object", "null"];

impl Input {
    /// The default value, if any.
    pub fn default(&self) -> Option<&Node> {
        self.schema.get("default")
    }

    /// Reports unknown keywords and invalid values of known ones. Returns the schema if there are none.
    fn check(&self, reader: &mut Reader) -> Option<Arc<Schema>> {
        let Data::Map(entries) = &self.schema.data else { return None };
        let before = reader.out.errors();
        for entry in entries {
            let key = &*entry.key;
            if key == "required" && matches!(entry.value.data, Data::Bool(_)) {
                let message = "`required` is not a boolean in JSON Schema; inputs are required by default";
                let diagnostic = Diagnostic::new(Code::WrongType, entry.key_span, message);
                reader.report(diagnostic.hint("write `optional: true`, or add a `default`"));
            } else if NUMBERS.contains(&key) && !matches!(entry.value.data, Data::Number(_)) {
                reader.wrong_type(&entry.value, "a number");
            } else if !KEYWORDS.contains(&key) && !NUMBERS.contains(&key) && !key.starts_with("x-") {
                let message = format!("unknown key `{key}` in the JSON Schema of an input");
                let mut diagnostic = Diagnostic::new(Code::UnknownKey, entry.key_span, message);
                let near = nearest(key, KEYWORDS.iter().chain(NUMBERS).copied());
                diagnostic.hint = near.map(|near| format!("did you mean `{near}`?"));
                reader.report(diagnostic);
            }
        }
        self.check_types(reader);
        self.check_choices(reader);
        if reader.out.errors() == before { self.compile(reader) } else { None }
    }

    /// Compiles the schema, or reports what makes it unusable.
    fn compile(&self, reader: &mut Reader) -> Option<Arc<Schema>> {
        match Schema::with_regexes(&self.schema.to_value(), &mut reader.regexes) {
            Ok(schema) => Some(Arc::new(schema)),
            Err(error) => {
                let message = format!("invalid JSON Schema: {}", error.message);
                let span = part(&self.schema, &error.pointer).span;
                reader.report(Diagnostic::new(Code::InvalidValue, span, message));
                None
            }
        }
    }

    fn check_choices(&self, reader: &mut Reader) {
        let Some(choices) = self.schema.get("enum") else { return };
        let Data::List(items) = &choices.data else { return reader.wrong_type(choices, "a list") };
        let Some(default) = self.default() else { return };
        let value = default.to_value();
        if !items.iter().any(|item| item.to_value() == value) {
            let message = "the default is not one of the values in `enum`";
            reader.report(Diagnostic::new(Code::InvalidValue, default.span, message));
        }
    }

    fn check_types(&self, reader: &mut Reader) {
        let Some(kind) = self.schema.get("type") else { return };
        let named: Vec<&Node> = match &kind.data {
            Data::Text(_) => vec![kind],
            Data::List(kinds) => kinds.iter().collect(),
            _ => return reader.wrong_type(kind, &format!("one of {}", quoted(TYPES))),
        };
        for node in &named {
            let name = node.as_text().unwrap_or_default();
            if !TYPES.contains(&name) {
                let mut diagnostic = Diagnostic::new(
                    Code::InvalidValue,
                    node.span,
                    format!("`{name}` is not a JSON Schema type"),
                );
                diagnostic.hint = suggest(name, TYPES);
                return reader.report(diagnostic);
            }
        }
        let fits =
            |default: &Node| named.iter().any(|node| has_type(default, node.as_text().unwrap_or_default()));
        if let Some(default) = self.default().filter(|default| !fits(default)) {
            let message =
                format!("the default is {}, which the input's type does not allow", default.type_name());
            reader.report(Diagnostic::new(Code::InvalidValue, default.span, message));
        }
    }
}

/// The node at a JSON pointer, or the last one on the way.
fn part<'n>(node: &'n Node, pointer: &str) -> &'n Node {
    pointer.split('/').skip(1).fold(node, |node, step| {
        let key = step.replace("~1", "/").replace("~0", "~");
        let child = match &node.data {
            Data::List(items) => step.parse().ok().and_then(|index: usize| items.get(index)),
            _ => node.get(&key),
        };
        child.unwrap_or(node)
    })
}

fn has_type(node: &Node, name: &str) -> bool {
    match &node.data {
        Data::Null => name == "null",
        Data::Bool(_) => name == "boolean",
        Data::Number(number) => {
            name == "number" || (name == "integer" && number.as_f64().is_some_and(|n| n.fract() == 0.0))
        }
        Data::Text(_) => name == "string",
        Data::List(_) => name == "array",
        Data::Map(_) => name == "object",
    }
}

impl FromNode for Input {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        let span = node.span;
        let mut entries = match node.data {
            Data::Map(entries) => entries,
            // `date: string` is short for `date: { type: string }`.
            Data::Text(_) => vec![MapEntry { key: "type".into(), key_span: span, value: node }],
            // The input is still declared, so that references to it are not reported as well.
            _ => {
                reader.wrong_type(&node, "a JSON Schema (a map), or the name of a type");
                Vec::new()
            }
        };
        let mut optional = false;
        if let Some(index) = entries.iter().position(|entry| &*entry.key == "optional") {
            optional = bool::from_node(entries.swap_remove(index).value, reader).unwrap_or_default();
        }
        let mut input = Self { schema: Node { span, data: Data::Map(entries) }, optional, compiled: None };
        input.compiled = input.check(reader);
        Some(input)
    }
}

impl Serialize for Input {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Data::Map(entries) = &self.schema.data else { return self.schema.serialize(serializer) };
        let mut entries = entries.clone();
        if self.optional {
            let value = Node { data: Data::Bool(true), ..Node::default() };
            entries.push(MapEntry { key: "optional".into(), key_span: value.span, value });
        }
        Node { data: Data::Map(entries), span: self.schema.span }.serialize(serializer)
    }
}

impl JsonSchema for Input {
    fn schema_name() -> Cow<'static, str> {
        "Input".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> schemars::Schema {
        json_schema!({
            "description": "The declaration of an input. An input is required unless it has `default` or `optional: true`.",
            "anyOf": [
                { "enum": TYPES, "description": "Short form of `{type: …}`." },
                {
                    "type": "object",
                    "description": "A JSON Schema, with any of its keywords.",
                    "properties": {
                        "type": { "anyOf": [{ "enum": TYPES }, { "type": "array", "items": { "enum": TYPES } }] },
                        "description": { "type": "string" },
                        "default": { "description": "Default value. An input with a default is optional." },
                        "optional": { "type": "boolean", "description": "Whether a run can start without a value. Default: `false`." },
                    },
                },
            ],
        })
    }
}
