//! HTTP servers with faults. The arguments of a call select the fault.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};

async fn listen(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/mcp")
}

/// The response of a legacy server to a request.
fn answer(request: &Value) -> Option<Value> {
    let result = match request["method"].as_str()? {
        "initialize" => json!({
            "protocolVersion": "2025-06-18", "capabilities": { "tools": {} },
            "serverInfo": { "name": "faulty", "version": "1" }
        }),
        "tools/list" => {
            let schema = json!({ "type": "object" });
            json!({ "tools": [{ "name": "answer", "inputSchema": schema }, { "name": "echo", "inputSchema": schema }] })
        }
        "tools/call" => {
            let text = &request["params"]["arguments"]["text"];
            json!({ "content": [], "structuredContent": { "echo": text } })
        }
        _ => {
            return Some(
                json!({ "jsonrpc": "2.0", "id": request["id"], "error": { "code": -32601, "message": "no" } }),
            );
        }
    };
    Some(json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }))
}

fn response(status: u16, kind: &str, body: impl Into<Body>) -> Response {
    Response::builder().status(status).header("content-type", kind).body(body.into()).expect("a response")
}

/// Serves streamable HTTP. The argument `what` of a call selects its fault.
pub(crate) async fn serve_http() -> String {
    async fn handle(body: String) -> Response {
        let request: Value = serde_json::from_str(&body).expect("JSON");
        if request.get("id").is_none() {
            return response(202, "text/plain", "");
        }
        if request["method"] != "tools/call" {
            return response(200, "application/json", answer(&request).expect("a method").to_string());
        }
        match request["params"]["arguments"]["what"].as_str().unwrap_or_default() {
            "429" => {
                let mut rejected = response(429, "text/plain", "slow down");
                rejected.headers_mut().insert("retry-after", "7".parse().expect("a header"));
                rejected
            }
            "503-retry" => {
                let mut rejected = response(503, "text/plain", "restarting");
                rejected.headers_mut().insert("retry-after", "3".parse().expect("a header"));
                rejected
            }
            "503" => response(503, "text/html", "<html>gateway</html>"),
            "500" => response(500, "application/json", r#"{"error":"boom"}"#),
            "502" => response(502, "text/html", "<html>bad gateway</html>"),
            "404" => response(404, "text/plain", "no such route"),
            "400" => response(400, "application/json", r#"{"error":{"message":"the day is missing"}}"#),
            "403" => response(403, "application/json", r#"{"message":"not for you"}"#),
            "garbage" => response(200, "application/json", "{]"),
            "big" => response(200, "application/json", "x".repeat(40 * 1024 * 1024)),
            _ => {
                let body = futures::stream::iter([Ok("{"), Err(std::io::Error::other("cut"))]);
                response(200, "application/json", Body::from_stream(body))
            }
        }
    }
    listen(Router::new().route("/mcp", post(handle))).await
}

type Outbox = Arc<Mutex<Option<mpsc::UnboundedSender<String>>>>;

/// Serves HTTP+SSE of revision 2024-11-05.
pub(crate) async fn serve_sse() -> String {
    async fn stream(State(outbox): State<Outbox>) -> Response {
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = sender.send("event: endpoint\ndata: /messages?session=1\n\n".to_owned());
        *outbox.lock().await = Some(sender);
        let events = futures::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|event| (Ok::<_, std::io::Error>(event), receiver))
        });
        response(200, "text/event-stream", Body::from_stream(events.boxed()))
    }
    async fn message(State(outbox): State<Outbox>, body: String) -> Response {
        let request: Value = serde_json::from_str(&body).expect("JSON");
        if let (Some(answer), Some(sender)) = (answer(&request), &*outbox.lock().await)
            && request.get("id").is_some()
        {
            let _ = sender.send(format!("event: message\ndata: {answer}\n\n"));
        }
        response(202, "text/plain", "Accepted")
    }
    let router = Router::new().route("/mcp", get(stream)).route("/messages", post(message));
    listen(router.with_state(Outbox::default())).await
}
