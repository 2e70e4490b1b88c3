//! The evaluated arguments of a call, by type.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::FunctionSpec;
use crate::expr::eval::{EvalError, EvalErrorKind, type_name};

/// The arguments of a call.
pub(super) struct Arguments<'v> {
    pub function: &'static FunctionSpec,
    pub values: Vec<Cow<'v, Value>>,
}

static NULL: Value = Value::Null;

impl<'v> Arguments<'v> {
    /// The argument at an index; null if it is not written.
    pub(super) fn get(&self, index: usize) -> &Value {
        self.values.get(index).map_or(&NULL, |value| value)
    }

    /// Whether the argument at an index is written.
    pub(super) fn has(&self, index: usize) -> bool {
        index < self.values.len()
    }

    /// Takes the first argument, to return it or a part of it.
    pub(super) fn take_first(&mut self) -> Cow<'v, Value> {
        self.values.first_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn text(&self, index: usize) -> Result<&str, EvalError> {
        match self.get(index) {
            Value::String(text) => Ok(text),
            other => Err(self.type_error(other)),
        }
    }

    /// A text that is not empty.
    pub(super) fn filled_text(&self, index: usize) -> Result<&str, EvalError> {
        match self.text(index)? {
            "" => Err(self.invalid("the text is empty")),
            text => Ok(text),
        }
    }

    pub(super) fn list(&self, index: usize) -> Result<&[Value], EvalError> {
        match self.get(index) {
            Value::Array(items) => Ok(items),
            other => Err(self.type_error(other)),
        }
    }

    pub(super) fn map(&self, index: usize) -> Result<&Map<String, Value>, EvalError> {
        match self.get(index) {
            Value::Object(map) => Ok(map),
            other => Err(self.type_error(other)),
        }
    }

    pub(super) fn integer(&self, index: usize) -> Result<i64, EvalError> {
        self.get(index).as_i64().ok_or_else(|| self.type_error(self.get(index)))
    }

    /// The integer at an index, or a default if the argument is not written.
    pub(super) fn integer_or(&self, index: usize, default: i64) -> Result<i64, EvalError> {
        if self.has(index) { self.integer(index) } else { Ok(default) }
    }

    /// The text at an index, or a default if the argument is not written.
    pub(super) fn text_or<'s>(&'s self, index: usize, default: &'s str) -> Result<&'s str, EvalError> {
        if self.has(index) { self.text(index) } else { Ok(default) }
    }

    pub(super) fn type_error(&self, value: &Value) -> EvalError {
        let message = format!(
            "`{}` does not accept {}: {}",
            self.function.name,
            type_name(value),
            self.function.usage()
        );
        EvalError::new(EvalErrorKind::Type, message)
    }

    /// An argument has the right type, but a value that the function does not accept.
    pub(super) fn invalid(&self, reason: &str) -> EvalError {
        EvalError::new(EvalErrorKind::Type, format!("`{}`: {reason}", self.function.name))
    }

    /// There is nothing to return, so that `default` applies.
    pub(super) fn missing(&self, reason: &str) -> EvalError {
        EvalError::new(EvalErrorKind::Missing, format!("`{}` {reason}", self.function.name))
    }
}
