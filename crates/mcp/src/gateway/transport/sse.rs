//! HTTP+SSE of revision 2024-11-05: one event stream, and a URL for POST requests.

use futures::stream::{BoxStream, StreamExt};
use http::HeaderMap;
use reqwest::Url;
use rmcp::RoleClient;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::streamable_http_client::SseError;
use sse_stream::Sse;

use super::http::{HttpClient, HttpFailure};

/// A connection over HTTP+SSE.
pub(crate) struct HttpSse {
    client: HttpClient,
    headers: HeaderMap,
    /// The URL that messages are posted to.
    endpoint: Url,
    events: BoxStream<'static, Result<Sse, SseError>>,
}

impl HttpSse {
    /// Opens the stream and waits for its `endpoint` event.
    pub(crate) async fn open(client: HttpClient, url: &str, headers: HeaderMap) -> Result<Self, HttpFailure> {
        let not_sse = |reason: &str| HttpFailure::NotSent(format!("it supports no MCP transport ({reason})"));
        let base = Url::parse(url).map_err(|_| not_sse("its URL is invalid"))?;
        let response = client.get(url, headers.clone()).await?;
        let kind = response.headers().get(http::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        if !response.status().is_success() || !kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
        {
            return Err(not_sse(&format!("HTTP {}", response.status().as_u16())));
        }
        let mut events = client.events(response, None);
        while let Some(Ok(event)) = events.next().await {
            let Some(data) = event.data.filter(|_| event.event.as_deref() == Some("endpoint")) else {
                continue;
            };
            let endpoint = base.join(data.trim()).map_err(|_| not_sse("its endpoint is not a valid URL"))?;
            if endpoint.origin() != base.origin() {
                return Err(not_sse("its endpoint has another origin"));
            }
            return Ok(Self { client, headers, endpoint, events });
        }
        Err(not_sse("its stream has no `endpoint` event"))
    }
}

impl Transport<RoleClient> for HttpSse {
    type Error = HttpFailure;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), HttpFailure>> + Send + 'static {
        let (client, headers, endpoint) = (self.client.clone(), self.headers.clone(), self.endpoint.clone());
        async move {
            let response = client.post(endpoint.as_str(), headers, &message).await?;
            let status = response.status();
            if status.is_success() {
                return Ok(());
            }
            Err(super::http::failure(response).await)
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let event = self.events.next().await?.ok()?;
            let message = event.data.as_deref().and_then(|data| serde_json::from_str(data).ok());
            if let Some(message) =
                message.filter(|_| event.event.as_deref().is_none_or(|name| name == "message"))
            {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), HttpFailure> {
        self.events = futures::stream::empty().boxed();
        Ok(())
    }
}
