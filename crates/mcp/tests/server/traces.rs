//! Traces: a run belongs to the trace of the request that started it, and so do its calls.

use rmcp::model::{CallToolRequestParams, RequestMetaObject};
use rmcp::service::PeerRequestOptions;
use serde_json::{Value, json};
use steprail_engine::{RunId, RunTrace};

use super::support::{Client, Fixture, fields};

const OUTER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const OUTER_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Runs a workflow with a sub-workflow, started in a trace. Returns the run, and the `traceparent` of each call.
async fn start_in(fixture: &Fixture, client: &Client, traceparent: Option<&str>) -> (RunId, Value) {
    let inner = "name: inner\nsteps: [{ id: deep, tool: crm__trace }]";
    fixture.engine.define(inner, &super::support::principal("admin")).await.expect("defined");
    let outer = "name: outer\nsteps:\n  - { id: first, tool: crm__trace }\n  - { id: second, kind: workflow, name: inner }\n\
                 output: { first: '{{steps.first.output}}', second: '{{steps.second.output}}' }";
    let args = json!({ "spec_yaml": outer, "wait_s": 45 });
    let params = CallToolRequestParams::new("workflow_start");
    let params = params.with_arguments(args.as_object().cloned().expect("a map"));
    let mut meta = RequestMetaObject::new();
    if let Some(traceparent) = traceparent {
        meta.set_traceparent(traceparent);
    }
    let request = rmcp::model::ClientRequest::CallToolRequest(rmcp::model::CallToolRequest::new(params));
    let options = PeerRequestOptions::no_options().with_meta(meta);
    let sent = client.send_request_with_option(request, options).await.expect("sent");
    let rmcp::model::ServerResult::CallToolResult(result) = sent.await_response().await.expect("an answer")
    else {
        panic!("no result")
    };
    let fields = fields(&result);
    let run = fields["run_id"].as_str().unwrap_or_else(|| panic!("{fields}")).parse().expect("an id");
    (run, fields["output"].clone())
}

#[tokio::test]
async fn run_without_a_trace_starts_one() {
    let fixture = Fixture::new();
    let client = fixture.client("starter").await;
    for none in [None, Some("00-what-is-this")] {
        let (run, output) = start_in(&fixture, &client, none).await;
        let own = RunTrace::new(run, None);
        assert_eq!(output["first"], own.attempt(1, 1).to_string(), "{none:?}");
        let deep = output["second"].as_str().expect("a traceparent");
        assert_eq!(deep[3..35], run.to_string().replace('-', ""), "the sub-workflow is in the same trace");
    }
}

#[tokio::test]
async fn trace_continues_through_runs_and_calls() {
    let fixture = Fixture::new();
    let client = fixture.client("starter").await;
    let (run, output) = start_in(&fixture, &client, Some(OUTER)).await;
    assert_eq!(output["first"], RunTrace::new(run, Some(OUTER)).attempt(1, 1).to_string());
    assert_eq!(output["second"].as_str().expect("a traceparent")[3..35], *OUTER_TRACE);
    assert_eq!(fixture.engine.row(run).await.expect("a run").trace.as_deref(), Some(OUTER));
}
