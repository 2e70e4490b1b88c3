//! What names mean at one place of a definition.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

use super::StepIx;
use super::order::{Reach, Unavailable, availability};
use super::outline::Outline;
use crate::diagnostic::{Code, nearest};
use crate::expr::{Ambient, IfMissing, Problem, Ref, RefPath, Resolve, Root, compile_regex};
use crate::limits;
use crate::spec::step::Kind;

/// The first names that always mean the same.
pub(super) const ROOTS: &[&str] = &["inputs", "input", "steps", "item", "env", "result", "error"];
/// Words of the expression language, which no variable can be called.
pub(super) const WORDS: &[&str] = &["true", "false", "null", "nil", "and", "or", "not", "in"];
/// What can be read of a step.
const STEP_PARTS: &[&str] = &["output", "file_refs", "status", "error"];

/// How inputs are treated that the definition does not declare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Undeclared {
    /// They are a mistake.
    Refuse,
    /// The graph form: they are empty if they are not given.
    Empty,
    /// A fragment, which declares nothing: they must be given.
    Infer,
}

/// A place in a definition.
pub(super) struct Scope<'s, 'o> {
    pub outline: &'o Outline<'s>,
    pub declared: &'o BTreeSet<&'s str>,
    pub undeclared: Undeclared,
    /// The step that the reference stands on; none for what is evaluated at the end.
    pub from: Option<StepIx>,
    /// What `result` means here.
    pub result: Option<Root>,
    /// Whether the step itself is done: in the conditions of where it leads.
    pub done: bool,
    /// Whether hints are worth finding.
    pub hints: bool,
    pub reach: &'o mut Reach,
    pub regexes: &'o mut BTreeMap<String, Regex>,
    /// Whether `error` can be read: in `on_failure`.
    pub failed: bool,
    /// Names that mean nothing here.
    pub problems: Vec<Problem>,
    /// Inputs that are used but not declared.
    pub inferred: Vec<(String, std::ops::Range<usize>)>,
}

impl Resolve for Scope<'_, '_> {
    /// A name that means nothing is noted, and something put in its place: the rest of the expression may
    /// have other problems.
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
            || self.declared.contains(name)
            || self.outline.ids.contains_key(name)
            || self.item(name).is_some()
    }

    fn regex(&mut self, pattern: &str) -> Result<Regex, String> {
        if let Some(known) = self.regexes.get(pattern) {
            return Ok(known.clone());
        }
        if self.regexes.len() >= limits::REGEXES {
            return Err(format!("a definition has at most {} different ones", limits::REGEXES));
        }
        let regex = compile_regex(pattern)?;
        self.regexes.insert(pattern.to_owned(), regex.clone());
        Ok(regex)
    }
}

