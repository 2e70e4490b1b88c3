//! Servers behind the gateway, as clients of our server see them: exposed tools, resources and prompts.

mod calls;
mod downstream;
mod federation;
mod support;
