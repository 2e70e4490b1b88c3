//! Supervision of the engine thread: a panic becomes an error for every caller, and the embedding program is notified.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use steprail_store::StoreError;
use tokio::sync::watch;

use crate::driver::{Driver, Message};
use crate::engine::Engine;
use crate::error::Error;
use crate::kernel::Reply;
use crate::metrics;

/// How long the caller of a dropped request waits for the end of the engine thread.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The panic that ended the engine thread.
pub(crate) struct Failure {
    message: Arc<str>,
    /// Whether the store is closed.
    is_closed: bool,
}

/// Starts the engine thread.
pub(crate) fn spawn(driver: Driver, failure: watch::Sender<Option<Failure>>) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("steprail".to_owned());
    thread.spawn(move || supervise(driver, &failure)).map(drop)
}

fn supervise(mut driver: Driver, failure: &watch::Sender<Option<Failure>>) {
    match catch_unwind(AssertUnwindSafe(|| driver.run())) {
        Ok(None) => {}
        Ok(Some((reply, abandoned))) => {
            // Closes the store, so that the caller can open it again.
            drop(driver);
            reply.send(Ok(abandoned));
        }
        Err(panic) => {
            let message: Arc<str> = panic_message(&*panic).into();
            // Sent before the driver drops the replies of waiting callers, whose errors contain the message.
            failure.send_replace(Some(Failure { message: message.clone(), is_closed: false }));
            // The recorder of logs or metrics, or a port, may have caused the panic.
            let _ = catch_unwind(AssertUnwindSafe(|| report(&*panic)));
            let _ = catch_unwind(AssertUnwindSafe(|| driver.calls.abandon_all()));
            let _ = catch_unwind(AssertUnwindSafe(move || drop(driver)));
            failure.send_replace(Some(Failure { message, is_closed: true }));
        }
    }
}

fn report(panic: &(dyn Any + Send)) {
    tracing::error!("the engine thread panicked: {}", panic_message(panic));
    metrics::panicked("engine");
}

/// The text of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

impl Engine {
    /// Why the engine thread panicked. The engine cannot continue after that: restart the process, and recovery continues
    /// the runs.
    pub fn failure(&self) -> Option<Error> {
        self.0.failure.borrow().as_ref().map(|failure| Error::Failed(failure.message.clone()))
    }

    /// Waits until the engine cannot continue without a restart of the process: its thread has panicked and the store is
    /// closed, or the store failed and a retry does not help. Pending forever if the engine is shut down in order.
    pub async fn failed(&self) -> Error {
        tokio::select! {
            panic = self.panicked() => panic,
            fault = self.halted() => Error::Storage(fault),
        }
    }

    async fn panicked(&self) -> Error {
        let mut failure = self.0.failure.clone();
        let is_closed = |failure: &Option<Failure>| failure.as_ref().is_some_and(|failure| failure.is_closed);
        if failure.wait_for(is_closed).await.is_err() {
            std::future::pending::<()>().await;
        }
        self.stopped()
    }

    /// Waits for a fault of the store after which the engine writes nothing more.
    async fn halted(&self) -> StoreError {
        let mut halt = self.0.halt.clone();
        let fault = halt.wait_for(Option::is_some).await.ok().and_then(|fault| fault.clone());
        match fault {
            Some(fault) => fault,
            None => std::future::pending().await,
        }
    }

    /// Sends a message through the engine thread and back. Fails if the thread has ended, or if it does not respond within
    /// `timeout`: it is stuck, or has not finished recovery.
    pub async fn probe(&self, timeout: Duration) -> Result<(), Error> {
        let (reply, result) = Reply::channel();
        self.send_urgent(Message::Probe(reply))?;
        match tokio::time::timeout(timeout, result).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(self.dropped().await),
            Err(_) => Err(Error::Unresponsive(timeout)),
        }
    }

    /// The error of a request whose reply was dropped. A panic drops the replies of the current batch before it is caught,
    /// so this waits until the thread has ended.
    pub(crate) async fn dropped(&self) -> Error {
        let mut failure = self.0.failure.clone();
        // Fails if the thread ended without a panic.
        let _ = tokio::time::timeout(END_TIMEOUT, failure.wait_for(Option::is_some)).await;
        self.stopped()
    }

    /// The error of a request that cannot be sent to the engine thread.
    pub(crate) fn stopped(&self) -> Error {
        self.failure().unwrap_or(Error::Stopped)
    }
}
