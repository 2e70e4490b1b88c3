//! `workflow_list_definitions`: lists stored workflows.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::{Definition, NameCursor};

use super::super::error::ToolResult;
use super::super::output::ToolOutput;
use super::super::request::ToolRequest;
use super::cursor;
use crate::limits::PAGE;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// next_cursor of the previous page.
    cursor: Option<String>,
    /// 50 by default, up to 200.
    limit: Option<usize>,
}

pub(super) async fn run(request: &ToolRequest, args: Args) -> ToolResult {
    let after: Option<NameCursor> = cursor(args.cursor.as_deref())?;
    let all = request.user.definitions().await?;
    let is_after = |name: &str| after.as_ref().is_none_or(|after| after.is_before(name));
    let limit = args.limit.unwrap_or(PAGE).clamp(1, 4 * PAGE);
    let mut rest = all.iter().filter(|definition| is_after(&definition.name));
    let page: Vec<&Definition> = rest.by_ref().take(limit).collect();
    let mut fields = json!({
        "definitions": page.iter().map(|definition| brief(definition)).collect::<Vec<_>>(),
        "total": all.len(),
    });
    if let Some(last) = page.last().filter(|_| rest.next().is_some()) {
        fields["next_cursor"] = NameCursor::after(&last.name).to_string().into();
    }
    let message = match all.len() {
        0 => "No workflow is stored yet; workflow_define stores one.".to_owned(),
        total => format!("{} of {total} workflows.", page.len()),
    };
    Ok(ToolOutput::new(fields, message).into())
}

/// A definition without its steps, as lists show it.
pub(super) fn brief(definition: &Definition) -> Value {
    let spec: Value = serde_json::from_str(&definition.spec_json).unwrap_or_default();
    let inputs = spec["inputs"].as_object().map(|inputs| inputs.keys().cloned().collect::<Vec<_>>());
    json!({
        "name": definition.name,
        "version": definition.version,
        "description": spec["description"],
        "inputs": inputs.unwrap_or_default(),
        "published": !matches!(spec["publish"], Value::Null | Value::Bool(false)),
    })
}
