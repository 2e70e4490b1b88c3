//! The factors of presence: hashes of PINs, and one-time codes (RFC 6238).

use std::num::NonZeroU32;

use aws_lc_rs::{hmac, pbkdf2};
use serde::{Deserialize, Serialize};
use steprail_core::run::Millis;

use super::secret::{constant_time_eq, hex, unhex};

/// The length of a PIN. Attempts are limited, so six digits are enough.
pub(crate) const PIN_CHARS: std::ops::RangeInclusive<usize> = 6..=64;
/// Iterations of PBKDF2 with SHA-256, as OWASP recommends. Tests use fewer.
const ITERATIONS: u32 = if cfg!(test) { 1_000 } else { 600_000 };
const SALT_BYTES: usize = 16;
/// Seconds for which a one-time code is valid.
const STEP_SECS: i64 = 30;
/// Codes of this many steps before and after the current one are accepted, because clocks differ.
const SKEW_STEPS: u64 = 1;
/// Bytes of the secret of an authenticator: the length of a SHA-1 hash, as RFC 4226 recommends.
const TOTP_BYTES: usize = 20;

/// The salted hash of a PIN.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PinHash {
    algorithm: PinAlgorithm,
    iterations: NonZeroU32,
    salt: String,
    hash: String,
}

/// How a PIN is hashed. A new algorithm is a new value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum PinAlgorithm {
    #[serde(rename = "pbkdf2-sha256")]
    Pbkdf2Sha256,
}

impl PinHash {
    /// Hashes a PIN. Takes a fraction of a second.
    pub(super) fn new(pin: &str) -> Result<Self, String> {
        let salt = hex(&random::<SALT_BYTES>()?);
        let iterations = NonZeroU32::new(ITERATIONS).unwrap_or(NonZeroU32::MIN);
        let hash = hex(&derive(iterations, salt.as_bytes(), pin));
        Ok(Self { algorithm: PinAlgorithm::Pbkdf2Sha256, iterations, salt, hash })
    }

    /// Whether this is the hash of a PIN. Takes a fraction of a second.
    pub(super) fn matches(&self, pin: &str) -> bool {
        let PinAlgorithm::Pbkdf2Sha256 = self.algorithm;
        unhex(&self.hash)
            .is_some_and(|hash| constant_time_eq(&hash, &derive(self.iterations, self.salt.as_bytes(), pin)))
    }
}

fn derive(iterations: NonZeroU32, salt: &[u8], pin: &str) -> [u8; 32] {
    let mut hash = [0; 32];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, pin.as_bytes(), &mut hash);
    hash
}

/// The secret that an authenticator app shares with the server.
#[derive(Clone)]
pub(crate) struct TotpSecret([u8; TOTP_BYTES]);

impl TotpSecret {
    pub(super) fn generate() -> Result<Self, String> {
        random().map(Self)
    }

