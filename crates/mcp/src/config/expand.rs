//! Variables in config texts (`${NAME}`, `${env:NAME}`, `${secret:NAME}`, …), expanded when a server is connected to.

use std::collections::BTreeSet;

/// Source of the values of variables.
pub trait Variables {
    /// An environment variable.
    fn env(&self, name: &str) -> Option<String>;
    /// A secret of the user of the connection.
    fn user(&self, name: &str) -> Option<String>;
    /// A secret that all users share.
    fn secret(&self, name: &str) -> Option<String>;
}

/// The environment of this process; no user and no secrets.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessEnv;

impl Variables for ProcessEnv {
    fn env(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn user(&self, _: &str) -> Option<String> {
        None
    }

    fn secret(&self, _: &str) -> Option<String> {
        None
    }
}

/// Text with variables. The values are never stored here: they may be secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text(String);

/// A variable as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variable<'t> {
    /// `${NAME}`, `${env:NAME}`, with a default or without.
    Env(&'t str, Option<&'t str>),
    /// `${input:ID}`, which editors prompt for: read from `INPUT_ID` in the environment.
    Input(&'t str),
    /// `${user:NAME}`: a secret of the user.
    User(&'t str),
    /// `${secret:NAME}`: a shared secret.
    Secret(&'t str),
    /// `${workspaceFolder}`: the working directory of this process.
    Workspace,
    /// `${userHome}`.
    Home,
}

enum Piece<'t> {
    Plain(&'t str),
    Variable(Variable<'t>),
}

impl Text {
    /// Wraps a text of a config file.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether the text uses `${user:NAME}`, so that its value differs between users.
    pub fn has_user_variables(&self) -> bool {
        self.pieces().any(|piece| matches!(piece, Piece::Variable(Variable::User(_))))
    }

    /// The text with all variables expanded, or the names of those that are not set.
    pub fn expand(&self, variables: &dyn Variables) -> Result<String, BTreeSet<String>> {
        let (mut out, mut missing) = (String::new(), BTreeSet::new());
        for piece in self.pieces() {
            match piece {
                Piece::Plain(text) => out.push_str(text),
                Piece::Variable(variable) => match variable.value(variables) {
                    Ok(value) => out.push_str(&value),
                    Err(name) => drop(missing.insert(name)),
                },
            }
        }
        if missing.is_empty() { Ok(out) } else { Err(missing) }
    }

    fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let mut rest = self.0.as_str();
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            if let Some((variable, after)) = variable(rest) {
                rest = after;
                return Some(Piece::Variable(variable));
            }
            // `${` without a valid variable is plain text.
            let first = rest.chars().next().map_or(0, char::len_utf8);
            let end = rest[first..].find("${").map_or(rest.len(), |at| at + first);
            let plain = &rest[..end];
            rest = &rest[end..];
            Some(Piece::Plain(plain))
        })
    }
}

/// The variable at the start of a text, and the rest.
fn variable(text: &str) -> Option<(Variable<'_>, &str)> {
    let (inside, rest) = text.strip_prefix("${")?.split_once('}')?;
    let variable = match inside.split_once(':') {
        None if inside == "workspaceFolder" => Variable::Workspace,
        None if inside == "userHome" => Variable::Home,
        None => Variable::Env(inside, None),
        Some(("env", name)) => Variable::Env(name, None),
        Some(("input", id)) => Variable::Input(id),
        Some(("user", name)) => Variable::User(name),
        Some(("secret", name)) => Variable::Secret(name),
        Some((name, default)) => Variable::Env(name, Some(default.strip_prefix('-')?)),
    };
    let is_valid = match variable {
        Variable::Env(name, _) | Variable::Input(name) | Variable::User(name) | Variable::Secret(name) => {
            is_name(name)
        }
        Variable::Workspace | Variable::Home => true,
    };
    is_valid.then_some((variable, rest))
}

/// Whether a text is a valid name of a variable or secret.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
}

impl Variable<'_> {
    /// The value, or the name of the variable that is not set.
    fn value(self, variables: &dyn Variables) -> Result<String, String> {
        match self {
            Self::Env(name, default) => {
                let set = variables.env(name).filter(|value| default.is_none() || !value.is_empty());
                set.or_else(|| default.map(str::to_owned)).ok_or_else(|| name.to_owned())
            }
            Self::Input(id) => {
                let name = format!("INPUT_{}", id.to_ascii_uppercase().replace(['-', '.'], "_"));
                variables.env(&name).ok_or(name)
            }
            Self::User(name) => variables.user(name).ok_or_else(|| format!("user:{name}")),
            Self::Secret(name) => variables.secret(name).ok_or_else(|| format!("secret:{name}")),
            Self::Workspace => {
                let folder = std::env::current_dir().ok().map(|path| path.display().to_string());
                folder.ok_or_else(|| "workspaceFolder".to_owned())
            }
            Self::Home => variables.env("HOME").ok_or_else(|| "HOME".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Text, Variables};

    struct Fixed;

    impl Variables for Fixed {
        fn env(&self, name: &str) -> Option<String> {
            match name {
                "KEY" => Some("k1".to_owned()),
                "EMPTY" => Some(String::new()),
                "INPUT_API_KEY" => Some("k2".to_owned()),
                "HOME" => Some("/home/ann".to_owned()),
                _ => None,
            }
        }

        fn user(&self, name: &str) -> Option<String> {
            (name == "token").then(|| "anns".to_owned())
        }

        fn secret(&self, name: &str) -> Option<String> {
            (name == "crm").then(|| "shared".to_owned())
        }
    }

    fn expand(text: &str) -> String {
        match Text::new(text).expand(&Fixed) {
            Ok(text) => text,
            Err(missing) => format!("missing {}", missing.into_iter().collect::<Vec<_>>().join(", ")),
        }
    }

    #[test]
    fn expands_variables_of_every_client() {
        assert_eq!(expand("Bearer ${KEY}"), "Bearer k1");
        assert_eq!(expand("${env:KEY}/${userHome}"), "k1//home/ann");
        assert_eq!(expand("${NONE:-fallback}-${EMPTY:-x}-${KEY:-y}"), "fallback-x-k1");
        assert_eq!(expand("${input:api-key}"), "k2");
        assert_eq!(expand("${user:token}"), "anns");
        assert!(Text::new("${user:token}").has_user_variables());
        assert_eq!(expand("${secret:crm}-${secret:erp}"), "missing secret:erp");
        assert_eq!(expand("${secret:crm}"), "shared");
        assert!(!Text::new("${secret:crm}").has_user_variables());
    }

    #[test]
    fn names_missing_variables_and_keeps_other_text() {
        assert_eq!(expand("${A} ${B} ${KEY}"), "missing A, B");
        assert_eq!(expand("${input:pin}"), "missing INPUT_PIN");
        assert_eq!(expand("$KEY ${} ${a b} ${KEY $${KEY}"), "$KEY ${} ${a b} ${KEY $k1");
        assert_eq!(expand("ü${KEY}ü"), "ük1ü");
    }
}
