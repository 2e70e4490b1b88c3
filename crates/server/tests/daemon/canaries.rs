//! Canary secrets: servers that repeat them everywhere, and a search for them in everything that the daemon writes or sends.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::background::{Background, out};
use super::support::{Rpc, test_file};

const ENTRY: &str = "canary-entry-\"7f/+ q";
const HEADER: &str = "canary-header-31/+=x";
const ARGUMENT: &str = "canary-argument-?9>é z";

/// A daemon with leaky servers, and the folder where those write what they received.
struct Leaky {
    data: Background,
    folder: TempDir,
    http: Child,
    mcp: String,
}

impl Leaky {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let script = test_file("servers/leaky.py");
        let mut http = Command::new("python3");
        let mut http = http
            .arg(&script)
            .arg(folder.path())
            .arg("http")
            .stderr(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut port = String::new();
        BufReader::new(http.stdout.take().expect("its output")).read_line(&mut port).expect("a port");
        let data = Background::new(&json!({ "mcpServers": {
            "leaky": {
                "command": "python3", "args": [script, folder.path(), "stdio"], "env": { "TOKEN": "${secret:entry}" },
            },
            "web": {
                "url": format!("http://127.0.0.1:{}/mcp", port.trim()),
                "headers": { "Authorization": format!("Bearer {HEADER}") },
            },
        } }));
        let own =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|own| own.local_addr()).expect("a port");
        let settings = format!(
            "[log]\nlevel = 'trace'\n[http]\nlisten = '{own}'\n[mcp]\nexpose = ['leaky__*']\n[definitions]\nenv = ['REGION']\n\
             [store]\ndurability = 'process'\n[store.secrets]\narg = {{ file = '{}', servers = ['leaky', 'web'] }}\n\
             entry = {{ command = ['printenv', 'ENTRY'] }}\n",
            folder.path().join("secret").display()
        );
        std::fs::write(data.path("steprail.toml"), settings).expect("written");
        let secret = folder.path().join("secret");
        std::fs::write(&secret, ARGUMENT).expect("written");
        std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).expect("set");
        Self { data, folder, http, mcp: format!("http://{own}/mcp") }
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut command = self.data.command(arguments);
        let output =
            command.env("ENTRY", ENTRY).env("REGION", "eu-1").env("STAGE", "prod").output().expect("an end");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    }

    /// Runs a definition of one or more steps.
    fn run_steps(&self, name: &str, steps: &Value) -> String {
        let file = self.folder.path().join(format!("{name}.json"));
        std::fs::write(&file, json!({ "name": name, "steps": steps }).to_string()).expect("written");
        self.run(&["run", &file.display().to_string()])
    }

    /// The lines of a file that the servers wrote.
    fn lines(&self, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.path().join(name)).expect(name);
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

impl Drop for Leaky {
    fn drop(&mut self) {
        let _ = self.http.kill();
        let _ = self.http.wait();
    }
}

/// Every file below a folder with its permissions.
fn files(folder: &Path) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        let mode = entry.metadata().expect("metadata").permissions().mode() & 0o777;
        found.push((entry.path().display().to_string(), mode));
        if entry.path().is_dir() {
            found.extend(files(&entry.path()));
        }
    }
    found
}

#[tokio::test]
async fn canary_secrets_are_found_nowhere() {
    let leaky = Leaky::start();
    let mut said = Vec::new();
    for server in ["leaky", "web"] {
        for mode in ["result", "progress", "tool_error", "rpc_error", "exit"] {
            if (server, mode) == ("web", "exit") {
                continue;
            }
            let args = json!({ "mode": mode, "token": "${secret:arg}", "region": "{{env.REGION}}" });
            let steps = json!([{ "id": "leak", "tool": format!("{server}__leak"), "args": args, "on_uncertain": "fail" }]);
            said.push(leaky.run_steps(&format!("{server}-{mode}"), &steps));
        }
    }
    let received = leaky.lines("received");
    assert_eq!(received.len(), 9, "{said:#?}");
    assert!(
        received.iter().all(|args| args["token"] == ARGUMENT && args["region"] == "eu-1"),
        "{received:?}"
    );
    assert!(said[0].contains("‹secret:arg›") && said[0].contains("‹secret:entry›"), "{}", said[0]);
    assert!(said.iter().any(|text| text.contains("‹secret:Authorization of web›")), "{said:#?}");

    let direct =
        json!({ "name": "leaky__leak", "arguments": { "mode": "result", "token": "${secret:arg}" } });
    said.push(Rpc::new(&leaky.mcp).modern("tools/call", direct).await.to_string());
    assert!(said.last().is_some_and(|text| text.contains("‹secret:arg›")), "{said:#?}");
    for arguments in [
        &["events"][..],
        &["runs", "--json"],
        &["servers", "--json"],
        &["tools", "--json"],
        &["audit", "verify"],
        &["backup", &leaky.folder.path().join("copy.db").display().to_string()],
    ] {
        said.push(leaky.run(arguments));
    }
    let everything = said.join("\n");
    let forms = leaky.lines("forms");
    let forms: BTreeSet<String> = forms.iter().filter_map(|form| Some(form.as_str()?.to_owned())).collect();
    assert!(forms.len() > 15, "{forms:?}");
    let forms: Vec<&str> = forms.iter().map(String::as_str).collect();
    let leaked: Vec<&&str> = forms.iter().filter(|form| everything.contains(**form)).collect();
    assert!(leaked.is_empty(), "{leaked:?} in {everything}");
    let copy = std::fs::read(leaky.folder.path().join("copy.db")).expect("a backup");
    assert!(!forms.iter().any(|form| copy.windows(form.len()).any(|part| part == form.as_bytes())));
    // servers.json has the header itself, as the operator wrote it.
    let (header, others): (Vec<&str>, Vec<&str>) = forms.iter().partition(|form| **form == HEADER);
    assert_eq!(leaky.data.files_with(&others), Vec::<String>::new());
    assert_eq!(leaky.data.files_with(&header), ["servers.json"]);
}

