//! Templates of titles and texts, in the expression language of definitions.
//!
//! A template reads the fields of a message: `{{definition}} waits for {{step}}`. Untrusted text in them is made safe to show.
//! Problems of a template are reported when the configuration is read. If a title or text fails for a message, the default
//! is sent.

use serde_json::{Map, Value, json};
use steprail_core::budget::Budget;
use steprail_core::diagnostic::{Code, suggest};
use steprail_core::display;
use steprail_core::expr::{Context, Problem, Ref, RefPath, Resolve, Root, Template, ValueTemplate};

use crate::config::ConfigError;
use crate::limits;
use crate::message::{Call, Definition, Kind, Message, Urgency, cut};
use crate::render::{TextForm, time};

/// The names that a template can read.
const FIELDS: &[&str] = &[
    "address",
    "id",
    "kind",
    "urgency",
    "title",
    "text",
    "run",
    "definition",
    "version",
    "labels",
    "starter",
    "by_agent",
    "step",
    "calls",
    "more_calls",
    "prompt",
    "detail",
    "failure",
    "decider",
    "comment",
    "deadline",
    "link",
    "digest",
    "entries",
    "count",
];

/// The templates of a channel.
#[derive(Debug, Clone, Default)]
pub struct Templates {
    title: Option<Template>,
    body: Option<Template>,
}

impl Templates {
    /// Compiles the templates, and evaluates them for example messages.
    pub fn compile(title: Option<&str>, body: Option<&str>) -> Result<Self, ConfigError> {
        let compile = |name: &str, text: Option<&str>| text.map(|text| compile(name, text)).transpose();
        Ok(Self { title: compile("title", title)?, body: compile("body", body)? })
    }

    /// The title of a message, on one line.
    pub fn title(&self, message: &Message) -> String {
        let Some(text) = self.title.as_ref().and_then(|title| evaluate(title, message).ok()) else {
            return message.title();
        };
        let mut title = display::line(&text);
        cut(&mut title, limits::TITLE_CHARS);
        title
    }

    /// The text of a message.
    pub fn text(&self, message: &Message, form: TextForm) -> String {
        let Some(text) = self.body.as_ref().and_then(|body| evaluate(body, message).ok()) else {
            return message.text(form);
        };
        let mut text = text;
        cut(&mut text, form.chars);
        text
    }
}

/// The arguments of a channel that calls a tool.
#[derive(Debug, Clone)]
pub struct ArgsTemplate(ValueTemplate);

impl ArgsTemplate {
    /// Compiles the texts of the arguments as templates, and evaluates them for example messages.
    pub fn compile(args: &Map<String, Value>) -> Result<Self, ConfigError> {
        let mut problems = Vec::new();
        let template = value_template(&Value::Object(args.clone()), &mut problems);
        report("args", problems)?;
        let template = Self(template);
        try_examples("args", |example| template.eval(example, "").map(drop))?;
        Ok(template)
    }

    /// The arguments for example messages.
    pub fn examples(&self) -> Vec<Value> {
        examples().iter().filter_map(|example| self.eval(example, "").ok()).collect()
    }

    /// The arguments for a message to an address.
    pub fn eval(&self, message: &Message, address: &str) -> Result<Value, String> {
        let mut fields = fields(message);
        if let Value::Object(fields) = &mut fields {
            fields.insert("address".to_owned(), Value::from(address));
        }
        self.0.eval(&Fields(fields), &mut Budget::evaluation()).map_err(|error| error.to_string())
    }
}

/// The recursion is bounded: configurations are nested less deeply than the parser of the file permits.
fn value_template(value: &Value, problems: &mut Vec<Problem>) -> ValueTemplate {
    match value {
        Value::String(text) => ValueTemplate::Text(Template::parse(text, &mut Names, problems)),
        Value::Array(items) => {
            ValueTemplate::List(items.iter().map(|item| value_template(item, problems)).collect())
        }
        Value::Object(map) => {
            let entry =
                |(key, value): (&String, &Value)| (key.as_str().into(), value_template(value, problems));
            ValueTemplate::Map(map.iter().map(entry).collect())
        }
        other => ValueTemplate::Literal(other.clone()),
    }
}

