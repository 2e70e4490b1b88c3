//! The `OpenAPI` document as a web page.

use serde_json::Value;

/// The style sheet of the page. It is a file of its own, because inline styles are not allowed.
pub(super) const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2330;background:#fff}\
h1{margin-bottom:.2rem}h2{margin-top:2.5rem;border-bottom:1px solid #d8dde6;text-transform:capitalize}\
details{border:1px solid #d8dde6;border-radius:6px;margin:.5rem 0;padding:.4rem .8rem}summary{cursor:pointer}\
code{font:13px ui-monospace,monospace}b{display:inline-block;width:4.5rem;font:600 12px ui-monospace,monospace}\
.get{color:#0a6}.post{color:#06c}.put{color:#a60}.delete{color:#c22}pre{background:#f4f6f9;padding:.6rem;overflow:auto;font-size:12px}\
td{padding:.1rem .8rem .1rem 0;vertical-align:top}.quiet{color:#667}\
@media(prefers-color-scheme:dark){body{background:#14171d;color:#dde3ee}pre{background:#1d222b}details,h2{border-color:#333b48}.quiet{color:#99a}}";

/// Renders the page.
pub(super) fn render(document: &Value) -> String {
    let info = &document["info"];
    let mut body = format!(
        "<h1>{} <span class=quiet>{}</span></h1><p>{}</p><p>Machine-readable: <a href=/api/openapi.json>OpenAPI 3.1</a>. \
         Streams: <code>GET /api/v1/stream</code> (SSE), <code>/api/v1/socket</code> (WebSocket).</p>",
        text(&info["title"]),
        text(&info["version"]),
        text(&info["description"])
    );
    let mut tag = "";
    let mut operations = operations(document);
    // Tags keep the order of their first operation.
    let mut tags: Vec<&str> = Vec::new();
    for (_, _, operation) in &operations {
        let tag = operation["tags"][0].as_str().unwrap_or_default();
        if !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    operations.sort_by_key(|(_, _, operation)| tags.iter().position(|tag| operation["tags"][0] == *tag));
    for (path, method, operation) in &operations {
        let current = operation["tags"][0].as_str().unwrap_or_default();
        if current != tag {
            tag = current;
            body.push_str(&format!("<h2>{}</h2>", escaped(tag)));
        }
        body.push_str(&entry(path, method, operation, document));
    }
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>Steprail API</title><link rel=stylesheet href=/api/style.css>{body}</html>"
    )
}

fn operations(document: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = document["paths"].as_object().into_iter().flatten();
    let methods = paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().into_iter().flatten();
        methods.map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
    });
    methods.collect()
}

fn entry(path: &str, method: &str, operation: &Value, document: &Value) -> String {
    let mut html = format!(
        "<details><summary><b class={method}>{}</b><code>{}</code> <span class=quiet>{}</span></summary><p>{}</p>",
        method.to_uppercase(),
        escaped(path),
        text(&operation["summary"]),
        text(&operation["description"])
    );
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let rows: String = parameters.map(parameter).collect();
    if !rows.is_empty() {
        html.push_str(&format!("<table>{rows}</table>"));
    }
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    if !body.is_null() {
        html.push_str(&format!("<p>Body</p>{}", schema(body, document)));
    }
    let responses = operation["responses"].as_object().into_iter().flatten();
    for (status, response) in responses.filter(|(status, _)| *status != "default") {
        html.push_str(&format!("<p>{status}: {}</p>", text(&response["description"])));
        let content = &response["content"]["application/json"]["schema"];
        if !content.is_null() {
            html.push_str(&schema(content, document));
        }
    }
    html.push_str("</details>");
    html
}

fn parameter(parameter: &Value) -> String {
    let needed = if parameter["required"] == true { "" } else { ", optional" };
    format!(
        "<tr><td><code>{}</code><td class=quiet>{}{needed}<td>{}",
        text(&parameter["name"]),
        text(&parameter["in"]),
        text(&parameter["description"])
    )
}

/// A schema with its `$ref` resolved.
fn schema(schema: &Value, document: &Value) -> String {
    let named = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next());
    let shown = named.map_or(schema, |name| &document["components"]["schemas"][name]);
    format!("<pre>{}</pre>", escaped(&format!("{shown:#}")))
}

fn text(value: &Value) -> String {
    escaped(value.as_str().unwrap_or_default())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
