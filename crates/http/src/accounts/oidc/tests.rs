//! An issuer with keys of its own against what we accept from it.

mod issuer;
mod rotation;
mod tokens;
