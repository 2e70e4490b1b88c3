//! The parts of JSON Schema that the check of a definition uses.

use serde_json::Value;
use steprail_core::expr::Segment;

/// A schema, with the document that its `$ref`s point into.
#[derive(Clone, Copy)]
pub(super) struct SchemaNode<'s> {
    pub json: &'s Value,
    root: &'s Value,
}

/// How a schema treats one key of a map.
pub(super) enum Property<S> {
    /// The key is one of the `properties`.
    Declared(S),
    /// Other keys are allowed explicitly, or the schema is too open to tell.
    Allowed,
    /// The key is not declared, and the schema does not state whether other keys are allowed.
    Undeclared,
    /// The key is not declared, and `additionalProperties` is false.
    Forbidden,
}

impl<'s> SchemaNode<'s> {
    pub(super) fn new(schema: &'s Value) -> Self {
        Self { json: schema, root: schema }.resolved()
    }

    /// Resolves a `$ref` within the document.
    fn resolved(self) -> Self {
        let target = self.json.get("$ref").and_then(Value::as_str).and_then(|at| at.strip_prefix('#'));
        match target.and_then(|at| self.root.pointer(at)) {
            Some(schema) => Self { json: schema, ..self },
            None => self,
        }
    }

    fn inner(self, schema: &'s Value) -> Self {
        Self { json: schema, ..self }.resolved()
    }

    pub(super) fn property(self, key: &str) -> Property<Self> {
        let has = |keyword: &str| self.json.get(keyword).is_some();
        match self.json.get("properties").and_then(|all| all.get(key)) {
            Some(schema) => Property::Declared(self.inner(schema)),
            None if has("patternProperties") => Property::Allowed,
            None if self.json.get("additionalProperties") == Some(&Value::Bool(false)) => Property::Forbidden,
            None if !has("properties") || has("additionalProperties") => Property::Allowed,
            None if ["anyOf", "oneOf", "allOf", "$ref"].into_iter().any(has) => Property::Allowed,
            None => Property::Undeclared,
        }
    }

    /// The schema at a path, or the first key without a known schema and the schema of its map.
    pub(super) fn follow(self, path: &[Segment]) -> Result<Self, (Property<Self>, Self)> {
        path.iter().try_fold(self, |schema, segment| {
            let next = match segment {
                Segment::Key(key) => schema.property(key),
                Segment::Index(_) => schema.items().map_or(Property::Allowed, Property::Declared),
            };
            match next {
                Property::Declared(next) => Ok(next),
                unknown => Err((unknown, schema)),
            }
        })
    }

    pub(super) fn items(self) -> Option<Self> {
        self.json.get("items").filter(|items| items.is_object()).map(|items| self.inner(items))
    }

    /// The allowed types; `None` if the schema has no `type`.
    pub(super) fn types(self) -> Option<Vec<&'s str>> {
        match self.json.get("type")? {
            Value::String(name) => Some(vec![name]),
            Value::Array(names) => Some(names.iter().filter_map(Value::as_str).collect()),
            _ => None,
        }
    }
}
