//! The limits of approval links.

use steprail_core::run::Millis;

use crate::accounts::DAY_MS;

/// The longest time that an approval link is valid, in milliseconds. It also ends with the request.
pub(crate) const LINK_MS: Millis = 7 * DAY_MS;
/// The maximum length of the token of a link, in characters.
pub(crate) const LINK_TOKEN_CHARS: usize = 4_096;
/// The maximum size of a decision over a link, in bytes.
pub(crate) const LINK_BODY_BYTES: usize = 64 * 1024;
/// Wrong factors after which a link accepts none. It is below the lockout of the user, whom a forwarded link must not lock out.
pub(crate) const LINK_FAILURES: u32 = 3;
/// The maximum number of links whose wrong factors are counted.
pub(crate) const COUNTED_LINKS: usize = 10_000;
/// The maximum number of fields of a form on a page.
pub(crate) const FORM_FIELDS: usize = 50;
/// The maximum length of a comment, in characters.
pub(crate) const COMMENT_CHARS: usize = 1_000;
