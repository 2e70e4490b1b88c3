//! `steprail run`: runs a definition.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value};
use steprail_core::load;
use steprail_core::plan::{Kind, Plan};
use steprail_core::source::Source;
use steprail_engine::Principal;
use steprail_http::views;

use super::follow::Follower;
use super::follow::hints::Invocation;
use super::follow::in_process::{EngineOptions, EngineRuns, unfinished_runs};
use super::follow::rest::RestRuns;
use super::follow::run_client::{Definition, RunClient};
use super::follow::run_tree::RunTree;
use super::shared::database::{Database, DurabilityArg};
use super::shared::error::CliError;
use super::shared::server_args::ServerArgs;
use super::shared::source_file::{self, print_diagnostics};
use super::shared::tool_args::ToolArgs;
use super::shared::{exit, os_user, values};
use super::terminal::output;
use super::terminal::text::count;
use crate::client::{Client, ClientError, percent_encode};
use crate::daemon::DataDir;
use crate::tools::ToolSource;

/// Run a definition and follow its progress
///
/// The daemon executes the run, and is started if necessary. Progress goes to standard error, the result to standard output.
/// At a terminal, the command prompts at gates. After Ctrl-C, or with `--detach`, the run continues in the daemon.
///
/// With `--db`, `--servers` or `--tools`, this process executes the run without a daemon, in the given database or in a
/// temporary one. If the run waits for a human, or after Ctrl-C, continue it with `steprail resume --db`. Other runs of the
/// database that were in progress are interrupted until they are resumed, since they may need other tools.
///
/// Exit codes: 0 completed, 1 failed, 2 invalid definition, inputs or arguments, 3 waiting for a human, 4 cancelled, 5 server
/// unreachable, 70 database failure, 73 database in use, 130 Ctrl-C.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// Definition in YAML or JSON, `-` for standard input, or the name of a stored definition
    #[arg(value_name = "FILE|NAME")]
    file: String,
    /// Input of the run; parsed as JSON unless the input is a string
    #[arg(long = "input", value_name = "NAME=VALUE", value_parser = values::name_value)]
    input: Vec<(String, String)>,
    /// All inputs as a JSON map; `--input` takes precedence
    #[arg(long, value_name = "JSON", value_parser = values::json_map)]
    inputs: Option<Map<String, Value>>,
    /// Start the run and exit
    #[arg(long, short)]
    detach: bool,
    /// Idempotency key: a second start with the same key returns the first run
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// Execute the run in this process, in this database
    #[arg(long, value_name = "FILE", conflicts_with_all = ["detach", "data", "server", "key"])]
    db: Option<PathBuf>,
    #[command(flatten)]
    tools: ToolArgs,
    /// Send a signal to the run, which stores it until a step waits for it
    #[arg(long, value_name = "EVENT=JSON", value_parser = values::signal_payload)]
    signal: Vec<(String, Value)>,
    /// What a commit survives [default: full, or process for a temporary database]
    #[arg(long)]
    durability: Option<DurabilityArg>,
    /// Print the run and its steps as JSON instead of a summary
    #[arg(long)]
    json: bool,
}

