//! Shared test code: a kernel in virtual time, driven by the test.

#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod audit;
pub(crate) mod generate;
pub(crate) mod invariants;
pub(crate) mod library;
pub(crate) mod memory_tables;
pub(crate) mod oracle;
pub(crate) mod player;
pub(crate) mod reference;
pub(crate) mod script;
pub(crate) mod shared;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use steprail_core::plan::Hash;
use steprail_core::run::{Failure, Millis, Payload};
use steprail_engine::kernel::{
    CallId, CallOrder, Command, Define, Effect, Handled, Interrupt, Kernel, Notification, Recover, Reply,
    Request, RunSource, Setup, StartRun,
};
use steprail_engine::{
    Annotations, BoxFuture, CallSite, Capacity, Error, Limits, Outcome, PolicyHandle, Principal, RunId,
    ToolCall, ToolCaller,
};
use steprail_store::{Expected, Store};

/// Tools that are never called: the test supplies the results.
#[derive(Default)]
pub(crate) struct NoTools {
    annotations: BTreeMap<String, Annotations>,
    servers: Mutex<BTreeMap<String, Capacity>>,
    /// Hashes of the descriptions of tools.
    pins: Mutex<BTreeMap<String, Hash>>,
}

impl NoTools {
    pub(crate) fn new(annotations: impl IntoIterator<Item = (String, Annotations)>) -> Self {
        Self { annotations: annotations.into_iter().collect(), ..Self::default() }
    }

    /// Describes a tool: another text is another description.
    pub(crate) fn describe(&self, tool: &str, text: &str) {
        self.pins.lock().expect("the pins").insert(tool.to_owned(), Hash::of(text.as_bytes()));
    }

    /// Sets the capacity of a server: `down SERVER REASON`, `up SERVER`, `slots SERVER N`, `crashed PATH`.
    pub(crate) fn set(&self, word: &str, server: &str, rest: &str) {
        let mut servers = self.servers.lock().expect("the servers");
        let capacity = servers.entry(server.to_owned()).or_insert_with(|| Capacity::unlimited(server));
        match word {
            "down" => capacity.unavailable = Some(rest.into()),
            "up" => capacity.unavailable = None,
            "slots" => capacity.slots = rest.parse().ok(),
            _ => capacity.exclusive = true,
        }
    }
}

impl ToolCaller for NoTools {
    fn call(&self, _: ToolCall) -> BoxFuture<'_, Outcome> {
        Box::pin(async { Ok(Value::Null) })
    }

    fn annotations(&self, tool: &str) -> Annotations {
        self.annotations.get(tool).copied().unwrap_or_default()
    }

    fn capacity(&self, call: &CallSite<'_>) -> Capacity {
        let servers = self.servers.lock().expect("the servers");
        let server = call.tool.split("__").next().unwrap_or_default();
        let known = servers.get(server).cloned().unwrap_or_else(|| Capacity::unlimited(server));
        Capacity { exclusive: servers.get(call.path).is_some_and(|crashed| crashed.exclusive), ..known }
    }

    fn provider(&self) -> Option<Box<str>> {
        Some("demo__create".into())
    }

    fn pin(&self, tool: &str) -> Option<Hash> {
        self.pins.lock().expect("the pins").get(tool).copied()
    }
}

/// A kernel, its clock, and its calls in flight.
pub(crate) struct Bench {
    pub kernel: Option<Kernel>,
    pub now: Millis,
    pub tools: Arc<NoTools>,
    pub limits: Limits,
    pub policy: PolicyHandle,
    pub seed: u64,
    /// Calls in flight, in the order of their ids.
    pub calls: BTreeMap<CallId, CallOrder>,
    /// Calls that were cancelled.
    pub stopped: Vec<CallId>,
    /// Whether runs continue only when the test says so.
    pub by_hand: bool,
    ids: u128,
}

pub(crate) const EPOCH: Millis = 1_800_000_000_000;

impl Bench {
    pub(crate) fn new(store: Box<dyn Store>, tools: NoTools, limits: Limits, seed: u64) -> Self {
        let mut bench = Self {
            kernel: None,
            now: EPOCH,
            tools: Arc::new(tools),
            limits,
            policy: PolicyHandle::default(),
            seed,
            calls: BTreeMap::new(),
            stopped: Vec::new(),
            by_hand: false,
            ids: 0,
        };
        bench.boot(store);
        bench
    }

    /// Creates a kernel on a store that may contain runs. Recovery is separate.
    pub(crate) fn boot(&mut self, store: Box<dyn Store>) {
        self.seed += 1;
        let setup = Setup {
            store,
            tools: self.tools.clone(),
            limits: self.limits.clone(),
            env: Arc::new(serde_json::json!({ "HOME": "/home/ann" })),
            random: fastrand::Rng::with_seed(self.seed),
            policy: self.policy.clone(),
            authorizer: Arc::new(AnyUser),
            outbox: true,
        };
        self.kernel = Some(Kernel::new(setup).expect("a kernel"));
    }

    /// Kills the process: uncommitted data and calls in flight are lost.
    pub(crate) fn die(&mut self) -> Box<dyn Store> {
        let store = self.kernel.take().expect("a kernel").into_store();
        self.calls.clear();
        self.stopped.clear();
        store
    }

