//! `workflow`: runs another workflow.

use crate::document::Node;
use crate::spec::fields::record;
use crate::spec::value::Text;

record! {
    /// Runs another workflow as the same user and waits until it ends. The output is the output of that workflow.
    pub struct Workflow {
        /// Name of the stored definition.
        @required name: Text,
        /// Inputs of the run: a map, or a reference to one. Strings can contain references.
        inputs: Node,
    }
}
