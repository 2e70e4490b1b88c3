//! `steprail init`: imports the servers of MCP clients, and connects the clients.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::client_config::clients::{self, McpClient};
use super::client_config::connection::{Connection, config_location, entry};
use super::client_config::import::{Import, ImportedServer};
use super::client_config::redacted::RedactedServer;
use super::client_config::servers_file::{Comparison, ServersFile};
use super::shared::error::CliError;
use super::shared::help::DATA_HELP;
use super::terminal::text::{count, sanitize};
use super::terminal::{output, prompt};
use crate::daemon::{DataDir, policy_file};

/// Import the servers of your MCP clients, and connect the clients
///
/// Lists the servers in the config files of MCP clients on this machine. After confirmation, adds them to servers.json of the
/// data directory, and adds Steprail to the config files of the clients. Without a terminal, nothing is written unless
/// `--yes` is given. Values of variables and headers are never printed.
#[derive(Debug, Args)]
pub(super) struct Init {
    #[arg(long, value_name = "DIR", help = DATA_HELP)]
    data: Option<PathBuf>,
    /// Write without prompts; a server that differs from the one in servers.json is not replaced
    #[arg(long)]
    yes: bool,
    /// Show what would be written, without writing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON, without prompts
    #[arg(long)]
    json: bool,
}

/// The JSON output.
#[derive(Debug, Serialize)]
struct Record {
    file: PathBuf,
    /// The number of servers that were written.
    written: usize,
    policy: PolicyOutcome,
    servers: Vec<ServerRecord>,
    clients: Vec<ClientRecord>,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ServerRecord {
    name: String,
    client: String,
    file: PathBuf,
    #[serde(flatten)]
    entry: RedactedServer,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct ClientRecord {
    client: String,
    state: ConnectionState,
}

/// Whether a client is connected to Steprail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum ConnectionState {
    /// By this command.
    Connected,
    /// Before this command.
    Already,
    /// It has a different entry for Steprail.
    Another,
    NotConnected,
    Failed,
}

/// What became of policy.yaml.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum PolicyOutcome {
    Written,
    /// It existed before.
    Kept,
    NotWritten,
}

/// A state, and whether it is final: a prompt was answered or was not necessary.
type Outcome<T> = (T, bool);

