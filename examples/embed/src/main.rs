//! Embeds the engine: two tools and one run that survives `kill -9`.
//!
//! ```sh
//! cargo run -p steprail-embed -- /tmp/parcels    # kill it midway, then start it again
//! ```

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use steprail_engine::{
    Engine, Failure, FailureKind, Options, Outcome, Principal, SqliteStore, Start, ToolCall, Tools,
};

/// `effects: idempotent`: a lost call may be repeated, because the tools deduplicate by idempotency key.
const WORKFLOW: &str = r#"
name: parcels
inputs: { parcels: { type: array } }
steps:
  - id: each
    kind: foreach
    items: $.inputs.parcels
    as: parcel
    concurrency: 1
    steps:
      - { id: pack, tool: shop__pack, args: { parcel: "{{parcel}}" }, effects: idempotent }
      - { id: send, tool: shop__send, args: { parcel: "{{parcel}}" }, effects: idempotent }
output: "{{size(steps.each.output)}} parcels are on their way"
"#;

/// The side effects of the tools: a file with one line per effect, prefixed by the idempotency key of the call.
struct Ledger(Mutex<PathBuf>);

impl Ledger {
    /// Appends the line unless the key is present. Returns whether it was appended.
    fn append_once(&self, key: &str, line: &str) -> io::Result<bool> {
        let path = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = OpenOptions::new().create(true).append(true).open(&*path)?;
        if fs::read_to_string(&*path)?.lines().any(|line| line.starts_with(key)) {
            return Ok(false);
        }
        file.write_all(format!("{key} {line}\n").as_bytes())?;
        Ok(true)
    }
}

/// Packs or sends one parcel. The delay leaves time to kill the program during a call.
async fn work(ledger: Arc<Ledger>, call: ToolCall, verb: &str) -> Outcome {
    let parcel = call.args.value()["parcel"].as_str().unwrap_or("?").to_owned();
    println!("{verb} {parcel} (attempt {})", call.attempt);
    tokio::time::sleep(Duration::from_millis(100)).await;
    match ledger.append_once(&call.idempotency_key, &format!("{verb} {parcel}")) {
        Ok(new) => Ok(json!({ "parcel": parcel, "new": new })),
        Err(error) => Err(Failure::new(FailureKind::ToolError, error.to_string())),
    }
}

fn tools(ledger: PathBuf) -> Tools {
    let pack = Arc::new(Ledger(Mutex::new(ledger)));
    let send = pack.clone();
    Tools::new()
        .tool("shop__pack", move |call| work(pack.clone(), call, "pack"))
        .tool("shop__send", move |call| work(send.clone(), call, "send"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "parcels".to_owned()));
    fs::create_dir_all(&folder)?;

    // `spawn` recovers runs that were in flight when the program died.
    let store = SqliteStore::open(folder.join("steprail.db"), &Options::default())?;
    let engine = Engine::builder().store(store).tools(tools(folder.join("ledger"))).spawn()?;

    // The same request key returns the same run, so a second start of the program starts no second run.
    let inputs = json!({ "parcels": ["cup", "lamp", "chair"] });
    let start = Start::inline(WORKFLOW, Principal::user("shop")).inputs(inputs).request_key("today");
    let run = engine.start(start).await?;
    println!("run {}", run.id());

    let view = run.wait().await?;
    println!(
        "{}: {}",
        view.run.status.name(),
        view.run.output.map_or("nothing".into(), |json| json.to_string())
    );
    engine.shutdown().await?;
    Ok(())
}