impl Run {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let is_in_process = self.db.is_some() || self.tools.argument().is_some();
        let needs_daemon =
            self.detach || self.key.is_some() || self.server.data.is_some() || self.server.server.is_some();
        match (is_in_process, needs_daemon) {
            (true, true) => Err(CliError::new(
                "--servers and --tools run without a daemon and cannot be combined with --detach, --key, --data or --server",
            )
            .hint("leave them out to run in the daemon, with its tools")),
            (true, false) => self.run_in_process().await,
            (false, _) if self.durability.is_some() => Err(CliError::new(
                "--durability applies only without a daemon; that of the daemon is the setting `store.durability`",
            )),
            (false, _) => self.run_at_server().await,
        }
    }

    async fn run_at_server(&self) -> Result<ExitCode, CliError> {
        let path = Path::new(&self.file);
        let is_file = self.file == "-" || (path.exists() && !path.is_dir());
        let local = if is_file { Some(self.load_definition()?) } else { None };
        let client = self.server.connect().await?;
        let (definition, inputs) = if let Some((source, plan)) = &local {
            (inline(source), self.parse_inputs(plan))
        } else {
            let plan = self.load_stored(&client).await?;
            (Definition::Stored(&self.file), self.parse_inputs(&plan))
        };
        let client = RestRuns::new(client);
        let run = self.start(&client, definition, inputs).await?;
        if !self.detach {
            let invocation = Invocation::Server(self.server.clone());
            return Follower::new(client, invocation, RunTree::of(run.run_id)).finish(self.json).await;
        }
        if self.json {
            output::json(&run)?;
        } else {
            output::line(&run.run_id.to_string())?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Loads the plan of a stored definition.
    async fn load_stored(&self, client: &Client) -> Result<Plan, CliError> {
        let path = format!("/definitions/{}", percent_encode(&self.file));
        let definition: views::Definition = client.get(&path).await.map_err(|error| match error {
            ClientError::Problem(problem) if problem.status == 404 => {
                let message = format!("there is no file and no definition `{}`", self.file);
                CliError::new(message).hint("store a definition with `steprail define FILE`")
            }
            error => error.into(),
        })?;
        let spec = definition.spec.unwrap_or_default().to_string();
        let plan = load(&Source::new(&*self.file, &*spec)).plan;
        plan.ok_or_else(|| CliError::new(format!("this version cannot read the definition `{}`", self.file)))
    }

    async fn run_in_process(self) -> Result<ExitCode, CliError> {
        let (source, plan) = self.load_definition()?;
        let home = DataDir::find(None).ok();
        let tools = self.tools.read(home.as_ref())?;
        let calls_tools = plan.steps.iter().any(|step| matches!(step.kind, Kind::Call(_)));
        if calls_tools && matches!(tools, ToolSource::None) {
            let file = home.map(|home| home.servers().display().to_string()).unwrap_or_default();
            let message = "the definition calls tools, but no servers are configured";
            return Err(CliError::new(message).hint(format!("pass --servers FILE, or create {file}")));
        }
        let db = self.db.clone().map_or_else(Database::temporary, Database::at)?;
        let invocation = Invocation::database(db.path(), &self.tools);
        let (durability, user) = (self.durability, Principal::user(os_user::name()));
        // Other runs may need other tools: they wait for `steprail resume`.
        let options = EngineOptions { db, tools, durability, user, interrupt_others: true };
        let (client, others) = EngineRuns::open(options, unfinished_runs)?;
        if !others.is_empty() {
            let runs = count(others.len(), "unfinished run is", "unfinished runs are");
            let resume = invocation.resume_command(None);
            writeln!(
                anstream::stderr(),
                "note: {runs} interrupted in this database; continue with: {resume}"
            )?;
        }
        match self.start_in_process(&client, &source, &plan).await {
            Ok(run) => Follower::new(client, invocation, RunTree::of(run.run_id)).finish(self.json).await,
            Err(error) => Follower::new(client, invocation, RunTree::default()).abort(error).await,
        }
    }

    /// Compares the definition with the tools of its servers, and starts the run.
    async fn start_in_process(
        &self,
        client: &EngineRuns,
        source: &Source,
        plan: &Plan,
    ) -> Result<views::Run, CliError> {
        if let Some(gateway) = client.tools.gateway()
            && print_diagnostics(&steprail_mcp::check_tools(source, &gateway).await, source)?
        {
            return Err(CliError::Reported(exit::INVALID));
        }
        self.start(client, inline(source), self.parse_inputs(plan)).await
    }

    /// Reads and checks the definition.
    fn load_definition(&self) -> Result<(Source, Plan), CliError> {
        let source = source_file::read(&self.file)?;
        let loaded = load(&source);
        print_diagnostics(&loaded.diagnostics, &source)?;
        match loaded.plan {
            Some(plan) => Ok((source, plan)),
            None => Err(CliError::Reported(exit::INVALID)),
        }
    }

    /// Starts the run and sends the signals of `--signal`.
    async fn start<C: RunClient>(
        &self,
        client: &C,
        definition: Definition<'_>,
        inputs: Value,
    ) -> Result<views::Run, CliError> {
        let run = client.start(definition, inputs, self.key.clone()).await?;
        for (event, payload) in &self.signal {
            client.signal(event, payload, Some(run.run_id)).await?;
        }
        Ok(run)
    }

    fn parse_inputs(&self, plan: &Plan) -> Value {
        let mut inputs = self.inputs.clone().unwrap_or_default();
        for (name, text) in &self.input {
            let is_string =
                plan.inputs.iter().any(|input| *input.name == **name && accepts_string(input.schema.json()));
            let value = if is_string { None } else { serde_json::from_str(text).ok() };
            inputs.insert(name.clone(), value.unwrap_or_else(|| text.as_str().into()));
        }
        Value::Object(inputs)
    }
}

fn inline(source: &Source) -> Definition<'_> {
    Definition::Inline { text: source.text(), source: source.name() }
}

fn accepts_string(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::String(name)) => name == "string",
        Some(Value::Array(names)) => names.iter().any(|name| name == "string"),
        _ => false,
    }
}
