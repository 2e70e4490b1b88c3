//! Attacks by users, authors and agents on an engine: each is rejected, and what is left of it is in the log.

mod ownership;
