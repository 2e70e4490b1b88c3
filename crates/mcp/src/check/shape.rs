//! The JSON Schema of a value, as far as a definition is compared with it.

use serde_json::Value;
use steprail_core::expr::Segment;

/// The schema of a value, with the document that its references lead into.
#[derive(Clone, Copy)]
pub(super) struct Shape<'s> {
    pub schema: &'s Value,
    root: &'s Value,
}

/// What a schema says about one key of a map.
pub(super) enum Key<S> {
    /// It is one of the properties.
    Known(S),
    /// Keys beside the properties are allowed.
    Open,
    /// It is not among the properties, and the schema does not say whether others are allowed.
    Unnamed,
    /// Keys beside the properties are refused.
    Refused,
}

impl<'s> Shape<'s> {
    pub(super) fn new(schema: &'s Value) -> Self {
        Self { schema, root: schema }.followed()
    }

    /// Follows a reference within the document.
    fn followed(self) -> Self {
        let target = self.schema.get("$ref").and_then(Value::as_str).and_then(|at| at.strip_prefix('#'));
        match target.and_then(|at| self.root.pointer(at)) {
            Some(schema) => Self { schema, ..self },
            None => self,
        }
    }

    fn inner(self, schema: &'s Value) -> Self {
        Self { schema, ..self }.followed()
    }

    /// What a key leads to.
    pub(super) fn key(self, key: &str) -> Key<Self> {
        let has = |word: &str| self.schema.get(word).is_some();
        match self.schema.get("properties").and_then(|all| all.get(key)) {
            Some(schema) => Key::Known(self.inner(schema)),
            None if has("patternProperties") => Key::Open,
            None if self.schema.get("additionalProperties") == Some(&Value::Bool(false)) => Key::Refused,
            None if !has("properties") || has("additionalProperties") => Key::Open,
            None if ["anyOf", "oneOf", "allOf", "$ref"].into_iter().any(has) => Key::Open,
            None => Key::Unnamed,
        }
    }

    /// What a path leads to; or why it is not known, and the schema where that is.
    pub(super) fn follow(self, path: &[Segment]) -> Result<Self, (Key<Self>, Self)> {
        path.iter().try_fold(self, |shape, segment| {
            let next = match segment {
                Segment::Key(key) => shape.key(key),
                Segment::Index(_) => shape.items().map_or(Key::Open, Key::Known),
            };
            match next {
                Key::Known(next) => Ok(next),
                unknown => Err((unknown, shape)),
            }
        })
    }

    pub(super) fn items(self) -> Option<Self> {
        self.schema.get("items").filter(|items| items.is_object()).map(|items| self.inner(items))
    }

    /// The types that it allows, if it names them.
    pub(super) fn types(self) -> Option<Vec<&'s str>> {
        match self.schema.get("type")? {
            Value::String(word) => Some(vec![word]),
            Value::Array(words) => Some(words.iter().filter_map(Value::as_str).collect()),
            _ => None,
        }
    }

    /// A schema that stands for itself, for a validator; none if it leads to places that it would not have.
    pub(super) fn standalone(self) -> Option<Value> {
        let mut schema = self.schema.clone();
        for key in ["$defs", "definitions"] {
            if let (Value::Object(schema), Some(definitions)) = (&mut schema, self.root.get(key)) {
                schema.entry(key).or_insert_with(|| definitions.clone());
            }
        }
        refers_to_definitions_only(&schema).then_some(schema)
    }
}

fn refers_to_definitions_only(schema: &Value) -> bool {
    let stays = |at: &str| at.starts_with("#/$defs/") || at.starts_with("#/definitions/");
    match schema {
        Value::Object(map) => map.iter().all(|(key, value)| match (key.as_str(), value) {
            ("$ref" | "$dynamicRef", Value::String(at)) => stays(at),
            _ => refers_to_definitions_only(value),
        }),
        Value::Array(items) => items.iter().all(refers_to_definitions_only),
        _ => true,
    }
}
