//! The calls that a run is expected to make, computed before it runs.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use steprail_core::plan::Hash;
use steprail_engine::Payload;

/// The expected calls of a run, by path.
#[derive(Default)]
pub(crate) struct ExpectedRun {
    prefix: String,
    pub calls: BTreeMap<String, ExpectedCall>,
    pub children: BTreeMap<String, &'static str>,
}

/// An expected call.
pub(crate) struct ExpectedCall {
    pub tool: &'static str,
    pub args: Hash,
    /// Paths of calls that must have ended before it.
    pub after: Vec<String>,
}

impl ExpectedRun {
    /// Adds a call and returns its result.
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
        let call = ExpectedCall { tool, args: args.hash(), after };
        self.calls.insert(format!("{}{path}", self.prefix), call);
        answer
    }

    /// Adds the calls of a child run and returns its output.
    pub(crate) fn child(
        &mut self,
        path: &str,
        name: &'static str,
        expect: impl FnOnce(&mut Self) -> Value,
    ) -> Value {
        let outside = self.prefix.clone();
        self.children.insert(format!("{outside}{path}"), name);
        self.prefix = format!("{outside}{path}/");
        let output = expect(self);
        self.prefix = outside;
        output
    }
}

/// Returns the result of a test tool, a function of the path and the arguments.
pub(crate) fn answer(path: &str, args: &Value) -> Value {
    let hash = Hash::of(format!("{path} {args}").as_bytes()).to_string();
    let visit = path.rsplit_once('#').map_or(1, |(_, visit)| visit.parse().unwrap_or(1));
    json!({ "v": hash[..16], "visit": visit })
}
