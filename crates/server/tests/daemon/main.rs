//! The daemon as its clients see it: programs that we did not write, sessions, tasks, and ends without warning.

mod agent;
mod at_once;
mod background;
mod clients;
mod commands;
mod conformance;
mod end_to_end;
mod faults;
mod kills;
mod lifetime;
mod logins;
mod rest;
mod secrets;
mod support;
