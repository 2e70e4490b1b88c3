//! Pages of the log that were read lately: many who catch up at the same time read each of them once.

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

/// The pages, each with the place after which it begins. One is read at a time.
#[derive(Default)]
pub(super) struct Shelf(Mutex<VecDeque<(i64, Arc<Page>)>>);

impl Shelf {
    /// The page with the first event after a cursor; it may begin before. It is the last if it is not full.
    pub(super) async fn page(&self, engine: &Engine, cursor: i64) -> Result<Arc<Page>, Error> {
        let mut pages = self.0.lock().await;
        let has = |(begin, page): &&(i64, Arc<Page>)| *begin <= cursor && page.last() > Some(cursor);
        if let Some((_, page)) = pages.iter().find(has) {
            return Ok(page.clone());
        }
        // Pages begin at round numbers, so that those who are near each other share them.
        let begin = cursor - cursor.rem_euclid(i64::from(EVENTS));
        let page = Page::of_all(engine.feed(begin, PAGE, None).await?);
        if page.frames().len() == PAGE {
            pages.truncate(PAGES - 1);
            pages.push_front((begin, page.clone()));
        }
        Ok(page)
    }
}
