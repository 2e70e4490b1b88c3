//! Text that is written line by line, with names for what is in it.

/// Indented lines, and a supply of names.
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

    /// A name that no other thing has.
    pub(super) fn name(&mut self, prefix: &str) -> String {
        self.names += 1;
        format!("{prefix}{}", self.names)
    }
}
