//! Reading a map field by field: every problem is reported, and no key is passed over.

use crate::diagnostic::{Code, Diagnostic, Diagnostics, suggest};
use crate::document::{Data, Entry, Node};
use crate::source::Span;

/// What reading a definition needs at hand.
pub(crate) struct Reader<'s> {
    pub out: &'s mut Diagnostics,
    /// The step being read, which its problems are filed under.
    pub step: Option<String>,
    /// Steps read so far, against [`crate::limits::STEPS`].
    pub steps: usize,
    /// Blocks that are open, against [`crate::limits::BLOCK_DEPTH`].
    pub depth: usize,
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

/// A type that a value of a document can be read into. `None`: it could not, and that is reported.
pub(crate) trait FromNode: Sized {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self>;
}

/// A group of fields, declared with [`record!`].
pub(crate) trait Record: Sized {
    /// The keys of the group.
    const KEYS: &[&str];
    /// Those that must be there.
    const REQUIRED: &[&str];

    /// Takes the group's fields out of a map.
    fn read(fields: &mut Fields, reader: &mut Reader) -> Self;
}

/// The entries of a map that have not been read yet.
pub(crate) struct Fields {
    /// What the map is, for messages: "a tool step".
    what: &'static str,
    entries: Vec<Entry>,
    /// The place to blame for what is missing.
    pub place: Span,
}

impl Fields {
    /// Opens a map; anything else is reported.
    pub(crate) fn open(node: Node, what: &'static str, reader: &mut Reader) -> Option<Self> {
        let Data::Map(entries) = node.data else {
            reader.wrong_type(&node, &format!("{what} (a map)"));
            return None;
        };
        let place = entries.first().map_or(node.span, |entry| entry.key_span);
        Some(Self { what, entries, place })
    }

    pub(crate) fn call_it(&mut self, what: &'static str) {
        self.what = what;
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| &*entry.key == key)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// Whether the key is there with a value other than null.
    pub(crate) fn is_set(&self, key: &str) -> bool {
        self.entry(key).is_some_and(|entry| !matches!(entry.value.data, Data::Null))
    }

    /// The text of a field, if it is text.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.entry(key).and_then(|entry| entry.value.as_text())
    }

    /// Drops what is known elsewhere.
    pub(crate) fn drop_known(&mut self, known: &[&[&str]]) {
        self.entries.retain(|entry| !known.iter().any(|keys| keys.contains(&&*entry.key)));
    }

    /// The keys that have not been read yet, with their places.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&str, Span)> {
        self.entries.iter().map(|entry| (&*entry.key, entry.key_span))
    }

    /// Takes a field out as it is.
    pub(crate) fn take_node(&mut self, key: &str) -> Option<Entry> {
        let at = self.entries.iter().position(|entry| &*entry.key == key)?;
        Some(self.entries.swap_remove(at))
    }

    /// Drops a field that says nothing: `{}`.
    pub(crate) fn take_empty_map(&mut self, key: &str) {
        let is_empty = |entry: &Entry| matches!(&entry.value.data, Data::Map(entries) if entries.is_empty());
        if self.entry(key).is_some_and(is_empty) {
            self.take_node(key);
        }
    }

    /// Takes a field out if it is a list.
    pub(crate) fn take_list(&mut self, key: &str) -> Option<Entry> {
        let is_list = self.entry(key).is_some_and(|entry| matches!(entry.value.data, Data::List(_)));
        if is_list { self.take_node(key) } else { None }
    }

    pub(crate) fn put_back(&mut self, entry: Option<Entry>) {
        self.entries.extend(entry);
    }

    /// Takes a field out and reads it. Null means absent.
    pub(crate) fn take<T: FromNode>(&mut self, key: &str, reader: &mut Reader) -> Option<T> {
        let entry = self.take_node(key)?;
        if matches!(entry.value.data, Data::Null) { None } else { T::from_node(entry.value, reader) }
    }

    /// Reports a field that must be there and is not.
    pub(crate) fn require(&self, key: &str, reader: &mut Reader) {
        if !self.is_set(key) {
            let message = format!("{} needs `{key}`", self.what);
            reader.report(Diagnostic::new(Code::MissingField, self.place, message));
        }
    }

    /// Reports a list that must not be empty and is.
    pub(crate) fn require_items(&self, key: &str, reader: &mut Reader) {
        let is_empty = |entry: &&Entry| matches!(&entry.value.data, Data::List(items) if items.is_empty());
        if let Some(entry) = self.entry(key).filter(is_empty) {
            let message = format!("`{key}` of {} is empty", self.what);
            reader.report(Diagnostic::new(Code::MissingField, entry.value.span, message));
        }
    }

    /// Reports two fields that say the same thing.
    pub(crate) fn conflict(&self, [one, other]: [&str; 2], reader: &mut Reader) {
        if self.is_set(one) && self.is_set(other) {
            let message = format!("`{one}` and `{other}` say the same thing");
            reader.report(
                Diagnostic::new(Code::ConflictingFields, self.place, message).hint("keep one of them"),
            );
        }
    }

    /// Everything that is left, for maps whose keys are names.
    pub(crate) fn rest(self) -> Vec<Entry> {
        self.entries
    }

    /// Reports every key that nobody took.
    pub(crate) fn finish<'k>(self, known: impl IntoIterator<Item = &'k [&'static str]>, reader: &mut Reader) {
        if self.entries.is_empty() {
            return;
        }
        let known: Vec<&str> = known.into_iter().flatten().copied().collect();
        for entry in self.entries {
            let message = format!("unknown key `{}` in {}", entry.key, self.what);
            let mut diagnostic = Diagnostic::new(Code::UnknownKey, entry.key_span, message);
            diagnostic.hint = suggest(&entry.key, &known);
            reader.report(diagnostic);
        }
    }
}

