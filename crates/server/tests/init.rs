//! `steprail init` with the config files of several MCP clients: its output, and the files that it writes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use steprail_mcp::config::Servers;
use tempfile::TempDir;

const CLAUDE_CODE: &str = r#"{ "numStartups": 7,
  "mcpServers": { "git": { "type": "stdio", "command": "mcp-server-git", "args": ["--key", "s3cret"], "env": {} } },
  "projects": {
    "[project]": { "mcpServers": { "local": { "command": "./serve" } } },
    "/elsewhere": { "mcpServers": { "other": { "command": "other" } } } } }"#;

const CLAUDE_DESKTOP: &str = r#"{ "mcpServers": {
  "github": { "command": "npx", "args": ["-y", "@scope/server-github"], "env": { "GITHUB_TOKEN": "s3cret" } },
  "steprail-of-mine": { "command": "/opt/bin/steprail", "args": ["mcp"] } } }"#;

const CURSOR: &str = r#"{
  // Mine, with s3cret things.
  "mcpServers": {
    "crm": { "url": "https://ann:s3cret@crm.example/s/s3cret/mcp?key=s3cret", "headers": { "Authorization": "Bearer s3cret" }, },
    "old": { "type": "sse", "url": "https://old.example/sse" },
    "odd": { "command": "odd", "env": "TOKEN=s3cret" },
    "Git": { "command": "another-git" },
    "off": { "command": "off", "disabled": true },
  },
}"#;

const VS_CODE: &str = r#"{ "servers": {
  "github": { "command": "npx", "args": ["-y", "@scope/server-github"], "env": { "GITHUB_TOKEN": "s3cret" } },
  "notes": { "command": "node", "args": ["${workspaceFolder}/notes.js"], "envFile": ".env" } } }"#;

const BROKEN: &str = r#"{ "mcpServers": { "lost": { "env": { "KEY": "s3cret" "#;

/// A home directory with a project, and the config files of clients.
struct Machine {
    root: PathBuf,
    /// Deleted on drop.
    _folder: TempDir,
}

impl Machine {
    fn with(files: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let machine = Self { root, _folder: folder };
        fs::create_dir_all(machine.path("home/project")).unwrap();
        for (name, text) in files {
            let file = machine.path(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            let project = machine.path("home/project").display().to_string();
            fs::write(file, text.replace("[project]", &project)).unwrap();
        }
        machine
    }

    fn with_many_clients() -> Self {
        Self::with(&[
            ("home/.claude.json", CLAUDE_CODE),
            ("home/.config/Claude/claude_desktop_config.json", CLAUDE_DESKTOP),
            ("home/.cursor/mcp.json", CURSOR),
            ("home/project/.vscode/mcp.json", VS_CODE),
            ("home/.gemini/settings.json", BROKEN),
        ])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn servers(&self) -> PathBuf {
        self.path("home/.local/share/steprail/servers.json")
    }

    fn run(&self, arguments: &str) -> String {
        self.run_with(arguments, Stdio::null())
    }

    /// Runs a command. Returns its output and exit code. Panics if the output contains a secret.
    fn run_with(&self, arguments: &str, stdin: Stdio) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steprail"));
        command.args(arguments.split_whitespace()).current_dir(self.path("home/project")).stdin(stdin);
        command.env("HOME", self.path("home")).env_remove("STEPRAIL_DATA").env_remove("XDG_DATA_HOME");
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (out, err) = (text(output.stdout), text(output.stderr));
        assert!(!out.contains("s3cret") && !err.contains("s3cret"), "{err}{out}");
        let printed = format!("{err}--- stdout\n{out}--- exit {}\n", output.status.code().unwrap());
        printed.replace(&self.root.display().to_string(), "[root]")
    }

    /// Runs a command at a terminal, with typed input.
    fn run_at_terminal(&self, arguments: &str, typed: &str) -> String {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let mut terminal = File::from(openpt(flags).unwrap());
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
        let stdin = File::options().read(true).write(true).open(name).unwrap();
        // The last character ends the input, so that an unexpected prompt gets an empty answer.
        write!(terminal, "{typed}\x04").unwrap();
        self.run_with(arguments, stdin.into()).replace("[y/N] ", "[y/N]\n")
    }

    /// All files with their contents.
    fn files(&self) -> BTreeMap<PathBuf, String> {
        let mut files = BTreeMap::new();
        let mut folders = vec![self.root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() {
                    folders.push(entry);
                } else {
                    files.insert(entry.clone(), fs::read_to_string(&entry).unwrap());
                }
            }
        }
        files
    }

