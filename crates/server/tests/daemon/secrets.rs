//! `steprail secret` against the real daemon: storage, and redaction everywhere else.

use serde_json::{Value, json};

use super::background::{Background, err, out};

const VALUE: &str = "s3cret-value-of-ann";
const SHARED: &str = "s3cret-value-of-all";

/// Servers that use secrets: programs that write the value to a file in another directory, and exit.
fn data(output_dir: &std::path::Path) -> Background {
    let writes = |reference: &str, file: &str| {
        json!({ "command": "sh", "args": ["-c", "printf %s \"$TOKEN\" > \"$OUT\""],
                "env": { "TOKEN": reference, "OUT": output_dir.join(file) } })
    };
    Background::new(&json!({ "mcpServers": {
        "own": writes("${user:crm}", "own"), "all": writes("${secret:crm}", "all"),
    } }))
}

#[test]
fn secrets_are_set_listed_by_name_and_removed() {
    let data = Background::new(&json!({ "mcpServers": {} }));
    assert_eq!(out(&data.piped(&["secret", "set", "crm"], &format!("{VALUE}\n"))), "crm is set\n");
    let mut set = data.command(&["secret", "set", "crm", "--shared", "--from-env", "CRM"]);
    assert_eq!(out(&set.env("CRM", SHARED).output().expect("an end")), "crm is set\n");
    let own: Value = serde_json::from_str(&out(&data.run(&["secret", "list", "--json"]))).expect("JSON");
    assert_eq!((&own[0]["name"], &own[0]["user"]), (&json!("crm"), &json!("ann")));
    let shared = out(&data.run(&["secret", "list", "--shared"]));
    assert!(shared.contains("all users") && !shared.contains(SHARED), "{shared}");
    let error = |arguments: &[&str]| err(&data.run(arguments));
    assert!(error(&["secret", "set", "a/b", "--from-env", "HOME"]).contains("is not a valid name"));
    assert!(error(&["secret", "set", "x", "--from-env", "NOT_SET_HERE"]).contains("NOT_SET_HERE"));
    assert!(error(&["secret", "set", "x"]).contains("the value is empty"));
    assert!(error(&["secret", "set", "x", "--user", "bob", "--from-env", "HOME"]).contains("no user"));
    assert_eq!(out(&data.run(&["secret", "remove", "crm"])), "crm is removed\n");
    assert!(error(&["secret", "remove", "crm"]).contains("there is no secret `crm`"));
}

#[test]
fn secrets_reach_servers_and_are_redacted_elsewhere() {
    let output_dir = tempfile::tempdir().expect("a folder");
    let data = data(output_dir.path());
    out(&data.piped(&["secret", "set", "crm"], VALUE));
    out(&data.piped(&["secret", "set", "crm", "--shared"], SHARED));
    for server in ["own", "all"] {
        let definition =
            format!("name: {server}\nsteps: [{{ id: call, tool: {server}__x, server_wait: 1s }}]");
        let file = output_dir.path().join(format!("{server}.yaml"));
        std::fs::write(&file, definition).expect("written");
        let ran = data.run(&["run", &file.display().to_string()]);
        assert_eq!(ran.status.code(), Some(1), "the programs are not MCP servers: {ran:?}");
    }
    let written = |name: &str| std::fs::read_to_string(output_dir.path().join(name)).expect(name);
    assert_eq!((&*written("own"), &*written("all")), (VALUE, SHARED));
    for arguments in [&["servers", "--json"][..], &["events"], &["runs", "--json"], &["audit", "verify"]] {
        let output = data.run(arguments);
        let text = format!("{output:?}");
        assert!(!text.contains("s3cret"), "{arguments:?}: {text}");
    }
    assert!(data.log().contains("secret set"), "the log level is trace");
    assert_eq!(data.files_with(&[VALUE, SHARED]), Vec::<String>::new());
}

#[test]
fn missing_key_is_reported_and_can_be_restored() {
    let data = Background::new(&json!({ "mcpServers": {} }));
    out(&data.piped(&["secret", "set", "crm"], VALUE));
    let (key, saved) = (data.path("secrets.key"), data.path("saved"));
    std::fs::rename(&key, &saved).expect("moved");
    out(&data.run(&["stop"]));
    let lost = data.run(&["secret", "list"]);
    let text = String::from_utf8_lossy(&lost.stderr);
    assert!(!lost.status.success() && text.contains("secrets.key is missing"), "{text}");
    std::fs::rename(&saved, &key).expect("moved back");
    assert!(out(&data.run(&["secret", "list"])).contains("crm"));
}
