//! `branch`: one of several lists of steps, chosen by conditions.

use crate::diagnostic::{Code, Diagnostic};
use crate::spec::fields::{Fields, Reader, Record, record};
use crate::spec::step::Steps;
use crate::spec::value::Text;

record! {
    /// Runs the steps of the first condition that holds. Its output is that of the last step that ran.
    pub struct Branch {
        /// A JSONPath; true if it finds something other than `false`, `null`, 0, "" and empty lists and maps.
        on: Text,
        /// A condition, such as `steps.check.output.total > 100`.
        r#if: Text,
        /// The steps that run if the condition holds.
        then: Steps,
        /// Several conditions, tried in order.
        #[schemars(length(min = 1))]
        cases: Vec<Case>,
        /// The steps that run if no condition holds. Without it, the run fails with `no_branch_matched`.
        r#else: Steps,
    }
}

record! {
    /// A condition and its steps.
    pub struct Case("a case") {
        /// A condition, such as `steps.check.output.total > 100`.
        @required r#if: Text,
        /// The steps that run if it is the first that holds.
        @required then: Steps,
    }
}

impl Branch {
    pub(crate) fn read_one(fields: &mut Fields, reader: &mut Reader) -> Self {
        let conditions: Vec<&str> =
            ["on", "if", "cases"].into_iter().filter(|key| fields.is_set(key)).collect();
        match conditions.as_slice() {
            [] => {
                let message = "a `branch` step needs a condition";
                let hint = "give it `on` (a JSONPath), `if` (an expression) or `cases`";
                reader.report(Diagnostic::new(Code::MissingField, fields.place, message).hint(hint));
            }
            ["cases"] if fields.is_set("then") => {
                let message = "`then` belongs to `on` or `if`; each of the `cases` has its own";
                reader.report(Diagnostic::new(Code::ConflictingFields, fields.place, message));
            }
            ["cases"] => fields.require_items("cases", reader),
            [_] => fields.require("then", reader),
            [one, other, ..] => {
                let message = format!("`{one}` and `{other}` are both conditions of this branch");
                let hint = "use `cases` for several conditions";
                reader.report(Diagnostic::new(Code::ConflictingFields, fields.place, message).hint(hint));
            }
        }
        Self::read(fields, reader)
    }
}
