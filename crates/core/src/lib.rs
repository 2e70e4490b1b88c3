//! The pure core of Steprail: compiles definitions ([`Spec`] to [`Plan`]) and runs them as a state machine.
//!
//! ```
//! use steprail_core::{load, source::Source};
//!
//! let text = "name: hello\nsteps:\n  - id: greet\n    tool: demo__echo\n    args: { text: hello }\n";
//! let loaded = load(&Source::new("hello.yaml", text));
//! assert!(loaded.diagnostics.is_empty());
//! assert_eq!(&*loaded.plan.unwrap().name, "hello");
//! ```
//!
//! The core does not read clocks, files or the environment and uses no random numbers: time and other
//! external values are arguments.

// Input must not be able to cause a panic.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub(crate) mod bounded_regex;
pub mod budget;
pub mod diagnostic;
pub mod display;
pub mod document;
pub mod draw;
pub mod expr;
pub mod limits;
pub mod names;
pub mod pattern;
pub mod plan;
pub mod policy;
pub mod presence;
pub mod run;
pub mod schema;
pub mod source;
pub mod spec;
pub mod steps;

use diagnostic::{Diagnostic, Diagnostics};
use plan::Plan;
use source::Source;
use spec::Spec;

/// The result of [`load`].
#[derive(Debug)]
pub struct Loaded {
    /// The definition as written, without the parts that could not be parsed.
    pub spec: Option<Spec>,
    /// The compiled definition, if there are no errors.
    pub plan: Option<Plan>,
    /// All problems, in source order.
    pub diagnostics: Vec<Diagnostic>,
}

/// Parses, checks and compiles a definition in any of the three forms. Reports all problems, not only the first.
pub fn load(source: &Source) -> Loaded {
    let mut out = Diagnostics::default();
    let spec = spec::parse(source, &mut out);
    let plan = spec.as_ref().and_then(|spec| plan::compile(spec, source, &mut out));
    Loaded { spec, plan, diagnostics: out.finish() }
}
