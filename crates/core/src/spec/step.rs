//! A step as it is written: what all steps share, their policies, and what their kind adds.

use schemars::JsonSchema;
use serde::Serialize;

use super::fields::{Fields, FromNode, Reader, Record, choice, record};
use super::policy::Policy;
use super::schema;
use super::value::{Names, Spanned, Text};
use crate::diagnostic::{Code, Diagnostic, nearest};
use crate::document::{Data, Node};
use crate::limits;
use crate::source::Span;
use crate::steps::{Approve, Branch, Foreach, Parallel, Sleep, Tool, Wait, Workflow};

choice! {
    /// What a step does.
    pub enum KindName {
        /// Calls a tool.
        Tool = "tool",
        /// Calls a tool of a named server.
        ToolRemote = "tool_remote",
        /// Runs its steps once per item.
        Foreach = "foreach",
        /// Runs its branches at the same time.
        Parallel = "parallel",
        /// Runs one of several lists of steps.
        Branch = "branch",
        /// Asks a human.
        Approve = "approve",
        /// Waits for a time.
        Sleep = "sleep",
        /// Waits for an event.
        Wait = "wait",
        /// Runs another workflow.
        Workflow = "workflow",
        /// Does nothing by itself; in the graph form, it only leads on.
        Pass = "pass",
    }
}

record! {
    /// What every step may have.
    pub struct Common {
        /// The step's name, unique in the definition.
        id: Text,
        /// What the step does. It may be left out where the other fields tell.
        kind: Spanned<KindName>,
        /// What the step is for, for people.
        description: Text,
        /// The steps that must be done first. A list in which any step has it is a DAG, not a sequence.
        depends_on: Names,
        /// Names for what the step produces; later steps read them as `$name`.
        outputs: Names,
    }
}

/// One step.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// What every step may have.
    #[serde(flatten)]
    pub common: Common,
    /// What stands beside what it does.
    #[serde(flatten)]
    pub policy: Policy,
    /// What it does.
    #[serde(flatten)]
    pub kind: Kind,
    /// The place to blame for what concerns the whole step.
    #[serde(skip)]
    pub place: Span,
}

/// What a step does, with the fields of that kind.
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
    /// `pass`
    Pass(Pass),
}

/// A step that only leads on.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Pass {}

impl Kind {
    /// Reads the fields of a kind.
    fn read(kind: KindName, fields: &mut Fields, reader: &mut Reader) -> Self {
        match kind {
            KindName::Tool | KindName::ToolRemote => Self::Tool(Tool::read_as(kind, fields, reader)),
            KindName::Foreach => Self::Foreach(Record::read(fields, reader)),
            KindName::Parallel => Self::Parallel(Parallel::read_one(fields, reader)),
            KindName::Branch => Self::Branch(Branch::read_one(fields, reader)),
            KindName::Approve => Self::Approve(Record::read(fields, reader)),
            KindName::Sleep => Self::Sleep(Sleep::read_one(fields, reader)),
            KindName::Wait => Self::Wait(Record::read(fields, reader)),
            KindName::Workflow => Self::Workflow(Record::read(fields, reader)),
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
            KindName::Pass => &[],
        }
    }
}

/// The fields that tell a kind, in the order in which they are looked for.
pub(crate) const TELLTALES: &[(&str, KindName)] = &[
    ("items", KindName::Foreach),
    ("branches", KindName::Parallel),
    ("on", KindName::Branch),
    ("cases", KindName::Branch),
    ("if", KindName::Branch),
    ("prompt", KindName::Approve),
    ("notify_user", KindName::Approve),
    ("dcc", KindName::ToolRemote),
    ("tool", KindName::Tool),
    ("action", KindName::Tool),
    ("agent", KindName::Tool),
    ("event", KindName::Wait),
    ("for", KindName::Sleep),
    ("until", KindName::Sleep),
];

/// The kind that the fields of a step tell, if they tell one.
pub(crate) fn told_kind(fields: &Fields) -> Option<KindName> {
    TELLTALES.iter().find(|(key, _)| fields.is_set(key)).map(|(_, kind)| *kind)
}

/// "a `foreach` step", for messages.
fn what(kind: KindName) -> &'static str {
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
        let (id, span) = common.id.as_ref().map_or((None, fields.place), |id| (Some(id.as_str()), id.span));
        if !id_is_unreadable {
            check_step_id(id, span, reader);
        }
        // A kind that is no kind was reported already; nothing more is known about such a step.
        let is_unknown = kind_is_written && common.kind.is_none() && fallback.is_none();
        let step = if is_unknown && told_kind(&fields).is_none() {
            Some(Self::placeholder(common, fields.place))
        } else {
            Self::read_rest(common, fallback, &[], fields, reader)
        };
        reader.step = outer;
        step
    }
}

