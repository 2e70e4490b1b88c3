//! The sentence of a reason.

use steprail_core::display::line;
use steprail_core::run::Millis;

use super::{NextStep, ReasonKind, RunReason};

impl RunReason {
    /// The reason in one sentence, such as "`ask` waits for lea since 3 min; escalates to group:ops at 14:00". `time` renders
    /// a time. Untrusted text is made visible.
    pub fn sentence(&self, now: Millis, time: impl Fn(Millis) -> String) -> String {
        let since = self.since.map(|since| format!(" since {}", distance(now.saturating_sub(since))));
        let (main, detail) = self.clause(&since.unwrap_or_default(), &time);
        let detail = detail.map(|detail| format!(": {}", line(&detail))).unwrap_or_default();
        let next = self.next.as_ref().map(|NextStep { what, at }| {
            let at = at.map(|at| format!(" at {}", time(at))).unwrap_or_default();
            format!("; {}{at}", line(what))
        });
        let more = match self.more {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        format!("{main}{detail}{}{more}", next.unwrap_or_default())
    }

    /// The first clause, and the detail that follows it.
    fn clause(&self, since: &str, time: &impl Fn(Millis) -> String) -> (String, Option<String>) {
        let step =
            self.step.as_deref().map_or_else(|| "the run".to_owned(), |step| format!("`{}`", line(step)));
        let whom = match self.whom.as_slice() {
            [] => "an approver".to_owned(),
            names => names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(" or "),
        };
        let by = self.by.as_deref().map(|by| format!(" by {}", line(by))).unwrap_or_default();
        let at = self.since.map(|at| format!(" at {}", time(at))).unwrap_or_default();
        let detail = self.detail.clone();
        let signal = || detail.as_deref().map(|name| format!(" {}", quoted(name))).unwrap_or_default();
        match self.kind {
            ReasonKind::Approval => (format!("{step} waits for {whom}{since}"), detail),
            ReasonKind::Input => (format!("{step} waits for input from {whom}{since}"), None),
            ReasonKind::UnknownOutcome => {
                (format!("the outcome of the call of {step} is unknown{since}"), detail)
            }
            ReasonKind::Time => (format!("{step} sleeps{since}"), None),
            ReasonKind::Event => (format!("{step} waits for the signal{}{since}", signal()), None),
            ReasonKind::Retry => (format!("{step} failed and waits{since}"), detail),
            ReasonKind::Server => (format!("{step} waits for its server{since}"), detail),
            ReasonKind::Limit => (format!("{step} waits for a limit of the policy{since}"), detail),
            ReasonKind::IdempotencyKey => {
                (format!("{step} waits for another step with the same idempotency key{since}"), None)
            }
            ReasonKind::Slot => (format!("{step} waits for a concurrency slot{since}"), None),
            ReasonKind::Freeze => (format!("{step} waits{since}, because calls were frozen{by}"), detail),
            ReasonKind::Workflow => (format!("{step} waits for its sub-workflow{since}"), None),
            ReasonKind::Paused => (format!("paused{by}{since}"), None),
            ReasonKind::Interrupted => (format!("interrupted by a restart{since}"), None),
            ReasonKind::Damaged => ("the run cannot continue".to_owned(), detail),
            ReasonKind::Denied if self.by.is_none() => (format!("the request of {step} expired{at}"), None),
            ReasonKind::Denied => (format!("{step} was denied{by}{at}"), detail),
            ReasonKind::Cancelled => (format!("cancelled{by}{at}"), detail),
            ReasonKind::Failed => (format!("failed{at}"), detail),
        }
    }
}

/// A name that a definition contains, in backticks if it could be taken for a part of the sentence.
pub(super) fn quoted(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.:@/".contains(c);
    if name.chars().all(is_plain) { name.to_owned() } else { format!("`{}`", line(name).replace('`', "'")) }
}

/// A duration in one unit: `40 s`, `3 min`, `5 h`, `2 days`.
fn distance(millis: Millis) -> String {
    let seconds = millis.max(0) / 1_000;
    match seconds {
        0..=99 => format!("{seconds} s"),
        100..=5_999 => format!("{} min", seconds / 60),
        6_000..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}
