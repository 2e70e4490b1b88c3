//! A store that a test can read while a kernel writes to it, with fault injection.

use std::sync::{Arc, Mutex, MutexGuard};

use steprail_core::run::{Millis, Payload};
use steprail_store::memory::MemoryStore;
use steprail_store::sqlite::SqliteStore;
use steprail_store::{
    Approval, ClaimKey, ClaimState, Commit, Committed, Definition, DefinitionQuery, Due, Head, Refused,
    RunId, Store, StoreError, StoredEvent, Unfinished, Wanted,
};

use super::audit::Tables;

/// A store whose tables a test can read.
pub(crate) trait ReadableStore: Store {
    fn tables(&self) -> &dyn Tables;
}

impl ReadableStore for SqliteStore {
    fn tables(&self) -> &dyn Tables {
        self.connection()
    }
}

impl ReadableStore for MemoryStore {
    fn tables(&self) -> &dyn Tables {
        self
    }
}

/// A handle to a shared store.
pub(crate) struct Shared {
    store: Arc<Mutex<dyn ReadableStore>>,
    faults: Arc<Mutex<Faults>>,
}

/// The faults to inject.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Number of commits before the first fault.
    pub after: Option<u32>,
    /// Number of faults.
    pub times: u32,
    /// The error to return.
    pub error: Option<StoreError>,
    /// Whether a failed commit takes effect nevertheless.
    pub torn: bool,
    /// Whether a fault was injected.
    pub tripped: bool,
}

impl Shared {
    pub(crate) fn new(store: Arc<Mutex<dyn ReadableStore>>) -> Self {
        Self { store, faults: Arc::default() }
    }

    pub(crate) fn with_faults(store: Arc<Mutex<dyn ReadableStore>>, faults: Arc<Mutex<Faults>>) -> Self {
        Self { store, faults }
    }

    fn store(&self) -> MutexGuard<'_, dyn ReadableStore + 'static> {
        self.store.lock().expect("the store")
    }

    /// Returns an error if a fault is due.
    fn trip(&self) -> Result<(), StoreError> {
        let mut faults = self.faults.lock().expect("the faults");
        match (faults.after, faults.error.clone()) {
            (Some(0), Some(error)) => {
                faults.tripped = true;
                faults.times = faults.times.saturating_sub(1);
                if faults.times == 0 {
                    faults.after = None;
                }
                Err(error)
            }
            (Some(left), _) => {
                faults.after = Some(left.saturating_sub(1));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

macro_rules! pass_on {
    ($(fn $name:ident(&mut self $(, $arg:ident: $type:ty)*) -> $result:ty;)+) => {
        $(fn $name(&mut self $(, $arg: $type)*) -> $result { self.store().$name($($arg),*) })+
    };
}

impl Store for Shared {
    fn commit(&mut self, commit: &Commit) -> Result<Committed, Refused> {
        if let Err(error) = self.trip() {
            if self.faults.lock().expect("the faults").torn {
                self.store().commit(commit)?;
            }
            return Err(error.into());
        }
        self.store().commit(commit)
    }

    pass_on! {
        fn secret(&mut self) -> Result<[u8; 32], StoreError>;
        fn head(&mut self, run: RunId) -> Result<Option<Head>, StoreError>;
        fn log(&mut self, run: RunId) -> Result<Vec<StoredEvent>, StoreError>;
        fn value(&mut self, run: RunId, wanted: Wanted) -> Result<Payload, StoreError>;
        fn definition(&mut self, which: DefinitionQuery<'_>) -> Result<Option<Definition>, StoreError>;
        fn request(&mut self, by: &str, request_key: &str) -> Result<Option<RunId>, StoreError>;
        fn unfinished(&mut self, which: Unfinished, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>, StoreError>;
        fn due(&mut self, now: Millis, limit: usize) -> Result<Due, StoreError>;
        fn waiting(&mut self, event: &str) -> Result<Vec<(RunId, u32)>, StoreError>;
        fn claim(&mut self, key: &ClaimKey, now: Millis) -> Result<ClaimState, StoreError>;
        fn counter(&mut self, subject: &str, rule: &str, start: Millis) -> Result<u64, StoreError>;
        fn approval(&mut self, run: RunId, path: &str) -> Result<Option<Approval>, StoreError>;
    }
}
