//! What a run will call and give, told before it runs.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use steprail_core::plan::Hash;
use steprail_engine::Payload;

/// The calls of a run, by path.
#[derive(Default)]
pub(crate) struct Story {
    prefix: String,
    pub calls: BTreeMap<String, Foreseen>,
    pub children: BTreeMap<String, &'static str>,
}

/// A call that will be made.
pub(crate) struct Foreseen {
    pub tool: &'static str,
    pub args: Hash,
    /// Paths of calls that must have ended before.
    pub after: Vec<String>,
}

impl Story {
    /// Tells of a call, and gives its answer.
    pub(crate) fn call(
        &mut self,
        path: &str,
        tool: &'static str,
        seed: u64,
        from: &Value,
        after: &[&str],
    ) -> Value {
        let args = Payload::new(json!({ "seed": seed, "from": from }));
        let after = after.iter().map(|path| format!("{}{path}", self.prefix)).collect();
        let answer = answer(path, args.value());
        let call = Foreseen { tool, args: args.hash(), after };
        self.calls.insert(format!("{}{path}", self.prefix), call);
        answer
    }

    /// Tells of what a workflow does that a step waits for.
    pub(crate) fn child(
        &mut self,
        path: &str,
        name: &'static str,
        tell: impl FnOnce(&mut Self) -> Value,
    ) -> Value {
        let outside = self.prefix.clone();
        self.children.insert(format!("{outside}{path}"), name);
        self.prefix = format!("{outside}{path}/");
        let output = tell(self);
        self.prefix = outside;
        output
    }
}

/// What a tool of the laboratory answers: it follows from the path and the arguments.
pub(crate) fn answer(path: &str, args: &Value) -> Value {
    let hash = Hash::of(format!("{path} {args}").as_bytes()).to_string();
    let visit = path.rsplit_once('#').map_or(1, |(_, visit)| visit.parse().unwrap_or(1));
    json!({ "v": hash[..16], "visit": visit })
}
