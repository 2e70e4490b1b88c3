//! What tools are called: `server__tool`, short and plain enough for every client.

use sha2::{Digest, Sha256};

/// Characters of a tool's name; several providers refuse more.
pub const NAME_CHARS: usize = 64;
/// Separates the alias of the server from the tool's own name. An alias never contains it.
const SEPARATOR: &str = "__";
/// Characters of a server's name in it.
const SERVER_CHARS: usize = 20;
/// Characters of the hash that stands for what was cut.
const HASH_CHARS: usize = 6;

/// What a server is called in the names of its tools.
pub fn alias(server: &str) -> String {
    let mut out = String::new();
    for c in server.chars().map(|c| c.to_ascii_lowercase()) {
        let keeps = c.is_ascii_alphanumeric() || c == '-' || (c == '_' && !out.ends_with('_'));
        out.push(if keeps { c } else { '-' });
    }
    let out = out.trim_matches(['_', '-']);
    shortened(if out.is_empty() { "server" } else { out }, SERVER_CHARS)
}

/// What a tool of a server is called.
pub fn full_name(alias: &str, tool: &str) -> String {
    let room = NAME_CHARS - alias.len() - SEPARATOR.len();
    format!("{alias}{SEPARATOR}{}", shortened(&plain(tool), room))
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

/// A name with the characters that every client takes.
pub fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' }).collect()
}

/// The end of a name, where the words that tell tools apart usually are, with a hash of the whole before it.
pub fn shortened(name: &str, room: usize) -> String {
    if name.len() <= room {
        return name.to_owned();
    }
    let hash = Sha256::digest(name.as_bytes());
    let hash: String = hash.iter().take(HASH_CHARS / 2).map(|byte| format!("{byte:02x}")).collect();
    let tail = &name[name.len() - (room - HASH_CHARS - 1)..];
    format!("{hash}-{}", tail.trim_start_matches(['_', '-']))
}

#[cfg(test)]
mod tests {
    use super::{alias, full_name, server, split, tool};

    #[test]
    fn names_are_short_and_plain() {
        assert_eq!(alias("Git Hub__x_"), "git-hub_-x");
        assert_eq!(full_name("git", "repo.log"), "git__repo_log");
        let long = full_name("files", &"very_long_name_of_a_tool_".repeat(5));
        assert_eq!(long.len(), 64);
        assert_ne!(
            long,
            full_name("files", &"very_lang_name_of_a_tool_".repeat(5)),
            "the hash tells them apart"
        );
        assert!(alias("a-server-whose-name-is-far-too-long").len() <= 20);
    }

    #[test]
    fn splits_at_the_first_separator() {
        assert_eq!(split("git__repo__log"), Some(("git", "repo__log")));
        assert_eq!((server("git__log"), tool("git__log")), ("git", "log"));
        assert_eq!((split("log"), server("log"), tool("log")), (None, "log", "log"));
    }
}
