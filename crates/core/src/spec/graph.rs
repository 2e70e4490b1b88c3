//! The graph form: steps by name, each saying where it leads.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::fields::{Fields, FromNode, Reader, Record, record};
use super::policy::Policy;
use super::step::{Common, Kind, KindName, Step, check_step_id, misspelt_kind};
use super::value::{Names, Spanned, Text};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Data, Entry, Node};
use crate::source::Span;

/// Steps by name, with the one to start at.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Graph {
    /// The step to start at. Without it, the one that no other leads to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Text>,
    /// The steps, sorted by key.
    #[serde(serialize_with = "by_key")]
    pub steps: Vec<GraphStep>,
}

/// A step and where it leads.
#[derive(Debug, Clone, Serialize)]
pub struct GraphStep {
    /// The key under which it stands: another spelling of its id.
    #[serde(skip)]
    pub key: Text,
    /// Where it leads.
    #[serde(flatten)]
    pub transition: Transition,
    /// What it does.
    #[serde(flatten)]
    pub step: Step,
}

record! {
    /// Where a step of the graph form leads: to one of `next`, `branch`, `parallel`, `join` or `done`.
    pub struct Transition {
        /// The step that follows.
        next: Text,
        /// The steps that may follow: the first whose condition holds does.
        #[schemars(length(min = 1))]
        branch: Vec<GraphCase>,
        /// The step that follows if no condition of `branch` holds.
        r#else: Text,
        /// The steps that follow at the same time.
        parallel: Names,
        /// The step at which parallel branches meet; on the step with `parallel`, or on the last step of
        /// each branch. Where the fork says it, its branches need not.
        join: Text,
        /// The run is complete after this step.
        done: Spanned<bool>,
    }
}

record! {
    /// A condition and the step it leads to.
    pub struct GraphCase {
        /// A condition on `result`, the output of this step: `result == true`, `result != nil`,
        /// `result == "active"`, or any expression.
        r#if: Text,
        /// The step that follows if it is the first that holds.
        then: Text,
        /// The step that follows if no condition holds; it stands alone, as the last entry.
        r#else: Text,
    }
}

impl FromNode for GraphCase {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        let mut fields = Fields::open(node, "a case of `branch`", reader)?;
        if !fields.is_set("else") {
            fields.require("if", reader);
            fields.require("then", reader);
        } else if fields.is_set("if") || fields.is_set("then") {
            let message = "`else` stands in an entry of its own, after those with `if` and `then`";
            reader.report(Diagnostic::new(Code::ConflictingFields, fields.place, message));
        }
        let case = Self::read(&mut fields, reader);
        fields.finish([Self::KEYS], reader);
        Some(case)
    }
}

fn by_key<S: Serializer>(steps: &[GraphStep], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(steps.len()))?;
    steps.iter().try_for_each(|step| map.serialize_entry(&step.key.value, step))?;
    map.end()
}

/// The keys that only a step of the graph form has, or that mark one.
const STEP_MARKS: &[&str] = &["tool", "next", "branch", "parallel", "join", "done", "kind"];

/// Whether a value can hardly be anything but a step: it says what it does and where it leads.
pub(super) fn is_a_step(node: &Node) -> bool {
    let has = |keys: &[&str]| keys.iter().any(|key| node.get(key).is_some());
    has(&["tool", "kind"]) && has(&["next", "branch", "parallel", "join", "done"])
}

/// Whether a value looks like a step of the graph form.
pub(super) fn looks_like_a_step(node: &Node) -> bool {
    STEP_MARKS.iter().any(|key| node.get(key).is_some())
}

impl Graph {
    /// Reads steps by name. Under `start` stands either the first step or the name of it.
    pub(super) fn read(entries: Vec<Entry>, start: Option<Text>, reader: &mut Reader) -> Self {
        let mut graph = Self { start, steps: Vec::with_capacity(entries.len()) };
        for entry in entries {
            let key = Text { value: entry.key.into(), span: entry.key_span };
            if key.value == "start" {
                if let Some(start) = graph.start.as_ref().filter(|start| start.value != "start") {
                    let message = "`start` beside the steps and among them both say where a run starts";
                    reader.report(
                        Diagnostic::new(Code::ConflictingFields, start.span, message)
                            .hint("keep one of them"),
                    );
                }
                if let Data::Text(name) = entry.value.data {
                    graph.start = Some(Text { value: name.into(), span: entry.value.span });
                    continue;
                }
                graph.start = Some(key.clone());
            }
            graph.steps.extend(GraphStep::read(key, entry.value, reader));
        }
        graph.steps.sort_by(|a, b| a.key.value.cmp(&b.key.value));
        graph
    }
}

impl GraphStep {
    fn read(key: Text, node: Node, reader: &mut Reader) -> Option<Self> {
        reader.step = Some(key.value.clone());
        let step = Self::read_named(key, node, reader);
        reader.step = None;
        step
    }

