//! The REST client of the commands: the daemon of a data directory through its socket, or a remote server.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use futures::{Stream, StreamExt};
use reqwest::{Method, RequestBuilder, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sse_stream::SseStream;
use steprail_http::Problem;
use steprail_http::views::Event;

use crate::cli::presence;
use crate::daemon::{self, DataDir};

/// Retries of a request to a local daemon that cannot be reached, and the delay before each.
const RETRIES: u32 = 3;
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// A connection to a server.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: String,
    token: Option<String>,
    address: ServerAddress,
}

/// Where a server is.
#[derive(Debug, Clone)]
pub(crate) enum ServerAddress {
    /// The daemon of a data directory on this machine.
    Local(DataDir),
    /// A URL, and the token for it.
    Remote(String, Option<String>),
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum ClientError {
    /// The server did not respond.
    Unreachable(String),
    /// The server rejected the request.
    Problem(Box<Problem>),
    /// An engine in this process rejected the request.
    Engine(steprail_engine::Error),
}

/// When to start a local daemon that is not running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Autostart {
    Always,
    IfDatabaseExists,
}

impl ServerAddress {
    /// The data directory or URL of the command line, else those of `STEPRAIL_SERVER`, `STEPRAIL_TOKEN` and
    /// `STEPRAIL_DATA`.
    pub(crate) fn resolve(data: Option<PathBuf>, server: Option<String>) -> Result<Self, String> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let server = server.or_else(|| if data.is_some() { None } else { variable("STEPRAIL_SERVER") });
        match server {
            Some(url) => Ok(Self::Remote(url, variable("STEPRAIL_TOKEN"))),
            None => DataDir::find(data).map(Self::Local),
        }
    }
}

impl ClientError {
    /// What happened.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Unreachable(message) => message.clone(),
            Self::Problem(problem) => problem.detail.to_string(),
            Self::Engine(error) => error.to_string(),
        }
    }

    /// Whether the current state of the run or step rules the request out.
    pub(crate) fn is_conflict(&self) -> bool {
        match self {
            Self::Unreachable(_) => false,
            Self::Problem(problem) => &*problem.code == "conflict",
            Self::Engine(error) => matches!(error, steprail_engine::Error::Conflict(_)),
        }
    }
}

impl From<steprail_engine::Error> for ClientError {
    fn from(error: steprail_engine::Error) -> Self {
        Self::Engine(error)
    }
}

impl Client {
    /// Connects to a server. Starts a local daemon as `autostart` allows.
    pub(crate) async fn connect(address: ServerAddress, autostart: Autostart) -> Result<Self, ClientError> {
        let builder = reqwest::Client::builder().no_proxy();
        let (builder, base, token) = match &address {
            ServerAddress::Local(home) => {
                ensure_daemon(home, autostart).await.map_err(ClientError::Unreachable)?;
                (builder.unix_socket(home.human_socket()), "http://localhost".to_owned(), None)
            }
            ServerAddress::Remote(url, token) => {
                (builder, url.trim_end_matches('/').to_owned(), token.clone())
            }
        };
        let http = builder.build().map_err(|error| ClientError::Unreachable(error.to_string()))?;
        Ok(Self { http, base, token, address })
    }

    /// Connects to the same server after the connection was lost.
    pub(crate) async fn reconnect(&self) -> Result<Self, ClientError> {
        Self::connect(self.address.clone(), Autostart::Always).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}/api/v1{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends a request. At a terminal, asks for the factor of presence if the server needs one.
    async fn send(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let again = request.try_clone();
        match (self.send_once(request).await, again) {
            (Err(ClientError::Problem(problem)), Some(again)) if &*problem.code == "presence_required" => {
                match presence::ask(problem.presence).await {
                    Some(proof) => self.send_once(again.header(presence::HEADER, proof)).await,
                    // Boxed, because it sends a request itself.
                    None => Err(Box::pin(presence::unproved(self, *problem, again)).await),
                }
            }
            (result, _) => result,
        }
    }

    async fn send_once(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let text = response.text().await.unwrap_or_default();
        let problem = serde_json::from_str(&text).unwrap_or_else(|_| {
            Problem::new(
                status,
                "unexpected",
                format!("the server returned {status} without problem details"),
            )
        });
        Err(ClientError::Problem(Box::new(problem)))
    }

    fn unreachable(&self, error: &reqwest::Error) -> ClientError {
        ClientError::Unreachable(match &self.address {
            ServerAddress::Local(home) => {
                format!("the daemon of {} does not respond", home.path().display())
            }
            ServerAddress::Remote(url, _) => {
                let cause =
                    std::iter::successors(Some(error as &dyn Error), |error| (*error).source()).last();
                format!("cannot reach {url}: {}", cause.map(ToString::to_string).unwrap_or_default())
            }
        })
    }

    async fn read<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        let bytes = self.send(request).await?.bytes().await;
        let bytes = bytes.map_err(|error| self.unreachable(&error))?;
        let text: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
        serde_json::from_slice(text)
            .map_err(|error| ClientError::Unreachable(format!("unexpected response of the server: {error}")))
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.retry(async |client| client.read(client.request(Method::GET, path)).await).await
    }

