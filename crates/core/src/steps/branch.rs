//! `branch`: runs one of several lists of steps, selected by conditions.

use crate::diagnostic::{Code, Diagnostic};
use crate::spec::fields::{Fields, Reader, Record, record};
use crate::spec::step::Steps;
use crate::spec::value::Text;

record! {
    /// Runs the steps of the first condition that holds. The output is that of the last step that ran.
    pub struct Branch {
        /// JSONPath query as condition. It holds if the result is not `false`, `null`, 0, "" or an empty list or map.
        on: Text,
        /// Condition: an expression such as `steps.check.output.total > 100`.
        r#if: Text,
        /// Steps to run if the condition holds.
        then: Steps,
        /// Several conditions with their steps, evaluated in order.
        #[schemars(length(min = 1))]
        cases: Vec<Case>,
        /// Steps to run if no condition holds. Without it, a step with `on` or `if` does nothing then, and one with `cases`
        /// fails with `no_branch_matched`.
        r#else: Steps,
    }
}

record! {
    /// A condition and its steps.
    pub struct Case("a case") {
        /// Condition: an expression such as `steps.check.output.total > 100`.
        @required r#if: Text,
        /// Steps to run if this is the first condition that holds.
        @required then: Steps,
    }
}

impl Branch {
    pub(crate) fn read_checked(fields: &mut Fields, reader: &mut Reader) -> Self {
        let conditions: Vec<&str> =
            ["on", "if", "cases"].into_iter().filter(|key| fields.is_set(key)).collect();
        match conditions.as_slice() {
            [] => {
                let message = "a `branch` step needs a condition";
                let hint = "add `on` (a JSONPath query), `if` (an expression) or `cases`";
                reader.report(Diagnostic::new(Code::MissingField, fields.span, message).hint(hint));
            }
            ["cases"] if fields.is_set("then") => {
                let message = "`then` cannot be used together with `cases`: each case has its own `then`";
                reader.report(Diagnostic::new(Code::ConflictingFields, fields.span, message));
            }
            ["cases"] => fields.require_items("cases", reader),
            [_] => fields.require("then", reader),
            [one, other, ..] => {
                let message = format!("`{one}` and `{other}` cannot be used together");
                let hint = "use `cases` for several conditions";
                reader.report(Diagnostic::new(Code::ConflictingFields, fields.span, message).hint(hint));
            }
        }
        Self::read(fields, reader)
    }
}
