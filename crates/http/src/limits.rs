//! The limits of approval links and passkeys.

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

/// The maximum number of passkeys of a user.
pub(crate) const PASSKEYS_PER_USER: usize = 10;
/// The maximum length of the name of a passkey, in characters.
pub(crate) const PASSKEY_NAME_CHARS: usize = 64;
/// The maximum length of the assertion of a passkey in a header, in characters of base64url.
pub(crate) const ASSERTION_CHARS: usize = 8 * 1024;
/// How long a registration waits for the authenticator, in milliseconds.
pub(crate) const REGISTRATION_MS: Millis = 5 * 60 * 1_000;
/// How long the challenge of a passkey is valid, in milliseconds.
pub(crate) const CHALLENGE_MS: Millis = 2 * 60 * 1_000;
/// The maximum number of open challenges of a user. A newer one replaces the oldest.
pub(crate) const CHALLENGES_PER_USER: usize = 8;
/// The maximum number of open challenges.
pub(crate) const CHALLENGES: usize = 10_000;
/// The maximum length of the page that a sign-in link leads to, in characters. Browsers accept such addresses.
pub(crate) const PAGE_CHARS: usize = 16 * 1024;
