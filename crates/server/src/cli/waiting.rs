//! What a run waits for, and the command that goes on with it.

use std::path::Path;

use steprail_engine::RunId;

use super::progress::harmless;
use super::tools_at::ToolsAt;
use super::tree::{Open, State};

/// How this command was called, as far as the next one needs it.
#[derive(Debug, Clone)]
pub(super) struct Again {
    /// The database.
    pub db: String,
    /// Where the tools are.
    pub tools: ToolsAt,
}

impl Again {
    pub(super) fn new(db: &Path, tools: &ToolsAt) -> Self {
        Self { db: db.display().to_string(), tools: tools.clone() }
    }

    /// The command that goes on with a run.
    pub(super) fn command(&self, run: Option<RunId>) -> String {
        let run = run.map(|run| format!(" {run}")).unwrap_or_default();
        let tools = self.tools.argument().map(|(option, file)| format!(" {option} {}", quoted(file)));
        format!("steprail resume --db {}{}{run}", quoted(&self.db), tools.unwrap_or_default())
    }

    /// Says what a step waits for, and how to answer.
    pub(super) fn explain(&self, run: RunId, open: &Open<'_>, starter: &str) -> String {
        let command = self.command(Some(run));
        let path = quoted(&open.name);
        let (waits_for, answer, others) = match open.state {
            State::Gate(prompt) => (
                harmless(prompt),
                format!("--approve {path} --as NAME"),
                format!(
                    "--deny {path} says no. NAME decides: not {starter}, who started the run, unless the gate allows it."
                ),
            ),
            State::Uncertain(why) => (
                format!("nobody knows whether its call took place ({})", harmless(why)),
                format!("--retry {path}"),
                format!("--happened {path}=RESULT if it took place; --skip {path} to go on without it."),
            ),
            State::Working | State::Blocks(..) | State::Child(_) => return String::new(),
        };
        format!("`{}` waits for a human: {waits_for}\n  {command} {answer}\n  {others}", open.name)
    }
}

/// An argument as a shell takes it.
pub(super) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn arguments_are_quoted_where_a_shell_needs_it() {
        assert_eq!(quoted("/tmp/a-b.db"), "/tmp/a-b.db");
        assert_eq!(quoted("each[3].it's"), r"'each[3].it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
