//! Patterns of tool names: `crm__read_*`, `git__*`, `*`.

/// Whether a pattern matches a name. `*` matches any text.
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = name.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn star_matches_any_text() {
        for (pattern, name, expected) in [
            ("crm__read_*", "crm__read_contact", true),
            ("crm__read_*", "crm__write_contact", false),
            ("*", "anything", true),
            ("git__log", "git__log", true),
            ("git__log", "git__logs", false),
            ("*__get_*_by_id", "crm__get_contact_by_id", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} on {name}");
        }
    }
}
