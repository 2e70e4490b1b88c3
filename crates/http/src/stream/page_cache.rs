//! Cache of recently read pages of the log, shared by followers that catch up.

use std::collections::VecDeque;
use std::sync::Arc;

use steprail_engine::{Cursor, Engine, Error, Visibility};
use tokio::sync::Mutex;

use super::batch::Batch;

/// The maximum number of events of a page.
pub(super) const PAGE: usize = 256;
/// The maximum number of cached pages.
const PAGES: usize = 16;

/// Full pages. The lock makes followers share one read. Followers near each other share pages: the first one determines
/// where pages begin, and the others join it at the end of a page.
#[derive(Default)]
pub(super) struct PageCache(Mutex<VecDeque<CachedPage>>);

/// Consecutive events of all runs, complete from a cursor on.
struct CachedPage {
    after: Cursor,
    events: Arc<Batch>,
}

impl CachedPage {
    /// Whether it contains the first event after a cursor.
    fn covers(&self, cursor: Cursor) -> bool {
        self.after <= cursor && self.events.cursor().is_some_and(|last| last > cursor)
    }
}

impl PageCache {
    /// The page that contains the first event after a cursor, and whether more pages follow. It may start before the cursor.
    pub(super) async fn page(&self, engine: &Engine, cursor: Cursor) -> Result<(Arc<Batch>, bool), Error> {
        if cursor >= engine.cursor() {
            return Ok((Batch::of_all([]), false));
        }
        let mut pages = self.0.lock().await;
        if let Some(page) = pages.iter().find(|page| page.covers(cursor)) {
            return Ok((page.events.clone(), true));
        }
        let page = engine.feed(cursor, PAGE, Visibility::default()).await?;
        let (events, has_more) = (Batch::of_all(page.events), page.next.is_some());
        if has_more {
            pages.truncate(PAGES - 1);
            pages.push_front(CachedPage { after: cursor, events: events.clone() });
        }
        Ok((events, has_more))
    }

    pub(super) async fn clear(&self) {
        self.0.lock().await.clear();
    }
}
