//! The frame of the pages, and text in HTML. The pages have no scripts, no inline styles and nothing from other origins.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use steprail_core::display;
use steprail_core::run::Millis;

/// The style sheet of the pages.
pub(super) const STYLE: &str = include_str!("links.css");
/// What the pages may load: the style sheet. Their form is sent to this server only, and they are shown in no frame.
const CONTENT_SECURITY_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
);
/// No other origin gets the address of the page. With `no-referrer`, browsers would send the form with `Origin: null`.
const REFERRER_POLICY: HeaderValue = HeaderValue::from_static("same-origin");

/// A page.
pub(super) fn page(status: StatusCode, title: &str, body: &str) -> Response {
    let title = escaped(title);
    let html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"robots\" content=\"noindex\">\n<title>{title}</title>\n\
         <link rel=\"stylesheet\" href=\"/links.css\">\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n"
    );
    let mut response = (status, Html(html)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY);
    headers.insert(header::REFERRER_POLICY, REFERRER_POLICY);
    response
}

/// A page that only says something.
pub(super) fn notice(status: StatusCode, title: &str, text: &str) -> Response {
    page(status, title, &format!("<p>{}</p>\n", escaped(text)))
}

/// Text in HTML, also in quoted attributes.
pub(super) fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c => html.push(c),
        }
    }
    html
}

/// Untrusted text on one line: every character is visible.
pub(super) fn line(untrusted: &str) -> String {
    escaped(&display::line(untrusted))
}

/// Untrusted text with its line breaks: every other character is visible.
pub(super) fn text(untrusted: &str) -> String {
    escaped(&display::text(untrusted))
}

/// A time for people. A page without scripts does not know their time zone.
pub(super) fn time(at: Millis, now: Millis) -> String {
    let stated = jiff::Timestamp::from_millisecond(at);
    let stated = stated.map_or_else(|_| String::new(), |at| at.strftime("%Y-%m-%d %H:%M UTC").to_string());
    let distance = distance(at.abs_diff(now));
    let relative = if at > now { format!("in {distance}") } else { format!("{distance} ago") };
    format!("{stated} ({relative})")
}

fn distance(millis: u64) -> String {
    let minutes = millis / 60_000;
    match minutes {
        0 => "less than a minute".to_owned(),
        1..=119 => format!("{minutes} min"),
        120..=2_879 if minutes.is_multiple_of(60) => format!("{} h", minutes / 60),
        120..=2_879 => format!("{} h {} min", minutes / 60, minutes % 60),
        _ => format!("{} days", minutes / 1_440),
    }
}
