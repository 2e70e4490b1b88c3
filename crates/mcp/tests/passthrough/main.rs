//! Exposed tools and federated resources and prompts, as clients of our server see them.

mod calls;
mod federation;
mod support;
mod upstream;
