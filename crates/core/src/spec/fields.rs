//! Parses maps field by field. Reports every problem, including keys that no field reads.

use crate::bounded_regex::RegexSet;
use crate::diagnostic::{Code, Diagnostic, Diagnostics, suggest};
use crate::document::{Data, MapEntry, Node};
use crate::source::Span;

/// The state of parsing a definition.
pub(crate) struct Reader<'s> {
    pub out: &'s mut Diagnostics,
    /// Id of the step that is being parsed; its diagnostics carry it.
    pub step: Option<String>,
    /// Number of steps so far, against [`crate::limits::STEPS`].
    pub steps: usize,
    /// Nesting of the current block, against [`crate::limits::BLOCK_DEPTH`].
    pub depth: usize,
    /// The regular expressions in the schemas of inputs.
    pub regexes: RegexSet,
}

impl Reader<'_> {
    pub(crate) fn report(&mut self, diagnostic: Diagnostic) {
        self.out.push(Diagnostic { step: self.step.clone(), ..diagnostic });
    }

    pub(crate) fn wrong_type(&mut self, node: &Node, expected: &str) {
        let message = format!("expected {expected}, found {}", node.type_name());
        let hint = match (&node.data, expected) {
            (Data::Bool(_) | Data::Number(_), "text") => Some("quote the value to make it text"),
            (Data::Map(_), "text") => Some("a value that starts with `{{` needs quotes: \"{{inputs.x}}\""),
            _ => None,
        };
        let mut diagnostic = Diagnostic::new(Code::WrongType, node.span, message);
        diagnostic.hint = hint.map(str::to_owned);
        self.report(diagnostic);
    }

    pub(crate) fn invalid(&mut self, span: Span, message: String, hint: &str) {
        self.report(Diagnostic::new(Code::InvalidValue, span, message).hint(hint));
    }
}

/// A type that can be parsed from a value of a document. Returns `None` after reporting an error.
pub(crate) trait FromNode: Sized {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self>;
}

/// A group of fields, declared with [`record!`].
pub(crate) trait Record: Sized {
    /// All keys of the group.
    const KEYS: &[&str];
    /// The required keys.
    const REQUIRED: &[&str];

    /// Parses the fields of the group and removes them from the map.
    fn read(fields: &mut Fields, reader: &mut Reader) -> Self;
}

/// The entries of a map that have not been parsed yet.
pub(crate) struct Fields {
    /// What the map is, for messages: "a `tool` step".
    subject: &'static str,
    entries: Vec<MapEntry>,
    /// Position of problems of the map as a whole, such as a missing field: its first key.
    pub span: Span,
}

impl Fields {
    /// Opens a map. Reports any other value.
    pub(crate) fn open(node: Node, subject: &'static str, reader: &mut Reader) -> Option<Self> {
        let Data::Map(entries) = node.data else {
            reader.wrong_type(&node, &format!("{subject} (a map)"));
            return None;
        };
        let span = entries.first().map_or(node.span, |entry| entry.key_span);
        Some(Self { subject, entries, span })
    }

    pub(crate) fn set_subject(&mut self, subject: &'static str) {
        self.subject = subject;
    }

    fn entry(&self, key: &str) -> Option<&MapEntry> {
        self.entries.iter().find(|entry| &*entry.key == key)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// Whether the key has a value other than null.
    pub(crate) fn is_set(&self, key: &str) -> bool {
        self.entry(key).is_some_and(|entry| !matches!(entry.value.data, Data::Null))
    }

    /// Returns the value of a field, if it is text.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.entry(key).and_then(|entry| entry.value.as_text())
    }

    /// Removes the entries with one of these keys.
    pub(crate) fn drop_keys(&mut self, groups: &[&[&str]]) {
        self.entries.retain(|entry| !groups.iter().any(|keys| keys.contains(&&*entry.key)));
    }

