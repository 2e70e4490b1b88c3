//! `steprail init`: the servers of the MCP clients on this machine become those of workflows, and the clients get Steprail.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::ask;
use super::clients::{self, Client};
use super::connect::{self, Connection, entry};
use super::found::{Found, Search, Shown};
use super::progress::harmless;
use super::server_list::{ServerList, Standing};
use super::stop::Stop;
use crate::daemon::DataDir;

/// Take over the servers of your MCP clients, and connect the clients
///
/// Shows what the clients on this machine have, and asks before it writes: the servers into servers.json of the data
/// directory, beside those that are there, and Steprail into the clients' files. Without a terminal nothing is written
/// unless you say `--yes`. Values of variables and headers are never shown.
#[derive(Debug, Args)]
pub(super) struct Init {
    /// The data directory; `$STEPRAIL_DATA`, or steprail in the user's data directory by default
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Write without asking; a server that is there already with another content stays
    #[arg(long)]
    yes: bool,
    /// Write nothing, show what would be
    #[arg(long)]
    dry_run: bool,
    /// Print one record for programs, and ask nothing
    #[arg(long)]
    json: bool,
}

/// What was found and done, as programs read it.
#[derive(Debug, Serialize)]
struct Record {
    file: PathBuf,
    written: usize,
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
    shown: Shown,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct ClientRecord {
    client: String,
    state: Link,
}

/// How a client stands to Steprail in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Link {
    Connected,
    /// Before this command.
    Already,
    /// It has an entry of another kind.
    Another,
    NotConnected,
    Failed,
}

/// An answer; nobody was asked if there is none.
type Answer = Option<bool>;

impl Init {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        let home = DataDir::find(self.data.clone()).map_err(Stop::usage)?;
        let folder = std::env::current_dir()
            .map_err(|error| Stop::usage(format!("the current folder cannot be read: {error}")))?;
        let mut list = ServerList::read(home.servers())?;
        let mut search = Search::run(clients::home().as_deref(), &folder);
        let found = std::mem::take(&mut search.servers);
        let standings: Vec<Standing> = found.iter().map(|server| list.offer(server)).collect();
        if let Some(problem) = list.problem() {
            search.warn(&problem);
        }
        for warning in &search.warnings {
            writeln!(anstream::stderr(), "warning: {warning}")?;
        }
        let found: Vec<(Found, Standing)> = found.into_iter().zip(standings).collect();
        self.show(&search, &found)?;
        let (written, mut unasked) = self.take_over(&home, &mut list, &found)?;
        let mut clients = Vec::new();
        for client in search.clients() {
            let (state, asked) = self.connect(client, &mut search)?;
            unasked |= !asked;
            clients.push(ClientRecord { client: client.word(), state });
        }
        if !self.json {
            self.say_what_next(&list, unasked)?;
            return Ok(ExitCode::SUCCESS);
        }
        let servers = found.into_iter().map(ServerRecord::from).collect();
        let file = list.file().to_owned();
        let record = Record { file, written, servers, clients, warnings: search.warnings };
        writeln!(anstream::stdout(), "{}", serde_json::to_string(&record).map_err(io::Error::from)?)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Says something to a person.
    fn say(&self, line: &str) -> io::Result<()> {
        if self.json { Ok(()) } else { writeln!(anstream::stdout(), "{line}") }
    }

    /// Asks, where there is somebody to ask.
    fn agrees(&self, question: &str) -> Result<Answer, Stop> {
        match self {
            Self { dry_run: true, .. } => Ok(None),
            Self { yes: true, .. } => Ok(Some(true)),
            Self { json: true, .. } => Ok(None),
            _ => ask::yes_or_no(question),
        }
    }

    /// The files that were found, with the servers of each.
    fn show(&self, search: &Search, found: &[(Found, Standing)]) -> io::Result<()> {
        if search.files.is_empty() {
            self.say("no config file of an MCP client was found")?;
        }
        let width = found.iter().map(|(server, _)| server.name.chars().count()).max().unwrap_or_default();
        for (client, file) in &search.files {
            self.say(&format!("{}  {}", client.title(), file.display()))?;
            let of_file = |server: &Found| server.client == *client && server.file == *file;
            let mut none = true;
            for (server, standing) in found.iter().filter(|(server, _)| of_file(server)) {
                none = false;
                let (word, rest) = match standing {
                    Standing::LeftOut(reason) => (standing.word(), harmless(reason)),
                    _ => (standing.word(), Shown::of(&server.written).line()),
                };
                self.say(&format!("  {:width$}  {word:8}  {rest}", harmless(&server.name)))?;
            }
            if none {
                self.say("  no servers")?;
            }
        }
        Ok(())
    }

