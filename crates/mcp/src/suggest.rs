//! Names of tools that somebody may have meant by one that does not exist.

use steprail_core::diagnostic::nearest;

use crate::limits::{NEAR_SUGGESTIONS, SUGGESTIONS};

/// The hint for a tool that does not exist: the name that is nearly the same, and the tools of its server, most similar
/// first. `known` are the full names of all tools, `servers` the names that they begin with.
pub(crate) fn hint(wanted: &str, known: &[String], servers: &[String]) -> String {
    let server = wanted.split_once("__").map(|(server, _)| server);
    let Some(server) = server.filter(|server| servers.iter().any(|known| known == server)) else {
        return without_server(wanted, known, servers);
    };
    let prefix = format!("{server}__");
    let mut own: Vec<&str> =
        known.iter().map(String::as_str).filter(|name| name.starts_with(&prefix)).collect();
    own.sort_by(|a, b| likeness(b, wanted).total_cmp(&likeness(a, wanted)).then(a.cmp(b)));
    match (near(wanted, &own), own.as_slice()) {
        (_, []) => format!("the server `{server}` has no tools"),
        (Some(near), [_]) => format!("did you mean `{near}`?"),
        (Some(near), own) => {
            format!("did you mean `{near}`? `{server}` has {}", listed(own, NEAR_SUGGESTIONS))
        }
        (None, own) => format!("`{server}` has {}", listed(own, SUGGESTIONS)),
    }
}

/// The name that is nearly the same: a slip, or a word left out at the beginning.
fn near<'n>(wanted: &str, own: &[&'n str]) -> Option<&'n str> {
    let slip = nearest(wanted, own.iter().copied());
    let tool = |name: &'n str| name.split_once("__").map_or(name, |(_, tool)| tool);
    let wanted = wanted.split_once("__").map_or(wanted, |(_, tool)| tool);
    slip.or_else(|| {
        let mut longer = own.iter().filter(|name| tool(name).ends_with(&format!("_{wanted}")));
        longer.next().copied().filter(|_| longer.next().is_none())
    })
}

/// The first part of the name is no server: perhaps the tool's own name is right.
fn without_server(wanted: &str, known: &[String], servers: &[String]) -> String {
    let own = wanted.rsplit("__").next().unwrap_or(wanted);
    let same = |name: &&String| name.split_once("__").is_some_and(|(_, tool)| tool == own);
    let near = known.iter().find(same).map(String::as_str);
    let near = near.or_else(|| nearest(wanted, known.iter().map(String::as_str)));
    let near = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
    let names: Vec<&str> = servers.iter().map(String::as_str).collect();
    match names.as_slice() {
        [] => "no MCP servers are configured; add them to servers.json".to_owned(),
        names => {
            format!("{near}tools are named `server__tool`; the servers are {}", listed(names, SUGGESTIONS))
        }
    }
}

fn listed(names: &[&str], most: usize) -> String {
    let shown = names.len().min(most);
    let more = names.len() - shown;
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", steprail_core::diagnostic::quoted(&names[..shown]))
}

/// How similar two names are: the words that they share count most.
pub(crate) fn likeness(name: &str, wanted: &str) -> f64 {
    let words = |text: &str| -> Vec<String> {
        text.split(|c: char| !c.is_alphanumeric())
            .map(str::to_lowercase)
            .filter(|word| !word.is_empty())
            .collect()
    };
    let (have, want) = (words(name), words(wanted));
    let shared = want.iter().filter(|word| have.contains(word)).count();
    #[expect(clippy::cast_precision_loss, reason = "a handful of words")]
    let shared = shared as f64;
    shared + strsim::jaro_winkler(name, wanted)
}

#[cfg(test)]
mod tests {
    use super::hint;

    fn known() -> (Vec<String>, Vec<String>) {
        let tools = ["git__git_log", "git__git_status", "time__convert_time"].map(str::to_owned).to_vec();
        (tools, vec!["git".to_owned(), "time".to_owned()])
    }

    #[test]
    fn a_hint_names_the_near_tool_and_those_of_the_server() {
        let (tools, servers) = known();
        let of = |wanted: &str| hint(wanted, &tools, &servers);
        assert_eq!(
            of("git__git_lgo"),
            "did you mean `git__git_log`? `git` has `git__git_log`, `git__git_status`"
        );
        assert_eq!(
            of("git__log"),
            "did you mean `git__git_log`? `git` has `git__git_log`, `git__git_status`"
        );
        assert_eq!(of("git__history"), "`git` has `git__git_log`, `git__git_status`");
        assert_eq!(of("time__now"), "`time` has `time__convert_time`");
        let elsewhere =
            "did you mean `git__git_log`? tools are named `server__tool`; the servers are `git`, `time`";
        assert_eq!(of("git_log"), elsewhere);
        assert_eq!(of("github__git_log"), elsewhere);
        assert!(hint("a__b", &[], &[]).contains("no MCP servers are configured"));
    }
}