    fn text(&self, file: &Path) -> String {
        fs::read_to_string(file).unwrap().replace(&self.root.display().to_string(), "[root]")
    }
}

fn mode(file: &Path) -> u32 {
    fs::metadata(file).unwrap().permissions().mode() & 0o777
}

#[test]
fn dry_run_writes_nothing() {
    let machine = Machine::with_many_clients();
    let before = machine.files();
    insta::assert_snapshot!(machine.run("init --dry-run"));
    assert_eq!(machine.run("init --dry-run --yes"), machine.run("init --dry-run"));
    assert_eq!(machine.run("init"), machine.run("init --dry-run"), "without a terminal there are no prompts");
    assert_eq!(machine.files(), before);
}

#[test]
fn yes_adds_new_servers_and_a_second_run_changes_nothing() {
    let machine = Machine::with_many_clients();
    insta::assert_snapshot!("yes", machine.run("init --yes"));
    let servers = machine.servers();
    insta::assert_snapshot!("servers", machine.text(&servers));
    assert_eq!(mode(&servers), 0o600);
    let read = Servers::read(&machine.text(&servers)).expect("servers");
    assert_eq!(read.servers.keys().collect::<Vec<_>>(), ["crm", "git", "github", "local", "notes", "old"]);
    assert_eq!(
        machine.text(&machine.path("home/.cursor/mcp.json")),
        CURSOR,
        "a file with comments is not rewritten"
    );

    let after = machine.files();
    insta::assert_snapshot!("yes_again", machine.run("init --yes"));
    assert_eq!(machine.files(), after);
}

const EXISTING: &str =
    "{ // mine\n  \"servers\": { \"github\": { \"command\": \"my-github\" } }, \"inputs\": [] }";

#[test]
fn server_that_differs_is_not_replaced() {
    let machine = Machine::with(&[
        ("home/.config/Claude/claude_desktop_config.json", CLAUDE_DESKTOP),
        ("home/project/.vscode/mcp.json", VS_CODE),
        ("home/.local/share/steprail/servers.json", EXISTING),
    ]);
    insta::assert_snapshot!("conflict", machine.run("init --yes"));
    let servers = machine.servers();
    insta::assert_snapshot!("servers_after_conflict", machine.text(&servers));
    let copy = servers.with_extension("json.before");
    assert_eq!((machine.text(&copy).as_str(), mode(&copy), mode(&servers)), (EXISTING, 0o600, 0o600));
}

#[test]
fn terminal_prompts_for_each_change() {
    let machine = Machine::with(&[
        ("home/.config/Claude/claude_desktop_config.json", CLAUDE_DESKTOP),
        ("home/project/.vscode/mcp.json", VS_CODE),
        ("home/.local/share/steprail/servers.json", EXISTING),
    ]);
    let before = machine.files();
    // The prompts: replace `github`, write servers.json, write policy.yaml, connect Claude Desktop, connect VS Code.
    insta::assert_snapshot!("terminal_no", machine.run_at_terminal("init", "n\nn\nn\n\nno\n"));
    assert_eq!(machine.files(), before);
    insta::assert_snapshot!("terminal_yes", machine.run_at_terminal("init", "y\ny\ny\nn\nyes\n"));
    let read = Servers::read(&machine.text(&machine.servers())).expect("servers");
    assert_eq!(read.servers.len(), 2);
    assert!(!machine.text(&machine.servers()).contains("my-github"));
    assert!(machine.text(&machine.path("home/project/.vscode/mcp.json")).contains("\"steprail\""));
    let desktop = machine.path("home/.config/Claude/claude_desktop_config.json");
    assert_eq!(machine.text(&desktop), CLAUDE_DESKTOP);
}

