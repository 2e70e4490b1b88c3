//! End-to-end tests of the daemon: third-party clients and servers, sessions, tasks, crashes.

mod agent;
mod at_once;
mod background;
mod canaries;
mod checkpoints;
mod clients;
mod commands;
mod conformance;
mod end_to_end;
mod faults;
mod kills;
mod lifetime;
mod logins;
mod notification_channels;
mod notification_kills;
mod notifications;
mod presence;
mod receiver;
mod rest;
mod secrets;
mod stall;
mod storage;
mod support;
