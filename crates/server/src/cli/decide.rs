//! `steprail approve` and `steprail deny`: a human's decision, from the terminal.

use std::io::{BufRead, Write};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};

use super::ask::yes_or_no;
use super::progress::harmless;
use super::stop::Stop;
use super::target::{Target, find_run};
use super::{session, show_as};
use steprail_http::views::{Approval, Run};

/// Which gate, and why.
///
/// What is asked is shown first, and the decision counts for that and nothing else. You are asked whether you
/// mean it; where there is no terminal, `--yes` says so.
#[derive(Debug, Args)]
pub(super) struct Decide {
    /// The run: its id, or the end of it
    run: String,
    /// The step that waits, by its path; not needed if there is only one
    step: Option<String>,
    /// Why
    #[arg(long)]
    reason: Option<String>,
    /// What the step's tool wants to know, if it asks something: a JSON map
    #[arg(long, value_name = "JSON", value_parser = super::run::map)]
    answer: Option<Map<String, Value>>,
    /// Do not ask whether you mean it
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// What a human says at a gate.
pub(super) enum Verdict {
    Approve,
    Deny,
    Later,
}

impl Decide {
    pub(super) fn run(self, approved: bool) -> Result<ExitCode, Stop> {
        session::block_on(self.decide(approved))
    }

    async fn decide(&self, approved: bool) -> Result<ExitCode, Stop> {
        let client = self.target.reach().await?;
        let id = find_run(&client, &self.run).await?;
        let run: Run = client.get(&format!("/runs/{id}")).await?;
        let question = self.question(&run)?;
        show(question)?;
        if !self.yes {
            need_meant(approved)?;
        }
        let body = json!({
            "step": question.step, "digest": question.digest, "reason": self.reason, "answer": self.answer,
        });
        let action = if approved { "approve" } else { "deny" };
        let said: Value = client.post(&format!("/runs/{}/{action}", question.run_id), &body).await?;
        if self.json {
            show_as::json(&said)?;
        } else {
            let word = |key: &str| said[key].as_str().unwrap_or_default().to_owned();
            show_as::line(&format!("`{}` was {} by {}.", word("step"), word("decision"), word("by")))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The question that is meant.
    fn question<'r>(&self, run: &'r Run) -> Result<&'r Approval, Stop> {
        let open = run.approvals.as_deref().unwrap_or_default();
        let steps = || open.iter().map(|open| &*open.step).collect::<Vec<_>>().join(", ");
        match (&self.step, open) {
            (Some(step), _) => open.iter().find(|open| open.step == *step).ok_or_else(|| {
                let refused = Stop::usage(format!("`{step}` does not wait for a decision"));
                if open.is_empty() { refused } else { refused.hint(format!("these do: {}", steps())) }
            }),
            (None, [question]) => Ok(question),
            (None, []) => {
                Err(Stop::usage(format!("{} is {} and waits for no decision", run.name, run.status.word())))
            }
            (None, _) => Err(Stop::usage("several steps wait").hint(format!("name one: {}", steps()))),
        }
    }
}

/// Shows what is asked.
fn show(question: &Approval) -> Result<(), Stop> {
    writeln!(anstream::stderr(), "{}", harmless(&question.prompt))?;
    show_call(question)
}

/// Shows what a yes lets happen.
pub(super) fn show_call(question: &Approval) -> Result<(), Stop> {
    let mut err = anstream::stderr();
    if let Some(tool) = &question.tool {
        writeln!(err, "tool {}", harmless(tool))?;
    }
    for (name, value) in [("with", &question.args), ("asks for", &question.form)] {
        if let Some(value) = value {
            writeln!(err, "{name} {}", harmless(value.get()))?;
        }
    }
    Ok(())
}

/// Asks for a verdict, on the last line of the terminal.
pub(super) fn prompt(question: &Approval) -> Result<(), Stop> {
    let mut err = anstream::stderr();
    write!(err, "\r\x1b[K  approve {}? [y]es, [n]o, [l]ater: ", question.step)?;
    err.flush()?;
    Ok(())
}

/// Takes the line of the prompt away, for something else to be told there.
pub(super) fn unprompt() -> Result<(), Stop> {
    write!(anstream::stderr(), "\r\x1b[K")?;
    forget_typed();
    Ok(())
}

/// What was typed and is no longer seen does not count.
pub(super) fn forget_typed() {
    // What is no terminal has nothing to forget.
    let _ = rustix::termios::tcflush(std::io::stdin(), rustix::termios::QueueSelector::IFlush);
}

/// What was typed. The end of the input is an empty line.
pub(super) fn typed() -> std::io::Result<String> {
    let mut said = String::new();
    std::io::stdin().lock().read_line(&mut said)?;
    Ok(said)
}

impl Verdict {
    /// What was typed, if it is one.
    pub(super) fn read(typed: &str) -> Option<Self> {
        match &*typed.trim().to_lowercase() {
            "y" | "yes" => Some(Self::Approve),
            "n" | "no" => Some(Self::Deny),
            "l" | "later" | "" => Some(Self::Later),
            _ => None,
        }
    }
}

/// Asks at the terminal. Elsewhere nobody says so by accident.
fn need_meant(approved: bool) -> Result<(), Stop> {
    let word = if approved { "Approve?" } else { "Deny?" };
    match yes_or_no(word)? {
        Some(true) => Ok(()),
        Some(false) => Err(Stop::usage("nothing was decided")),
        None => {
            Err(Stop::usage("nothing was decided: there is no terminal to ask at").hint("--yes means it"))
        }
    }
}
