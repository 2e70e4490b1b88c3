//! Checks of the times of a gate, which definitions and policies share.

use crate::diagnostic::{Code, Diagnostic};
use crate::limits::{ESCALATION_LEVELS, REMIND_MS};
use crate::source::Span;
use crate::spec::value::{DurationSpec, Interval, Spanned};
use crate::steps::OnTimeout;

/// The times of a gate, as written.
pub(crate) struct GateTimes<'g> {
    pub timeout_ms: Option<u64>,
    pub on_timeout: Option<(OnTimeout, Span)>,
    pub remind: Option<&'g Spanned<Interval>>,
    pub levels: Vec<LevelTimes<'g>>,
}

/// The times of one level.
pub(crate) struct LevelTimes<'g> {
    pub span: Span,
    pub after: Option<&'g Spanned<DurationSpec>>,
    pub has_recipients: bool,
}

impl GateTimes<'_> {
    /// Reports times that have no effect or contradict each other.
    pub(crate) fn check(&self, report: &mut dyn FnMut(Diagnostic)) {
        self.check_timeout(report);
        self.check_remind(report);
        self.check_levels(report);
    }

    fn check_timeout(&self, report: &mut dyn FnMut(Diagnostic)) {
        let Some((on_timeout, span)) = self.on_timeout else { return };
        if self.timeout_ms.is_none() {
            report(invalid(span, "`on_timeout` needs a `timeout`").hint("add `timeout: 4h`"));
        }
        if on_timeout == OnTimeout::Escalate && self.levels.is_empty() {
            let hint = "add `escalate: [{after: 1h, notify: [group:ops]}]`";
            report(invalid(span, "`on_timeout: escalate` needs `escalate`").hint(hint));
        }
    }

    fn check_remind(&self, report: &mut dyn FnMut(Diagnostic)) {
        let Some(remind) = self.remind else { return };
        if remind.millis < REMIND_MS {
            report(invalid(remind.span, "`remind` is shorter than a minute").hint("write `every 2h`"));
        }
        if self.expires_by(remind.millis) {
            let message = "the request expires before the first reminder";
            report(invalid(remind.span, message).hint("remind earlier"));
        }
    }

    fn check_levels(&self, report: &mut dyn FnMut(Diagnostic)) {
        if let Some(level) = self.levels.get(ESCALATION_LEVELS) {
            let message = format!("a gate has at most {ESCALATION_LEVELS} escalation levels");
            report(Diagnostic::new(Code::LimitExceeded, level.span, message));
        }
        let mut before = None;
        for level in &self.levels {
            if !level.has_recipients {
                let message = "the level neither notifies anybody nor has approvers";
                report(invalid(level.span, message).hint("add `notify` or `approvers`"));
            }
            let Some(after) = level.after else { continue };
            if self.timeout_ms.is_some_and(|timeout| after.millis >= timeout) {
                let message = "the request expires before this escalation";
                report(invalid(after.span, message).hint("escalate earlier"));
            }
            if before.is_some_and(|before| after.millis <= before) {
                let message = "this level is not later than the one before";
                report(invalid(after.span, message).hint("list the levels in order of time"));
            }
            before = Some(after.millis);
        }
    }

    /// Whether the gate is closed after this time.
    fn expires_by(&self, millis: u64) -> bool {
        let stays_open = self.on_timeout.is_some_and(|(on_timeout, _)| on_timeout == OnTimeout::Escalate);
        !stays_open && self.timeout_ms.is_some_and(|timeout| millis >= timeout)
    }
}

fn invalid(span: Span, message: &str) -> Diagnostic {
    Diagnostic::new(Code::InvalidPolicy, span, message)
}