    /// The remaining keys and their positions.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&str, Span)> {
        self.entries.iter().map(|entry| (&*entry.key, entry.key_span))
    }

    /// Removes a field and returns it unparsed.
    pub(crate) fn take_node(&mut self, key: &str) -> Option<MapEntry> {
        let index = self.entries.iter().position(|entry| &*entry.key == key)?;
        Some(self.entries.swap_remove(index))
    }

    /// Removes a field whose value is an empty map.
    pub(crate) fn drop_empty_map(&mut self, key: &str) {
        let is_empty =
            |entry: &MapEntry| matches!(&entry.value.data, Data::Map(entries) if entries.is_empty());
        if self.entry(key).is_some_and(is_empty) {
            self.take_node(key);
        }
    }

    /// Removes a field and returns it unparsed, if it is a list.
    pub(crate) fn take_list(&mut self, key: &str) -> Option<MapEntry> {
        let is_list = self.entry(key).is_some_and(|entry| matches!(entry.value.data, Data::List(_)));
        if is_list { self.take_node(key) } else { None }
    }

    pub(crate) fn put_back(&mut self, entry: Option<MapEntry>) {
        self.entries.extend(entry);
    }

    /// Removes a field and parses it. Null is the same as no value.
    pub(crate) fn take<T: FromNode>(&mut self, key: &str, reader: &mut Reader) -> Option<T> {
        let entry = self.take_node(key)?;
        if matches!(entry.value.data, Data::Null) { None } else { T::from_node(entry.value, reader) }
    }

    /// Reports a required field that is not set.
    pub(crate) fn require(&self, key: &str, reader: &mut Reader) {
        if !self.is_set(key) {
            let message = format!("{} needs `{key}`", self.subject);
            reader.report(Diagnostic::new(Code::MissingField, self.span, message));
        }
    }

    /// Reports a list that is empty.
    pub(crate) fn require_items(&self, key: &str, reader: &mut Reader) {
        let is_empty = |entry: &&MapEntry| matches!(&entry.value.data, Data::List(items) if items.is_empty());
        if let Some(entry) = self.entry(key).filter(is_empty) {
            let message = format!("`{key}` of {} is empty", self.subject);
            reader.report(Diagnostic::new(Code::MissingField, entry.value.span, message));
        }
    }

    /// Reports two mutually exclusive fields if both are set.
    pub(crate) fn conflict(&self, [one, other]: [&str; 2], reader: &mut Reader) {
        if self.is_set(one) && self.is_set(other) {
            let message = format!("`{one}` and `{other}` cannot be used together");
            reader.report(
                Diagnostic::new(Code::ConflictingFields, self.span, message).hint("keep one of them"),
            );
        }
    }

    /// Returns the remaining entries, for maps whose keys are names.
    pub(crate) fn rest(self) -> Vec<MapEntry> {
        self.entries
    }

    /// Reports the remaining keys as unknown. `known` are the keys to suggest.
    pub(crate) fn finish<'k>(self, known: impl IntoIterator<Item = &'k [&'static str]>, reader: &mut Reader) {
        if self.entries.is_empty() {
            return;
        }
        let known: Vec<&str> = known.into_iter().flatten().copied().collect();
        for entry in self.entries {
            let message = format!("unknown key `{}` in {}", entry.key, self.subject);
            let mut diagnostic = Diagnostic::new(Code::UnknownKey, entry.key_span, message);
            diagnostic.hint = suggest(&entry.key, &known);
            reader.report(diagnostic);
        }
    }
}

/// Declares a group of fields: the struct, its JSON Schema and its parser.
/// All fields are optional in the struct, so that parsing continues after a missing one.
/// A subject for messages in parentheses makes the group a type of its own: a map with these fields only.
macro_rules! record {
    (
        $(#[$meta:meta])*
        pub struct $name:ident $(($subject:literal))? {
            $($(#[$field_meta:meta])* $(@$required:ident)? $field:ident: $type:ty,)*
        }
    ) => {
        #[derive(Debug, Clone, Default, serde::Serialize, schemars::JsonSchema)]
        $(#[$meta])*
        #[schemars(deny_unknown_fields)]
        #[schemars(extend("required" = <Self as $crate::spec::fields::Record>::REQUIRED))]
        pub struct $name {
            $(
                $(#[$field_meta])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $field: Option<$type>,
            )*
        }

        impl $crate::spec::fields::Record for $name {
            const KEYS: &[&str] = &[$($crate::spec::fields::key(stringify!($field))),*];
            const REQUIRED: &[&str] = &[$($({
                let _ = stringify!($required);
                $crate::spec::fields::key(stringify!($field))
            },)?)*];

            fn read(
                fields: &mut $crate::spec::fields::Fields,
                reader: &mut $crate::spec::fields::Reader,
            ) -> Self {
                Self {
                    $($field: {
                        let key = $crate::spec::fields::key(stringify!($field));
                        $(let _ = stringify!($required); fields.require(key, reader);)?
                        fields.take(key, reader)
                    },)*
                }
            }
        }

        $(
            impl $crate::spec::fields::FromNode for $name {
                fn from_node(
                    node: $crate::document::Node,
                    reader: &mut $crate::spec::fields::Reader,
                ) -> Option<Self> {
                    $crate::spec::fields::read_record(node, $subject, reader)
                }
            }
        )?
    };
}

/// Declares a closed set of values: the enum, its JSON Schema and its parser.
macro_rules! choice {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)+ }
    ) => {
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        pub enum $name { $($(#[$variant_meta])* #[serde(rename = $word)] $variant,)+ }

        impl $name {
            /// All values, in the order of the declaration.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// All values, as written in a definition.
            pub const NAMES: &[&str] = &[$($word),+];

            /// The value as written in a definition.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// Parses a value.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($word => Some(Self::$variant),)+ _ => None }
            }
        }

        impl $crate::spec::fields::FromNode for $name {
            fn from_node(
                node: $crate::document::Node,
                reader: &mut $crate::spec::fields::Reader,
            ) -> Option<Self> {
                let value = node.as_text().and_then(Self::from_name);
                if value.is_none() {
                    $crate::spec::fields::not_a_choice(&node, Self::NAMES, reader);
                }
                value
            }
        }
    };
}

pub(crate) use {choice, record};

/// Parses a map with one group of fields.
pub(crate) fn read_record<T: Record>(node: Node, subject: &'static str, reader: &mut Reader) -> Option<T> {
    let mut fields = Fields::open(node, subject, reader)?;
    let record = T::read(&mut fields, reader);
    fields.finish([T::KEYS], reader);
    Some(record)
}

/// The key of a field: its Rust name without `r#`.
pub(crate) const fn key(field: &'static str) -> &'static str {
    match field.as_bytes() {
        [b'r', b'#', ..] => field.split_at(2).1,
        _ => field,
    }
}

/// Reports a value outside a closed set.
pub(crate) fn not_a_choice(node: &Node, expected: &[&str], reader: &mut Reader) {
    match node.as_text() {
        Some(value) => {
            let hint = suggest(value, expected).unwrap_or_default();
            reader.invalid(node.span, format!("invalid value `{value}`"), &hint);
        }
        None => reader.wrong_type(node, &format!("one of {}", crate::diagnostic::quoted(expected))),
    }
}
