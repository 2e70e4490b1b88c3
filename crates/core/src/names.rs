//! Full names of tools, `server__tool`, within the limits of all MCP clients.

use sha2::{Digest, Sha256};

/// The maximum length of a tool name, in characters. Several providers reject longer names.
pub const NAME_CHARS: usize = 64;
/// Separates the alias of the server from the name of the tool. An alias does not contain it.
const SEPARATOR: &str = "__";
/// The maximum length of a server alias, in characters.
const SERVER_CHARS: usize = 20;
/// The length of the hash in a shortened name, in hexadecimal digits.
const HASH_CHARS: usize = 6;

/// Returns the alias of a server: the prefix of the names of its tools.
pub fn alias(server: &str) -> String {
    let mut out = String::new();
    for c in server.chars().map(|c| c.to_ascii_lowercase()) {
        let is_allowed = c.is_ascii_alphanumeric() || c == '-' || (c == '_' && !out.ends_with('_'));
        out.push(if is_allowed { c } else { '-' });
    }
    let out = out.trim_matches(['_', '-']);
    shortened(if out.is_empty() { "server" } else { out }, SERVER_CHARS)
}

/// Returns the full name of a tool.
pub fn full_name(alias: &str, tool: &str) -> String {
    let max_chars = NAME_CHARS - alias.len() - SEPARATOR.len();
    format!("{alias}{SEPARATOR}{}", shortened(&sanitized(tool), max_chars))
}

/// Splits `server__tool` into the alias of the server and the tool's own name; `None` if the name has no server.
pub fn split(name: &str) -> Option<(&str, &str)> {
    name.split_once(SEPARATOR)
}

/// The server part of `server__tool`, or the whole name if it has none.
pub fn server(name: &str) -> &str {
    split(name).map_or(name, |(server, _)| server)
}

/// The tool part of `server__tool`, or the whole name if it has no server.
pub fn tool(name: &str) -> &str {
    split(name).map_or(name, |(_, tool)| tool)
}

/// The tool name of a published workflow: `wf_…`.
pub fn workflow_name(workflow: &str) -> String {
    format!("wf_{}", shortened(&sanitized(workflow), NAME_CHARS - 3))
}

/// The same text for all names that clients could take for each other: they differ in case or in punctuation only.
pub fn folded(name: &str) -> String {
    sanitized(name).to_ascii_lowercase().replace('-', "_")
}

/// Replaces the characters that some clients do not accept.
pub fn sanitized(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' }).collect()
}

/// Shortens a name to its end, with a hash of the whole name as prefix. Names usually differ at their ends.
pub fn shortened(name: &str, max_chars: usize) -> String {
    if name.len() <= max_chars {
        return name.to_owned();
    }
    let hash = Sha256::digest(name.as_bytes());
    let hash: String = hash.iter().take(HASH_CHARS / 2).map(|byte| format!("{byte:02x}")).collect();
    let tail = &name[name.len() - (max_chars - HASH_CHARS - 1)..];
    format!("{hash}-{}", tail.trim_start_matches(['_', '-']))
}

#[cfg(test)]
mod tests {
    use super::{alias, full_name, server, split, tool};

    #[test]
    fn names_are_shortened_and_sanitized() {
        assert_eq!(alias("Git Hub__x_"), "git-hub_-x");
        assert_eq!(full_name("git", "repo.log"), "git__repo_log");
        let long = full_name("files", &"very_long_name_of_a_tool_".repeat(5));
        assert_eq!(long.len(), 64);
        assert_ne!(long, full_name("files", &"very_lang_name_of_a_tool_".repeat(5)), "the hashes differ");
        assert!(alias("a-server-whose-name-is-far-too-long").len() <= 20);
    }

    #[test]
    fn splits_at_the_first_separator() {
        assert_eq!(split("git__repo__log"), Some(("git", "repo__log")));
        assert_eq!((server("git__log"), tool("git__log")), ("git", "log"));
        assert_eq!((split("log"), server("log"), tool("log")), (None, "log", "log"));
    }
}
