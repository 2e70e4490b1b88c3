//! Talking to a server: the daemon of a data directory through its socket, or one at an address.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use futures::{Stream, StreamExt};
use reqwest::header::HeaderValue;
use reqwest::{Method, RequestBuilder, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sse_stream::SseStream;

use crate::daemon::{self, DataDir};
use steprail_http::Problem;
use steprail_http::views::Event;

/// How often a daemon of this machine is asked again, and after what.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// A server that can be asked.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: String,
    token: Option<String>,
    at: At,
}

/// Where a server is.
#[derive(Debug, Clone)]
pub(crate) enum At {
    /// On this machine: its data directory.
    Home(DataDir),
    /// At an address, for whoever has a token.
    Url(String, Option<String>),
}

/// Why a server did not do it.
#[derive(Debug)]
pub(crate) enum Refused {
    /// It cannot be reached.
    Unreachable(String),
    /// It said no.
    Problem(Box<Problem>),
}

/// Whether a daemon that is not there is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// In any case.
    Always,
    /// If there is something to look at.
    IfUsed,
}

impl Client {
    /// Reaches a server; a daemon of this machine is started if there is none.
    pub(crate) async fn reach(at: At, begin: Begin) -> Result<Self, Refused> {
        let builder = reqwest::Client::builder().no_proxy();
        let (builder, base, token) = match &at {
            At::Home(home) => {
                wake(home, begin).await.map_err(Refused::Unreachable)?;
                (builder.unix_socket(home.human_socket()), "http://localhost".to_owned(), None)
            }
            At::Url(url, token) => (builder, url.trim_end_matches('/').to_owned(), token.clone()),
        };
        let http = builder.build().map_err(|error| Refused::Unreachable(error.to_string()))?;
        Ok(Self { http, base, token, at })
    }

    /// Reaches the same server again, after it was lost.
    pub(crate) async fn again(&self) -> Result<Self, Refused> {
        Self::reach(self.at.clone(), Begin::Always).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}/api/v1{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Refused> {
        let response = request.send().await.map_err(|error| Refused::Unreachable(self.lost(&error)))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let text = response.text().await.unwrap_or_default();
        let problem = serde_json::from_str(&text).unwrap_or_else(|_| {
            Problem::new(
                status,
                "unexpected",
                format!("the server answered {status} and says nothing about it"),
            )
        });
        Err(Refused::Problem(Box::new(problem)))
    }

    fn lost(&self, error: &reqwest::Error) -> String {
        match &self.at {
            At::Home(home) => format!("the daemon of {} does not answer", home.path().display()),
            At::Url(url, _) => {
                let cause =
                    std::iter::successors(Some(error as &dyn Error), |error| (*error).source()).last();
                format!("{url} cannot be reached: {}", cause.map(ToString::to_string).unwrap_or_default())
            }
        }
    }

    async fn read<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Refused> {
        let bytes = self.send(request).await?.bytes().await;
        let bytes = bytes.map_err(|error| Refused::Unreachable(self.lost(&error)))?;
        let text: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
        serde_json::from_slice(text).map_err(|error| {
            Refused::Unreachable(format!("the answer is not one of a server like this one: {error}"))
        })
    }

    /// Asks for something.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Refused> {
        self.insist(async |client| client.read(client.request(Method::GET, path)).await).await
    }

    /// Starts a run. The body has a key, so that asking again starts nothing twice.
    pub(crate) async fn start<T: DeserializeOwned>(&self, body: &Value) -> Result<T, Refused> {
        self.insist(async |client| client.post("/runs", body).await).await
    }

    /// Asks again where that cannot hurt: a daemon that is about to end may still take a connection.
    async fn insist<T>(&self, ask: impl AsyncFn(&Self) -> Result<T, Refused>) -> Result<T, Refused> {
        let mut client = self.clone();
        for _ in 0..TRIES {
            match (ask(&client).await, &self.at) {
                (Err(Refused::Unreachable(_)), At::Home(_)) => {
                    tokio::time::sleep(PAUSE).await;
                    client = client.again().await?;
                }
                (answer, _) => return answer,
            }
        }
        ask(&client).await
    }

    /// Asks for something, with words after the `?`.
    pub(crate) async fn find<T: DeserializeOwned>(
        &self,
        path: &str,
        words: &impl Serialize,
    ) -> Result<T, Refused> {
        let words = query(words);
        self.get(&if words.is_empty() { path.to_owned() } else { format!("{path}?{words}") }).await
    }

    /// Has something done.
    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Refused> {
        self.read(with_json(self.request(Method::POST, path), body)).await
    }

    /// Stores something.
    pub(crate) async fn put<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Refused> {
        self.read(with_json(self.request(Method::PUT, path), body)).await
    }

    /// Takes something away.
    pub(crate) async fn delete(&self, path: &str) -> Result<(), Refused> {
        self.send(self.request(Method::DELETE, path)).await.map(drop)
    }

    /// Follows a stream after an event: cursors, and events where there are any. It ends with what it tells of, or with the
    /// server.
    pub(crate) async fn follow(
        &self,
        path: &str,
        after: Option<u64>,
    ) -> Result<impl Stream<Item = (Option<u64>, Option<Event>)> + Send + use<>, Refused> {
        let mut request = self.request(Method::GET, path);
        if let Some(after) = after {
            request = request.header("last-event-id", HeaderValue::from(after));
        }
        let response = self.send(request).await?;
        let frames = SseStream::from_bytes_stream(response.bytes_stream());
        Ok(frames
            .take_while(|frame| std::future::ready(frame.is_ok()))
            .filter_map(|frame| std::future::ready(frame.ok()))
            .map(|frame| (frame.id.and_then(|id| id.parse().ok()), event(frame.data))))
    }
}

fn event(data: Option<String>) -> Option<Event> {
    serde_json::from_str(&data?).ok()
}

fn with_json(request: RequestBuilder, body: &Value) -> RequestBuilder {
    request.header("content-type", "application/json").body(body.to_string())
}

/// The words after a `?`; those that say nothing are left out.
fn query(words: &impl Serialize) -> String {
    let words = serde_json::to_value(words).unwrap_or_default();
    let said = words.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let said = said.map(|(name, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{name}={}", escaped(&text))
    });
    said.collect::<Vec<_>>().join("&")
}

/// A text as part of an address.
pub(crate) fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Sees to it that a daemon is there.
async fn wake(home: &DataDir, begin: Begin) -> Result<(), String> {
    let socket = home.human_socket();
    if begin == Begin::IfUsed && !home.database().exists() {
        return daemon::connect(home, &socket).await.map(drop);
    }
    daemon::connect_or_start(home, &socket, &[]).await.map(drop)
}

/// The data directory, or the address that the environment names.
pub(crate) fn at(data: Option<PathBuf>, server: Option<String>) -> Result<At, String> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let server = server.or_else(|| if data.is_some() { None } else { set("STEPRAIL_SERVER") });
    match server {
        Some(url) => Ok(At::Url(url, set("STEPRAIL_TOKEN"))),
        None => DataDir::find(data).map(At::Home),
    }
}
