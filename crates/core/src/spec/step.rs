//! Parses a step: the common fields, the policies and the fields of its kind.

use schemars::JsonSchema;
use serde::Serialize;

use super::fields::{Fields, FromNode, Reader, Record, choice, record};
use super::policy::Policy;
use super::value::{Names, Spanned, Text};
use crate::diagnostic::{Code, Diagnostic, nearest};
use crate::document::{Data, Node};
use crate::limits;
use crate::source::Span;
use crate::steps::{Approve, Branch, Foreach, Let, Parallel, Sleep, Tool, Wait, Workflow};

choice! {
    /// The kind of a step.
    pub enum KindName {
        /// Calls a tool.
        Tool = "tool",
        /// Calls a tool of the server named by `dcc`.
        ToolRemote = "tool_remote",
        /// Runs steps once per item.
        Foreach = "foreach",
        /// Runs branches in parallel.
        Parallel = "parallel",
        /// Runs one of several lists of steps.
        Branch = "branch",
        /// Waits for an approval by a human.
        Approve = "approve",
        /// Waits for a duration or until a timestamp.
        Sleep = "sleep",
        /// Waits for a signal.
        Wait = "wait",
        /// Runs another workflow.
        Workflow = "workflow",
        /// Computes values.
        Let = "let",
        /// Does nothing except to continue with the next step.
        Pass = "pass",
    }
}

record! {
    /// The fields that all kinds of steps have.
    pub struct Common {
        /// Id of the step, unique in the definition.
        id: Text,
        /// Kind of the step. It can be omitted if other fields imply it.
        kind: Spanned<KindName>,
        /// What the step does, for users.
        description: Text,
        /// Steps that must complete before this one starts. A list of steps in which one has `depends_on` is a DAG
        /// instead of a sequence.
        depends_on: Names,
        /// Names of outputs, which later steps read as `$name`: the value of that key in the output of the step. If one
        /// name is declared and the output has no such key, it is the whole output.
        outputs: Names,
    }
}

/// One step.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// The fields of all kinds.
    #[serde(flatten)]
    pub common: Common,
    /// The policies.
    #[serde(flatten)]
    pub policy: Policy,
    /// The fields of its kind.
    #[serde(flatten)]
    pub kind: Kind,
    /// Position of diagnostics about the step as a whole.
    #[serde(skip)]
    pub span: Span,
}

/// The kind of a step with its fields.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Kind {
    /// `tool` and `tool_remote`
    Tool(Tool),
    /// `foreach`
    Foreach(Foreach),
    /// `parallel`
    Parallel(Parallel),
    /// `branch`
    Branch(Branch),
    /// `approve`
    Approve(Approve),
    /// `sleep`
    Sleep(Sleep),
    /// `wait`
    Wait(Wait),
    /// `workflow`
    Workflow(Workflow),
    /// `let`
    Let(Let),
    /// `pass`
    Pass(Pass),
}

/// A step without an action of its own.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Pass {}

impl Kind {
    /// Parses the fields of a kind.
    fn read(kind: KindName, fields: &mut Fields, reader: &mut Reader) -> Self {
        match kind {
            KindName::Tool | KindName::ToolRemote => Self::Tool(Tool::read_as(kind, fields, reader)),
            KindName::Foreach => Self::Foreach(Record::read(fields, reader)),
            KindName::Parallel => Self::Parallel(Parallel::read_checked(fields, reader)),
            KindName::Branch => Self::Branch(Branch::read_checked(fields, reader)),
            KindName::Approve => Self::Approve(Record::read(fields, reader)),
            KindName::Sleep => Self::Sleep(Sleep::read_checked(fields, reader)),
            KindName::Wait => Self::Wait(Record::read(fields, reader)),
            KindName::Workflow => Self::Workflow(Record::read(fields, reader)),
            KindName::Let => Self::Let(Record::read(fields, reader)),
            KindName::Pass => Self::Pass(Pass {}),
        }
    }

    /// The keys of a kind.
    pub(crate) fn keys(kind: KindName) -> &'static [&'static str] {
        match kind {
            KindName::Tool | KindName::ToolRemote => Tool::KEYS,
            KindName::Foreach => Foreach::KEYS,
            KindName::Parallel => Parallel::KEYS,
            KindName::Branch => Branch::KEYS,
            KindName::Approve => Approve::KEYS,
            KindName::Sleep => Sleep::KEYS,
            KindName::Wait => Wait::KEYS,
            KindName::Workflow => Workflow::KEYS,
            KindName::Let => Let::KEYS,
            KindName::Pass => &[],
        }
    }
}

