//! A progress bar for work that takes longer than half a second.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar as Bar, ProgressStyle};

/// How long the work runs before the bar appears.
const DELAY: Duration = Duration::from_millis(500);

/// A bar on standard error, hidden if that is not a terminal. It disappears on drop.
pub(crate) struct ProgressBar {
    started: Instant,
    message: &'static str,
    template: &'static str,
    bar: Option<Bar>,
}

impl ProgressBar {
    /// A bar that counts bytes.
    pub(crate) fn bytes(message: &'static str) -> Self {
        Self::new(message, "{msg} {bar:30} {bytes}/{total_bytes} {eta}")
    }

    /// A bar that counts items.
    pub(crate) fn items(message: &'static str) -> Self {
        Self::new(message, "{msg} {bar:30} {human_pos}/{human_len} {eta}")
    }

    fn new(message: &'static str, template: &'static str) -> Self {
        Self { started: Instant::now(), message, template, bar: None }
    }

    pub(crate) fn set(&mut self, position: u64, total: u64) {
        if self.bar.is_none() && self.started.elapsed() > DELAY {
            let style = ProgressStyle::with_template(self.template);
            let bar = Bar::new(total).with_message(self.message);
            self.bar = Some(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())));
        }
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(position);
        }
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
