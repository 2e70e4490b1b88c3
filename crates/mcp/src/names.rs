//! What tools are called here: `server__tool`, short enough for every client, never the same name twice.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

/// Characters of a tool's name; several providers refuse more.
pub const NAME_CHARS: usize = 64;
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
    let room = NAME_CHARS - alias.len() - 2;
    format!("{alias}__{}", shortened(&plain(tool), room))
}

/// What a published workflow is called as a tool.
pub fn workflow_name(workflow: &str) -> String {
    format!("wf_{}", shortened(&plain(workflow), NAME_CHARS - 3))
}

/// A name with the characters that every client takes.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' }).collect()
}

/// The end of a name, where the words that tell tools apart usually are, with a hash of the whole before it.
fn shortened(name: &str, room: usize) -> String {
    if name.len() <= room {
        return name.to_owned();
    }
    let hash = Sha256::digest(name.as_bytes());
    let hash: String = hash.iter().take(HASH_CHARS / 2).map(|byte| format!("{byte:02x}")).collect();
    let tail = &name[name.len() - (room - HASH_CHARS - 1)..];
    format!("{hash}-{}", tail.trim_start_matches(['_', '-']))
}

/// Servers by the names that tools bear.
#[derive(Debug, Clone, Default)]
pub struct Aliases(BTreeMap<String, String>);

impl Aliases {
    /// Names for servers; two that would have the same are refused.
    pub fn new<'n>(servers: impl IntoIterator<Item = &'n String>) -> Result<Self, String> {
        let mut aliases = BTreeMap::new();
        for server in servers {
            let alias = alias(server);
            if let Some(other) = aliases.insert(alias.clone(), server.clone()) {
                return Err(format!(
                    "the servers `{other}` and `{server}` would both be called `{alias}`; rename one"
                ));
            }
        }
        Ok(Self(aliases))
    }

    /// The server that a tool's full name begins with.
    pub fn server_of(&self, full_name: &str) -> Option<&str> {
        let (alias, _) = full_name.split_once("__")?;
        self.0.get(alias).map(String::as_str)
    }

    /// Every name with its server.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(alias, server)| (alias.as_str(), server.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Aliases, alias, full_name};

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
    fn two_servers_do_not_share_a_name() {
        let names = ["git".to_owned(), "GIT".to_owned()];
        assert!(Aliases::new(&names).is_err_and(|problem| problem.contains("both be called `git`")));
        let aliases = Aliases::new(&names[..1]).expect("names");
        assert_eq!(aliases.server_of("git__log"), Some("git"));
        assert_eq!(aliases.server_of("log"), None);
    }
}
