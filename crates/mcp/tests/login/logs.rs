//! Log messages about logins: one per needed login, without secrets.

use std::sync::{Arc, Mutex};

use axum::http::StatusCode;
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::authority::{Authority, Behaviour};
use crate::support::{Setup, needed};

/// Records warnings and errors of our crates as text.
#[derive(Clone, Default)]
struct LogRecorder(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl Subscriber for LogRecorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("steprail")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().expect("no panic").push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn expired_login_is_logged_once_for_many_calls() {
    let logs = LogRecorder::default();
    let _guard = tracing::subscriber::set_default(logs.clone());
    let behaviour = Behaviour { expires_in: 1, ..Behaviour::default() };
    let setup = Setup::new(Authority::start(behaviour).await, &json!({}));
    setup.log_in(None).await.expect("a login");
    setup.authority.change(|behaviour| {
        behaviour.reject_refresh = Some((StatusCode::BAD_REQUEST, "invalid_grant"));
    });
    for token in futures::future::join_all((0..10).map(|_| setup.token())).await {
        needed(token);
    }
    let lines = logs.0.lock().expect("no panic").clone();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("run `steprail login crm`") && !lines[0].contains("refresh-"), "{lines:?}");
}
