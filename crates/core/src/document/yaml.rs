//! Parses a YAML document into a tree. Resolves aliases and merge keys within limits.

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Tag};

use super::scalar::{Scalar, resolve};
use super::{Data, MapEntry, Node, NodeCount, ReadResult, too_deep, without_duplicates};
use crate::diagnostic::{Code, Diagnostic};
use crate::limits;
use crate::source::Span;

pub(super) fn read(text: &str) -> ReadResult {
    let offsets = Offsets::new(text);
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| syntax_error(&error, &offsets))?;
        let span = Span::new(offsets.byte(span.start.index()), offsets.byte(span.end.index()));
        builder.event(event, span)?;
    }
    let node = builder.root.unwrap_or_default();
    Ok((node, builder.problems))
}

/// Converts the character offsets of the parser to byte offsets.
struct Offsets {
    /// The byte offset of each character; `None` for ASCII text.
    bytes: Option<Vec<u32>>,
    length: usize,
}

impl Offsets {
    fn new(text: &str) -> Self {
        let bytes = (!text.is_ascii())
            .then(|| text.char_indices().map(|(byte, _)| Span::new(byte, byte).start).collect());
        Self { bytes, length: text.len() }
    }

    fn byte(&self, character: usize) -> usize {
        match &self.bytes {
            Some(bytes) => bytes.get(character).map_or(self.length, |byte| *byte as usize),
            None => character.min(self.length),
        }
    }
}

fn syntax_error(error: &ScanError, offsets: &Offsets) -> Box<Diagnostic> {
    let at = offsets.byte(error.marker().index());
    if error.info().contains("recursion limit") {
        // The parser reads ahead, so its own limit on nesting can be exceeded before ours.
        return too_deep(Span::new(at, at + 1));
    }
    let message = format!("not valid YAML: {}", error.info());
    Box::new(Diagnostic::new(Code::InvalidSyntax, Span::new(at, at + 1), message).hint(
        "check indentation, quotes and brackets here and in the line above; text with `: `, `#` or a leading `{` needs quotes",
    ))
}

/// A list or map that is still open.
struct Open {
    span: Span,
    anchor: usize,
    kind: OpenKind,
}

enum OpenKind {
    List(Vec<Node>),
    Map {
        entries: Vec<MapEntry>,
        /// The key whose value is parsed next.
        key: Option<Key>,
        /// The values of `<<` keys.
        merges: Vec<Node>,
    },
}

struct Key {
    text: Box<str>,
    span: Span,
    /// Whether the key is an unquoted `<<`.
    merges: bool,
}

/// A complete value with an anchor, and its size and depth.
struct Anchor {
    node: Node,
    nodes: usize,
    depth: usize,
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    documents: usize,
    anchors: HashMap<usize, Anchor>,
    nodes: NodeCount,
    alias_nodes: usize,
    problems: Vec<Diagnostic>,
}

impl Builder {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Box<Diagnostic>> {
        match event {
            Event::DocumentStart(_) => self.document(span),
            Event::Scalar(text, style, anchor, tag) => {
                self.nodes.add(1, span)?;
                if self.wants_key() {
                    let merges = style == ScalarStyle::Plain && text == "<<";
                    self.key(Key { text: text.into(), span, merges });
                    return Ok(());
                }
                let data = self.scalar(&text, style, tag.as_deref(), span)?;
                self.value(Node { span, data }, anchor)
            }
            Event::Alias(anchor) => self.alias(anchor, span),
            Event::SequenceStart(anchor, tag) => {
                self.start(OpenKind::List(Vec::new()), anchor, tag.as_deref(), span)
            }
            Event::MappingStart(anchor, tag) => self.start(
                OpenKind::Map { entries: Vec::new(), key: None, merges: Vec::new() },
                anchor,
                tag.as_deref(),
                span,
            ),
            Event::SequenceEnd | Event::MappingEnd => self.end(span),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    fn document(&mut self, span: Span) -> Result<(), Box<Diagnostic>> {
        self.documents += 1;
        if self.documents == 1 {
            return Ok(());
        }
        let message = "a second YAML document starts here; a definition is one document";
        Err(Box::new(
            Diagnostic::new(Code::InvalidSyntax, span, message)
                .hint("move it to a separate file, or remove `---`"),
        ))
    }

    fn wants_key(&self) -> bool {
        matches!(self.open.last(), Some(Open { kind: OpenKind::Map { key: None, .. }, .. }))
    }

    fn key(&mut self, next: Key) {
        if let Some(Open { kind: OpenKind::Map { key, .. }, .. }) = self.open.last_mut() {
            *key = Some(next);
        }
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        span: Span,
    ) -> Result<Data, Box<Diagnostic>> {
        let is_text = match tag {
            Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => true,
            Some(tag) => return Err(unknown_tag(tag, span)),
            None => style != ScalarStyle::Plain,
        };
        if is_text {
            return Ok(Data::Text(text.into()));
        }
        match resolve(text) {
            Scalar::Plain(data) => Ok(data),
            Scalar::Ambiguous(data) => {
                let number = match &data {
                    Data::Number(number) => number.to_string(),
                    _ => text.to_owned(),
                };
                let message = format!("`{text}` is read as the number {number}");
                self.problems
                    .push(Diagnostic::new(Code::AmbiguousNumber, span, message).hint(format!(
                        "write \"{text}\" if it is text, or the number without leading zeros"
                    )));
                Ok(data)
            }
            Scalar::NotFinite => {
                let message = format!("JSON cannot represent the number `{text}`");
                self.problems
                    .push(Diagnostic::new(Code::InvalidValue, span, message).hint("quote it if it is text"));
                Ok(Data::Null)
            }
        }
    }

    fn start(
        &mut self,
        kind: OpenKind,
        anchor: usize,
        tag: Option<&Tag>,
        span: Span,
    ) -> Result<(), Box<Diagnostic>> {
        self.nodes.add(1, span)?;
        if let Some(tag) = tag {
            return Err(unknown_tag(tag, span));
        }
        if self.wants_key() {
            return Err(Box::new(
                Diagnostic::new(Code::WrongType, span, "a list or map cannot be a key")
                    .hint("quote the value if it starts with `{{`: \"{{inputs.x}}\""),
            ));
        }
        if self.open.len() >= limits::DOCUMENT_DEPTH {
            return Err(too_deep(span));
        }
        self.open.push(Open { span, anchor, kind });
        Ok(())
    }

    fn end(&mut self, end: Span) -> Result<(), Box<Diagnostic>> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let data = match open.kind {
            OpenKind::List(items) => Data::List(items),
            OpenKind::Map { entries, merges, .. } => {
                let entries = without_duplicates(entries, &mut self.problems);
                Data::Map(merged(entries, merges)?)
            }
        };
        let span = Span { start: open.span.start, end: end_of(&data, end).max(open.span.end) };
        self.value(Node { span, data }, open.anchor)
    }

