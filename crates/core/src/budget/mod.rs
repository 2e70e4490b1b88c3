//! The cost budget that expressions, templates, JSONPath, regular expressions and JSON Schema share.
//!
//! One thread decides for all runs, so no evaluation may take long, whatever a definition, a value or a tool's schema
//! contains. Evaluations charge their work to a budget in abstract units: items visited, bytes compared or built,
//! positions of a regular expression. Work is charged before it is done. A unit takes 2 to 30 ns, so that an exhausted
//! evaluation takes 2 to 30 ms; `benches/definitions.rs` measures each kind of work. The exception are copies of lists of
//! maps, which take up to 100 ns per unit and are bounded by the size of values. Costs depend on definitions and values
//! only: the same evaluation always costs the same.

pub(crate) mod value;

use std::fmt;

use serde_json::Value;

use crate::limits::{CHAIN_COST, CHECK_COST_PER_NODE, DECISION_COST, EVALUATION_COST, MAX_CHECK_COST};

/// A number of cost units that may be spent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    spent: u64,
    available: u64,
    /// The part of `available` that is granted for the size of a value and not charged to the decision.
    allowance: u64,
    limit: CostLimit,
}

/// The limit that a budget enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CostLimit {
    /// [`EVALUATION_COST`], for one expression, condition or template.
    Evaluation,
    /// [`DECISION_COST`], for all evaluations of one decision of a run.
    Decision,
    /// [`CHAIN_COST`], for a decision and those that it continues.
    Chain,
    /// For the check of a value against a schema; grows with the value.
    Check(u64),
}

/// A budget is spent: the evaluation must stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exhausted(CostLimit);

impl Budget {
    /// The budget of one evaluation outside a run.
    pub fn evaluation() -> Self {
        Self { spent: 0, available: EVALUATION_COST, allowance: 0, limit: CostLimit::Evaluation }
    }

    /// The budget of one decision of a run. `before` is the cost of the decisions that it continues.
    pub fn decision(before: u64) -> Self {
        let left = CHAIN_COST.saturating_sub(before);
        let limit = if left < DECISION_COST { CostLimit::Chain } else { CostLimit::Decision };
        Self { spent: 0, available: left.min(DECISION_COST), allowance: 0, limit }
    }

    /// The budget to check a value against a schema. It grows with the value, up to a maximum.
    pub fn check(value: &Value) -> Self {
        Self::evaluation().and_check_of(value)
    }

    /// Extends the budget by the allowance for the check of a value.
    #[must_use]
    pub fn and_check_of(self, value: &Value) -> Self {
        let allowance = CHECK_COST_PER_NODE.saturating_mul(value::nodes(value) as u64).min(MAX_CHECK_COST);
        let available = self.available.saturating_add(allowance);
        Self { available, allowance, limit: CostLimit::Check(available), ..self }
    }

    /// A budget for one evaluation of a decision: [`EVALUATION_COST`], or the rest of this budget if that is less.
    #[must_use]
    pub fn part(&self) -> Self {
        let left = self.available.saturating_sub(self.spent);
        let limit = if left < EVALUATION_COST { self.limit } else { CostLimit::Evaluation };
        Self { spent: 0, available: left.min(EVALUATION_COST), allowance: 0, limit }
    }

    /// Charges the cost of a part to this budget.
    pub fn settle(&mut self, part: &Self) {
        self.spent = self.spent.saturating_add(part.spent.saturating_sub(part.allowance));
    }

    /// Charges work that is about to be done.
    pub fn charge(&mut self, units: usize) -> Result<(), Exhausted> {
        self.spent = self.spent.saturating_add(units as u64);
        if self.is_exhausted() { Err(Exhausted(self.limit)) } else { Ok(()) }
    }

    /// The units that were charged.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Whether more was charged than the budget has.
    pub fn is_exhausted(&self) -> bool {
        self.spent > self.available
    }

    /// The error of an exhausted budget.
    pub(crate) fn exhausted(&self) -> Exhausted {
        Exhausted(self.limit)
    }
}

impl fmt::Display for Exhausted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            CostLimit::Evaluation => write!(
                out,
                "the cost of the evaluation exceeds the limit of {EVALUATION_COST} units; read a smaller part of the \
                 value, or let a tool do this work"
            ),
            CostLimit::Decision => write!(
                out,
                "the cost of the conditions and templates of a step exceeds the limit of {DECISION_COST} units; \
                 simplify them, or let a tool do this work"
            ),
            CostLimit::Chain => write!(
                out,
                "the cost of the steps that run without waiting exceeds the limit of {CHAIN_COST} units; simplify \
                 their conditions and templates, or let a tool do this work"
            ),
            CostLimit::Check(units) => {
                write!(out, "the cost of the check exceeds the limit of {units} units; simplify the schema")
            }
        }
    }
}

impl std::error::Error for Exhausted {}