    /// Writes the new servers, if the user agrees. Gives how many, and whether something was left because nobody was asked.
    fn take_over(
        &self,
        home: &DataDir,
        list: &mut ServerList,
        found: &[(Found, Standing)],
    ) -> Result<(usize, bool), Stop> {
        let mut settled = Vec::new();
        for (server, _) in found.iter().filter(|(_, standing)| *standing == Standing::Differs) {
            // Several clients may have the same: one answer counts for all.
            let meant = (&server.name, &server.written);
            if !settled.contains(&meant) {
                settled.push(meant);
                self.settle(list, server)?;
            }
        }
        let count = list.added();
        let file = list.file().display().to_string();
        let servers = if count == 1 { "1 server".to_owned() } else { format!("{count} servers") };
        if count == 0 {
            self.say(&format!("nothing to add to {file}"))?;
            return Ok((0, false));
        }
        match self.agrees(&format!("Write {servers} to {file}?"))? {
            Some(true) => {}
            Some(false) => return Ok((0, false)),
            None => {
                self.say(&format!("would write {servers} to {file}"))?;
                return Ok((0, true));
            }
        }
        home.create().map_err(Stop::usage)?;
        list.write()?;
        self.say(&format!("wrote {servers} to {file}"))?;
        if let Some(kept) = list.kept() {
            self.say(&format!("what was there is in {}", kept.display()))?;
        }
        Ok((count, false))
    }

    /// Two servers of one name: the one that is there stays, unless a human says otherwise.
    fn settle(&self, list: &mut ServerList, server: &Found) -> Result<(), Stop> {
        let (name, client) = (harmless(&server.name), server.client.title());
        let differs = format!("`{name}` of {client} differs from the one in servers.json");
        if !self.yes && self.agrees(&format!("{differs}. Take it instead?"))? == Some(true) {
            list.take(server);
        } else {
            self.say(&format!("{differs}, which stays"))?;
        }
        Ok(())
    }

    /// Puts Steprail into a client's file, if the user agrees; says whether somebody was asked if there was a need.
    fn connect(&self, client: Client, search: &mut Search) -> Result<(Link, bool), Stop> {
        let title = client.title();
        let prepared =
            connect::place(client).and_then(|place| Connection::prepare(place, entry(self.data.as_deref())?));
        let connection = match prepared {
            Ok(connection) => connection,
            Err(stop) => return cannot_connect(client, stop, search),
        };
        let file = connection.file.display();
        if connection.is_there() {
            self.say(&format!("{title} is connected already, in {file}"))?;
            return Ok((Link::Already, true));
        }
        if connection.before.is_some() {
            let how = format!("`steprail connect {} --write` replaces it", client.word());
            self.say(&format!("{title} has another entry for Steprail in {file}; {how}"))?;
            return Ok((Link::Another, true));
        }
        match self.agrees(&format!("Connect {title}, in {file}?"))? {
            Some(true) => {}
            Some(false) => return Ok((Link::NotConnected, true)),
            None => {
                self.say(&format!("would connect {title}, in {file}"))?;
                return Ok((Link::NotConnected, false));
            }
        }
        if let Err(stop) = connection.write() {
            return cannot_connect(client, stop, search);
        }
        self.say(&format!("connected {title}, in {file}"))?;
        Ok((Link::Connected, true))
    }

    fn say_what_next(&self, list: &ServerList, unasked: bool) -> io::Result<()> {
        let data = self.data.as_ref().map(|data| format!(" --data {}", data.display())).unwrap_or_default();
        self.say("next:")?;
        if unasked {
            return self.say(&format!("  steprail init{data} --yes   writes this"));
        }
        self.say(&format!(
            "  steprail serve{data}   runs the daemon; one that runs reads servers.json at its next start"
        ))?;
        let file = list.file().display();
        if list.file().is_file() {
            self.say(&format!(
                "  steprail check FILE --servers {file}   compares a definition with the tools"
            ))
        } else {
            self.say(&format!("  put servers into {file}, as a client does: {{ \"mcpServers\": {{ … }} }}"))
        }
    }
}

/// One client that cannot be connected keeps no other from it.
fn cannot_connect(client: Client, stop: Stop, search: &mut Search) -> Result<(Link, bool), Stop> {
    let Stop::Told { message, hint, .. } = stop else { return Err(stop) };
    let warning = format!("{} is not connected: {message}", client.title());
    writeln!(anstream::stderr(), "warning: {}", harmless(&warning))?;
    if let Some(hint) = hint {
        writeln!(anstream::stderr(), "hint: {hint}")?;
    }
    search.warn(&warning);
    Ok((Link::Failed, true))
}

impl Standing {
    fn word(&self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Same => "same",
            Self::Differs => "differs",
            Self::LeftOut(_) => "left out",
        }
    }
}

impl From<(Found, Standing)> for ServerRecord {
    fn from((server, standing): (Found, Standing)) -> Self {
        Self {
            shown: Shown::of(&server.written),
            name: server.name,
            client: server.client.word(),
            file: server.file,
            state: match standing {
                Standing::LeftOut(_) => "left_out",
                _ => standing.word(),
            },
            reason: match standing {
                Standing::LeftOut(reason) => Some(reason),
                _ => None,
            },
        }
    }
}
