//! Live progress of steps on standard error: one line per active step on a terminal, one line per event elsewhere.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use steprail_core::run::StepStatus;
use steprail_engine::RunId;

use super::text::{format_duration, sanitize};

/// The maximum number of steps with a live line. Further steps are shown when they end.
const LIVE_LINES: usize = 12;
const TICK: Duration = Duration::from_millis(100);

/// Run and number of an execution.
pub(crate) type ExecutionKey = (RunId, u32);

/// A change of an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepUpdate {
    pub key: ExecutionKey,
    /// Path of the execution, with the paths of the steps that wait for its run.
    pub name: String,
    pub change: StepChange,
}

/// What happened to an execution. Durations are in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StepChange {
    Started {
        attempt: u32,
        details: Option<String>,
    },
    /// The tool reported progress.
    Progressed(String),
    /// A block of a loop or parallel step ended.
    BlockEnded {
        total: u32,
        ended: u32,
    },
    /// Holds what it waits for.
    Waiting(String),
    RetryScheduled {
        error: String,
        delay: u64,
    },
    /// The outcome of its call is unknown. Holds why.
    Uncertain(String),
    /// A decision of a human, or a notice about its tool: a label and its text.
    Note(&'static str, String),
    Ended {
        status: StepStatus,
        duration: Option<u64>,
        reason: Option<String>,
    },
}

/// Where progress is shown.
pub(crate) enum ProgressView {
    /// Standard error is not a terminal.
    Lines,
    Terminal {
        all: MultiProgress,
        live: BTreeMap<ExecutionKey, ProgressBar>,
        colours: bool,
    },
}

impl ProgressView {
    pub(crate) fn stderr() -> Self {
        let err = std::io::stderr();
        if !err.is_terminal() {
            return Self::Lines;
        }
        let colours = AutoStream::choice(&err) != ColorChoice::Never;
        Self::Terminal { all: MultiProgress::new(), live: BTreeMap::new(), colours }
    }

    /// Shows a change of an execution.
    pub(crate) fn show(&mut self, update: &StepUpdate) {
        match self {
            Self::Lines => {
                if let Some(line) = update.log_line() {
                    self.say(&sanitize(&line));
                }
            }
            Self::Terminal { all, live, colours } => {
                update.animate(all, live);
                if let Some(line) = update.permanent_line(*colours) {
                    self.say(&line);
                }
            }
        }
    }

    /// Prints a line above the live lines.
    pub(crate) fn say(&self, text: &str) {
        // A closed standard error does not stop a run.
        let write = || drop(writeln!(anstream::stderr(), "{text}"));
        match self {
            Self::Lines => write(),
            // `MultiProgress::println` pads the line with spaces.
            Self::Terminal { all, .. } => all.suspend(write),
        }
    }

    /// Hides the live lines while a prompt is shown, or shows them again.
    pub(crate) fn set_hidden(&self, hidden: bool) {
        if let Self::Terminal { all, .. } = self {
            let _ = all.clear();
            all.set_draw_target(if hidden {
                ProgressDrawTarget::hidden()
            } else {
                ProgressDrawTarget::stderr()
            });
        }
    }

    /// Removes the live lines. Later output is plain lines.
    pub(crate) fn finish(&mut self) {
        if let Self::Terminal { all, live, .. } = self {
            live.values().for_each(|bar| remove(all, bar));
            let _ = all.clear();
            *self = Self::Lines;
        }
    }
}

