//! `wait`: waits for a signal from outside the run.

use crate::document::Node;
use crate::spec::fields::record;
use crate::spec::value::Text;

record! {
    /// Waits until a signal arrives that matches `event` and `correlate`. The output is the payload of the signal.
    pub struct Wait {
        /// Name of the signal; a template.
        @required event: Text,
        /// Expected payload of the signal, such as `{ order: "{{inputs.order}}" }`; a template. A map matches a payload that
        /// contains these keys with equal values. Any other value must equal the payload. Default: any payload matches.
        correlate: Node,
    }
}
