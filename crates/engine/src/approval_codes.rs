//! Single-use codes: a person issues a code for one decision, and a client that acts for them redeems it. Only hashes are
//! held, in memory: a restart voids all codes.
//!
//! A code carries the whole decision. What the client sends with it decides nothing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use sha2::{Digest, Sha256};
use steprail_core::limits::NAME_CHARS;
use steprail_core::plan::Hash;
use steprail_core::run::{Millis, Provenance};
use steprail_store::{Actor, AdminAction, AdminEvent, Principal, Right, RunId};

use crate::decisions::DecisionRequest;
use crate::error::Error;
use crate::limits::{CODE_FAILURES, CODE_LOCKOUT_MS, CODE_MS, OPEN_CODES};
use crate::presence;
use crate::user::User;

/// The symbols of a code, without those that are easily confused.
const SYMBOLS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// The number of symbols: 40 bits.
const CODE_CHARS: usize = 8;

/// A decision for which a person wants a code.
#[derive(Debug, Clone)]
pub struct CodeRequest {
    /// The run.
    pub run: RunId,
    /// Path of the step that waits.
    pub path: String,
    /// Digest of the approval that the person saw.
    pub digest: Hash,
    /// Whether the code approves.
    pub approved: bool,
    /// The answer to an input request of a tool, or the values of the gate's form.
    pub answer: Option<Value>,
    /// The reason, for the log.
    pub reason: Option<String>,
}

/// A code that was issued.
pub struct IssuedCode {
    /// The code. It cannot be read again.
    pub code: String,
    /// When it expires.
    pub expires_at: Millis,
}

/// A code that a client redeems.
pub struct RedeemRequest<'r> {
    /// The run.
    pub run: RunId,
    /// Path of the step that waits.
    pub path: &'r str,
    /// Whether the client wants to approve.
    pub approved: bool,
    /// The code.
    pub code: &'r str,
    /// What the client states about the decision, for the log.
    pub note: Option<&'r str>,
}

/// Codes that were issued and not redeemed.
#[derive(Default)]
pub(crate) struct ApprovalCodes(Mutex<Codes>);

#[derive(Default)]
struct Codes {
    open: Vec<OpenCode>,
    /// Wrong codes by the id of the user.
    failures: HashMap<String, Failures>,
}

struct OpenCode {
    hash: [u8; 32],
    request: CodeRequest,
    /// The person who issued it, with the factor that they proved.
    by: Principal,
    until: Millis,
}

#[derive(Default)]
struct Failures {
    count: u32,
    locked_until: Millis,
}

/// Why a code was not accepted.
enum Rejection {
    Wrong,
    Locked(Millis),
}

impl ApprovalCodes {
    fn lock(&self) -> MutexGuard<'_, Codes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn issue(&self, by: &Principal, request: CodeRequest, now: Millis) -> Result<IssuedCode, Error> {
        let code = generate()?;
        let mut codes = self.lock();
        // A new code for the same gate replaces the user's earlier one.
        let is_same = |open: &OpenCode| {
            open.by.id == by.id && open.request.run == request.run && open.request.path == request.path
        };
        codes.open.retain(|open| open.until > now && !is_same(open));
        if codes.open.len() >= OPEN_CODES {
            return Err(Error::Conflict(format!("{OPEN_CODES} codes are not redeemed yet; try again later")));
        }
        let (hash, until) = (hash_of(&code), now.saturating_add(CODE_MS));
        codes.open.push(OpenCode { hash, request, by: by.clone(), until });
        let (left, right) = code.split_at(CODE_CHARS / 2);
        Ok(IssuedCode { code: format!("{left}-{right}"), expires_at: until })
    }

    /// Uses a code up, if it belongs to exactly this decision of the user.
    fn take(&self, user: &str, request: &RedeemRequest<'_>, now: Millis) -> Result<OpenCode, Rejection> {
        let mut codes = self.lock();
        let locked_until = codes.failures.get(user).map_or(0, |failures| failures.locked_until);
        if locked_until > now {
            return Err(Rejection::Locked(locked_until));
        }
        let hash = hash_of(&normalized(request.code));
        // The hashes are compared, so the time that it takes says nothing about the code.
        let found = codes.open.iter().position(|open| {
            open.hash == hash
                && open.until > now
                && open.by.id == user
                && open.request.run == request.run
                && open.request.path == request.path
                && open.request.approved == request.approved
        });
        if let Some(index) = found {
            codes.failures.remove(user);
            return Ok(codes.open.swap_remove(index));
        }
        codes.fail(user, now);
        Err(Rejection::Wrong)
    }
}

