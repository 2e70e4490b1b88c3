//! Output and prompts at the terminal.

pub(crate) mod hidden_input;
pub(crate) mod output;
pub(crate) mod progress_bar;
pub(crate) mod prompt;
pub(crate) mod run_summary;
pub(crate) mod step_progress;
pub(crate) mod text;
