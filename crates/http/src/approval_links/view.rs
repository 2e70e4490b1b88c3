//! An approval as a page: first the facts that the engine vouches for, then the prompt as a quotation, then the form.

use std::fmt::Write;

use serde_json::{Map, Value};
use steprail_core::display;
use steprail_core::plan::GateRules;
use steprail_core::presence::Presence;
use steprail_core::run::{GuardedCall, Millis, Subject};
use steprail_core::steps::OnTimeout;
use steprail_engine::Approval;

use super::form::Form;
use super::html::{escaped, line, text, time};
use crate::limits::COMMENT_CHARS;
use crate::passkey_page;

/// What the page says about deciding.
pub(super) enum Deciding {
    /// The form for a user, with the factor that they have to prove. Without a session, some factor is always needed.
    Form { user: String, session_value: Option<String>, factor: Presence },
    /// The request needs a passkey, which a page without scripts cannot use.
    Passkey,
    /// Why there is no form.
    Refused(String),
}

/// A page of an open approval.
pub(super) struct View<'a> {
    pub approval: &'a Approval,
    /// Path of the page.
    pub path: &'a str,
    pub now: Millis,
    /// Why the last attempt failed.
    pub problem: Option<&'a str>,
    /// Whether the names of those who approved so far are shown.
    pub shows_signed: bool,
    pub deciding: Deciding,
    /// Whether a link continues in the session of this browser.
    pub offers_session: bool,
}

