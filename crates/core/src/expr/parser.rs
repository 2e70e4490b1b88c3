//! The parser of expressions, by precedence climbing.
//!
//! Operators from lowest to highest precedence: `a ? b : c` · `or ||` · `and &&` · `not` · `== != < <= > >= in` · `+ -` ·
//! `* / %` · `! -` · `.name [index] .f(x) | f(x)`.

use serde_json::Value;

use super::functions::{Function, MacroCall, suggestion};
use super::jsonpath;
use super::lexer::{Lexer, Token, constant_segment, path_length};
use super::reference::{Ref, RefPath, Resolve, Root, Segment};
use super::{Expr, Operator, Problem};
use crate::bounded_regex::{BoundedRegex, RegexError};
use crate::diagnostic::Code;
use crate::limits;

/// Parses a whole text as one expression.
pub fn parse(text: &str, names: &mut dyn Resolve) -> Result<Expr, Problem> {
    let (expr, rest) = parse_prefix(text, 0, names)?;
    match rest {
        Rest { token: Token::End, .. } => Ok(expr),
        Rest { start, end, .. } => Err(unexpected(start..end, "an operator or the end")),
    }
}

/// The first token after an expression.
pub(super) struct Rest {
    pub token: Token,
    pub start: usize,
    pub end: usize,
}

/// Parses the expression at a byte offset, up to the first token that is not part of it.
pub(super) fn parse_prefix(
    text: &str,
    start: usize,
    names: &mut dyn Resolve,
) -> Result<(Expr, Rest), Problem> {
    let mut parser = Parser {
        lexer: Lexer { text, at: start },
        token: Token::End,
        start,
        names,
        variables: Vec::new(),
        depth: 0,
        limit: start + limits::EXPRESSION_BYTES,
    };
    parser.advance()?;
    let expr = parser.choose()?;
    let end = parser.lexer.at;
    Ok((expr.expr, Rest { token: parser.token, start: parser.start, end }))
}

/// An expression and the depth of its tree, which bounds the recursion of an evaluation.
struct ParsedExpr {
    expr: Expr,
    depth: usize,
}

struct Parser<'t, 'n> {
    lexer: Lexer<'t>,
    /// The lookahead token, and where it starts.
    token: Token,
    start: usize,
    names: &'n mut dyn Resolve,
    /// The variables of the enclosing functions, such as `x` of `xs.map(x, …)`.
    variables: Vec<Box<str>>,
    /// Recursion depth of the parser.
    depth: usize,
    /// The byte offset at which the expression is too long.
    limit: usize,
}

/// Precedences; `not` is between `and` and the comparisons.
const NOT: u8 = 3;
const COMPARISON: u8 = 4;

/// Returns the operator for a name or symbol, and its precedence.
fn operator(word: &str) -> Option<(Operator, u8)> {
    Some(match word {
        "||" | "or" => (Operator::Or, 1),
        "&&" | "and" => (Operator::And, 2),
        "==" => (Operator::Equal, COMPARISON),
        "!=" => (Operator::NotEqual, COMPARISON),
        "<=" => (Operator::LessOrEqual, COMPARISON),
        "<" => (Operator::Less, COMPARISON),
        ">=" => (Operator::GreaterOrEqual, COMPARISON),
        ">" => (Operator::Greater, COMPARISON),
        "in" => (Operator::In, COMPARISON),
        "+" => (Operator::Add, 5),
        "-" => (Operator::Subtract, 5),
        "*" => (Operator::Multiply, 6),
        "/" => (Operator::Divide, 6),
        "%" => (Operator::Remainder, 6),
        _ => return None,
    })
}

impl Parser<'_, '_> {
    fn advance(&mut self) -> Result<Token, Problem> {
        self.lexer.skip_space();
        self.start = self.lexer.at;
        if self.start > self.limit {
            let message = format!("an expression has at most {} bytes", limits::EXPRESSION_BYTES);
            return Err(Problem::new(Code::LimitExceeded, self.start..self.start, message));
        }
        let next = self.lexer.next()?;
        Ok(std::mem::replace(&mut self.token, next))
    }

