//! Evaluates a schema for a value, step by step within the budget.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::compare::{is_equal, is_multiple, is_type, less};
use super::message::{self, At, Errors};
use super::read::{count, is_meta_schema};
use super::{Schema, Violation};
use crate::limits::{SCHEMA_CALLS, SCHEMA_STEPS, SCHEMA_STEPS_PER_NODE};

/// One evaluation.
pub(super) struct Evaluation<'s> {
    schema: &'s Schema,
    budget: usize,
    steps: usize,
    depth: usize,
}

/// The properties and items that a schema has evaluated, for `unevaluatedProperties` and `unevaluatedItems`.
#[derive(Default)]
struct Evaluated<'v> {
    properties: BTreeSet<&'v str>,
    items: BTreeSet<usize>,
}

impl Evaluated<'_> {
    fn merge(&mut self, other: Self) {
        self.properties.extend(other.properties);
        self.items.extend(other.items);
    }
}

impl<'s> Evaluation<'s> {
    pub(super) fn new(schema: &'s Schema, value: &Value) -> Self {
        let budget = SCHEMA_STEPS + SCHEMA_STEPS_PER_NODE * nodes(value);
        Self { schema, budget, steps: 0, depth: 0 }
    }

    pub(super) fn run(mut self, part: &'s Value, value: &Value, limit: usize) -> Vec<Violation> {
        let mut errors = Errors::reported(limit);
        self.schema(part, value, &At::ROOT, &mut errors);
        if self.is_exhausted() {
            let message = format!("the check needs more than {} steps; simplify the schema", self.budget);
            return vec![Violation { pointer: String::new(), message }];
        }
        errors.found
    }

    fn is_exhausted(&self) -> bool {
        self.steps > self.budget
    }

