//! What a declared setting is, and the macro that declares all of them.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::DeValue;

use super::keys::Config;
use super::setting::{Around, Wrong};

/// A section of the file.
pub(super) struct Section {
    pub name: &'static str,
    pub docs: &'static str,
    pub keys: &'static [Key],
}

/// One setting: what is known about it, and how to get at its value.
pub(super) struct Key {
    pub section: &'static str,
    pub name: &'static str,
    /// Both: `http.listen`.
    pub path: &'static str,
    pub docs: &'static str,
    /// Its value must not be shown.
    pub secret: bool,
    /// What may be written, in a few words.
    pub kind: fn() -> String,
    pub read_text: fn(&mut Config, &str, &Around) -> Result<(), Wrong>,
    pub read_toml: fn(&mut Config, &Spanned<DeValue>, &Around) -> Result<(), Wrong>,
    /// The value as the file has it; none if it is not set.
    pub shown: fn(&Config) -> Option<toml::Value>,
}

impl Key {
    /// The environment variable.
    pub(super) fn variable(&self) -> String {
        format!("{}{}_{}", super::PREFIX, self.section, self.name).to_ascii_uppercase()
    }
}

/// Where the values come from that are not the defaults, by the path of the key.
pub(super) type Places = BTreeMap<&'static str, super::Place>;

/// Declares the settings: structs with their defaults, and the table that everything else works by.
macro_rules! settings {
    ($(
        $(#[doc = $about:literal])+
        $section:ident: $Section:ident {
            $($(#[doc = $docs:literal])+ $key:ident: $type:ty = $default:expr;)+
        }
    )+) => {
        /// The settings of a daemon, and where each comes from.
        #[derive(Debug, Clone, Default)]
        pub(crate) struct Config {
            $($(#[doc = $about])+ pub $section: $Section,)+
            pub(super) places: $crate::config::declare::Places,
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
                kind: <$type as Setting>::kind,
                read_text: |config, text, around| {
                    config.$section.$key = Setting::from_text(text, around)?;
                    Ok(())
                },
                read_toml: |config, value, around| {
                    config.$section.$key = Setting::from_toml(value, around)?;
                    Ok(())
                },
                shown: |config| config.$section.$key.shown(),
            }),+],
        }),+];
    };
}

pub(super) use settings;
