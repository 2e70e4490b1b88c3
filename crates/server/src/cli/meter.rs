//! How far something is, on a terminal, if it takes long.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// What takes less is over before anybody could read it.
const LONG: Duration = Duration::from_millis(500);

/// A bar on standard error; none where that is no terminal.
pub(super) struct Meter {
    began: Instant,
    doing: &'static str,
    style: &'static str,
    bar: Option<ProgressBar>,
}

impl Meter {
    /// Counts bytes.
    pub(super) fn bytes(doing: &'static str) -> Self {
        Self::new(doing, "{msg} {bar:30} {bytes}/{total_bytes} {eta}")
    }

    /// Counts anything.
    pub(super) fn count(doing: &'static str) -> Self {
        Self::new(doing, "{msg} {bar:30} {human_pos}/{human_len} {eta}")
    }

    fn new(doing: &'static str, style: &'static str) -> Self {
        Self { began: Instant::now(), doing, style, bar: None }
    }

    /// So much is done, of so much.
    pub(super) fn at(&mut self, done: u64, all: u64) {
        if self.bar.is_none() && self.began.elapsed() > LONG {
            let style = ProgressStyle::with_template(self.style);
            let bar = ProgressBar::new(all).with_message(self.doing);
            self.bar = Some(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())));
        }
        if let Some(bar) = &self.bar {
            bar.set_length(all);
            bar.set_position(done);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
