//! `steprail serve --demo`: scripted tools, three definitions, runs in progress and one that waits for an approval.

use std::sync::Arc;

use serde_json::{Value, json};
use steprail_core::source::Source;
use steprail_engine::{Error, User, Workflow};

use crate::scripted::Script;
use crate::tools::ToolSource;

const TOOLS: &str = include_str!("../../../examples/demo/tools.yaml");
const PHOTOS: &str = include_str!("../../../examples/demo/resize_photos.yaml");
const INCIDENT: &str = include_str!("../../../examples/workflows/incident_triage.yaml");
const REFUND: &str = include_str!("../../../examples/workflows/refund_with_approval.json");

/// Photos of the long run: a few minutes of work.
const PHOTO_COUNT: u32 = 60;

/// The scripted tools of the demo.
pub(crate) fn tools() -> Result<ToolSource, String> {
    let script = Script::read(&Source::new("examples/demo/tools.yaml", TOOLS));
    script
        .map(|script| ToolSource::Scripted(Arc::new(script)))
        .map_err(|_| "cannot read the tools of the demo".to_owned())
}

/// Stores the definitions and starts the runs.
pub(crate) async fn begin(user: &User) -> Result<(), Error> {
    for text in [PHOTOS, INCIDENT, REFUND] {
        user.define(text, None, steprail_engine::Expected::Any).await?;
    }
    let photos: Vec<String> = (1..=PHOTO_COUNT).map(|number| format!("photo-{number:03}.jpg")).collect();
    start(user, "incident_triage", json!({ "service": "checkout", "alert_id": "A1" })).await?;
    start(user, "resize_photos", json!({ "album": "summer", "photos": photos })).await?;
    start(user, "refund_with_approval", json!({ "order_id": "o-1" })).await
}

async fn start(user: &User, name: &str, inputs: Value) -> Result<(), Error> {
    // A demo that is restarted on the same data directory continues its runs.
    let key = Some(format!("demo-{name}"));
    user.via("the demo").start(Workflow::Named(name.to_owned(), None), inputs, key).await.map(drop)
}
