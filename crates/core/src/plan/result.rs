//! Compiles `expect` and `fail_if`: the conditions under which the result of a call is a failure.

use super::compile::Compiler;
use super::{FailureName, ResultCheck};
use crate::diagnostic::{Code, Diagnostic};
use crate::expr::is_word;
use crate::limits;
use crate::spec::policy::Policy;
use crate::spec::result::{FailIf, FailRule};
use crate::spec::retry::FailureKind;
use crate::spec::value::Text;

impl Compiler<'_, '_> {
    /// The checks of a result, in the order of their evaluation: a response that is an error as `fail_if` describes it often
    /// lacks the values that `expect` reads.
    pub(super) fn result_checks(&mut self, policy: &Policy) -> Box<[ResultCheck]> {
        let mut checks = Vec::new();
        match &policy.fail_if {
            Some(FailIf::Condition(text)) => checks.extend(self.result_check(text, false)),
            Some(FailIf::Rules(rules)) => checks.extend(rules.iter().filter_map(|rule| self.fail_rule(rule))),
            None => {}
        }
        checks.extend(policy.expect.as_ref().and_then(|text| self.result_check(text, true)));
        checks.into()
    }

    fn result_check(&mut self, text: &Text, expected: bool) -> Option<ResultCheck> {
        let when = self.probe_condition(text)?;
        Some(ResultCheck { when, written: text.value.as_str().into(), expected, name: None, message: None })
    }

    fn fail_rule(&mut self, rule: &FailRule) -> Option<ResultCheck> {
        let name = rule.kind.as_ref().and_then(|name| self.failure_name(name));
        let message = rule.message.as_ref().map(|text| self.result_template(text));
        let check = self.result_check(rule.r#if.as_ref()?, false)?;
        Some(ResultCheck { name, message, ..check })
    }

    fn failure_name(&mut self, name: &Text) -> Option<FailureName> {
        match FailureKind::from_name(name) {
            Some(FailureKind::Transient) => return Some(FailureName::Transient),
            None if is_word(name) && name.len() <= limits::NAME_CHARS => {
                return Some(FailureName::Named(name.value.as_str().into()));
            }
            _ => {}
        }
        let message = format!("`{}` is not a valid name for a failure", name.value);
        let hint = "use letters, digits and `_`, such as `database_error`, and no kind that `retry_on` knows except `transient`";
        self.report(Diagnostic::new(Code::InvalidValue, name.span, message).hint(hint));
        None
    }
}
