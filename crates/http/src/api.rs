//! Declaration of routes: the router and the `OpenAPI` document come from the same list.

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, on};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::App;
use super::limits::ASSERTION_CHARS;
use super::problem::Problem;

/// Routes with their description.
pub(super) struct Api {
    router: Router<App>,
    paths: Map<String, Value>,
    schemas: SchemaGenerator,
}

/// The description of a route.
pub(super) struct Operation {
    method: MethodFilter,
    method_name: &'static str,
    path: &'static str,
    description: Value,
    parameters: Vec<Value>,
    schemas: Schemas,
}

type ReadSchema = fn(&mut SchemaGenerator) -> Value;

#[derive(Default)]
struct Schemas {
    query: Option<ReadSchema>,
    body: Option<(ReadSchema, bool)>,
    responses: Vec<(u16, &'static str, Option<ReadSchema>)>,
    text: &'static [&'static str],
}

pub(super) fn get(path: &'static str, summary: &str) -> Operation {
    Operation::new(MethodFilter::GET, "get", path, summary)
}

pub(super) fn post(path: &'static str, summary: &str) -> Operation {
    Operation::new(MethodFilter::POST, "post", path, summary)
}

pub(super) fn put(path: &'static str, summary: &str) -> Operation {
    Operation::new(MethodFilter::PUT, "put", path, summary)
}

pub(super) fn delete(path: &'static str, summary: &str) -> Operation {
    Operation::new(MethodFilter::DELETE, "delete", path, summary)
}

fn schema_of<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    schemas.subschema_for::<T>().to_value()
}

impl Operation {
    fn new(method: MethodFilter, method_name: &'static str, path: &'static str, summary: &str) -> Self {
        let named = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let parameters = named.map(|name| {
            let schema = match name {
                "run_id" => json!({ "type": "string", "format": "uuid" }),
                "version" => json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX }),
                _ => json!({ "type": "string", "minLength": 1, "maxLength": 256 }),
            };
            json!({ "name": name, "in": "path", "required": true, "schema": schema })
        });
        let parameters = parameters.collect();
        Self {
            method,
            method_name,
            path,
            description: json!({ "summary": summary }),
            parameters,
            schemas: Schemas::default(),
        }
    }

    /// Adds a description.
    pub(super) fn details(mut self, description: &str) -> Self {
        self.description["description"] = description.into();
        self
    }

    /// Adds query parameters.
    pub(super) fn query<T: JsonSchema>(mut self) -> Self {
        self.schemas.query = Some(schema_of::<T>);
        self
    }

    /// Adds an optional header.
    pub(super) fn header(mut self, name: &str, description: &str) -> Self {
        // An assertion of a passkey is longer than other values.
        let max = if name == "X-Steprail-Presence" { ASSERTION_CHARS + "passkey ".len() } else { 256 };
        let schema = json!({ "type": "string", "maxLength": max });
        self.parameters
            .push(json!({ "name": name, "in": "header", "required": false, "description": description, "schema": schema }));
        self
    }

    /// Adds a JSON body.
    pub(super) fn body<T: JsonSchema>(mut self) -> Self {
        self.schemas.body = Some((schema_of::<T>, true));
        self
    }

    /// Adds an optional JSON body.
    pub(super) fn optional_body<T: JsonSchema>(mut self) -> Self {
        self.schemas.body = Some((schema_of::<T>, false));
        self
    }

    /// Accepts the body also as text of these content types.
    pub(super) fn or_text(mut self, kinds: &'static [&'static str]) -> Self {
        self.schemas.text = kinds;
        self
    }

    /// Adds a successful response.
    pub(super) fn returns<T: JsonSchema>(mut self, status: u16, description: &'static str) -> Self {
        self.schemas.responses.push((status, description, Some(schema_of::<T>)));
        self
    }

    /// Adds a successful response without a body.
    pub(super) fn returns_empty(mut self, status: u16, description: &'static str) -> Self {
        self.schemas.responses.push((status, description, None));
        self
    }

    /// The operation object of the document.
    fn describe(mut self, tag: &str, schemas: &mut SchemaGenerator) -> Value {
        let mut operation = self.description;
        operation["tags"] = json!([tag]);
        operation["operationId"] = operation_id(self.method_name, self.path).into();
        if let Some(query) = self.schemas.query {
            self.parameters.extend(parameters(&resolve(query(schemas), schemas)));
        }
        if !self.parameters.is_empty() {
            operation["parameters"] = self.parameters.into();
        }
        if let Some((body, required)) = self.schemas.body {
            let mut content = json!({ "application/json": { "schema": body(schemas) } });
            for kind in self.schemas.text {
                content[kind] = json!({ "schema": { "type": "string" } });
            }
            operation["requestBody"] = json!({ "required": required, "content": content });
        }
        let mut responses = json!({ "default": {
            "description": "The request was rejected.",
            "content": { "application/problem+json": { "schema": schema_of::<Problem>(schemas) } },
        } });
        for (status, description, schema) in self.schemas.responses {
            let mut response = json!({ "description": description });
            if let Some(schema) = schema {
                response["content"] = json!({ "application/json": { "schema": schema(schemas) } });
            }
            responses[status.to_string()] = response;
        }
        operation["responses"] = responses;
        operation
    }
}

impl Api {
    pub(super) fn new() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        Self { router: Router::new(), paths: Map::new(), schemas: settings.into_generator() }
    }

    pub(super) fn route<H, T>(mut self, tag: &str, operation: Operation, handler: H) -> Self
    where
        H: Handler<T, App>,
        T: 'static,
    {
        let (path, method_name) = (operation.path, operation.method_name);
        self.router = self.router.route(path, on(operation.method, handler));
        let description = operation.describe(tag, &mut self.schemas);
        let methods = self.paths.entry(path).or_insert_with(|| json!({}));
        methods[method_name] = description;
        self
    }

    /// The router, and the document that describes it.
    pub(super) fn finish(mut self) -> (Router<App>, Value) {
        let schemas = self.schemas.take_definitions(true);
        let document = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Steprail",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "Durable workflows of MCP tool calls. Errors are problem details (RFC 9457); \
                                `code` is the same on every surface.",
                "license": { "name": "MIT OR Apache-2.0" },
            },
            "paths": self.paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            },
            "security": [{ "token": [] }, {}],
        });
        (self.router, document)
    }
}

fn operation_id(method_name: &str, path: &str) -> String {
    let segments = path.split(['/', '{', '}', '.']).filter(|part| !part.is_empty());
    let mut id = method_name.to_owned();
    segments.filter(|part| !matches!(*part, "api" | "v1")).for_each(|part| id.push_str(&format!("_{part}")));
    id
}

/// The properties of a schema as query parameters.
fn parameters(schema: &Value) -> Vec<Value> {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties
        .map(|(name, schema)| {
            let mut schema = schema.clone();
            let description = schema.as_object_mut().and_then(|map| map.remove("description"));
            let mut parameter =
                json!({ "name": name, "in": "query", "required": required.contains(&&**name), "schema": schema });
            if let Some(description) = description {
                parameter["description"] = description;
            }
            parameter
        })
        .collect()
}

/// Resolves a schema that is a `$ref`.
fn resolve(schema: Value, schemas: &SchemaGenerator) -> Value {
    let name = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next());
    match name.and_then(|name| schemas.definitions().get(name)) {
        Some(found) => found.clone(),
        None => schema,
    }
}
