//! Approval links: a signed link shows one request to its recipient, and a form decides it once.
//!
//! Opening a link has no effect. A decision needs a session of this browser, or a factor of the recipient.

mod attempts;
mod form;
mod html;
mod token;
mod view;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use steprail_core::display;
use steprail_core::presence::Presence;
use steprail_core::run::Provenance;
use steprail_engine::{Approval, DecisionRequest, Principal, RunStatus, User};

pub(crate) use attempts::LinkAttempts;
use form::Form;
use html::{line, notice, page, time};
use token::Link;
pub use token::LinkSigner;
use view::{Deciding, View};

use crate::accounts::{PresenceError, SessionAuth};
use crate::limits::{COMMENT_CHARS, LINK_BODY_BYTES};
use crate::peer::Peer;
use crate::problem::Problem;
use crate::{App, sign_in};

pub(crate) fn routes() -> Router<App> {
    let link = get(show).post(decide).layer(DefaultBodyLimit::max(LINK_BODY_BYTES));
    Router::new().route("/a/{token}", link).route("/links.css", get(style))
}

async fn style() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], html::STYLE)
}

/// What a link leads to.
enum Target {
    /// The request, which is open.
    Open(Box<Approval>),
    /// The request, which was decided or has ended.
    Closed(Box<Approval>),
    /// The request was replaced, or its run was deleted.
    Gone,
}

/// A link that was checked, and who opened it.
struct Visit<'a> {
    app: &'a App,
    signer: &'a LinkSigner,
    link: Link,
    /// Path of the page.
    path: String,
    session: Option<SessionAuth>,
    is_loopback: bool,
}

/// Shows the request. It changes nothing, so that link previews and forwarded mails change nothing.
async fn show(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(token): Path<String>,
    headers: HeaderMap,
) -> Response {
    let visit = match Visit::new(&app, &token, &peer, &headers) {
        Ok(visit) => visit,
        Err(response) => return *response,
    };
    match visit.target().await {
        Ok(Target::Open(approval)) => visit.page(StatusCode::OK, &approval, None).await,
        Ok(Target::Closed(approval)) => visit.closed(StatusCode::OK, &approval),
        Ok(Target::Gone) => gone(StatusCode::OK),
        Err(problem) => failed(&problem),
    }
}

/// Decides about the request.
async fn decide(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(token): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let visit = match Visit::new(&app, &token, &peer, &headers) {
        Ok(visit) => visit,
        Err(response) => return *response,
    };
    if let Err(reason) = from_own_page(&headers) {
        return notice(StatusCode::FORBIDDEN, "Not decided", reason);
    }
    let body = match body {
        Ok(body) => body,
        Err(rejection) => {
            return notice(rejection.status(), "Not decided", "The form is too large or incomplete.");
        }
    };
    let sent: Vec<(String, String)> = form_urlencoded::parse(&body).into_owned().collect();
    match visit.target().await {
        Ok(Target::Open(approval)) => visit.decide(&approval, &Sent(sent)).await,
        Ok(Target::Closed(approval)) => visit.closed(StatusCode::CONFLICT, &approval),
        Ok(Target::Gone) => gone(StatusCode::CONFLICT),
        Err(problem) => failed(&problem),
    }
}

/// Rejects forms of other pages, and programs with a token: they use the API, where agents cannot decide.
fn from_own_page(headers: &HeaderMap) -> Result<(), &'static str> {
    if headers.contains_key(header::AUTHORIZATION) {
        return Err("Links are for people in a browser. Programs with a token use the API.");
    }
    let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let is_own_origin = text(header::ORIGIN).is_none_or(|origin| {
        let origin = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        origin.zip(text(header::HOST)).is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host))
    });
    let site = headers.get("sec-fetch-site");
    let kind = text(header::CONTENT_TYPE).unwrap_or_default();
    if !is_own_origin || site.is_some_and(|site| site != "same-origin") {
        return Err("The form was sent by another page. Open the link again.");
    }
    if kind.split(';').next() != Some("application/x-www-form-urlencoded") {
        return Err("The body must be a form.");
    }
    Ok(())
}

/// The fields of a form.
struct Sent(Vec<(String, String)>);

impl Sent {
    fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// The decision without its answer, or why it is not one.
    fn decision(&self, approval: &Approval) -> Result<DecisionRequest, String> {
        let approved = match self.get("decision") {
            "approve" => true,
            "deny" => false,
            _ => return Err("Choose whether to approve or deny.".to_owned()),
        };
        let comment = self.get("comment").trim().replace("\r\n", "\n");
        if comment.chars().count() > COMMENT_CHARS {
            return Err(format!("A comment has at most {COMMENT_CHARS} characters."));
        }
        let reason = Some(comment).filter(|comment| !comment.is_empty());
        let schema = approval.form.as_ref().filter(|_| approved);
        let schema = schema.and_then(|form| serde_json::from_str(form.get()).ok());
        let answer = match schema.as_ref().map(Form::read) {
            None => None,
            Some(None) => return Err("Answer this form in the terminal: steprail approve.".to_owned()),
            Some(Some(form)) => Some(form.answer(&self.0)?),
        };
        let digest = Some(approval.digest);
        Ok(DecisionRequest { approved, reason, digest, answer, ..DecisionRequest::default() })
    }
}

