//! Threads that answer questions about what is stored: nobody who asks waits in a thread of the runtime.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use steprail_store::{Reads, StoreError};
use tokio::sync::oneshot;

use crate::error::Error;
use crate::limits::READS_AT_ONCE;

/// A question, with whoever waits for its answer. Each asks one at a time, so no more wait than there are who ask.
type Question = Box<dyn FnOnce(&dyn Reads) + Send>;

/// Where questions are asked. The threads end with its last clone.
#[derive(Clone)]
pub(crate) struct Reading(Sender<Question>);

impl Reading {
    pub(crate) fn spawn(readers: &Arc<dyn Reads>) -> std::io::Result<Self> {
        let (ask, questions) = mpsc::channel();
        let questions = Arc::new(Mutex::new(questions));
        for _ in 0..READS_AT_ONCE {
            let (readers, questions) = (readers.clone(), questions.clone());
            let thread = std::thread::Builder::new().name("steprail-read".to_owned());
            thread.spawn(move || answer(&*readers, &questions))?;
        }
        Ok(Self(ask))
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Reads) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        // Whoever asked may have gone away.
        let question = move |readers: &dyn Reads| drop(reply.send(ask(readers)));
        self.0.send(Box::new(question)).map_err(|_| Error::Stopped)?;
        Ok(answer.await.map_err(|_| Error::Stopped)??)
    }
}

fn answer(readers: &dyn Reads, questions: &Mutex<Receiver<Question>>) {
    let next = || questions.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok(question) = next() {
        // One that panics gets no answer, and the next ones do.
        let _ = catch_unwind(AssertUnwindSafe(|| question(readers)));
    }
}
