//! The page for passkeys: it registers, lists and removes them, and confirms a decision with one. Its script calls the REST API.

use axum::http::header;
use axum::response::{Html, IntoResponse};
use steprail_engine::RunId;

use crate::limits::PAGE_CHARS;

/// Path of the page.
pub(crate) const PATH: &str = "/passkeys";

/// The path of the page with an open approval.
pub(crate) fn path_of(run: RunId, step: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("run", &run.to_string()).append_pair("step", step);
    format!("{PATH}?{}", query.finish())
}

/// Whether a sign-in link may lead to a page: this one, with a query or a fragment.
pub(crate) fn is_page(page: &str) -> bool {
    let rest = page.strip_prefix(PATH);
    page.len() <= PAGE_CHARS && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['?', '#']))
}

/// The page. It contains no data: the script loads what the session may see.
pub(crate) async fn page() -> Html<&'static str> {
    Html(include_str!("passkey_page/page.html"))
}

pub(crate) async fn script() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("passkey_page/page.js"))
}
