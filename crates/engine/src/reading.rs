//! Threads that answer questions about what is stored: nobody who asks waits in a thread of the runtime.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use steprail_store::{Reads, StoreError};
use tokio::sync::{oneshot, watch};

use crate::error::Error;
use crate::limits::READS_AT_ONCE;

/// A question, with whoever waits for its answer.
type Question = Box<dyn FnOnce(&dyn Reads) + Send>;

/// Where questions are asked. The threads end with its last clone.
#[derive(Clone)]
pub(crate) struct Reading {
    ask: Sender<Question>,
    /// Whether what is stored tells how things stand.
    is_readable: watch::Receiver<bool>,
}

impl Reading {
    /// Starts the threads. Nothing is answered before it `is_readable`.
    pub(crate) fn spawn(
        readers: &Arc<dyn Reads>,
        is_readable: watch::Receiver<bool>,
    ) -> std::io::Result<Self> {
        let (ask, questions) = mpsc::channel();
        let questions = Arc::new(Mutex::new(questions));
        for _ in 0..READS_AT_ONCE {
            let (readers, questions) = (readers.clone(), questions.clone());
            let thread = std::thread::Builder::new().name("steprail-read".to_owned());
            thread.spawn(move || answer(&*readers, &questions))?;
        }
        Ok(Self { ask, is_readable })
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Reads) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        // An engine that is gone will not make it so.
        let _ = self.is_readable.clone().wait_for(|is_readable| *is_readable).await;
        let (reply, answer) = oneshot::channel();
        // Whoever asked may have gone away: nothing is read for them, so what waits is what is waited for.
        let question = move |readers: &dyn Reads| {
            if !reply.is_closed() {
                drop(reply.send(ask(readers)));
            }
        };
        self.ask.send(Box::new(question)).map_err(|_| Error::Stopped)?;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use steprail_store::Reads;
    use steprail_store::sqlite::{Options, SqliteStore};
    use tokio::sync::{oneshot, watch};

    use super::Reading;
    use crate::limits::READS_AT_ONCE;

    fn reading() -> (Reading, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(folder.path().join("x.db"), &Options::default()).expect("a store");
        let readers: Arc<dyn Reads> = Arc::new(store.readers().expect("readers"));
        (Reading::spawn(&readers, watch::channel(true).1).expect("threads"), folder)
    }

    #[tokio::test]
    async fn a_question_that_panics_takes_no_thread_with_it() {
        let (reading, _folder) = reading();
        for _ in 0..=READS_AT_ONCE {
            let asked = reading.read::<()>(|_| panic!("as a test wants")).await;
            assert!(asked.is_err());
        }
        assert_eq!(reading.read(|readers| readers.last_event()).await.expect("an answer"), 0);
    }

    #[tokio::test]
    async fn what_nobody_waits_for_is_not_read() {
        let (reading, _folder) = reading();
        let mut held = Vec::new();
        for _ in 0..READS_AT_ONCE {
            let (go, gone) = oneshot::channel::<()>();
            let (reading, (begun, is_begun)) = (reading.clone(), oneshot::channel());
            let ask = move |_: &dyn Reads| {
                let _ = begun.send(());
                let _ = gone.blocking_recv();
                Ok(())
            };
            let asked = tokio::spawn(async move { reading.read(ask).await });
            is_begun.await.expect("a thread");
            held.push((go, asked));
        }
        let was_read = Arc::new(AtomicBool::new(false));
        let seen = was_read.clone();
        let left = reading.read(move |_| {
            seen.store(true, Ordering::SeqCst);
            Ok(())
        });
        // It is asked, and dropped before its turn comes.
        assert!(polled_once(left).await.is_none());
        for (go, asked) in held {
            drop(go);
            asked.await.expect("a task").expect("an answer");
        }
        assert_eq!(reading.read(|readers| readers.last_event()).await.expect("an answer"), 0);
        assert!(!was_read.load(Ordering::SeqCst));
    }

    /// Polls a future once, and drops it.
    async fn polled_once<T>(future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = future => Some(done),
            () = std::future::ready(()) => None,
        }
    }
}
