//! How a connection begins: the road to a server, and the first words.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

use rmcp::ClientCacheConfig;
use rmcp::model::ProtocolVersion;
use rmcp::service::{ClientInitializeError, ClientLifecycleMode, ClientServiceExt};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::catalogue::Catalogue;
use super::child::{Process, Program};
use super::connection::{Connection, tools};
use super::line::Line;
use super::listener::Listener;
use crate::config::{Road, Text};
use crate::limits::ANSWER_BYTES;

const ENDED: &str = "it ended before it answered";

impl Line {
    /// Opens a connection.
    pub(super) async fn connect(&self) -> Result<Connection, String> {
        match self.greet(self.lifecycle()).await {
            Err(Greeting::Older) => {
                self.is_older.store(true, Ordering::Relaxed);
                self.greet(self.lifecycle()).await.map_err(Greeting::reason)
            }
            greeted => greeted.map_err(Greeting::reason),
        }
    }

    /// How a connection begins: as servers do today, unless this one is known not to.
    fn lifecycle(&self) -> ClientLifecycleMode {
        if self.is_older.load(Ordering::Relaxed) {
            return ClientLifecycleMode::Initialize;
        }
        ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: Some(ProtocolVersion::V_2025_11_25),
        }
    }

    async fn greet(&self, lifecycle: ClientLifecycleMode) -> Result<Connection, Greeting> {
        let listener = Listener::new(self.entry.elicitation);
        let us = || listener.clone();
        let (service, process) = match &self.entry.road {
            Road::Child { .. } => {
                let program = self.program()?;
                let (process, stdout, stdin) =
                    Process::start(&program, self.records.as_deref(), self.words.clone())
                        .map_err(|error| format!("`{}` cannot be started: {error}", program.command))?;
                // Something that it started may hold its output: then no end of it is ever read.
                let served = tokio::select! {
                    served = us().serve_with_lifecycle((stdout, stdin), lifecycle) => served,
                    () = process.ended.cancelled() => return Err(ENDED.to_owned().into()),
                };
                (served.map_err(|error| plainly(&error))?, Some(process))
            }
            Road::Http { url, headers } => {
                let transport = self.http(url, headers)?;
                let served = us().serve_with_lifecycle(transport, lifecycle).await;
                (served.map_err(|error| plainly(&error))?, None)
            }
        };
        // Lists are asked for when they may have changed: none is to come out of a cache.
        service.peer().set_response_cache_config(ClientCacheConfig::disabled()).await;
        let tools =
            tools(service.peer()).await.map_err(|error| format!("it does not list its tools: {error}"))?;
        let catalogue = Arc::new(RwLock::new(Arc::new(Catalogue::new(&self.alias, &self.entry, tools))));
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Some(catalogue.clone());
        // To give a connection up is not to say that its process has ended.
        let lost =
            process.as_ref().map_or_else(CancellationToken::new, |process| process.ended.child_token());
        let legacy = service
            .peer()
            .peer_info()
            .is_some_and(|info| info.protocol_version.as_str() < ProtocolVersion::V_2026_07_28.as_str());
        Ok(Connection {
            peer: service.peer().clone(),
            listener,
            catalogue,
            naming: (self.alias.clone(), self.entry.clone()),
            turns: (self.entry.elicitation && legacy).then(|| Arc::new(Semaphore::new(1))),
            lost,
            opened: Instant::now(),
            process,
            service: Mutex::new(Some(service)),
        })
    }

    fn program(&self) -> Result<Program, String> {
        let Road::Child { command, args, env, cwd } = &self.entry.road else {
            return Err("it is no program".to_owned());
        };
        Ok(Program {
            command: self.expand(command)?,
            args: args.iter().map(|arg| self.expand(arg)).collect::<Result<_, _>>()?,
            env: env
                .iter()
                .map(|(key, text)| Ok((key.clone(), self.expand(text)?)))
                .collect::<Result<_, String>>()?,
            cwd: cwd.as_ref().map(|cwd| self.expand(cwd)).transpose()?,
        })
    }

    fn http(
        &self,
        url: &Text,
        headers: &std::collections::BTreeMap<String, Text>,
    ) -> Result<StreamableHttpClientTransport<reqwest::Client>, String> {
        let mut custom = std::collections::HashMap::new();
        for (name, text) in headers {
            let bad = |_| format!("the header `{name}` cannot be sent");
            let mut value = http::HeaderValue::from_str(&self.expand(text)?).map_err(bad)?;
            value.set_sensitive(true);
            let key =
                name.parse::<http::HeaderName>().map_err(|_| format!("`{name}` is no name of a header"))?;
            custom.insert(key, value);
        }
        let config = StreamableHttpClientTransportConfig::with_uri(self.expand(url)?)
            .custom_headers(custom)
            .max_sse_event_size(ANSWER_BYTES);
        Ok(StreamableHttpClientTransport::from_config(config))
    }

    fn expand(&self, text: &Text) -> Result<String, String> {
        text.expand(&*self.variables).map_err(|missing| not_set(&missing))
    }
}

/// Why a connection did not begin.
enum Greeting {
    /// The server knows how connections begin today, and speaks older revisions only.
    Older,
    /// Something else.
    Failed(String),
}

impl Greeting {
    fn reason(self) -> String {
        match self {
            Self::Older => "it speaks no revision of the protocol that we do".to_owned(),
            Self::Failed(reason) => reason,
        }
    }
}

impl From<String> for Greeting {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

/// Why a server did not answer, without the names of types.
fn plainly(error: &ClientInitializeError) -> Greeting {
    if matches!(error, ClientInitializeError::NoCompatibleProtocolVersion { .. }) {
        return Greeting::Older;
    }
    Greeting::Failed(match error {
        ClientInitializeError::TransportError { error, .. } => match error.error.to_string() {
            text if text.contains("Broken pipe") => ENDED.to_owned(),
            text => text,
        },
        ClientInitializeError::ConnectionClosed(_) => ENDED.to_owned(),
        other => other.to_string(),
    })
}

fn not_set(missing: &BTreeSet<String>) -> String {
    let names: Vec<String> = missing.iter().map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [one] => format!("the variable {one} is not set"),
        _ => format!("the variables {} are not set", names.join(", ")),
    }
}