/// The fields that imply a kind, in order of precedence.
pub(crate) const IMPLIED_KINDS: &[(&str, KindName)] = &[
    ("items", KindName::Foreach),
    ("branches", KindName::Parallel),
    ("on", KindName::Branch),
    ("cases", KindName::Branch),
    ("prompt", KindName::Approve),
    ("notify_user", KindName::Approve),
    ("dcc", KindName::ToolRemote),
    ("tool", KindName::Tool),
    ("action", KindName::Tool),
    ("agent", KindName::Tool),
    ("event", KindName::Wait),
    ("for", KindName::Sleep),
    ("until", KindName::Sleep),
    ("let", KindName::Let),
    // `if` alone is a condition of any step.
    ("then", KindName::Branch),
];

/// The kind that the fields of a step imply, if any.
pub(crate) fn implied_kind(fields: &Fields) -> Option<KindName> {
    IMPLIED_KINDS.iter().find(|(key, _)| fields.is_set(key)).map(|(_, kind)| *kind)
}

/// The kind with an article, for messages.
fn subject(kind: KindName) -> &'static str {
    match kind {
        KindName::Tool => "a `tool` step",
        KindName::ToolRemote => "a `tool_remote` step",
        KindName::Foreach => "a `foreach` step",
        KindName::Parallel => "a `parallel` step",
        KindName::Branch => "a `branch` step",
        KindName::Approve => "an `approve` step",
        KindName::Sleep => "a `sleep` step",
        KindName::Wait => "a `wait` step",
        KindName::Workflow => "a `workflow` step",
        KindName::Let => "a `let` step",
        KindName::Pass => "a `pass` step",
    }
}

impl FromNode for Step {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        let mut fields = Fields::open(node, "a step", reader)?;
        let outer = std::mem::take(&mut reader.step);
        let fallback = misspelt_kind(&fields);
        let kind_is_written = fields.is_set("kind");
        reader.step = fields.text("id").map(str::to_owned);
        let id_is_unreadable = fields.is_set("id") && fields.text("id").is_none();
        let common = Common::read(&mut fields, reader);
        let (id, span) = common.id.as_ref().map_or((None, fields.span), |id| (Some(id.as_str()), id.span));
        if !id_is_unreadable {
            check_step_id(id, span, reader);
        }
        // An unknown kind was reported already; the other fields cannot be checked without it.
        let is_unknown = kind_is_written && common.kind.is_none() && fallback.is_none();
        let step = if is_unknown && implied_kind(&fields).is_none() {
            Some(Self::placeholder(common, fields.span))
        } else {
            Self::read_rest(common, fallback, &[], fields, reader)
        };
        reader.step = outer;
        step
    }
}