    fn read_named(key: Text, node: Node, reader: &mut Reader) -> Option<Self> {
        let mut fields = Fields::open(node, "a step", reader)?;
        // A list under `else` belongs to a `branch` step, a name to the transition.
        let else_steps = fields.take_list("else");
        let transition = Transition::read(&mut fields, reader);
        fields.put_back(else_steps);
        let misspelt = misspelt_kind(&fields);
        let kind_is_written = fields.is_set("kind");
        let mut common = Common::read(&mut fields, reader);
        if common.kind.as_ref().is_none_or(|kind| kind.value != KindName::Workflow)
            && let Some(name) = fields.take::<Text>("name", reader)
        {
            if common.id.is_some() {
                let message = "`id` and `name` both say what the step is called";
                reader.report(
                    Diagnostic::new(Code::ConflictingFields, name.span, message).hint("keep one of them"),
                );
            }
            common.id.get_or_insert(name);
        }
        let id = common.id.get_or_insert_with(|| key.clone());
        check_step_id(Some(&id.value), id.span, reader);
        reader.step = Some(id.value.clone());
        if let Some(names) = &common.depends_on {
            let message = "`depends_on` means nothing in the graph form";
            let place = names.0.first().map_or(fields.place, |name| name.span);
            reader.report(
                Diagnostic::new(Code::UnknownKey, place, message).hint("use `next` on the step before"),
            );
        }
        transition.check(fields.place, reader);
        let implied = transition.fallback_kind(&mut fields);
        let fallback = if kind_is_written { misspelt.or(Some(KindName::Pass)) } else { implied };
        let mut known = Transition::KEYS.to_vec();
        known.push("name");
        let step = Step::read_rest(common, fallback, &known, fields, reader)?;
        Some(Self { key, transition, step })
    }
}

impl Transition {
    /// What a step without a tool is: a gate, or a mere fork or fan if it leads to several steps.
    fn fallback_kind(&self, fields: &mut Fields) -> Option<KindName> {
        let says_no_tool = fields.has("tool") && !fields.is_set("tool");
        if says_no_tool {
            fields.take_node("tool");
        }
        if super::step::told_kind(fields).is_some() {
            return None;
        }
        fields.take_empty_map("args");
        let only_leads_on = self.branch.is_some() || self.parallel.is_some();
        let kind = if only_leads_on && !says_no_tool { KindName::Pass } else { KindName::Approve };
        // Another field most likely is a misspelt `tool`.
        let fits = |key: &str| {
            Kind::keys(kind).contains(&key) || Policy::KEYS.contains(&key) || Common::KEYS.contains(&key)
        };
        (says_no_tool || fields.keys().all(|(key, _)| fits(key))).then_some(kind)
    }

    /// Whether anything says where the step leads.
    pub(crate) fn leads_on(&self) -> bool {
        let done = self.done.as_ref().is_some_and(|done| done.value);
        done || self.next.is_some() || self.branch.is_some() || self.parallel.is_some() || self.join.is_some()
    }

    /// The `else` entries of a branch other than the last entry, and beside an `else` on the step.
    fn check_else(&self, place: Span, reader: &mut Reader) {
        let cases = self.branch.as_deref().unwrap_or_default();
        let last = cases.len().saturating_sub(1);
        let mut misplaced = cases.iter().enumerate().filter(|(at, _)| *at < last || self.r#else.is_some());
        if let Some(name) = misplaced.find_map(|(_, case)| case.r#else.as_ref()) {
            let message = "a branch has one `else`, as its last entry or on the step";
            reader.report(Diagnostic::new(Code::ConflictingFields, name.span, message));
        }
        if self.branch.is_some() && cases.is_empty() {
            reader.report(Diagnostic::new(Code::MissingField, place, "`branch` needs at least one case"));
        }
        if self.parallel.as_ref().is_some_and(|names| names.0.is_empty()) {
            reader.report(Diagnostic::new(Code::MissingField, place, "`parallel` needs at least one step"));
        }
    }

    fn check(&self, place: Span, reader: &mut Reader) {
        self.check_else(place, reader);
        let done = self.done.as_ref().is_some_and(|done| done.value);
        let ways = [
            ("next", self.next.is_some()),
            ("branch", self.branch.is_some()),
            ("parallel", self.parallel.is_some()),
            ("done", done),
            ("join", self.join.is_some() && self.parallel.is_none()),
        ];
        let given: Vec<&str> = ways.iter().filter(|(_, is_given)| *is_given).map(|(key, _)| *key).collect();
        let diagnostic = match given.as_slice() {
            // The last step of a branch need not say that it leads to the `join`.
            [] => return,
            [_] if self.r#else.is_some() && self.branch.is_none() => {
                Diagnostic::new(Code::ConflictingFields, place, "`else` belongs to a `branch`")
            }
            [_] => return,
            [one, other, ..] => {
                let message = format!("`{one}` and `{other}` both say where this step leads");
                Diagnostic::new(Code::ConflictingFields, place, message).hint("keep one of them")
            }
        };
        reader.report(diagnostic);
    }
}
