//! Problems of a definition in an answer: as facts, and the same as lines of text.

use serde_json::{Value, json};
use steprail_core::diagnostic::Diagnostic;
use steprail_core::source::Source;

/// Each problem with its code, place, message and hint.
pub(super) fn facts(problems: &[Diagnostic], source: &Source) -> Vec<Value> {
    problems.iter().map(|problem| fact(problem, Some(source))).collect()
}

/// The same without places: of a definition whose text the reader does not have.
pub(super) fn facts_of_stored(problems: &[Diagnostic]) -> Vec<Value> {
    problems.iter().map(|problem| fact(problem, None)).collect()
}

fn fact(problem: &Diagnostic, source: Option<&Source>) -> Value {
    let mut fact = json!({
        "code": problem.code.id(),
        "severity": problem.code.severity(),
        "message": problem.message,
    });
    if let Some(source) = source {
        let place = source.position(problem.span.start);
        (fact["line"], fact["column"]) = (place.line.into(), place.column.into());
    }
    if let Some(step) = &problem.step {
        fact["step"] = step.as_str().into();
    }
    if let Some(hint) = &problem.hint {
        fact["hint"] = hint.as_str().into();
    }
    fact
}

/// One line per problem: `error SR302, line 8:21, step `a`: the input `dat` is not declared (did you mean `date`?)`.
pub(super) fn lines(problems: &[Value]) -> String {
    problems.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn line(problem: &Value) -> String {
    let text = |key: &str| problem[key].as_str().unwrap_or_default();
    let place = match (problem["line"].as_u64(), problem["column"].as_u64()) {
        (Some(line), Some(column)) => format!(", line {line}:{column}"),
        _ => String::new(),
    };
    let step = problem["step"].as_str().map(|step| format!(", step `{step}`")).unwrap_or_default();
    let hint = problem["hint"].as_str().map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{} {}{place}{step}: {}{hint}", text("severity"), text("code"), text("message"))
}
