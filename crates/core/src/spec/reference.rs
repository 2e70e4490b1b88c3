//! Generates the reference page of the definition language from its JSON Schema.

use std::fmt::Write;

use serde_json::Value;

use super::fields::Record;
use super::graph::{GraphCase, Transition};
use super::head::{Head, LimitFields};
use super::policy::{Policy, Verify};
use super::publish::PublishFields;
use super::retry::RetryFields;
use super::schema::definition_schema;
use super::step::{Kind, KindName};
use crate::diagnostic::{Code, Severity};
use crate::expr::FUNCTION_GROUPS;
use crate::limits;
use crate::steps::{Case, Escalation};

/// The types that have a section, with their fields in the order of declaration.
const TYPES: &[(&str, &[&str])] = &[
    ("RetryPolicy", RetryFields::KEYS),
    ("FailureKind", &[]),
    ("Escalation", Escalation::KEYS),
    ("Verify", Verify::KEYS),
    ("Input", &[]),
    ("Limits", LimitFields::KEYS),
    ("PublishOptions", PublishFields::KEYS),
    ("Case", Case::KEYS),
    ("GraphCase", GraphCase::KEYS),
    ("Duration", &[]),
    ("Interval", &[]),
];

/// Returns the reference page as Markdown.
pub fn markdown() -> String {
    let schema = definition_schema();
    let mut page = Page { out: INTRODUCTION.to_owned(), types: &schema["$defs"] };
    page.heading(2, "Definition");
    page.fields(&schema["anyOf"][0], Head::KEYS);
    page.line(
        "\n`steps` is a list of steps (tree or DAG), or a map of name to step (graph; `flow` is an alias). A graph can have \
         `start`, the name of its first step. A definition can also consist of a list of steps only, or have the steps of a \
         graph at its top level.",
    );
    page.steps();
    page.policies();
    page.heading(2, "Transitions");
    page.line(
        "In the graph form, a step has one transition: `next`, `branch`, `parallel`, `join` or `done`. \
         `else` can be added to `branch`, and `join` to `parallel`.\n",
    );
    page.fields(&page.types["GraphStep"]["anyOf"][0], Transition::KEYS);
    page.line(
        "\nThe last step of a parallel branch needs no transition if the step with `parallel` has `join`.\n\n\
         The key of a step is its id. If the step has `name` or `id`, that is its id, and the key is an alias.",
    );
    page.heading(2, "Types");
    TYPES.iter().for_each(|(name, keys)| page.section(name, keys));
    page.line(LANGUAGE);
    page.heading(3, "Functions");
    page.functions();
    page.cost_limits();
    page.codes();
    page.out
}

struct Page<'s> {
    out: String,
    /// The named types of the schema.
    types: &'s Value,
}

