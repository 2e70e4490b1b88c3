//! Parses JSON into a tree.
//!
//! `serde_json` does the parsing. A borrowed [`RawValue`] is a slice of the text, so its address
//! determines its position.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{Data, MapEntry, Node, NodeCount, ReadResult, too_deep, without_duplicates};
use crate::diagnostic::{Code, Diagnostic};
use crate::limits;
use crate::source::Span;

pub(super) fn read(text: &str) -> ReadResult {
    let mut reader = Reader { text, nodes: NodeCount::default(), problems: Vec::new() };
    // This pass finds the syntax errors, with lines and columns of the whole text.
    let raw = serde_json::from_str::<&RawValue>(text).map_err(|error| {
        let hint = "JSON allows no comments and no trailing commas; to use them, write the file as YAML";
        Box::new(syntax_error(text, &error, 0).hint(hint))
    })?;
    let node = reader.node(raw.get(), 0)?;
    Ok((node, reader.problems))
}

struct Reader<'t> {
    text: &'t str,
    nodes: NodeCount,
    problems: Vec<Diagnostic>,
}

impl<'t> Reader<'t> {
    fn node(&mut self, raw: &'t str, depth: usize) -> Result<Node, Box<Diagnostic>> {
        let span = self.span(raw);
        self.nodes.add(1, span)?;
        let data = match raw.as_bytes().first() {
            Some(b'{' | b'[') if depth >= limits::DOCUMENT_DEPTH => return Err(too_deep(span)),
            Some(b'{') => self.map(raw, depth)?,
            Some(b'[') => {
                let items: Vec<&RawValue> = self.parse(raw)?;
                let nodes = items.into_iter().map(|item| self.node(item.get(), depth + 1));
                Data::List(nodes.collect::<Result<_, _>>()?)
            }
            Some(b'"') => Data::Text(self.parse(raw)?),
            Some(b't' | b'f') => Data::Bool(self.parse(raw)?),
            Some(b'n') => Data::Null,
            // YAML integers have no negative zero.
            _ if raw == "-0" => Data::Number(0.into()),
            _ => Data::Number(self.parse(raw)?),
        };
        Ok(Node { span, data })
    }

    fn map(&mut self, raw: &'t str, depth: usize) -> Result<Data, Box<Diagnostic>> {
        let Pairs(pairs) = self.parse(raw)?;
        let mut entries = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            let key_span = self.span(key.get());
            self.nodes.add(1, key_span)?;
            let value = self.node(value.get(), depth + 1)?;
            entries.push(MapEntry { key: self.parse(key.get())?, key_span, value });
        }
        Ok(Data::Map(without_duplicates(entries, &mut self.problems)))
    }

    /// Parses a part of the text that the first pass accepted. The remaining errors are inside strings and
    /// numbers: a lone surrogate, an exponent out of range.
    fn parse<T: Deserialize<'t>>(&self, raw: &'t str) -> Result<T, Box<Diagnostic>> {
        serde_json::from_str(raw).map_err(|error| Box::new(syntax_error(self.text, &error, self.offset(raw))))
    }

    fn span(&self, raw: &str) -> Span {
        let start = self.offset(raw);
        Span::new(start, start + raw.len())
    }

    fn offset(&self, raw: &str) -> usize {
        raw.as_ptr().addr() - self.text.as_ptr().addr()
    }
}

fn syntax_error(text: &str, error: &serde_json::Error, offset: usize) -> Diagnostic {
    let part = &text[offset..];
    let line_start = part.match_indices('\n').nth(error.line().saturating_sub(2)).map_or(0, |(at, _)| at + 1);
    let line_start = if error.line() < 2 { 0 } else { line_start };
    let start = (offset + line_start + error.column().saturating_sub(1)).min(text.len());
    let message = error.to_string();
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
    Diagnostic::new(Code::InvalidSyntax, Span::new(start, start + 1), format!("not valid JSON: {message}"))
}

/// The entries of a map in source order, including duplicates.
struct Pairs<'t>(Vec<(&'t RawValue, &'t RawValue)>);

impl<'t> Deserialize<'t> for Pairs<'t> {
    fn deserialize<D: Deserializer<'t>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;

        impl<'t> Visitor<'t> for PairsVisitor {
            type Value = Pairs<'t>;

            fn expecting(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
                out.write_str("a map")
            }

            fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(PairsVisitor)
    }
}
