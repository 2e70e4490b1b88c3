//! Compiles a policy as written: fills in defaults, compiles conditions and checks rules against one another.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::tz::TimeZone;

use super::facts::Names;
use super::matcher::{AnnotationTest, Matcher, Patterns, RuleIndex};
use super::spec::{
    ActionSpec, ApprovalSpec, ByAgents, DefaultAction, EscalationSpec, LimitPer, LimitSpec, OnExceeded,
    PolicySpec, PrincipalName, Principals, RuleSpec, TimeUnit,
};
use super::{
    Action, Approval, DEFAULT_RULE, FindZone, IdenticalCalls, Limit, LimitKind, Policy, Rule, written,
};
use crate::bounded_regex::RegexSet;
use crate::diagnostic::{Code, Diagnostic, Diagnostics};
use crate::document::{self, Data};
use crate::expr::Condition;
use crate::limits;
use crate::plan::{EscalationLevel, GateTimes, Hash, LevelTimes, SourceText};
use crate::presence::Presence;
use crate::source::{Source, Span};
use crate::spec::fields::{FromNode, Reader};
use crate::spec::value::{Names as NameList, Spanned, Text, ToolName};
use crate::steps::OnTimeout;

/// Digits of a hash that identify a version.
const VERSION_DIGITS: usize = 12;
const DENIED: &str = "the policy does not allow the call";

pub(super) fn compile(source: &Source, zones: FindZone, out: &mut Diagnostics) -> Option<Policy> {
    let root = document::read(source, out)?;
    if matches!(root.data, Data::Null) {
        let diagnostic = Diagnostic::new(Code::MissingField, root.span, "the policy is empty");
        out.push(diagnostic.hint("a minimal policy: `default: allow`"));
        return None;
    }
    let mut reader = Reader { out, step: None, steps: 0, depth: 0, regexes: RegexSet::default() };
    let spec = PolicySpec::from_node(root, &mut reader)?;
    let hash = Hash::of(serde_json::to_string(&spec).unwrap_or_default().as_bytes());
    let mut compiler = Compiler { source, out, names: Names::default() };
    let zone = compiler.zone(spec.time_zone.as_ref(), zones);
    let rules = compiler.rules(spec.rules.as_deref().unwrap_or_default());
    Some(Policy {
        hash,
        version: hash.to_string()[..VERSION_DIGITS].into(),
        default_name: DEFAULT_RULE.into(),
        default: default_action(spec.default?),
        index: RuleIndex::new(rules.iter().map(|rule| &rule.matcher)),
        rules,
        zone,
        by_agents: spec.definitions.and_then(|rules| rules.by_agents).unwrap_or(ByAgents::Allowed),
        identical_calls: spec.identical_calls.and_then(|spec| {
            let (max, within) = (spec.max?, spec.within?);
            compiler.positive(u64::from(max.value), max.span, "max");
            compiler.positive(within.millis, within.span, "within");
            Some(IdenticalCalls { max: max.value, within_ms: within.millis })
        }),
    })
}

fn default_action(action: DefaultAction) -> Action {
    match action {
        DefaultAction::Allow => Action::Allow,
        DefaultAction::Deny => Action::Deny(DENIED.into()),
        DefaultAction::RequireApproval => Action::RequireApproval(Arc::new(Approval::plain())),
    }
}

fn level_times(level: &Spanned<EscalationSpec>) -> LevelTimes<'_> {
    LevelTimes {
        span: level.span,
        after: level.after.as_ref(),
        has_recipients: level.notify.is_some() || level.approvers.is_some(),
    }
}

fn escalation_level(spec: &EscalationSpec) -> Option<EscalationLevel> {
    let names = |list: Option<&Principals>| written(&list.map(Principals::names).unwrap_or_default());
    let channels = spec.channels.iter().flat_map(|names| &names.0).map(|name| name.as_str().into());
    Some(EscalationLevel {
        after_ms: spec.after.as_ref()?.millis,
        notify: names(spec.notify.as_ref().or(spec.approvers.as_ref())),
        approvers: names(spec.approvers.as_ref()),
        channels: channels.collect(),
    })
}

impl Approval {
    /// The approval of one user with the right `approve`, without a timeout.
    fn plain() -> Self {
        Self {
            approvers: Vec::new(),
            quorum: 1,
            timeout_ms: None,
            on_timeout: OnTimeout::Deny,
            notify: Vec::new(),
            remind_ms: None,
            escalate: Vec::new(),
            allow_self: false,
            presence: Presence::None,
        }
    }
}

struct Compiler<'c> {
    source: &'c Source,
    out: &'c mut Diagnostics,
    names: Names,
}

