//! `steprail run`: one run of a definition, from its start to its end.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};
use steprail_core::load;
use steprail_core::plan::{Kind, Plan};
use steprail_core::source::Source;
use steprail_engine::{Principal, Start};

use super::database::{Database, Reach};
use super::follow::Follow;
use super::session::{self, Session, Setup, Signal};
use super::stop::{Stop, show_problems};
use super::target::Target;
use super::tools_at::ToolsAt;
use super::waiting::Again;
use super::{exit, input, show_as};
use crate::client::{Client, Refused, escaped};
use crate::daemon::DataDir;
use crate::tools::ToolSource;
use steprail_http::views;

/// Run a definition, and show how it goes
///
/// The run is started at the daemon, which is started if there is none, and is followed here: Ctrl-C, or `--detach`, leaves
/// it to the daemon. At a terminal you are asked at its gates. Progress goes to standard error, how the run ended to
/// standard output.
///
/// With `--db`, `--servers` or `--tools` there is no daemon: the run is carried out by this command, in that database or in
/// a temporary one. If it waits for a human or is stopped with Ctrl-C, `steprail resume --db` goes on with it; other runs
/// that were under way in the database are interrupted until they are resumed, since their tools may be others.
///
/// Exit code 0: completed; 1: failed; 2: the definition, the inputs or the command line are wrong; 3: it waits for
/// a human; 4: cancelled; 5: the server cannot be reached; 70: the database failed; 73: another process has the database;
/// 130: Ctrl-C.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// The definition: a file, YAML or JSON; `-` for standard input; or the name of one that the daemon knows
    #[arg(value_name = "FILE|NAME")]
    file: String,
    /// An input; the value is read as JSON unless the input is text
    #[arg(long = "input", value_name = "NAME=VALUE", value_parser = pair)]
    input: Vec<(String, String)>,
    /// All inputs as a JSON map; `--input` goes before it
    #[arg(long, value_name = "JSON", value_parser = map)]
    inputs: Option<Map<String, Value>>,
    /// Start it and leave it to the daemon
    #[arg(long, short)]
    detach: bool,
    /// A second start with the same key is the first run
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    target: Target,
    /// Carry it out here, in this database
    #[arg(long, value_name = "FILE", conflicts_with_all = ["detach", "data", "server", "key"])]
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
        let is_here = self.db.is_some() || self.tools.argument().is_some();
        let asks_daemon =
            self.detach || self.key.is_some() || self.target.data.is_some() || self.target.server.is_some();
        match (is_here, asks_daemon) {
            (true, true) => {
                Err(Stop::usage("with --servers or --tools there is no daemon: it is carried out here")
                    .hint("without them the daemon runs it, with its own tools"))
            }
            (true, false) => self.embed(),
            (false, _) if self.durability.is_some() => {
                Err(Stop::usage("how durable a daemon's runs are is one of its settings: `steprail config`"))
            }
            (false, _) => session::block_on(self.ask()),
        }
    }

    /// Has the daemon run it.
    async fn ask(&self) -> Result<ExitCode, Stop> {
        let path = Path::new(&self.file);
        let is_file = self.file == "-" || (path.exists() && !path.is_dir());
        let local = if is_file { Some(self.definition()?) } else { None };
        let client = self.target.reach().await?;
        let (plan, mut body) = match local {
            Some((source, plan)) => (plan, json!({ "text": source.text(), "source": source.name() })),
            None => (self.stored(&client).await?, json!({ "name": self.file })),
        };
        body["input"] = self.inputs(&plan);
        // If the answer is lost, asking again starts nothing twice.
        body["idempotency_key"] =
            json!(self.key.clone().unwrap_or_else(|| format!("run-{}", uuid::Uuid::now_v7())));
        let run: views::Run = client.start(&body).await?;
        for (event, payload) in &self.signal {
            let body = json!({ "event": event, "payload": payload });
            let _: Value = client.post(&format!("/runs/{}/signal", run.run_id), &body).await?;
        }
        if !self.detach {
            return Follow::new(client, self.target.clone(), run.run_id).finish(self.json).await;
        }
        if self.json {
            show_as::json(&run)?;
        } else {
            show_as::line(&run.run_id.to_string())?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The plan of a definition that the daemon knows.
    async fn stored(&self, client: &Client) -> Result<Plan, Stop> {
        let path = format!("/definitions/{}", escaped(&self.file));
        let found: views::Definition = client.get(&path).await.map_err(|refused| match refused {
            Refused::Problem(problem) if problem.status == 404 => {
                let message = format!("there is no file and no definition `{}`", self.file);
                Stop::usage(message).hint("`steprail define FILE` stores one")
            }
            refused => refused.into(),
        })?;
        let spec = found.spec.unwrap_or_default().to_string();
        let plan = load(&Source::new(&*self.file, &*spec)).plan;
        plan.ok_or_else(|| Stop::usage(format!("the definition `{}` cannot be read here", self.file)))
    }

    /// Carries it out in this process.
    fn embed(self) -> Result<ExitCode, Stop> {
        let (source, plan) = self.definition()?;
        let home = DataDir::find(None).ok();
        let tools = self.tools.read(home.as_ref())?;
        let calls = plan.steps.iter().any(|step| matches!(step.kind, Kind::Call(_)));
        if calls && matches!(tools, ToolSource::None) {
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
        session::block_on(self.drive(setup, &source, start))
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

    async fn drive(&self, setup: Setup, source: &Source, start: Start) -> Result<ExitCode, Stop> {
        let again = setup.again.clone();
        let mut others = 0;
        // Other runs may need other tools: they wait for `steprail resume`.
        let mut session = Session::open(setup, true, |readers, _| {
            others = session::unfinished(readers)?.len();
            Ok(())
        })?;
        if others > 0 {
            let wait =
                if others == 1 { "run is interrupted and waits" } else { "runs are interrupted and wait" };
            let command = again.command(None);
            session.say(&format!("note: {others} unfinished {wait} in this database: {command}"));
        }
        match self.begin(&mut session, source, start).await {
            Ok(()) => session.finish(self.json).await,
            Err(stop) => session.give_up(stop).await,
        }
    }

    async fn begin(&self, session: &mut Session, source: &Source, start: Start) -> Result<(), Stop> {
        if let Some(gateway) = session.tools.gateway()
            && show_problems(&steprail_mcp::check_tools(source, &gateway).await, source)?
        {
            return Err(Stop::Silent(exit::CANNOT_READ));
        }
        let run = session.engine.start(start).await?.id();
        session.tree.add_root(run, String::new());
        session.signal(&self.signal, Some(run)).await
    }

    fn inputs(&self, plan: &Plan) -> Value {
        let mut inputs = self.inputs.clone().unwrap_or_default();
        for (name, text) in &self.input {
            let is_text =
                plan.inputs.iter().any(|input| *input.name == **name && takes_text(input.schema.json()));
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
