//! Builds indented text with unique names, for Mermaid and Graphviz.

/// Indented lines, and a counter for unique names.
#[derive(Default)]
pub(super) struct Lines {
    pub out: String,
    names: usize,
}

impl Lines {
    pub(super) fn line(&mut self, depth: usize, text: &str) {
        self.out.push_str(&"  ".repeat(depth));
        self.out.push_str(text);
        self.out.push('\n');
    }

    /// Returns a unique name.
    pub(super) fn name(&mut self, prefix: &str) -> String {
        self.names += 1;
        format!("{prefix}{}", self.names)
    }
}
