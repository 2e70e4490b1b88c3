//! The fields of each kind of step, one file per kind.

mod approve;
mod branch;
mod foreach;
mod r#let;
mod parallel;
mod sleep;
mod tool;
mod wait;
mod workflow;

pub use approve::{Approve, ApproveTimeout, Escalation, NeedsHuman, NeedsHumanSpec, OnDeny, OnTimeout};
pub use branch::{Branch, Case};
pub use foreach::{Foreach, OnFail};
pub use r#let::{Let, LetValues};
pub use parallel::{Branches, Parallel};
pub use sleep::Sleep;
pub use tool::Tool;
pub use wait::Wait;
pub use workflow::{Workflow, WorkflowVersion};
