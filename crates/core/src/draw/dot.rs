//! Text for Graphviz.

use super::picture::{Lane, Look, Picture, Shape};

/// The picture as a Graphviz graph.
pub fn dot(picture: &Picture) -> String {
    let mut writer = Writer { out: String::new(), count: 0 };
    writer.line(0, &format!("digraph \"{}\" {{", escape(&picture.title)));
    writer.line(1, "compound=true; rankdir=TB; fontname=\"sans-serif\"; nodesep=0.4;");
    writer.line(
        1,
        "node [fontname=\"sans-serif\", shape=box, style=\"rounded,filled\", fillcolor=\"#ffffff\"];",
    );
    writer.line(1, "edge [fontname=\"sans-serif\", fontsize=10];");
    writer.lane(&picture.root, 1);
    if let Some(lane) = &picture.on_failure {
        writer.cluster("on failure", 1, |writer| writer.lane(lane, 2));
    }
    writer.line(0, "}");
    writer.out
}

struct Writer {
    out: String,
    count: usize,
}

/// Where arrows to and from a shape are tied: a node, and the cluster that they end at.
struct Tie {
    node: String,
    cluster: Option<String>,
}

impl Writer {
    fn line(&mut self, depth: usize, text: &str) {
        self.out.push_str(&"  ".repeat(depth));
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn cluster(&mut self, label: &str, depth: usize, inside: impl FnOnce(&mut Self)) -> String {
        self.count += 1;
        let name = format!("cluster_{}", self.count);
        self.line(depth, &format!("subgraph {name} {{"));
        self.line(depth + 1, &format!("label=\"{}\"; style=\"rounded\"; color=\"#8c959f\";", escape(label)));
        inside(self);
        self.line(depth, "}");
        name
    }

    fn lane(&mut self, lane: &Lane, depth: usize) {
        let ties: Vec<Tie> = lane.shapes.iter().map(|shape| self.shape(shape, depth)).collect();
        for arrow in &lane.arrows {
            let (from, to) = (&ties[arrow.from], &ties[arrow.to]);
            let mut attributes = Vec::new();
            attributes.extend(arrow.label.as_ref().map(|label| format!("label=\"{}\"", escape(label))));
            attributes.extend(from.cluster.as_ref().map(|cluster| format!("ltail={cluster}")));
            attributes.extend(to.cluster.as_ref().map(|cluster| format!("lhead={cluster}")));
            self.line(depth, &format!("{} -> {} [{}];", from.node, to.node, attributes.join(", ")));
        }
    }

    fn shape(&mut self, shape: &Shape, depth: usize) -> Tie {
        self.count += 1;
        let node = format!("n{}", self.count);
        if shape.lanes.is_empty() {
            let lines: Vec<String> = [&shape.title, &shape.detail]
                .into_iter()
                .chain(&shape.notes)
                .filter(|l| !l.is_empty())
                .map(|l| escape(l))
                .collect();
            let look = match shape.look {
                Look::Start | Look::End => ", shape=ellipse",
                Look::Approve => ", shape=hexagon, fillcolor=\"#fff3d6\"",
                Look::Time => ", shape=ellipse, fillcolor=\"#eef2f6\"",
                _ => "",
            };
            self.line(depth, &format!("{node} [label=\"{}\"{look}];", lines.join("\\n")));
            return Tie { node, cluster: None };
        }
        let label = format!("{}: {}", shape.title, shape.detail);
        let anchor = node.clone();
        let cluster = self.cluster(&label, depth, |writer| {
            writer.line(depth + 1, &format!("{anchor} [shape=point, style=invis];"));
            for (at, lane) in shape.lanes.iter().enumerate() {
                match (&lane.label, shape.lanes.len()) {
                    (None, 1) => writer.lane(lane, depth + 1),
                    (label, _) => {
                        let label = label.clone().unwrap_or_else(|| at.to_string());
                        writer.cluster(&label, depth + 1, |writer| {
                            writer.count += 1;
                            let filler = format!("n{} [shape=point, style=invis];", writer.count);
                            writer.line(depth + 2, &filler);
                            writer.lane(lane, depth + 2);
                        });
                    }
                }
            }
        });
        Tie { node, cluster: Some(cluster) }
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace(char::is_control, " ")
}
