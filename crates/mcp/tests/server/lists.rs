//! Lists: tools with schemas and hints, published workflows, resources, prompts.

use std::collections::BTreeSet;

use rmcp::model::{GetPromptRequestParams, ReadResourceRequestParams};
use serde_json::{Value, json};

use super::support::{Client, Fixture, call, fields, outcome};

#[tokio::test]
async fn tools_have_portable_schemas_and_hints() {
    let fixture = Fixture::new();
    let client = fixture.client("admin").await;
    let tools = client.list_all_tools().await.expect("tools");
    let mut table = String::new();
    for tool in &tools {
        let schema = Value::Object((*tool.input_schema).clone());
        assert_eq!(schema["type"], "object", "{}", tool.name);
        for root in ["oneOf", "anyOf", "allOf", "$ref"] {
            assert!(schema.get(root).is_none(), "{}: {root} at the root", tool.name);
        }
        assert!(
            !schema.to_string().contains("\"uint") && !schema.to_string().contains("\"null\""),
            "{schema}"
        );
        assert!(tool.name.len() <= 64 && tool.description.as_ref().is_some_and(|text| !text.is_empty()));
        let hints = tool.annotations.as_ref().expect("hints");
        let names: BTreeSet<&String> =
            schema["properties"].as_object().map(|all| all.keys().collect()).unwrap_or_default();
        table.push_str(&format!(
            "{} {names:?} read_only {:?} destructive {:?} idempotent {:?} open_world {:?}\n",
            tool.name,
            hints.read_only_hint,
            hints.destructive_hint,
            hints.idempotent_hint,
            hints.open_world_hint
        ));
    }
    insta::assert_snapshot!(table);
}

/// Models read the whole list first: about 3,500 tokens of four bytes.
#[tokio::test]
async fn tool_list_and_guide_are_small() {
    let fixture = Fixture::new();
    let client = fixture.client("starter").await;
    let tools = client.list_all_tools().await.expect("tools");
    let bytes = serde_json::to_string(&tools).expect("JSON").len();
    assert!(bytes < 14_000, "the list has {bytes} bytes");
    let guide = call(&client, "workflow_guide", json!({})).await;
    let bytes = serde_json::to_string(&guide).expect("JSON").len();
    assert!(bytes < 8_000, "the guide has {bytes} bytes");
    let section = call(&client, "workflow_guide", json!({ "section": "approve" })).await;
    assert!(serde_json::to_string(&section.content).expect("JSON").contains("on_deny"));
    assert_eq!(outcome(&call(&client, "workflow_guide", json!({ "section": "loops" })).await), "not_found");
}

/// The items of all pages of a list, by a field.
async fn all_pages(client: &Client, tool: &str, list: &str, field: &str) -> Vec<Value> {
    let (mut items, mut args) = (Vec::new(), json!({ "limit": 2 }));
    loop {
        let page = fields(&call(client, tool, args.clone()).await);
        let listed = page[list].as_array().expect("a list");
        assert!((1..=2).contains(&listed.len()), "{page}");
        items.extend(listed.iter().map(|item| item[field].clone()));
        match page.get("next_cursor") {
            Some(next) => args["cursor"] = next.clone(),
            None => return items,
        }
    }
}

#[tokio::test]
async fn runs_and_definitions_are_listed_in_pages() {
    let fixture = Fixture::new();
    let client = fixture.client("starter").await;
    let mut started = Vec::new();
    for name in ["c", "a", "b", "e", "d"] {
        let text = format!("name: {name}\nsteps: [{{ id: read, tool: crm__read }}]");
        assert_eq!(outcome(&call(&client, "workflow_define", json!({ "spec_yaml": text })).await), "ok");
        started.insert(0, json!(fixture.waiting_run().await));
    }
    let names = all_pages(&client, "workflow_list_definitions", "definitions", "name").await;
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
    assert_eq!(all_pages(&client, "workflow_list_runs", "runs", "run_id").await, started);
    for tool in ["workflow_list_runs", "workflow_list_definitions"] {
        for garbled in ["2", "b", "e1008"] {
            let answer = call(&client, tool, json!({ "cursor": garbled })).await;
            assert_eq!(outcome(&answer), "invalid_cursor", "{tool} {garbled}");
        }
    }
}

#[tokio::test]
async fn aliases_with_dots_are_accepted() {
    let fixture = Fixture::new();
    let client = fixture.client("starter").await;
    for name in ["workflows.lookup", "workflows_lookup"] {
        assert_eq!(outcome(&call(&client, name, json!({})).await), "ok");
    }
    let spec = "name: hello\nsteps: [{ id: read, tool: crm__read }]";
    let ran = fields(&call(&client, "workflows.run", json!({ "spec_yaml": spec, "inputs": {} })).await);
    let status =
        fields(&call(&client, "workflows.get_status", json!({ "workflow_id": ran["run_id"] })).await);
    assert_eq!((&status["status"], &status["output"]), (&json!("completed"), &json!({ "name": "Lea" })));
    let cancelled = call(&client, "workflows.cancel", json!({ "workflow_id": ran["run_id"] })).await;
    assert_eq!(outcome(&cancelled), "ok", "cancelling an ended run has no effect");
}

