//! Connections to a port: admission, and timeouts for clients that do not send or do not read.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use axum::middleware::from_fn;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::connections::{self, ConnectionLimits, ConnectionSlot, Connections};
use crate::peer::Peer;
use crate::{metrics, security_headers};

/// Clients that do not read for this long are disconnected. A stream resumes from its last event.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Kernel send buffer of a connection, in bytes. The default grows to megabytes for slow readers.
const SEND_BUFFER_BYTES: usize = 256 * 1024;

/// Timeout for the head of a request, and for idle connections.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout for the head of a request on a connection of the reserve.
const RESERVED_HEADER_TIMEOUT: Duration = Duration::from_secs(2);

/// Read and write buffer of a connection, in bytes. The head of a request must fit.
const BUFFER_BYTES: usize = 64 * 1024;

/// Serves a port until `stop`. Requests in flight finish.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    stop: CancellationToken,
) {
    // Connections inherit it from the listener. They work without it.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&listener, SEND_BUFFER_BYTES);
    let connections = Connections::new(limits);
    let reserve = router.clone().layer(from_fn(connections::health_checks_only));
    let routers = Routers { reserve: reserve.layer(from_fn(security_headers::add)), all: router };
    let accept = async {
        loop {
            match listener.accept().await {
                // Beyond the reserve, connections are closed, so that health checks do not wait in the accept queue.
                Ok((stream, address)) => {
                    if let Some(slot) = connections.admit(address.ip()) {
                        tokio::spawn(connection(stream, address, slot, routers.clone(), stop.clone()));
                    } else {
                        metrics::rejected_connection();
                    }
                }
                // Out of file descriptors, or the client has disconnected.
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    };
    stop.run_until_cancelled(accept).await;
}

/// The routers of a port.
#[derive(Clone)]
struct Routers {
    all: Router,
    /// For connections of the reserve that do not belong to the owner.
    reserve: Router,
}

/// Serves one connection.
async fn connection(
    stream: TcpStream,
    address: SocketAddr,
    slot: ConnectionSlot,
    routers: Routers,
    stop: CancellationToken,
) {
    // Events are small writes that must not wait for the next one.
    let _ = stream.set_nodelay(true);
    let peer = Peer::of(&stream, address.ip()).await;
    let is_reserved = slot.is_reserved;
    let router = if is_reserved && !peer.is_owner { routers.reserve } else { routers.all };
    let service = router.map_request(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer.clone()));
        request
    });
    let stream =
        TimedStream { stream, deadline: Box::pin(sleep(WRITE_TIMEOUT)), is_blocked: false, _slot: slot };
    let mut builder = http1::Builder::new();
    // A connection of the reserve serves one request.
    let header_timeout = if is_reserved { RESERVED_HEADER_TIMEOUT } else { HEADER_TIMEOUT };
    builder.timer(TokioTimer::new()).header_read_timeout(header_timeout).max_buf_size(BUFFER_BYTES);
    builder.keep_alive(!is_reserved);
    let serving = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut serving = pin!(serving.with_upgrades());
    if stop.run_until_cancelled(serving.as_mut()).await.is_none() {
        serving.as_mut().graceful_shutdown();
        let _ = serving.await;
    }
}

/// A connection whose writes fail when the peer does not read for [`WRITE_TIMEOUT`].
struct TimedStream {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
    /// Whether the last write is pending.
    is_blocked: bool,
    /// Held also after the upgrade to a WebSocket.
    _slot: ConnectionSlot,
}

impl TimedStream {
    /// The result of a write, or a timeout if it has been pending for too long.
    fn with_deadline<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_blocked = false;
            return written;
        }
        if !self.is_blocked {
            self.is_blocked = true;
            self.deadline.as_mut().reset(Instant::now() + WRITE_TIMEOUT);
        }
        ready!(self.deadline.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.with_deadline(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.with_deadline(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
