//! Functions that evaluate an expression for each item of a list, as CEL's macros: `xs.filter(x, x > 1)`.

use serde_json::{Map, Value};

use super::lists::{charge_sort, ordering};
use super::{EvalResult, Form, Function, FunctionSpec, declare, owned};
use crate::budget::Budget;
use crate::budget::value::{copy, owned as keep};
use crate::expr::Expr;
use crate::expr::eval::{Context, EvalError, EvalErrorKind, truthy, type_name};
use crate::expr::reference::Root;

/// The cost of an item, besides that of its expression.
const ITEM_COST: usize = 4;

/// What becomes of the values of the expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Macro {
    Filter,
    Map,
    Exists,
    All,
    SortBy,
    GroupBy,
}

pub(super) const FUNCTIONS: &[FunctionSpec] = &[
    declare(
        ("filter", "xs.filter(x, p)"),
        (3, 3),
        "the items of a list for which p is true; x is the item. Of a map, x is a key, in this and the following functions.",
        "[1, 5, 9].filter(x, x > 3) => [5,9]",
        Form::Macro(Macro::Filter),
    ),
    declare(
        ("map", "xs.map(x, e)"),
        (3, 3),
        "the values of e for all items.",
        "[1, 2].map(x, x * 10) => [10,20]",
        Form::Macro(Macro::Map),
    ),
    declare(
        ("exists", "xs.exists(x, p)"),
        (3, 3),
        "whether p is true for at least one item.",
        "[1, 5].exists(x, x > 3) => true",
        Form::Macro(Macro::Exists),
    ),
    declare(
        ("all", "xs.all(x, p)"),
        (3, 3),
        "whether p is true for all items.",
        "[1, 5].all(x, x > 3) => false",
        Form::Macro(Macro::All),
    ),
    declare(
        ("sortBy", "xs.sortBy(x, e)"),
        (3, 3),
        "the items in the order of e, a number or a text. Items with equal keys keep their order.",
        r#"["ccc", "a", "bb"].sortBy(x, size(x)) => ["a","bb","ccc"]"#,
        Form::Macro(Macro::SortBy),
    ),
    declare(
        ("groupBy", "xs.groupBy(x, e)"),
        (3, 3),
        "a map of each value of e, as text, to the list of its items.",
        r#"[1, 2, 3].groupBy(x, x % 2 == 0 ? "even" : "odd") => {"even":[2],"odd":[1,3]}"#,
        Form::Macro(Macro::GroupBy),
    ),
];

/// A call of a macro.
#[derive(Debug, Clone)]
pub struct MacroCall {
    function: Function,
    /// The list, or the map, whose items are visited.
    pub list: Expr,
    /// The number of variables of enclosing macros.
    slot: u32,
    /// The expression that is evaluated for each item.
    pub body: Expr,
}

/// The values of an expression with a variable.
pub(in crate::expr) struct VariableContext<'c> {
    outer: &'c dyn Context,
    slot: u32,
    value: &'c Value,
}

impl Context for VariableContext<'_> {
    fn value(&self, root: &Root) -> Option<&Value> {
        match root {
            Root::Variable(slot) if *slot == self.slot => Some(self.value),
            other => self.outer.value(other),
        }
    }

    fn uuid(&self) -> Option<String> {
        self.outer.uuid()
    }
}

impl MacroCall {
    /// Creates the call of a function that is a macro.
    pub(in crate::expr) fn new(function: Function, list: Expr, slot: u32, body: Expr) -> Self {
        Self { function, list, slot, body }
    }

    pub(in crate::expr) fn eval<'c>(
        &'c self,
        context: &'c dyn Context,
        budget: &mut Budget,
    ) -> EvalResult<'c> {
        let Form::Macro(kind) = self.function.0.form else { return Ok(owned(Value::Null)) };
        let list = self.list.eval(context, budget)?;
        let keys;
        let items = match &*list {
            Value::Array(items) => items,
            Value::Object(map) => {
                budget.charge(map.len())?;
                keys = map.keys().map(|key| Value::from(key.as_str())).collect();
                &keys
            }
            other => return Err(self.type_error(other)),
        };
        match kind {
            Macro::Filter => self.filter(items, context, budget),
            Macro::Map => self.values(items, context, budget).map(owned),
            Macro::Exists => self.find(items, true, context, budget).map(owned),
            Macro::All => self.find(items, false, context, budget).map(|found| owned(!found)),
            Macro::SortBy => self.sort(items, context, budget),
            Macro::GroupBy => self.group(items, context, budget),
        }
    }

    fn type_error(&self, value: &Value) -> EvalError {
        let (name, usage) = (self.function.name(), self.function.0.usage());
        EvalError::new(EvalErrorKind::Type, format!("`{name}` does not accept {}: {usage}", type_name(value)))
    }

    /// Evaluates the expression for one item.
    fn value(&self, item: &Value, context: &dyn Context, budget: &mut Budget) -> Result<Value, EvalError> {
        budget.charge(ITEM_COST)?;
        let scope = VariableContext { outer: context, slot: self.slot, value: item };
        let value = self.body.eval(&scope, budget)?;
        Ok(keep(value, budget)?)
    }

    fn holds(&self, item: &Value, context: &dyn Context, budget: &mut Budget) -> Result<bool, EvalError> {
        budget.charge(ITEM_COST)?;
        let scope = VariableContext { outer: context, slot: self.slot, value: item };
        self.body.eval(&scope, budget).map(|value| truthy(&value))
    }

    fn values(
        &self,
        items: &[Value],
        context: &dyn Context,
        budget: &mut Budget,
    ) -> Result<Vec<Value>, EvalError> {
        items.iter().map(|item| self.value(item, context, budget)).collect()
    }

    fn filter<'v>(&self, items: &[Value], context: &dyn Context, budget: &mut Budget) -> EvalResult<'v> {
        let mut out = Vec::new();
        for item in items {
            if self.holds(item, context, budget)? {
                out.push(copy(item, budget)?);
            }
        }
        Ok(owned(out))
    }

    /// Whether the expression is `wanted` for an item.
    fn find(
        &self,
        items: &[Value],
        wanted: bool,
        context: &dyn Context,
        budget: &mut Budget,
    ) -> Result<bool, EvalError> {
        for item in items {
            if self.holds(item, context, budget)? == wanted {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn sort<'v>(&self, items: &[Value], context: &dyn Context, budget: &mut Budget) -> EvalResult<'v> {
        let keys = self.values(items, context, budget)?;
        charge_sort(self.function.name(), &keys, budget)?;
        let mut keyed: Vec<(Value, &Value)> = keys.into_iter().zip(items).collect();
        keyed.sort_by(|left, right| ordering(&left.0, &right.0));
        let mut out = Vec::with_capacity(keyed.len());
        for (_, item) in keyed {
            out.push(copy(item, budget)?);
        }
        Ok(owned(out))
    }

    fn group<'v>(&self, items: &[Value], context: &dyn Context, budget: &mut Budget) -> EvalResult<'v> {
        let mut groups = Map::new();
        for item in items {
            let key = match self.value(item, context, budget)? {
                Value::String(text) => text,
                key @ (Value::Number(_) | Value::Bool(_)) => key.to_string(),
                other => return Err(self.type_error(&other)),
            };
            budget.charge_search(key.len())?;
            let item = copy(item, budget)?;
            if let Value::Array(group) = groups.entry(key).or_insert_with(|| Value::Array(Vec::new())) {
                group.push(item);
            }
        }
        Ok(owned(Value::Object(groups)))
    }
}
