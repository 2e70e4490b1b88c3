//! Presence factors: how a person proves that they are present when they decide.

use crate::spec::fields::choice;

choice! {
    /// A factor that proves that a person is present.
    #[derive(Default)]
    pub enum Presence {
        /// No factor.
        #[default]
        None = "none",
        /// A PIN.
        Pin = "pin",
        /// A one-time code of an authenticator app (RFC 6238).
        Totp = "totp",
        /// A passkey whose authenticator verified its user.
        Passkey = "passkey",
    }
}

impl Presence {
    /// Whether no factor is required or was used.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// Whether this factor is enough where another one is required. A one-time code also satisfies a requirement of a PIN,
    /// and a passkey satisfies every requirement.
    pub fn satisfies(self, required: Self) -> bool {
        self.strength() >= required.strength()
    }

    /// The stronger of two requirements.
    #[must_use]
    pub fn or_stronger(self, other: Self) -> Self {
        if self.satisfies(other) { self } else { other }
    }

    fn strength(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Pin => 1,
            Self::Totp => 2,
            Self::Passkey => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Presence::{self, None, Passkey, Pin, Totp};

    #[test]
    fn stronger_factors_satisfy_weaker_requirements() {
        let order = [None, Pin, Totp, Passkey];
        for (strength, factor) in order.into_iter().enumerate() {
            for (required_strength, required) in order.into_iter().enumerate() {
                assert_eq!(
                    factor.satisfies(required),
                    strength >= required_strength,
                    "{factor:?} {required:?}"
                );
            }
        }
        assert_eq!(Presence::from_name("passkey"), Some(Passkey));
        assert_eq!(Totp.or_stronger(Passkey), Passkey);
    }
}
