//! The reference page of the definition language, from the same schema that editors get.

use std::fmt::Write;

use serde_json::Value;

use super::fields::Record;
use super::graph::Transition;
use super::head::Head;
use super::policy::Policy;
use super::schema::{KINDS, definition_schema};
use super::step::Kind;
use crate::diagnostic::{Code, Severity};
use crate::expr::Function;

/// The parts that fields refer to, with a section of their own.
const PARTS: &[&str] = &[
    "RetryFields",
    "FailureKind",
    "OnError",
    "OnDeny",
    "Escalation",
    "Verify",
    "Input",
    "LimitFields",
    "Case",
    "GraphCase",
    "Period",
];

/// The reference page as Markdown.
pub fn markdown() -> String {
    let schema = definition_schema();
    let mut page = Page { out: INTRODUCTION.to_owned(), parts: &schema["$defs"] };
    page.heading(2, "A definition");
    page.fields(&schema["anyOf"][0], Head::KEYS);
    page.line(
        "\n`steps` is a list (tree or DAG) or a map of name to step (graph; also called `flow`, with `start`).",
    );
    page.steps();
    page.policies();
    page.heading(2, "Where a step of the graph form leads");
    page.fields(&page.parts["GraphStep"]["anyOf"][0], Transition::KEYS);
    page.line(
        "\nThe key of a step is its id; `name` or `id` inside it gives it another, and both spellings work.",
    );
    page.heading(2, "Parts");
    PARTS.iter().for_each(|name| page.part(name));
    page.line(LANGUAGE);
    page.heading(3, "Functions");
    Function::DOCS.iter().for_each(|(_, docs)| page.line(&format!("- {}", docs.trim())));
    page.codes();
    page.out
}

struct Page<'s> {
    out: String,
    /// The schema's named parts.
    parts: &'s Value,
}

