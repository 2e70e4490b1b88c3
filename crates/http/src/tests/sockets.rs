//! A WebSocket: an approver's page is asked, answers, and sees the run go on.

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use super::House;
use crate::accounts::Role;

struct Page(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Page {
    async fn open(house: &House, token: &str, origin: Option<&str>) -> Result<Self, u16> {
        let address = format!("ws://{}/api/v1/socket", house.port().await);
        let mut request = address.into_client_request().expect("a request");
        let headers = request.headers_mut();
        headers.insert("authorization", format!("Bearer {token}").parse().expect("a header"));
        if let Some(origin) = origin {
            headers.insert("origin", origin.parse().expect("a header"));
        }
        match connect_async(request).await {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(Error::Http(answer)) => Err(answer.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    async fn say(&mut self, message: Value) {
        self.0.send(Message::text(message.to_string())).await.expect("sent");
    }

    /// What is heard next that is about something: an answer by its id, or a method by its name.
    async fn hear(&mut self, about: Value) -> Value {
        loop {
            let message = self.0.next().await.expect("more").expect("a message");
            let Message::Text(text) = message else { continue };
            let said: Value = serde_json::from_str(&text).expect("JSON");
            if said["id"] == about || said["method"] == about {
                return said;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approver_is_asked_and_answers() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    let paul = house.user("paul", Role::Approver).await;
    let mut page = Page::open(&house, &paul, None).await.expect("a socket");
    page.say(json!({ "id": 1, "method": "subscribe", "params": {} })).await;
    assert_eq!(page.hear(json!(1)).await["result"]["subscribed"], true);
    let (run, digest) = house.gated_run(&ann).await;
    let asked = page.hear(json!("approval_requested")).await["params"].clone();
    assert_eq!(
        (&asked["run_id"], &asked["digest"], &asked["may_decide"]),
        (&json!(run), &json!(digest), &json!(true))
    );
    let decision = json!({ "run_id": run, "step": "ask", "digest": digest });
    page.say(json!({ "id": 2, "method": "approve", "params": decision })).await;
    assert_eq!(page.hear(json!(2)).await["result"]["decision"], "approved");
    loop {
        let event = page.hear(json!("event")).await["params"]["event"]["type"].clone();
        if event == "run_completed" {
            break;
        }
    }
    page.say(json!({ "id": 3, "method": "approve", "params": decision })).await;
    assert_eq!(page.hear(json!(3)).await["error"]["code"], "conflict", "once is enough");
    page.say(json!({ "id": 4, "method": "dance" })).await;
    assert_eq!(page.hear(json!(4)).await["error"]["code"], "bad_input");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_is_not_for_everybody() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    assert_eq!(Page::open(&house, "nobody", None).await.err(), Some(401));
    assert_eq!(Page::open(&house, &ann, Some("http://evil.example")).await.err(), Some(403));
    let mut page = Page::open(&house, &ann, None).await.expect("a socket");
    let admin = house.user("adam", Role::Admin).await;
    house.done(&admin, "DELETE", "/api/v1/users/ann", &Value::Null).await;
    page.say(json!({ "id": 1, "method": "approvals" })).await;
    assert!(!matches!(page.0.next().await, Some(Ok(Message::Text(_)))), "its user is gone");
}
