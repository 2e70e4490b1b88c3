//! Generates lists of steps, and each step kind.

use serde_json::{Map, Value, json};

use super::{OutputType, Readable, Writer};

/// A step, the type of its output, and the steps inside it that can be referenced.
pub(super) struct GeneratedStep {
    pub step: Map<String, Value>,
    pub seen: Readable,
    pub inner: Vec<Readable>,
}

/// The context of a step.
#[derive(Clone, Copy)]
pub(super) struct StepContext<'p> {
    /// The remaining depth of nested blocks.
    pub depth: u32,
    /// Steps that can be referenced.
    pub seen: &'p [Readable],
    /// Possible targets of jumps.
    pub later: &'p [String],
    /// Whether `result` refers to the previous step.
    pub result: bool,
}

impl Writer<'_> {
    /// Returns a list of steps, and the steps that can be referenced after it.
    pub(super) fn list(
        &mut self,
        depth: u32,
        seen: &[Readable],
        max_steps: usize,
    ) -> (Vec<Value>, Vec<Readable>) {
        let max_steps = max_steps.clamp(1, 6);
        let count = self.rng.usize(1..=max_steps).max(self.rng.usize(1..=max_steps)).min(self.left.max(1));
        self.left = self.left.saturating_sub(count);
        let ids: Vec<String> = (0..count).map(|_| self.id()).collect();
        if count > 1 && self.chance(30) {
            self.dag(depth, seen, &ids)
        } else {
            self.sequence(depth, seen, &ids)
        }
    }

    fn sequence(&mut self, depth: u32, seen: &[Readable], ids: &[String]) -> (Vec<Value>, Vec<Readable>) {
        let mut seen = seen.to_vec();
        let mut steps = Vec::new();
        // Steps before this one may be skipped by a jump.
        let mut skipped_until = 0;
        for (at, id) in ids.iter().enumerate() {
            let later = &ids[at + 1..];
            let context = StepContext { depth, seen: &seen, later, result: at > 0 };
            let GeneratedStep { mut step, seen: mut own, inner } = self.step(id, context);
            own.always_set &= at >= skipped_until;
            for target in jumps(&step) {
                skipped_until =
                    skipped_until.max(ids.iter().position(|id| *id == target).unwrap_or_default());
            }
            step.insert("id".into(), id.as_str().into());
            steps.push(Value::Object(step));
            seen.push(own);
            seen.extend(inner);
        }
        (steps, seen)
    }

    fn dag(&mut self, depth: u32, seen: &[Readable], ids: &[String]) -> (Vec<Value>, Vec<Readable>) {
        let mut all = seen.to_vec();
        let mut steps = Vec::new();
        // After each step, it and its references can be referenced.
        let mut readable: Vec<Vec<Readable>> = Vec::new();
        for (at, id) in ids.iter().enumerate() {
            let needs: Vec<usize> = (0..at).filter(|_| self.rng.u32(0..3) == 0).collect();
            let mut before = seen.to_vec();
            for need in &needs {
                let new: Vec<Readable> = readable[*need]
                    .iter()
                    .filter(|other| before.iter().all(|known| known.id != other.id))
                    .cloned()
                    .collect();
                before.extend(new);
            }
            let context = StepContext { depth, seen: &before, later: &[], result: false };
            let GeneratedStep { mut step, seen: own, inner } = self.step(id, context);
            step.insert("id".into(), id.as_str().into());
            if !needs.is_empty() || at == ids.len() - 1 {
                let names: Vec<&str> = needs.iter().map(|need| ids[*need].as_str()).collect();
                step.insert("depends_on".into(), names.into());
            }
            steps.push(Value::Object(step));
            all.push(own.clone());
            all.extend(inner.clone());
            before.push(own);
            before.extend(inner);
            readable.push(before);
        }
        (steps, all)
    }

    /// Generates a step of a random kind.
    pub(super) fn step(&mut self, id: &str, context: StepContext<'_>) -> GeneratedStep {
        let mut step = Map::new();
        let blocks = context.depth > 0 && self.left > 0;
        let mut inner = Vec::new();
        let output = match self.rng.u32(0..100) {
            0..14 if blocks => self.foreach(&mut step, context),
            14..30 if blocks => self.parallel(&mut step, context, &mut inner),
            30..38 if blocks => self.branch(&mut step, context, &mut inner),
            38..43 if self.options.gates => self.approve(&mut step, context),
            43..47 if self.options.sleeps => self.sleep(&mut step, context.seen),
            47..51 if self.options.waits => self.wait(&mut step, id, context.seen),
            51..60 if self.children > 0 => self.workflow(&mut step, context.seen),
            60..63 => pass(&mut step),
            63..72 if self.options.values => self.compute(&mut step, context.seen),
            _ => self.tool(&mut step, context.seen),
        };
        let may_continue = self.on_error(&mut step, context.later);
        let is_gate = step.get("kind").is_some_and(|kind| kind == "approve");
        if self.options.gates && !is_gate && !step.contains_key("let") && self.chance(4) {
            step.insert("needs_human".into(), true.into());
        }
        let declares = output != OutputType::Other && self.chance(15);
        if declares {
            step.insert("outputs".into(), format!("o_{id}").into());
        }
        let is_branch = step.get("kind").is_some_and(|kind| kind == "branch");
        let is_conditional = self.options.values && !is_branch && self.chance(12);
        if is_conditional {
            step.insert("if".into(), self.condition(context.seen, context.result).into());
        }
        let always_set =
            !may_continue && !is_conditional && step.get("on_uncertain").is_none_or(|word| word != "skip");
        inner.iter_mut().for_each(|seen| seen.always_set = false);
        GeneratedStep { step, seen: Readable { id: id.to_owned(), output, always_set, declares }, inner }
    }

    fn tool(&mut self, step: &mut Map<String, Value>, seen: &[Readable]) -> OutputType {
        let (tool, output) = self.pick(&[
            ("get", OutputType::Map),
            ("get", OutputType::Map),
            ("post", OutputType::Map),
            ("flag", OutputType::Flag),
            ("list", OutputType::List),
            ("num", OutputType::Number),
        ]);
        let (server, name) = match self.rng.u32(0..6) {
            0 => ("server", "tool"),
            1 => ("agent", "action"),
            2 => ("dcc", "tool"),
            _ => {
                step.insert("tool".into(), format!("demo__{tool}").into());
                ("", "")
            }
        };
        if !name.is_empty() {
            step.insert(server.into(), "demo".into());
            step.insert(name.into(), tool.into());
        }
        if self.chance(80) {
            step.insert("args".into(), self.arguments(seen));
        }
        self.call_policies(step, seen);
        output
    }

    fn foreach(&mut self, step: &mut Map<String, Value>, context: StepContext<'_>) -> OutputType {
        step.insert("kind".into(), "foreach".into());
        step.insert("items".into(), self.items(context.seen));
        // `item` refers to the innermost loop. Nested loops have other names, so that event names are unique.
        let item = if context.depth == 1 && self.chance(30) {
            "item".to_owned()
        } else {
            let item = format!("it{}", self.loops.len());
            step.insert("as".into(), item.as_str().into());
            item
        };
        self.loops.push(item);
        let (steps, _) = self.list(context.depth - 1, context.seen, 3);
        self.loops.pop();
        step.insert("steps".into(), steps.into());
        if self.chance(60) {
            step.insert("concurrency".into(), self.rng.u32(1..5).into());
        }
        self.on_fail(step, "on_item_fail");
        self.block_policies(step);
        OutputType::Other
    }

    fn on_fail(&mut self, step: &mut Map<String, Value>, key: &str) {
        if self.chance(60) {
            step.insert(key.into(), self.pick(&["abort", "continue"]).into());
        }
    }

    fn parallel(
        &mut self,
        step: &mut Map<String, Value>,
        context: StepContext<'_>,
        inner: &mut Vec<Readable>,
    ) -> OutputType {
        step.insert("kind".into(), "parallel".into());
        let mut branches = Vec::new();
        for _ in 0..self.rng.usize(1..4) {
            let (steps, seen) = self.list(context.depth - 1, context.seen, 3);
            inner.extend_from_slice(&seen[context.seen.len()..]);
            branches.push(Value::from(steps));
        }
        if self.chance(8) {
            branches.push(json!([]));
        }
        let single = branches.iter().all(|branch| branch.as_array().is_some_and(|steps| steps.len() == 1));
        match self.rng.u32(0..3) {
            0 if single => {
                let steps = branches.into_iter().map(|branch| branch[0].clone());
                step.insert("steps".into(), steps.collect());
            }
            1 => drop(step.insert("branches".into(), branches.into())),
            _ => {
                let named = branches.into_iter().zip(["left", "mid", "right", "rest"]);
                let named: Map<String, Value> = named.map(|(steps, name)| (name.to_owned(), steps)).collect();
                step.insert("branches".into(), named.into());
            }
        }
        if self.chance(25) {
            step.insert("concurrency".into(), self.rng.u32(1..3).into());
        }
        self.on_fail(step, "on_any_fail");
        self.block_policies(step);
        OutputType::Other
    }

    fn branch(
        &mut self,
        step: &mut Map<String, Value>,
        context: StepContext<'_>,
        inner: &mut Vec<Readable>,
    ) -> OutputType {
        step.insert("kind".into(), "branch".into());
        let maps: Vec<Readable> = context
            .seen
            .iter()
            .filter(|seen| seen.output == OutputType::Map && seen.always_set)
            .cloned()
            .collect();
        if !maps.is_empty() && self.chance(20) {
            let on = format!("$.{}.{}", self.pick(&maps).id, self.pick(&["ok", "n", "list", "missing"]));
            step.insert("on".into(), on.into());
            step.insert("then".into(), self.arm(context, inner));
        } else if self.chance(50) {
            step.insert("if".into(), self.condition(context.seen, context.result).into());
            step.insert("then".into(), self.arm(context, inner));
        } else {
            let cases: Vec<Value> = (0..self.rng.u32(1..4))
                .map(|_| {
                    let condition = self.condition(context.seen, context.result);
                    json!({ "if": condition, "then": self.arm(context, inner) })
                })
                .collect();
            step.insert("cases".into(), cases.into());
        }
        if self.chance(85) {
            let steps = if self.chance(8) { json!([]) } else { self.arm(context, inner) };
            step.insert("else".into(), steps);
        }
        self.block_policies(step);
        OutputType::Other
    }

    fn arm(&mut self, context: StepContext<'_>, inner: &mut Vec<Readable>) -> Value {
        let (steps, seen) = self.list(context.depth - 1, context.seen, 2);
        inner.extend_from_slice(&seen[context.seen.len()..]);
        steps.into()
    }

    pub(super) fn approve(&mut self, step: &mut Map<String, Value>, context: StepContext<'_>) -> OutputType {
        step.insert("kind".into(), "approve".into());
        if self.chance(60) {
            step.insert("prompt".into(), format!("Go on with {{{{{}}}}}?", self.scalar(context.seen)).into());
        }
        if self.chance(70) {
            let on_deny = match self.rng.u32(0..4) {
                0 if !context.later.is_empty() => json!({ "goto": self.pick(context.later) }),
                1 => json!("cancel"),
                2 => json!("fail"),
                _ => json!("continue"),
            };
            step.insert("on_deny".into(), on_deny);
        }
        if self.chance(30) {
            step.insert("allow_self".into(), true.into());
        }
        if self.chance(20) {
            step.insert("approvers".into(), self.pick(&[json!(["bob"]), json!(["bob", "ann"])]));
        }
        if self.options.timeouts && self.chance(35) {
            self.timeout(step, 10_000..50_000);
            if self.chance(40) {
                step.insert("escalate".into(), json!([{ "after": "7s", "notify": "eve" }]));
                step.insert("on_timeout".into(), self.pick(&["escalate", "deny"]).into());
            }
        }
        self.gate_times(step, context.later);
        OutputType::Answer
    }

    /// Adds levels, reminders and other ends of a gate. It uses a copy of the random numbers, so that the other steps of a
    /// seed do not depend on it.
    fn gate_times(&self, step: &mut Map<String, Value>, later: &[String]) {
        let mut rng = self.rng.clone();
        let has_timeout = ["timeout", "timeout_s", "timeout_secs"].iter().any(|key| step.contains_key(*key));
        if rng.u32(0..100) < 30 {
            let first = json!({ "after": "7s", "notify": "eve" });
            let second = json!({ "after": "9s", "approvers": ["eve"], "channels": ["phone"] });
            step.insert("escalate".into(), json!([first, second]));
        }
        match rng.u32(0..4) {
            0 if has_timeout => drop(step.insert("on_timeout".into(), "fail".into())),
            1 if has_timeout && !later.is_empty() => {
                let target = &later[rng.usize(0..later.len())];
                step.insert("on_timeout".into(), json!({ "goto": target }));
            }
            2 if !has_timeout => drop(step.insert("remind".into(), "every 1m".into())),
            _ => {}
        }
    }

    fn sleep(&mut self, step: &mut Map<String, Value>, seen: &[Readable]) -> OutputType {
        step.insert("kind".into(), "sleep".into());
        let numbers: Vec<Readable> =
            seen.iter().filter(|seen| seen.output == OutputType::Number).cloned().collect();
        let (key, value) = match self.rng.u32(0..5) {
            0 => ("until", json!(format!("2027-01-15T08:00:{:02}Z", self.rng.u32(0..60)))),
            1 if !numbers.is_empty() => {
                let id = self.pick(&numbers).id;
                ("for", json!(format!("{{{{steps.{id}.output | default(\"9s\")}}}}")))
            }
            2 => ("for", json!(0)),
            _ => ("for", json!(format!("{}ms", self.rng.u32(0..30_000)))),
        };
        step.insert(key.into(), value);
        OutputType::Other
    }

    fn wait(&mut self, step: &mut Map<String, Value>, id: &str, seen: &[Readable]) -> OutputType {
        step.insert("kind".into(), "wait".into());
        let items: String = self.loops.iter().map(|item| format!("-{{{{{item}}}}}")).collect();
        step.insert("event".into(), format!("event-{id}{items}").into());
        if self.chance(40) {
            step.insert("correlate".into(), json!({ "word": format!("{{{{{}}}}}", self.scalar(seen)) }));
        }
        if self.options.timeouts && self.chance(30) {
            self.timeout(step, 10_000..60_000);
        }
        OutputType::Other
    }

    fn workflow(&mut self, step: &mut Map<String, Value>, seen: &[Readable]) -> OutputType {
        step.insert("kind".into(), "workflow".into());
        let name = if self.chance(3) {
            "nowhere".to_owned()
        } else {
            format!("child{}", self.rng.u32(0..self.children))
        };
        step.insert("name".into(), name.into());
        let mut inputs = json!({ "word": format!("w-{{{{{}}}}}", self.scalar(seen)) });
        if self.chance(40) {
            inputs["n"] = self.rng.u32(0..9).into();
        }
        if self.chance(5) {
            inputs["flag"] = format!("{{{{{}}}}}", self.scalar(seen)).into();
        }
        if self.chance(4) {
            inputs = json!({ "n": 1 });
        }
        step.insert("inputs".into(), inputs);
        if self.chance(25) {
            step.insert("retry".into(), self.retry());
        }
        if self.options.timeouts && self.chance(15) {
            self.timeout(step, 15_000..90_000);
        }
        OutputType::Other
    }
}