    fn is_symbol(&self, symbol: &str) -> bool {
        matches!(&self.token, Token::Symbol(found) if *found == symbol)
    }

    /// Consumes a symbol if it is next.
    fn accept(&mut self, symbol: &str) -> Result<bool, Problem> {
        let found = self.is_symbol(symbol);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect(&mut self, symbol: &str) -> Result<(), Problem> {
        if self.accept(symbol)? { Ok(()) } else { Err(self.unexpected(&format!("`{symbol}`"))) }
    }

    fn unexpected(&self, expected: &str) -> Problem {
        unexpected(self.start..self.lexer.at, expected)
    }

    /// Creates a node above operands of this depth, within the limit.
    fn node(&self, depth: usize, expr: Expr) -> Result<ParsedExpr, Problem> {
        if depth < limits::EXPRESSION_DEPTH {
            return Ok(ParsedExpr { expr, depth: depth + 1 });
        }
        let message = format!("the expression is nested deeper than {}", limits::EXPRESSION_DEPTH);
        Err(Problem::new(Code::LimitExceeded, self.start..self.lexer.at, message))
    }

    /// Parses something inside brackets or after a prefix, where the parser recurses.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T, Problem>) -> Result<T, Problem> {
        self.node(self.depth, Expr::Literal(Value::Null))?;
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    fn choose(&mut self) -> Result<ParsedExpr, Problem> {
        let condition = self.binary(0)?;
        if !self.accept("?")? {
            return Ok(condition);
        }
        let then = self.nested(Self::choose)?;
        self.expect(":")?;
        let otherwise = self.nested(Self::choose)?;
        let depth = condition.depth.max(then.depth).max(otherwise.depth);
        self.node(depth, Expr::Choose(Box::new((condition.expr, then.expr, otherwise.expr))))
    }

    /// Parses operands and operators with at least the precedence `least`.
    fn binary(&mut self, least: u8) -> Result<ParsedExpr, Problem> {
        let mut left = if least <= NOT && self.is_name("not") {
            self.advance()?;
            let inner = self.nested(|parser| parser.binary(NOT))?;
            self.node(inner.depth, Expr::Not(Box::new(inner.expr)))?
        } else {
            self.prefix()?
        };
        while let Some((operator, power)) = self.operator().filter(|(_, power)| *power >= least) {
            self.advance()?;
            let right = self.binary(power + 1)?;
            let depth = left.depth.max(right.depth);
            left = self.node(depth, Expr::Binary(operator, Box::new((left.expr, right.expr))))?;
            if power == COMPARISON && self.operator().is_some_and(|(_, next)| next == COMPARISON) {
                let problem = self.unexpected("`and`, `or` or the end");
                return Err(problem.hint("comparisons do not chain: write `a < b and b < c`"));
            }
        }
        Ok(left)
    }

    fn is_name(&self, word: &str) -> bool {
        matches!(&self.token, Token::Name(name) if &**name == word)
    }

    fn operator(&self) -> Option<(Operator, u8)> {
        match &self.token {
            Token::Symbol(symbol) => operator(symbol),
            Token::Name(name) => operator(name),
            _ => None,
        }
    }

    fn prefix(&mut self) -> Result<ParsedExpr, Problem> {
        if self.accept("!")? {
            let inner = self.nested(Self::prefix)?;
            return self.node(inner.depth, Expr::Not(Box::new(inner.expr)));
        }
        if self.accept("-")? {
            let inner = self.nested(Self::prefix)?;
            return self.node(inner.depth, Expr::Negate(Box::new(inner.expr)));
        }
        self.postfix()
    }

    fn postfix(&mut self) -> Result<ParsedExpr, Problem> {
        let mut value = self.primary()?;
        loop {
            if self.is_symbol(".") {
                // After a dot, a name can start with a digit and can be a keyword.
                let at = self.lexer.at;
                let name = self.lexer.name();
                if name.is_empty() {
                    return Err(unexpected(at - 1..at, "a name after `.`"));
                }
                self.advance()?;
                value = if self.accept("(")? {
                    self.call(&name, at, Some(value), true)?
                } else {
                    self.node(value.depth, get(value.expr, Expr::Literal(Value::from(&*name))))?
                };
            } else if self.accept("|")? {
                // `a | f(x)` is `f(a, x)`.
                let at = self.start;
                let Token::Name(name) = self.token.clone() else { return Err(self.unexpected("a function")) };
                self.advance()?;
                let has_arguments = self.accept("(")?;
                value = self.call(&name, at, Some(value), has_arguments)?;
            } else if self.accept("[")? {
                value = self.index(value)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn primary(&mut self) -> Result<ParsedExpr, Problem> {
        let start = self.start;
        let literal = |value: Value| Ok(ParsedExpr { expr: Expr::Literal(value), depth: 1 });
        match self.token.clone() {
            Token::Text(text) => {
                self.advance()?;
                literal(Value::from(&*text))
            }
            Token::Integer(number) => {
                self.advance()?;
                literal(Value::from(number))
            }
            Token::Float(number) => {
                self.advance()?;
                literal(Value::from(number))
            }
            Token::JsonPath(path) => {
                self.advance()?;
                let expr = jsonpath::compile(&path, start..start + path.len(), &mut self.resolver())?;
                Ok(ParsedExpr { expr, depth: 1 })
            }
            Token::Symbol("{") => {
                self.advance()?;
                self.map()
            }
            Token::Dollar(name) => self.reference(true, name),
            Token::Name(name) => self.named(name),
            Token::Symbol("(") => {
                self.advance()?;
                let inner = self.nested(Self::choose)?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Symbol("[") => {
                self.advance()?;
                let items = self.list("]")?;
                let depth = items.iter().map(|item| item.depth).max().unwrap_or(0);
                self.node(depth, Expr::List(items.into_iter().map(|item| item.expr).collect()))
            }
            Token::Symbol(_) | Token::End => Err(self.unexpected("a value")),
        }
    }

    fn named(&mut self, name: Box<str>) -> Result<ParsedExpr, Problem> {
        let constant = match &*name {
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            "null" | "nil" => Some(Value::Null),
            _ => None,
        };
        if let Some(value) = constant {
            self.advance()?;
            return Ok(ParsedExpr { expr: Expr::Literal(value), depth: 1 });
        }
        if self.lexer.text[self.lexer.at..].trim_start().starts_with('(') {
            let at = self.start;
            self.advance()?;
            self.advance()?;
            return self.call(&name, at, None, true);
        }
        self.reference(false, name)
    }

    /// Parses the constant part of a path (`.name`, `[0]`, `["key"]`) and resolves its first name.
    fn reference(&mut self, dollar: bool, first: Box<str>) -> Result<ParsedExpr, Problem> {
        let start = self.start;
        let mut segments = vec![Segment::Key(first)];
        while let Some((segment, end)) = constant_segment(self.lexer.text, self.lexer.at) {
            segments.push(segment);
            self.lexer.at = end;
        }
        let rest = &self.lexer.text[self.lexer.at..];
        if !dollar && ["[*]", "[?", ".."].iter().any(|query| rest.starts_with(query)) {
            return self.query(start);
        }
        let end = self.lexer.at;
        self.advance()?;
        let written = self.lexer.text[start..end].into();
        let path = RefPath { dollar, segments, written, at: start..end };
        Ok(ParsedExpr { expr: Expr::Ref(self.resolver().resolve(path)?), depth: 1 })
    }

    /// Parses a query without `$`: `a.b[*].c` is `$.a.b[*].c`.
    fn query(&mut self, start: usize) -> Result<ParsedExpr, Problem> {
        let end = start + path_length(&self.lexer.text[start..]);
        let path = format!("$.{}", &self.lexer.text[start..end]);
        self.lexer.at = end;
        self.advance()?;
        let expr = jsonpath::compile(&path, start..end, &mut self.resolver())?;
        Ok(ParsedExpr { expr, depth: 1 })
    }

    fn list(&mut self, close: &str) -> Result<Vec<ParsedExpr>, Problem> {
        let mut items = Vec::new();
        while !self.accept(close)? {
            items.push(self.nested(Self::choose)?);
            if !self.accept(",")? && !self.is_symbol(close) {
                return Err(self.unexpected(&format!("`,` or `{close}`")));
            }
        }
        Ok(items)
    }

    /// Parses what follows a `[`: an index or a slice.
    fn index(&mut self, value: ParsedExpr) -> Result<ParsedExpr, Problem> {
        let start = if self.is_symbol(":") { None } else { Some(self.nested(Self::choose)?) };
        if !self.accept(":")? {
            self.expect("]")?;
            let Some(index) = start else { return Err(self.unexpected("an index")) };
            return self.node(value.depth.max(index.depth), get(value.expr, index.expr));
        }
        let end = if self.is_symbol("]") { None } else { Some(self.nested(Self::choose)?) };
        self.expect("]")?;
        let depth = start.iter().chain(&end).map(|bound| bound.depth).fold(value.depth, usize::max);
        let expr = |bound: Option<ParsedExpr>| bound.map(|bound| bound.expr);
        self.node(depth, Expr::Slice(Box::new((value.expr, expr(start), expr(end)))))
    }

    /// Parses what follows a `{`: the entries of a map.
    fn map(&mut self) -> Result<ParsedExpr, Problem> {
        let (mut entries, mut depth) = (Vec::<(Box<str>, Expr)>::new(), 0);
        while !self.accept_brace()? {
            let (Token::Name(key) | Token::Text(key)) = self.token.clone() else {
                return Err(self.unexpected("a key or `}`"));
            };
            if entries.iter().any(|(other, _)| *other == key) {
                let at = self.start..self.lexer.at;
                return Err(Problem::new(
                    Code::InvalidExpression,
                    at,
                    format!("the map has the key `{key}` twice"),
                ));
            }
            self.advance()?;
            self.expect(":")?;
            let value = self.nested(Self::choose)?;
            depth = depth.max(value.depth);
            entries.push((key, value.expr));
            if !self.accept(",")? && !self.is_symbol("}") && !self.is_symbol("}}") {
                return Err(self.unexpected("`,` or `}`"));
            }
        }
        self.node(depth, Expr::Map(entries))
    }

    /// Consumes a `}` if it is next, also the first one of `}}`.
    fn accept_brace(&mut self) -> Result<bool, Problem> {
        if self.is_symbol("}}") {
            self.lexer.at = self.start + 1;
            self.token = Token::Symbol("}");
        }
        self.accept("}")
    }

    /// Resolves names, including the variables of the enclosing functions.
    fn resolver(&mut self) -> VariableScope<'_> {
        VariableScope { variables: &self.variables, names: self.names }
    }

    /// Parses the rest of a call. `first` is the value before `.` or `|`.
    fn call(
        &mut self,
        name: &str,
        at: usize,
        first: Option<ParsedExpr>,
        has_arguments: bool,
    ) -> Result<ParsedExpr, Problem> {
        let range = at..at + name.len();
        let Some(function) = Function::from_name(name) else {
            let problem = Problem::new(Code::InvalidExpression, range, format!("unknown function `{name}`"));
            return Err(match suggestion(name) {
                Some(known) => problem.hint(format!("did you mean `{known}`?")),
                None => problem.hint("`steprail schema --format markdown` lists the functions"),
            });
        };
        if function.is_macro() && has_arguments {
            return self.macro_call(function, range, first);
        }
        let rest = if has_arguments { self.list(")")? } else { Vec::new() };
        let arguments: Vec<ParsedExpr> = first.into_iter().chain(rest).collect();
        let depth = arguments.iter().map(|argument| argument.depth).max().unwrap_or(0);
        let arguments = arguments.into_iter().map(|argument| argument.expr).collect();
        let call = function.call(arguments, range, self.names)?;
        self.node(depth, call)
    }

    /// Parses the rest of `xs.map(x, e)` or `map(xs, x, e)`.
    fn macro_call(
        &mut self,
        function: Function,
        at: std::ops::Range<usize>,
        first: Option<ParsedExpr>,
    ) -> Result<ParsedExpr, Problem> {
        let list = if let Some(list) = first {
            list
        } else {
            let list = self.nested(Self::choose)?;
            self.expect(",")?;
            list
        };
        let slot = self.variables.len();
        let variable = self.variable(function, at)?;
        self.expect(",")?;
        self.variables.push(variable);
        let body = self.nested(Self::choose);
        self.variables.pop();
        let body = body?;
        self.expect(")")?;
        let slot = u32::try_from(slot).unwrap_or(u32::MAX);
        let call = MacroCall::new(function, list.expr, slot, body.expr);
        self.node(list.depth.max(body.depth), Expr::Macro(Box::new(call)))
    }

    /// Parses the name of a variable, which must not hide another name.
    fn variable(&mut self, function: Function, at: std::ops::Range<usize>) -> Result<Box<str>, Problem> {
        if self.variables.len() >= limits::VARIABLES {
            let message = format!("functions with a variable are nested deeper than {}", limits::VARIABLES);
            return Err(Problem::new(Code::LimitExceeded, at, message));
        }
        let here = self.start..self.lexer.at;
        let Token::Name(name) = self.token.clone() else {
            let problem = self.unexpected("the name of a variable");
            return Err(problem.hint(function.usage()));
        };
        self.advance()?;
        if !self.is_symbol(",") {
            let problem = Problem::new(
                Code::InvalidExpression,
                here,
                format!("`{}` takes a variable and an expression", function.name()),
            );
            return Err(problem.hint(function.usage()));
        }
        let is_constant = matches!(&*name, "true" | "false" | "null" | "nil" | "and" | "or" | "not" | "in");
        if is_constant || !super::is_word(&name) {
            let problem = Problem::new(
                Code::InvalidExpression,
                here,
                format!("`{name}` cannot be the name of a variable"),
            );
            return Err(problem.hint("use letters, digits and `_`, such as `x`"));
        }
        if self.resolver().is_known(&name) {
            let message = format!("the variable `{name}` would hide another `{name}`");
            return Err(
                Problem::new(Code::InvalidExpression, here, message).hint("choose another name, such as `x`")
            );
        }
        Ok(name)
    }
}

/// The names at a position of an expression: the variables, and the names of the definition.
struct VariableScope<'s> {
    variables: &'s [Box<str>],
    names: &'s mut dyn Resolve,
}

impl Resolve for VariableScope<'_> {
    fn resolve(&mut self, path: RefPath) -> Result<Ref, Problem> {
        let first = path.name(0).filter(|_| !path.dollar);
        let slot = first.and_then(|first| self.variables.iter().position(|variable| **variable == *first));
        match slot.and_then(|slot| u32::try_from(slot).ok()) {
            Some(slot) => Ok(path.below(Root::Variable(slot), 1)),
            None => self.names.resolve(path),
        }
    }

    fn is_known(&mut self, name: &str) -> bool {
        self.variables.iter().any(|variable| **variable == *name) || self.names.is_known(name)
    }

    fn records_values(&self) -> bool {
        self.names.records_values()
    }

    fn regex(&mut self, pattern: &str) -> Result<BoundedRegex, RegexError> {
        self.names.regex(pattern)
    }
}

fn get(value: Expr, index: Expr) -> Expr {
    Expr::Get(Box::new((value, index)))
}

fn unexpected(at: std::ops::Range<usize>, expected: &str) -> Problem {
    Problem::new(Code::InvalidExpression, at, format!("expected {expected} here"))
}
