//! Secrets at a terminal, against the real daemon: what is stored, and where values must not appear.

use serde_json::{Value, json};

use super::background::{Background, err, out};

const VALUE: &str = "s3cret-value-of-ann";
const SHARED: &str = "s3cret-value-of-all";

/// Servers that use secrets: programs that write what they got to a file elsewhere, and end.
fn data(elsewhere: &std::path::Path) -> Background {
    let writes = |reference: &str, file: &str| {
        json!({ "command": "sh", "args": ["-c", "printf %s \"$TOKEN\" > \"$OUT\""],
                "env": { "TOKEN": reference, "OUT": elsewhere.join(file) } })
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
    let refused = |arguments: &[&str]| err(&data.run(arguments));
    assert!(refused(&["secret", "set", "a/b", "--from-env", "HOME"]).contains("cannot be the name"));
    assert!(refused(&["secret", "set", "x", "--from-env", "NOT_SET_HERE"]).contains("NOT_SET_HERE"));
    assert!(refused(&["secret", "set", "x"]).contains("the value is empty"));
    assert!(refused(&["secret", "set", "x", "--user", "bob", "--from-env", "HOME"]).contains("no user"));
    assert_eq!(out(&data.run(&["secret", "remove", "crm"])), "crm is removed\n");
    assert!(refused(&["secret", "remove", "crm"]).contains("there is no secret `crm`"));
}

#[test]
fn servers_get_secrets_and_nothing_else_shows_them() {
    let elsewhere = tempfile::tempdir().expect("a folder");
    let data = data(elsewhere.path());
    out(&data.piped(&["secret", "set", "crm"], VALUE));
    out(&data.piped(&["secret", "set", "crm", "--shared"], SHARED));
    for server in ["own", "all"] {
        let definition =
            format!("name: {server}\nsteps: [{{ id: call, tool: {server}__x, server_wait: 1s }}]");
        let file = elsewhere.path().join(format!("{server}.yaml"));
        std::fs::write(&file, definition).expect("written");
        let ran = data.run(&["run", &file.display().to_string()]);
        assert_eq!(ran.status.code(), Some(1), "the programs are no servers: {ran:?}");
    }
    let got = |name: &str| std::fs::read_to_string(elsewhere.path().join(name)).expect(name);
    assert_eq!((&*got("own"), &*got("all")), (VALUE, SHARED));
    for arguments in [&["servers", "--json"][..], &["events"], &["runs", "--json"], &["audit", "verify"]] {
        let output = data.run(arguments);
        let text = format!("{output:?}");
        assert!(!text.contains("s3cret"), "{arguments:?}: {text}");
    }
    assert!(data.log().contains("a secret is set"), "the log has everything");
    assert_eq!(data.files_with(&[VALUE, SHARED]), Vec::<String>::new());
}

#[test]
fn a_lost_key_is_named_and_a_restored_one_counts() {
    let data = Background::new(&json!({ "mcpServers": {} }));
    out(&data.piped(&["secret", "set", "crm"], VALUE));
    let (key, kept) = (data.path("secrets.key"), data.path("kept"));
    std::fs::rename(&key, &kept).expect("moved");
    out(&data.run(&["stop"]));
    let lost = data.run(&["secret", "list"]);
    let text = String::from_utf8_lossy(&lost.stderr);
    assert!(!lost.status.success() && text.contains("secrets.key is missing"), "{text}");
    std::fs::rename(&kept, &key).expect("moved back");
    assert!(out(&data.run(&["secret", "list"])).contains("crm"));
}
