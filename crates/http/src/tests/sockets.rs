//! The WebSocket: subscriptions, approvals and decisions of a web page.

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use super::TestServer;
use crate::accounts::Role;

pub(super) struct Page(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Page {
    pub(super) async fn open(server: &TestServer, token: &str, origin: Option<&str>) -> Result<Self, u16> {
        let address = format!("ws://{}/api/v1/socket", server.listen().await);
        let mut request = address.into_client_request().expect("a request");
        let headers = request.headers_mut();
        headers.insert("authorization", format!("Bearer {token}").parse().expect("a header"));
        if let Some(origin) = origin {
            headers.insert("origin", origin.parse().expect("a header"));
        }
        match connect_async(request).await {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) async fn send(&mut self, message: Value) {
        self.0.send(Message::text(message.to_string())).await.expect("sent");
    }

    /// The next response with an id, or the next notification with a method.
    pub(super) async fn receive(&mut self, id_or_method: Value) -> Value {
        loop {
            let message = self.0.next().await.expect("more").expect("a message");
            let Message::Text(text) = message else { continue };
            let message: Value = serde_json::from_str(&text).expect("JSON");
            if message["id"] == id_or_method || message["method"] == id_or_method {
                return message;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn approver_decides_over_the_socket() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let paul = server.user("paul", Role::Approver).await;
    let mut page = Page::open(&server, &paul, None).await.expect("a socket");
    page.send(json!({ "id": 1, "method": "subscribe", "params": {} })).await;
    assert_eq!(page.receive(json!(1)).await["result"]["subscribed"], true);
    let (run, digest) = server.start_gated_run(&ann).await;
    let approval = page.receive(json!("approval_requested")).await["params"].clone();
    assert_eq!(
        (&approval["run_id"], &approval["digest"], &approval["may_decide"]),
        (&json!(run), &json!(digest), &json!(true))
    );
    let decision = json!({ "run_id": run, "step": "ask", "digest": digest });
    page.send(json!({ "id": 2, "method": "approve", "params": decision })).await;
    assert_eq!(page.receive(json!(2)).await["result"]["decision"], "approved");
    loop {
        let event = page.receive(json!("event")).await["params"]["event"]["type"].clone();
        if event == "run_completed" {
            break;
        }
    }
    page.send(json!({ "id": 3, "method": "approve", "params": decision })).await;
    assert_eq!(page.receive(json!(3)).await["error"]["code"], "conflict", "it is already decided");
    page.send(json!({ "id": 4, "method": "unknown" })).await;
    assert_eq!(page.receive(json!(4)).await["error"]["code"], "bad_input");
}

#[tokio::test(flavor = "multi_thread")]
async fn subscription_resumes_after_a_cursor() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let (run, _) = server.start_gated_run(&ann).await;
    let mut page = Page::open(&server, &ann, None).await.expect("a socket");
    for (id, scope) in [(1, json!({ "run_id": run })), (2, json!({}))] {
        let mut params = scope;
        params["after"] = "start".into();
        page.send(json!({ "id": id, "method": "subscribe", "params": params })).await;
        assert_eq!(page.receive(json!(id)).await["result"]["subscribed"], true);
        let first = page.receive(json!("event")).await["params"].clone();
        let second = page.receive(json!("event")).await["params"].clone();
        assert_eq!((&first["seq"], &second["seq"]), (&json!(1), &json!(2)));
        params["after"] = first["id"].clone();
        page.send(json!({ "id": 10 * id, "method": "subscribe", "params": params })).await;
        assert_eq!(page.receive(json!(10 * id)).await["result"]["subscribed"], true);
        assert_eq!(page.receive(json!("event")).await["params"], second);
    }
    page.send(json!({ "id": 3, "method": "subscribe", "params": { "after": "12" } })).await;
    assert_eq!(page.receive(json!(3)).await["error"]["code"], "invalid_cursor");
}

#[tokio::test(flavor = "multi_thread")]
async fn socket_needs_valid_credentials_and_an_allowed_origin() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    assert_eq!(Page::open(&server, "invalid", None).await.err(), Some(401));
    assert_eq!(Page::open(&server, &ann, Some("http://evil.example")).await.err(), Some(403));
    let mut page = Page::open(&server, &ann, None).await.expect("a socket");
    let admin = server.user("adam", Role::Admin).await;
    server.call_ok(&admin, "DELETE", "/api/v1/users/ann", &Value::Null).await;
    page.send(json!({ "id": 1, "method": "approvals" })).await;
    assert!(!matches!(page.0.next().await, Some(Ok(Message::Text(_)))), "the user was deleted");
}
