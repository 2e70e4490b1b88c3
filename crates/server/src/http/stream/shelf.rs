//! Pages of the log that were read lately: many who catch up at the same time share them.

use std::collections::VecDeque;
use std::sync::Arc;

use steprail_engine::{Engine, Error};
use tokio::sync::Mutex;

use super::page::Page;

/// Events of a page at most.
const EVENTS: u16 = 256;
pub(super) const PAGE: usize = EVENTS as usize;
/// Pages that are kept.
const PAGES: usize = 16;

/// The pages, each with the place after which it begins; more follows on each. One is read at a time.
#[derive(Default)]
pub(super) struct Shelf(Mutex<VecDeque<(i64, Arc<Page>)>>);

impl Shelf {
    /// The page with the first event after a cursor, and whether there is more; it may begin before the cursor.
    pub(super) async fn page(&self, engine: &Engine, cursor: i64) -> Result<(Arc<Page>, bool), Error> {
        if cursor >= engine.cursor() {
            return Ok((Page::of_all([]), false));
        }
        let mut pages = self.0.lock().await;
        let has = |(begin, page): &&(i64, Arc<Page>)| *begin <= cursor && page.last() > Some(cursor);
        if let Some((_, page)) = pages.iter().find(has) {
            return Ok((page.clone(), true));
        }
        // Pages begin at round numbers, so that those who are near each other share them.
        let round = cursor - cursor.rem_euclid(i64::from(EVENTS));
        let (mut begin, (mut page, mut has_more)) = (round, read(engine, round).await?);
        if has_more && page.last() <= Some(cursor) {
            // Large events made it end too early.
            (begin, (page, has_more)) = (cursor, read(engine, cursor).await?);
        }
        if has_more {
            pages.truncate(PAGES - 1);
            pages.push_front((begin, page.clone()));
        }
        Ok((page, has_more))
    }

    /// Forgets everything.
    pub(super) async fn clear(&self) {
        self.0.lock().await.clear();
    }
}

async fn read(engine: &Engine, after: i64) -> Result<(Arc<Page>, bool), Error> {
    let stretch = engine.feed(after, PAGE, None).await?;
    Ok((Page::of_all(stretch.events), stretch.has_more))
}
