//! Pages of lists.

use std::str::FromStr;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_engine::InvalidCursor;

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

/// The cursor in a request, if it has one.
pub(crate) fn cursor<C: FromStr<Err = InvalidCursor>>(text: Option<&str>) -> Result<Option<C>, Problem> {
    text.map(str::parse).transpose().map_err(|error: InvalidCursor| {
        let problem = Problem::new(StatusCode::BAD_REQUEST, "invalid_cursor", error.to_string());
        problem.hint("pass a cursor exactly as the server returned it, or none")
    })
}

/// The number of items of a page: as requested, or the default.
pub(crate) fn limit(requested: Option<usize>, default: usize) -> Result<usize, Problem> {
    match requested.unwrap_or(default) {
        limit @ 1..=MAX_ITEMS => Ok(limit),
        _ => Err(Problem::bad(format!("`limit` must be a number from 1 to {MAX_ITEMS}"))),
    }
}
