//! Parsers for argument values: `NAME=VALUE`, JSON and durations.

use std::time::Duration;

use serde_json::{Map, Value};
use steprail_core::spec::value::DurationSpec;

/// Parses `NAME=VALUE`.
pub(crate) fn name_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Parses `EVENT=JSON`, or `EVENT` with a null payload.
pub(crate) fn signal_payload(text: &str) -> Result<(String, Value), String> {
    let (event, payload) = text.split_once('=').unwrap_or((text, "null"));
    Ok((event.to_owned(), json(payload)?))
}

/// Parses `PATH=JSON`.
pub(crate) fn path_result(text: &str) -> Result<(String, Value), String> {
    let (path, result) = text.split_once('=').ok_or("write PATH=JSON")?;
    Ok((path.to_owned(), json(result)?))
}

/// Parses any JSON value.
pub(crate) fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))
}

/// Parses a JSON map.
pub(crate) fn json_map(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON map: {error}"))
}

/// Parses a duration such as `30d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    DurationSpec::parse(text).map(|duration| Duration::from_millis(duration.millis))
}
