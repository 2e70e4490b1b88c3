//! Evaluates a schema for a value, charging each step to the budget.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::compare::{is_multiple, is_type, less};
use super::message::{self, At, Errors};
use super::read::{count, is_meta_schema};
use super::{Schema, Violation};
use crate::bounded_regex::BoundedRegex;
use crate::budget::Budget;
use crate::budget::value::equal;
use crate::limits::SCHEMA_CALLS;

/// The cost of evaluating a schema for a value, besides its keywords: most of it looks for keywords that are not there.
const SCHEMA_COST: usize = 20;
/// The cost of a keyword.
const KEYWORD_COST: usize = 2;
/// The cost of looking up a name in a map, or of adding it to one.
const NAME_COST: usize = 8;
/// The cost of resolving a reference, besides its bytes.
const REFERENCE_COST: usize = 30;

/// One evaluation.
pub(super) struct Evaluation<'s, 'b> {
    schema: &'s Schema,
    budget: &'b mut Budget,
    depth: usize,
    /// Whether schemas were nested too deep: a reference leads back to itself, or the value is very deep.
    is_too_deep: bool,
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

    fn len(&self) -> usize {
        self.properties.len() + self.items.len()
    }
}

impl<'s, 'b> Evaluation<'s, 'b> {
    pub(super) fn new(schema: &'s Schema, budget: &'b mut Budget) -> Self {
        Self { schema, budget, depth: 0, is_too_deep: false }
    }

    pub(super) fn run(mut self, part: &'s Value, value: &Value, limit: usize) -> Vec<Violation> {
        let mut errors = Errors::reported(limit);
        self.schema(part, value, &At::ROOT, &mut errors);
        let message = if self.is_too_deep {
            format!("the check nests more than {SCHEMA_CALLS} schemas; a reference may lead back to itself")
        } else if self.budget.is_exhausted() {
            self.budget.exhausted().to_string()
        } else {
            return errors.found;
        };
        vec![Violation { pointer: String::new(), message }]
    }

    fn is_stopped(&self) -> bool {
        self.is_too_deep || self.budget.is_exhausted()
    }

    /// Charges work that is about to be done. Returns whether it may be done.
    fn charge(&mut self, units: usize) -> bool {
        self.budget.charge(units).is_ok()
    }

    /// Whether two values are equal; unequal if the budget is exhausted.
    fn is_equal(&mut self, left: &Value, right: &Value) -> bool {
        equal(left, right, self.budget).unwrap_or(false)
    }

    /// Whether a pattern matches; not if the budget is exhausted.
    fn is_match(&mut self, regex: &BoundedRegex, text: &str) -> bool {
        regex.is_match(text, self.budget).unwrap_or(false)
    }