#[test]
fn json_output_is_one_record() {
    let machine = Machine::with(&[
        ("home/.cursor/mcp.json", r#"{ "mcpServers": { "steprail": { "command": "x" } } }"#),
        ("home/project/.vscode/mcp.json", VS_CODE),
        ("home/.gemini/settings.json", BROKEN),
    ]);
    let printed = machine.run("init --json --yes --data ../data");
    let record = printed.split_once("--- stdout\n").unwrap().1.split_once("--- exit 0").unwrap().0;
    let record: serde_json::Value = serde_json::from_str(record).expect("one record");
    insta::assert_json_snapshot!(record);
    let entry = machine.text(&machine.path("home/project/.vscode/mcp.json"));
    assert!(entry.contains("[root]/home/project/../data"), "{entry}");
    assert_eq!(mode(&machine.path("home/data/servers.json")), 0o600);
}

#[test]
fn invalid_servers_file_is_not_changed() {
    let machine = Machine::with(&[
        ("home/.cursor/mcp.json", "{ \"mcpServers\": { \"a\": { \"command\": \"a\" } } }"),
        ("home/.local/share/steprail/servers.json", "{ \"mcpServers\": [] }"),
    ]);
    let before = machine.files();
    insta::assert_snapshot!(machine.run("init --yes"));
    assert_eq!(machine.files(), before);
}

#[test]
fn invalid_entry_of_the_servers_file_is_reported() {
    let machine = Machine::with(&[
        ("home/.cursor/mcp.json", "{ \"mcpServers\": { \"a\": { \"command\": \"a\" } } }"),
        ("home/.local/share/steprail/servers.json", "{ \"mcpServers\": { \"empty\": {} } }"),
    ]);
    let printed = machine.run("init --dry-run");
    let problem = "`empty` is skipped: it needs either a `command` or a `url`";
    assert!(printed.contains(problem), "{printed}");
}

#[test]
fn machine_without_clients() {
    insta::assert_snapshot!(Machine::with(&[]).run("init"));
}

#[test]
fn home_directory_as_project_is_read_once() {
    let machine = Machine::with(&[(
        "home/project/.cursor/mcp.json",
        r#"{ "mcpServers": { "a": { "command": "a" } } }"#,
    )]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_steprail"));
    command.args(["init", "--json"]).env("HOME", machine.path("home/project"));
    let output = command.current_dir(machine.path("home/project")).output().unwrap();
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a record");
    assert_eq!(record["servers"].as_array().map(Vec::len), Some(1), "{record}");
}

#[test]
fn completions_include_every_command() {
    let machine = Machine::with(&[]);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = machine.run(&format!("completions {shell}"));
        assert!(script.contains("approve") && script.contains("dry-run"), "{shell}: {script}");
        assert!(script.ends_with("--- exit 0\n"));
    }
}

#[test]
fn manual_has_a_page_per_command() {
    let machine = Machine::with(&[]);
    let page = machine.run("man");
    let first_lines: Vec<&str> = page.lines().take(14).collect();
    insta::assert_snapshot!("manual", first_lines.join("\n"));
    machine.run("man --dir pages/here");
    let written = |page: &str| machine.path("home/project/pages/here").join(page).is_file();
    assert!(written("steprail.1") && written("steprail-init.1") && !written("steprail-help.1"));
    let page = machine.text(&machine.path("home/project/pages/here/steprail-check.1"));
    assert!(page.contains("Check definitions and show every problem"), "{page}");
    fs::write(machine.path("home/project/file"), "").unwrap();
    assert!(machine.run("man --dir file/pages").contains("cannot write to file/pages"));
}
