//! Resolves the names of references.

use std::collections::BTreeSet;

use super::StepIx;
use super::order::{Reachability, Unavailable, availability};
use super::outline::Outline;
use crate::bounded_regex::{BoundedRegex, RegexError, RegexSet};
use crate::diagnostic::{Code, nearest};
use crate::expr::{Ambient, IfMissing, Problem, Ref, RefPath, Resolve, Root};
use crate::limits;
use crate::spec::step::Kind;

/// The reserved first names of references.
pub(crate) const ROOTS: &[&str] = &["inputs", "input", "steps", "item", "env", "result", "error"];
/// The keywords of the expression language, which cannot be names of variables.
pub(crate) const KEYWORDS: &[&str] = &["true", "false", "null", "nil", "and", "or", "not", "in"];
/// The values of a step that references can read.
const STEP_PARTS: &[&str] = &["output", "file_refs", "status", "error"];

/// How undeclared inputs are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Undeclared {
    /// They are errors.
    Error,
    /// In the graph form: they are optional, and empty by default.
    Empty,
    /// In a list of steps that declares nothing: they become required inputs.
    Infer,
}

/// The scope in which a reference is resolved.
pub(super) struct Scope<'s, 'o> {
    pub outline: &'o Outline<'s>,
    pub declared: &'o BTreeSet<&'s str>,
    pub undeclared: Undeclared,
    /// The step that contains the reference; `None` for the output of the run.
    pub from: Option<StepIx>,
    /// The value of `result`, if it is defined.
    pub result: Option<Root>,
    /// The names of the `let` step that contains the reference.
    pub let_names: Option<&'o [Box<str>]>,
    /// Whether the step itself has completed: true in conditions of its transition.
    pub done: bool,
    /// Whether to search for hints.
    pub hints: bool,
    pub reachability: &'o mut Reachability,
    pub regexes: &'o mut RegexSet,
    /// Whether `error` is defined: true in `on_failure`.
    pub failed: bool,
    /// Problems of names that could not be resolved.
    pub problems: Vec<Problem>,
    /// Inputs that are used but not declared.
    pub inferred: Vec<(String, std::ops::Range<usize>)>,
}

impl Resolve for Scope<'_, '_> {
    /// Resolves a reference. Records a problem and returns a placeholder if that fails, so that the rest of the
    /// expression is checked too.
    fn resolve(&mut self, path: RefPath) -> Result<Ref, Problem> {
        let is_jsonpath = !path.dollar && path.written.starts_with('$');
        self.hints &= self.problems.len() < limits::DIAGNOSTICS;
        Ok(self.find(path).unwrap_or_else(|problem| {
            let has_suggestion = problem.hint.as_ref().is_some_and(|hint| hint.starts_with("did you mean"));
            let unknown = problem.code == Code::UnknownTemplateVar && is_jsonpath && !has_suggestion;
            let hint = "for text that starts with a dollar sign, write `$$`";
            self.problems.push(if unknown { problem.hint(hint) } else { problem });
            Ref {
                root: Root::Env,
                path: Box::default(),
                if_missing: IfMissing::Null,
                written: Box::default(),
            }
        }))
    }

    fn is_known(&mut self, name: &str) -> bool {
        ROOTS.contains(&name)
            || self.let_name(name).is_some()
            || self.declared.contains(name)
            || self.outline.ids.contains_key(name)
            || self.item(name).is_some()
    }

    /// The output of a `let` step is in the log.
    fn records_values(&self) -> bool {
        self.let_names.is_some()
    }

    fn regex(&mut self, pattern: &str) -> Result<BoundedRegex, RegexError> {
        self.regexes.compile(pattern)
    }
}

impl Scope<'_, '_> {
    fn find(&mut self, path: RefPath) -> Result<Ref, Problem> {
        let Some(first) = path.name(0).map(str::to_owned) else {
            return Err(Problem::new(Code::InvalidTemplate, path.at, "a reference must start with a name"));
        };
        if path.dollar {
            return self.dollar(&first, path);
        }
        match first.as_str() {
            "inputs" | "input" => self.input(path, 1),
            "steps" => self.step_part(path),
            "env" => Ok(path.below(Root::Env, 1)),
            "item" => match self.loops().next() {
                Some((_, owner)) => Ok(path.below(Root::Item(owner), 1)),
                None => Err(unknown(&path, "`item` is only available inside a `foreach`")),
            },
            "error" if self.failed => Ok(path.below(Root::Failure, 1)),
            "result" => match self.result.clone() {
                Some(root) => Ok(path.below(root, 1)),
                None => self.bare(&first, path),
            },
            _ => self.bare(&first, path),
        }
    }