impl Step {
    /// Reads everything but what all steps share. `fallback` is the kind if the fields tell none;
    /// `extra` are keys that the caller has read already.
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
                let diagnostic = Diagnostic::new(Code::LimitExceeded, fields.place, message);
                reader.report(diagnostic.hint("use a `foreach`, or move parts into sub-workflows"));
            }
            return None;
        }
        let place = common.id.as_ref().map_or(fields.place, |id| id.span);
        let written = common.kind.as_ref().map(|kind| kind.value);
        let Some(kind) = written.or_else(|| told_kind(&fields)).or(fallback) else {
            report_unknown_kind(fields, reader);
            return Some(Self::placeholder(common, place));
        };
        fields.call_it(what(kind));
        report_other_kinds(kind, &mut fields, reader);
        let policy = Policy::read_for(kind, &mut fields, reader);
        let details = Kind::read(kind, &mut fields, reader);
        let own = [Common::KEYS, Kind::keys(kind), extra];
        fields.finish(own.iter().chain(Policy::keys_of(kind)).copied(), reader);
        let kind_field = Some(Spanned { value: kind, span: place });
        Some(Self { common: Common { kind: kind_field, ..common }, policy, kind: details, place })
    }

    /// Stands for a step that could not be read, so that references to it are not reported as well.
    fn placeholder(common: Common, place: Span) -> Self {
        Self { common, policy: Policy::default(), kind: Kind::Pass(Pass::default()), place }
    }

    /// The id, or an empty one where that is the mistake.
    pub fn id(&self) -> &str {
        self.common.id.as_ref().map_or("", |id| &id.value)
    }

    /// The kind by name.
    pub fn kind_name(&self) -> KindName {
        self.common.kind.as_ref().map_or(KindName::Pass, |kind| kind.value)
    }
}

/// Reports an id that is missing, empty or could not stand in a path or reference.
pub(crate) fn check_step_id(id: Option<&str>, span: Span, reader: &mut Reader) {
    let hint = "an id has letters, digits and `_`, with `-` between them, such as `fetch-orders`";
    let (code, message) = match id {
        None => (Code::EmptyStepId, "a step needs an `id`".to_owned()),
        Some("") => (Code::EmptyStepId, "the step's id is empty".to_owned()),
        Some(id) if id.len() > limits::NAME_CHARS => (
            Code::InvalidStepId,
            format!("the id has {} characters; the limit is {}", id.len(), limits::NAME_CHARS),
        ),
        Some(id) if !id.is_ascii() || !crate::expr::is_name(id) => {
            (Code::InvalidStepId, format!("`{id}` cannot be a step id"))
        }
        Some(_) => return,
    };
    reader.report(Diagnostic::new(code, span, message).hint(hint));
}

/// The kind that a misspelt `kind` most likely means, so that its fields are not reported as well.
pub(crate) fn misspelt_kind(fields: &Fields) -> Option<KindName> {
    let word = fields.text("kind").filter(|word| KindName::from_word(word).is_none())?;
    nearest(word, KindName::WORDS.iter().copied()).and_then(KindName::from_word)
}

/// The step has no kind and no field that tells one: most likely such a field is misspelt.
fn report_unknown_kind(mut fields: Fields, reader: &mut Reader) {
    let telltales: Vec<&str> = TELLTALES.iter().map(|(key, _)| *key).collect();
    let empty = telltales.iter().find_map(|key| fields.take_node(key));
    let misspelt = fields.keys().any(|(key, _)| nearest(key, telltales.iter().copied()).is_some());
    if let Some(empty) = empty {
        let message = format!("`{}` needs a value", empty.key);
        reader.report(Diagnostic::new(Code::MissingField, empty.key_span, message));
    } else if !misspelt {
        let kinds = crate::diagnostic::quoted(KindName::WORDS);
        let diagnostic =
            Diagnostic::new(Code::MissingField, fields.place, "nothing tells what this step does");
        reader.report(diagnostic.hint(format!("give it a `tool`, or a `kind`: {kinds}")));
    }
    let all = schema::KINDS.iter().map(|kind| Kind::keys(*kind)).chain([Common::KEYS, Policy::KEYS]);
    let all: Vec<&[&'static str]> = all.collect();
    fields.drop_known(&all);
    // Those that tell a kind first, so that the hint names the one that is missing.
    fields.finish([&telltales[..]].into_iter().chain(all), reader);
}

/// Reports fields that would make the step one of another kind.
fn report_other_kinds(kind: KindName, fields: &mut Fields, reader: &mut Reader) {
    for (key, other) in TELLTALES {
        if *other == kind || Kind::keys(kind).contains(key) {
            continue;
        }
        if let Some(entry) = fields.take_node(key) {
            let message =
                format!("`{key}` makes a `{}` step, but this is a `{}` step", other.word(), kind.word());
            let diagnostic = Diagnostic::new(Code::ConflictingFields, entry.key_span, message);
            reader.report(diagnostic.hint("a step is of one kind; put it into a step of its own"));
        }
    }
}

/// The steps of a block.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Steps(pub Vec<Step>);

impl FromNode for Steps {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        if reader.depth > limits::BLOCK_DEPTH {
            let message = format!("blocks are nested deeper than {}", limits::BLOCK_DEPTH);
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
            let place = item.span;
            match Step::from_node(item, reader) {
                Some(step) => steps.push(step),
                None if !is_map => steps.push(Step::placeholder(Common::default(), place)),
                None => {}
            }
        }
        reader.depth -= 1;
        Some(Self(steps))
    }
}
