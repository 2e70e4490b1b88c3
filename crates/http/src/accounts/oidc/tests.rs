//! Token validation and key rotation against a test issuer.

mod issuer;
mod rotation;
mod tokens;
