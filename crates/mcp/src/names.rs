//! Which server a tool's name belongs to, and what a published workflow is called.

use std::collections::BTreeMap;

pub use steprail_core::names::{NAME_CHARS, alias, full_name};
use steprail_core::names::{plain, shortened};

/// What a published workflow is called as a tool.
pub fn workflow_name(workflow: &str) -> String {
    format!("wf_{}", shortened(&plain(workflow), NAME_CHARS - 3))
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
    use super::Aliases;

    #[test]
    fn two_servers_do_not_share_a_name() {
        let names = ["git".to_owned(), "GIT".to_owned()];
        assert!(Aliases::new(&names).is_err_and(|problem| problem.contains("both be called `git`")));
        let aliases = Aliases::new(&names[..1]).expect("names");
        assert_eq!(aliases.server_of("git__log"), Some("git"));
        assert_eq!(aliases.server_of("log"), None);
    }
}
