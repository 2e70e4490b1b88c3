//! Kinds of approvals x ways to end x nesting: one row for each, as a snapshot.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::common::script::play;
use super::kinds::{Kind, Nesting, definition, paths};

/// What happens to the first approval. The others are approved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Approve,
    Edited,
    Deny,
    Timeout,
    Escalate,
    /// Somebody of the level decides, after a reminder.
    Level,
    Fail,
    Cancel,
    Stale,
    Quorum,
    RestartBefore,
    RestartAfter,
}

impl Way {
    const ALL: [Self; 12] = [
        Self::Approve,
        Self::Edited,
        Self::Deny,
        Self::Timeout,
        Self::Escalate,
        Self::Level,
        Self::Fail,
        Self::Cancel,
        Self::Stale,
        Self::Quorum,
        Self::RestartBefore,
        Self::RestartAfter,
    ];

    /// The fields of the approvals, as YAML and as JSON.
    fn fields(self) -> (&'static str, &'static str) {
        match self {
            Self::Timeout => ("timeout: 1h", r#""timeout": "1h""#),
            Self::Escalate => (
                "timeout: 1h, on_timeout: escalate, escalate: [{ after: 30m, notify: 'user:kim' }]",
                r#""timeout": "1h", "on_timeout": "escalate", "escalate": [{"after": "30m", "notify": "user:kim"}]"#,
            ),
            Self::Level => (
                "approvers: ['user:eve'], remind: every 20m, escalate: [{ after: 30m, approvers: ['user:bob'] }]",
                r#""approvers": ["user:eve"], "remind": "every 20m", "escalate": [{"after": "30m", "approvers": ["user:bob"]}]"#,
            ),
            Self::Fail => ("timeout: 1h, on_timeout: fail", r#""timeout": "1h", "on_timeout": "fail""#),
            Self::Quorum => (
                "quorum: 2, approvers: ['user:bob', 'user:eve']",
                r#""quorum": 2, "approvers": ["user:bob", "user:eve"]"#,
            ),
            _ => ("allow_self: false", r#""allow_self": false"#),
        }
    }

    fn lines(self, kind: Kind, gate: &str) -> Vec<String> {
        let (yes, no) = (yes(kind, gate), no(kind, gate));
        let approve = |rest: &str| format!("approve {gate} bob{rest}");
        match self {
            Self::Approve => vec![yes],
            Self::Edited => vec![approve(r#" edited {"x": 2}"#)],
            Self::Deny => vec![no],
            Self::Timeout => vec!["advance 2h".to_owned(), yes],
            Self::Escalate | Self::Fail => vec!["advance 2h".to_owned(), yes],
            Self::Level => vec![yes.clone(), "advance 30m".to_owned(), yes],
            Self::Cancel => vec!["cancel".to_owned(), yes],
            Self::Stale => vec![approve(" stale"), yes],
            Self::Quorum => vec![approve(""), approve(""), format!("approve {gate} eve")],
            Self::RestartBefore => vec!["crash".to_owned(), yes],
            Self::RestartAfter => vec![yes, "crash".to_owned()],
        }
    }
}

fn yes(kind: Kind, gate: &str) -> String {
    match kind {
        Kind::Input => format!("answer {gate} {{\"region\": \"eu\"}}"),
        Kind::Uncertain => format!("resolve {gate} happened 1"),
        _ => format!("approve {gate} bob"),
    }
}

fn no(kind: Kind, gate: &str) -> String {
    match kind {
        Kind::Uncertain => format!("resolve {gate} fail"),
        _ => format!("deny {gate} bob"),
    }
}

/// The lines that lead to the open approval.
fn request(kind: Kind, call: &str) -> Option<String> {
    match kind {
        Kind::Input => Some(format!("asks {call} Which region?")),
        Kind::Drift => Some(format!("changed {call} It deletes now")),
        Kind::Uncertain => Some(format!("fail {call} lost gone")),
        _ => None,
    }
}

fn scenario(kind: Kind, nesting: Nesting, way: Way) -> String {
    let (yaml, json) = way.fields();
    let mut lines: Vec<String> =
        kind.policy(json).map(|policy| format!("policy {policy}")).into_iter().collect();
    lines.push("start".to_owned());
    let places: Vec<(String, String)> = nesting.places().iter().map(|place| paths(kind, place)).collect();
    lines.extend(places.iter().filter_map(|(_, call)| request(kind, call)));
    for (number, (gate, _)) in places.iter().enumerate() {
        let way = match way {
            Way::Quorum => Way::Quorum,
            way if number == 0 => way,
            _ => Way::Approve,
        };
        lines.extend(way.lines(kind, gate));
    }
    for (_, call) in &places {
        // A call that a restart interrupted has an unknown outcome.
        lines.push(format!("done {call} 1"));
        lines.push(format!("resolve {call} happened 1"));
    }
    let lines: String = lines.iter().fold(String::new(), |text, line| text + "> " + line + "\n");
    format!("{}\n== {kind:?} {nesting:?} {way:?}\n{lines}", definition(kind, nesting, yaml).trim_end())
}

/// What a transcript says, as one line.
#[derive(Default)]
struct Summary {
    events: BTreeMap<&'static str, u32>,
    /// The arguments of each call.
    calls: BTreeMap<String, Vec<String>>,
    end: String,
}

const COUNTED: [&str; 7] = [
    "approval_requested",
    "approval_reminded",
    "approval_escalated",
    "approval_signed",
    "approval_granted",
    "approval_denied",
    "uncertainty_resolved",
];

impl Summary {
    fn of(transcript: &str) -> Self {
        let mut summary = Self::default();
        for line in transcript.lines().map(str::trim) {
            assert!(!line.starts_with("BROKEN") && !line.starts_with("FAULT"), "{transcript}");
            if let Some(event) = COUNTED.into_iter().find(|event| line.starts_with(event)) {
                *summary.events.entry(event).or_default() += 1;
            } else if let Some((path, call)) =
                line.strip_prefix("call ").and_then(|call| call.split_once(": "))
            {
                let path = path.split(' ').next().unwrap_or_default();
                let args = call.split_once(' ').map_or("", |(_, args)| args);
                let args =
                    args.split_once(" (with").map_or(args.to_owned(), |(args, _)| format!("{args} again"));
                summary.calls.entry(path.to_owned()).or_default().push(args);
            } else if !line.is_empty() && !line.starts_with('>') {
                line.split(' ').next().unwrap_or_default().clone_into(&mut summary.end);
            }
        }
        summary
    }

    fn line(&self) -> String {
        let mut line = format!("{:<10}", self.end);
        for event in COUNTED {
            if let Some(count) = self.events.get(event) {
                let word = event.rsplit('_').next().unwrap_or_default();
                write!(line, " {word} {count}").expect("text");
            }
        }
        for (path, args) in &self.calls {
            write!(line, "; {path} {}", args.join(" then ")).expect("text");
        }
        line
    }

    /// An approval is decided once, and its call is made once, after the approval.
    fn check(&self, kind: Kind, transcript: &str) {
        let count = |event| self.events.get(event).copied().unwrap_or_default();
        let calls: usize = self.calls.values().map(Vec::len).sum();
        for args in self.calls.values() {
            // The tool that requested input is called again with the answer.
            let allowed = if matches!(kind, Kind::Input | Kind::Drift) { 2 } else { 1 };
            assert!(args.len() <= allowed, "{transcript}");
        }
        if kind.precedes_the_call() {
            assert!(calls <= count("approval_granted") as usize, "{transcript}");
        }
    }
}

#[test]
fn every_approval_ends_once_and_its_call_is_made_once() {
    let mut table = String::new();
    for kind in Kind::ALL {
        for nesting in Nesting::ALL {
            // The graph form has no loop over items.
            if (kind, nesting) == (Kind::Graph, Nesting::Foreach) {
                continue;
            }
            for way in Way::ALL {
                let transcript = play(&scenario(kind, nesting, way));
                let summary = Summary::of(&transcript);
                summary.check(kind, &transcript);
                let cell = format!("{kind:?} {nesting:?} {way:?}");
                writeln!(table, "{cell:<34} {}", summary.line().trim_end()).expect("text");
            }
        }
    }
    insta::assert_snapshot!(table);
}
