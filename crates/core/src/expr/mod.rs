//! The expression language: references, expressions, JSONPath, conditions and templates.
//!
//! Expressions are parsed and resolved once, when a definition is compiled. Evaluation borrows from the
//! values of a run and is bounded: loops visit the items of a list, text that it builds is limited to
//! [`crate::limits::RESULT_BYTES`], and all work is charged to a [`crate::budget::Budget`].

mod condition;
mod eval;
mod functions;
mod jsonpath;
mod lexer;
mod parser;
mod reference;
mod secret;
mod template;
mod truth;

pub use condition::Condition;
pub use eval::{Context, EvalError, EvalErrorKind, truthy};
pub use functions::{FUNCTION_GROUPS, Function, FunctionGroup, FunctionSpec, MacroCall, RegexCall};
pub use jsonpath::Query;
pub use parser::parse;
pub use reference::{Ambient, CallFact, IfMissing, Ref, RefPath, Resolve, Root, Segment, StepIx};
pub use secret::{
    SECRET_NAME_BYTES, SecretText, is_secret_name, references as secret_references,
    written as secret_reference,
};
pub use template::{Part, Template, ValueTemplate};

use serde_json::Value;

pub use crate::bounded_regex::{BoundedRegex, RegexError};
use crate::diagnostic::Code;

/// A problem of an expression, with its position in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The diagnostic code.
    pub code: Code,
    /// The message, without position.
    pub message: String,
    /// How to fix it.
    pub hint: Option<String>,
    /// The range of the text that the problem is about, in bytes.
    pub at: std::ops::Range<usize>,
}

impl Problem {
    /// Creates a problem without a hint.
    pub fn new(code: Code, at: std::ops::Range<usize>, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, at }
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// A parsed and resolved expression.
#[derive(Debug, Clone)]
pub enum Expr {
    /// A constant.
    Literal(Value),
    /// A value of the run.
    Ref(Ref),
    /// A JSONPath query that can match any number of values. Its value is a list.
    Query(Query),
    /// `[a, b]`
    List(Vec<Expr>),
    /// `{a: b}`
    Map(Vec<(Box<str>, Expr)>),
    /// `!a`
    Not(Box<Expr>),
    /// `-a`
    Negate(Box<Expr>),
    /// `a == b`, and all other operators with two operands
    Binary(Operator, Box<(Expr, Expr)>),
    /// `a ? b : c`
    Choose(Box<(Expr, Expr, Expr)>),
    /// `a[b]`, where `a` or `b` is computed
    Get(Box<(Expr, Expr)>),
    /// `a[b:c]`
    Slice(Box<(Expr, Option<Expr>, Option<Expr>)>),
    /// `f(a, b)`
    Call(Function, Vec<Expr>),
    /// `matches(a, "pattern")` and other functions with a pattern
    Regex(Box<RegexCall>),
    /// `a.map(x, b)` and other functions with a variable
    Macro(Box<MacroCall>),
}

/// An operator with two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Operator {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

impl Expr {
    /// Calls `visit` with every root that an evaluation can read.
    pub fn roots(&self, visit: &mut dyn FnMut(&Root)) {
        match self {
            // The parser resolves variables, so their values are those of other roots.
            Self::Ref(Ref { root: Root::Variable(_), .. }) => {}
            Self::Ref(reference) => visit(&reference.root),
            Self::Query(query) if matches!(query.base.root, Root::Variable(_)) => {}
            Self::Query(query) => visit(&query.base.root),
            other => other.for_each_part(&mut |part| part.roots(visit)),
        }
    }

    /// Calls `visit` with the expressions that this one consists of.
    pub fn for_each_part<'e>(&'e self, visit: &mut dyn FnMut(&'e Expr)) {
        match self {
            Self::Literal(_) | Self::Ref(_) | Self::Query(_) => {}
            Self::List(items) | Self::Call(_, items) => items.iter().for_each(visit),
            Self::Map(entries) => entries.iter().for_each(|(_, value)| visit(value)),
            Self::Not(inner) | Self::Negate(inner) => visit(inner),
            Self::Binary(_, sides) | Self::Get(sides) => {
                visit(&sides.0);
                visit(&sides.1);
            }
            Self::Choose(parts) => {
                visit(&parts.0);
                visit(&parts.1);
                visit(&parts.2);
            }
            Self::Slice(parts) => {
                visit(&parts.0);
                parts.1.iter().chain(&parts.2).for_each(visit);
            }
            Self::Regex(call) => call.arguments.iter().for_each(visit),
            Self::Macro(call) => {
                visit(&call.list);
                visit(&call.body);
            }
        }
    }
}

/// Whether a text is a name: letters, digits and `_`, with `-` between them.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && lexer::name_length(text) == text.len()
}

/// Whether a text can follow a `$`: letters, digits and `_`, not starting with a digit.
pub(crate) fn is_word(text: &str) -> bool {
    !text.is_empty() && lexer::word_length(text) == text.len()
}