impl<'a> Visit<'a> {
    fn new(app: &'a App, token: &str, peer: &Peer, headers: &HeaderMap) -> Result<Self, Box<Response>> {
        let Some((signer, link)) = app.links.as_ref().and_then(|signer| Some((signer, signer.read(token)?)))
        else {
            let text =
                "The link is not valid. Copy it completely, or list your open approvals: steprail approvals.";
            return Err(Box::new(notice(StatusCode::NOT_FOUND, "Unknown link", text)));
        };
        if link.expires_at <= app.engine.now() {
            let text = "The link has expired. List your open approvals: steprail approvals.";
            return Err(Box::new(notice(StatusCode::GONE, "Expired link", text)));
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let is_loopback = host
            .and_then(|host| host.parse::<Authority>().ok())
            .is_none_or(|host| sign_in::is_loopback(&host));
        // Browsers send the cookie of a loopback address to every local program with a port. Other requests need the page
        // secret in addition, which a page without scripts does not have.
        let cookie = sign_in::cookie_of(headers).filter(|_| !is_loopback);
        let session = cookie.and_then(|cookie| app.accounts.by_cookie(cookie).ok());
        let host = sign_in::host_name(headers);
        let session =
            session.filter(|session| session.belongs_to(peer.os_user) && session.is_of_host(host.as_deref()));
        Ok(Self { app, signer, link, path: format!("/a/{token}"), session, is_loopback })
    }

    async fn target(&self) -> Result<Target, Problem> {
        let Link { run, path, digest, requested_at, .. } = &self.link;
        let last = self.app.engine.last_approval(*run, path).await?;
        let same = |approval: &Approval| approval.digest == *digest && approval.requested_at == *requested_at;
        Ok(match last.filter(same) {
            Some(approval) if approval.status == "open" => Target::Open(Box::new(approval)),
            Some(approval) => Target::Closed(Box::new(approval)),
            None => Target::Gone,
        })
    }

    /// The user who would decide: the user of the session, or else the recipient of the link.
    fn decider(&self) -> Option<Principal> {
        match &self.session {
            Some(session) => Some(session.principal.clone()),
            None => self.app.accounts.principal(&self.link.recipient),
        }
    }

    /// The page of the open request, with the form if the visitor can decide.
    async fn page(&self, status: StatusCode, approval: &Approval, problem: Option<&str>) -> Response {
        let view = View {
            approval,
            path: &self.path,
            now: self.app.engine.now(),
            problem,
            shows_signed: self.session.is_some(),
            deciding: self.deciding(approval).await,
            offers_session: self.session.is_none() && !self.is_loopback,
        };
        page(status, &format!("{} waits for a decision", display::line(&approval.definition)), &view.render())
    }

    async fn deciding(&self, approval: &Approval) -> Deciding {
        let Some(by) = self.decider() else {
            return Deciding::Refused(format!(
                "This link was sent to {}. Sign in to decide.",
                self.link.recipient
            ));
        };
        if approval.signed.contains(&by.id) {
            return Deciding::Refused(format!("{} has approved. Further approvers are needed.", by.id));
        }
        let (user, factor) = (by.id.clone(), self.app.engine.presence_at(approval));
        if factor == Presence::Passkey {
            return Deciding::Passkey;
        }
        let Some(session) = &self.session else {
            return Deciding::Form { user, session_value: None, factor };
        };
        // Only a user who signed in learns whether they may decide.
        if !self.app.engine.as_user(by).may_decide(approval.run_id, &approval.path).await {
            return Deciding::Refused(format!("{user} may not decide about this request."));
        }
        let session_value = Some(self.signer.form_value(&session.id, &self.link));
        Deciding::Form { user, session_value, factor }
    }

    async fn decide(&self, approval: &Approval, sent: &Sent) -> Response {
        let decision = match sent.decision(approval) {
            Ok(decision) => decision,
            Err(problem) => return self.page(StatusCode::BAD_REQUEST, approval, Some(&problem)).await,
        };
        let approved = decision.approved;
        let user = match self.authenticate(approval, sent).await {
            Ok(user) => user,
            Err((status, problem)) => return self.page(status, approval, Some(&problem)).await,
        };
        match user.decide_with(approval.run_id, &approval.path, decision).await {
            Ok(()) => self.decided(&user, approved).await,
            Err(error) => {
                let problem = Problem::from(error);
                let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_REQUEST);
                match self.target().await {
                    Ok(Target::Open(approval)) => self.page(status, &approval, Some(&problem.detail)).await,
                    Ok(Target::Closed(approval)) => self.closed(StatusCode::CONFLICT, &approval),
                    Ok(Target::Gone) => gone(StatusCode::CONFLICT),
                    Err(problem) => failed(&problem),
                }
            }
        }
    }