    /// The enclosing loops, innermost first: the name of the loop variable, and the step.
    fn loops(&self) -> impl Iterator<Item = (&str, StepIx)> {
        let mut step = self.from;
        std::iter::from_fn(move || {
            loop {
                let owner = self.outline.block(self.outline.step(step?).block).owner;
                step = owner;
                if let Some(Kind::Foreach(foreach)) = self.outline.step(owner?).spec.map(|spec| &spec.kind) {
                    return Some((foreach.r#as.as_ref().map_or("item", |name| name.as_str()), owner?));
                }
            }
        })
    }

    /// The enclosing loop whose variable has this name.
    fn item(&self, name: &str) -> Option<StepIx> {
        self.loops().find(|(variable, _)| *variable == name).map(|(_, owner)| owner)
    }

    /// The number of a name of the same `let` step.
    fn let_name(&self, name: &str) -> Option<u32> {
        let at = self.let_names?.iter().position(|known| **known == *name)?;
        u32::try_from(at).ok()
    }

    /// Resolves a bare name: a name of the same `let` step, a loop variable, an input or a step.
    fn bare(&mut self, first: &str, path: RefPath) -> Result<Ref, Problem> {
        if let Some(number) = self.let_name(first) {
            return Ok(path.below(Root::Let(number), 1));
        }
        if let Some(owner) = self.item(first) {
            return Ok(path.below(Root::Item(owner), 1));
        }
        if self.declared.contains(first) {
            return self.input(path, 0);
        }
        if let Some(step) = self.outline.ids.get(first).copied() {
            return self.available(path, step, Root::Output(step), 1);
        }
        if self.undeclared == Undeclared::Infer && path.segments.len() == 1 {
            return self.input(path, 0);
        }
        Err(self.unknown_name(first, &path))
    }

    fn unknown_name(&self, first: &str, path: &RefPath) -> Problem {
        let message = match first {
            "result" => {
                "`result` is not defined here: it is the output of the previous step in a list or, in a `branch` of the graph form, of the step itself if it has a tool"
            }
            "error" => {
                "`error` is only available in `on_failure`; the failure of a step is `steps.<id>.error`"
            }
            _ => return self.suggest_name(first, path),
        };
        unknown(path, message)
    }

    fn suggest_name(&self, first: &str, path: &RefPath) -> Problem {
        let problem = unknown(path, &format!("`{first}` is not an input, step or loop variable"));
        if !self.hints {
            return problem;
        }
        if self.outline.outputs.contains_key(first) {
            return problem.hint(format!("write `${first}` to read the declared output"));
        }
        let mut names: Vec<&str> =
            ["inputs", "steps", "env"].into_iter().chain(self.declared.iter().copied()).collect();
        names.extend(self.let_names.into_iter().flatten().map(|name| &**name));
        names.extend(self.loops().map(|(name, _)| name));
        names.extend(self.outline.steps.iter().map(|step| step.id).take(1000));
        match nearest(first, names.iter().copied()) {
            Some(near) => problem.hint(format!("did you mean `{near}`?")),
            None => problem.hint(format!(
                "available here: {}",
                crate::diagnostic::quoted(&names[..names.len().min(12)])
            )),
        }
    }

    /// Resolves an input whose name is segment `at`; `inputs` alone refers to all inputs.
    fn input(&mut self, path: RefPath, at: usize) -> Result<Ref, Problem> {
        let Some(name) = path.name(at) else { return Ok(path.below(Root::Inputs, at)) };
        if self.declared.contains(name) {
            return Ok(path.below(Root::Inputs, at));
        }
        if self.undeclared == Undeclared::Error {
            let problem = unknown(&path, &format!("the input `{name}` is not declared"));
            return Err(match nearest(name, self.declared.iter().copied()) {
                Some(near) => problem.hint(format!("did you mean `{near}`?")),
                None => problem.hint(format!("declare it: `inputs: {{ {name}: {{ type: string }} }}`")),
            });
        }
        self.inferred.push((name.to_owned(), path.at.clone()));
        let if_missing =
            if self.undeclared == Undeclared::Empty { IfMissing::Empty } else { IfMissing::Fail };
        Ok(Ref { if_missing, ..path.below(Root::Inputs, at) })
    }

    /// Resolves `steps.<id>.output` and the other values of a step.
    fn step_part(&mut self, path: RefPath) -> Result<Ref, Problem> {
        let Some(id) = path.name(1) else {
            return Err(unknown(&path, "`steps` must be followed by a step id: `steps.<id>.output`"));
        };
        let Some(step) = self.outline.ids.get(id).copied() else {
            let problem = unknown(&path, &format!("there is no step `{id}`"));
            let ids: Vec<&str> = self.outline.steps.iter().map(|step| step.id).take(1000).collect();
            return Err(match nearest(id, ids.iter().copied()) {
                Some(near) => problem.hint(format!("did you mean `{near}`?")),
                None => problem.hint(format!(
                    "the steps are {}",
                    crate::diagnostic::quoted(&ids[..ids.len().min(limits::SHOWN_KEYS)])
                )),
            });
        };
        let root = match path.name(2) {
            Some("output") => Root::Output(step),
            Some("file_refs") => Root::FileRefs(step),
            Some("status") => Root::Status(step),
            Some("error") => Root::Error(step),
            other => {
                let rest = other.map(|name| format!(".{name}")).unwrap_or_default();
                let problem = unknown(
                    &path,
                    &format!(
                        "`steps.{id}` must be followed by one of {}",
                        crate::diagnostic::quoted(STEP_PARTS)
                    ),
                );
                return Err(problem.hint(format!("did you mean `steps.{id}.output{rest}`?")));
            }
        };
        self.available(path, step, root, 3)
    }

    /// Resolves `$name`: a declared output, a built-in variable, an input or a loop variable.
    fn dollar(&mut self, first: &str, path: RefPath) -> Result<Ref, Problem> {
        if let Some(step) = self.outline.outputs.get(first).copied() {
            let single = self.outline.step(step).spec.and_then(|spec| spec.common.outputs.as_ref());
            let is_only = single.is_some_and(|names| names.0.len() == 1);
            let reference = self.available(path, step, Root::Output(step), 0)?;
            let whole = is_only && reference.path.len() == 1;
            return Ok(if whole { Ref { if_missing: IfMissing::Whole, ..reference } } else { reference });
        }
        if let Some(ambient) = Ambient::from_name(first) {
            return Ok(path.below(Root::Ambient(ambient), 1));
        }
        if self.declared.contains(first) {
            return self.input(path, 0);
        }
        if let Some(owner) = self.item(first) {
            return Ok(path.below(Root::Item(owner), 1));
        }
        let problem =
            unknown(&path, &format!("`${first}` is not a declared output, input or built-in variable"));
        if !self.hints {
            return Err(problem);
        }
        let names = self.declared.iter().copied().chain(Ambient::NAMES.iter().copied());
        let mut outputs: Vec<&str> = self
            .outline
            .steps
            .iter()
            .filter_map(|step| step.spec)
            .flat_map(|spec| spec.common.outputs.iter().flat_map(|names| &names.0).map(|name| name.as_str()))
            .collect();
        outputs.extend(names);
        Err(match nearest(first, outputs) {
            Some(near) => {
                problem.hint(format!("did you mean `${near}`? for a literal dollar sign, write `$$`"))
            }
            None => problem.hint(format!("for a literal dollar sign, write `$${first}`")),
        })
    }

    /// Returns the reference if the step can have run before.
    fn available(&mut self, path: RefPath, step: StepIx, root: Root, used: usize) -> Result<Ref, Problem> {
        let id = self.outline.step(step).id;
        if self.done && self.from == Some(step) {
            return Ok(path.below(root, used));
        }
        let problem = match availability(self.outline, self.from, step, self.reachability) {
            Ok(()) => return Ok(path.below(root, used)),
            Err(Unavailable::Never(reason)) => {
                let message = format!("the step `{id}` can never have run before: {reason}");
                Problem::new(Code::NeverRunsBefore, path.at.clone(), message)
            }
            Err(Unavailable::InsideLoop(owner)) => {
                let owner = self.outline.step(owner).id;
                let message = format!("the step `{id}` runs once per item of `{owner}`");
                Problem::new(Code::InsideLoop, path.at.clone(), message)
                    .hint(format!("read the list of results: `steps.{owner}.output`"))
            }
        };
        let can_depend = self.from.is_some_and(|from| self.reachability.can_depend(self.outline, from, step));
        Err(if can_depend { problem.hint(format!("add `depends_on: [{id}]`")) } else { problem })
    }
}

fn unknown(path: &RefPath, message: &str) -> Problem {
    Problem::new(Code::UnknownTemplateVar, path.at.clone(), message)
}