    /// Reads the text of [`TotpSecret::text`].
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; TOTP_BYTES];
        let digits = text.as_bytes();
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        (digits.len() == 2 * TOTP_BYTES).then_some(Self(bytes))
    }

    /// The secret as it is stored.
    pub(super) fn text(&self) -> String {
        hex(&self.0)
    }

    /// The secret as people type it: base32 (RFC 4648).
    pub(super) fn base32(&self) -> String {
        const SYMBOLS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        let bits = self.0.iter().flat_map(|byte| (0..8).rev().map(move |bit| (byte >> bit) & 1));
        let bits: Vec<u8> = bits.collect();
        bits.chunks(5)
            .map(|group| group.iter().fold(0, |index, bit| (index << 1) | usize::from(*bit)))
            .map(|index| char::from(SYMBOLS[index % 32]))
            .collect()
    }

    /// The URI that authenticator apps read.
    pub(super) fn uri(&self, user: &str) -> String {
        let secret = self.base32();
        format!(
            "otpauth://totp/Steprail:{user}?secret={secret}&issuer=Steprail&algorithm=SHA1&digits=6&period=30"
        )
    }

    /// The time step that a code belongs to, if it is valid now and later than `used`.
    pub(super) fn step_of(&self, code: &str, now: Millis, used: u64) -> Option<u64> {
        let current = u64::try_from(now / 1_000 / STEP_SECS).ok()?;
        let steps = current.saturating_sub(SKEW_STEPS)..=current + SKEW_STEPS;
        let is_code = |step: &u64| constant_time_eq(self.code(*step).as_bytes(), code.as_bytes());
        steps.filter(|step| *step > used).find(is_code)
    }

    /// The code of a time step.
    pub(super) fn code(&self, step: u64) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &self.0);
        let tag = hmac::sign(&key, &step.to_be_bytes());
        let tag = tag.as_ref();
        let offset = usize::from(tag.last().copied().unwrap_or_default() & 0xf);
        let word = tag.iter().skip(offset).take(4).fold(0_u32, |word, byte| (word << 8) | u32::from(*byte));
        format!("{:06}", (word & 0x7fff_ffff) % 1_000_000)
    }
}

/// The code of a secret in base32 at a time, as an authenticator app computes it.
#[cfg(test)]
pub(crate) fn code_at(base32: &str, now: Millis) -> String {
    let value =
        |c: char| c.to_digit(36).map(|digit| if c.is_ascii_digit() { digit + 24 } else { digit - 10 });
    let bits: Vec<u32> =
        base32.chars().filter_map(value).flat_map(|v| (0..5).rev().map(move |bit| (v >> bit) & 1)).collect();
    let bytes: Vec<String> = bits
        .chunks_exact(8)
        .map(|byte| format!("{:02x}", byte.iter().fold(0, |sum, bit| (sum << 1) | bit)))
        .collect();
    let secret = TotpSecret::parse(&bytes.concat()).expect("a secret");
    secret.code(u64::try_from(now / 1_000 / STEP_SECS).expect("a time"))
}

fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    let filled = getrandom::fill(&mut bytes);
    filled.map(|()| bytes).map_err(|error| format!("cannot read random numbers from the system: {error}"))
}

#[cfg(test)]
mod tests {
    use super::{PinHash, TotpSecret};

    #[test]
    fn pin_matches_its_hash_only() {
        let hash = PinHash::new("314159").expect("a hash");
        assert!(hash.matches("314159") && !hash.matches("314158") && !hash.matches(""));
        let other = PinHash::new("314159").expect("a hash");
        assert_ne!(hash, other, "salted");
        let text = serde_json::to_string(&hash).expect("JSON");
        assert!(
            !text.contains("314159") && serde_json::from_str::<PinHash>(&text).is_ok_and(|read| read == hash)
        );
    }

    /// The test vectors of RFC 6238 for SHA-1, as six digits.
    #[test]
    fn codes_are_those_of_the_rfc() {
        let secret = TotpSecret(*b"12345678901234567890");
        let vectors = [
            (59, "287082"),
            (1_111_111_109, "081804"),
            (1_111_111_111, "050471"),
            (1_234_567_890, "005924"),
            (2_000_000_000, "279037"),
            (20_000_000_000, "353130"),
        ];
        for (seconds, code) in vectors {
            assert_eq!(secret.code(seconds / 30), code);
            let now = i64::try_from(seconds).expect("a time") * 1_000;
            assert_eq!(secret.step_of(code, now, 0), Some(seconds / 30));
            assert_eq!(secret.step_of(code, now, seconds / 30), None, "a used step");
            assert_eq!(secret.step_of(code, now + 120_000, 0), None, "too late");
        }
        assert_eq!(secret.base32(), "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ");
        assert!(TotpSecret::parse(&secret.text()).is_some_and(|read| read.0 == secret.0));
        assert!(TotpSecret::parse("00").is_none());
    }
}
