//! A store that a test can read while a kernel writes to it, with fault injection.

use std::sync::{Arc, Mutex, MutexGuard};

use steprail_core::plan::Hash;
use steprail_core::run::{Millis, Payload, Record, Run};
use steprail_store::sqlite::SqliteStore;
use steprail_store::{
    Account, AccountKind, Appended, Approval, ClaimKey, Definition, Head, KeyState, NewDefinition, NewRun,
    Purged, RunId, RunKey, Schedule, Session, Store, StoreError, StoredEvent, Timer, Wanted,
};

/// A handle to a shared store.
pub(crate) struct Shared {
    store: Arc<Mutex<SqliteStore>>,
    faults: Arc<Mutex<Faults>>,
}

/// The faults to inject.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Number of writes and commits before the first fault.
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
    pub(crate) fn new(store: Arc<Mutex<SqliteStore>>) -> Self {
        Self { store, faults: Arc::default() }
    }

    pub(crate) fn with_faults(store: Arc<Mutex<SqliteStore>>, faults: Arc<Mutex<Faults>>) -> Self {
        Self { store, faults }
    }

    fn store(&self) -> MutexGuard<'_, SqliteStore> {
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
    fn rollback(&mut self) {
        self.store().rollback();
    }

    fn begin(&mut self) -> Result<(), StoreError> {
        self.trip()?;
        self.store().begin()
    }

    fn append(
        &mut self,
        head: &mut Head,
        run: &Run,
        records: &[Record],
        now: Millis,
    ) -> Result<Appended, StoreError> {
        self.trip()?;
        self.store().append(head, run, records, now)
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        if let Err(error) = self.trip() {
            if self.faults.lock().expect("the faults").torn {
                self.store().commit()?;
            }
            return Err(error);
        }
        self.store().commit()
    }

    pass_on! {
        fn secret(&mut self) -> Result<[u8; 32], StoreError>;
        fn define(&mut self, new: &NewDefinition<'_>) -> Result<Definition, StoreError>;
        fn definition(&mut self, id: i64) -> Result<Option<Definition>, StoreError>;
        fn find_definition(&mut self, name: &str, version: Option<u32>) -> Result<Option<i64>, StoreError>;
        fn delete_definition(&mut self, name: &str, now: Millis) -> Result<bool, StoreError>;
        fn create_run(&mut self, new: &NewRun<'_>) -> Result<RunKey, StoreError>;
        fn find_run(&mut self, id: RunId) -> Result<Option<RunKey>, StoreError>;
        fn find_request(&mut self, by: &str, request_key: &str) -> Result<Option<RunId>, StoreError>;
        fn head(&mut self, run: RunKey) -> Result<Head, StoreError>;
        fn children(&mut self, run: RunKey) -> Result<Vec<RunKey>, StoreError>;
        fn active_runs(&mut self, after: RunKey, limit: usize) -> Result<Vec<RunKey>, StoreError>;
        fn unfinished_runs(&mut self, all: bool, after: RunKey, limit: usize) -> Result<Vec<RunKey>, StoreError>;
        fn events(&mut self, run: RunKey, after: u64) -> Result<Vec<StoredEvent>, StoreError>;
        fn payload(&mut self, run: RunKey, wanted: Wanted) -> Result<Payload, StoreError>;
        fn results(&mut self, run: RunKey) -> Result<Vec<(String, Hash, u32)>, StoreError>;
        fn due_timers(&mut self, now: Millis, limit: usize) -> Result<Vec<Timer>, StoreError>;
        fn next_timer(&mut self) -> Result<Option<Millis>, StoreError>;
        fn drop_timer(&mut self, timer: &Timer) -> Result<bool, StoreError>;
        fn has_run(&mut self, run: RunKey) -> Result<bool, StoreError>;
        fn waiting(&mut self, event: &str) -> Result<Vec<(RunKey, u32)>, StoreError>;
        fn key(&mut self, key: &ClaimKey<'_>, now: Millis) -> Result<KeyState, StoreError>;
        fn take_key(&mut self, key: &ClaimKey<'_>) -> Result<(), StoreError>;
        fn approval(&mut self, run: RunKey, path: &str) -> Result<Option<Approval>, StoreError>;
        fn put_schedule(&mut self, schedule: &Schedule) -> Result<(), StoreError>;
        fn drop_schedule(&mut self, name: &str) -> Result<bool, StoreError>;
        fn put_session(&mut self, session: &Session, now: Millis) -> Result<(), StoreError>;
        fn drop_session(&mut self, id: &str) -> Result<(), StoreError>;
        fn put_account(&mut self, account: &Account) -> Result<(), StoreError>;
        fn drop_account(&mut self, kind: AccountKind, id: &str) -> Result<(), StoreError>;
        fn due_schedules(&mut self, now: Millis, limit: usize) -> Result<Vec<Schedule>, StoreError>;
        fn purge(&mut self, before: Millis, now: Millis, limit: usize) -> Result<Purged, StoreError>;
    }
}