impl Step {
    /// Parses everything except the common fields. `fallback` is the kind if the fields imply none;
    /// `extra` are keys that the caller has parsed already.
    pub(crate) fn read_rest(
        common: Common,
        fallback: Option<KindName>,
        extra: &[&'static str],
        mut fields: Fields,
        reader: &mut Reader,
    ) -> Option<Self> {
        reader.steps += 1;
        if reader.steps > limits::STEPS {
            if reader.steps == limits::STEPS + 1 {
                let message = format!("the definition has more than {} steps", limits::STEPS);
                let diagnostic = Diagnostic::new(Code::LimitExceeded, fields.span, message);
                reader.report(diagnostic.hint("use a `foreach`, or move parts into sub-workflows"));
            }
            return None;
        }
        let span = common.id.as_ref().map_or(fields.span, |id| id.span);
        let written = common.kind.as_ref().map(|kind| kind.value);
        let Some(kind) = written.or_else(|| implied_kind(&fields)).or(fallback) else {
            report_unknown_kind(fields, reader);
            return Some(Self::placeholder(common, span));
        };
        fields.set_subject(subject(kind));
        report_other_kinds(kind, &mut fields, reader);
        report_when(&mut fields, reader);
        // The kind comes first: `if` of a `branch` step is not the condition of the step.
        let details = Kind::read(kind, &mut fields, reader);
        let policy = Policy::read_for(kind, &mut fields, reader);
        let own = [Common::KEYS, Kind::keys(kind), extra];
        fields.finish(own.iter().chain(Policy::keys_of(kind)).copied(), reader);
        let kind_field = Some(Spanned { value: kind, span });
        Some(Self { common: Common { kind: kind_field, ..common }, policy, kind: details, span })
    }

    /// Replaces a step that could not be parsed, so that references to it are not reported as well.
    fn placeholder(common: Common, span: Span) -> Self {
        Self { common, policy: Policy::default(), kind: Kind::Pass(Pass::default()), span }
    }

    /// The id; empty if it is missing, which is reported when the step is parsed.
    pub fn id(&self) -> &str {
        self.common.id.as_ref().map_or("", |id| &id.value)
    }

    /// The kind of the step.
    pub fn kind_name(&self) -> KindName {
        self.common.kind.as_ref().map_or(KindName::Pass, |kind| kind.value)
    }
}

/// Reports an id that is missing, empty or invalid in paths and references.
pub(crate) fn check_step_id(id: Option<&str>, span: Span, reader: &mut Reader) {
    let hint = "use letters, digits and `_`, with `-` between them, such as `fetch-orders`";
    let (code, message) = match id {
        None => (Code::EmptyStepId, "a step needs an `id`".to_owned()),
        Some("") => (Code::EmptyStepId, "the step's id is empty".to_owned()),
        Some(id) if id.len() > limits::NAME_CHARS => (
            Code::InvalidStepId,
            format!("the id has {} characters; the limit is {}", id.len(), limits::NAME_CHARS),
        ),
        Some(id) if !id.is_ascii() || !crate::expr::is_name(id) => {
            (Code::InvalidStepId, format!("`{id}` is not a valid step id"))
        }
        Some(_) => return,
    };
    reader.report(Diagnostic::new(code, span, message).hint(hint));
}

/// The kind that a misspelt `kind` most likely means, so that the fields of that kind are not reported as well.
pub(crate) fn misspelt_kind(fields: &Fields) -> Option<KindName> {
    let name = fields.text("kind").filter(|name| KindName::from_name(name).is_none())?;
    nearest(name, KindName::NAMES.iter().copied()).and_then(KindName::from_name)
}

/// Reports a step without `kind` and without a field that implies one. Most likely such a field is misspelt.
fn report_unknown_kind(mut fields: Fields, reader: &mut Reader) {
    let implying: Vec<&str> = IMPLIED_KINDS.iter().map(|(key, _)| *key).collect();
    let empty = implying.iter().find_map(|key| fields.take_node(key));
    let misspelt = fields.keys().any(|(key, _)| nearest(key, implying.iter().copied()).is_some());
    if let Some(empty) = empty {
        let message = format!("`{}` needs a value", empty.key);
        reader.report(Diagnostic::new(Code::MissingField, empty.key_span, message));
    } else if !misspelt {
        let kinds = crate::diagnostic::quoted(KindName::NAMES);
        let diagnostic = Diagnostic::new(Code::MissingField, fields.span, "the step has no `tool` or `kind`");
        reader.report(diagnostic.hint(format!("add `tool`, or a `kind`: {kinds}")));
    }
    let all = KindName::ALL.iter().map(|kind| Kind::keys(*kind)).chain([Common::KEYS, Policy::KEYS]);
    let all: Vec<&[&'static str]> = all.collect();
    fields.drop_keys(&all);
    // The fields that imply a kind come first, so that hints suggest these.
    fields.finish([&implying[..]].into_iter().chain(all), reader);
}

/// Reports fields that imply another kind.
fn report_other_kinds(kind: KindName, fields: &mut Fields, reader: &mut Reader) {
    for (key, other) in IMPLIED_KINDS {
        if *other == kind || Kind::keys(kind).contains(key) {
            continue;
        }
        if let Some(entry) = fields.take_node(key) {
            let message =
                format!("`{key}` belongs to a `{}` step, but this is a `{}` step", other.name(), kind.name());
            let diagnostic = Diagnostic::new(Code::ConflictingFields, entry.key_span, message);
            reader.report(diagnostic.hint(format!("a step has one kind; move `{key}` to a separate step")));
        }
    }
}

/// Reports `when`, which other workflow languages use for `if`.
fn report_when(fields: &mut Fields, reader: &mut Reader) {
    if let Some(entry) = fields.take_node("when") {
        let diagnostic = Diagnostic::new(Code::UnknownKey, entry.key_span, "unknown key `when` in a step");
        reader.report(diagnostic.hint("write `if:` for a condition of the step"));
    }
}

/// The steps of a block.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Steps(pub Vec<Step>);

impl FromNode for Steps {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        if reader.depth > limits::BLOCK_DEPTH {
            let message = format!("blocks are nested more than {} levels deep", limits::BLOCK_DEPTH);
            let diagnostic = Diagnostic::new(Code::LimitExceeded, node.span, message);
            reader.report(diagnostic.hint("move the inner part into a sub-workflow (`kind: workflow`)"));
            return None;
        }
        let Data::List(items) = node.data else {
            reader.wrong_type(&node, "a list of steps");
            return None;
        };
        reader.depth += 1;
        let mut steps = Vec::with_capacity(items.len());
        for item in items {
            let is_map = matches!(item.data, Data::Map(_));
            let span = item.span;
            match Step::from_node(item, reader) {
                Some(step) => steps.push(step),
                None if !is_map => steps.push(Step::placeholder(Common::default(), span)),
                None => {}
            }
        }
        reader.depth -= 1;
        Some(Self(steps))
    }
}
