//! References: a root that the compiler resolved, and a path below it.

use regex::{Regex, RegexBuilder};

use super::Problem;
use crate::limits;

/// The number of a step in its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepIx(pub u32);

impl StepIx {
    /// The number for indexing.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A value that a run has at hand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Root {
    /// All inputs, as a map.
    Inputs,
    /// What a step gave.
    Output(StepIx),
    /// The files that a step gave.
    FileRefs(StepIx),
    /// How a step ended.
    Status(StepIx),
    /// Why a step failed, or null.
    Error(StepIx),
    /// The item of a `foreach` step.
    Item(StepIx),
    /// The environment variables that the server lets definitions see, as a map.
    Env,
    /// Something about the run.
    Ambient(Ambient),
    /// Why the run failed; in `on_failure` only.
    Failure,
    /// The answer of a `verify` call.
    Probe,
}

/// What every run knows about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Ambient {
    UserName,
    UserEmail,
    UserId,
    RunId,
}

impl Ambient {
    /// The names as they stand after a `$`.
    pub const NAMES: &[&str] = &["user_name", "user_email", "user_id", "run_id"];

    /// The value that a name stands for.
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

/// One step down into a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// Into a map.
    Key(Box<str>),
    /// Into a list; negative numbers count from the end.
    Index(i64),
}

/// What a reference gives if the path leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfMissing {
    /// An error that names the path.
    Fail,
    /// `""`, as the graph form has it for inputs.
    Empty,
    /// Null: a JSONPath condition that finds nothing does not hold.
    Null,
    /// The root itself: a declared output that is not a key of the step's output is the output.
    Whole,
}

/// A resolved reference.
#[derive(Debug, Clone)]
pub struct Ref {
    /// Where it starts.
    pub root: Root,
    /// The way from there.
    pub path: Box<[Segment]>,
    /// What it gives if the path leads nowhere.
    pub if_missing: IfMissing,
    /// As it is written, for messages.
    pub written: Box<str>,
}

/// A reference as it is written, before its first name is resolved.
#[derive(Debug)]
pub struct RefPath {
    /// Whether it is written `$name`.
    pub dollar: bool,
    /// The names and numbers; the first is a name.
    pub segments: Vec<Segment>,
    /// As it is written.
    pub written: Box<str>,
    /// Where it stands in the expression.
    pub at: std::ops::Range<usize>,
}

impl RefPath {
    /// The name at a place, if there is one.
    pub fn name(&self, index: usize) -> Option<&str> {
        match self.segments.get(index) {
            Some(Segment::Key(name)) => Some(name),
            _ => None,
        }
    }

    /// The reference that starts at `root` and goes on after `used` segments.
    pub fn below(self, root: Root, used: usize) -> Ref {
        let path = self.segments.into_iter().skip(used).collect();
        Ref { root, path, if_missing: IfMissing::Fail, written: self.written }
    }
}

/// Knows what names mean at one place of a definition.
pub trait Resolve {
    /// Finds what the path starts at.
    fn resolve(&mut self, path: RefPath) -> Result<Ref, Problem>;

    /// Whether a bare name means something.
    fn knows(&mut self, name: &str) -> bool {
        let segments = vec![Segment::Key(name.into())];
        self.resolve(RefPath { dollar: false, segments, written: name.into(), at: 0..0 }).is_ok()
    }

    /// Compiles a regular expression; the error says why it is none.
    fn regex(&mut self, pattern: &str) -> Result<Regex, String> {
        compile_regex(pattern)
    }
}

/// Compiles a regular expression within its limit.
pub(crate) fn compile_regex(pattern: &str) -> Result<Regex, String> {
    RegexBuilder::new(pattern).size_limit(limits::REGEX_BYTES).build().map_err(|error| {
        // The last line says what is wrong; the others draw it.
        let text = error.to_string();
        text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
    })
}
