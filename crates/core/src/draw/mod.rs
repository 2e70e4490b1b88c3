//! Drawings of plans: shapes in lanes with arrows between them, as Mermaid, Graphviz or SVG.

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
