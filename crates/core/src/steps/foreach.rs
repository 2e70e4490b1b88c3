//! `foreach`: runs steps once per item.

use crate::document::Node;
use crate::spec::fields::{choice, record};
use crate::spec::step::Steps;
use crate::spec::value::{Spanned, Text};

record! {
    /// Runs steps once per item. The output is the list of the results, in the order of the items. The result of an
    /// item is the output of its last step.
    pub struct Foreach {
        /// Items: a list, or a JSONPath query or template that returns a list.
        @required items: Node,
        /// Name of the loop variable, which holds the current item. Default: `item`.
        r#as: Text,
        /// Steps to run for each item.
        @required steps: Steps,
        /// Maximum number of items that run at the same time. Default: 1.
        #[schemars(range(min = 1))]
        concurrency: Spanned<u32>,
        /// What happens when an item fails. `abort` (default): the other items are cancelled and the step fails. `continue`:
        /// the other items continue, and each result is `{status, output}` or `{status, error}`.
        on_item_fail: OnFail,
    }
}

choice! {
    /// What happens to the other items or branches when one fails.
    pub enum OnFail {
        /// The others are cancelled and the step fails.
        Abort = "abort",
        /// The others continue.
        Continue = "continue",
    }
}
