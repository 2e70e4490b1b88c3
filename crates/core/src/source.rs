//! The text of a definition, and places in it.

/// A range of bytes in a [`Source`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// The bytes from `start` up to `end`; a document is far smaller than 4 GiB, see [`crate::limits`].
    pub fn new(start: usize, end: usize) -> Self {
        let clamp = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Self { start: clamp(start), end: clamp(end.max(start)) }
    }

    /// The span as a range for slicing.
    pub fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// A line and a column, both counted from 1; the column counts characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

/// How a definition is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JSON and nothing else.
    Json,
    /// YAML 1.2 (which most JSON is, too).
    Yaml,
    /// JSON if it reads as JSON, otherwise YAML.
    Guess,
}

/// A definition's text with the name under which people know it.
#[derive(Debug, Clone)]
pub struct Source {
    name: String,
    text: String,
    format: Format,
}

impl Source {
    /// Text from a file or a request. `name` is shown in messages; its ending tells JSON from YAML.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        let (name, mut text) = (name.into(), text.into());
        // A byte order mark is no part of the text.
        if text.starts_with('\u{feff}') {
            text.drain(..'\u{feff}'.len_utf8());
        }
        let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending).to_ascii_lowercase();
        let format = match ending.as_str() {
            "json" => Format::Json,
            "yaml" | "yml" => Format::Yaml,
            _ => Format::Guess,
        };
        Self { name, text, format }
    }

    /// A definition that arrived as a JSON value; messages show it as indented JSON.
    pub fn from_value(name: impl Into<String>, value: &serde_json::Value) -> Self {
        Self { name: name.into(), text: format!("{value:#}"), format: Format::Json }
    }

    /// The name shown in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How the text is written.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The file's name without folders and ending: what a definition without `name` is called.
    pub fn stem(&self) -> &str {
        let file = self.name.rsplit(['/', '\\']).next().unwrap_or_default();
        file.split_once('.').map_or(file, |(stem, _)| stem)
    }

    /// The line and column of a byte.
    pub fn position(&self, byte: u32) -> Position {
        let mut byte = (byte as usize).min(self.text.len());
        while !self.text.is_char_boundary(byte) {
            byte -= 1;
        }
        let before = &self.text[..byte];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Position {
            line: before.bytes().filter(|byte| *byte == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters_from_one() {
        let source = Source::new("a.yaml", "é: 1\nb: ü!");
        assert_eq!(source.position(0), Position { line: 1, column: 1 });
        assert_eq!(source.position(6), Position { line: 2, column: 1 });
        assert_eq!(source.position(11), Position { line: 2, column: 5 });
        assert_eq!(source.position(10), source.position(9), "inside a character means its start");
        assert_eq!(source.position(99), Position { line: 2, column: 6 });
    }

    #[test]
    fn the_stem_names_an_unnamed_definition() {
        assert_eq!(Source::new("flows/nightly.sync.yaml", "").stem(), "nightly");
        assert_eq!(Source::new("-", "").stem(), "-");
    }
}
