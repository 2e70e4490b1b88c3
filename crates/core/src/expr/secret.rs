//! References to secrets, `${secret:NAME}`, in arguments of calls.
//!
//! A template keeps the reference as text, so events, approvals and hashes contain the reference and never the value. The
//! plan records which texts contain references, so that the same characters in a value of the run are not resolved.

use std::ops::Range;

/// The start of a reference.
pub(super) const OPEN: &str = "${secret:";
/// The maximum length of a name, in bytes.
pub const SECRET_NAME_BYTES: usize = 128;

/// A text of the arguments in which the definition refers to secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretText {
    /// Where the text is in the arguments, as a JSON Pointer.
    pub pointer: Box<str>,
    /// The names of the secrets, in the order of the text.
    pub names: Box<[Box<str>]>,
}

/// The reference to a secret, as written.
pub fn written(name: &str) -> String {
    format!("{OPEN}{name}}}")
}

/// Whether a text is a valid name of a secret: letters, digits, `_`, `-` and `.`.
pub fn is_secret_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    !name.is_empty() && name.len() <= SECRET_NAME_BYTES && name.bytes().all(is_allowed)
}

/// The references in a text: the position and the name of each.
pub fn references(text: &str) -> impl Iterator<Item = (Range<usize>, &str)> {
    text.match_indices(OPEN).filter_map(|(start, _)| {
        let (name, length) = reference_at_start(&text[start..])?;
        Some((start..start + length, name))
    })
}

/// The name of the reference that a text starts with, and the length of the reference.
pub(super) fn reference_at_start(text: &str) -> Option<(&str, usize)> {
    let rest = text.strip_prefix(OPEN)?;
    let end = rest.bytes().take(SECRET_NAME_BYTES + 1).position(|byte| byte == b'}')?;
    let name = &rest[..end];
    is_secret_name(name).then_some((name, OPEN.len() + end + 1))
}

#[cfg(test)]
mod tests {
    use super::references;
    use crate::plan::Kind;
    use crate::source::Source;

    /// The pointers and names of the references in the arguments of a step.
    fn secrets(args: &str) -> Vec<String> {
        let text = format!(
            "name: w\ninputs: {{ x: {{ type: string }} }}\nsteps: [{{ id: a, tool: s__t, args: {args} }}]"
        );
        let loaded = crate::load(&Source::new("w", text));
        let Some(plan) = loaded.plan else { return vec![format!("{:?}", loaded.diagnostics[0].message)] };
        let Kind::Call(call) = &plan.steps[0].kind else { panic!("a call") };
        call.secrets.iter().map(|text| format!("{} {}", text.pointer, text.names.join(","))).collect()
    }

    #[test]
    fn plans_record_literal_references_only() {
        assert_eq!(secrets(r#"{ a: "${secret:x}", b: ["no", "Bearer ${secret:y}"] }"#), ["/a x", "/b/1 y"]);
        assert_eq!(secrets(r#"{ a/b: { "~": "${secret:x}{{inputs.x}}${secret:y}" } }"#), ["/a~1b/~0 x,y"]);
        assert!(secrets(r#"{ a: "$${secret:x}", b: "{{ '${secret:x}' }}", c: "{{inputs.x}}" }"#).is_empty());
        assert!(secrets("{ a: \"${secret:my token}\" }")[0].contains("not followed by the name of a secret"));
    }

    #[test]
    fn finds_references_in_evaluated_text() {
        let names = |text| references(text).map(|(_, name)| name).collect::<Vec<_>>();
        assert_eq!(names("${secret:${secret:a}${secret:b.c-d_1}"), ["a", "b.c-d_1"]);
        assert!(names("${secret:} ${secret:a b} ${secret:a ${secre:t} ${secret:ü}").is_empty());
    }
}
