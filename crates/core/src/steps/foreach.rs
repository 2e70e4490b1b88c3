//! `foreach`: the same steps once per item.

use crate::document::Node;
use crate::spec::fields::{choice, record};
use crate::spec::step::Steps;
use crate::spec::value::{Spanned, Text};

record! {
    /// Runs its steps once per item. Its output is the list of the items' results, in the items' order;
    /// an item's result is the output of the last step.
    pub struct Foreach {
        /// What to go through: a list, or a JSONPath or template that gives one.
        @required items: Node,
        /// The name of the item in the steps; `item` by default.
        r#as: Text,
        /// The steps that run for each item.
        @required steps: Steps,
        /// How many items run at the same time; 1 by default.
        #[schemars(range(min = 1))]
        concurrency: Spanned<u32>,
        /// What a failed item does to the others. With `continue`, each result is
        /// `{status, output}` or `{status, error}`.
        on_item_fail: OnFail,
    }
}

choice! {
    /// What the failure of one part does to the others.
    pub enum OnFail {
        /// The others are cancelled and the step fails.
        Abort = "abort",
        /// The others go on.
        Continue = "continue",
    }
}
