//! Definitions with one kind of approval, alone, in a parallel block, or in a loop with three open at once.

use std::fmt::Write as _;

/// What the approval guards. Each one guards the call of `demo__act`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A step that asks, before the step that calls.
    Approve,
    /// The same in the graph form.
    Graph,
    NeedsHuman,
    Policy,
    /// The tool requests input.
    Input,
    /// The description of the tool has changed.
    Drift,
    /// The outcome of the call is unknown.
    Uncertain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nesting {
    Alone,
    Parallel,
    Foreach,
}

impl Kind {
    pub(crate) const ALL: [Self; 7] = [
        Self::Approve,
        Self::Graph,
        Self::NeedsHuman,
        Self::Policy,
        Self::Input,
        Self::Drift,
        Self::Uncertain,
    ];

    /// Whether the approval is requested before the first call.
    pub(crate) fn precedes_the_call(self) -> bool {
        matches!(self, Self::Approve | Self::Graph | Self::NeedsHuman | Self::Policy)
    }

    /// The policy that requires the approval, with these fields.
    pub(crate) fn policy(self, fields: &str) -> Option<String> {
        let rule = format!(
            r#"{{"name": "ask", "tools": "demo__act", "then": {{"require_approval": {{{fields}}}}}}}"#
        );
        (self == Self::Policy).then(|| format!(r#"{{"default": "allow", "rules": [{rule}]}}"#))
    }
}

impl Nesting {
    pub(crate) const ALL: [Self; 3] = [Self::Alone, Self::Parallel, Self::Foreach];

    /// The prefixes of the paths of the guarded steps.
    pub(crate) fn places(self) -> &'static [&'static str] {
        match self {
            Self::Alone => &["a_"],
            Self::Parallel => &["a_", "b_"],
            Self::Foreach => &["each[0].a_", "each[1].a_", "each[2].a_"],
        }
    }
}

/// The path of the approval and of the guarded call at a place.
pub(crate) fn paths(kind: Kind, place: &str) -> (String, String) {
    let gate = if matches!(kind, Kind::Approve | Kind::Graph) { "ask" } else { "act" };
    (format!("{place}{gate}"), format!("{place}act"))
}

/// A definition whose approvals have these fields.
pub(crate) fn definition(kind: Kind, nesting: Nesting, fields: &str) -> String {
    match (kind, nesting) {
        (Kind::Graph, Nesting::Alone) => {
            format!("name: one\nstart: a_ask\nsteps:\n{}", graph("a_", fields, ", done: true"))
        }
        (Kind::Graph, _) => {
            let fork = "  fork: { parallel: [a_ask, b_ask], join: end }\n  end: { kind: pass, done: true }\n";
            let (a, b) = (graph("a_", fields, ""), graph("b_", fields, ""));
            format!("name: one\nstart: fork\nsteps:\n{fork}{a}{b}")
        }
        (_, Nesting::Alone) => format!("name: one\nsteps:\n{}", steps(kind, "a_", fields, 2)),
        (_, Nesting::Parallel) => {
            let branch =
                |name: &str| format!("      {name}:\n{}", steps(kind, &format!("{name}_"), fields, 8));
            format!(
                "name: one\nsteps:\n  - id: both\n    kind: parallel\n    branches:\n{}{}",
                branch("a"),
                branch("b")
            )
        }
        (_, Nesting::Foreach) => {
            let block = steps(kind, "a_", fields, 6);
            format!(
                "name: one\nsteps:\n  - id: each\n    kind: foreach\n    concurrency: 3\n    items: [1, 2, 3]\n    steps:\n{block}"
            )
        }
    }
}

fn steps(kind: Kind, prefix: &str, fields: &str, indent: usize) -> String {
    let (mut text, indent) = (String::new(), " ".repeat(indent));
    if kind == Kind::Approve {
        writeln!(text, "{indent}- {{ id: {prefix}ask, kind: approve, prompt: Go on?, {fields} }}")
            .expect("text");
    }
    let guard = if kind == Kind::NeedsHuman {
        format!(", needs_human: {{ prompt: Go on?, {fields} }}")
    } else {
        String::new()
    };
    writeln!(text, "{indent}- {{ id: {prefix}act, tool: demo__act, args: {{ x: 1 }}{guard} }}")
        .expect("text");
    text
}

fn graph(prefix: &str, fields: &str, end: &str) -> String {
    let ask = format!("  {prefix}ask: {{ kind: approve, prompt: Go on?, {fields}, next: {prefix}act }}\n");
    format!("{ask}  {prefix}act: {{ tool: demo__act, args: {{ x: 1 }}{end} }}\n")
}
