//! `workflow_guide`: the definition language, in short and by sections.

use rmcp::model::{CallToolResult, ContentBlock};
use schemars::JsonSchema;
use serde::Deserialize;
use steprail_core::diagnostic::{nearest, quoted};
use steprail_core::expr::Function;
use steprail_core::spec::reference;

use super::super::answer::{Answer, Asked, Refusal};
use super::{Entry, Hints, schema};
use crate::check::shortened;
use crate::limits::GUIDE_BYTES;

pub(super) const TOOL: Entry = Entry {
    name: "workflow_guide",
    dotted: None,
    title: "How to write definitions",
    description: "The definition language with three complete examples and all functions. Read it before you write a \
                  definition. section gives more about one part.",
    hints: Hints::LOOKS,
    for_those_who: super::LOOK,
    schema: schema::of::<Args>,
    run: |_, asked| Box::pin(std::future::ready(run(asked))),
};

const GUIDE: &str = include_str!("guide.md");

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// Such as foreach, approve, policies, expressions.
    section: Option<String>,
}

/// The answer is text alone: there is nothing in it for programs.
fn run(asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let text = match &args.section {
        None => guide(),
        Some(name) => section(&reference::markdown(), name)?,
    };
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
}

/// The whole in short.
pub(in super::super) fn guide() -> String {
    let functions = Function::DOCS.iter().map(|(_, docs)| format!("- {}", docs.trim()));
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

/// A section of the reference page, with those below it.
fn section(page: &str, name: &str) -> Result<String, Refusal> {
    let wanted = name.trim().to_lowercase();
    let all: Vec<Heading> = headings(page).collect();
    let exact = all.iter().position(|heading| heading.name == wanted);
    let Some(at) = exact.or_else(|| all.iter().position(|heading| heading.name.contains(&wanted))) else {
        let names: Vec<&str> = all.iter().map(|heading| heading.name.as_str()).collect();
        let near = nearest(&wanted, names.iter().copied());
        let near = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
        let refusal = Refusal::new("not_found", format!("there is no section `{name}`"));
        return Err(refusal.hint(format!("{near}the sections are {}", quoted(&names))));
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
    Ok(format!("{cut}\n\nCut after {GUIDE_BYTES} bytes. Sections of their own: {}", quoted(&below)))
}

#[cfg(test)]
mod tests {
    use steprail_core::expr::Function;
    use steprail_core::load;
    use steprail_core::source::Source;

    use super::{guide, section};

    #[test]
    fn the_guide_is_short_and_its_examples_are_sound() {
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
    fn every_function_is_in_the_guide_and_every_one_there_exists() {
        let guide = guide();
        let list = guide.split("## Functions").nth(1).expect("a list");
        let named = list.lines().filter_map(|line| line.strip_prefix("- `")?.split('(').next());
        let named: Vec<&str> = named.collect();
        assert_eq!(named, Function::WORDS);
        assert!(named.iter().all(|name| Function::from_word(name).is_some()));
    }

    #[test]
    fn sections_are_found_by_name() {
        let page = steprail_core::spec::reference::markdown();
        assert!(section(&page, "foreach").expect("a section").contains("on_item_fail"));
        assert!(section(&page, "Policies").expect("a section").contains("idempotency_key"));
        let long = format!("\n## all\n{}\n### one\n{}\n", "a".repeat(5_000), "b".repeat(5_000));
        assert!(section(&long, "all").expect("a section").ends_with("Sections of their own: `one`"));
        assert!(section(&page, "forech").is_err());
        let guide = guide();
        let names = guide.split("Sections: ").nth(1).expect("a list").lines().next().expect("a line");
        for name in names.split(", ") {
            assert!(section(&page, name).is_ok_and(|text| text.len() < 8_000), "{name}");
        }
    }
}
