//! The functions of expressions: their table, and the check and evaluation of calls. One file per group.
//!
//! A function charges its work to the budget before it does it, and text that it builds is limited to
//! [`crate::limits::RESULT_BYTES`]. The results depend on the arguments only, except for `now` and `uuid`, whose values a
//! `let` step records.

mod arguments;
mod encoding;
mod format;
mod general;
mod lists;
mod macros;
mod maps;
mod numbers;
mod other_names;
mod quoting;
mod regexes;
mod strings;
mod time;

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;

pub use macros::MacroCall;
pub(super) use other_names::suggestion;
pub use regexes::RegexCall;

use self::arguments::Arguments;
use self::macros::Macro;
use self::regexes::RegexEval;
use super::eval::{Context, EvalError, EvalErrorKind};
use super::reference::{IfMissing, Ref, Resolve, Root};
use super::{Expr, Problem};
use crate::budget::Budget;
use crate::diagnostic::Code;

/// The cost of a value that a function creates, besides its bytes.
const PART_COST: usize = 5;
/// Bytes of text that are parsed or converted for one unit.
const CONVERTED_BYTES: usize = 2;

type EvalResult<'v> = Result<Cow<'v, Value>, EvalError>;

/// Evaluates a function whose arguments are all evaluated before.
type PlainEval = for<'v> fn(&mut Arguments<'v>, &mut Budget) -> EvalResult<'v>;

/// The declaration of a function.
#[derive(Debug)]
pub struct FunctionSpec {
    /// The name.
    pub name: &'static str,
    /// The name with its parameters; optional ones are in brackets.
    pub signature: &'static str,
    /// What the function returns.
    pub description: &'static str,
    /// An example and its value as JSON: `upper("a") => "A"`. A test evaluates it.
    pub example: &'static str,
    /// The minimum and maximum number of arguments.
    arity: (usize, usize),
    form: Form,
}

/// How a function is checked and evaluated.
#[derive(Debug, Clone, Copy)]
enum Form {
    Plain(PlainEval),
    /// Returns whether its reference has a value.
    Has,
    /// Evaluates its second argument only if the first has no value.
    Default,
    /// Has a pattern, which is compiled with the definition.
    Regex(RegexEval),
    /// Evaluates an expression for each item of a list.
    Macro(Macro),
    /// Returns the time of the decision.
    Now,
    /// Returns a new UUID.
    Uuid,
}

/// A group of functions on the reference page.
#[derive(Debug)]
pub struct FunctionGroup {
    /// The heading.
    pub title: &'static str,
    /// The functions, in the order of the page.
    pub functions: &'static [FunctionSpec],
}

/// All functions, by group.
pub const FUNCTION_GROUPS: &[FunctionGroup] = &[
    FunctionGroup { title: "Values", functions: general::FUNCTIONS },
    FunctionGroup { title: "Text", functions: strings::FUNCTIONS },
    FunctionGroup { title: "Regular expressions", functions: regexes::FUNCTIONS },
    FunctionGroup { title: "Numbers", functions: numbers::FUNCTIONS },
    FunctionGroup { title: "Lists", functions: lists::FUNCTIONS },
    FunctionGroup { title: "Expressions for each item", functions: macros::FUNCTIONS },
    FunctionGroup { title: "Maps", functions: maps::FUNCTIONS },
    FunctionGroup { title: "Time", functions: time::FUNCTIONS },
    FunctionGroup { title: "Encoding", functions: encoding::FUNCTIONS },
    FunctionGroup { title: "Quoting", functions: quoting::FUNCTIONS },
];

/// Declares a function whose arguments are all evaluated before.
const fn plain(
    signature: (&'static str, &'static str),
    arity: (usize, usize),
    description: &'static str,
    example: &'static str,
    eval: PlainEval,
) -> FunctionSpec {
    declare(signature, arity, description, example, Form::Plain(eval))
}

const fn declare(
    (name, signature): (&'static str, &'static str),
    arity: (usize, usize),
    description: &'static str,
    example: &'static str,
    form: Form,
) -> FunctionSpec {
    FunctionSpec { name, signature, description, example, arity, form }
}

