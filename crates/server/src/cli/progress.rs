//! Live progress on standard error: a line per step on a terminal, plain lines elsewhere.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use steprail_engine::RunId;

/// Steps that have a line of their own while they run; more are only shown when they end.
const LIVE_LINES: usize = 12;
const TICK: Duration = Duration::from_millis(100);

/// A step execution.
pub(super) type Key = (RunId, u32);

/// Something that became of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct News {
    pub key: Key,
    pub name: String,
    pub what: What,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    /// It began.
    Began { attempt: u32, doing: Option<String> },
    /// It told how far it is.
    Progressed(String),
    /// One of its blocks ended.
    Moved { total: u32, ended: u32 },
    /// It waits for something, and says for what.
    Waits(String),
    /// An attempt failed, and another follows after some milliseconds.
    Retry { error: String, pause: u64 },
    /// Somebody said something about it, or something is unclear.
    Said(&'static str, String),
    /// It ended, after some milliseconds.
    Ended { word: &'static str, took: Option<u64>, note: Option<String> },
}

/// Where progress is shown.
pub(super) enum Screen {
    /// Not a terminal: a line per event.
    Lines,
    /// A terminal.
    Terminal { all: MultiProgress, live: BTreeMap<Key, ProgressBar>, colours: bool },
}

impl Screen {
    /// Standard error.
    pub(super) fn stderr() -> Self {
        let err = std::io::stderr();
        if !err.is_terminal() {
            return Self::Lines;
        }
        let colours = AutoStream::choice(&err) != ColorChoice::Never;
        Self::Terminal { all: MultiProgress::new(), live: BTreeMap::new(), colours }
    }

    /// Shows what became of a step.
    pub(super) fn show(&mut self, news: &News) {
        match self {
            Self::Lines => {
                if let Some(line) = news.plain() {
                    self.say(&line);
                }
            }
            Self::Terminal { all, live, colours } => {
                news.animate(all, live);
                if let Some(line) = news.lasting(*colours) {
                    self.say(&line);
                }
            }
        }
    }

    /// Says something that is not about a step.
    pub(super) fn say(&self, text: &str) {
        // A reader that went away does not stop a run.
        let write = || drop(writeln!(anstream::stderr(), "{text}"));
        match self {
            Self::Lines => write(),
            // Its own `println` would fill the line up with spaces.
            Self::Terminal { all, .. } => all.suspend(write),
        }
    }

    /// Leaves the terminal to somebody else for a while, or takes it back.
    pub(super) fn hide(&self, hides: bool) {
        if let Self::Terminal { all, .. } = self {
            let _ = all.clear();
            all.set_draw_target(if hides {
                ProgressDrawTarget::hidden()
            } else {
                ProgressDrawTarget::stderr()
            });
        }
    }

    /// Takes the lines of steps that still run away; plain lines follow.
    pub(super) fn clear(&mut self) {
        if let Self::Terminal { all, live, .. } = self {
            live.values().for_each(|bar| take_away(all, bar));
            let _ = all.clear();
            *self = Self::Lines;
        }
    }
}

impl News {
    /// A line for a log.
    fn plain(&self) -> Option<String> {
        self.in_words().map(|line| harmless(&line))
    }

    fn in_words(&self) -> Option<String> {
        let name = &self.name;
        let with = |text: &Option<String>| text.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
        Some(match &self.what {
            What::Began { attempt: 1, doing } => format!("started {name}{}", with(doing)),
            What::Began { attempt, doing } => format!("started {name} (attempt {attempt}){}", with(doing)),
            What::Progressed(how_far) => format!("progress {name}: {how_far}"),
            What::Moved { .. } => return None,
            What::Waits(why) => format!("waiting {name}: {why}"),
            What::Retry { error, pause } => format!("retry {name} in {}: {error}", length(*pause)),
            What::Said("uncertain", why) => format!("uncertain {name}: {why}"),
            What::Said(word, text) => format!("{word} {name} {text}"),
            What::Ended { word, took, note } => {
                let took = took.map(|took| format!(" {}", length(took))).unwrap_or_default();
                format!("{word} {name}{took}{}", with(note))
            }
        })
    }

    /// A line that stays on the terminal.
    fn lasting(&self, colours: bool) -> Option<String> {
        let (colour, mark, text) = match &self.what {
            What::Began { .. } | What::Progressed(_) | What::Moved { .. } => return None,
            What::Waits(why) => ("36", "?", why.clone()),
            What::Retry { error, pause } => ("33", "↻", format!("{error}; again in {}", length(*pause))),
            What::Said("uncertain", text) => ("33", "?", text.clone()),
            What::Said(word, text) => ("36", "·", format!("{word} {text}")),
            What::Ended { word, took, note } => {
                let took = took.map(length).unwrap_or_default();
                let text = note.clone().unwrap_or(took);
                match *word {
                    "done" => ("32", "✓", text),
                    "failed" => ("31", "✗", text),
                    word => ("2", "-", format!("{word} {text}")),
                }
            }
        };
        let text = harmless(&text);
        Some(if colours {
            format!("\x1b[{colour}m{mark}\x1b[0m {} \x1b[2m{text}\x1b[0m", self.name)
        } else {
            format!("{mark} {} {text}", self.name)
        })
    }

    /// Keeps the lines of steps that run.
    fn animate(&self, all: &MultiProgress, live: &mut BTreeMap<Key, ProgressBar>) {
        if let What::Ended { .. } = self.what {
            return live.remove(&self.key).iter().for_each(|bar| take_away(all, bar));
        }
        let Some(message) = self.doing() else { return };
        let begins = !matches!(self.what, What::Moved { .. } | What::Progressed(_));
        if let Some(bar) = live.get(&self.key) {
            if begins {
                bar.reset_elapsed();
            }
            bar.set_message(message);
        } else if begins && live.len() < LIVE_LINES {
            let bar = ProgressBar::new_spinner().with_style(style()).with_prefix(self.name.clone());
            let bar = all.add(bar.with_message(message));
            bar.enable_steady_tick(TICK);
            live.insert(self.key, bar);
        }
    }

    /// What a step that runs is doing, for its line.
    fn doing(&self) -> Option<String> {
        Some(match &self.what {
            What::Began { attempt: 1, doing: None } => String::new(),
            What::Began { attempt: 1, doing: Some(doing) } => format!(" {doing}"),
            What::Began { attempt, .. } => format!(" attempt {attempt}"),
            What::Progressed(how_far) => format!(" {}", harmless(how_far)),
            What::Moved { total, ended } => format!(" {ended} of {total}"),
            What::Retry { pause, .. } => format!(" again in {}", length(*pause)),
            What::Waits(_) | What::Said(..) | What::Ended { .. } => return None,
        })
    }
}

/// Text from outside (a tool's error, a prompt) on one line: it must not repaint the terminal or pass for ours.
pub(super) fn harmless(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.replace(|c: char| c.is_control() || turns(c), " ")
}

fn take_away(all: &MultiProgress, bar: &ProgressBar) {
    bar.finish_and_clear();
    all.remove(bar);
}

fn style() -> ProgressStyle {
    let style = ProgressStyle::with_template("{spinner:.cyan} {prefix}{msg:.dim} {elapsed:.dim}");
    style.unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// A length of time, as people say it: `12ms`, `1.2s`, `3m 4s`, `2h 5m`.
pub(super) fn length(millis: u64) -> String {
    let (seconds, minutes) = (millis / 1_000, millis / 60_000);
    match millis {
        0..1_000 => format!("{millis}ms"),
        1_000..60_000 if millis % 1_000 < 100 => format!("{seconds}s"),
        1_000..60_000 => format!("{seconds}.{}s", millis % 1_000 / 100),
        60_000..3_600_000 => format!("{minutes}m {}s", seconds % 60),
        _ => format!("{}h {}m", minutes / 60, minutes % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::length;

    #[test]
    fn lengths_read_well() {
        let lengths = [0, 12, 999, 1_000, 1_234, 59_999, 60_000, 184_000, 3_600_000, 90_000_000].map(length);
        assert_eq!(lengths.join(", "), "0ms, 12ms, 999ms, 1s, 1.2s, 59.9s, 1m 0s, 3m 4s, 1h 0m, 25h 0m");
    }
}
