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
    }
}

impl Presence {
    /// Whether no factor is required or was used.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// Whether this factor is enough where another one is required. A one-time code also satisfies a requirement of a PIN.
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
        }
    }
}