impl Page<'_> {
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{text}");
    }

    fn heading(&mut self, level: usize, text: &str) {
        let _ = writeln!(self.out, "\n{} {text}\n", "#".repeat(level));
    }

    /// A table of some fields of an object.
    fn fields(&mut self, object: &Value, keys: &[&str]) {
        if !keys.is_empty() {
            self.line("| field | value | |\n|---|---|---|");
            self.rows(object, keys);
        }
    }

    fn rows(&mut self, object: &Value, keys: &[&str]) {
        let required = object["required"].as_array();
        for key in keys {
            let field = &object["properties"][key];
            let must = if required.is_some_and(|keys| keys.iter().any(|other| other == key)) {
                " (required)"
            } else {
                ""
            };
            let row =
                format!("| `{key}`{must} | {} | {} |", self.value(field), cell(text(&field["description"])));
            self.line(&row);
        }
    }

    fn steps(&mut self) {
        let kinds = &self.parts["Step"]["anyOf"];
        self.heading(2, "Steps");
        self.line("Every step may have these:\n");
        self.fields(&kinds[0], &["id"]);
        let words: Vec<String> = KINDS.iter().map(|kind| format!("`{}`", kind.word())).collect();
        let what = "What the step does. It may be left out where the other fields tell.";
        self.line(&format!("| `kind` | {} | {what} |", words.join(", ")));
        self.rows(&kinds[0], &["description", "depends_on", "outputs"]);
        for (kind, schema) in KINDS.iter().zip(kinds.as_array().into_iter().flatten()) {
            self.heading(3, &format!("`{}`", kind.word()));
            self.line(&format!("{}\n", text(&schema["description"])));
            self.fields(schema, Kind::keys(*kind));
        }
    }

    fn policies(&mut self) {
        self.heading(2, "Policies");
        self.line("They stand directly on a step. On which kinds each means something:\n");
        self.line("| field | value | | on |\n|---|---|---|---|");
        for key in Policy::KEYS {
            let field = &self.parts["Step"]["anyOf"][0]["properties"][key];
            let on =
                KINDS.iter().filter(|kind| Policy::keys_of(**kind).iter().any(|group| group.contains(key)));
            let on: Vec<String> = on.map(|kind| format!("`{}`", kind.word())).collect();
            let on = if on.len() == KINDS.len() { "all".to_owned() } else { on.join(" ") };
            let row =
                format!("| `{key}` | {} | {} | {on} |", self.value(field), cell(text(&field["description"])));
            self.line(&row);
        }
    }

    fn part(&mut self, name: &str) {
        let schema = &self.parts[name];
        self.heading(3, name);
        let description = text(&schema["description"]);
        if !description.is_empty() {
            self.line(&format!("{description}\n"));
        }
        for choice in schema["oneOf"].as_array().into_iter().flatten() {
            self.line(&format!("- `{}`: {}", text(&choice["const"]), text(&choice["description"])));
        }
        for choice in schema["anyOf"].as_array().into_iter().flatten() {
            let line = format!("- {} {}", self.value(choice), text(&choice["description"]));
            self.line(line.trim_end());
        }
        let keys: Vec<&str> = schema["properties"]
            .as_object()
            .into_iter()
            .flat_map(|map| map.keys())
            .map(String::as_str)
            .collect();
        self.fields(schema, &keys);
    }

    fn codes(&mut self) {
        self.heading(2, "What `check` can say");
        self.line("| code | name | | meaning |\n|---|---|---|---|");
        for code in Code::ALL {
            let severity = if code.severity() == Severity::Error { "error" } else { "warning" };
            self.line(&format!(
                "| {} | `{}` | {severity} | {} |",
                code.id(),
                code.name(),
                cell(code.summary())
            ));
        }
    }

    /// What kind of value a schema stands for, in a word or two.
    fn value(&self, schema: &Value) -> String {
        if let Some(name) = schema["$ref"].as_str() {
            return self.part_value(name.rsplit('/').next().unwrap_or_default());
        }
        if let Some(words) = schema["enum"].as_array().or_else(|| schema["oneOf"].as_array()) {
            let word = |word: &Value| format!("`{}`", word.as_str().unwrap_or_else(|| text(&word["const"])));
            return words.iter().map(word).collect::<Vec<_>>().join(", ");
        }
        if let Some(options) = schema["anyOf"].as_array() {
            let options: Vec<String> =
                options.iter().map(|option| self.value(option)).filter(|o| o != "null").collect();
            return options.join(" or ");
        }
        let types: Vec<&str> = match &schema["type"] {
            Value::Array(types) => types.iter().map(text).filter(|word| *word != "null").collect(),
            word => vec![text(word)],
        };
        match types.as_slice() {
            ["string"] => "text".into(),
            ["array"] => format!("list of {}", self.value(&schema["items"])),
            ["object"] if schema["properties"].is_object() => {
                let keys = schema["properties"].as_object().into_iter().flat_map(|map| map.keys());
                format!("`{{{}}}`", keys.map(String::as_str).collect::<Vec<_>>().join(", "))
            }
            ["object"] if schema["additionalProperties"].is_object() => {
                format!("map of name to {}", self.value(&schema["additionalProperties"]))
            }
            ["object"] => "map".into(),
            [""] => "any".into(),
            words => words.join(" or "),
        }
    }

    fn part_value(&self, name: &str) -> String {
        match name {
            "Steps" => "list of steps".into(),
            "Value" => "any".into(),
            "ToolName" => "name".into(),
            name if PARTS.contains(&name) => format!("[{name}](#{})", name.to_lowercase()),
            name => self.value(&self.parts[name]),
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A text that fits into a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

const INTRODUCTION: &str = "\
# Definition reference

<!-- Generated by `steprail schema --format markdown`; `just gen` writes it anew. -->

A definition is YAML or JSON. The [JSON Schema](definition.schema.json) says the same to editors: put
`# yaml-language-server: $schema=<path>/definition.schema.json` into the first line of a YAML file.
`steprail check FILE` shows every problem at once.
";

const LANGUAGE: &str = "
## Values that are computed

Strings in `args`, `output`, `prompt` and the like may hold references:

| written | means |
|---|---|
| `{{inputs.date}}`, `{{input.date}}`, `{{date}}` | an input |
| `{{steps.list.output.files[0]}}`, `{{list.files[0]}}` | a part of what the step `list` gave |
| `{{steps.list.file_refs[0].uri}}` | a file that the step gave |
| `{{steps.list.status}}`, `{{steps.list.error}}` | how the step ended, and why it failed |
| `{{item}}`, or the name after `as` | the item of a `foreach` |
| `{{result}}` | the output of the step before, in a list; of the step itself, in a `branch` of the graph form |
| `{{error.message}}` | why the run failed, in `on_failure` |
| `{{env.REGION}}` | an environment variable that the server allows |
| `$results` | a declared output of an earlier step |
| `$user_name`, `$user_email`, `$user_id`, `$run_id` | about the run |
| `$.list.files[?@.size > 0].uri` | a JSONPath (RFC 9535), as the whole string; `{{list.files[*].uri}}` is one, too |

A string that is one reference and nothing else keeps the value's type; within text the value becomes text.
`{{{{` stands for two braces, `$$` for a dollar sign.

A path that leads nowhere is an error that names it. `{{inputs.x | default(\"none\")}}` tolerates it.
A JSONPath of names and indexes gives the value; with `[*]`, a filter, a slice or `..` it always gives a list.
Names with a hyphen are written as they are (`steps.my-step.output`), so a subtraction needs spaces: `a - 1`.

### Expressions

`if`, `cases` and everything between `{{` and `}}` are expressions: `== != < <= > >= in`, `and or not` (also
`&& || !`), `+ - * / %`, `a ? b : c`, `[1, 2]`, text in single or double quotes, `true false null nil`, and
functions as `f(x)`, `x.f()` or `x | f`, which bind tighter than operators. False are `false`, `null`, 0, \"\" and empty lists and maps.

A condition may also be one of six: `result == true`, `result == false`, `result == nil`, `result != nil`,
`result == words`, `result != words`. `true` and `false` match their text as well, `nil` matches null, \"\" and \"nil\",
and the words need no quotes. The result of a gate is `approved` or `denied` to such a condition.
";
