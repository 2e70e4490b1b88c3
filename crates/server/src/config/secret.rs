//! Secret settings: references to environment variables or files. The secret itself is never written in a setting.

use std::fmt;
use std::io::Read;
use std::path::PathBuf;

use serde::{Serialize, Serializer};
use toml::Spanned;
use toml::de::DeValue;

use super::setting::{ReadContext, Setting, SettingError};

/// Replaces a secret in output.
pub(super) const REDACTED: &str = "‹secret›";
/// The maximum size of a file that contains a secret.
const FILE_BYTES: u64 = 64 * 1024;
/// The error for a value that is not a reference. It must not repeat the value.
const PLAIN: &str = "a secret must be given by reference";

/// A secret. It is redacted in all output.
#[derive(Clone)]
pub(crate) struct Secret {
    text: String,
    reference: Reference,
}

/// The location of a secret.
#[derive(Debug, Clone)]
enum Reference {
    Env(String),
    File(PathBuf),
}

impl Secret {
    /// The secret itself. It must not get into logs, messages or responses.
    pub(crate) fn reveal(&self) -> &str {
        &self.text
    }

    fn fetch(reference: Reference, context: &ReadContext) -> Result<Self, SettingError> {
        let text = match &reference {
            Reference::Env(name) => match context.env.get(name) {
                Some(text) => text.clone(),
                None => return Err(SettingError::new(format!("environment variable {name} is not set"))),
            },
            Reference::File(path) => {
                let mut text = String::new();
                let file = std::fs::File::open(path);
                let result = file.and_then(|file| file.take(FILE_BYTES).read_to_string(&mut text));
                result
                    .map_err(|error| SettingError::new(format!("cannot read {}: {error}", path.display())))?;
                text
            }
        };
        match text.trim() {
            "" => Err(SettingError::new("the secret is empty")),
            text => Ok(Self { text: text.to_owned(), reference }),
        }
    }

    fn parse(scheme: &str, text: &str, context: &ReadContext) -> Option<Reference> {
        match scheme {
            _ if text.is_empty() => None,
            "env" => Some(Reference::Env(text.to_owned())),
            "file" => Some(Reference::File(context.folder.join(text))),
            _ => None,
        }
    }
}

/// Whether a value of the file is a reference. Anything else may be the secret itself and must be masked.
pub(super) fn is_reference(value: &DeValue) -> bool {
    let has_reference_keys =
        |table: &toml::de::DeTable| table.keys().all(|key| matches!(&**key.get_ref(), "env" | "file"));
    value.as_table().is_some_and(has_reference_keys)
}

/// Whether text is a URL that contains credentials.
pub(super) fn has_password(text: &str) -> bool {
    text.split_once("://").is_some_and(|(_, rest)| rest.contains('@'))
}

impl Setting for Secret {
    const SECRET: bool = true;

    fn expected() -> String {
        "a reference to a secret: `{ env = \"NAME\" }` or `{ file = \"/path\" }` (in variables and flags: \
         `env:NAME` or `file:/path`)"
            .to_owned()
    }

    fn from_text(text: &str, context: &ReadContext) -> Result<Self, SettingError> {
        let reference =
            text.trim().split_once(':').and_then(|(scheme, text)| Self::parse(scheme, text, context));
        let plain = || SettingError::new(PLAIN).hint("write `env:NAME` or `file:/path`");
        Self::fetch(reference.ok_or_else(plain)?, context)
    }

    fn from_toml(value: &Spanned<DeValue>, context: &ReadContext) -> Result<Self, SettingError> {
        let entries = value.get_ref().as_table().into_iter().flatten();
        let references: Vec<Option<Reference>> = entries
            .map(|(scheme, text)| {
                Self::parse(scheme.get_ref(), text.get_ref().as_str().unwrap_or_default(), context)
            })
            .collect();
        match references.as_slice() {
            [Some(reference)] => Self::fetch(reference.clone(), context),
            _ => Err(SettingError::new(PLAIN).hint("write `{ env = \"NAME\" }` or `{ file = \"/path\" }`")),
        }
    }

    /// The reference, which is not secret.
    fn to_toml(&self) -> Option<toml::Value> {
        let (scheme, text) = match &self.reference {
            Reference::Env(name) => ("env", name.clone()),
            Reference::File(path) => ("file", path.display().to_string()),
        };
        Some(toml::Value::Table([(scheme.to_owned(), text.into())].into_iter().collect()))
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

    fn read(text: &str) -> Result<Secret, SettingError> {
        let env = BTreeMap::from([("TOKEN".to_owned(), "hunter2\n".to_owned())]);
        Secret::from_text(text, &ReadContext { env: &env, folder: Path::new("") })
    }

    #[test]
    fn secret_is_redacted_in_all_output() {
        let secret = read("env:TOKEN").unwrap();
        assert_eq!(secret.reveal(), "hunter2");
        let json = serde_json::to_string(&secret).unwrap();
        let printed = format!("{secret:?} {secret} {json} {:?}", secret.to_toml());
        assert!(!printed.contains("hunter2"), "{printed}");
        assert_eq!(secret.to_string(), "‹secret›");
    }

    #[test]
    fn secret_is_read_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "hunter3\n").unwrap();
        assert_eq!(read(&format!("file:{}", path.display())).unwrap().reveal(), "hunter3");
    }

    #[test]
    fn rejects_plain_text_without_repeating_it() {
        for text in ["hunter4", "hunter:hunter4", "env:", ""] {
            let message = format!("{:?}", read(text).unwrap_err());
            assert!(message.contains(PLAIN), "{message}");
            assert!(!message.contains("hunter4"), "{message}");
        }
    }
}
