//! The server as clients see it: what it offers to whom, what it says, and what it refuses.

mod catalogue;
mod matrix;
mod news;
mod offers;
mod questions;
mod support;
mod traces;
mod users;
