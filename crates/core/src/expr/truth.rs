//! Conditions: whether the value of an expression is truthy, without creating the value.

use std::borrow::Cow;

use serde_json::Value;

use super::eval::{Context, EvalError, truthy};
use super::reference::Root;
use super::{Expr, Operator};
use crate::budget::Budget;

impl Expr {
    /// Whether the value of the expression is truthy, at the same cost. A policy evaluates hundreds of conditions for a call,
    /// so the usual ones create no values.
    pub fn holds(&self, context: &dyn Context, budget: &mut Budget) -> Result<bool, EvalError> {
        match self {
            Self::Not(inner) => {
                budget.charge(1)?;
                inner.holds(context, budget).map(|holds| !holds)
            }
            Self::Binary(operator @ (Operator::And | Operator::Or), sides) => {
                budget.charge(1)?;
                let left = sides.0.holds(context, budget)?;
                if left == (*operator == Operator::Or) { Ok(left) } else { sides.1.holds(context, budget) }
            }
            Self::Binary(operator, sides) => match &**sides {
                (Self::Ref(reference), Self::Literal(right)) => {
                    budget.charge(2)?;
                    let left = reference.eval(context, budget)?;
                    budget.charge(1)?;
                    match operator.answer(left, right, budget)? {
                        Some(answer) => Ok(answer),
                        None => operator.compute(left, right, budget).map(|value| truthy(&value)),
                    }
                }
                _ => self.eval(context, budget).map(|value| truthy(&value)),
            },
            _ => self.eval(context, budget).map(|value| truthy(&value)),
        }
    }

    /// Replaces parts without references by their values.
    pub(super) fn folded(self) -> Self {
        let fold = |sides: Box<(Self, Self)>| Box::new((sides.0.folded(), sides.1.folded()));
        match self {
            Self::Binary(operator, sides) => {
                let sides = fold(sides);
                let is_constant = matches!(&*sides, (Self::Literal(_), Self::Literal(_)));
                let folded = Self::Binary(operator, sides);
                // An error is reported when the expression is evaluated.
                match is_constant
                    .then(|| folded.eval(&NoValues, &mut Budget::evaluation()).map(Cow::into_owned))
                {
                    Some(Ok(value)) => Self::Literal(value),
                    _ => folded,
                }
            }
            Self::Not(inner) => Self::Not(Box::new(inner.folded())),
            other => other,
        }
    }
}

/// The context of an expression without references.
struct NoValues;

impl Context for NoValues {
    fn value(&self, _: &Root) -> Option<&Value> {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bounded_regex::{BoundedRegex, RegexError, RegexSet};
    use crate::expr::{CallFact, Condition, Problem, Ref, RefPath, Resolve};

    struct Args(Value);

    impl Context for Args {
        fn value(&self, _: &Root) -> Option<&Value> {
            Some(&self.0)
        }
    }

    struct Names;

    impl Resolve for Names {
        fn resolve(&mut self, path: RefPath) -> Result<Ref, Problem> {
            Ok(path.below(Root::Call(CallFact::Args), 1))
        }

        fn regex(&mut self, pattern: &str) -> Result<BoundedRegex, RegexError> {
            RegexSet::default().compile(pattern)
        }
    }

    /// Conditions are evaluated without values; the result, the error and the cost are those of the evaluation with values.
    #[test]
    fn a_condition_has_the_truth_and_the_cost_of_its_value() {
        let args = Args(json!({ "n": 12, "t": "abc", "no": false, "list": [1, 12] }));
        let conditions = [
            "args.n > 5",
            "args.n > 3 * 4",
            "args.t == \"abc\" and args.n < 5",
            "args.no or not args.no",
            "args.n in args.list",
            "args.n + 1",
            "args.t < 5",
            "not (args.n == 12)",
            "args.gone == 1",
            "args.n - 12",
            "args.n == 12 ? args.no : true",
            "(1 + 2 == 3) and args.n / 0 > 1",
            "args.no and args.gone.x",
            "1 / 0 == 1 or args.n == 1",
            "size(args.t) >= 3",
        ];
        for text in conditions {
            let Ok(Condition::Expr(expr)) = Condition::parse(text, &mut Names) else { panic!("{text}") };
            let (mut full, mut quick) = (Budget::evaluation(), Budget::evaluation());
            let value = expr.eval(&args, &mut full).map(|value| truthy(&value));
            assert_eq!(expr.holds(&args, &mut quick), value, "{text}");
            assert_eq!(quick.spent(), full.spent(), "{text}");
            assert_eq!(expr.clone().folded().holds(&args, &mut Budget::evaluation()), value, "{text} folded");
        }
    }
}
