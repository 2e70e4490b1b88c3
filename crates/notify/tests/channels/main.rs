//! The channels against real counterparts on loopback: HTTP receivers, a mail server and programs.

mod http;
mod programs;
mod safety;
mod smtp;
mod support;
