//! Connections that are let go when their client takes nothing for too long.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

use super::peer;

/// How long a client may take nothing. What it missed it can ask for again, from the last event that it knows.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connections that are served at the same time: the system's other files are for the database and for servers.
const CONNECTIONS: usize = 4_096;

/// Bytes that the system holds for a client that does not take them. Left to itself it holds megabytes.
const SEND_BYTES: usize = 256 * 1024;

/// A listener whose connections are [`Stream`]s.
pub(super) struct Patient {
    listener: TcpListener,
    room: Arc<Semaphore>,
}

impl Patient {
    pub(super) fn new(listener: TcpListener) -> Self {
        // A wish: connections take it over from their listener, and work without it.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&listener, SEND_BYTES);
        Self { listener, room: Arc::new(Semaphore::new(CONNECTIONS)) }
    }
}

impl Listener for Patient {
    type Io = Stream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Stream, SocketAddr) {
        loop {
            // Those beyond wait in the system's queue. The semaphore is never closed.
            let Ok(place) = self.room.clone().acquire_owned().await else { continue };
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    // An event is one small write: it should not wait for the next.
                    let _ = stream.set_nodelay(true);
                    return (
                        Stream { stream, until: Box::pin(sleep(PATIENCE)), waits: false, _place: place },
                        address,
                    );
                }
                // Too many files are open, or the client is gone already; neither is the end.
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Where a request comes from.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The address.
    pub ip: IpAddr,
    /// Both ends of the connection.
    ends: Option<(SocketAddr, SocketAddr)>,
    /// Whether it is a program of the user whom this server runs for, once somebody has asked.
    own: Arc<OnceLock<bool>>,
}

impl Place {
    /// Whether it is a program of the user whom this server runs for. It is looked up once for a connection.
    pub(super) async fn is_own(&self) -> bool {
        if let Some(known) = self.own.get() {
            return *known;
        }
        let ends = self.ends;
        let look = move || ends.is_some_and(|(there, here)| peer::is_own(there, here));
        let found = tokio::task::spawn_blocking(look).await.unwrap_or(false);
        *self.own.get_or_init(|| found)
    }

    /// A place of which this is known.
    #[cfg(test)]
    pub(super) fn known(ip: IpAddr, is_own: bool) -> Self {
        Self { ip, ends: None, own: Arc::new(OnceLock::from(is_own)) }
    }
}

impl Connected<IncomingStream<'_, Patient>> for Place {
    fn connect_info(stream: IncomingStream<'_, Patient>) -> Self {
        let there = *stream.remote_addr();
        let ends = stream.io().stream.local_addr().ok().map(|here| (there, here));
        Self { ip: there.ip(), ends, own: Arc::default() }
    }
}

/// A connection that fails when nothing of what is written is taken for [`PATIENCE`].
pub(super) struct Stream {
    stream: TcpStream,
    until: Pin<Box<Sleep>>,
    /// Whether something waits to be taken.
    waits: bool,
    _place: OwnedSemaphorePermit,
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
