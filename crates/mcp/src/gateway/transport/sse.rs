//! HTTP+SSE of revision 2024-11-05, which servers of the past still speak: one stream of events, and an address for posts.

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
    /// Where messages are posted.
    endpoint: Url,
    events: BoxStream<'static, Result<Sse, SseError>>,
}

impl HttpSse {
    /// Opens the stream and waits for the address that it names.
    pub(crate) async fn open(client: HttpClient, url: &str, headers: HeaderMap) -> Result<Self, HttpFailure> {
        let not_sse = |what: &str| HttpFailure::NotSent(format!("it speaks no MCP transport ({what})"));
        let base = Url::parse(url).map_err(|_| not_sse("the address is not a URL"))?;
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
            let endpoint = base.join(data.trim()).map_err(|_| not_sse("its endpoint is not a URL"))?;
            if endpoint.origin() != base.origin() {
                return Err(not_sse("its endpoint is of another origin"));
            }
            return Ok(Self { client, headers, endpoint, events });
        }
        Err(not_sse("its stream names no endpoint"))
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
