//! References: a root that the compiler resolved, and a path from there.

use super::Problem;
use crate::bounded_regex::{BoundedRegex, RegexError};

/// The index of a step in its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepIx(pub u32);

impl StepIx {
    /// The index as a `usize`.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A value of a run that references can start at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Root {
    /// All inputs, as a map.
    Inputs,
    /// The output of a step.
    Output(StepIx),
    /// The file references in the output of a step.
    FileRefs(StepIx),
    /// The status of a step.
    Status(StepIx),
    /// The failure of a step, or null.
    Error(StepIx),
    /// The current item of a `foreach` step.
    Item(StepIx),
    /// The environment variables that definitions can read, as a map.
    Env,
    /// A built-in value of the run.
    Ambient(Ambient),
    /// The failure of the run; only in `on_failure`.
    Failure,
    /// The output of a `verify` call.
    Probe,
    /// A fact about a call; only in the rules of a policy.
    Call(CallFact),
    /// The item of a function such as `xs.map(x, …)`, by the number of enclosing ones.
    Variable(u32),
    /// The value of another name of the same `let` step.
    Let(u32),
    /// The time of the decision; only in a `let` step.
    Now,
}

/// A fact about a call that the rules of a policy can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum CallFact {
    Args,
    User,
    Tool,
    Workflow,
    Client,
    Time,
}

/// A built-in value that every run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Ambient {
    UserName,
    UserEmail,
    UserId,
    RunId,
}

impl Ambient {
    /// The names, as written after a `$`.
    pub const NAMES: &[&str] = &["user_name", "user_email", "user_id", "run_id"];

    /// The value with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "user_name" => Some(Self::UserName),
            "user_email" => Some(Self::UserEmail),
            "user_id" => Some(Self::UserId),
            "run_id" => Some(Self::RunId),
            _ => None,
        }
    }
}

/// One segment of a path into a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// A key of a map.
    Key(Box<str>),
    /// An index of a list; negative numbers count from the end.
    Index(i64),
}

/// The value of a reference whose path does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfMissing {
    /// An error that names the path.
    Fail,
    /// `""`, for inputs of the graph form.
    Empty,
    /// Null, so that a JSONPath condition without a match is false.
    Null,
    /// The root itself: a declared output that is not a key of the step's output is the whole output.
    Whole,
}

/// A resolved reference.
#[derive(Debug, Clone)]
pub struct Ref {
    /// The value that the path starts at.
    pub root: Root,
    /// The path from the root.
    pub path: Box<[Segment]>,
    /// The value if the path does not exist.
    pub if_missing: IfMissing,
    /// The reference as written, for messages.
    pub written: Box<str>,
}

/// A reference as written, before its first name is resolved.
#[derive(Debug)]
pub struct RefPath {
    /// Whether it is written as `$name`.
    pub dollar: bool,
    /// The segments; the first is a name.
    pub segments: Vec<Segment>,
    /// The reference as written.
    pub written: Box<str>,
    /// Its range in the expression, in bytes.
    pub at: std::ops::Range<usize>,
}

impl RefPath {
    /// The segment at an index, if it is a name.
    pub fn name(&self, index: usize) -> Option<&str> {
        match self.segments.get(index) {
            Some(Segment::Key(name)) => Some(name),
            _ => None,
        }
    }

    /// Creates the reference that starts at `root`, for which `used` segments were consumed.
    pub fn below(self, root: Root, used: usize) -> Ref {
        let path = self.segments.into_iter().skip(used).collect();
        Ref { root, path, if_missing: IfMissing::Fail, written: self.written }
    }
}

/// Resolves names at one position of a definition.
pub trait Resolve {
    /// Resolves the first name of a path.
    fn resolve(&mut self, path: RefPath) -> Result<Ref, Problem>;

    /// Whether a bare name can be resolved.
    fn is_known(&mut self, name: &str) -> bool {
        let segments = vec![Segment::Key(name.into())];
        self.resolve(RefPath { dollar: false, segments, written: name.into(), at: 0..0 }).is_ok()
    }

    /// Whether the value of the expression is recorded, so that it can depend on the time of its evaluation.
    fn records_values(&self) -> bool {
        false
    }

    /// Compiles a regular expression.
    fn regex(&mut self, pattern: &str) -> Result<BoundedRegex, RegexError> {
        BoundedRegex::new(pattern)
    }
}
