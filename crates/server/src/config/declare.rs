//! Declarations of settings, and the macro that generates the structs and the table from them.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::DeValue;

use super::keys::Config;
use super::problem::SettingSource;
use super::setting::{ReadContext, SettingError};

/// A section of the file.
pub(super) struct Section {
    pub name: &'static str,
    pub docs: &'static str,
    pub keys: &'static [Key],
}

/// One setting: its documentation, and access to its value in a [`Config`].
pub(super) struct Key {
    pub section: &'static str,
    pub name: &'static str,
    /// Section and name: `http.listen`.
    pub path: &'static str,
    pub docs: &'static str,
    /// Whether the value must be redacted.
    pub secret: bool,
    /// A description of valid values.
    pub expected: fn() -> String,
    pub read_text: fn(&mut Config, &str, &ReadContext) -> Result<(), SettingError>,
    pub read_toml: fn(&mut Config, &Spanned<DeValue>, &ReadContext) -> Result<(), SettingError>,
    /// The value as written in the file; `None` if it is not set.
    pub to_toml: fn(&Config) -> Option<toml::Value>,
}

impl Key {
    /// The name of the environment variable.
    pub(super) fn variable(&self) -> String {
        format!("{}{}_{}", super::PREFIX, self.section, self.name).to_ascii_uppercase()
    }
}

/// The sources of values that are not defaults, by the path of the key.
pub(super) type SettingSources = BTreeMap<&'static str, SettingSource>;

/// Declares the settings: generates the structs with their defaults, and the table of keys.
macro_rules! settings {
    ($(
        $(#[doc = $about:literal])+
        $section:ident: $Section:ident {
            $($(#[doc = $docs:literal])+ $key:ident: $type:ty = $default:expr;)+
        }
    )+) => {
        /// The settings of a daemon, and the source of each value.
        #[derive(Debug, Clone, Default)]
        pub(crate) struct Config {
            $($(#[doc = $about])+ pub $section: $Section,)+
            pub(super) sources: $crate::config::declare::SettingSources,
        }

        $(
            $(#[doc = $about])+
            #[derive(Debug, Clone)]
            pub(crate) struct $Section { $($(#[doc = $docs])+ pub $key: $type,)+ }

            impl Default for $Section {
                fn default() -> Self {
                    Self { $($key: $default,)+ }
                }
            }
        )+

        /// Every section.
        pub(super) const SECTIONS: &[Section] = &[$(Section {
            name: stringify!($section),
            docs: concat!($($about),+).trim_ascii(),
            keys: &[$(Key {
                section: stringify!($section),
                name: stringify!($key),
                path: concat!(stringify!($section), ".", stringify!($key)),
                docs: concat!($($docs),+).trim_ascii(),
                secret: <$type as Setting>::SECRET,
                expected: <$type as Setting>::expected,
                read_text: |config, text, context| {
                    config.$section.$key = Setting::from_text(text, context)?;
                    Ok(())
                },
                read_toml: |config, value, context| {
                    config.$section.$key = Setting::from_toml(value, context)?;
                    Ok(())
                },
                to_toml: |config| config.$section.$key.to_toml(),
            }),+],
        }),+];
    };
}

pub(super) use settings;