    /// The response of the health check `/readyz`.
    pub(crate) async fn readiness(&self) -> Result<String, ClientError> {
        let response = self.send(self.http.get(format!("{}/readyz", self.base))).await?;
        response.text().await.map_err(|error| self.unreachable(&error))
    }

    /// `get` with query parameters. Null values are left out.
    pub(crate) async fn query<T: DeserializeOwned>(
        &self,
        path: &str,
        parameters: &impl Serialize,
    ) -> Result<T, ClientError> {
        let query = query_string(parameters);
        self.get(&if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }).await
    }

    /// Starts a run. The body must have an idempotency key, because the request is repeated if the response is lost.
    pub(crate) async fn start_run<T: DeserializeOwned>(&self, body: &Value) -> Result<T, ClientError> {
        self.retry(async |client| client.post("/runs", body).await).await
    }

    /// Repeats an idempotent request to a local daemon: one that shuts down may still accept a connection.
    async fn retry<T>(
        &self,
        request: impl AsyncFn(&Self) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let mut client = self.clone();
        for _ in 0..RETRIES {
            match (request(&client).await, &self.address) {
                (Err(ClientError::Unreachable(_)), ServerAddress::Local(_)) => {
                    tokio::time::sleep(RETRY_DELAY).await;
                    client = client.reconnect().await?;
                }
                (response, _) => return response,
            }
        }
        request(&client).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, ClientError> {
        self.read(with_json(self.request(Method::POST, path), body)).await
    }

    /// `post` with a proof of presence.
    pub(crate) async fn post_with_proof<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
        proof: Option<String>,
    ) -> Result<T, ClientError> {
        let request = with_json(self.request(Method::POST, path), body);
        self.read(proof.into_iter().fold(request, |request, proof| request.header(presence::HEADER, proof)))
            .await
    }

    pub(crate) async fn put<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, ClientError> {
        self.read(with_json(self.request(Method::PUT, path), body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.send(self.request(Method::DELETE, path)).await.map(drop)
    }

    /// Streams server-sent events after a cursor. Each item is the new cursor, and the event if the frame has one. The stream
    /// ends with its run, or when the connection is lost.
    pub(crate) async fn stream(
        &self,
        path: &str,
        after: Option<&str>,
    ) -> Result<impl Stream<Item = (Option<String>, Option<Event>)> + Send + use<>, ClientError> {
        let after = after.map(|after| format!("?after={}", percent_encode(after))).unwrap_or_default();
        let response = self.send(self.request(Method::GET, &format!("{path}{after}"))).await?;
        let frames = SseStream::from_bytes_stream(response.bytes_stream());
        Ok(frames
            .take_while(|frame| std::future::ready(frame.is_ok()))
            .filter_map(|frame| std::future::ready(frame.ok()))
            .map(|frame| (frame.id, parse_event(frame.data))))
    }
}

fn parse_event(data: Option<String>) -> Option<Event> {
    serde_json::from_str(&data?).ok()
}

fn with_json(request: RequestBuilder, body: &Value) -> RequestBuilder {
    request.header("content-type", "application/json").body(body.to_string())
}

fn query_string(parameters: &impl Serialize) -> String {
    let parameters = serde_json::to_value(parameters).unwrap_or_default();
    let set = parameters.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let pairs = set.map(|(name, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{name}={}", percent_encode(&text))
    });
    pairs.collect::<Vec<_>>().join("&")
}

/// Encodes a text as one segment of a URL.
pub(crate) fn percent_encode(text: &str) -> String {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if is_unreserved(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

async fn ensure_daemon(home: &DataDir, autostart: Autostart) -> Result<(), String> {
    let socket = home.human_socket();
    if autostart == Autostart::IfDatabaseExists && !home.database().exists() {
        return daemon::connect(home, &socket).await.map(drop);
    }
    daemon::connect_or_start(home, &socket, &[]).await.map(drop)
}
