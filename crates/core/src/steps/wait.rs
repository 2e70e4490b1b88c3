//! `wait`: until an event arrives from outside.

use crate::document::Node;
use crate::spec::fields::record;
use crate::spec::value::Text;

record! {
    /// Waits until an event with this name (and this correlation) is signalled. Its output is the event's
    /// payload.
    pub struct Wait {
        /// The event's name.
        @required event: Text,
        /// What the event must carry to be meant for this run, such as `{ order: "{{inputs.order}}" }`: each of these
        /// keys with this value, beside whatever else it carries. What is no map must be the whole payload. A template.
        correlate: Node,
    }
}