fn compile(name: &str, text: &str) -> Result<Template, ConfigError> {
    let mut problems = Vec::new();
    let template = Template::parse(text, &mut Names, &mut problems);
    report(name, problems)?;
    try_examples(name, |example| evaluate(&template, example).map(drop))?;
    Ok(template)
}

fn report(name: &str, problems: Vec<Problem>) -> Result<(), ConfigError> {
    let Some(problem) = problems.into_iter().next() else { return Ok(()) };
    let message = format!("template `{name}`: {} (at byte {})", problem.message, problem.at.start);
    Err(ConfigError { hint: problem.hint, ..ConfigError::new(message) })
}

fn try_examples(name: &str, try_one: impl Fn(&Message) -> Result<(), String>) -> Result<(), ConfigError> {
    for example in examples() {
        if let Err(reason) = try_one(&example) {
            let kind: &str = example.kind.into();
            let message = format!("template `{name}` fails for a message of kind `{kind}`: {reason}");
            return Err(ConfigError::new(message));
        }
    }
    Ok(())
}

fn evaluate(template: &Template, message: &Message) -> Result<String, String> {
    let fields = Fields(fields(message));
    let value = template.eval(&fields, &mut Budget::evaluation()).map_err(|error| error.to_string())?;
    Ok(match &*value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    })
}

/// The fields of a message, safe to show. Each name always exists, so that a template does not fail for some kinds of
/// messages.
fn fields(message: &Message) -> Value {
    let line = |text: &Option<String>| display::line(text.as_deref().unwrap_or_default());
    let text = |text: &Option<String>| display::text(text.as_deref().unwrap_or_default());
    let kind: &str = message.kind.into();
    let urgency: &str = message.urgency.into();
    let form = TextForm { chars: limits::BODY_CHARS, link: true };
    let call = |call: &Call| json!({ "tool": display::line(&call.tool), "args": display::text(&call.args) });
    let label = |(name, value): (&String, &String)| (display::line(name), json!(display::line(value)));
    let definition = message.definition.as_ref();
    json!({
        "address": "",
        "id": display::line(&message.id),
        "kind": kind,
        "urgency": urgency,
        "title": message.title(),
        "text": message.text(form),
        "run": line(&message.run),
        "definition": definition.map(|definition| display::line(&definition.name)).unwrap_or_default(),
        "version": definition.map(|definition| definition.version),
        "labels": message.labels.iter().map(label).collect::<Map<String, Value>>(),
        "starter": line(&message.starter),
        "by_agent": message.by_agent,
        "step": line(&message.step),
        "calls": message.calls.iter().map(call).collect::<Vec<_>>(),
        "more_calls": message.more_calls,
        "prompt": text(&message.prompt),
        "detail": text(&message.detail),
        "failure": line(&message.failure),
        "decider": line(&message.decider),
        "comment": text(&message.comment),
        "deadline": message.deadline.and_then(time).unwrap_or_default(),
        "link": message.usable_link().unwrap_or_default(),
        "digest": line(&message.digest),
        "entries": message.entries.iter().map(|entry| display::line(entry)).collect::<Vec<_>>(),
        "count": message.count,
    })
}

/// A message with few fields, and one with all.
fn examples() -> [Message; 2] {
    let some = |text: &str| Some(text.to_owned());
    let full = Message {
        id: "example".to_owned(),
        kind: Kind::ApprovalRequested,
        urgency: Urgency::High,
        run: some("run_example"),
        definition: Some(Definition { name: "example".to_owned(), version: 1 }),
        labels: [("team".to_owned(), "ops".to_owned())].into(),
        starter: some("ann"),
        by_agent: true,
        step: some("ask"),
        calls: vec![Call { tool: "server__tool".to_owned(), args: "{}".to_owned() }],
        more_calls: 1,
        prompt: some("Continue?"),
        detail: some("detail"),
        failure: some("timeout"),
        decider: some("bob"),
        comment: some("comment"),
        deadline: Some(0),
        link: some("https://example.org/"),
        digest: some("0"),
        entries: vec!["entry".to_owned()],
        count: 1,
    };
    [Message::default(), full]
}

