//! Where shared secrets come from, and which servers may receive them in arguments.

use std::collections::BTreeMap;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::setting::{ReadContext, Setting, SettingError, type_name};

/// The sources of shared secrets by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SecretSources(pub BTreeMap<String, SecretSource>);

/// One secret: where its value is read when it is used, and who may receive it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SecretSource {
    pub origin: Origin,
    /// Servers that may receive the secret in arguments of calls. Without any, only entries of servers can use it.
    pub servers: Vec<String>,
}

/// The origin of the value of a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The encrypted store (`steprail secret set`).
    #[default]
    Store,
    /// An environment variable of the daemon.
    Env(String),
    /// A file that only its owner can read.
    File(PathBuf),
    /// The standard output of a program, given with its arguments.
    Command(Vec<String>),
    /// The item with these attributes in the keyring of the desktop, read with `secret-tool`.
    Keyring(BTreeMap<String, String>),
}

const EXAMPLE: &str = "write for example `github = { env = \"GITHUB_TOKEN\", servers = [\"github\"] }`";

impl Setting for SecretSources {
    fn expected() -> String {
        "a table of secrets by name, each `{ env = \"NAME\" }`, `{ file = \"/path\" }`, `{ command = [\"op\", \"read\", …] }`, \
         `{ keyring = { service = \"…\" } }` or empty for the encrypted store, with `servers = [\"…\"]` (in the file only)"
            .to_owned()
    }

    fn from_text(_: &str, _: &ReadContext) -> Result<Self, SettingError> {
        Err(SettingError::new("secrets can be configured in steprail.toml only").hint(EXAMPLE))
    }

    fn from_toml(value: &Spanned<DeValue>, context: &ReadContext) -> Result<Self, SettingError> {
        let DeValue::Table(secrets) = value.get_ref() else {
            return Err(SettingError::wrong_type::<Self>(value));
        };
        let mut sources = BTreeMap::new();
        for (name, source) in secrets {
            let (name, at) = (name.get_ref().to_string(), name.span());
            if !steprail_mcp::is_secret_name(&name) {
                let message =
                    format!("`{name}` is not the name of a secret: use letters, digits, `_`, `-` and `.`");
                return Err(SettingError::new(message).at(at));
            }
            let DeValue::Table(keys) = source.get_ref() else {
                let message = format!("expected a table, found {}", type_name(source.get_ref()));
                return Err(SettingError::new(message).hint(EXAMPLE).at(source.span()));
            };
            sources.insert(name, SecretSource::read(keys, context)?);
        }
        Ok(Self(sources))
    }

    fn to_toml(&self) -> Option<toml::Value> {
        let sources = self.0.iter().map(|(name, source)| (name.clone(), source.to_toml()));
        Some(toml::Value::Table(sources.collect()))
    }
}

impl SecretSource {
    fn read(keys: &DeTable, context: &ReadContext) -> Result<Self, SettingError> {
        let (mut origin, mut servers) = (None, Vec::new());
        for (key, value) in keys {
            let read = match &**key.get_ref() {
                "servers" => {
                    servers = Vec::<String>::from_toml(value, context)?;
                    continue;
                }
                "env" => Origin::Env(String::from_toml(value, context)?),
                "file" => Origin::File(context.folder.join(String::from_toml(value, context)?)),
                "command" => Origin::Command(command(value, context)?),
                "keyring" => Origin::Keyring(attributes(value, context)?),
                other => {
                    let message = format!("unknown key `{other}` of a secret");
                    return Err(SettingError::new(message).hint(EXAMPLE).at(key.span()));
                }
            };
            if origin.replace(read).is_some() {
                let message = "a secret has one of `env`, `file`, `command` and `keyring`";
                return Err(SettingError::new(message).at(key.span()));
            }
        }
        Ok(Self { origin: origin.unwrap_or_default(), servers })
    }

    fn to_toml(&self) -> toml::Value {
        let text = |text: &String| toml::Value::String(text.clone());
        let list = |texts: &[String]| toml::Value::Array(texts.iter().map(text).collect());
        let mut table = toml::Table::new();
        match &self.origin {
            Origin::Store => None,
            Origin::Env(name) => table.insert("env".to_owned(), text(name)),
            Origin::File(path) => table.insert("file".to_owned(), text(&path.display().to_string())),
            Origin::Command(command) => table.insert("command".to_owned(), list(command)),
            Origin::Keyring(attributes) => {
                let attributes = attributes.iter().map(|(key, value)| (key.clone(), text(value)));
                table.insert("keyring".to_owned(), toml::Value::Table(attributes.collect()))
            }
        };
        if !self.servers.is_empty() {
            table.insert("servers".to_owned(), list(&self.servers));
        }
        toml::Value::Table(table)
    }
}

fn command(value: &Spanned<DeValue>, context: &ReadContext) -> Result<Vec<String>, SettingError> {
    match Vec::<String>::from_toml(value, context)? {
        command if command.is_empty() => {
            Err(SettingError::new("the command is empty").hint("name the program first").at(value.span()))
        }
        command => Ok(command),
    }
}

fn attributes(
    value: &Spanned<DeValue>,
    context: &ReadContext,
) -> Result<BTreeMap<String, String>, SettingError> {
    let hint = "write the attributes of the item, such as `{ service = \"github\", account = \"ann\" }`";
    let table = value.get_ref().as_table().filter(|table| !table.is_empty());
    let table = table.ok_or_else(|| SettingError::new("expected attributes").hint(hint).at(value.span()))?;
    let read = |(key, value): (&Spanned<toml::de::DeString>, &Spanned<DeValue>)| {
        Ok((key.get_ref().to_string(), String::from_toml(value, context)?))
    };
    table.iter().map(read).collect()
}