impl Compiler<'_> {
    fn report(&mut self, code: Code, span: Span, message: impl Into<String>, hint: &str) {
        self.out.push(Diagnostic::new(code, span, message).hint(hint));
    }

    fn positive(&mut self, value: u64, span: Span, field: &str) {
        if value == 0 {
            self.report(Code::InvalidLimit, span, format!("`{field}` is 0"), "write a positive value");
        }
    }

    fn zone(&mut self, name: Option<&Text>, zones: FindZone) -> TimeZone {
        let Some(name) = name else { return TimeZone::UTC };
        zones(name).unwrap_or_else(|| {
            let message = format!("unknown time zone `{}`", name.value);
            self.report(Code::UnknownTimeZone, name.span, message, "write a name such as `Europe/Berlin`");
            TimeZone::UTC
        })
    }

    fn rules(&mut self, specs: &[RuleSpec]) -> Vec<Rule> {
        if let Some(first) = specs.get(limits::POLICY_RULES) {
            let span = first.name.as_ref().map_or(Span::default(), |name| name.span);
            let message = format!("a policy has at most {} rules", limits::POLICY_RULES);
            self.report(Code::LimitExceeded, span, message, "merge rules that have the same action");
        }
        let mut seen = BTreeSet::new();
        let mut catch_all: Option<&str> = None;
        let mut rules = Vec::new();
        for spec in specs.iter().take(limits::POLICY_RULES) {
            let Some(rule) = self.rule(spec) else { continue };
            let span = spec.name.as_ref().map_or(Span::default(), |name| name.span);
            self.check_name(&rule.name, span, &mut seen);
            if let Some(earlier) = catch_all {
                let message =
                    format!("the rule `{}` is never reached: `{earlier}` matches every call", rule.name);
                self.report(Code::UnreachableRule, span, message, "put the more specific rule first");
            } else if rule.matcher.is_any() && spec.when.is_none() {
                catch_all = spec.name.as_ref().map(|name| name.as_str());
            }
            rules.push(rule);
        }
        rules
    }

    fn check_name(&mut self, name: &str, span: Span, seen: &mut BTreeSet<String>) {
        if name == DEFAULT_RULE {
            let message = "`default` is the name of the verdict for calls that no rule matches";
            self.report(Code::DuplicateRule, span, message, "choose another name");
        } else if name.trim().is_empty() || name.chars().count() > limits::NAME_CHARS {
            let message = format!("a rule name has 1 to {} characters", limits::NAME_CHARS);
            self.report(Code::InvalidValue, span, message, "choose another name");
        } else if !seen.insert(name.to_owned()) {
            let message = format!("there are two rules with the name `{name}`");
            self.report(Code::DuplicateRule, span, message, "choose another name");
        }
    }

    fn rule(&mut self, spec: &RuleSpec) -> Option<Rule> {
        let hints = spec.annotations.as_ref();
        let span = spec.name.as_ref().map_or(Span::default(), |name| name.span);
        let matcher = Matcher {
            tools: self.tools(spec.tools.as_ref(), span),
            annotations: AnnotationTest {
                read_only: hints.and_then(|hints| hints.read_only),
                destructive: hints.and_then(|hints| hints.destructive),
                idempotent: hints.and_then(|hints| hints.idempotent),
                open_world: hints.and_then(|hints| hints.open_world),
            },
            principals: spec.principals.as_ref().map(|principals| principals.names().into()),
            by: spec.by,
            clients: self.patterns("clients", spec.clients.as_ref(), span),
            workflows: self.patterns("workflows", spec.workflows.as_ref(), span),
            calls: spec.calls,
            when: spec.when.as_ref().and_then(|when| self.condition(when)),
        };
        let action = self.action(spec.then.as_ref()?)?;
        Some(Rule { name: spec.name.as_ref()?.as_str().into(), matcher, action })
    }

    fn tools(&mut self, written: Option<&NameList>, rule: Span) -> Option<Patterns> {
        let patterns = self.patterns("tools", written, rule)?;
        for text in written.iter().flat_map(|names| &names.0) {
            let name = text.replace('*', "");
            if !name.is_empty() && !ToolName::is_valid(&name) {
                let message = format!("`{}` matches no tool name", text.value);
                let hint = "a tool name has letters, digits, `_`, `-` and `.`; `*` stands for any text";
                self.report(Code::InvalidToolName, text.span, message, hint);
            }
        }
        Some(patterns)
    }

    fn patterns(&mut self, field: &str, written: Option<&NameList>, rule: Span) -> Option<Patterns> {
        let names = &written?.0;
        if names.is_empty() || names.iter().any(|name| name.trim().is_empty()) {
            let span = names.first().map_or(rule, |name| name.span);
            let message = format!("`{field}` is empty, so the rule matches no call");
            self.report(Code::InvalidValue, span, message, "name a pattern, or remove the field");
        }
        if let Some(name) = names.get(limits::POLICY_PATTERNS) {
            let message = format!("`{field}` has more than {} patterns", limits::POLICY_PATTERNS);
            self.report(Code::LimitExceeded, name.span, message, "use `*`, or split the rule");
        }
        Some(Patterns::new(names.iter().map(|name| name.as_str())))
    }

    fn condition(&mut self, text: &Text) -> Option<Condition> {
        Condition::parse(text, &mut self.names)
            .map(Condition::folded)
            .map_err(|problem| {
                let span = SourceText::new(text, text.span, self.source).locate(&problem.at);
                let diagnostic = Diagnostic::new(problem.code, span, problem.message);
                self.out.push(Diagnostic { hint: problem.hint, ..diagnostic });
            })
            .ok()
    }

    fn action(&mut self, spec: &ActionSpec) -> Option<Action> {
        Some(match spec {
            ActionSpec::Allow => Action::Allow,
            ActionSpec::Deny(deny) => {
                Action::Deny(deny.reason.as_ref().map_or(DENIED, |r| r.as_str()).into())
            }
            ActionSpec::RequireApproval(spec) => Action::RequireApproval(self.approval(spec).into()),
            ActionSpec::Limit(spec) => Action::Limit(self.limit(spec, spec.span)?.into()),
        })
    }

    fn approval(&mut self, spec: &ApprovalSpec) -> Approval {
        self.check_quorum(spec);
        self.check_times(spec);
        let names = |list: Option<&Principals>| list.map(Principals::names);
        let levels = spec.escalate.iter().flatten();
        Approval {
            approvers: names(spec.approvers.as_ref()).unwrap_or_default(),
            quorum: spec.quorum.as_ref().map_or(1, |quorum| quorum.value),
            timeout_ms: spec.timeout.as_ref().map(|timeout| timeout.millis),
            on_timeout: spec.on_timeout.as_ref().map_or(OnTimeout::Deny, |on_timeout| on_timeout.value),
            notify: names(spec.notify.as_ref()).unwrap_or_default(),
            remind_ms: spec.remind.as_ref().map(|remind| remind.millis),
            escalate: levels.filter_map(|level| escalation_level(level)).collect(),
            allow_self: spec.allow_self.unwrap_or(false),
            presence: spec.presence.unwrap_or_default(),
        }
    }

    /// Reports a quorum that the approvers can never reach.
    fn check_quorum(&mut self, spec: &ApprovalSpec) {
        let Some(quorum) = &spec.quorum else { return };
        self.positive(u64::from(quorum.value), quorum.span, "quorum");
        let Some(approvers) = &spec.approvers else { return };
        let later = spec.escalate.iter().flatten().filter_map(|level| level.approvers.as_ref());
        let users: BTreeSet<_> =
            later.chain([approvers]).flat_map(|names| &names.0).map(|name| &name.value).collect();
        let only_users = users.iter().all(|name| matches!(name, PrincipalName::User(_)));
        if only_users && users.len() < quorum.value as usize {
            let message =
                format!("the quorum is {}, and the number of approvers is {}", quorum.value, users.len());
            self.report(Code::InvalidLimit, quorum.span, message, "name more approvers, or lower the quorum");
        }
    }

    fn check_times(&mut self, spec: &ApprovalSpec) {
        let times = GateTimes {
            timeout_ms: spec.timeout.as_ref().map(|timeout| timeout.millis),
            on_timeout: spec.on_timeout.as_ref().map(|on_timeout| (on_timeout.value, on_timeout.span)),
            remind: spec.remind.as_ref(),
            levels: spec.escalate.iter().flatten().map(level_times).collect(),
        };
        times.check(&mut |diagnostic| self.out.push(diagnostic));
    }

    fn limit(&mut self, spec: &LimitSpec, span: Span) -> Option<Limit> {
        let per = spec.per.unwrap_or(LimitPer::User);
        let quantity = match (&spec.rate, &spec.budget) {
            (Some(rate), None) => rate,
            (None, Some(budget)) => budget,
            (Some(rate), Some(_)) => {
                let message = "`rate` and `budget` cannot be used together";
                self.report(
                    Code::ConflictingFields,
                    rate.span,
                    message,
                    "write two rules, or keep one of them",
                );
                return None;
            }
            // A value that could not be parsed is reported already.
            (None, None) if self.out.has_errors() => return None,
            (None, None) => {
                let message = "`limit` needs a rate or a budget";
                self.report(Code::MissingField, span, message, "write `limit: {rate: 60/m}`");
                return None;
            }
        };
        let is_rate = spec.rate.is_some();
        let allowed = match quantity.unit {
            Some(TimeUnit::Day | TimeUnit::Week) => !is_rate,
            Some(_) => true,
            None => !is_rate && per == LimitPer::Run,
        };
        if !allowed {
            let (message, hint) = if is_rate {
                ("a rate is per second, minute or hour", "write `rate: 60/m`, or use a budget")
            } else {
                (
                    "a budget without a unit of time needs `per: run`",
                    "write `budget: 50/d`, or add `per: run`",
                )
            };
            self.report(Code::InvalidLimit, quantity.span, message, hint);
        }
        if let (true, Some(on_exceeded)) = (is_rate, &spec.on_exceeded) {
            let message = "`on_exceeded` needs a budget; calls above a rate wait";
            self.report(Code::ConflictingFields, on_exceeded.span, message, "remove it");
        }
        let kind = match spec.on_exceeded.as_ref().map(|on_exceeded| on_exceeded.value) {
            _ if is_rate => LimitKind::Rate,
            Some(OnExceeded::RequireApproval) => LimitKind::BudgetOrApproval(Approval::plain().into()),
            Some(OnExceeded::Deny) | None => LimitKind::Budget,
        };
        Some(Limit { kind, quantity: quantity.value, per })
    }
}