#[tokio::test]
async fn published_workflow_is_a_tool() {
    let fixture = Fixture::new();
    let client = fixture.client("starter").await;
    let spec = "\
name: look up
description: Finds a contact.
publish: true
inputs: { id: integer, deep: { type: boolean, default: false } }
steps: [{ id: read, tool: crm__read, effects: read }]
output: { who: '{{steps.read.output.name}}', id: '{{inputs.id}}' }
";
    let defined = call(&client, "workflow_define", json!({ "spec_yaml": spec })).await;
    assert_eq!(outcome(&defined), "ok", "{defined:?}");
    let tools = client.list_all_tools().await.expect("tools");
    let tool = tools.iter().find(|tool| tool.name == "wf_look_up").expect("a tool");
    insta::assert_json_snapshot!(tool);
    let result = call(&client, "wf_look_up", json!({ "id": 7 })).await;
    assert_eq!(fields(&result), json!({ "who": "Lea", "id": 7 }));
    assert_eq!(outcome(&call(&client, "wf_look_up", json!({ "id": "seven" })).await), "bad_input");
    let hidden = call(&client, "workflow_define", json!({ "spec_yaml": spec, "publish": false })).await;
    assert_eq!(fields(&hidden)["version"], 2, "{hidden:?}");
    // The client caches the list until it receives `list_changed`.
    while client.list_all_tools().await.expect("tools").iter().any(|tool| tool.name == "wf_look_up") {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn define_reports_every_error() {
    let fixture = Fixture::new();
    let client = fixture.client("starter").await;
    let spec = "name: bad\nsteps: [{ id: a, tool: crm__read, args: { x: '{{inputs.y}}' }, timout: 3 }]";
    let result = call(&client, "workflow_define", json!({ "spec_yaml": spec })).await;
    let error = &fields(&result)["error"];
    assert_eq!(
        (outcome(&result).as_str(), error["problems"].as_array().map(Vec::len)),
        ("invalid_definition", Some(2))
    );
    assert!(error["problems"].to_string().contains("did you mean `timeout`?"), "{error}");
    let text = serde_json::to_string(&result.content).expect("JSON");
    assert!(
        text.contains("SR302") && text.contains("did you mean"),
        "the text contains the findings: {text}"
    );
}

#[tokio::test]
async fn runs_and_definitions_are_resources() {
    let fixture = Fixture::new();
    let run = fixture.waiting_run().await;
    let client = fixture.client("starter").await;
    let read = async |uri: String| {
        let read = client.read_resource(ReadResourceRequestParams::new(uri)).await.expect("a resource");
        let text = serde_json::to_value(&read.contents[0]).expect("JSON")["text"].clone();
        serde_json::from_str::<Value>(text.as_str().expect("text")).expect("JSON")
    };
    assert_eq!(read(format!("workflow://runs/{run}")).await["status"], "paused");
    assert_eq!(read(format!("workflow://runs/{run}/events")).await["events"][0]["type"], "run_started");
    assert_eq!(read("workflow://approvals".to_owned()).await["approvals"][0]["path"], "ask");
    assert!(read("workflow://schema".to_owned()).await["$defs"]["Publish"].is_object());
    call(
        &client,
        "workflow_define",
        json!({ "spec_yaml": "name: a b\nsteps: [{ id: r, tool: crm__read }]" }),
    )
    .await;
    let listed = client.list_all_resources().await.expect("resources");
    let uri = listed.iter().find(|resource| resource.name == "a b").expect("the definition").uri.clone();
    assert_eq!(read(uri).await["spec"]["name"], "a b");
    let missing = ReadResourceRequestParams::new("workflow://runs/00000000-0000-0000-0000-000000000000");
    assert!(client.read_resource(missing).await.is_err());

    let prompts = client.list_all_prompts().await.expect("prompts");
    assert_eq!(
        prompts.iter().map(|prompt| prompt.name.as_str()).collect::<Vec<_>>(),
        ["author_workflow", "explain_run"]
    );
    let mut explain = GetPromptRequestParams::new("explain_run");
    explain.arguments = json!({ "run_id": run }).as_object().cloned();
    let prompt = client.get_prompt(explain).await.expect("a prompt");
    assert!(serde_json::to_string(&prompt.messages).expect("JSON").contains("waiting"), "{prompt:?}");
}

#[tokio::test]
async fn repeated_start_names_the_possible_duplicate() {
    let fixture = Fixture::new();
    let client = fixture.client("starter").await;
    let start = json!({ "spec_yaml": "name: twice\nsteps: [{ id: read, tool: crm__read }]" });
    let first = fields(&call(&client, "workflow_start", start.clone()).await);
    let second = fields(&call(&client, "workflow_start", start.clone()).await);
    assert_eq!(
        (first["possible_duplicate_of"].is_null(), &second["possible_duplicate_of"]),
        (true, &first["run_id"])
    );
    let keyed = json!({ "spec_yaml": start["spec_yaml"], "idempotency_key": "k" });
    let first = fields(&call(&client, "workflow_start", keyed.clone()).await);
    let second = fields(&call(&client, "workflow_start", keyed).await);
    assert_eq!(first["run_id"], second["run_id"], "the same key returns the same run");
}