impl Page<'_> {
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{text}");
    }

    fn heading(&mut self, level: usize, text: &str) {
        let _ = writeln!(self.out, "\n{} {text}\n", "#".repeat(level));
    }

    /// Adds the functions, a table per group.
    fn functions(&mut self) {
        self.line(FUNCTIONS);
        for group in FUNCTION_GROUPS {
            self.line(&format!("\n#### {}\n", group.title));
            self.line("| function | value | example | result |\n|---|---|---|---|");
            for function in group.functions {
                let (example, result) = function.example();
                let cells = [function.signature, example, result]
                    .map(|cell| format!("`{}`", cell.replace('|', "\\|")));
                self.line(&format!(
                    "| {} | {} | {} | {} |",
                    cells[0], function.description, cells[1], cells[2]
                ));
            }
        }
    }

    /// Adds a table of fields of an object.
    fn fields(&mut self, object: &Value, keys: &[&str]) {
        if !keys.is_empty() {
            self.line("| field | type | description |\n|---|---|---|");
            self.rows(object, keys);
        }
    }

    fn rows(&mut self, object: &Value, keys: &[&str]) {
        let required = object["required"].as_array();
        for key in keys {
            let field = &object["properties"][key];
            let marker = if required.is_some_and(|keys| keys.iter().any(|other| other == key)) {
                " (required)"
            } else {
                ""
            };
            let row = format!(
                "| `{key}`{marker} | {} | {} |",
                self.type_of(field),
                cell(text(&field["description"]))
            );
            self.line(&row);
        }
    }

    fn steps(&mut self) {
        let kinds = &self.types["Step"]["anyOf"];
        self.heading(2, "Steps");
        self.line("All steps have these fields:\n");
        self.fields(&kinds[0], &["id"]);
        let kinds_column: Vec<String> =
            KindName::ALL.iter().map(|kind| format!("`{}`", kind.name())).collect();
        let description = "Kind of the step. It can be omitted if other fields imply it.";
        self.line(&format!("| `kind` | {} | {description} |", kinds_column.join(", ")));
        self.rows(&kinds[0], &["description", "depends_on", "outputs"]);
        for (kind, schema) in KindName::ALL.iter().zip(kinds.as_array().into_iter().flatten()) {
            self.heading(3, &format!("`{}`", kind.name()));
            self.line(&format!("{}\n", text(&schema["description"])));
            self.fields(schema, Kind::keys(*kind));
        }
    }

    fn policies(&mut self) {
        self.heading(2, "Policies");
        self.line("Policies control how a step runs. They are fields of the step. The last column lists the kinds that accept each.\n");
        self.line("| field | type | description | kinds |\n|---|---|---|---|");
        for key in Policy::KEYS {
            let field = &self.types["Step"]["anyOf"][0]["properties"][key];
            let on = KindName::ALL
                .iter()
                .filter(|kind| Policy::keys_of(**kind).iter().any(|group| group.contains(key)));
            let on: Vec<String> = on.map(|kind| format!("`{}`", kind.name())).collect();
            let on = if on.len() == KindName::ALL.len() { "all".to_owned() } else { on.join(" ") };
            let row = format!(
                "| `{key}` | {} | {} | {on} |",
                self.type_of(field),
                cell(text(&field["description"]))
            );
            self.line(&row);
        }
    }

    fn section(&mut self, name: &str, keys: &[&str]) {
        let schema = &self.types[name];
        self.heading(3, name);
        let description = text(&schema["description"]);
        if !description.is_empty() {
            self.line(&format!("{description}\n"));
        }
        for choice in schema["oneOf"].as_array().into_iter().flatten() {
            self.line(&format!("- `{}`: {}", text(&choice["const"]), text(&choice["description"])));
        }
        for choice in schema["anyOf"].as_array().into_iter().flatten() {
            self.line(&format!("- {}: {}", self.type_of(choice), text(&choice["description"])));
        }
        self.fields(schema, keys);
    }

    fn codes(&mut self) {
        self.heading(2, "Diagnostics");
        self.line("`steprail check` reports these errors and warnings:\n");
        self.line("| code | name | severity | meaning |\n|---|---|---|---|");
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

    /// Returns a short description of the type of a schema, for a table cell.
    fn type_of(&self, schema: &Value) -> String {
        if let Some(name) = schema["$ref"].as_str() {
            return self.named_type(name.rsplit('/').next().unwrap_or_default());
        }
        if let Some(values) = schema["enum"].as_array().or_else(|| schema["oneOf"].as_array()) {
            let quoted =
                |value: &Value| format!("`{}`", value.as_str().unwrap_or_else(|| text(&value["const"])));
            return values.iter().map(quoted).collect::<Vec<_>>().join(", ");
        }
        if let Some(options) = schema["anyOf"].as_array() {
            let options: Vec<String> =
                options.iter().map(|option| self.type_of(option)).filter(|o| o != "null").collect();
            return options.join(" or ");
        }
        let types: Vec<&str> = match &schema["type"] {
            Value::Array(types) => types.iter().map(text).filter(|name| *name != "null").collect(),
            name => vec![text(name)],
        };
        match types.as_slice() {
            ["string"] => "text".into(),
            ["array"] => format!("list of {}", self.type_of(&schema["items"])),
            ["object"] if schema["properties"].is_object() => {
                let keys = schema["properties"].as_object().into_iter().flat_map(|map| map.keys());
                format!("`{{{}}}`", keys.map(String::as_str).collect::<Vec<_>>().join(", "))
            }
            ["object"] if schema["additionalProperties"].is_object() => {
                format!("map of name to {}", self.type_of(&schema["additionalProperties"]))
            }
            ["object"] => "map".into(),
            [""] => "any".into(),
            names => names.join(" or "),
        }
    }

    fn named_type(&self, name: &str) -> String {
        match name {
            "Steps" => "list of steps".into(),
            "Value" => "any".into(),
            "ToolName" => "name".into(),
            name if TYPES.iter().any(|(other, _)| *other == name) => {
                format!("[{name}](#{})", name.to_lowercase())
            }
            name => self.type_of(&self.types[name]),
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Escapes a text for a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

impl Page<'_> {
    fn cost_limits(&mut self) {
        self.heading(3, "Cost limits");
        self.line(
            "Expressions, templates, JSONPath queries, regular expressions and the schemas of inputs and tools are evaluated \
             within a cost budget. The cost is the work that an evaluation does: items visited, bytes compared, searched or \
             built, bytes of a text times positions of a regular expression. It does not depend on the machine. A million \
             units take about 10 ms.\n",
        );
        self.line("| limit | bound | beyond it |\n|---|---|---|");
        let rows = [
            (
                "one evaluation: a condition, a template, the arguments of a step",
                units(limits::EVALUATION_COST),
                FAILS,
            ),
            (
                "all evaluations of one step that starts or ends, such as the cases of a `branch`",
                units(limits::DECISION_COST),
                FAILS,
            ),
            (
                "all evaluations that follow from one input of a run (its start, a result, a timer) without waiting",
                units(limits::CHAIN_COST),
                FAILS,
            ),
            ("stored values that one evaluation reads", megabytes(limits::EVALUATION_BYTES), FAILS),
            ("text that an expression builds", megabytes(limits::RESULT_BYTES), FAILS),
            (
                "the check of the inputs of a run, or of the arguments of a call, against their schemas",
                format!(
                    "{}, and {} units for each value in them",
                    units(limits::EVALUATION_COST),
                    limits::CHECK_COST_PER_NODE
                ),
                "the run does not start, or the call fails",
            ),
            (
                "a regular expression",
                format!(
                    "{} bytes, {} positions and {} ranges of characters with repetitions written out",
                    limits::REGEX_BYTES,
                    limits::REGEX_POSITIONS,
                    limits::REGEX_RANGES
                ),
                REJECTED,
            ),
            (
                "the regular expressions of a definition, and those of its inputs",
                format!("{}, with {} ranges of characters in total", limits::REGEXES, limits::REGEXES_RANGES),
                REJECTED,
            ),
        ];
        for (what, bound, beyond) in rows {
            self.line(&format!("| {what} | {bound} | {beyond} |"));
        }
        self.line(
            "\nA step that exceeds a limit fails with the kind `limit`, which is not retried unless `retry_on` names it. Other \
             runs are not affected. Leave expensive work to a tool. The functions `match` and `search` of JSONPath are not \
             available; use `matches`. In schemas, `\\d` and `\\w` match ASCII characters only, as JSON Schema defines.",
        );
    }
}

const FUNCTIONS: &str = "A function is called as `f(x, y)`, `x.f(y)` or `x | f(y)`. Parameters in brackets are optional. Positions count from 0, \
     and negative ones from the end. Names are those of CEL, where CEL has the function. Functions return the same value for the \
     same arguments; `now` and `uuid` are available in `let` steps only, which record their values.";

const FAILS: &str = "the step fails";
const REJECTED: &str = "the definition is rejected";

fn units(units: u64) -> String {
    format!("{units} units")
}

fn megabytes(bytes: usize) -> String {
    format!("{} MB", bytes / (1024 * 1024))
}

const INTRODUCTION: &str = "\
# Definition reference

<!-- Generated by `steprail schema --format markdown`; `just gen` updates it. -->

A definition is a YAML or JSON document. For completion and validation in an editor, use the
[JSON Schema](definition.schema.json): write `# yaml-language-server: $schema=<path>/definition.schema.json`
in the first line of a YAML file. `steprail check FILE` reports all problems of a definition.
";

const LANGUAGE: &str = "
## References

Strings in `args`, `output`, `prompt` and similar fields can contain references:

| reference | value |
|---|---|
| `{{inputs.date}}`, `{{input.date}}`, `{{date}}` | an input |
| `{{steps.list.output.files[0]}}`, `{{list.files[0]}}` | a part of the output of step `list` |
| `{{steps.list.file_refs[0].uri}}` | a file in the result of the step |
| `{{steps.list.status}}`, `{{steps.list.error}}` | the status of the step, and its failure |
| `{{item}}`, or the name in `as` | the current item of a `foreach` |
| `{{result}}` | the output of the previous step of a list; in a `branch` of the graph form, of the step itself |
| `{{error.message}}` | the failure of the run, in `on_failure` |
| `{{env.REGION}}` | an environment variable of the daemon that the setting `definitions.env` lists |
| `${secret:NAME}` | a secret, in `args` only: resolved when the call is sent, and never recorded |
| `$results` | a declared output of an earlier step |
| `$user_name`, `$user_email`, `$user_id`, `$run_id` | the user who started the run, and the id of the run |
| `$.list.files[?@.size > 0].uri` | a JSONPath query (RFC 9535) as the whole string; `{{list.files[*].uri}}` is a JSONPath query too |

If a string consists of one reference, the result keeps the type of the value. Otherwise the value is converted to
text. Write `{{{{` for two literal braces and `$$` for a literal dollar sign.

A reference to a missing value is an error. To allow missing values, use `{{inputs.x | default(\"none\")}}`.
A JSONPath query of names and indexes returns the value. With `[*]`, a filter, a slice or `..`, it always returns a list.
Names can contain hyphens (`steps.my-step.output`), so a subtraction needs spaces: `a - 1`.

### Expressions

Conditions (`if`) and the text between `{{` and `}}` are expressions. They consist of references, literals (numbers, text
in single or double quotes, lists such as `[1, 2]`, maps such as `{a: 1, \"b c\": 2}`, `true`, `false`, `null` or its alias
`nil`), the operators `== != < <= > >= in`, `and or not` (also `&& || !`), `+ - * / %` and `a ? b : c`, slices of lists and
texts such as `x[0:10]` and `x[-3:]`, and functions. `7 / 2` is 3.5; `intDiv(7, 2)` is 3. A function is called as `f(x)`,
`x.f()` or `x | f`; these bind tighter than operators. `false`, `null`, 0, \"\" and empty lists and maps count as
false, all other values as true.

Conditions of these six forms are special: `result == true`, `result == false`, `result == nil`, `result != nil`,
`result == some text`, `result != some text`. The text needs no quotes. `true` and `false` also match the texts \"true\" and
\"false\", and `nil` matches null, \"\" and \"nil\". The result of a gate matches `approved` or `denied`.
";
