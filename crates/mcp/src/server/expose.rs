//! Patterns of `--expose`: which tools of other servers are offered to clients, and under which names.

use std::str::FromStr;

use steprail_core::pattern;

/// One pattern: `git__*` exposes tools under their names, `read_*=files__read_*` renames them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expose {
    /// Pattern of the names that clients use.
    name: String,
    /// Pattern of the qualified names of the tools.
    tool: String,
}

impl FromStr for Expose {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, tool) = text.split_once('=').unwrap_or((text, text));
        let stars = |pattern: &str| pattern.matches('*').count();
        if name != tool && (stars(name) != stars(tool) || stars(name) > 1) {
            return Err(
                "write TOOL, PATTERN, NAME=TOOL, or NAME*=TOOL* with one star on each side".to_owned()
            );
        }
        Ok(Self { name: name.to_owned(), tool: tool.to_owned() })
    }
}

impl Expose {
    /// The name under which a tool is exposed.
    pub(super) fn name_of(&self, tool: &str) -> Option<String> {
        map_name(&self.tool, &self.name, tool)
    }

    /// The tool that is exposed under a name.
    pub(super) fn tool_of(&self, name: &str) -> Option<String> {
        map_name(&self.name, &self.tool, name)
    }
}

/// Matches a name with one pattern and inserts the text of its `*` into the other.
fn map_name(from: &str, to: &str, name: &str) -> Option<String> {
    if from == to || !from.contains('*') {
        return pattern::matches(from, name)
            .then(|| if from == to { name.to_owned() } else { to.to_owned() });
    }
    let (before, after) = from.split_once('*')?;
    let middle = name.strip_prefix(before)?.strip_suffix(after)?;
    Some(to.replacen('*', middle, 1))
}

#[cfg(test)]
mod tests {
    use super::Expose;

    #[test]
    fn tools_are_exposed_with_or_without_renaming() {
        let plain: Expose = "git__*".parse().expect("a pattern");
        assert_eq!(plain.name_of("git__log").as_deref(), Some("git__log"));
        assert_eq!(plain.tool_of("fs__log"), None);
        let renamed: Expose = "test_*=fixture__test_*".parse().expect("a pattern");
        assert_eq!(renamed.name_of("fixture__test_image").as_deref(), Some("test_image"));
        assert_eq!(renamed.tool_of("test_image").as_deref(), Some("fixture__test_image"));
        let one: Expose = "log=git__git_log".parse().expect("a name");
        assert_eq!(one.tool_of("log").as_deref(), Some("git__git_log"));
        assert!("a*=b".parse::<Expose>().is_err());
    }
}
