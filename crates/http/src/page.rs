//! Pages of lists.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::problem::Problem;

/// The maximum number of items of a page.
const MAX_ITEMS: usize = 1_000;

/// One page of a list.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Page<T> {
    /// The items of this page.
    pub items: Vec<T>,
    /// Cursor of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// A list that fits on one page.
    pub(crate) fn single(items: Vec<T>) -> Self {
        Self { items, next: None }
    }
}

/// The number of items of a page: as requested, or the default.
pub(crate) fn limit(requested: Option<usize>, default: usize) -> Result<usize, Problem> {
    match requested.unwrap_or(default) {
        limit @ 1..=MAX_ITEMS => Ok(limit),
        _ => Err(Problem::bad(format!("`limit` must be a number from 1 to {MAX_ITEMS}"))),
    }
}
