//! Compiles the fields of each kind of step.

use serde_json::{Map, Value};

use super::compile::{Compiler, boxed, names};
use super::scope::{KEYWORDS, ROOTS};
use super::{Branch, Call, Case, Foreach, Kind, NamedPrincipal, Parallel, Sleep, StepIx, Wait, Workflow};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Data, Node};
use crate::expr::{Template, ValueTemplate, is_word};
use crate::limits::RunLimits;
use crate::names;
use crate::pattern;
use crate::source::Span;
use crate::spec::head::is_definition_name;
use crate::spec::policy::MissingTool;
use crate::spec::step::{self, Step};
use crate::spec::value::{DurationSpec, Names, Spanned, Text};
use crate::steps::{self, OnFail};

impl Compiler<'_, '_> {
    pub(super) fn kind(&mut self, spec: &Step, at: StepIx) -> Kind {
        match &spec.kind {
            step::Kind::Tool(tool) => Kind::Call(Box::new(self.call(spec, tool, at))),
            step::Kind::Foreach(foreach) => self.foreach(foreach, at),
            step::Kind::Parallel(parallel) => Kind::Parallel(Parallel {
                branches: self.outline.step(at).children.clone(),
                concurrency: parallel.concurrency.as_ref().map(|written| self.concurrency(written)),
                on_any_fail: parallel.on_any_fail.unwrap_or(OnFail::Abort),
            }),
            step::Kind::Branch(branch) => Kind::Branch(self.branch(spec, branch, at)),
            step::Kind::Approve(approve) => Kind::Approve(Box::new(self.approve(spec, approve))),
            step::Kind::Sleep(sleep) => self.sleep(sleep).map_or(Kind::Pass, Kind::Sleep),
            step::Kind::Wait(wait) => self.wait(wait),
            step::Kind::Workflow(workflow) => self.workflow(workflow),
            step::Kind::Let(values) => self.compute(values),
            step::Kind::Pass(_) if self.outline.step(at).children.is_empty() => Kind::Pass,
            step::Kind::Pass(_) => self.forked(at),
        }
    }

    fn call(&mut self, spec: &Step, tool: &steps::Tool, at: StepIx) -> Call {
        let policy = &spec.policy;
        let name = match tool.server() {
            Some(server) => names::full_name(&names::alias(server), tool.name()),
            None => tool.name().to_owned(),
        };
        self.check_allowed(&name, spec.span);
        let on_uncertain = self.enclosing_policies(at).find_map(|policy| policy.on_uncertain);
        let missing_tool = self.enclosing_policies(at).find_map(|policy| policy.missing_tool);
        let server_wait = self.enclosing_policies(at).find_map(|policy| policy.server_wait.as_ref());
        let server_wait = policy.server_wait.as_ref().or(server_wait).or(self.head.server_wait.as_ref());
        let args = self.map_of_arguments(tool.args.as_ref());
        let call = Call {
            name: name.into(),
            server: tool.server().map(Into::into),
            tool: tool.name().into(),
            secrets: args.secrets().into(),
            args,
            idempotency: self.idempotency(policy),
            idempotency_arg: boxed(policy.idempotency_arg.as_ref()),
            effects: policy.effects,
            on_uncertain: policy.on_uncertain.or(on_uncertain).or(self.head.on_uncertain),
            server_wait_ms: server_wait.map(|wait| wait.value.millis),
            verify: policy.verify.as_ref().and_then(|verify| self.verify(verify)),
            missing_tool: policy
                .missing_tool
                .or(missing_tool)
                .or(self.head.missing_tool)
                .unwrap_or(MissingTool::Fail),
            persona: boxed(policy.persona.as_ref()),
            checks: self.result_checks(policy),
        };
        policy.persona.iter().chain(&policy.idempotency_arg).for_each(|text| self.check_plain(text));
        call
    }