impl View<'_> {
    pub(super) fn render(&self) -> String {
        let subject = self.approval.subject.as_ref();
        let subject: Option<Subject> = subject.and_then(|subject| serde_json::from_str(subject.get()).ok());
        let mut body = String::new();
        if let Some(problem) = self.problem {
            let _ = writeln!(body, "<p class=\"problem\" role=\"alert\">{}</p>", escaped(problem));
        }
        let _ =
            writeln!(body, "<section>\n<h2>What will run</h2>\n{}</section>", self.calls(subject.as_ref()));
        let _ = writeln!(body, "<section>\n<h2>Request</h2>\n{}</section>", self.facts(subject.as_ref()));
        if !self.approval.prompt.is_empty() {
            let prompt = text(&self.approval.prompt);
            let _ = writeln!(
                body,
                "<section>\n<h2>Prompt</h2>\n<blockquote>{prompt}</blockquote>\n\
                 <p class=\"quiet\">Written by the definition or a tool, not by Steprail.</p>\n</section>"
            );
        }
        body.push_str(&self.decision());
        body
    }

    fn calls(&self, subject: Option<&Subject>) -> String {
        let covered = subject.map(|subject| subject.calls.as_slice()).unwrap_or_default();
        let mut html = String::new();
        if let Some(tool) = &self.approval.tool {
            let args = self.approval.args.as_ref().and_then(|args| serde_json::from_str(args.get()).ok());
            let own = covered.first();
            let args = args.or_else(|| own.and_then(|call| call.args.clone()));
            html.push_str(&call(tool, args.as_ref(), own));
        } else {
            covered
                .iter()
                .for_each(|known| html.push_str(&call(&known.tool, known.args.as_ref(), Some(known))));
        }
        for workflow in subject.map(|subject| subject.workflows.as_slice()).unwrap_or_default() {
            let inputs = workflow.inputs.as_ref().and_then(Value::as_object);
            let rows =
                inputs.map(|inputs| arguments(inputs, &[])).unwrap_or_default() + &unknown(&workflow.unknown);
            let name = line(&workflow.name);
            let _ = writeln!(
                html,
                "<div class=\"call\"><p class=\"tool\">workflow <code>{name}</code></p>{rows}</div>"
            );
        }
        if subject.is_some_and(|subject| subject.more_calls) {
            html.push_str("<p class=\"quiet\">More calls follow than are listed here.</p>\n");
        }
        if html.is_empty() {
            html.push_str("<p class=\"quiet\">No call is known yet that depends on this decision.</p>\n");
        }
        html
    }

    fn facts(&self, subject: Option<&Subject>) -> String {
        let open = self.approval;
        let who = if open.by_agent { "an agent of " } else { "" };
        let mut rows = vec![
            ("Started by", format!("{who}{}", line(&open.created_by))),
            ("Definition", format!("{} version {}", line(&open.definition), open.version)),
            ("Step", line(&open.path)),
            ("Requested", time(open.requested_at, self.now)),
        ];
        if let Some(deadline) = open.expires_at {
            rows.push(("Deadline", time(deadline, self.now)));
        }
        if let Some(rules) = subject.map(|subject| &subject.rules) {
            if !rules.approvers.is_empty() {
                rows.push(("Approvers", line(&rules.approvers.join(", "))));
            }
            for level in rules.escalate.iter().filter(|level| !level.approvers.is_empty()) {
                let at = time(open.requested_at.saturating_add_unsigned(level.after_ms), self.now);
                rows.push(("Also, later", format!("{} from {at}", line(&level.approvers.join(", ")))));
            }
            if open.expires_at.is_some() {
                rows.push(("Without a decision", without_decision(rules)));
            }
            if rules.quorum > 1 {
                let (given, quorum) = (open.signed.len(), rules.quorum);
                rows.push(("Approvals", format!("{given} of {quorum} so far")));
            }
        }
        if self.shows_signed && !open.signed.is_empty() {
            rows.push(("Approved by", line(&open.signed.join(", "))));
        }
        if let Some(rule) = subject.and_then(|subject| subject.policy.as_ref()) {
            rows.push(("Required by", format!("rule {} of the policy", line(&rule.rule))));
        }
        rows.push(("Run", open.run_id.to_string()));
        rows.push(("Digest", open.digest.half().to_string()));
        let rows: String =
            rows.iter().map(|(name, value)| format!("<dt>{name}</dt><dd>{value}</dd>\n")).collect();
        format!("<dl>\n{rows}</dl>\n")
    }

    fn decision(&self) -> String {
        let mut continue_link = String::new();
        if self.offers_session {
            let path = escaped(self.path);
            continue_link =
                format!("<p><a href=\"{path}\">Signed in in this browser? Continue as yourself.</a></p>\n");
        }
        match &self.deciding {
            Deciding::Refused(reason) => {
                format!(
                    "<section>\n<h2>Decision</h2>\n<p>{}</p>\n{continue_link}</section>\n",
                    escaped(reason)
                )
            }
            Deciding::Passkey => {
                let path = passkey_page::path_of(self.approval.run_id, &self.approval.path);
                format!(
                    "<section>\n<h2>Decision</h2>\n<p>This request needs a passkey, which cannot be used on this page.</p>\n\
                     <p><a href=\"{}\">Sign in and decide with your passkey.</a></p>\n</section>\n",
                    escaped(&path)
                )
            }
            Deciding::Form { user, session_value, factor } => {
                self.form(user, session_value.as_deref(), *factor) + &continue_link
            }
        }
    }

    fn form(&self, user: &str, session_value: Option<&str>, factor: Presence) -> String {
        // A disabled default button: the Enter key in a field decides nothing.
        let mut html = format!(
            "<form method=\"post\" action=\"{}\" autocomplete=\"off\">\n<button type=\"submit\" disabled hidden></button>\n\
             <h2>Decide as {}</h2>\n",
            escaped(self.path),
            line(user)
        );
        if let Some(value) = session_value {
            let _ = writeln!(html, "<input type=\"hidden\" name=\"session\" value=\"{}\">", escaped(value));
        }
        let schema = self.approval.form.as_ref().and_then(|form| serde_json::from_str(form.get()).ok());
        let form = schema.as_ref().map(Form::read);
        if let Some(Some(form)) = &form {
            let fields = form.render();
            let _ = write!(
                html,
                "<fieldset><legend>Asked by the definition</legend>\n\
                 <p class=\"quiet\">The run stores what you enter here. Never enter a PIN or a code.</p>\n{fields}</fieldset>\n"
            );
        }
        let can_approve = !matches!(form, Some(None));
        if !can_approve {
            html.push_str(
                "<p>This request has a form that the page cannot show. Answer it in the terminal: <code>steprail approve</code>.</p>\n",
            );
        }
        let _ = writeln!(
            html,
            "<label><span>Comment (optional)</span><textarea name=\"comment\" rows=\"2\" maxlength=\"{COMMENT_CHARS}\"></textarea></label>"
        );
        html.push_str(&factor_fields(session_value.is_some(), factor));
        html.push_str("<div class=\"buttons\">\n<button type=\"submit\" name=\"decision\" value=\"deny\" formnovalidate>Deny</button>\n");
        if can_approve {
            html.push_str("<button type=\"submit\" name=\"decision\" value=\"approve\">Approve</button>\n");
        }
        html.push_str("</div>\n</form>\n");
        html
    }
}

