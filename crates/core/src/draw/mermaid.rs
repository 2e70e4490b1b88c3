//! Mermaid output, which Markdown viewers render.

use super::lines::Lines;
use super::picture::{Lane, Look, Picture, Shape};

/// Renders a picture as a Mermaid flowchart.
pub fn mermaid(picture: &Picture) -> String {
    let mut writer = Writer::default();
    writer.lines.line(0, "flowchart TD");
    writer.lane(&picture.root, 1);
    if let Some(lane) = &picture.on_failure {
        writer.group("on failure", 1, |writer| writer.lane(lane, 2));
    }
    writer.lines.line(1, "classDef approve fill:#fff3d6,stroke:#b7791f,color:#1f2328");
    writer.lines.out
}

#[derive(Default)]
struct Writer {
    lines: Lines,
}

impl Writer {
    fn group(&mut self, label: &str, depth: usize, inside: impl FnOnce(&mut Self)) -> String {
        let name = self.lines.name("n");
        self.lines.line(depth, &format!("subgraph {name}[\"{}\"]", escape(label)));
        // Without a direction, a group that no arrow enters is drawn horizontally.
        self.lines.line(depth + 1, "direction TB");
        inside(self);
        self.lines.line(depth, "end");
        name
    }

    fn lane(&mut self, lane: &Lane, depth: usize) {
        let names: Vec<String> = lane.shapes.iter().map(|shape| self.shape(shape, depth)).collect();
        for arrow in &lane.arrows {
            let label =
                arrow.label.as_ref().map(|label| format!("|\"{}\"|", escape(label))).unwrap_or_default();
            self.lines.line(depth, &format!("{} -->{label} {}", names[arrow.from], names[arrow.to]));
        }
    }

    fn shape(&mut self, shape: &Shape, depth: usize) -> String {
        if !shape.lanes.is_empty() {
            return self.container(shape, depth);
        }
        let name = self.lines.name("n");
        let mut lines = vec![format!("<b>{}</b>", escape(&shape.title))];
        lines.extend((!shape.detail.is_empty()).then(|| escape(&shape.detail)));
        lines.extend(shape.notes.iter().map(|note| format!("<i>{}</i>", escape(note))));
        let text = lines.join("<br/>");
        let drawn = match shape.look {
            Look::Start | Look::End => format!("{name}([\"{}\"])", escape(&shape.title)),
            Look::Approve => format!("{name}{{{{\"{text}\"}}}}:::approve"),
            Look::Time => format!("{name}([\"{text}\"])"),
            Look::Workflow => format!("{name}[[\"{text}\"]]"),
            _ => format!("{name}[\"{text}\"]"),
        };
        self.lines.line(depth, &drawn);
        name
    }

    fn container(&mut self, shape: &Shape, depth: usize) -> String {
        let mut label = format!("{}: {}", shape.title, shape.detail);
        if !shape.notes.is_empty() {
            label = format!("{label} ({})", shape.notes.join(", "));
        }
        self.group(&label, depth, |writer| match shape.lanes.as_slice() {
            [only] if only.label.is_none() => writer.lane(only, depth + 1),
            lanes => {
                for (at, lane) in lanes.iter().enumerate() {
                    let label = lane.label.clone().unwrap_or_else(|| at.to_string());
                    writer.group(&label, depth + 1, |writer| match lane.shapes.as_slice() {
                        // Mermaid omits an empty group.
                        [] => writer.empty(depth + 2),
                        _ => writer.lane(lane, depth + 2),
                    });
                }
            }
        })
    }

    fn empty(&mut self, depth: usize) {
        let name = self.lines.name("n");
        self.lines.line(depth, &format!("{name}[\"nothing\"]"));
    }
}

/// Escapes a label, which Mermaid parses as HTML.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '"' => out.push_str("#quot;"),
            '#' => out.push_str("#35;"),
            '<' => out.push_str("#lt;"),
            '>' => out.push_str("#gt;"),
            '&' => out.push_str("#amp;"),
            '`' => out.push_str("#96;"),
            control if control.is_control() => out.push(' '),
            other => out.push(other),
        }
    }
    out
}
