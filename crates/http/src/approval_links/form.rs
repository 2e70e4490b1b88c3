//! Forms of approvals on a page: fields of JSON Schema that HTML can show. Other forms are answered in the terminal.

use serde_json::{Map, Value};

use super::html::{escaped, line};
use crate::limits::FORM_FIELDS;

/// Prefix of the names of fields, so that they cannot be those of the page.
const PREFIX: &str = "field:";

/// A form that a page can show.
pub(super) struct Form(Vec<Field>);

struct Field {
    name: String,
    title: String,
    description: String,
    kind: FieldKind,
    required: bool,
    default: String,
}

enum FieldKind {
    Text,
    Number,
    Integer,
    Boolean,
    Choice(Vec<String>),
}

impl Form {
    /// Reads a schema. Returns `None` if a page cannot show it.
    pub(super) fn read(schema: &Value) -> Option<Self> {
        let properties = schema.get("properties").and_then(Value::as_object)?;
        if properties.len() > FORM_FIELDS {
            return None;
        }
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let fields = properties.iter().map(|(name, field)| {
            let text = |key: &str| field[key].as_str().unwrap_or_default().to_owned();
            let title = Some(text("title")).filter(|title| !title.is_empty()).unwrap_or_else(|| name.clone());
            let default = match &field["default"] {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let required = required.contains(&name.as_str());
            let (name, description) = (name.clone(), text("description"));
            Some(Field { name, title, description, kind: FieldKind::read(field)?, required, default })
        });
        fields.collect::<Option<Vec<Field>>>().map(Self)
    }

    /// The fields in HTML.
    pub(super) fn render(&self) -> String {
        self.0.iter().map(Field::render).collect()
    }

    /// The answer, from the fields that were sent. The engine checks it against the schema.
    pub(super) fn answer(&self, sent: &[(String, String)]) -> Result<Value, String> {
        let mut answer = Map::new();
        for field in &self.0 {
            let name = format!("{PREFIX}{}", field.name);
            let text = sent.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value);
            // A field that was left empty has no value.
            if text.is_empty() {
                continue;
            }
            answer.insert(field.name.clone(), field.kind.value(text).ok_or_else(|| field.problem())?);
        }
        Ok(Value::Object(answer))
    }
}

impl FieldKind {
    fn read(field: &Value) -> Option<Self> {
        if let Some(choices) = field.get("enum") {
            let choices = choices.as_array()?.iter().map(|choice| choice.as_str().map(str::to_owned));
            return choices.collect::<Option<Vec<String>>>().map(Self::Choice);
        }
        match field["type"].as_str()? {
            "string" => Some(Self::Text),
            "number" => Some(Self::Number),
            "integer" => Some(Self::Integer),
            "boolean" => Some(Self::Boolean),
            _ => None,
        }
    }

    fn value(&self, text: &str) -> Option<Value> {
        match self {
            Self::Text | Self::Choice(_) => Some(Value::String(text.replace("\r\n", "\n"))),
            Self::Number => text.trim().parse().ok().filter(Value::is_number),
            Self::Integer => text.trim().parse::<i64>().ok().map(Value::from),
            Self::Boolean => text.parse::<bool>().ok().map(Value::Bool),
        }
    }
}

impl Field {
    fn problem(&self) -> String {
        let expected = match self.kind {
            FieldKind::Integer => "a whole number",
            FieldKind::Number => "a number",
            _ => "a valid value",
        };
        format!("`{}` must be {expected}", self.title)
    }

    fn render(&self) -> String {
        let (name, default) = (escaped(&format!("{PREFIX}{}", self.name)), escaped(&self.default));
        let required = if self.required { " required" } else { "" };
        let control = match &self.kind {
            FieldKind::Text => {
                format!("<textarea name=\"{name}\" rows=\"2\"{required}>\n{default}</textarea>")
            }
            FieldKind::Number | FieldKind::Integer => {
                let step = if matches!(self.kind, FieldKind::Integer) { "1" } else { "any" };
                format!(
                    "<input type=\"number\" step=\"{step}\" name=\"{name}\" value=\"{default}\"{required}>"
                )
            }
            FieldKind::Boolean => self.select(&name, required, &["true".to_owned(), "false".to_owned()]),
            FieldKind::Choice(choices) => self.select(&name, required, choices),
        };
        let description = match &*self.description {
            "" => String::new(),
            text => format!("<span class=\"quiet\">{}</span>", line(text)),
        };
        format!("<label><span>{}</span>{control}{description}</label>\n", line(&self.title))
    }

    fn select(&self, name: &str, required: &str, choices: &[String]) -> String {
        let option = |choice: &String| {
            let selected = if *choice == self.default { " selected" } else { "" };
            let shown = match (&self.kind, choice.as_str()) {
                (FieldKind::Boolean, "true") => "yes".to_owned(),
                (FieldKind::Boolean, _) => "no".to_owned(),
                (_, choice) => line(choice),
            };
            format!("<option value=\"{}\"{selected}>{shown}</option>", escaped(choice))
        };
        let options: String = choices.iter().map(option).collect();
        format!("<select name=\"{name}\"{required}><option value=\"\"></option>{options}</select>")
    }
}
