//! The source text of a definition, and positions in it.

/// A range of bytes in a [`Source`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// The bytes from `start` to `end`, exclusive. Offsets fit into 32 bits, see [`crate::limits`].
    pub fn new(start: usize, end: usize) -> Self {
        let clamp = |offset: usize| u32::try_from(offset).unwrap_or(u32::MAX);
        Self { start: clamp(start), end: clamp(end.max(start)) }
    }

    /// The span as a range for slicing.
    pub fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// A line and column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

/// The format of a definition's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JSON.
    Json,
    /// YAML 1.2.
    Yaml,
    /// JSON if the text parses as JSON, otherwise YAML.
    Detect,
}

/// A definition's text and its name.
#[derive(Debug, Clone)]
pub struct Source {
    name: String,
    text: String,
    format: Format,
}

impl Source {
    /// Creates a source from a file or a request. Messages show `name`; its extension selects the format.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        let (name, mut text) = (name.into(), text.into());
        // The byte order mark is not part of the text.
        if text.starts_with('\u{feff}') {
            text.drain(..'\u{feff}'.len_utf8());
        }
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension).to_ascii_lowercase();
        let format = match extension.as_str() {
            "json" => Format::Json,
            "yaml" | "yml" => Format::Yaml,
            _ => Format::Detect,
        };
        Self { name, text, format }
    }

    /// Creates a source from a JSON value; messages show it as indented JSON.
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

    /// The format of the text.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The file name without directories and extensions: the default name of a definition.
    pub fn stem(&self) -> &str {
        let file = self.name.rsplit(['/', '\\']).next().unwrap_or_default();
        file.split_once('.').map_or(file, |(stem, _)| stem)
    }

    /// Returns the line and column of a byte offset.
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
        assert_eq!(source.position(10), source.position(9), "an offset inside a character maps to its start");
        assert_eq!(source.position(99), Position { line: 2, column: 6 });
    }

    #[test]
    fn stem_is_the_file_name_without_extensions() {
        assert_eq!(Source::new("flows/nightly.sync.yaml", "").stem(), "nightly");
        assert_eq!(Source::new("-", "").stem(), "-");
    }
}