/// The fields for a factor. Without a session, either factor proves who decides, unless one is required.
fn factor_fields(has_session: bool, factor: Presence) -> String {
    let input = |label: &str, mode: &str| {
        format!(
            "<label><span>{label}</span><input type=\"password\" name=\"proof\" maxlength=\"64\" required \
             autocomplete=\"off\" inputmode=\"{mode}\"></label>\n"
        )
    };
    let hidden = |factor: &str| format!("<input type=\"hidden\" name=\"factor\" value=\"{factor}\">\n");
    match factor {
        Presence::None if has_session => String::new(),
        // A page with a form needs none: the decision is made elsewhere.
        Presence::Passkey => String::new(),
        Presence::Totp => hidden("totp") + &input("One-time code", "numeric"),
        Presence::None | Presence::Pin => {
            "<fieldset><legend>Prove that it is you</legend>\n\
             <label><input type=\"radio\" name=\"factor\" value=\"pin\" checked>PIN</label>\n\
             <label><input type=\"radio\" name=\"factor\" value=\"totp\">One-time code</label>\n</fieldset>\n"
                .to_owned()
                + &input("PIN or code", "text")
        }
    }
}

/// What happens at the deadline.
fn without_decision(rules: &GateRules) -> String {
    match (rules.on_timeout, &rules.on_timeout_goto) {
        (OnTimeout::Escalate, _) => "the request stays open".to_owned(),
        (OnTimeout::Fail, _) => "the step fails; the definition says what follows".to_owned(),
        (OnTimeout::Deny, Some(step)) => format!("the run continues at <code>{}</code>", line(step)),
        (OnTimeout::Deny, None) => "the request is denied; the definition says what follows".to_owned(),
    }
}

/// A call with its arguments, one per row.
fn call(tool: &str, args: Option<&Value>, known: Option<&GuardedCall>) -> String {
    let from_tools = known.map(|call| call.from_tools.as_slice()).unwrap_or_default();
    let rows = match args {
        Some(Value::Object(args)) if !args.is_empty() => arguments(args, from_tools),
        Some(Value::Object(_)) => "<p class=\"quiet\">No arguments.</p>".to_owned(),
        Some(other) => format!("<pre>{}</pre>", text(&other.to_string())),
        None => match known.and_then(|call| call.args_hash) {
            Some(hash) => format!("<p class=\"quiet\">Arguments too large to show, SHA-256 {hash}</p>"),
            None => String::new(),
        },
    };
    let unknown = known.map(|call| unknown(&call.unknown)).unwrap_or_default();
    let tool = line(tool);
    format!("<div class=\"call\"><p class=\"tool\">call <code>{tool}</code></p>{rows}{unknown}</div>\n")
}

fn arguments(args: &Map<String, Value>, from_tools: &[Box<str>]) -> String {
    let row = |(name, value): (&String, &Value)| {
        let is_marked = from_tools.iter().any(|marked| **marked == *"*" || **marked == **name);
        let tag = if is_marked { " <span class=\"tag\">from a tool</span>" } else { "" };
        format!("<dt>{}</dt><dd>{}{tag}</dd>\n", line(name), escaped(&display::visible(&shown(value))))
    };
    format!("<dl class=\"args\">\n{}</dl>", args.iter().map(row).collect::<String>())
}

/// A value as people read it: text as it is, unless it looks like another JSON value.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if !text.is_empty() && serde_json::from_str::<Value>(text).is_err() => {
            text.clone()
        }
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    }
}

fn unknown(names: &[Box<str>]) -> String {
    if names.is_empty() {
        return String::new();
    }
    format!("<p class=\"quiet\">Not known yet: {}</p>", line(&names.join(", ")))
}
