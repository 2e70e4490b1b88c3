//! Many servers at once, and servers that never respond. The daemon does not wait for them.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::{Daemon, client, output, server, steprail, test_file};

/// Config entries of real servers, with the environment that each needs to start.
fn entries(folder: &std::path::Path) -> BTreeMap<&'static str, Value> {
    let own = |name: &str| folder.join(name).display().to_string();
    let key = |name: &str| json!({ name: "test" });
    let all: [(&str, &str, Vec<String>, Value); 27] = [
        ("airtable", "airtable-mcp-server", vec![], json!({ "AIRTABLE_API_KEY": "pat1.test" })),
        ("brave", "brave-search-mcp-server", vec![], key("BRAVE_API_KEY")),
        ("brave-old", "mcp-server-brave-search", vec![], key("BRAVE_API_KEY")),
        ("chart", "mcp-server-chart", vec![], json!({})),
        ("context7", "context7-mcp", vec![], json!({})),
        ("curl", "server-curl", vec![], json!({})),
        (
            "elastic",
            "mcp-server-elasticsearch",
            vec![],
            json!({ "ES_URL": "http://127.0.0.1:1", "ES_API_KEY": "test" }),
        ),
        ("eslint", "mcp", vec![], json!({})),
        ("everything", "mcp-server-everything", vec![], json!({})),
        ("exa", "exa-mcp-server", vec![], key("EXA_API_KEY")),
        ("fetch", "mcp-server-fetch", vec![], json!({})),
        ("figma", "figma-developer-mcp", vec!["--stdio".to_owned()], key("FIGMA_API_KEY")),
        ("files", "mcp-server-filesystem", vec![own("")], json!({})),
        ("firecrawl", "firecrawl-mcp", vec![], key("FIRECRAWL_API_KEY")),
        ("git", "mcp-server-git", vec![], json!({})),
        ("github", "mcp-server-github", vec![], key("GITHUB_PERSONAL_ACCESS_TOKEN")),
        ("gitlab", "mcp-server-gitlab", vec![], key("GITLAB_PERSONAL_ACCESS_TOKEN")),
        ("maps", "mcp-server-google-maps", vec![], key("GOOGLE_MAPS_API_KEY")),
        ("memory", "mcp-server-memory", vec![], json!({ "MEMORY_FILE_PATH": own("memory.jsonl") })),
        ("notion", "notion-mcp-server", vec![], key("NOTION_TOKEN")),
        ("pdf", "mcp-pdf-server", vec!["--stdio".to_owned()], json!({})),
        ("runner", "mcp-server-code-runner", vec![], json!({})),
        ("slack", "mcp-server-slack", vec![], json!({ "SLACK_BOT_TOKEN": "test", "SLACK_TEAM_ID": "test" })),
        ("sqlite", "mcp-server-sqlite", vec!["--db-path".to_owned(), own("test.db")], json!({})),
        ("tavily", "tavily-mcp", vec![], key("TAVILY_API_KEY")),
        ("thinking", "mcp-server-sequential-thinking", vec![], json!({})),
        ("time", "mcp-server-time", vec![], json!({})),
    ];
    let entry = |(name, program, args, env): (&'static str, &str, Vec<String>, Value)| {
        (name, json!({ "command": server(program), "args": args, "env": env }))
    };
    all.into_iter().map(entry).collect()
}

/// The servers, once none of them is starting.
fn settled_servers(daemon: &Daemon) -> Vec<Value> {
    loop {
        let data = daemon.folder.path();
        let text = output(Command::new(steprail()).args(["servers", "--json", "--data"]).arg(data));
        let servers: Vec<Value> = serde_json::from_str(&text).expect("JSON");
        if !servers.iter().any(|server| server["health"] == "starting" || server["health"] == "idle") {
            return servers;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn connects_to_every_server_that_the_reference_client_connects_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("servers.json");
    let servers = json!({ "mcpServers": entries(folder.path()) });
    std::fs::write(&config, servers.to_string()).expect("a config");
    let start = Instant::now();
    let daemon = Daemon::start_in(folder, &[]);
    println!("ready after {:?}", start.elapsed());
    let found = settled_servers(&daemon);
    println!("27 servers settled after {:?}", start.elapsed());
    let reference =
        output(Command::new(client("python-mcp")).arg(test_file("clients/reference.py")).arg(config));
    let mut connected = 0;
    for line in reference.lines() {
        let (name, tools) = line.split_once(' ').expect("a server and its tools");
        let ours = found.iter().find(|server| server["name"] == name).expect("the server");
        assert_eq!(ours["health"], "up", "{ours}");
        assert_eq!(ours["tools"].as_array().map(Vec::len), tools.parse().ok(), "{ours}");
        connected += 1;
    }
    assert!(connected >= 25, "the reference client connected to {connected} servers:\n{reference}");
}

#[test]
fn unresponsive_server_does_not_delay_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let servers = json!({ "mcpServers": {
        "mute": { "command": "sleep", "args": ["1000"] },
        "bad": {},
        "time": { "command": server("mcp-server-time") },
    } });
    std::fs::write(folder.path().join("servers.json"), servers.to_string()).expect("a config");
    std::fs::write(
        folder.path().join("now.yaml"),
        "name: now\nsteps:\n  - { id: now, tool: time__get_current_time, args: { timezone: UTC } }\n",
    )
    .expect("a definition");
    let daemon = Daemon::start_in(folder, &[]);
    let data = daemon.folder.path();
    let text = output(Command::new(steprail()).args(["servers", "--json", "--data"]).arg(data));
    let states: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let mute = states.iter().find(|server| server["name"] == "mute").expect("the server");
    assert_eq!(mute["health"], "starting", "{text}");
    let run = output(Command::new(steprail()).arg("run").arg(data.join("now.yaml")).arg("--data").arg(data));
    assert!(run.contains("completed"), "{run}");
}
