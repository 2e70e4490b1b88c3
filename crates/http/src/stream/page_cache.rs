//! Cache of recently read pages of the log, shared by followers that catch up.

use std::collections::VecDeque;
use std::sync::Arc;

use steprail_engine::{Engine, Error};
use tokio::sync::Mutex;

use super::batch::Batch;

/// The maximum number of events of a page.
const EVENTS: u16 = 256;
pub(super) const PAGE: usize = EVENTS as usize;
/// The maximum number of cached pages.
const PAGES: usize = 16;

/// Full pages with the cursor before their first event. The lock makes followers share one read.
#[derive(Default)]
pub(super) struct PageCache(Mutex<VecDeque<(i64, Arc<Batch>)>>);

impl PageCache {
    /// The page that contains the first event after a cursor, and whether more pages follow. It may start before the cursor.
    pub(super) async fn page(&self, engine: &Engine, cursor: i64) -> Result<(Arc<Batch>, bool), Error> {
        if cursor >= engine.cursor() {
            return Ok((Batch::of_all([]), false));
        }
        let mut pages = self.0.lock().await;
        let contains = |(start, page): &&(i64, Arc<Batch>)| *start <= cursor && page.last() > Some(cursor);
        if let Some((_, page)) = pages.iter().find(contains) {
            return Ok((page.clone(), true));
        }
        // Pages start at multiples of their size, so that followers near each other share them.
        let round = cursor - cursor.rem_euclid(i64::from(EVENTS));
        let (mut start, (mut page, mut has_more)) = (round, read(engine, round).await?);
        if has_more && page.last() <= Some(cursor) {
            // The size limit of a page ended it before the cursor.
            (start, (page, has_more)) = (cursor, read(engine, cursor).await?);
        }
        if has_more {
            pages.truncate(PAGES - 1);
            pages.push_front((start, page.clone()));
        }
        Ok((page, has_more))
    }

    pub(super) async fn clear(&self) {
        self.0.lock().await.clear();
    }
}

async fn read(engine: &Engine, after: i64) -> Result<(Arc<Batch>, bool), Error> {
    let page = engine.feed(after, PAGE, None).await?;
    Ok((Batch::of_all(page.events), page.has_more))
}