impl Codes {
    fn fail(&mut self, user: &str, now: Millis) {
        // Users are known to the engine, so the map is bounded by their number.
        let failures = self.failures.entry(user.to_owned()).or_default();
        failures.count += 1;
        if failures.count >= CODE_FAILURES {
            *failures = Failures { count: 0, locked_until: now.saturating_add(CODE_LOCKOUT_MS) };
            self.open.retain(|open| open.by.id != user);
        }
    }
}

impl User {
    /// Issues a code for a decision. A client that acts for the user redeems it once, within ten minutes. The decision is that
    /// of this user. Needs the right `approve`, in person, and the factor that the gate requires.
    pub async fn issue_code(&self, request: CodeRequest) -> Result<IssuedCode, Error> {
        let (engine, by) = (self.engine(), self.principal());
        if by.agent || by.relay.is_some() {
            return Err(Error::Denied("codes are issued to people, not to agents".to_owned()));
        }
        self.require_may_decide(request.run, &request.path).await?;
        let open = engine.run_approvals(request.run).await?.into_iter();
        let mut open = open.filter(|open| open.run_id == request.run && open.path == request.path);
        let Some(approval) = open.next().filter(|approval| approval.digest == request.digest) else {
            let message =
                format!("the request of `{}` has changed since you saw it; look at it again", request.path);
            return Err(Error::Conflict(message));
        };
        presence::require(engine.presence_at(&approval), by)?;
        engine.0.codes.issue(by, request, engine.now())
    }

    /// Whether clients of the user may redeem the codes that the user issued: the user has the right `approve`, and the scope of
    /// the client's token includes it.
    pub fn may_redeem_codes(&self) -> bool {
        self.require_redeems().is_ok()
    }

    fn require_redeems(&self) -> Result<(), Error> {
        let person = Principal { agent: false, ..self.principal().clone() };
        self.engine().authorize(&person, Right::Approve)
    }

    /// Decides at a gate with a code that this user issued in person. Agents of the user can redeem it.
    pub async fn redeem_code(&self, request: RedeemRequest<'_>) -> Result<(), Error> {
        self.require_redeems()?;
        let (engine, client) = (self.engine(), self.principal());
        match engine.0.codes.take(&client.id, &request, engine.now()) {
            Ok(OpenCode {
                request: CodeRequest { run, path, digest, approved, answer, reason }, by, ..
            }) => {
                let provenance =
                    Provenance { surface: Some("mcp".into()), code: true, ..by.provenance.clone() };
                let stated = |note: &str| format!("stated by the client: {note}");
                let reason = reason.or_else(|| request.note.map(stated));
                let decision = DecisionRequest {
                    approved,
                    reason,
                    digest: Some(digest),
                    answer,
                    ..DecisionRequest::default()
                };
                engine.decide(run, &path, &Principal { provenance, ..by }, decision).await
            }
            Err(Rejection::Locked(until)) => {
                let seconds = (until - engine.now()).max(0) / 1_000 + 1;
                Err(Error::Denied(format!("too many wrong codes; no code is accepted for {seconds} s")))
            }
            Err(Rejection::Wrong) => {
                let (run, step) = (request.run, request.path.chars().take(NAME_CHARS).collect());
                let action = AdminAction::CodeRejected { run, step, user: client.id.clone() };
                engine.registry().record(vec![AdminEvent::new(action, Some(Actor::from(client)))]).await?;
                Err(Error::Denied(
                    "the code is not valid for this decision: a code works once, within ten minutes, for one \
                     decision about one request"
                        .to_owned(),
                ))
            }
        }
    }
}

fn generate() -> Result<String, Error> {
    let mut bytes = [0_u8; CODE_CHARS];
    let failed = |error| Error::BadInput(format!("cannot read random numbers from the system: {error}"));
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(bytes.iter().map(|byte| char::from(SYMBOLS[usize::from(byte % 32)])).collect())
}

/// The code as it was generated, from what a person typed.
fn normalized(text: &str) -> String {
    let symbols = text.chars().filter(|c| !matches!(c, '-' | ' ')).take(CODE_CHARS + 1);
    symbols
        .map(|c| match c.to_ascii_uppercase() {
            'O' => '0',
            'I' | 'L' => '1',
            c => c,
        })
        .collect()
}

fn hash_of(code: &str) -> [u8; 32] {
    Sha256::digest(code.as_bytes()).into()
}
