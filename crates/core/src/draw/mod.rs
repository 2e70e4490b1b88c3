//! A plan as a picture: shapes in lanes, with arrows between them.

mod dot;
mod layout;
mod lines;
mod mermaid;
mod picture;
mod svg;

pub use dot::dot;
pub use mermaid::mermaid;
pub use picture::{Arrow, Lane, Look, Picture, Shape};
pub use svg::svg;
