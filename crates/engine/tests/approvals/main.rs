//! Every kind of approval: each way in which it can end, alone and beside others, and races between deciders.

#[path = "../common/mod.rs"]
mod common;
mod kinds;
mod matrix;
mod races;