impl Writer<'_> {
    /// Generates a `let` step whose output has the names of the output of a tool, and the time and UUIDs.
    fn compute(&mut self, step: &mut Map<String, Value>, seen: &[Readable]) -> OutputType {
        if self.chance(30) {
            step.insert("kind".into(), "let".into());
        }
        let n = self.pick(&[
            "{{ size(inputs.list) + inputs.n }}",
            "{{ intDiv(inputs.n * 7, 3) }}",
            "{{ max(inputs.list) | default(4) }}",
            "{{ round(inputs.n / 3) }}",
        ]);
        let list = self.pick(&[
            "{{ range(n % 4) }}",
            "{{ inputs.list.filter(x, x != 2).map(x, x + 1) }}",
            "{{ [3, 1, 2].sortBy(x, -x)[0:2] }}",
            "{{ keys(inputs.list.groupBy(x, x % 2)) }}",
        ]);
        let word = self.pick(&["{{ ['a', 'b', 'c'][n % 3] }}", "{{ inputs.word | upper | lower }}"]);
        let mut values = json!({
            "n": n, "list": list, "word": word,
            "ok": "{{ list.exists(x, string(x) == string(n)) }}",
            "file_refs": [{ "uri": "file:///{{word}}" }],
            "at": "{{ now() }}",
            "later": "{{ addTime(at, '90m') }}",
            "day": "{{ formatTime(at, '%Y-%m-%d %H:%M', 'Europe/Berlin') }}",
            "id": "{{ uuid() }}",
            "ids": "{{ range(2).map(x, uuid()) }}",
        });
        if self.chance(60) {
            values["other"] = self.arguments(seen);
        }
        step.insert("let".into(), values);
        OutputType::Map
    }
}

fn pass(step: &mut Map<String, Value>) -> OutputType {
    step.insert("kind".into(), "pass".into());
    OutputType::Other
}

/// Returns the targets of the jumps of a step.
pub(super) fn jumps(step: &Map<String, Value>) -> impl Iterator<Item = &str> {
    ["on_error", "on_deny", "on_timeout"].into_iter().filter_map(|key| step.get(key)?.get("goto")?.as_str())
}
