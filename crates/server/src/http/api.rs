//! Routes and what is said about them, declared together: the router and the `OpenAPI` document come from one list.

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, on};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::App;
use super::problem::Problem;

/// Routes, with their description.
pub(super) struct Api {
    router: Router<App>,
    paths: Map<String, Value>,
    schemas: SchemaGenerator,
}

/// What is said about a route.
pub(super) struct Operation {
    method: MethodFilter,
    word: &'static str,
    path: &'static str,
    told: Value,
    parameters: Vec<Value>,
    schemas: Schemas,
}

type ReadSchema = fn(&mut SchemaGenerator) -> Value;

#[derive(Default)]
struct Schemas {
    query: Option<ReadSchema>,
    body: Option<(ReadSchema, bool)>,
    gives: Vec<(u16, &'static str, Option<ReadSchema>)>,
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
    fn new(method: MethodFilter, word: &'static str, path: &'static str, summary: &str) -> Self {
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
            word,
            path,
            told: json!({ "summary": summary }),
            parameters,
            schemas: Schemas::default(),
        }
    }

    /// More about it.
    pub(super) fn more(mut self, description: &str) -> Self {
        self.told["description"] = description.into();
        self
    }

    /// With what may stand after the `?`.
    pub(super) fn query<T: JsonSchema>(mut self) -> Self {
        self.schemas.query = Some(schema_of::<T>);
        self
    }

    /// With a header that may be sent.
    pub(super) fn header(mut self, name: &str, means: &str) -> Self {
        let schema = json!({ "type": "string", "maxLength": 256 });
        self.parameters
            .push(json!({ "name": name, "in": "header", "required": false, "description": means, "schema": schema }));
        self
    }

    /// With a JSON body.
    pub(super) fn body<T: JsonSchema>(mut self) -> Self {
        self.schemas.body = Some((schema_of::<T>, true));
        self
    }

    /// With a JSON body that may be left out.
    pub(super) fn optional_body<T: JsonSchema>(mut self) -> Self {
        self.schemas.body = Some((schema_of::<T>, false));
        self
    }

    /// Whose body may also be text.
    pub(super) fn or_text(mut self, kinds: &'static [&'static str]) -> Self {
        self.schemas.text = kinds;
        self
    }

    /// What it gives if all is well.
    pub(super) fn gives<T: JsonSchema>(mut self, status: u16, means: &'static str) -> Self {
        self.schemas.gives.push((status, means, Some(schema_of::<T>)));
        self
    }

    /// That it gives nothing if all is well.
    pub(super) fn gives_nothing(mut self, status: u16, means: &'static str) -> Self {
        self.schemas.gives.push((status, means, None));
        self
    }

    /// As the document has it.
    fn describe(mut self, tag: &str, schemas: &mut SchemaGenerator) -> Value {
        let mut told = self.told;
        told["tags"] = json!([tag]);
        told["operationId"] = operation_id(self.word, self.path).into();
        if let Some(query) = self.schemas.query {
            self.parameters.extend(parameters(&resolve(query(schemas), schemas)));
        }
        if !self.parameters.is_empty() {
            told["parameters"] = self.parameters.into();
        }
        if let Some((body, required)) = self.schemas.body {
            let mut content = json!({ "application/json": { "schema": body(schemas) } });
            for kind in self.schemas.text {
                content[kind] = json!({ "schema": { "type": "string" } });
            }
            told["requestBody"] = json!({ "required": required, "content": content });
        }
        let mut responses = json!({ "default": {
            "description": "It was refused.",
            "content": { "application/problem+json": { "schema": schema_of::<Problem>(schemas) } },
        } });
        for (status, means, schema) in self.schemas.gives {
            let mut response = json!({ "description": means });
            if let Some(schema) = schema {
                response["content"] = json!({ "application/json": { "schema": schema(schemas) } });
            }
            responses[status.to_string()] = response;
        }
        told["responses"] = responses;
        told
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

    /// With one more route.
    pub(super) fn route<H, T>(mut self, tag: &str, operation: Operation, handler: H) -> Self
    where
        H: Handler<T, App>,
        T: 'static,
    {
        let (path, word) = (operation.path, operation.word);
        self.router = self.router.route(path, on(operation.method, handler));
        let told = operation.describe(tag, &mut self.schemas);
        let entry = self.paths.entry(path).or_insert_with(|| json!({}));
        entry[word] = told;
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
                "description": "Durable workflows of MCP tool calls. Errors are problem details (RFC 9457) whose `code` \
                                is the same word as on the other surfaces.",
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

fn operation_id(word: &str, path: &str) -> String {
    let words = path.split(['/', '{', '}', '.']).filter(|part| !part.is_empty());
    let mut id = word.to_owned();
    words.filter(|part| !matches!(*part, "api" | "v1")).for_each(|part| id.push_str(&format!("_{part}")));
    id
}

/// The properties of a map as parameters of a query.
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

/// A schema itself, where another one only refers to it.
fn resolve(schema: Value, schemas: &SchemaGenerator) -> Value {
    let name = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next());
    match name.and_then(|name| schemas.definitions().get(name)) {
        Some(found) => found.clone(),
        None => schema,
    }
}
