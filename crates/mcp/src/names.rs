//! Names of tools: aliases of the configured servers, and names of published workflows.

use std::collections::BTreeMap;

pub use steprail_core::names::{NAME_CHARS, alias, full_name, split, tool, workflow_name};

/// Server names by alias, the part before `__` in the names of their tools.
#[derive(Debug, Clone, Default)]
pub struct Aliases(BTreeMap<String, String>);

impl Aliases {
    /// Assigns an alias to each server. Fails if two servers have the same alias.
    pub fn new<'n>(servers: impl IntoIterator<Item = &'n String>) -> Result<Self, String> {
        let mut aliases = BTreeMap::new();
        for server in servers {
            let alias = alias(server);
            if let Some(other) = aliases.insert(alias.clone(), server.clone()) {
                return Err(format!(
                    "the servers `{other}` and `{server}` have the same alias `{alias}`; rename one of them"
                ));
            }
        }
        Ok(Self(aliases))
    }

    /// The configured server of a tool named `server__tool`.
    pub fn server_of(&self, full_name: &str) -> Option<&str> {
        let (alias, _) = split(full_name)?;
        self.0.get(alias).map(String::as_str)
    }

    /// All aliases with the names of their servers.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(alias, server)| (alias.as_str(), server.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::Aliases;

    #[test]
    fn rejects_servers_with_the_same_alias() {
        let names = ["git".to_owned(), "GIT".to_owned()];
        assert!(Aliases::new(&names).is_err_and(|problem| problem.contains("the same alias `git`")));
        let aliases = Aliases::new(&names[..1]).expect("names");
        assert_eq!(aliases.server_of("git__log"), Some("git"));
        assert_eq!(aliases.server_of("log"), None);
    }
}