/// Declares a group of fields once: the struct, its JSON Schema and how it is read.
/// Every field may be missing in the struct, so that one mistake does not hide the next.
/// With a name for messages in brackets, the group is a map of its own.
macro_rules! record {
    (
        $(#[$meta:meta])*
        pub struct $name:ident $(($what:literal))? {
            $($(#[$field_meta:meta])* $(@$required:ident)? $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default, serde::Serialize, schemars::JsonSchema)]
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
                    $crate::spec::fields::whole_map(node, $what, reader)
                }
            }
        )?
    };
}

/// Declares a closed set of words once: the enum, its JSON Schema and how it is read.
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
            /// The words that stand for the variants.
            pub const WORDS: &[&str] = &[$($word),+];

            /// The word for this variant.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// The variant that a word stands for.
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }

        impl $crate::spec::fields::FromNode for $name {
            fn from_node(
                node: $crate::document::Node,
                reader: &mut $crate::spec::fields::Reader,
            ) -> Option<Self> {
                let found = node.as_text().and_then(Self::from_word);
                if found.is_none() {
                    $crate::spec::fields::not_a_choice(&node, Self::WORDS, reader);
                }
                found
            }
        }
    };
}

pub(crate) use {choice, record};

/// Reads a map that holds one group of fields and nothing else.
pub(crate) fn whole_map<T: Record>(node: Node, what: &'static str, reader: &mut Reader) -> Option<T> {
    let mut fields = Fields::open(node, what, reader)?;
    let record = T::read(&mut fields, reader);
    fields.finish([T::KEYS], reader);
    Some(record)
}

/// The key of a field whose Rust name may need `r#`.
pub(crate) const fn key(field: &'static str) -> &'static str {
    match field.as_bytes() {
        [b'r', b'#', ..] => field.split_at(2).1,
        _ => field,
    }
}

/// Reports a value outside a closed set of words.
pub(crate) fn not_a_choice(node: &Node, words: &[&str], reader: &mut Reader) {
    match node.as_text() {
        Some(word) => {
            let hint = suggest(word, words).unwrap_or_default();
            reader.invalid(node.span, format!("`{word}` is not possible here"), &hint);
        }
        None => reader.wrong_type(node, &format!("one of {}", crate::diagnostic::quoted(words))),
    }
}