    /// Starts the process again: interrupts runs as their definitions say, and recovers the others.
    pub(crate) fn recover(&mut self, interrupt: Interrupt) -> Vec<Handled> {
        let mut all = Vec::new();
        for interrupt in [Some(interrupt), None] {
            let mut after = None;
            loop {
                let recover = Recover { after, interrupt };
                let (next, handled) = self.ask(|reply| Request::Recover(recover, reply));
                all.push(handled);
                after = next.and_then(Result::ok).flatten();
                if after.is_none() {
                    break;
                }
            }
        }
        all
    }

    pub(crate) fn kernel(&mut self) -> &mut Kernel {
        self.kernel.as_mut().expect("a kernel")
    }

    /// Handles requests, then continues runs until no continuation is owed.
    pub(crate) fn handle(&mut self, requests: Vec<Request>) -> Handled {
        let mut handled = self.commit(requests);
        while !self.by_hand && handled.fault.is_none() && self.kernel().owes_continuation() {
            let next = self.commit(Vec::new());
            handled.effects.extend(next.effects);
            handled.last_event = next.last_event.or(handled.last_event);
            handled.fault = next.fault;
        }
        handled
    }

    /// Handles requests in one commit and records the calls that result.
    pub(crate) fn commit(&mut self, requests: Vec<Request>) -> Handled {
        let now = self.now;
        let handled = self.kernel().handle(requests, now);
        for effect in &handled.effects {
            match effect {
                Effect::Call(order) => drop(self.calls.insert(order.id, (**order).clone())),
                Effect::Cancel(id) => self.stopped.push(*id),
                Effect::Reply(response) => response.send(),
                Effect::Notify(_) | Effect::Forget(_) => {}
            }
        }
        handled
    }

    pub(crate) fn ask<T>(
        &mut self,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> (Option<Result<T, Error>>, Handled) {
        let (reply, mut answer) = Reply::channel();
        let handled = self.handle(vec![request(reply)]);
        (answer.try_recv().ok(), handled)
    }

    pub(crate) fn command(&mut self, command: Command) -> (Option<Result<(), Error>>, Handled) {
        self.ask(|reply| Request::Command(Box::new(command), reply))
    }

    pub(crate) fn notify(&mut self, notification: Notification) -> Handled {
        self.handle(vec![Request::Notification(notification)])
    }

    pub(crate) fn define(&mut self, text: &str) {
        let loaded = steprail_core::load(&steprail_core::source::Source::new("definition", text));
        let plan = loaded.plan.unwrap_or_else(|| panic!("{:?}\n{text}", loaded.diagnostics));
        let define = Define {
            spec: loaded.spec.expect("a spec").to_canonical_json().into(),
            plan: Arc::new(plan),
            by: steprail_store::Actor::user("ann"),
            expected: Expected::Any,
            owner: None,
            propose: false,
            accepts: None,
        };
        let (answer, _) = self.ask(|reply| Request::Define(Box::new(define), reply));
        assert!(matches!(answer, Some(Ok(_))), "{answer:?}");
    }

    pub(crate) fn new_id(&mut self) -> RunId {
        self.ids += 1;
        RunId(uuid::Uuid::from_u128(self.ids))
    }

    pub(crate) fn start(
        &mut self,
        name: &str,
        inputs: Value,
    ) -> (RunId, Option<Result<RunId, Error>>, Handled) {
        let id = self.new_id();
        let workflow = RunSource::Named { name: name.to_owned(), version: None };
        let principal = Principal {
            name: "Ann".to_owned(),
            email: "ann@example.org".to_owned(),
            ..Principal::user("ann")
        };
        let start = StartRun { workflow, inputs, principal, request_key: None, id };
        let (answer, handled) = self.ask(|reply| Request::Start(Box::new(start), reply));
        (id, answer, handled)
    }

    /// Returns the newest call in flight of a step.
    pub(crate) fn call_at(&self, path: &str) -> Option<CallId> {
        self.calls.iter().rev().find(|(_, order)| &*order.path == path).map(|(id, _)| *id)
    }

    pub(crate) fn end_call(&mut self, id: CallId, outcome: Result<Value, Failure>) -> Handled {
        self.calls.remove(&id);
        self.stopped.retain(|stopped| *stopped != id);
        self.notify(Notification::CallEnded { id, outcome: outcome.map(Payload::new) })
    }

    /// Advances time and fires each timer when it is due.
    pub(crate) fn advance(&mut self, millis: Millis) -> Vec<Handled> {
        let end = self.now + millis;
        let mut all = Vec::new();
        while let Ok(Some(due)) = self.kernel().next_timer()
            && due <= end
        {
            self.now = self.now.max(due);
            all.push(self.notify(Notification::TimersDue));
            if all.last().is_some_and(|handled| handled.fault.is_some()) {
                break;
            }
        }
        self.now = end;
        all
    }
}

/// Allows everything to every user.
struct AnyUser;

impl steprail_engine::Authorizer for AnyUser {
    fn may_call<'a>(&'a self, _: &'a Principal, _: &'a str) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