struct Names;

impl Resolve for Names {
    fn resolve(&mut self, path: RefPath) -> Result<Ref, Problem> {
        let first = path.name(0).unwrap_or_default();
        if FIELDS.contains(&first) {
            return Ok(path.below(Root::Inputs, 0));
        }
        let message = format!("a message has no `{first}`");
        let mut problem = Problem::new(Code::UnknownTemplateVar, path.at.clone(), message);
        problem.hint = suggest(first, FIELDS);
        Err(problem)
    }
}

/// The message is the map at the root of all references.
struct Fields(Value);

impl Context for Fields {
    fn value(&self, root: &Root) -> Option<&Value> {
        matches!(root, Root::Inputs).then_some(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(body: &str) -> String {
        Templates::compile(None, Some(body)).unwrap_err().to_string()
    }

    #[test]
    fn every_field_is_known_and_no_other() {
        let Value::Object(map) = fields(&Message::default()) else { panic!() };
        let mut names: Vec<&str> = map.keys().map(String::as_str).collect();
        let mut known = FIELDS.to_vec();
        names.sort_unstable();
        known.sort_unstable();
        assert_eq!(names, known);
    }

    #[test]
    fn a_template_replaces_the_default_text() {
        let templates = Templates::compile(
            Some("{{upper(kind)}} {{definition}}"),
            Some("{{starter}} asks: {{prompt}}{{size(calls) > 0 ? \" for \" + calls[0].tool : \"\"}}"),
        )
        .unwrap();
        let [_, full] = examples();
        let form = TextForm { chars: 200, link: true };
        assert_eq!(templates.title(&full), "APPROVAL_REQUESTED example");
        assert_eq!(templates.text(&full, form), "ann asks: Continue? for server__tool");
        let hostile = Message { prompt: Some("safe\u{202e}evil\u{7}".to_owned()), ..full };
        assert_eq!(templates.text(&hostile, form), "ann asks: safe⟨U+202E⟩evil⟨U+0007⟩ for server__tool");
    }

    #[test]
    fn arguments_of_a_tool_are_templates() {
        let args = json!({
            "channel": "C1",
            "text": "{{title}}: {{prompt}}",
            "count": "{{count}}",
            "nested": [{ "tool": "{{size(calls) > 0 ? calls[0].tool : nil}}" }, true],
        });
        let Value::Object(args) = args else { panic!() };
        let template = ArgsTemplate::compile(&args).unwrap();
        let [empty, full] = examples();
        let hostile = Message { prompt: Some("ok\u{202e}".to_owned()), ..full };
        assert_eq!(
            template.eval(&hostile, "").unwrap(),
            json!({
                "channel": "C1",
                "text": "1 notification: example › ask: ok⟨U+202E⟩",
                "count": 1,
                "nested": [{ "tool": "server__tool" }, true],
            })
        );
        assert_eq!(template.eval(&empty, "").unwrap()["nested"], json!([{ "tool": null }, true]));
        let Value::Object(wrong) = json!({ "a": ["{{nothing}}"] }) else { panic!() };
        assert!(ArgsTemplate::compile(&wrong).unwrap_err().message.contains("no `nothing`"));
    }

    #[test]
    fn problems_are_reported_at_configuration_time() {
        let templates =
            ["{{definitions}}", "{{definition", "{{calls[0].tool}}", "{{version + 1}}", "{{a.b}}"];
        let problems: Vec<String> = templates.iter().map(|template| problem(template)).collect();
        insta::assert_snapshot!(problems.join("\n"));
    }
}
