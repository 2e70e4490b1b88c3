//! Generates values, references and conditions.

use serde_json::{Map, Value, json};

use super::{OutputType, Readable, Writer};

impl Writer<'_> {
    /// Generates arguments: a map with some references.
    pub(super) fn arguments(&mut self, seen: &[Readable]) -> Value {
        let mut args = Map::new();
        for key in ["a", "b", "c"] {
            if self.chance(60) {
                args.insert(key.to_owned(), self.value(seen, 2));
            }
        }
        Value::Object(args)
    }

    fn value(&mut self, seen: &[Readable], depth: u32) -> Value {
        match self.rng.u32(0..10) {
            0 => json!(self.rng.u32(0..5)),
            1 => json!("plain"),
            2 if depth > 0 => json!([self.value(seen, depth - 1), self.value(seen, 0)]),
            3 if depth > 0 => json!({ "k": self.value(seen, depth - 1) }),
            4 | 5 => format!("<{{{{{}}}}}>", self.scalar(seen)).into(),
            6 => self.pick(&["$user_name", "to $user_email", "{{env.HOME}}", "$$5 and {{{{"]).into(),
            _ => self.whole_value(seen).into(),
        }
    }

    /// Generates a reference that keeps the type of its value.
    fn whole_value(&mut self, seen: &[Readable]) -> String {
        if seen.is_empty() || self.chance(20) {
            return format!("{{{{{}}}}}", self.scalar(seen));
        }
        let seen = self.pick(seen);
        let id = &seen.id;
        match self.rng.u32(0..5) {
            0 if seen.declares && seen.always_set => format!("$o_{id}"),
            1 if seen.output == OutputType::Map && seen.always_set => format!("$.{id}.list"),
            2 if seen.output == OutputType::Map && seen.always_set => {
                format!("{{{{steps.{id}.file_refs[0].uri}}}}")
            }
            3 => format!("{{{{steps.{id}.error.kind | default(\"none\")}}}}"),
            _ => format!("{{{{{}}}}}", self.guarded(format!("steps.{id}.output"), &seen, "\"none\"")),
        }
    }

    /// Adds a default to an expression that may have no value.
    fn guarded(&mut self, expression: String, seen: &Readable, fallback: &str) -> String {
        if seen.always_set || self.chance(4) {
            expression
        } else {
            format!("{expression} | default({fallback})")
        }
    }

    /// Generates an expression with a scalar value, unless an item is a list or map.
    pub(super) fn scalar(&mut self, seen: &[Readable]) -> String {
        let of_step = !seen.is_empty() && self.chance(65);
        if !of_step {
            let items: Vec<String> = self.loops.clone();
            return match items.last() {
                Some(item) if self.chance(60) => item.clone(),
                _ => self
                    .pick(&["inputs.n", "input.word", "word", "inputs.flag", "size(inputs.list)"])
                    .to_owned(),
            };
        }
        let seen = self.pick(seen);
        let id = &seen.id;
        let (expression, fallback) = match seen.output {
            OutputType::Map => self.pick(&[
                (format!("steps.{id}.output.n"), "1"),
                (format!("{id}.word"), "\"b\""),
                (format!("steps.{id}.output.ok"), "false"),
            ]),
            OutputType::Flag | OutputType::Number => (format!("steps.{id}.output"), "2"),
            OutputType::List => (format!("steps.{id}.output"), "[]"),
            OutputType::Answer => (format!("steps.{id}.output.approved"), "false"),
            OutputType::Other => (format!("steps.{id}.status"), "\"none\""),
        };
        let guarded = self.guarded(expression, &seen, fallback);
        if seen.output == OutputType::List { format!("size({guarded})") } else { guarded }
    }

    /// Generates a condition; `result` is whether `result` can be used.
    pub(super) fn condition(&mut self, seen: &[Readable], result: bool) -> String {
        if result && self.chance(40) {
            return self.result_condition();
        }
        let left = self.scalar(seen);
        match self.rng.u32(0..6) {
            0 => left,
            1 => format!("not ({left})"),
            2 => format!("({left}) == \"a\" or inputs.n > 4"),
            3 => format!("({left}) in [1, 2, \"a\", true]"),
            4 => format!("({left}) == ({})", self.scalar(seen)),
            _ => format!("({left}) != {}", self.rng.u32(0..4)),
        }
    }

    pub(super) fn result_condition(&mut self) -> String {
        self.pick(&[
            "result == true",
            "result == false",
            "result == nil",
            "result != nil",
            "result == again",
            "result == \"approved\"",
        ])
        .to_owned()
    }

    /// Generates distinct items of a loop.
    pub(super) fn items(&mut self, seen: &[Readable]) -> Value {
        let lists: Vec<&Readable> =
            seen.iter().filter(|seen| matches!(seen.output, OutputType::Map | OutputType::List)).collect();
        if !lists.is_empty() && self.chance(55) {
            let list = lists[self.rng.usize(0..lists.len())].clone();
            let (id, output) = (&list.id, list.output);
            let path = if output == OutputType::Map {
                format!("steps.{id}.output.list")
            } else {
                format!("steps.{id}.output")
            };
            return format!("{{{{{}}}}}", self.guarded(path, &list, "[]")).into();
        }
        match self.rng.u32(0..5) {
            0 => "{{inputs.list}}".into(),
            1 => json!([{ "k": 1, "word": "a" }, { "k": 2, "word": "b" }]),
            2 => json!(["a", "{{inputs.word}} too", 7]),
            _ => (0..self.rng.u32(0..5)).map(Value::from).collect(),
        }
    }
}