impl Scope<'_, '_> {
    fn find(&mut self, path: RefPath) -> Result<Ref, Problem> {
        let Some(first) = path.name(0).map(str::to_owned) else {
            return Err(Problem::new(Code::InvalidTemplate, path.at, "a reference starts with a name"));
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
                None => Err(unknown(&path, "`item` exists only inside a `foreach`")),
            },
            "error" if self.failed => Ok(path.below(Root::Failure, 1)),
            "result" => match self.result.clone() {
                Some(root) => Ok(path.below(root, 1)),
                None => self.bare(&first, path),
            },
            _ => self.bare(&first, path),
        }
    }

    /// The loops around the place, innermost first: what the item is called, and the step.
    fn loops(&self) -> impl Iterator<Item = (&str, StepIx)> {
        let mut step = self.from;
        std::iter::from_fn(move || {
            loop {
                let owner = self.outline.block(self.outline.place(step?).block).owner;
                step = owner;
                if let Some(Kind::Foreach(foreach)) = self.outline.place(owner?).spec.map(|spec| &spec.kind) {
                    return Some((foreach.r#as.as_ref().map_or("item", |name| name.as_str()), owner?));
                }
            }
        })
    }

    /// The loop around the place whose item has this name.
    fn item(&self, name: &str) -> Option<StepIx> {
        self.loops().find(|(variable, _)| *variable == name).map(|(_, owner)| owner)
    }

    /// A name without a root: a loop variable, an input or a step.
    fn bare(&mut self, first: &str, path: RefPath) -> Result<Ref, Problem> {
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
                "`result` means nothing here: it is the output of the step before in a list, or in a `branch` of the graph form of the step itself if that has a tool"
            }
            "error" => "`error` can be read in `on_failure` only; a step has `steps.<id>.error`",
            _ => return self.suggest_name(first, path),
        };
        unknown(path, message)
    }

    fn suggest_name(&self, first: &str, path: &RefPath) -> Problem {
        let problem = unknown(path, &format!("`{first}` is no input, step or loop variable"));
        if !self.hints {
            return problem;
        }
        if self.outline.outputs.contains_key(first) {
            return problem.hint(format!("write `${first}` for a declared output"));
        }
        let mut names: Vec<&str> =
            ["inputs", "steps", "env"].into_iter().chain(self.declared.iter().copied()).collect();
        names.extend(self.loops().map(|(name, _)| name));
        names.extend(self.outline.steps.iter().map(|step| step.id).take(1000));
        match nearest(first, names.iter().copied()) {
            Some(near) => problem.hint(format!("did you mean `{near}`?")),
            None => problem
                .hint(format!("known here: {}", crate::diagnostic::quoted(&names[..names.len().min(12)]))),
        }
    }

    /// An input by its name at `at`; `inputs` alone means all of them.
    fn input(&mut self, path: RefPath, at: usize) -> Result<Ref, Problem> {
        let Some(name) = path.name(at) else { return Ok(path.below(Root::Inputs, at)) };
        if self.declared.contains(name) {
            return Ok(path.below(Root::Inputs, at));
        }
        if self.undeclared == Undeclared::Refuse {
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

    /// `steps.<id>.output` and its siblings.
    fn step_part(&mut self, path: RefPath) -> Result<Ref, Problem> {
        let Some(id) = path.name(1) else {
            return Err(unknown(&path, "`steps` is followed by a step's id: `steps.<id>.output`"));
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
                    &format!("`steps.{id}` is followed by one of {}", crate::diagnostic::quoted(STEP_PARTS)),
                );
                return Err(problem.hint(format!("did you mean `steps.{id}.output{rest}`?")));
            }
        };
        self.available(path, step, root, 3)
    }

    /// `$name`: something about the run, a declared output or an input.
    fn dollar(&mut self, first: &str, path: RefPath) -> Result<Ref, Problem> {
        if let Some(step) = self.outline.outputs.get(first).copied() {
            let single = self.outline.place(step).spec.and_then(|spec| spec.common.outputs.as_ref());
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
        let problem = unknown(
            &path,
            &format!("`${first}` is no declared output, no input and nothing that a run knows"),
        );
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

    /// The reference, if the step can have run before.
    fn available(&mut self, path: RefPath, step: StepIx, root: Root, used: usize) -> Result<Ref, Problem> {
        let id = self.outline.place(step).id;
        if self.done && self.from == Some(step) {
            return Ok(path.below(root, used));
        }
        let problem = match availability(self.outline, self.from, step, self.reach) {
            Ok(()) => return Ok(path.below(root, used)),
            Err(Unavailable::Never(reason)) => {
                let message = format!("the step `{id}` can never have run before: {reason}");
                Problem::new(Code::NeverRunsBefore, path.at.clone(), message)
            }
            Err(Unavailable::InsideLoop(owner)) => {
                let owner = self.outline.place(owner).id;
                let message = format!("the step `{id}` runs once per item of `{owner}`");
                Problem::new(Code::InsideLoop, path.at.clone(), message)
                    .hint(format!("read the list of results: `steps.{owner}.output`"))
            }
        };
        let can_wait = self.from.is_some_and(|from| self.reach.can_wait(self.outline, from, step));
        Err(if can_wait { problem.hint(format!("add `depends_on: [{id}]`")) } else { problem })
    }
}

fn unknown(path: &RefPath, message: &str) -> Problem {
    Problem::new(Code::UnknownTemplateVar, path.at.clone(), message)
}