#[test]
fn references_in_data_and_of_other_servers_are_not_resolved() {
    let leaky = Leaky::start();
    let copied = json!([
        { "id": "page", "tool": "leaky__leak", "args": { "mode": "inject" } },
        { "id": "post", "tool": "leaky__leak", "args": { "token": "${secret:arg}", "note": "{{steps.page.output}}" } },
    ]);
    leaky.run_steps("copied", &copied);
    let received = leaky.lines("received");
    assert_eq!((&received[1]["token"], &received[1]["note"]), (&json!(ARGUMENT), &json!("${secret:arg}")));
    let mixed = json!([
        { "id": "page", "tool": "leaky__leak", "args": { "mode": "inject" } },
        { "id": "post", "tool": "leaky__leak", "args": { "token": "${secret:arg}{{steps.page.output}}" } },
    ]);
    assert!(leaky.run_steps("mixed", &mixed).contains("that the definition does not"));
    let step = |args: Value| json!([{ "id": "leak", "tool": "leaky__leak", "args": args }]);
    let unbound = leaky.run_steps("unbound", &step(json!({ "token": "${secret:entry}" })));
    assert!(unbound.contains("may not be sent to `leaky`"), "{unbound}");
    let unknown = leaky.run_steps("unknown", &step(json!({ "token": "${secret:nothing}" })));
    assert!(
        unknown.contains("may not be sent to `leaky`") || unknown.contains("there is no secret"),
        "{unknown}"
    );
    let unlisted = leaky.run_steps("unlisted", &step(json!({ "token": "{{env.STAGE}}" })));
    assert!(unlisted.contains("not listed in the setting `definitions.env`"), "{unlisted}");
    assert_eq!(leaky.lines("received").len(), 3, "nothing else was sent");
    let file = leaky.folder.path().join("unbound.json").display().to_string();
    let data = leaky.data.path("").display().to_string();
    let checked = leaky.run(&["check", &file, "--data", &data]);
    assert!(checked.contains("SR512") && checked.contains("may not be sent to `leaky`"), "{checked}");
    let file = leaky.folder.path().join("unlisted.json").display().to_string();
    let checked = leaky.run(&["check", &file, "--data", &data]);
    assert!(checked.contains("SR513") && checked.contains("definitions.env"), "{checked}");
}

#[test]
fn files_of_the_daemon_are_for_their_owner_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    std::fs::create_dir(&data).expect("created");
    std::fs::set_permissions(&data, PermissionsExt::from_mode(0o777)).expect("set");
    let servers = json!({ "mcpServers": { "leaky": {
        "command": "python3", "args": [test_file("servers/leaky.py"), folder.path(), "stdio"] } } });
    std::fs::write(folder.path().join("servers.json"), servers.to_string()).expect("written");
    std::fs::write(folder.path().join("w.yaml"), "name: w\nsteps: [{ id: a, tool: leaky__leak }]")
        .expect("written");
    // The umask of the daemon and of every command is 0.
    let script = "umask 0; \"$0\" connect --help >/dev/null; cp ../servers.json servers.json && chmod 600 servers.json \
                  && printf 'secret-value' | \"$0\" secret set crm && \"$0\" run ../w.yaml && \"$0\" backup copy.db && \"$0\" runs";
    let mut command = Command::new("sh");
    command.args(["-c", script, super::support::steprail()]).current_dir(&data);
    command.env("STEPRAIL_DATA", &data).env("STEPRAIL_HTTP_LISTEN", "127.0.0.1:0").env("USER", "ann");
    let output = command.env_remove("STEPRAIL_SERVER").env_remove("STEPRAIL_TOKEN").output().expect("an end");
    let found = files(&data);
    let stop = Command::new(super::support::steprail()).arg("stop").env("STEPRAIL_DATA", &data).output();
    out(&stop.expect("an end"));
    assert!(output.status.success(), "{output:?}");
    let is_open = |(_, mode): &&(String, u32)| mode & 0o077 != 0;
    let open: Vec<_> = found.iter().filter(is_open).collect();
    assert!(open.is_empty(), "{open:?}");
    for name in [
        "steprail.db",
        "steprail.db-wal",
        "steprail.db-anchor",
        "daemon.log",
        "serve.json",
        "human.sock",
        "copy.db",
    ] {
        assert!(found.iter().any(|(path, _)| path.ends_with(&format!("/{name}"))), "{name}: {found:?}");
    }
}
