//! A thread pool for queries of the store, so that they do not block threads of the runtime.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use steprail_store::{Reads, StoreError};
use tokio::sync::{oneshot, watch};

use crate::error::Error;
use crate::limits::READ_THREADS;

/// A query that sends its own result.
type Query = Box<dyn FnOnce(&dyn Reads) + Send>;

/// A handle to the pool. The threads end when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct ReadPool {
    queries: Sender<Query>,
    is_recovered: watch::Receiver<bool>,
}

impl ReadPool {
    /// Starts the threads. Queries wait until `is_recovered` is true.
    pub(crate) fn spawn(
        readers: &Arc<dyn Reads>,
        is_recovered: watch::Receiver<bool>,
    ) -> std::io::Result<Self> {
        let (queries, queue) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..READ_THREADS {
            let (readers, queue) = (readers.clone(), queue.clone());
            let thread = std::thread::Builder::new().name("steprail-read".to_owned());
            thread.spawn(move || run_queries(&*readers, &queue))?;
        }
        Ok(Self { queries, is_recovered })
    }

    /// Runs a query on a thread of the pool and waits for its result.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&dyn Reads) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        // The wait fails if the engine stopped during recovery. The stored rows can still be read.
        let _ = self.is_recovered.clone().wait_for(|is_recovered| *is_recovered).await;
        let (reply, result) = oneshot::channel();
        // A query whose caller was dropped while it was in the queue is skipped.
        let query = move |readers: &dyn Reads| {
            if !reply.is_closed() {
                drop(reply.send(query(readers)));
            }
        };
        self.queries.send(Box::new(query)).map_err(|_| Error::Stopped)?;
        Ok(result.await.map_err(|_| Error::Stopped)??)
    }
}

fn run_queries(readers: &dyn Reads, queue: &Mutex<Receiver<Query>>) {
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok(query) = next() {
        // A panic drops the reply of its query and must not end the thread.
        let _ = catch_unwind(AssertUnwindSafe(|| query(readers)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use steprail_store::sqlite::{Options, SqliteStore};
    use steprail_store::{Cursor, Reads};
    use tokio::sync::{oneshot, watch};

    use super::ReadPool;
    use crate::limits::READ_THREADS;

    fn read_pool() -> (ReadPool, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(folder.path().join("x.db"), &Options::default()).expect("a store");
        let readers: Arc<dyn Reads> = Arc::new(store.readers().expect("readers"));
        (ReadPool::spawn(&readers, watch::channel(true).1).expect("threads"), folder)
    }

    #[tokio::test]
    async fn panicking_query_does_not_end_its_thread() {
        let (pool, _folder) = read_pool();
        for _ in 0..=READ_THREADS {
            let result = pool.read::<()>(|_| panic!("a test")).await;
            assert!(result.is_err());
        }
        assert_eq!(pool.read(|readers| readers.last_event()).await.expect("a result"), Cursor::START);
    }

    #[tokio::test]
    async fn query_of_a_dropped_caller_is_skipped() {
        let (pool, _folder) = read_pool();
        let mut blocked = Vec::new();
        for _ in 0..READ_THREADS {
            let (release, released) = oneshot::channel::<()>();
            let (pool, (started, is_started)) = (pool.clone(), oneshot::channel());
            let query = move |_: &dyn Reads| {
                let _ = started.send(());
                let _ = released.blocking_recv();
                Ok(())
            };
            let task = tokio::spawn(async move { pool.read(query).await });
            is_started.await.expect("a thread");
            blocked.push((release, task));
        }
        let was_run = Arc::new(AtomicBool::new(false));
        let flag = was_run.clone();
        let skipped = pool.read(move |_| {
            flag.store(true, Ordering::SeqCst);
            Ok(())
        });
        // The query enters the queue, and its caller is dropped before a thread is free.
        assert!(poll_once(skipped).await.is_none());
        for (release, task) in blocked {
            drop(release);
            task.await.expect("a task").expect("a result");
        }
        assert_eq!(pool.read(|readers| readers.last_event()).await.expect("a result"), Cursor::START);
        assert!(!was_run.load(Ordering::SeqCst));
    }

    /// Polls a future once and drops it.
    async fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = std::future::ready(()) => None,
        }
    }
}
