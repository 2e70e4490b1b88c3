//! The pure part of Steprail: a definition's text becomes a [`Spec`], and that a [`Plan`].
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
//! Nothing here reads a clock, a file or the environment, and nothing is random: what differs from call
//! to call comes in as an argument.

// No panic is reachable from input.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod diagnostic;
pub mod document;
pub mod draw;
pub mod expr;
pub mod limits;
pub mod names;
pub mod pattern;
pub mod plan;
pub mod run;
pub mod schema;
pub mod source;
pub mod spec;
pub mod steps;

use diagnostic::{Diagnostic, Diagnostics};
use plan::Plan;
use source::Source;
use spec::Spec;

/// What became of a definition.
#[derive(Debug)]
pub struct Loaded {
    /// The definition as it is written, as far as it could be read.
    pub spec: Option<Spec>,
    /// The compiled definition, if there are no errors.
    pub plan: Option<Plan>,
    /// Every problem, in the order of the text.
    pub diagnostics: Vec<Diagnostic>,
}

/// Reads, checks and compiles a definition in any of the three forms. All problems are reported at once.
pub fn load(source: &Source) -> Loaded {
    let mut out = Diagnostics::default();
    let spec = spec::parse(source, &mut out);
    let plan = spec.as_ref().and_then(|spec| plan::compile(spec, source, &mut out));
    Loaded { spec, plan, diagnostics: out.finish() }
}
