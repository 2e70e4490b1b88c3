//! The basic types of fields: text with positions, names, durations, tool names.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use super::fields::{FromNode, Reader};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Data, Node};
use crate::source::Span;

/// A value and its position.
#[derive(Debug, Clone, Default)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Its position in the source.
    pub span: Span,
}

/// Text and its position.
pub type Text = Spanned<String>;

impl<T> Deref for Spanned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Serialize> Serialize for Spanned<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

impl<T: JsonSchema> JsonSchema for Spanned<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

impl<T: FromNode> FromNode for Spanned<T> {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        let span = node.span;
        T::from_node(node, reader).map(|value| Self { value, span })
    }
}

impl FromNode for Node {
    fn from_node(node: Node, _: &mut Reader) -> Option<Self> {
        Some(node)
    }
}

impl FromNode for String {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        if let Data::Text(text) = node.data {
            return Some(text.into());
        }
        reader.wrong_type(&node, "text");
        None
    }
}

impl FromNode for bool {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        if let Data::Bool(value) = node.data {
            return Some(value);
        }
        reader.wrong_type(&node, "`true` or `false`");
        None
    }
}

impl FromNode for u64 {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        let expected = "a non-negative integer";
        let Data::Number(number) = &node.data else {
            reader.wrong_type(&node, expected);
            return None;
        };
        let value = number.as_u64();
        if value.is_none() {
            let message = format!("expected {expected}, found {number}");
            reader.report(Diagnostic::new(Code::WrongType, node.span, message));
        }
        value
    }
}

impl FromNode for u32 {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        let span = node.span;
        let value = u64::from_node(node, reader)?;
        let small = Self::try_from(value).ok();
        if small.is_none() {
            reader.invalid(span, format!("{value} is too large"), &format!("the maximum is {}", Self::MAX));
        }
        small
    }
}

impl FromNode for f64 {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        let value = if let Data::Number(number) = &node.data { number.as_f64() } else { None };
        if value.is_none() {
            reader.wrong_type(&node, "a number");
        }
        value
    }
}

impl<T: FromNode> FromNode for Vec<T> {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        let Data::List(items) = node.data else {
            reader.wrong_type(&node, "a list");
            return None;
        };
        Some(items.into_iter().filter_map(|item| T::from_node(item, reader)).collect())
    }
}

impl<T: FromNode> FromNode for BTreeMap<String, T> {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        let Data::Map(entries) = node.data else {
            reader.wrong_type(&node, "a map");
            return None;
        };
        let pairs = entries.into_iter().map(|entry| (entry.key.into(), T::from_node(entry.value, reader)));
        Some(pairs.filter_map(|(key, value)| Some((key, value?))).collect())
    }
}

/// A name or a list of names.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(transparent)]
pub struct Names(pub Vec<Text>);

impl FromNode for Names {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        match node.data {
            Data::Text(text) => Some(Self(vec![Text { value: text.into(), span: node.span }])),
            Data::List(_) => Vec::from_node(node, reader).map(Self),
            _ => {
                reader.wrong_type(&node, "a name or a list of names");
                None
            }
        }
    }
}

impl JsonSchema for Names {
    fn schema_name() -> Cow<'static, str> {
        "Names".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A name or a list of names.",
            "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }],
        })
    }
}

/// A duration as written: a number of seconds, or text such as `500ms`, `5m`, `1h 30m`, `2 days`, `PT5M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurationSpec {
    /// Length in milliseconds.
    pub millis: u64,
}

impl DurationSpec {
    /// Parses text such as `5m`. A day has 24 hours.
    pub fn parse(text: &str) -> Result<Self, String> {
        let span: jiff::Span = text.parse().map_err(|_| format!("`{text}` is not a duration"))?;
        let duration = span
            .to_duration(jiff::SpanRelativeTo::days_are_24_hours())
            .map_err(|_| format!("`{text}` has no fixed length: months and years vary"))?;
        let millis = u64::try_from(duration.as_millis()).map_err(|_| format!("`{text}` is negative"))?;
        Ok(Self { millis })
    }
}

impl DurationSpec {
    /// The maximum: a thousand years. Longer durations would overflow dates.
    pub const MAX: Self = Self { millis: 31_556_952_000_000 };
    pub(crate) const HINT: &str =
        "write seconds (`90`), or text such as \"500ms\", \"5m\", \"1h 30m\", \"2 days\"";

    /// Parses a number of seconds or text.
    pub(crate) fn from_data(data: &Data) -> Result<Self, String> {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let max_seconds = Self::MAX.millis as f64 / 1000.0;
        match data {
            Data::Text(text) => Self::parse(text),
            Data::Number(number) => match number.as_f64() {
                Some(seconds) if (0.0..=max_seconds).contains(&seconds) =>
                {
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "range checked"
                    )]
                    Ok(Self { millis: (seconds * 1000.0).round() as u64 })
                }
                _ => Err(format!("{number} is not a number of seconds from 0 to a thousand years")),
            },
            _ => Err("a duration is a number or text".to_owned()),
        }
    }
}

impl FromNode for DurationSpec {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        let duration = Self::from_data(&node.data);
        duration.map_err(|reason| reader.invalid(node.span, reason, Self::HINT)).ok()
    }
}

impl Serialize for DurationSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.millis {
            whole if whole % 1000 == 0 => serializer.serialize_u64(whole / 1000),
            millis => serializer.serialize_str(&format!("{millis}ms")),
        }
    }
}

impl JsonSchema for DurationSpec {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description":
                "A duration of at most a thousand years. A day has 24 hours.",
            "anyOf": [
                { "type": "number", "minimum": 0, "description": "Seconds." },
                { "type": "string", "description": "With units, such as `500ms`, `5m`, `1h 30m`, `2 days` or `PT5M` (ISO 8601)." },
            ],
        })
    }
}

/// The time between repetitions as written: a duration, or text such as `every 2h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// Length in milliseconds.
    pub millis: u64,
}

impl FromNode for Interval {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        let duration = match node.as_text().and_then(|text| text.trim().strip_prefix("every ")) {
            Some(text) => DurationSpec::parse(text.trim()),
            None => DurationSpec::from_data(&node.data),
        };
        match duration {
            Ok(DurationSpec { millis }) => Some(Self { millis }),
            Err(reason) => {
                reader.invalid(node.span, reason, "write `every 2h`");
                None
            }
        }
    }
}

impl Serialize for Interval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        DurationSpec { millis: self.millis }.serialize(serializer)
    }
}

impl JsonSchema for Interval {
    fn schema_name() -> Cow<'static, str> {
        "Interval".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "The time between repetitions.",
            "anyOf": [
                { "type": "number", "minimum": 0, "description": "Seconds." },
                { "type": "string", "description": "A duration, such as `every 2h` or `2h`." },
            ],
        })
    }
}

/// The name of an MCP tool or server.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct ToolName(#[schemars(regex(pattern = r"^[A-Za-z0-9_.-]{1,128}$"))] pub String);

impl ToolName {
    /// Whether MCP allows the name for a tool.
    pub fn is_valid(name: &str) -> bool {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        (1..=128).contains(&name.len()) && name.bytes().all(allowed)
    }
}

impl FromNode for ToolName {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        let span = node.span;
        let name = String::from_node(node, reader)?;
        if Self::is_valid(&name) {
            return Some(Self(name));
        }
        let message = format!("`{name}` is not a tool name");
        reader.report(
            Diagnostic::new(Code::InvalidToolName, span, message)
                .hint("a tool name has 1 to 128 letters, digits, `_`, `-` or `.`; it cannot be a template"),
        );
        None
    }
}