    /// Compiles arguments or inputs: a map, or a reference that may return one.
    pub(super) fn map_of_arguments(&mut self, node: Option<&Node>) -> ValueTemplate {
        let Some(node) = node else { return no_arguments() };
        let errors = self.out.errors();
        let value = self.value(node);
        let is_map = matches!(
            &value,
            ValueTemplate::Map(_)
                | ValueTemplate::Literal(Value::Object(_))
                | ValueTemplate::Text(Template::Whole(_))
        );
        if !is_map && self.out.errors() == errors {
            let message = format!("expected a map of arguments, found {}", node.type_name());
            self.report(Diagnostic::new(Code::WrongType, node.span, message));
        }
        value
    }

    pub(super) fn check_allowed(&mut self, name: &str, span: Span) {
        let Some(patterns) = &self.head.allowed_tools else { return };
        if !name.is_empty() && !patterns.iter().any(|pattern| pattern::matches(pattern, name)) {
            let message = format!("`allowed_tools` does not allow the tool `{name}`");
            self.report(
                Diagnostic::new(Code::ToolNotAllowed, span, message)
                    .hint(format!("add `{name}` to `allowed_tools`")),
            );
        }
    }

    /// Compiles `concurrency` of a `foreach` or `parallel`.
    fn concurrency(&mut self, written: &Spanned<u32>) -> u32 {
        self.limit(Some(written), RunLimits::MAX.concurrency)
    }

    fn foreach(&mut self, foreach: &steps::Foreach, at: StepIx) -> Kind {
        let items = foreach.items.as_ref().map_or_else(no_arguments, |items| self.items(items));
        if let Some(name) = &foreach.r#as
            && (!is_word(name)
                || KEYWORDS.contains(&name.as_str())
                || (ROOTS.contains(&name.as_str()) && name.as_str() != "item"))
        {
            let message = format!("`{}` is not a valid name for a loop variable", name.value);
            let diagnostic = Diagnostic::new(Code::InvalidValue, name.span, message);
            self.report(diagnostic.hint("use letters, digits and `_`, such as `file`"));
        }
        let Some(body) = self.outline.step(at).children.first().copied() else { return Kind::Pass };
        if self.outline.block(body).steps.is_empty() {
            let span = self.outline.step(at).spec.map(|spec| spec.span).unwrap_or_default();
            self.report(Diagnostic::new(
                Code::MissingField,
                span,
                "a `foreach` step needs at least one step",
            ));
        }
        Kind::Foreach(Foreach {
            items,
            item: foreach.r#as.as_ref().map_or("item", |name| name.as_str()).into(),
            body,
            concurrency: foreach.concurrency.as_ref().map_or(1, |written| self.concurrency(written)),
            on_item_fail: foreach.on_item_fail.unwrap_or(OnFail::Abort),
        })
    }

    fn items(&mut self, node: &Node) -> ValueTemplate {
        let errors = self.out.errors();
        let value = self.value(node);
        let is_list = matches!(
            &value,
            ValueTemplate::List(_)
                | ValueTemplate::Literal(Value::Array(_))
                | ValueTemplate::Text(Template::Whole(_))
        );
        if !is_list && self.out.errors() == errors {
            let message = "`items` must be a list or a reference to a list";
            let diagnostic = Diagnostic::new(Code::WrongType, node.span, message);
            self.report(diagnostic.hint("write `items: $.step.field` or `items: \"{{inputs.list}}\"`"));
        }
        value
    }

