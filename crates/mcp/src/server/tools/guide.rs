//! `workflow_guide`: the definition language, as a summary and by sections.

use rmcp::model::{CallToolResult, ContentBlock};
use schemars::JsonSchema;
use serde::Deserialize;
use steprail_core::diagnostic::{nearest, quoted};
use steprail_core::expr::FUNCTION_GROUPS;
use steprail_core::spec::reference;

use super::super::error::{ToolError, ToolResult};
use super::super::request::ToolRequest;
use crate::check::shortened;
use crate::limits::GUIDE_BYTES;

const GUIDE: &str = include_str!("guide.md");

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// For example foreach, approve, policies, expressions.
    section: Option<String>,
}

/// Returns text without structured content.
#[expect(clippy::unused_async, reason = "handlers of tools are async")]
pub(super) async fn run(_: &ToolRequest, args: Args) -> ToolResult {
    let text = match &args.section {
        None => guide(),
        Some(name) => section(&reference::markdown(), name)?,
    };
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
}

/// The summary.
pub(in super::super) fn guide() -> String {
    let functions = FUNCTION_GROUPS.iter().map(|group| {
        let signatures: Vec<String> =
            group.functions.iter().map(|function| format!("`{}`", function.signature)).collect();
        format!("- {}: {}", group.title, signatures.join(" "))
    });
    let page = reference::markdown();
    let names: Vec<String> = headings(&page).map(|heading| heading.name).collect();
    GUIDE
        .replace("{functions}", &functions.collect::<Vec<_>>().join("\n"))
        .replace("{sections}", &names.join(", "))
}

/// A heading of the reference page: `## Steps`, ``### `foreach` ``.
struct Heading {
    name: String,
    level: usize,
    at: usize,
}

fn headings(page: &str) -> impl Iterator<Item = Heading> {
    let starts = page.match_indices("\n#").map(|(at, _)| at + 1);
    starts.filter_map(|at| {
        let line = page[at..].lines().next()?;
        let level = line.len() - line.trim_start_matches('#').len();
        let name = line.trim_start_matches('#').trim().trim_matches('`').to_lowercase();
        (2..=3).contains(&level).then_some(Heading { name, level, at })
    })
}

/// A section of the reference page, with its subsections.
fn section(page: &str, name: &str) -> Result<String, ToolError> {
    let wanted = name.trim().to_lowercase();
    let all: Vec<Heading> = headings(page).collect();
    let exact = all.iter().position(|heading| heading.name == wanted);
    let Some(at) = exact.or_else(|| all.iter().position(|heading| heading.name.contains(&wanted))) else {
        let names: Vec<&str> = all.iter().map(|heading| heading.name.as_str()).collect();
        let near = nearest(&wanted, names.iter().copied());
        let near = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
        let error = ToolError::new("not_found", format!("unknown section `{name}`"));
        return Err(error.hint(format!("{near}sections: {}", quoted(&names))));
    };
    let end =
        all[at + 1..].iter().find(|later| later.level <= all[at].level).map_or(page.len(), |later| later.at);
    let text = page[all[at].at..end].trim_end();
    if text.len() <= GUIDE_BYTES {
        return Ok(text.to_owned());
    }
    let below: Vec<&str> = all[at + 1..]
        .iter()
        .take_while(|later| later.level > all[at].level)
        .map(|heading| heading.name.as_str())
        .collect();
    let cut = shortened(text, GUIDE_BYTES);
    Ok(format!("{cut}\n\nTruncated after {GUIDE_BYTES} bytes. Subsections: {}", quoted(&below)))
}

#[cfg(test)]
mod tests {
    use steprail_core::expr::{FUNCTION_GROUPS, Function};
    use steprail_core::load;
    use steprail_core::source::Source;
    use steprail_core::spec::step::KindName;

    use super::{guide, section};

    #[test]
    fn guide_is_short_and_its_examples_are_valid() {
        let guide = guide();
        assert!(guide.len() < 8_000, "{} bytes", guide.len());
        let examples: Vec<&str> =
            guide.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert_eq!(examples.len(), 3);
        for example in examples {
            let loaded = load(&Source::new("example", example));
            assert!(
                loaded.plan.is_some() && loaded.diagnostics.is_empty(),
                "{example}\n{:?}",
                loaded.diagnostics
            );
        }
    }

    #[test]
    fn guide_lists_exactly_the_existing_functions() {
        let guide = guide();
        let list = guide.split("## Functions").nth(1).expect("a list");
        let lines = list.lines().filter(|line| line.starts_with("- ")).take(FUNCTION_GROUPS.len());
        let named: Vec<&str> = lines.flat_map(|line| line.split('`').skip(1).step_by(2)).collect();
        let expected: Vec<&str> = Function::all().map(|function| function.signature).collect();
        assert_eq!(named, expected);
    }

    /// `tool` is implied by its field; `tool_remote` and `pass` are left to the reference page.
    #[test]
    fn guide_describes_every_step_kind() {
        let guide = guide();
        for kind in KindName::ALL.iter().map(|kind| kind.name()) {
            let is_described = guide.contains(&format!("| `kind: {kind}`"));
            assert_eq!(is_described, !["tool", "tool_remote", "pass"].contains(&kind), "{kind}");
        }
    }

    #[test]
    fn sections_are_found_by_name() {
        let page = steprail_core::spec::reference::markdown();
        assert!(section(&page, "foreach").expect("a section").contains("on_item_fail"));
        assert!(section(&page, "Policies").expect("a section").contains("idempotency_key"));
        let long = format!("\n## all\n{}\n### one\n{}\n", "a".repeat(5_000), "b".repeat(5_000));
        assert!(section(&long, "all").expect("a section").ends_with("Subsections: `one`"));
        assert!(section(&page, "forech").is_err());
        let guide = guide();
        let names = guide.split("Sections: ").nth(1).expect("a list").lines().next().expect("a line");
        for name in names.split(", ") {
            assert!(section(&page, name).is_ok_and(|text| text.len() < 8_000), "{name}");
        }
    }
}