    /// Adds a complete value to the innermost open list or map.
    fn value(&mut self, node: Node, anchor: usize) -> Result<(), Box<Diagnostic>> {
        if anchor > 0 {
            let (nodes, depth) = measure(&node);
            self.anchors.insert(anchor, Anchor { node: node.clone(), nodes, depth });
            self.nodes.add(nodes, node.span)?;
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open { kind: OpenKind::List(items), .. }) => items.push(node),
            Some(Open { kind: OpenKind::Map { entries, key, merges }, .. }) => match key.take() {
                Some(key) if key.merges => merges.push(node),
                Some(key) => entries.push(MapEntry { key: key.text, key_span: key.span, value: node }),
                None => {}
            },
        }
        Ok(())
    }

    fn alias(&mut self, anchor: usize, span: Span) -> Result<(), Box<Diagnostic>> {
        if self.wants_key() {
            return Err(Box::new(Diagnostic::new(Code::WrongType, span, "an alias cannot be a key")));
        }
        let Some(target) = self.anchors.get(&anchor) else {
            let message = "an alias cannot refer to the value that contains it";
            return Err(Box::new(Diagnostic::new(Code::InvalidSyntax, span, message)));
        };
        if self.open.len() + target.depth > limits::DOCUMENT_DEPTH {
            return Err(too_deep(span));
        }
        self.alias_nodes += target.nodes;
        if self.alias_nodes > limits::ALIAS_NODES {
            let message = format!("aliases repeat more than {} keys and values", limits::ALIAS_NODES);
            let diagnostic = Diagnostic::new(Code::LimitExceeded, span, message);
            return Err(Box::new(
                diagnostic.hint("use a `foreach` or a sub-workflow instead of repeating a block"),
            ));
        }
        let node = target.node.clone();
        self.value(node, 0)
    }
}

/// Applies `<<: *base`, or a list of bases. Keys of the map itself take precedence, then earlier bases.
fn merged(mut entries: Vec<MapEntry>, merges: Vec<Node>) -> Result<Vec<MapEntry>, Box<Diagnostic>> {
    if merges.is_empty() {
        return Ok(entries);
    }
    let mut keys: HashSet<Box<str>> = entries.iter().map(|entry| entry.key.clone()).collect();
    let bases = merges.into_iter().flat_map(|merge| match merge.data {
        Data::List(bases) => bases,
        _ => vec![merge],
    });
    for base in bases {
        let Data::Map(inherited) = base.data else {
            let message = "`<<` must be a map or a list of maps";
            return Err(Box::new(Diagnostic::new(Code::WrongType, base.span, message)));
        };
        entries.extend(inherited.into_iter().filter(|entry| keys.insert(entry.key.clone())));
    }
    Ok(entries)
}

/// Returns the end of a list or map. In block style, the position of the end event is that of the next
/// token, so the end of the last value is used instead.
fn end_of(data: &Data, end_event: Span) -> u32 {
    let closed_by_bracket = end_event.end > end_event.start;
    let last = match data {
        Data::List(items) => items.last().map(|item| item.span.end),
        Data::Map(entries) => entries.last().map(|entry| entry.value.span.end.max(entry.key_span.end)),
        _ => None,
    };
    if closed_by_bracket { end_event.end } else { last.unwrap_or_default() }
}

fn unknown_tag(tag: &Tag, span: Span) -> Box<Diagnostic> {
    let message = format!("the YAML tag `{}{}` is not supported", tag.handle, tag.suffix);
    Box::new(
        Diagnostic::new(Code::InvalidSyntax, span, message).hint("remove it; quote a value to make it text"),
    )
}

/// Returns the number of keys and values in a tree, and its depth.
fn measure(node: &Node) -> (usize, usize) {
    let children: Vec<(usize, usize)> = match &node.data {
        Data::List(items) => items.iter().map(measure).collect(),
        Data::Map(entries) => {
            entries.iter().map(|entry| measure(&entry.value)).map(|(n, d)| (n + 1, d)).collect()
        }
        _ => return (1, 0),
    };
    let nodes = children.iter().map(|(nodes, _)| nodes).sum::<usize>() + 1;
    (nodes, children.iter().map(|(_, depth)| depth).max().unwrap_or(&0) + 1)
}
