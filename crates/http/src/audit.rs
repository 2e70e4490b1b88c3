//! Security events in the log: rejected credentials that point to an attack.

/// The target of security events, so that operators can select them.
pub(crate) const TARGET: &str = "steprail::audit";
