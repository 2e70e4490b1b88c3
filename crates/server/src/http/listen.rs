//! Connections to a port, and when they are let go: a client that says nothing, or takes nothing, does not hold one for ever.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::peer;

/// How long a client may take nothing. What it missed it can ask for again, from the last event that it knows.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connections that are served at the same time: the system's other files are for the database and for servers.
const CONNECTIONS: usize = 4_096;

/// Bytes that the system holds for a client that does not take them. Left to itself it holds megabytes.
const SEND_BYTES: usize = 256 * 1024;

/// How long a client may take to send the head of a request, and to think about the next one.
const HEAD: Duration = Duration::from_secs(30);

/// Bytes that are read ahead, or wait to be written, for one connection; a head must fit.
const BUFFER_BYTES: usize = 64 * 1024;

/// Where a request comes from.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The address.
    pub ip: IpAddr,
    /// Whether it is a program of the user whom this server runs for.
    pub is_own: bool,
}

/// Serves a port until it is to stop; what is under way then may end.
pub(super) async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    // A wish: connections take it over from their listener, and work without it.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&listener, SEND_BYTES);
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let accept = async {
        loop {
            // Those beyond wait in the system's queue. The semaphore is never closed.
            let Ok(place) = room.clone().acquire_owned().await else { continue };
            match listener.accept().await {
                Ok((stream, address)) => {
                    tokio::spawn(connection(stream, address, place, router.clone(), stop.clone()));
                }
                // Too many files are open, or the client is gone already; neither is the end.
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    };
    stop.run_until_cancelled(accept).await;
}

/// Serves one connection.
async fn connection(
    stream: TcpStream,
    address: SocketAddr,
    room: OwnedSemaphorePermit,
    router: Router,
    stop: CancellationToken,
) {
    // An event is one small write: it should not wait for the next.
    let _ = stream.set_nodelay(true);
    let place = Place { ip: address.ip(), is_own: peer::is_own(&stream).await };
    let service = router.map_request(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(place.clone()));
        request
    });
    let stream = Stream { stream, until: Box::pin(sleep(PATIENCE)), waits: false, _room: room };
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(BUFFER_BYTES);
    let serving = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut serving = pin!(serving.with_upgrades());
    if stop.run_until_cancelled(serving.as_mut()).await.is_none() {
        serving.as_mut().graceful_shutdown();
        let _ = serving.await;
    }
}

/// A connection that fails when nothing of what is written is taken for [`PATIENCE`].
pub(super) struct Stream {
    stream: TcpStream,
    until: Pin<Box<Sleep>>,
    /// Whether something waits to be taken.
    waits: bool,
    /// Its place among the connections, also when it has become a WebSocket.
    _room: OwnedSemaphorePermit,
}

impl Stream {
    /// What became of a write, or that it took too long.
    fn patiently<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waits = false;
            return written;
        }
        if !self.waits {
            self.waits = true;
            self.until.as_mut().reset(Instant::now() + PATIENCE);
        }
        ready!(self.until.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.patiently(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.patiently(context, written)
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
