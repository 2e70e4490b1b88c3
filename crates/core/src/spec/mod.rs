//! Parses a definition into a [`Spec`]: typed, as written, without defaults.

pub(crate) mod fields;
pub mod graph;
pub mod head;
pub mod input;
pub mod policy;
pub mod publish;
pub mod reference;
pub mod result;
pub mod retry;
pub mod schema;
pub mod step;
pub mod value;

use serde::Serialize;

use crate::bounded_regex::RegexSet;
use crate::diagnostic::{Code, Diagnostic, Diagnostics};
use crate::document::{self, Data, MapEntry, Node};
use crate::source::{Source, Span};
use fields::{Fields, FromNode, Reader, Record};
use graph::Graph;
use head::Head;
use publish::Publish;
use step::Steps;
use value::Text;

/// A definition as written.
#[derive(Debug, Clone, Serialize)]
pub struct Spec {
    /// The fields beside the steps.
    #[serde(flatten)]
    pub head: Head,
    /// The steps.
    #[serde(flatten)]
    pub body: Body,
    /// Whether the definition has no `name`.
    #[serde(skip)]
    pub unnamed: bool,
    /// Position of diagnostics about the definition as a whole.
    #[serde(skip)]
    pub span: Span,
}

/// The steps, in one of the three forms.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Body {
    /// The tree and the DAG form: a list of steps.
    List {
        /// The steps.
        steps: Steps,
    },
    /// The graph form: steps by name.
    Graph(Graph),
}

impl Spec {
    /// Publishes the workflow as a tool, or stops publishing it.
    pub fn publish(&mut self, publish: bool) {
        let is_on = self.head.publish.as_ref().is_some_and(Publish::is_on);
        if is_on != publish {
            self.head.publish = publish.then_some(Publish::Plain(true));
        }
    }

    /// Serializes the definition as JSON that parses to the same definition. Fields are in the order of their
    /// declaration and maps are sorted by key, so equal definitions have equal text. The hash of a definition
    /// is the hash of this text.
    pub fn to_canonical_json(&self) -> String {
        // Serialization cannot fail: maps have text keys and numbers are finite.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Parses a definition in any of the three forms. Returns the parts that could be parsed even if there are
/// errors, so that these parts are checked too.
pub(crate) fn parse(source: &Source, out: &mut Diagnostics) -> Option<Spec> {
    let root = document::read(source, out)?;
    let span = Span::new(root.span.start as usize, root.span.start as usize + 1);
    let unnamed = root.get("name").is_none();
    let mut reader = Reader { out, step: None, steps: 0, depth: 0, regexes: RegexSet::default() };
    let (head, body) = match root.data {
        Data::List(_) => (Head::default(), Steps::from_node(root, &mut reader).map(list)),
        Data::Map(_) => read_map(root, &mut reader)?,
        Data::Null => {
            let diagnostic = Diagnostic::new(Code::MissingField, span, "the definition is empty");
            reader.report(diagnostic.hint(MINIMAL));
            return None;
        }
        _ => {
            reader.wrong_type(&root, "a definition (a map with `name` and `steps`, or a list of steps)");
            return None;
        }
    };
    head.check(&mut reader);
    Some(Spec { head, body: body?, unnamed, span })
}

fn list(steps: Steps) -> Body {
    Body::List { steps }
}

fn read_map(root: Node, reader: &mut Reader) -> Option<(Head, Option<Body>)> {
    let steps_is_map = matches!(root.get("steps"), Some(Node { data: Data::Map(_), .. }));
    if root.get("steps").is_none() && root.get("flow").is_none() && is_bare_graph(&root) {
        return read_bare_graph(root, reader);
    }
    let mut fields = Fields::open(root, "a definition", reader)?;
    let head = Head::read(&mut fields, reader);
    // Editors find the JSON Schema by this key.
    fields.take_node("$schema");
    fields.conflict(["steps", "flow"], reader);
    let body = if let Some(flow) = fields.take_node(if steps_is_map { "steps" } else { "flow" }) {
        let start = fields.take("start", reader);
        read_graph(flow.value, start, reader)
    } else {
        fields.require("steps", reader);
        if let Some(start) = fields.take_node("start") {
            let message = "`start` is only allowed in the graph form; a list starts with its first step";
            reader
                .report(Diagnostic::new(Code::ConflictingFields, start.key_span, message).hint("remove it"));
        }
        fields.take("steps", reader).map(list)
    };
    ["steps", "flow"].into_iter().for_each(|key| drop(fields.take_node(key)));
    fields.finish([Head::KEYS, &["steps", "flow", "start"]], reader);
    Some((head, body))
}

fn read_graph(flow: Node, start: Option<Text>, reader: &mut Reader) -> Option<Body> {
    if flow.get("id").or(flow.get("tool")).is_some_and(|value| value.as_text().is_some()) {
        let message = "expected a list of steps, or a map of name to step; this is one step";
        let span = Span { end: flow.span.start + 1, ..flow.span };
        reader.report(Diagnostic::new(Code::WrongType, span, message).hint("put `- ` before the step"));
        return None;
    }
    let fields = Fields::open(flow, "a graph of steps", reader)?;
    Some(Body::Graph(Graph::read(fields.rest(), start, reader)))
}

/// Whether the definition is a graph whose steps are at the top level, beside the fields of the definition.
fn is_bare_graph(root: &Node) -> bool {
    let Data::Map(entries) = &root.data else { return false };
    let is_head = |entry: &MapEntry| Head::KEYS.contains(&&*entry.key);
    entries
        .iter()
        .any(|entry| &*entry.key == "start" || (!is_head(entry) && graph::looks_like_a_step(&entry.value)))
}

fn read_bare_graph(root: Node, reader: &mut Reader) -> Option<(Head, Option<Body>)> {
    let Data::Map(entries) = root.data else { return None };
    let is_step = |entry: &MapEntry| match &*entry.key {
        "start" => true,
        key if Head::KEYS.contains(&key) => graph::is_a_step(&entry.value),
        _ => matches!(entry.value.data, Data::Map(_)),
    };
    let (steps, head): (Vec<MapEntry>, Vec<MapEntry>) = entries.into_iter().partition(is_step);
    let mut fields = Fields::open(Node { span: root.span, data: Data::Map(head) }, "a definition", reader)?;
    let head = Head::read(&mut fields, reader);
    fields.take_node("$schema");
    fields.finish([Head::KEYS, &["start", "steps", "flow"]], reader);
    Some((head, Some(Body::Graph(Graph::read(steps, None, reader)))))
}

const MINIMAL: &str = "a minimal definition: `{name: hello, steps: [{id: greet, tool: demo__echo}]}`";

/// The diagnostic of a definition without steps.
pub(crate) fn no_steps(span: Span) -> Diagnostic {
    Diagnostic::new(Code::MissingField, span, "the definition has no steps").hint(MINIMAL)
}