impl Init {
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        let home = DataDir::find(self.data.clone()).map_err(CliError::new)?;
        let folder = std::env::current_dir()
            .map_err(|error| CliError::new(format!("cannot read the current directory: {error}")))?;
        let mut file = ServersFile::read(home.servers())?;
        let mut import = Import::scan(clients::home().as_deref(), &folder);
        let servers = std::mem::take(&mut import.servers);
        let comparisons: Vec<Comparison> = servers.iter().map(|server| file.add(server)).collect();
        if let Some(problem) = file.problem() {
            import.warn(&problem);
        }
        import.warnings.iter().try_for_each(|warning| output::warning(warning))?;
        let servers: Vec<(ImportedServer, Comparison)> = servers.into_iter().zip(comparisons).collect();
        self.print_servers(&import, &servers)?;
        let (written, mut is_final) = self.write_servers(&home, &mut file, &servers)?;
        let (policy, policy_is_final) = self.write_policy(&home)?;
        is_final &= policy_is_final;
        let mut clients = Vec::new();
        for client in import.clients() {
            let (state, client_is_final) = self.connect(client, &mut import)?;
            is_final &= client_is_final;
            clients.push(ClientRecord { client: client.name(), state });
        }
        if self.json {
            let servers = servers.into_iter().map(ServerRecord::from).collect();
            let file = file.file().to_owned();
            output::json(&Record { file, written, policy, servers, clients, warnings: import.warnings })?;
        } else {
            self.print_next_steps(&file, is_final)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints a line unless the output is JSON.
    fn say(&self, line: &str) -> io::Result<()> {
        if self.json { Ok(()) } else { writeln!(anstream::stdout(), "{line}") }
    }

    /// Asks for confirmation; `None` with `--dry-run`, with `--json` or without a terminal.
    fn confirm(&self, question: &str) -> Result<Option<bool>, CliError> {
        match self {
            Self { dry_run: true, .. } => Ok(None),
            Self { yes: true, .. } => Ok(Some(true)),
            Self { json: true, .. } => Ok(None),
            _ => prompt::confirm(question),
        }
    }

    fn print_servers(&self, import: &Import, servers: &[(ImportedServer, Comparison)]) -> io::Result<()> {
        if import.files.is_empty() {
            self.say("no config file of an MCP client was found")?;
        }
        let width = servers.iter().map(|(server, _)| server.name.chars().count()).max().unwrap_or_default();
        for (client, file) in &import.files {
            self.say(&format!("{}  {}", client.title(), file.display()))?;
            let is_of_file = |server: &ImportedServer| server.client == *client && server.file == *file;
            let mut of_file = servers.iter().filter(|(server, _)| is_of_file(server)).peekable();
            if of_file.peek().is_none() {
                self.say("  no servers")?;
            }
            for (server, comparison) in of_file {
                let details = match comparison {
                    Comparison::Rejected(reason) => sanitize(reason),
                    _ => RedactedServer::of(&server.original).line(),
                };
                let (name, label) = (sanitize(&server.name), comparison.label());
                self.say(&format!("  {name:width$}  {label:8}  {details}"))?;
            }
        }
        Ok(())
    }

    /// Writes the new servers after confirmation. Returns their number.
    fn write_servers(
        &self,
        home: &DataDir,
        file: &mut ServersFile,
        servers: &[(ImportedServer, Comparison)],
    ) -> Result<Outcome<usize>, CliError> {
        let mut resolved = Vec::new();
        for (server, _) in servers.iter().filter(|(_, comparison)| *comparison == Comparison::Differs) {
            // Several clients may have the same server: one answer applies to all.
            let identity = (&server.name, &server.original);
            if !resolved.contains(&identity) {
                resolved.push(identity);
                self.resolve_difference(file, server)?;
            }
        }
        let path = file.file().display().to_string();
        let added = file.added();
        if added == 0 {
            self.say(&format!("nothing to add to {path}"))?;
            return Ok((0, true));
        }
        let servers = count(added, "server", "servers");
        match self.confirm(&format!("Write {servers} to {path}?"))? {
            Some(true) => {}
            Some(false) => return Ok((0, true)),
            None => {
                self.say(&format!("would write {servers} to {path}"))?;
                return Ok((0, false));
            }
        }
        home.create().map_err(CliError::new)?;
        file.write()?;
        self.say(&format!("wrote {servers} to {path}"))?;
        if let Some(backup) = file.backup() {
            self.say(&format!("the old file is {}", backup.display()))?;
        }
        Ok((added, true))
    }

    /// Asks whether to replace a server in servers.json that differs.
    fn resolve_difference(&self, file: &mut ServersFile, server: &ImportedServer) -> Result<(), CliError> {
        let (name, client) = (sanitize(&server.name), server.client.title());
        let differs = format!("`{name}` of {client} differs from the one in servers.json");
        if !self.yes && self.confirm(&format!("{differs}. Replace it?"))? == Some(true) {
            file.replace(server);
        } else {
            self.say(&format!("{differs}, which is kept"))?;
        }
        Ok(())
    }

    /// Adds Steprail to the config file of a client after confirmation.
    fn connect(&self, client: McpClient, import: &mut Import) -> Result<Outcome<ConnectionState>, CliError> {
        let title = client.title();
        let prepared = config_location(client)
            .and_then(|location| Connection::prepare(location, entry(self.data.as_deref())?));
        let connection = match prepared {
            Ok(connection) => connection,
            Err(error) => return cannot_connect(client, error, import),
        };
        let file = connection.file.display();
        if connection.is_unchanged() {
            self.say(&format!("{title} is already connected, in {file}"))?;
            return Ok((ConnectionState::Already, true));
        }
        if connection.before.is_some() {
            let replace = format!("replace it with `steprail connect {} --write`", client.name());
            self.say(&format!("{title} has a different entry for Steprail in {file}; {replace}"))?;
            return Ok((ConnectionState::Another, true));
        }
        match self.confirm(&format!("Connect {title}, in {file}?"))? {
            Some(true) => {}
            Some(false) => return Ok((ConnectionState::NotConnected, true)),
            None => {
                self.say(&format!("would connect {title}, in {file}"))?;
                return Ok((ConnectionState::NotConnected, false));
            }
        }
        if let Err(error) = connection.write() {
            return cannot_connect(client, error, import);
        }
        self.say(&format!("connected {title}, in {file}"))?;
        Ok((ConnectionState::Connected, true))
    }

    /// Writes a policy that requires approval for destructive calls, unless there is a policy.
    fn write_policy(&self, home: &DataDir) -> Result<Outcome<PolicyOutcome>, CliError> {
        let path = home.policy();
        if path.exists() {
            self.say(&format!("{} exists and is not changed", path.display()))?;
            return Ok((PolicyOutcome::Kept, true));
        }
        let question = format!(
            "Write {}? It requires approval for calls of tools that are destructive or not annotated.",
            path.display()
        );
        match self.confirm(&question)? {
            Some(true) => {}
            Some(false) => return Ok((PolicyOutcome::NotWritten, true)),
            None => {
                self.say(&format!("would write {}", path.display()))?;
                return Ok((PolicyOutcome::NotWritten, false));
            }
        }
        home.create().map_err(CliError::new)?;
        policy_file::write_default(&path)
            .map_err(|error| CliError::new(format!("cannot write {}: {error}", path.display())))?;
        self.say(&format!("wrote {}", path.display()))?;
        Ok((PolicyOutcome::Written, true))
    }

    fn print_next_steps(&self, file: &ServersFile, is_final: bool) -> io::Result<()> {
        let data = self.data.as_ref().map(|data| format!(" --data {}", data.display())).unwrap_or_default();
        self.say("next:")?;
        if !is_final {
            return self.say(&format!("  steprail init{data} --yes   write this"));
        }
        self.say(&format!("  steprail serve{data}   start the daemon; restart it if it is running"))?;
        let path = file.file().display();
        if file.file().is_file() {
            self.say(&format!("  steprail check FILE --servers {path}   compare a definition with the tools"))
        } else {
            self.say(&format!("  add servers to {path}, as in a client: {{ \"mcpServers\": {{ … }} }}"))
        }
    }
}

/// Reports a client that cannot be connected as a warning, so that the others still are.
fn cannot_connect(
    client: McpClient,
    error: CliError,
    import: &mut Import,
) -> Result<Outcome<ConnectionState>, CliError> {
    let CliError::Failed { message, hint, .. } = error else { return Err(error) };
    let warning = sanitize(&format!("{} is not connected: {message}", client.title()));
    output::warning(&warning)?;
    if let Some(hint) = hint {
        writeln!(anstream::stderr(), "hint: {hint}")?;
    }
    import.warn(&warning);
    Ok((ConnectionState::Failed, true))
}

impl Comparison {
    fn label(&self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Same => "same",
            Self::Differs => "differs",
            Self::Rejected(_) => "left out",
        }
    }
}

impl From<(ImportedServer, Comparison)> for ServerRecord {
    fn from((server, comparison): (ImportedServer, Comparison)) -> Self {
        let (state, reason) = match comparison {
            Comparison::Rejected(reason) => ("left_out", Some(reason)),
            comparison => (comparison.label(), None),
        };
        let entry = RedactedServer::of(&server.original);
        Self { name: server.name, client: server.client.name(), file: server.file, entry, state, reason }
    }
}
