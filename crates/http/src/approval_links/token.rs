//! The token of an approval link: which request it shows to whom and until when, with a signature (HMAC-SHA256).
//!
//! A token is written without state. It identifies one request by its run, step, digest and time; a renewed request has
//! another time, even if its digest is the same.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use steprail_core::plan::Hash;
use steprail_core::run::Millis;
use steprail_engine::{Approval, RunId};

use crate::limits::{LINK_MS, LINK_TOKEN_CHARS};

/// The format of tokens.
const VERSION: u8 = 1;
/// Bytes of the id of a key.
const KEY_ID_BYTES: usize = 4;
/// Bytes of a signature.
const MAC_BYTES: usize = 32;
/// What is signed, so that a signature for one purpose is useless for another.
const LINK_PURPOSE: &[u8] = b"steprail-approval-link\0";
const FORM_PURPOSE: &[u8] = b"steprail-approval-form\0";

/// Writes and reads approval links. A clone has the same key.
#[derive(Clone)]
pub struct LinkSigner {
    key: hmac::Key,
    key_id: [u8; KEY_ID_BYTES],
    url: String,
}

/// What a valid token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    /// Id of the link, for the log: a hash of the token, which reveals nothing of it.
    pub id: Box<str>,
    /// The run.
    pub run: RunId,
    /// Path of the step that waits.
    pub path: String,
    /// Digest of the request.
    pub digest: Hash,
    /// When the request was made.
    pub requested_at: Millis,
    /// The recipient whom the link was sent to: a user, or a group such as `group:ops`.
    pub recipient: String,
    /// When the link expires.
    pub expires_at: Millis,
}

impl LinkSigner {
    /// Signs links to a public base URL with a key. Returns `None` if a factor that is typed into the page would be sent
    /// without encryption: the URL must be `https`, or that of the loopback interface.
    pub fn new(key: &[u8], url: &str) -> Option<Self> {
        let (scheme, host) = url.split_once("://")?;
        let is_local = host.parse().is_ok_and(|host| crate::sign_in::is_loopback(&host));
        if scheme != "https" && !is_local {
            return None;
        }
        let mut key_id = [0; KEY_ID_BYTES];
        key_id.copy_from_slice(&Hash::of(key).0[..KEY_ID_BYTES]);
        Some(Self { key: hmac::Key::new(hmac::HMAC_SHA256, key), key_id, url: url.to_owned() })
    }

    /// The link to an open request for one recipient.
    pub fn link(&self, approval: &Approval, recipient: &str, now: Millis) -> String {
        let latest = now.saturating_add(LINK_MS);
        let expires_at = approval.expires_at.map_or(latest, |deadline| deadline.min(latest));
        let mut signed = vec![VERSION];
        signed.extend(self.key_id);
        signed.extend(approval.run_id.0.as_bytes());
        signed.extend(approval.digest.0);
        signed.extend(approval.requested_at.to_be_bytes());
        signed.extend(expires_at.to_be_bytes());
        let path = approval.path.as_bytes();
        signed.extend(u16::try_from(path.len()).unwrap_or(u16::MAX).to_be_bytes());
        signed.extend(path);
        signed.extend(recipient.as_bytes());
        let mac = self.sign(LINK_PURPOSE, &signed);
        signed.extend(mac.as_ref());
        format!("{}/a/{}", self.url, BASE64_URL_SAFE_NO_PAD.encode(signed))
    }

    /// Reads a token. Returns `None` unless it was signed with this key. It can have expired.
    pub(crate) fn read(&self, token: &str) -> Option<Link> {
        if token.len() > LINK_TOKEN_CHARS {
            return None;
        }
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).ok()?;
        let (signed, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_BYTES)?)?;
        let message = [LINK_PURPOSE, signed].concat();
        hmac::verify(&self.key, &message, mac).ok()?;
        let id = Hash::of(&bytes).half();
        let rest = signed.strip_prefix(&[VERSION])?.strip_prefix(&self.key_id)?;
        let (run, rest) = rest.split_first_chunk::<16>()?;
        let (digest, rest) = rest.split_first_chunk::<32>()?;
        let (requested_at, rest) = rest.split_first_chunk::<8>()?;
        let (expires_at, rest) = rest.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let (path, recipient) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        Some(Link {
            id,
            run: RunId(uuid::Uuid::from_bytes(*run)),
            path: std::str::from_utf8(path).ok()?.to_owned(),
            digest: Hash(*digest),
            requested_at: Millis::from_be_bytes(*requested_at),
            recipient: std::str::from_utf8(recipient).ok()?.to_owned(),
            expires_at: Millis::from_be_bytes(*expires_at),
        })
    }

    /// The value that the form of a page carries: it proves that the page was shown in a session.
    pub(crate) fn form_value(&self, session: &str, link: &Link) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(self.sign(FORM_PURPOSE, &form_message(session, link)))
    }

    /// Whether a form carries the value of the page that was shown in a session. Takes constant time.
    pub(crate) fn is_form_value(&self, value: &str, session: &str, link: &Link) -> bool {
        let message = [FORM_PURPOSE, &form_message(session, link)].concat();
        let value = BASE64_URL_SAFE_NO_PAD.decode(value);
        value.is_ok_and(|value| hmac::verify(&self.key, &message, &value).is_ok())
    }

    fn sign(&self, purpose: &[u8], message: &[u8]) -> hmac::Tag {
        hmac::sign(&self.key, &[purpose, message].concat())
    }
}

/// Ids of sessions and links contain no line breaks.
fn form_message(session: &str, link: &Link) -> Vec<u8> {
    format!("{session}\n{}", link.id).into_bytes()
}
