//! `sleep`: a pause for a time or until a moment.

use crate::diagnostic::{Code, Diagnostic};
use crate::document::Node;
use crate::spec::fields::{Fields, Reader, Record, record};
use crate::spec::value::Text;

record! {
    /// Waits for a length of time or until a moment; it survives a restart.
    pub struct Sleep {
        /// How long: seconds, text such as `5m`, or a template that gives one of these.
        r#for: Node,
        /// Until when: a moment such as `2026-12-01T08:00:00Z`, or a template that gives one.
        until: Text,
    }
}

impl Sleep {
    pub(crate) fn read_one(fields: &mut Fields, reader: &mut Reader) -> Self {
        let hint = "give it `for` (a length of time) or `until` (a moment)";
        let (code, message) = match (fields.is_set("for"), fields.is_set("until")) {
            (true, true) => (Code::ConflictingFields, "`for` and `until` both say how long to sleep"),
            (false, false) => (Code::MissingField, "a `sleep` step needs to know how long"),
            _ => return Self::read(fields, reader),
        };
        reader.report(Diagnostic::new(code, fields.place, message).hint(hint));
        Self::read(fields, reader)
    }
}