impl StepUpdate {
    /// The line for output that is not a terminal.
    fn log_line(&self) -> Option<String> {
        let name = &self.name;
        let suffix =
            |text: &Option<String>| text.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
        Some(match &self.change {
            StepChange::Started { attempt: 1, details } => format!("started {name}{}", suffix(details)),
            StepChange::Started { attempt, details } => {
                format!("started {name} (attempt {attempt}){}", suffix(details))
            }
            StepChange::Progressed(progress) => format!("progress {name}: {progress}"),
            StepChange::BlockEnded { .. } => return None,
            StepChange::Waiting(reason) => format!("waiting {name}: {reason}"),
            StepChange::RetryScheduled { error, delay } => {
                format!("retry {name} in {}: {error}", format_duration(*delay))
            }
            StepChange::Uncertain(reason) => format!("uncertain {name}: {reason}"),
            StepChange::Note(label, text) => format!("{label} {name} {text}"),
            StepChange::Ended { status, duration, reason } => {
                let duration = duration.map(|millis| format!(" {}", format_duration(millis)));
                format!("{} {name}{}{}", status.name(), duration.unwrap_or_default(), suffix(reason))
            }
        })
    }

    /// The line that stays on the terminal.
    fn permanent_line(&self, colours: bool) -> Option<String> {
        let (colour, mark, text) = match &self.change {
            StepChange::Started { .. } | StepChange::Progressed(_) | StepChange::BlockEnded { .. } => {
                return None;
            }
            StepChange::Waiting(reason) => ("36", "?", reason.clone()),
            StepChange::RetryScheduled { error, delay } => {
                ("33", "↻", format!("{error}; retry in {}", format_duration(*delay)))
            }
            StepChange::Uncertain(reason) => ("33", "?", reason.clone()),
            StepChange::Note(label, text) => ("36", "·", format!("{label} {text}")),
            StepChange::Ended { status, duration, reason } => {
                let text = reason.clone().or(duration.map(format_duration)).unwrap_or_default();
                match status {
                    StepStatus::Done => ("32", "✓", text),
                    StepStatus::Failed => ("31", "✗", text),
                    status => ("2", "-", format!("{} {text}", status.name())),
                }
            }
        };
        let text = sanitize(&text);
        Some(if colours {
            format!("\x1b[{colour}m{mark}\x1b[0m {} \x1b[2m{text}\x1b[0m", self.name)
        } else {
            format!("{mark} {} {text}", self.name)
        })
    }

    /// Adds, changes or removes the live line of the execution.
    fn animate(&self, all: &MultiProgress, live: &mut BTreeMap<ExecutionKey, ProgressBar>) {
        if let StepChange::Ended { .. } = self.change {
            return live.remove(&self.key).iter().for_each(|bar| remove(all, bar));
        }
        let Some(message) = self.live_message() else { return };
        let restarts = !matches!(self.change, StepChange::BlockEnded { .. } | StepChange::Progressed(_));
        if let Some(bar) = live.get(&self.key) {
            if restarts {
                bar.reset_elapsed();
            }
            bar.set_message(message);
        } else if restarts && live.len() < LIVE_LINES {
            let bar = ProgressBar::new_spinner().with_style(style()).with_prefix(self.name.clone());
            let bar = all.add(bar.with_message(message));
            bar.enable_steady_tick(TICK);
            live.insert(self.key, bar);
        }
    }

    fn live_message(&self) -> Option<String> {
        Some(match &self.change {
            StepChange::Started { attempt: 1, details: None } => String::new(),
            StepChange::Started { attempt: 1, details: Some(details) } => format!(" {details}"),
            StepChange::Started { attempt, .. } => format!(" attempt {attempt}"),
            StepChange::Progressed(progress) => format!(" {}", sanitize(progress)),
            StepChange::BlockEnded { total, ended } => format!(" {ended} of {total}"),
            StepChange::RetryScheduled { delay, .. } => format!(" retry in {}", format_duration(*delay)),
            StepChange::Waiting(_)
            | StepChange::Uncertain(_)
            | StepChange::Note(..)
            | StepChange::Ended { .. } => return None,
        })
    }
}

fn remove(all: &MultiProgress, bar: &ProgressBar) {
    bar.finish_and_clear();
    all.remove(bar);
}

fn style() -> ProgressStyle {
    let style = ProgressStyle::with_template("{spinner:.cyan} {prefix}{msg:.dim} {elapsed:.dim}");
    style.unwrap_or_else(|_| ProgressStyle::default_spinner())
}
