//! Secrets: settings that say where a text is kept, never the text itself.

use std::fmt;
use std::io::Read;
use std::path::PathBuf;

use serde::{Serialize, Serializer};
use toml::Spanned;
use toml::de::DeValue;

use super::setting::{Around, Setting, Wrong};

/// What is shown instead of a secret.
pub(super) const REDACTED: &str = "‹secret›";
/// Bytes of a file that holds a secret.
const FILE_BYTES: u64 = 64 * 1024;

/// A text that nobody is shown.
#[derive(Clone)]
pub(crate) struct Secret {
    text: String,
    kept: Kept,
}

/// Where a secret is kept.
#[derive(Debug, Clone)]
enum Kept {
    Env(String),
    File(PathBuf),
}

impl Secret {
    /// The text itself. It goes where it is needed, and into no log, message or answer.
    pub(crate) fn reveal(&self) -> &str {
        &self.text
    }

    fn fetch(kept: Kept, around: &Around) -> Result<Self, Wrong> {
        let text = match &kept {
            Kept::Env(name) => match around.env.get(name) {
                Some(text) => text.clone(),
                None => return Err(Wrong::new(format!("the environment variable {name} is not set"))),
            },
            Kept::File(path) => {
                let mut text = String::new();
                let file = std::fs::File::open(path);
                let read = file.and_then(|file| file.take(FILE_BYTES).read_to_string(&mut text));
                read.map_err(|error| Wrong::new(format!("cannot read {}: {error}", path.display())))?;
                text
            }
        };
        match text.trim() {
            "" => Err(Wrong::new("the secret is empty")),
            text => Ok(Self { text: text.to_owned(), kept }),
        }
    }

    fn named(word: &str, text: &str, around: &Around) -> Option<Kept> {
        match word {
            _ if text.is_empty() => None,
            "env" => Some(Kept::Env(text.to_owned())),
            "file" => Some(Kept::File(around.folder.join(text))),
            _ => None,
        }
    }
}

/// Whether a value of the file says where a secret is kept. Anything else may be the secret, and is not shown.
pub(super) fn is_reference(value: &DeValue) -> bool {
    let named =
        |table: &toml::de::DeTable| table.keys().all(|key| matches!(&**key.get_ref(), "env" | "file"));
    value.as_table().is_some_and(named)
}

/// Whether text is a URL with a password in it.
pub(super) fn has_password(text: &str) -> bool {
    text.split_once("://").is_some_and(|(_, rest)| rest.contains('@'))
}

impl Setting for Secret {
    const SECRET: bool = true;

    fn kind() -> String {
        "where a secret is kept: `{ env = \"NAME\" }` or `{ file = \"/path\" }` (outside the file: `env:NAME`, \
         `file:/path`)"
            .to_owned()
    }

    fn from_text(text: &str, around: &Around) -> Result<Self, Wrong> {
        let kept = text.trim().split_once(':').and_then(|(word, text)| Self::named(word, text, around));
        let plain = || Wrong::new("a secret is not written here").hint("write `env:NAME` or `file:/path`");
        Self::fetch(kept.ok_or_else(plain)?, around)
    }

    fn from_toml(value: &Spanned<DeValue>, around: &Around) -> Result<Self, Wrong> {
        let entries = value.get_ref().as_table().into_iter().flatten();
        let kept: Vec<Option<Kept>> = entries
            .map(|(word, text)| {
                Self::named(word.get_ref(), text.get_ref().as_str().unwrap_or_default(), around)
            })
            .collect();
        match kept.as_slice() {
            [Some(kept)] => Self::fetch(kept.clone(), around),
            _ => Err(Wrong::new("a secret is not written here")
                .hint("write `{ env = \"NAME\" }` or `{ file = \"/path\" }`")),
        }
    }

    /// Where it is kept is no secret.
    fn shown(&self) -> Option<toml::Value> {
        let (word, text) = match &self.kept {
            Kept::Env(name) => ("env", name.clone()),
            Kept::File(path) => ("file", path.display().to_string()),
        };
        Some(toml::Value::Table([(word.to_owned(), text.into())].into_iter().collect()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(REDACTED)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(REDACTED)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(REDACTED)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;

    fn read(text: &str) -> Result<Secret, Wrong> {
        let env = BTreeMap::from([("TOKEN".to_owned(), "hunter2\n".to_owned())]);
        Secret::from_text(text, &Around { env: &env, folder: Path::new("") })
    }

    #[test]
    fn a_secret_is_never_printed() {
        let secret = read("env:TOKEN").unwrap();
        assert_eq!(secret.reveal(), "hunter2");
        let json = serde_json::to_string(&secret).unwrap();
        let printed = format!("{secret:?} {secret} {json} {:?}", secret.shown());
        assert!(!printed.contains("hunter2"), "{printed}");
        assert_eq!(secret.to_string(), "‹secret›");
    }

    #[test]
    fn a_secret_comes_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "hunter3\n").unwrap();
        assert_eq!(read(&format!("file:{}", path.display())).unwrap().reveal(), "hunter3");
    }

    #[test]
    fn plain_text_is_refused_without_repeating_it() {
        for text in ["hunter4", "hunter:hunter4", "env:", ""] {
            let refused = format!("{:?}", read(text).unwrap_err());
            assert!(refused.contains("a secret is not written here"), "{refused}");
            assert!(!refused.contains("hunter4"), "{refused}");
        }
    }
}
