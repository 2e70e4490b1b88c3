//! `wait`: waits for an event from outside the run.

use crate::document::Node;
use crate::spec::fields::record;
use crate::spec::value::Text;

record! {
    /// Waits until an event is signalled that matches `event` and `correlate`. The output is the payload of the event.
    pub struct Wait {
        /// Name of the event; a template.
        @required event: Text,
        /// Expected payload of the event, such as `{ order: "{{inputs.order}}" }`; a template. A map matches a payload that
        /// contains these keys with equal values. Any other value must equal the payload. Default: any payload matches.
        correlate: Node,
    }
}