    fn branch(&mut self, spec: &Step, branch: &steps::Branch, at: StepIx) -> Branch {
        let mut blocks = self.outline.step(at).children.iter().copied();
        let mut cases = Vec::new();
        let single = [
            branch.on.as_ref().map(|text| (text, self.jsonpath_condition(text))),
            branch.r#if.as_ref().map(|text| (text, self.condition(text))),
        ];
        let single = single.into_iter().flatten().next().filter(|_| branch.then.is_some());
        let listed = branch.cases.iter().flatten().filter_map(|case| Some((case.r#if.as_ref()?, case)));
        let listed: Vec<_> = listed.map(|(text, _)| (text, self.condition(text))).collect();
        for (text, condition) in single.into_iter().chain(listed) {
            if let (Some(when), Some(then)) = (condition, blocks.next()) {
                cases.push(Case { when, written: text.value.as_str().into(), then });
            }
        }
        let otherwise = branch.r#else.as_ref().and_then(|_| self.outline.step(at).children.last().copied());
        let must_match = branch.cases.is_some();
        if otherwise.is_none() && must_match && !cases.is_empty() {
            self.warn_no_else(spec.span);
        }
        Branch { cases, otherwise, must_match }
    }

    /// Compiles a list of users and groups: at least one, without references.
    pub(super) fn recipients(&mut self, field: &str, written: Option<&Names>) -> Box<[Box<str>]> {
        let Some(written) = written else { return Box::default() };
        if written.0.is_empty() {
            let span = self.at.and_then(|at| self.outline.step(at).spec).map(|spec| spec.span);
            let message = format!("`{field}` is empty");
            self.report(
                Diagnostic::new(Code::InvalidValue, span.unwrap_or_default(), message)
                    .hint("remove it, or name a user or group"),
            );
        }
        for name in &written.0 {
            self.check_plain(name);
            let (step, is_approver) = (self.at, field == "approvers");
            let name_as_written = name.as_str().into();
            self.principals.push(NamedPrincipal {
                name: name_as_written,
                is_approver,
                step,
                span: name.span,
            });
        }
        names(&written.0)
    }

    /// Reports references in a plain text field.
    fn check_plain(&mut self, text: &Text) {
        if text.contains("{{") || text.trim().is_empty() {
            let message = "this field is plain text: it cannot be empty or contain references";
            let diagnostic = Diagnostic::new(Code::InvalidTemplate, text.span, message);
            self.report(
                diagnostic.hint("references are allowed in `args`, `prompt`, `output` and similar fields"),
            );
        }
    }

    fn sleep(&mut self, sleep: &steps::Sleep) -> Option<Sleep> {
        if let Some(node) = &sleep.r#for {
            return self.sleep_for(node);
        }
        let until = sleep.until.as_ref()?;
        let template = self.template(until, until.span);
        let Template::Literal(Value::String(text)) = &template else {
            return Some(Sleep::UntilComputed(template));
        };
        if let Ok(timestamp) = text.parse::<jiff::Timestamp>() {
            return Some(Sleep::Until(timestamp.as_millisecond()));
        }
        let diagnostic =
            Diagnostic::new(Code::InvalidValue, until.span, format!("`{text}` is not a timestamp"));
        self.report(diagnostic.hint("write it with an offset: `2026-12-01T08:00:00Z` or `…+01:00`"));
        None
    }

    fn sleep_for(&mut self, node: &Node) -> Option<Sleep> {
        if let Data::Text(text) = &node.data {
            let template = self.template(text, node.span);
            if !matches!(template, Template::Literal(_)) {
                return Some(Sleep::ForComputed(template));
            }
        }
        match DurationSpec::from_data(&node.data) {
            Ok(duration) => Some(Sleep::For(duration.millis)),
            Err(reason) => {
                self.report(Diagnostic::new(Code::InvalidValue, node.span, reason).hint(DurationSpec::HINT));
                None
            }
        }
    }

    fn wait(&mut self, wait: &steps::Wait) -> Kind {
        let Some(event) = &wait.event else { return Kind::Pass };
        if event.is_empty() {
            self.report(Diagnostic::new(Code::InvalidValue, event.span, "the name of the signal is empty"));
        }
        Kind::Wait(Wait {
            event: self.template(event, event.span),
            correlate: wait.correlate.as_ref().map(|value| self.value(value)),
        })
    }

    fn workflow(&mut self, workflow: &steps::Workflow) -> Kind {
        let Some(name) = &workflow.name else { return Kind::Pass };
        if !is_definition_name(name) {
            let message = format!("`{}` is not a valid workflow name", name.value);
            let diagnostic = Diagnostic::new(Code::InvalidValue, name.span, message);
            let hint = "the name cannot contain references; use a `branch` with one `workflow` step per case";
            self.report(diagnostic.hint(hint));
        }
        let inputs = self.map_of_arguments(workflow.inputs.as_ref());
        Kind::Workflow(Workflow { name: name.value.as_str().into(), version: workflow.version, inputs })
    }
}

pub(super) fn no_arguments() -> ValueTemplate {
    ValueTemplate::Literal(Value::Object(Map::new()))
}