    /// Adds what a schema has evaluated.
    fn merge<'v>(&mut self, evaluated: &mut Evaluated<'v>, other: Evaluated<'v>) {
        if other.len() == 0 || self.charge(other.len() * NAME_COST) {
            evaluated.merge(other);
        }
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
        let mut evaluated = Evaluated::default();
        if !self.charge(1) || self.is_too_deep {
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
        self.is_too_deep = self.depth >= SCHEMA_CALLS;
        if self.is_too_deep || !self.charge(SCHEMA_COST + KEYWORD_COST * map.len()) {
            errors.failed = true;
            return evaluated;
        }
        self.depth += 1;
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
            self.charge(types.as_array().map_or(1, Vec::len));
            let allowed: Vec<&str> = match types {
                Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
                one => one.as_str().into_iter().collect(),
            };
            if !allowed.iter().any(|word| is_type(value, word)) {
                errors.report(at, || message::wrong_type(value, &allowed));
            }
        }
        if let Some(Value::Array(allowed)) = map.get("enum")
            && !allowed.iter().any(|one| self.is_equal(one, value))
        {
            errors.report(at, || message::not_one_of(value, allowed));
        }
        if let Some(only) = map.get("const").filter(|only| !self.is_equal(only, value)) {
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
        if self.budget.charge_bytes(2 * text.len()).is_err() {
            return;
        }
        let length = || text.chars().count() as u64;
        if let Some(max) = bound("maxLength").filter(|max| length() > *max) {
            errors.report(at, || format!("{} is longer than {max} characters", message::short(value)));
        }
        if let Some(min) = bound("minLength").filter(|min| length() < *min) {
            errors.report(at, || format!("{} is shorter than {min} characters", message::short(value)));
        }
        if let Some(pattern) = map.get("pattern").and_then(Value::as_str) {
            let schema = self.schema;
            if schema.patterns.get(pattern).is_some_and(|regex| !self.is_match(regex, text)) {
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
            let target = target.filter(|to| self.charge(REFERENCE_COST + to.len()));
            if let Some(target) = target.and_then(|to| self.schema.resolve(to)) {
                let matched = self.schema(target, value, at, errors);
                self.merge(evaluated, matched);
            }
        }
        for part in list(map, "allOf") {
            if errors.is_done() || self.is_stopped() {
                return;
            }
            let matched = self.schema(part, value, at, errors);
            self.merge(evaluated, matched);
        }
        self.alternatives(map, value, at, errors, evaluated);
        if let Some(not) = map.get("not")
            && self.matches(not, value, at).is_some()
        {
            errors.report(at, || format!("{} is not allowed by `not`", message::short(value)));
        }
        if let Some(condition) = map.get("if") {
            let branch = if let Some(matched) = self.matches(condition, value, at) {
                self.merge(evaluated, matched);
                map.get("then")
            } else {
                map.get("else")
            };
            if let Some(branch) = branch {
                let matched = self.schema(branch, value, at, errors);
                self.merge(evaluated, matched);
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
                if (any && !self.schema.tracks_evaluated) || self.is_stopped() {
                    break;
                }
                if let Some(matched) = self.matches(part, value, at) {
                    self.merge(evaluated, matched);
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
                1 => matched.into_iter().for_each(|matched| self.merge(evaluated, matched)),
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
        if !self.charge(NAME_COST * listed(map.get("required"))) {
            return;
        }
        for name in names(map.get("required")).filter(|name| !object.contains_key(*name)) {
            errors.report(at, || format!("\"{name}\" is a required property"));
        }
        self.dependencies(map, value, object, at, errors, evaluated);
        let properties = map.get("properties").and_then(Value::as_object);
        let patterns = map.get("patternProperties").and_then(Value::as_object);
        self.charge(NAME_COST * patterns.map_or(0, Map::len));
        let schema = self.schema;
        // A pattern that is not supported may match any name.
        let is_open = patterns
            .is_some_and(|patterns| patterns.keys().any(|name| !self.schema.patterns.contains_key(name)));
        let mut unexpected = Vec::new();
        for (name, value) in object {
            if errors.is_done() || self.is_too_deep || !self.charge(NAME_COST) {
                return;
            }
            let below = at.key(name);
            let mut is_known = false;
            if let Some(part) = properties.and_then(|properties| properties.get(name)) {
                self.schema(part, value, &below, errors);
                is_known = true;
            }
            for (pattern, part) in patterns.into_iter().flatten() {
                if schema.patterns.get(pattern).is_some_and(|regex| self.is_match(regex, name)) {
                    self.schema(part, value, &below, errors);
                    is_known = true;
                }
            }
            if let Some(names) = map.get("propertyNames")
                && self.budget.charge_bytes(name.len()).is_ok()
                && self.matches(names, &Value::String(name.clone()), &below).is_none()
            {
                errors.report(at, || format!("\"{name}\" is not an allowed property name"));
            }
            match map.get("additionalProperties") {
                Some(Value::Bool(false)) if !is_known && !is_open => unexpected.push(name.as_str()),
                Some(part) if !is_known && !is_open => {
                    self.schema(part, value, &below, errors);
                    is_known = true;
                }
                _ => {}
            }
            if is_known && self.schema.tracks_evaluated {
                evaluated.properties.insert(name);
            }
        }
        message::unexpected_properties(&unexpected, at, errors);
        if let Some(rest) = map.get("unevaluatedProperties")
            && self.charge(NAME_COST * object.len())
        {
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
            let entries = map.get(key).and_then(Value::as_object);
            if !self.charge(NAME_COST * entries.map_or(0, Map::len)) {
                return;
            }
            let present = entries.into_iter().flatten().filter(|(name, _)| object.contains_key(*name));
            for (name, needs) in present {
                if !self.charge(NAME_COST * listed(Some(needs))) {
                    return;
                }
                for needed in names(Some(needs)).filter(|needed| !object.contains_key(*needed)) {
                    errors.report(at, || format!("\"{needed}\" is required beside \"{name}\""));
                }
                if !needs.is_array() {
                    let matched = self.schema(needs, value, at, errors);
                    self.merge(evaluated, matched);
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
            if errors.is_done() || self.is_too_deep || !self.charge(1) {
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
        if let Some(rest) = map.get("unevaluatedItems")
            && self.charge(NAME_COST * items.len())
        {
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

    /// Whether all items are different; true if the budget is exhausted.
    fn is_unique(&mut self, items: &[Value]) -> bool {
        for (index, item) in items.iter().enumerate() {
            if items[..index].iter().any(|before| self.is_equal(before, item)) {
                return false;
            }
            if self.is_stopped() {
                return true;
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

/// The number of entries of a list; 0 for any other value.
fn listed(value: Option<&Value>) -> usize {
    value.and_then(Value::as_array).map_or(0, Vec::len)
}
