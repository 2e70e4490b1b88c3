//! `sleep`: waits for a duration or until a timestamp.

use crate::diagnostic::{Code, Diagnostic};
use crate::document::Node;
use crate::spec::fields::{Fields, Reader, Record, record};
use crate::spec::value::Text;

record! {
    /// Waits for a duration or until a timestamp. The timer is durable: it survives restarts.
    pub struct Sleep {
        /// Duration: a number of seconds, text such as `5m`, or a template that returns one of these.
        r#for: Node,
        /// Timestamp with time zone, such as `2026-12-01T08:00:00Z`, or a template that returns one.
        until: Text,
    }
}

impl Sleep {
    pub(crate) fn read_checked(fields: &mut Fields, reader: &mut Reader) -> Self {
        let hint = "use either `for` (a duration) or `until` (a timestamp)";
        let (code, message) = match (fields.is_set("for"), fields.is_set("until")) {
            (true, true) => (Code::ConflictingFields, "`for` and `until` cannot be used together"),
            (false, false) => (Code::MissingField, "a `sleep` step needs `for` or `until`"),
            _ => return Self::read(fields, reader),
        };
        reader.report(Diagnostic::new(code, fields.span, message).hint(hint));
        Self::read(fields, reader)
    }
}