    /// Whether a value matches, without messages.
    fn matches<'v>(&mut self, schema: &'s Value, value: &'v Value, at: &At<'_>) -> Option<Evaluated<'v>> {
        let mut errors = Errors::quiet();
        let evaluated = self.schema(schema, value, at, &mut errors);
        (!errors.failed).then_some(evaluated)
    }

    fn schema<'v>(
        &mut self,
        schema: &'s Value,
        value: &'v Value,
        at: &At<'_>,
        errors: &mut Errors,
    ) -> Evaluated<'v> {
        self.steps += 1;
        let mut evaluated = Evaluated::default();
        if self.is_exhausted() {
            errors.failed = true;
            return evaluated;
        }
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(false) => {
                errors.report(at, || format!("{} is not allowed here", message::short(value)));
                return evaluated;
            }
            _ => return evaluated,
        };
        if self.depth >= SCHEMA_CALLS {
            // A reference that leads back to itself, or a very deep value.
            self.steps = self.budget + 1;
            return evaluated;
        }
        self.depth += 1;
        self.steps += map.len();
        self.assertions(map, value, at, errors);
        if !errors.is_done() {
            self.in_place(map, value, at, errors, &mut evaluated);
        }
        match value {
            _ if errors.is_done() => {}
            Value::Object(object) => self.object(map, value, object, at, errors, &mut evaluated),
            Value::Array(items) => self.array(map, items, at, errors, &mut evaluated),
            _ => {}
        }
        self.depth -= 1;
        evaluated
    }

    fn assertions(&mut self, map: &'s Map<String, Value>, value: &Value, at: &At<'_>, errors: &mut Errors) {
        if let Some(types) = map.get("type") {
            let allowed: Vec<&str> = match types {
                Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
                one => one.as_str().into_iter().collect(),
            };
            if !allowed.iter().any(|word| is_type(value, word)) {
                errors.report(at, || message::wrong_type(value, &allowed));
            }
        }
        if let Some(Value::Array(allowed)) = map.get("enum") {
            self.steps += allowed.len() * nodes(value);
            if !allowed.iter().any(|one| is_equal(one, value)) {
                errors.report(at, || message::not_one_of(value, allowed));
            }
        }
        if let Some(only) = map.get("const").filter(|only| !is_equal(only, value)) {
            errors.report(at, || format!("{} was expected", message::short(only)));
        }
        match value {
            Value::Number(_) => numbers(map, value, at, errors),
            Value::String(text) => self.string(map, text, value, at, errors),
            _ => {}
        }
    }

    fn string(
        &mut self,
        map: &'s Map<String, Value>,
        text: &str,
        value: &Value,
        at: &At<'_>,
        errors: &mut Errors,
    ) {
        let bound = |key: &str| map.get(key).and_then(count);
        let length = || text.chars().count() as u64;
        if let Some(max) = bound("maxLength").filter(|max| length() > *max) {
            errors.report(at, || format!("{} is longer than {max} characters", message::short(value)));
        }
        if let Some(min) = bound("minLength").filter(|min| length() < *min) {
            errors.report(at, || format!("{} is shorter than {min} characters", message::short(value)));
        }
        if let Some(pattern) = map.get("pattern").and_then(Value::as_str) {
            self.steps += text.len() / 64;
            if self.schema.patterns.get(pattern).is_some_and(|regex| !regex.is_match(text)) {
                errors.report(at, || format!("{} does not match \"{pattern}\"", message::short(value)));
            }
        }
    }

    /// Keywords that apply other schemas to the same value.
    fn in_place<'v>(
        &mut self,
        map: &'s Map<String, Value>,
        value: &'v Value,
        at: &At<'_>,
        errors: &mut Errors,
        evaluated: &mut Evaluated<'v>,
    ) {
        for key in ["$ref", "$dynamicRef"] {
            let target = map.get(key).and_then(Value::as_str).filter(|to| !is_meta_schema(to));
            if let Some(target) = target.and_then(|to| self.schema.resolve(to)) {
                evaluated.merge(self.schema(target, value, at, errors));
            }
        }
        for part in list(map, "allOf") {
            if errors.is_done() {
                return;
            }
            evaluated.merge(self.schema(part, value, at, errors));
        }
        self.alternatives(map, value, at, errors, evaluated);
        if let Some(not) = map.get("not")
            && self.matches(not, value, at).is_some()
        {
            errors.report(at, || format!("{} is not allowed by `not`", message::short(value)));
        }
        if let Some(condition) = map.get("if") {
            let branch = if let Some(matched) = self.matches(condition, value, at) {
                evaluated.merge(matched);
                map.get("then")
            } else {
                map.get("else")
            };
            if let Some(branch) = branch {
                evaluated.merge(self.schema(branch, value, at, errors));
            }
        }
    }

    fn alternatives<'v>(
        &mut self,
        map: &'s Map<String, Value>,
        value: &'v Value,
        at: &At<'_>,
        errors: &mut Errors,
        evaluated: &mut Evaluated<'v>,
    ) {
        if map.contains_key("anyOf") {
            let mut any = false;
            for part in list(map, "anyOf") {
                // Without `unevaluated…`, the first match decides.
                if any && !self.schema.tracks_evaluated {
                    break;
                }
                if let Some(matched) = self.matches(part, value, at) {
                    evaluated.merge(matched);
                    any = true;
                }
            }
            if !any {
                errors.report(at, || {
                    format!("{} matches none of the schemas in `anyOf`", message::short(value))
                });
            }
        }
        if map.contains_key("oneOf") {
            let matched: Vec<Evaluated<'v>> =
                list(map, "oneOf").filter_map(|part| self.matches(part, value, at)).take(2).collect();
            match matched.len() {
                1 => matched.into_iter().for_each(|matched| evaluated.merge(matched)),
                0 => errors.report(at, || {
                    format!("{} matches none of the schemas in `oneOf`", message::short(value))
                }),
                _ => errors.report(at, || {
                    format!("{} matches more than one of the schemas in `oneOf`", message::short(value))
                }),
            }
        }
    }

    fn object<'v>(
        &mut self,
        map: &'s Map<String, Value>,
        value: &'v Value,
        object: &'v Map<String, Value>,
        at: &At<'_>,
        errors: &mut Errors,
        evaluated: &mut Evaluated<'v>,
    ) {
        message::object_size(map, object, at, errors);
        self.steps += names(map.get("required")).count();
        for name in names(map.get("required")).filter(|name| !object.contains_key(*name)) {
            errors.report(at, || format!("\"{name}\" is a required property"));
        }
        self.dependencies(map, value, object, at, errors, evaluated);
        let properties = map.get("properties").and_then(Value::as_object);
        let patterns = map.get("patternProperties").and_then(Value::as_object);
        // A pattern that is not supported may match any name.
        let is_open = patterns
            .is_some_and(|patterns| patterns.keys().any(|name| !self.schema.patterns.contains_key(name)));
        let mut unexpected = Vec::new();
        for (name, value) in object {
            self.steps += 1;
            if errors.is_done() || self.is_exhausted() {
                return;
            }
            let below = at.key(name);
            let mut is_known = false;
            if let Some(schema) = properties.and_then(|properties| properties.get(name)) {
                self.schema(schema, value, &below, errors);
                is_known = true;
            }
            for (pattern, schema) in patterns.into_iter().flatten() {
                self.steps += 1;
                if self.schema.patterns.get(pattern).is_some_and(|regex| regex.is_match(name)) {
                    self.schema(schema, value, &below, errors);
                    is_known = true;
                }
            }
            if let Some(names) = map.get("propertyNames")
                && self.matches(names, &Value::String(name.clone()), &below).is_none()
            {
                errors.report(at, || format!("\"{name}\" is not an allowed property name"));
            }
            match map.get("additionalProperties") {
                Some(Value::Bool(false)) if !is_known && !is_open => unexpected.push(name.as_str()),
                Some(schema) if !is_known && !is_open => {
                    self.schema(schema, value, &below, errors);
                    is_known = true;
                }
                _ => {}
            }
            if is_known && self.schema.tracks_evaluated {
                evaluated.properties.insert(name);
            }
        }
        message::unexpected_properties(&unexpected, at, errors);
        if let Some(rest) = map.get("unevaluatedProperties") {
            for (name, value) in
                object.iter().filter(|(name, _)| !evaluated.properties.contains(name.as_str()))
            {
                self.schema(rest, value, &at.key(name), errors);
            }
            evaluated.properties.extend(object.keys().map(String::as_str));
        }
    }

    fn dependencies<'v>(
        &mut self,
        map: &'s Map<String, Value>,
        value: &'v Value,
        object: &'v Map<String, Value>,
        at: &At<'_>,
        errors: &mut Errors,
        evaluated: &mut Evaluated<'v>,
    ) {
        for key in ["dependentRequired", "dependentSchemas", "dependencies"] {
            let present = map.get(key).and_then(Value::as_object).into_iter().flatten();
            for (name, needs) in present.filter(|(name, _)| object.contains_key(*name)) {
                for needed in names(Some(needs)).filter(|needed| !object.contains_key(*needed)) {
                    errors.report(at, || format!("\"{needed}\" is required beside \"{name}\""));
                }
                if !needs.is_array() {
                    evaluated.merge(self.schema(needs, value, at, errors));
                }
            }
        }
    }

    fn array<'v>(
        &mut self,
        map: &'s Map<String, Value>,
        items: &'v [Value],
        at: &At<'_>,
        errors: &mut Errors,
        evaluated: &mut Evaluated<'v>,
    ) {
        message::array_size(map, items, at, errors);
        if map.get("uniqueItems") == Some(&Value::Bool(true)) && !self.is_unique(items) {
            errors.report(at, || "the items are not unique".to_owned());
        }
        let (prefix, rest) = match map.get("items") {
            Some(Value::Array(prefix)) => (prefix.as_slice(), map.get("additionalItems")),
            rest => (map.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice), rest),
        };
        for (index, item) in items.iter().enumerate() {
            self.steps += 1;
            if errors.is_done() || self.is_exhausted() {
                return;
            }
            if let Some(schema) = prefix.get(index).or(rest) {
                self.schema(schema, item, &at.index(index), errors);
                if self.schema.tracks_evaluated {
                    evaluated.items.insert(index);
                }
            }
        }
        self.contains(map, items, at, errors, evaluated);
        if let Some(rest) = map.get("unevaluatedItems") {
            for (index, item) in
                items.iter().enumerate().filter(|(index, _)| !evaluated.items.contains(index))
            {
                self.schema(rest, item, &at.index(index), errors);
            }
            evaluated.items.extend(0..items.len());
        }
    }

    fn contains<'v>(
        &mut self,
        map: &'s Map<String, Value>,
        items: &'v [Value],
        at: &At<'_>,
        errors: &mut Errors,
        evaluated: &mut Evaluated<'v>,
    ) {
        let Some(schema) = map.get("contains") else { return };
        let mut found = 0;
        for (index, item) in items.iter().enumerate() {
            if self.matches(schema, item, &at.index(index)).is_some() {
                found += 1;
                if self.schema.tracks_evaluated {
                    evaluated.items.insert(index);
                }
            }
        }
        let min = map.get("minContains").and_then(count).unwrap_or(1);
        let max = map.get("maxContains").and_then(count).unwrap_or(u64::MAX);
        if found < min || found > max {
            errors.report(at, || format!("{found} items match `contains`, {}", message::range(min, max)));
        }
    }

    fn is_unique(&mut self, items: &[Value]) -> bool {
        for (index, item) in items.iter().enumerate() {
            // Each comparison visits up to the whole item.
            self.steps += index * nodes(item);
            if self.is_exhausted() {
                return true;
            }
            if items[..index].iter().any(|before| is_equal(before, item)) {
                return false;
            }
        }
        true
    }
}

