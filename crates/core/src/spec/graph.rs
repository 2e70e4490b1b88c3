//! Parses the graph form: steps by name, each with its transition.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::fields::{Fields, FromNode, Reader, Record, record};
use super::policy::Policy;
use super::step::{Common, Kind, KindName, Step, check_step_id, misspelt_kind};
use super::value::{Names, Spanned, Text};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Data, MapEntry, Node};
use crate::source::Span;

/// The steps of a graph, by name.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Graph {
    /// The first step. Default: the only step without an incoming transition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Text>,
    /// The steps, sorted by key.
    #[serde(serialize_with = "by_key")]
    pub steps: Vec<GraphStep>,
}

/// A step and its transition.
#[derive(Debug, Clone, Serialize)]
pub struct GraphStep {
    /// Its key in the map, which is an alias of its id.
    #[serde(skip)]
    pub key: Text,
    /// The transition to the next steps.
    #[serde(flatten)]
    pub transition: Transition,
    /// The step itself.
    #[serde(flatten)]
    pub step: Step,
}

record! {
    /// The transition of a step in the graph form: one of `next`, `branch`, `parallel`, `join` or `done`.
    pub struct Transition {
        /// The next step.
        next: Text,
        /// Conditional transitions. The first whose condition holds is taken.
        #[schemars(length(min = 1))]
        branch: Vec<GraphCase>,
        /// The next step if no condition of `branch` holds. Without it, the run fails with `no_branch_matched`.
        r#else: Text,
        /// First steps of branches that run in parallel. The branches meet at `join`.
        parallel: Names,
        /// The step at which parallel branches meet. It runs when all branches are done. Set `join` on the step with
        /// `parallel`, or on the last step of each branch.
        join: Text,
        /// Whether the run ends after this step.
        done: Spanned<bool>,
    }
}

record! {
    /// A conditional transition.
    pub struct GraphCase {
        /// Condition on `result`, the output of this step: `result == true`, `result != nil`,
        /// `result == "active"`, or any expression.
        r#if: Text,
        /// The next step if this is the first condition that holds.
        then: Text,
        /// The next step if no condition holds. It must be the only field of the last entry.
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
            let message = "`else` must be a separate entry, after those with `if` and `then`";
            reader.report(Diagnostic::new(Code::ConflictingFields, fields.span, message));
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

/// The keys that identify a map as a step of the graph form.
const STEP_KEYS: &[&str] = &["tool", "next", "branch", "parallel", "join", "done", "kind"];

/// Whether a value is certainly a step: it has an action and a transition.
pub(super) fn is_a_step(node: &Node) -> bool {
    let has = |keys: &[&str]| keys.iter().any(|key| node.get(key).is_some());
    has(&["tool", "kind"]) && has(&["next", "branch", "parallel", "join", "done"])
}

/// Whether a value has a key of a step.
pub(super) fn looks_like_a_step(node: &Node) -> bool {
    STEP_KEYS.iter().any(|key| node.get(key).is_some())
}

impl Graph {
    /// Parses the steps. The value of `start` is either the first step or its name.
    pub(super) fn read(entries: Vec<MapEntry>, start: Option<Text>, reader: &mut Reader) -> Self {
        let mut graph = Self { start, steps: Vec::with_capacity(entries.len()) };
        for entry in entries {
            let key = Text { value: entry.key.into(), span: entry.key_span };
            if key.value == "start" {
                if let Some(start) = graph.start.as_ref().filter(|start| start.value != "start") {
                    let message = "`start` is set both beside the steps and among them";
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
        // A list in `else` belongs to a `branch` step, a name to the transition.
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
                let message = "`id` and `name` cannot be used together";
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
            let message = "`depends_on` is not allowed in the graph form";
            let span = names.0.first().map_or(fields.span, |name| name.span);
            reader.report(
                Diagnostic::new(Code::UnknownKey, span, message).hint("use `next` on the preceding step"),
            );
        }
        transition.check(fields.span, reader);
        let implied = transition.fallback_kind(&mut fields);
        let fallback = if kind_is_written { misspelt.or(Some(KindName::Pass)) } else { implied };
        let mut known = Transition::KEYS.to_vec();
        known.push("name");
        let step = Step::read_rest(common, fallback, &known, fields, reader)?;
        Some(Self { key, transition, step })
    }
}

impl Transition {
    /// The kind of a step without a tool: `pass` if it has several next steps, otherwise `approve`.
    fn fallback_kind(&self, fields: &mut Fields) -> Option<KindName> {
        let tool_is_null = fields.has("tool") && !fields.is_set("tool");
        if tool_is_null {
            fields.take_node("tool");
        }
        if super::step::implied_kind(fields).is_some() {
            return None;
        }
        fields.drop_empty_map("args");
        let has_several = self.branch.is_some() || self.parallel.is_some();
        let kind = if has_several && !tool_is_null { KindName::Pass } else { KindName::Approve };
        // Any other field is most likely a misspelt `tool`.
        let fits = |key: &str| {
            Kind::keys(kind).contains(&key) || Policy::KEYS.contains(&key) || Common::KEYS.contains(&key)
        };
        (tool_is_null || fields.keys().all(|(key, _)| fits(key))).then_some(kind)
    }

    /// Whether the step has a transition.
    pub(crate) fn is_specified(&self) -> bool {
        let done = self.done.as_ref().is_some_and(|done| done.value);
        done || self.next.is_some() || self.branch.is_some() || self.parallel.is_some() || self.join.is_some()
    }

    /// Reports empty transitions, and `else` entries that are not last or beside an `else` of the step.
    fn check_entries(&self, span: Span, reader: &mut Reader) {
        let cases = self.branch.as_deref().unwrap_or_default();
        let last = cases.len().saturating_sub(1);
        let mut misplaced = cases.iter().enumerate().filter(|(at, _)| *at < last || self.r#else.is_some());
        if let Some(name) = misplaced.find_map(|(_, case)| case.r#else.as_ref()) {
            let message = "a branch can have one `else`: as its last entry or on the step";
            reader.report(Diagnostic::new(Code::ConflictingFields, name.span, message));
        }
        if self.branch.is_some() && cases.is_empty() {
            reader.report(Diagnostic::new(Code::MissingField, span, "`branch` needs at least one case"));
        }
        if self.parallel.as_ref().is_some_and(|names| names.0.is_empty()) {
            reader.report(Diagnostic::new(Code::MissingField, span, "`parallel` needs at least one step"));
        }
    }

    fn check(&self, span: Span, reader: &mut Reader) {
        self.check_entries(span, reader);
        let done = self.done.as_ref().is_some_and(|done| done.value);
        let transitions = [
            ("next", self.next.is_some()),
            ("branch", self.branch.is_some()),
            ("parallel", self.parallel.is_some()),
            ("done", done),
            ("join", self.join.is_some() && self.parallel.is_none()),
        ];
        let set: Vec<&str> = transitions.iter().filter(|(_, is_set)| *is_set).map(|(key, _)| *key).collect();
        let diagnostic = match set.as_slice() {
            // The last step of a parallel branch needs no transition if the fork has a `join`.
            [] => return,
            [_] if self.r#else.is_some() && self.branch.is_none() => {
                Diagnostic::new(Code::ConflictingFields, span, "`else` needs a `branch`")
            }
            [_] => return,
            [one, other, ..] => {
                let message =
                    format!("`{one}` and `{other}` cannot be used together: a step has one transition");
                Diagnostic::new(Code::ConflictingFields, span, message).hint("keep one of them")
            }
        };
        reader.report(diagnostic);
    }
}
