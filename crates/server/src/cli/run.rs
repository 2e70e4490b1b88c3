//! `steprail run`: one run of a definition with scripted tools, from its start to its end.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value};
use steprail_core::load;
use steprail_core::plan::{Kind, Plan};
use steprail_core::source::Source;
use steprail_engine::{Principal, Start};

use super::database::{Database, Reach};
use super::session::{self, Session, Setup, Signal};
use super::stop::{Stop, show_problems};
use super::tools_at::ToolsAt;
use super::waiting::Again;
use super::{exit, input};
use crate::daemon::Home;
use crate::tools::Named;

/// Run a definition with the tools of MCP servers, or with scripted ones
///
/// Progress goes to standard error, how the run ended to standard output. A run that waits for a human is left
/// in the database, and so is one that is stopped with Ctrl-C: `steprail resume` goes on with it. Other runs that were
/// under way in the database are interrupted until they are resumed: their tools may be others.
///
/// Exit code 0: completed; 1: failed; 2: the definition, the inputs or the command line are wrong; 3: it waits for
/// a human; 4: cancelled; 70: the database failed; 73: another process has the database; 130: Ctrl-C.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// The definition, YAML or JSON; `-` for standard input
    #[arg(value_name = "FILE")]
    file: String,
    /// An input; the value is read as JSON unless the input is text
    #[arg(long = "input", value_name = "NAME=VALUE", value_parser = pair)]
    input: Vec<(String, String)>,
    /// All inputs as a JSON map; `--input` goes before it
    #[arg(long, value_name = "JSON", value_parser = map)]
    inputs: Option<Map<String, Value>>,
    /// The database; without it a temporary one, which is deleted when the run has ended
    #[arg(long, value_name = "FILE")]
    db: Option<PathBuf>,
    #[command(flatten)]
    tools: ToolsAt,
    /// Bring an event to the run, which keeps it until a step waits for it
    #[arg(long, value_name = "EVENT=JSON", value_parser = session::event)]
    signal: Vec<Signal>,
    /// What a commit survives; `full` by default, `process` for a temporary database
    #[arg(long)]
    durability: Option<Reach>,
    /// Print one JSON record of the run and its steps instead of a summary
    #[arg(long)]
    json: bool,
}

impl Run {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        let (source, plan) = self.definition()?;
        let home = Home::find(None).ok();
        let tools = self.tools.read(home.as_ref())?;
        let calls = plan.steps.iter().any(|step| matches!(step.kind, Kind::Call(_)));
        if calls && matches!(tools, Named::None) {
            let place = home.map(|home| home.servers().display().to_string()).unwrap_or_default();
            let message = "the definition calls tools, and no servers are configured";
            return Err(Stop::usage(message)
                .hint(format!("name a config file with --servers, or put one at {place}")));
        }
        let start = Start::file(source.name(), source.text(), Principal::user(session::user()));
        let start = start.inputs(self.inputs(&plan));
        let db = self.db.clone().map_or_else(Database::temporary, Database::at)?;
        let again = Again::new(db.path(), &self.tools);
        let setup = Setup { db, tools, again, durability: self.durability };
        session::block_on(self.drive(setup, start))
    }

    /// The definition, checked.
    fn definition(&self) -> Result<(Source, Plan), Stop> {
        let source = input::read(&self.file)?;
        let loaded = load(&source);
        show_problems(&loaded.diagnostics, &source)?;
        match loaded.plan {
            Some(plan) => Ok((source, plan)),
            None => Err(Stop::Silent(exit::CANNOT_READ)),
        }
    }

    async fn drive(&self, setup: Setup, start: Start) -> Result<ExitCode, Stop> {
        let again = setup.again.clone();
        let mut others = 0;
        // Other runs may need other tools: they wait for `steprail resume`.
        let mut session = Session::open(setup, true, |readers, _| {
            others = session::unfinished(readers)?.len();
            Ok(())
        })
        .await?;
        if others > 0 {
            let wait =
                if others == 1 { "run is interrupted and waits" } else { "runs are interrupted and wait" };
            let command = again.command(None);
            session.say(&format!("note: {others} unfinished {wait} in this database: {command}"));
        }
        match self.begin(&mut session, start).await {
            Ok(()) => session.finish(self.json).await,
            Err(stop) => session.give_up(stop).await,
        }
    }

    async fn begin(&self, session: &mut Session, start: Start) -> Result<(), Stop> {
        let run = session.engine.start(start).await?.id();
        session.tree.add_root(run, String::new());
        session.signal(&self.signal, Some(run)).await
    }

    fn inputs(&self, plan: &Plan) -> Value {
        let mut inputs = self.inputs.clone().unwrap_or_default();
        for (name, text) in &self.input {
            let is_text = plan.inputs.iter().any(|input| *input.name == **name && takes_text(&input.schema));
            let value = if is_text { None } else { serde_json::from_str(text).ok() };
            inputs.insert(name.clone(), value.unwrap_or_else(|| text.as_str().into()));
        }
        Value::Object(inputs)
    }
}

fn takes_text(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::String(word)) => word == "string",
        Some(Value::Array(words)) => words.iter().any(|word| word == "string"),
        _ => false,
    }
}

/// Reads `NAME=VALUE`.
fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Reads a JSON map.
pub(super) fn map(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON map: {error}"))
}