/// A function that expressions can call: `f(a, b)`, `a.f(b)` or `a | f(b)`.
#[derive(Debug, Clone, Copy)]
pub struct Function(&'static FunctionSpec);

impl Function {
    /// All functions, in the order of the reference page.
    pub fn all() -> impl Iterator<Item = &'static FunctionSpec> {
        FUNCTION_GROUPS.iter().flat_map(|group| group.functions)
    }

    /// The function with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|function| function.name == name).map(Self)
    }

    /// The name of the function.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The signature and the description.
    pub(super) fn usage(self) -> String {
        self.0.usage()
    }

    /// Whether the function accepts a reference without a value.
    pub fn accepts_missing(self) -> bool {
        matches!(self.0.form, Form::Has | Form::Default)
    }

    /// Whether the function binds a variable: `xs.map(x, x + 1)`.
    pub(super) fn is_macro(self) -> bool {
        matches!(self.0.form, Form::Macro(_))
    }

    /// Checks the arguments and creates the call.
    pub(super) fn call(
        self,
        mut arguments: Vec<Expr>,
        at: Range<usize>,
        names: &mut dyn Resolve,
    ) -> Result<Expr, Problem> {
        let (least, most) = self.0.arity;
        if !(least..=most).contains(&arguments.len()) {
            return Err(self.wrong_arity(arguments.len(), at));
        }
        let problem = |message: String| Problem::new(Code::InvalidExpression, at.clone(), message);
        match self.0.form {
            Form::Has if !matches!(arguments[0], Expr::Ref(_) | Expr::Query(_) | Expr::Get(_)) => {
                Err(problem("`has` takes a reference, such as `has(steps.a.output.b)`".to_owned()))
            }
            Form::Regex(eval) => {
                let Expr::Literal(Value::String(pattern)) = arguments.remove(1) else {
                    let name = self.name();
                    return Err(problem(format!("the pattern of `{name}` must be text in quotes")));
                };
                RegexCall::compile(self, eval, arguments, &pattern, at, names)
            }
            Form::Now | Form::Uuid if !names.records_values() => {
                let message =
                    format!("`{}` is only available in a `let` step, which records its value", self.name());
                Err(problem(message)
                    .hint("add a step such as `{id: made, let: {at: \"{{now()}}\"}}` and read `{{made.at}}`"))
            }
            Form::Now => Ok(Expr::Ref(Ref {
                root: Root::Now,
                path: Box::default(),
                if_missing: IfMissing::Fail,
                written: "now()".into(),
            })),
            Form::Plain(_) | Form::Has | Form::Default | Form::Macro(_) | Form::Uuid => {
                Ok(Expr::Call(self, arguments))
            }
        }
    }

    fn wrong_arity(self, found: usize, at: Range<usize>) -> Problem {
        let name = self.name();
        let message = match self.0.arity {
            (least, most) if least == most => format!("`{name}` takes {least} argument(s), not {found}"),
            (least, most) => format!("`{name}` takes {least} to {most} arguments, not {found}"),
        };
        Problem::new(Code::InvalidExpression, at, message).hint(self.0.usage())
    }

    pub(super) fn eval<'c>(
        self,
        arguments: &'c [Expr],
        context: &'c dyn Context,
        budget: &mut Budget,
    ) -> EvalResult<'c> {
        match (self.0.form, arguments) {
            (Form::Has, [value, ..]) => {
                non_null(value.eval(context, budget)).map(|value| owned(value.is_some()))
            }
            (Form::Default, [value, fallback, ..]) => match non_null(value.eval(context, budget))? {
                None => fallback.eval(context, budget),
                Some(value) => Ok(value),
            },
            (Form::Plain(eval), _) => {
                let values = arguments.iter().map(|argument| argument.eval(context, budget));
                let values = values.collect::<Result<Vec<_>, EvalError>>()?;
                eval(&mut Arguments { function: self.0, values }, budget)
            }
            (Form::Uuid, _) => encoding::uuid(context, budget),
            // The parser creates other nodes for these.
            (Form::Has | Form::Default | Form::Regex(_) | Form::Macro(_) | Form::Now, _) => {
                Ok(Cow::Owned(Value::Null))
            }
        }
    }
}

impl FunctionSpec {
    /// The signature and the description, for messages and lists.
    pub fn usage(&self) -> String {
        format!("`{}`: {}", self.signature, self.description)
    }

    /// The expression of the example and its value, as JSON.
    pub fn example(&self) -> (&'static str, &'static str) {
        self.example.rsplit_once(" => ").unwrap_or((self.example, ""))
    }
}

/// Returns the value, or `None` if it is missing or null.
fn non_null(result: EvalResult<'_>) -> Result<Option<Cow<'_, Value>>, EvalError> {
    match result {
        Ok(value) if value.is_null() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind == EvalErrorKind::Missing => Ok(None),
        Err(error) => Err(error),
    }
}

fn owned<'v>(value: impl Into<Value>) -> Cow<'v, Value> {
    Cow::Owned(value.into())
}