fn numbers(map: &Map<String, Value>, value: &Value, at: &At<'_>, errors: &mut Errors) {
    if let Some(max) = map.get("maximum").filter(|max| less(max, value)) {
        errors.report(at, || format!("{value} is greater than the maximum of {max}"));
    }
    if let Some(min) = map.get("minimum").filter(|min| less(value, min)) {
        errors.report(at, || format!("{value} is less than the minimum of {min}"));
    }
    if let Some(max) = map.get("exclusiveMaximum").filter(|max| !less(value, max)) {
        errors.report(at, || format!("{value} is not less than {max}"));
    }
    if let Some(min) = map.get("exclusiveMinimum").filter(|min| !less(min, value)) {
        errors.report(at, || format!("{value} is not greater than {min}"));
    }
    if let Some(of) = map.get("multipleOf").filter(|of| !is_multiple(value, of)) {
        errors.report(at, || format!("{value} is not a multiple of {of}"));
    }
}

fn list<'s>(map: &'s Map<String, Value>, key: &str) -> impl Iterator<Item = &'s Value> {
    map.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn names(value: Option<&Value>) -> impl Iterator<Item = &str> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// The number of values in a value.
fn nodes(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(nodes).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(nodes).sum::<usize>(),
        _ => 1,
    }
}
