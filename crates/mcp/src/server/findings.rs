//! Diagnostics of a definition in a tool result: as JSON, and as lines of text.

use serde_json::{Value, json};
use steprail_core::diagnostic::Diagnostic;
use steprail_core::source::Source;

/// Diagnostics as JSON: code, severity, position, message, step and hint.
pub(super) fn findings(diagnostics: &[Diagnostic], source: &Source) -> Vec<Value> {
    diagnostics.iter().map(|diagnostic| finding(diagnostic, Some(source))).collect()
}

/// Diagnostics without positions, for a stored definition: the reader does not have its text.
pub(super) fn findings_of_stored(diagnostics: &[Diagnostic]) -> Vec<Value> {
    diagnostics.iter().map(|diagnostic| finding(diagnostic, None)).collect()
}

fn finding(diagnostic: &Diagnostic, source: Option<&Source>) -> Value {
    let mut finding = json!({
        "code": diagnostic.code.id(),
        "severity": diagnostic.code.severity(),
        "message": diagnostic.message,
    });
    if let Some(source) = source {
        let position = source.position(diagnostic.span.start);
        (finding["line"], finding["column"]) = (position.line.into(), position.column.into());
    }
    if let Some(step) = &diagnostic.step {
        finding["step"] = step.as_str().into();
    }
    if let Some(hint) = &diagnostic.hint {
        finding["hint"] = hint.as_str().into();
    }
    finding
}

/// One line per finding: `error SR302, line 8:21, step `a`: the input `dat` is not declared (did you mean `date`?)`.
pub(super) fn lines(findings: &[Value]) -> String {
    findings.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn line(finding: &Value) -> String {
    let text = |key: &str| finding[key].as_str().unwrap_or_default();
    let position = match (finding["line"].as_u64(), finding["column"].as_u64()) {
        (Some(line), Some(column)) => format!(", line {line}:{column}"),
        _ => String::new(),
    };
    let step = finding["step"].as_str().map(|step| format!(", step `{step}`")).unwrap_or_default();
    let hint = finding["hint"].as_str().map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{} {}{position}{step}: {}{hint}", text("severity"), text("code"), text("message"))
}
