//! `workflow`: another workflow as a step.

use crate::document::Node;
use crate::spec::fields::record;
use crate::spec::value::Text;

record! {
    /// Runs another workflow as the same user and waits for it. Its output is that workflow's output.
    pub struct Workflow {
        /// The workflow's name.
        @required name: Text,
        /// Its inputs. Strings in them may hold references.
        inputs: Node,
    }
}