    /// The user who decides: with a session and the value of its page, or with a factor of the recipient.
    async fn authenticate(&self, approval: &Approval, sent: &Sent) -> Result<User, (StatusCode, String)> {
        let refused = |reason: &str| (StatusCode::FORBIDDEN, reason.to_owned());
        let Some(mut by) = self.decider() else { return Err(refused("Sign in to decide.")) };
        let session = self.session.as_ref();
        if session
            .is_some_and(|session| !self.signer.is_form_value(sent.get("session"), &session.id, &self.link))
        {
            return Err(refused("The form was not sent by this page. Check the request and decide again."));
        }
        by.provenance = Provenance {
            surface: Some("link".into()),
            credential: session.map(|session| session.id.as_str().into()),
            link: Some(self.link.id.clone()),
            ..Provenance::default()
        };
        if session.is_none() || !self.app.engine.presence_at(approval).is_none() {
            by.provenance.presence = self.verify(&by, sent).await?;
        }
        Ok(self.app.engine.as_user(by))
    }

    async fn verify(&self, by: &Principal, sent: &Sent) -> Result<Presence, (StatusCode, String)> {
        let proof = sent.get("proof");
        if proof.is_empty() {
            return Err((StatusCode::FORBIDDEN, "Enter your PIN or one-time code.".to_owned()));
        }
        if !self.app.link_attempts.begin(&self.link, self.app.engine.now()) {
            let text = "Too many wrong attempts with this link. Decide in the terminal.";
            return Err((StatusCode::TOO_MANY_REQUESTS, text.to_owned()));
        }
        let verified =
            self.app.accounts.verify_presence(by, &format!("{} {proof}", sent.get("factor")), None).await;
        let text = match verified {
            Ok(factor) => {
                self.app.link_attempts.succeed(&self.link);
                return Ok(factor);
            }
            // Whoever has the link does not learn which factors its recipient has.
            Err(
                PresenceError::Malformed
                | PresenceError::NotSet(_)
                | PresenceError::Wrong(_)
                | PresenceError::WrongPasskey(_),
            ) => "The PIN or code is wrong, was used already, or is not set.".to_owned(),
            Err(error) => Problem::from(error).detail.into(),
        };
        Err((StatusCode::FORBIDDEN, text))
    }

    /// The page after a decision.
    async fn decided(&self, user: &User, approved: bool) -> Response {
        let by = line(&user.principal().id);
        let next = match self.target().await {
            Ok(Target::Open(approval)) if approved => {
                let given = approval.signed.len();
                format!(
                    "The approval of {by} is recorded, {given} so far. The run waits for further approvers."
                )
            }
            _ => {
                let status = self.app.engine.row(self.link.run).await.map(|row| row.status);
                next_step(approved, status.ok()).to_owned()
            }
        };
        let title = if approved { "Approved" } else { "Denied" };
        let path = line(&self.link.path);
        let body = format!(
            "<section>\n<p>{by} {} <code>{path}</code>.</p>\n<p>{next}</p>\n\
             <p class=\"quiet\">This link is used up. You can close the page.</p>\n</section>\n",
            title.to_lowercase()
        );
        page(StatusCode::OK, title, &body)
    }

    /// The page of a request that has ended.
    fn closed(&self, status: StatusCode, approval: &Approval) -> Response {
        let by = approval.decided_by.as_deref().map(|by| format!(" by {}", line(by))).unwrap_or_default();
        let at = approval.decided_at.map(|at| format!(", {}", time(at, self.app.engine.now())));
        let body = format!(
            "<section>\n<p><code>{}</code> was already {}{by}{}.</p>\n<p class=\"quiet\">Nothing was changed.</p>\n</section>\n",
            line(&approval.path),
            line(&approval.status),
            at.unwrap_or_default()
        );
        page(status, "Already decided", &body)
    }
}

/// What happens after a decision.
fn next_step(approved: bool, status: Option<RunStatus>) -> &'static str {
    match (approved, status) {
        (_, Some(RunStatus::Completed)) => "The run has completed.",
        (_, Some(RunStatus::Failed)) => "The run has ended: failed.",
        (_, Some(RunStatus::Cancelled)) => "The run has ended: cancelled.",
        (_, Some(RunStatus::Paused)) => "The run waits again: for another decision, or until it is resumed.",
        (true, _) => "The run continues.",
        (false, _) => "The run continues as its definition says after a denial.",
    }
}

fn gone(status: StatusCode) -> Response {
    let text = "The request has changed since this link was sent, or it is no longer there. Nothing was changed. \
                List the open requests: steprail approvals.";
    notice(status, "The request has changed", text)
}

fn failed(problem: &Problem) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    notice(status, "Not available", &problem.detail)
}
