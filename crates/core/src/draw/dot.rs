//! Text for Graphviz.

use super::lines::Lines;
use super::picture::{Lane, Look, Picture, Shape};

/// The picture as a Graphviz graph.
pub fn dot(picture: &Picture) -> String {
    let mut writer = Writer::default();
    writer.lines.line(0, &format!("digraph \"{}\" {{", escape(&picture.title)));
    writer.lines.line(1, "compound=true; rankdir=TB; fontname=\"sans-serif\"; nodesep=0.4;");
    writer.lines.line(
        1,
        "node [fontname=\"sans-serif\", shape=box, style=\"rounded,filled\", fillcolor=\"#ffffff\"];",
    );
    writer.lines.line(1, "edge [fontname=\"sans-serif\", fontsize=10];");
    writer.lane(&picture.root, 1);
    if let Some(lane) = &picture.on_failure {
        writer.cluster("on failure", 1, |writer| writer.lane(lane, 2));
    }
    writer.lines.line(0, "}");
    writer.lines.out
}

#[derive(Default)]
struct Writer {
    lines: Lines,
}

/// Where arrows to and from a shape are tied: the nodes above and below what it contains, and the cluster
/// that the arrows end at.
struct Tie {
    top: String,
    bottom: String,
    cluster: Option<String>,
}

impl Writer {
    /// A node that is not seen; it keeps what is inside a cluster above or below what is outside.
    fn anchor(&mut self, depth: usize) -> String {
        let name = self.lines.name("n");
        self.lines.line(depth, &format!("{name} [shape=point, style=invis];"));
        name
    }

    fn cluster<T>(&mut self, label: &str, depth: usize, inside: impl FnOnce(&mut Self) -> T) -> (String, T) {
        let name = self.lines.name("cluster_");
        self.lines.line(depth, &format!("subgraph {name} {{"));
        self.lines
            .line(depth + 1, &format!("label=\"{}\"; style=\"rounded\"; color=\"#8c959f\";", escape(label)));
        let result = inside(self);
        self.lines.line(depth, "}");
        (name, result)
    }

    fn lane(&mut self, lane: &Lane, depth: usize) -> Vec<Tie> {
        let ties: Vec<Tie> = lane.shapes.iter().map(|shape| self.shape(shape, depth)).collect();
        for arrow in &lane.arrows {
            let (from, to) = (&ties[arrow.from], &ties[arrow.to]);
            let mut attributes = Vec::new();
            attributes.extend(arrow.label.as_ref().map(|label| format!("label=\"{}\"", escape(label))));
            attributes.extend(from.cluster.as_ref().map(|cluster| format!("ltail={cluster}")));
            attributes.extend(to.cluster.as_ref().map(|cluster| format!("lhead={cluster}")));
            self.lines.line(depth, &format!("{} -> {} [{}];", from.bottom, to.top, attributes.join(", ")));
        }
        ties
    }

    fn shape(&mut self, shape: &Shape, depth: usize) -> Tie {
        if !shape.lanes.is_empty() {
            return self.container(shape, depth);
        }
        let node = self.lines.name("n");
        let lines = [&shape.title, &shape.detail].into_iter().chain(&shape.notes);
        let lines: Vec<String> = lines.filter(|line| !line.is_empty()).map(|line| escape(line)).collect();
        let look = match shape.look {
            Look::Start | Look::End => ", shape=ellipse",
            Look::Approve => ", shape=hexagon, fillcolor=\"#fff3d6\"",
            Look::Time => ", shape=ellipse, fillcolor=\"#eef2f6\"",
            _ => "",
        };
        self.lines.line(depth, &format!("{node} [label=\"{}\"{look}];", lines.join("\\n")));
        Tie { top: node.clone(), bottom: node, cluster: None }
    }

    fn container(&mut self, shape: &Shape, depth: usize) -> Tie {
        let label = format!("{}: {}", shape.title, shape.detail);
        let (cluster, (top, bottom)) = self.cluster(&label, depth, |writer| {
            let (top, bottom) = (writer.anchor(depth + 1), writer.anchor(depth + 1));
            for (at, lane) in shape.lanes.iter().enumerate() {
                let ties = match (&lane.label, shape.lanes.len()) {
                    (None, 1) => writer.lane(lane, depth + 1),
                    (label, _) => {
                        let label = label.clone().unwrap_or_else(|| at.to_string());
                        writer.cluster(&label, depth + 1, |writer| writer.lane_or_nothing(lane, depth + 2)).1
                    }
                };
                for tie in ties {
                    let line = format!("{top} -> {} -> {bottom} [style=invis];", invisible(&tie));
                    writer.lines.line(depth + 1, &line);
                }
            }
            (top, bottom)
        });
        Tie { top, bottom, cluster: Some(cluster) }
    }

    /// A cluster without a node in it is not drawn.
    fn lane_or_nothing(&mut self, lane: &Lane, depth: usize) -> Vec<Tie> {
        if !lane.shapes.is_empty() {
            return self.lane(lane, depth);
        }
        let node = self.lines.name("n");
        self.lines.line(depth, &format!("{node} [label=\"nothing\", shape=plaintext];"));
        vec![Tie { top: node.clone(), bottom: node, cluster: None }]
    }
}

/// The nodes of a shape, for an unseen line through it.
fn invisible(tie: &Tie) -> String {
    if tie.top == tie.bottom { tie.top.clone() } else { format!("{} -> {}", tie.top, tie.bottom) }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace(char::is_control, " ")
}
