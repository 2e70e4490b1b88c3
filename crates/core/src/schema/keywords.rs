//! Which keywords contain schemas.

/// Keywords whose value is a schema.
pub(super) const SCHEMA: [&str; 12] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];

/// Keywords whose value is a list of schemas. `items` is one of them in draft 7.
pub(super) const LIST: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];

/// Keywords whose value is a map of schemas.
pub(super) const MAP: [&str; 6] =
    ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties", "dependencies"];

/// Keywords whose value is a number.
pub(super) const NUMBER: [&str; 5] =
    ["exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"];

/// Keywords whose value is a non-negative whole number.
pub(super) const COUNT: [&str; 8] = [
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
];

/// The values of `type`.
pub(super) const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];
