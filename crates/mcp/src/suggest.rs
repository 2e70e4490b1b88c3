//! Suggestions for names of tools that do not exist.

use steprail_core::diagnostic::nearest;

use crate::limits::{NEAR_SUGGESTIONS, SUGGESTIONS};
use crate::names;

/// The hint for an unknown tool: the closest name, and the tools of its server, most similar first. `known` are the full
/// names of all tools, `servers` the aliases of all servers.
pub(crate) fn hint(unknown: &str, known: &[String], servers: &[String]) -> String {
    let server = names::split(unknown).map(|(server, _)| server);
    let Some(server) = server.filter(|server| servers.iter().any(|known| known == server)) else {
        return hint_without_server(unknown, known, servers);
    };
    let is_own = |name: &&str| names::split(name).is_some_and(|(alias, _)| alias == server);
    let mut own: Vec<&str> = known.iter().map(String::as_str).filter(is_own).collect();
    own.sort_by(|a, b| similarity(b, unknown).total_cmp(&similarity(a, unknown)).then(a.cmp(b)));
    match (closest(unknown, &own), own.as_slice()) {
        (_, []) => format!("the server `{server}` has no tools"),
        (Some(closest), [_]) => format!("did you mean `{closest}`?"),
        (Some(closest), own) => {
            format!("did you mean `{closest}`? `{server}` has {}", listed(own, NEAR_SUGGESTIONS))
        }
        (None, own) => format!("`{server}` has {}", listed(own, SUGGESTIONS)),
    }
}

/// The name that was probably meant: one that differs by a typo, or has an additional prefix.
fn closest<'n>(unknown: &str, own: &[&'n str]) -> Option<&'n str> {
    nearest(unknown, own.iter().copied()).or_else(|| {
        let ending = format!("_{}", names::tool(unknown));
        let mut longer = own.iter().filter(|name| names::tool(name).ends_with(&ending));
        longer.next().copied().filter(|_| longer.next().is_none())
    })
}

/// The hint for a name without a known server: another server may have a tool of that name.
fn hint_without_server(unknown: &str, known: &[String], servers: &[String]) -> String {
    let same = |name: &&String| names::split(name).is_some_and(|(_, tool)| tool == names::tool(unknown));
    let near = known.iter().find(same).map(String::as_str);
    let near = near.or_else(|| nearest(unknown, known.iter().map(String::as_str)));
    let near = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
    let servers: Vec<&str> = servers.iter().map(String::as_str).collect();
    match servers.as_slice() {
        [] => "no MCP servers are configured; add them to servers.json".to_owned(),
        all => format!("{near}tools are named `server__tool`; the servers are {}", listed(all, SUGGESTIONS)),
    }
}

fn listed(names: &[&str], limit: usize) -> String {
    let shown = names.len().min(limit);
    let more = names.len() - shown;
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", steprail_core::diagnostic::quoted(&names[..shown]))
}

/// Similarity of two names: the number of shared words, then the Jaro-Winkler similarity.
fn similarity(name: &str, unknown: &str) -> f64 {
    let words = |text: &str| -> Vec<String> {
        text.split(|c: char| !c.is_alphanumeric())
            .map(str::to_lowercase)
            .filter(|word| !word.is_empty())
            .collect()
    };
    let (own, other) = (words(name), words(unknown));
    let shared = other.iter().filter(|word| own.contains(word)).count();
    #[expect(clippy::cast_precision_loss, reason = "a handful of words")]
    let shared = shared as f64;
    shared + strsim::jaro_winkler(name, unknown)
}

#[cfg(test)]
mod tests {
    use super::hint;

    fn known() -> (Vec<String>, Vec<String>) {
        let tools = ["git__git_log", "git__git_status", "time__convert_time"].map(str::to_owned).to_vec();
        (tools, vec!["git".to_owned(), "time".to_owned()])
    }

    #[test]
    fn hint_names_the_closest_tool_and_others_of_the_server() {
        let (tools, servers) = known();
        let of = |unknown: &str| hint(unknown, &tools, &servers);
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
