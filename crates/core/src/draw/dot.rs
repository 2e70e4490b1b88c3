//! Graphviz output.

use super::lines::Lines;
use super::picture::{Lane, Look, Picture, Shape};

/// Renders a picture as a Graphviz graph.
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

/// Where arrows of a shape start and end: its top and bottom nodes, and the cluster that clips the arrows.
struct Endpoints {
    top: String,
    bottom: String,
    cluster: Option<String>,
}

impl Writer {
    /// Adds an invisible node, which keeps the contents of a cluster between the shapes above and below it.
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

    fn lane(&mut self, lane: &Lane, depth: usize) -> Vec<Endpoints> {
        let endpoints: Vec<Endpoints> = lane.shapes.iter().map(|shape| self.shape(shape, depth)).collect();
        for arrow in &lane.arrows {
            let (from, to) = (&endpoints[arrow.from], &endpoints[arrow.to]);
            let mut attributes = Vec::new();
            attributes.extend(arrow.label.as_ref().map(|label| format!("label=\"{}\"", escape(label))));
            attributes.extend(from.cluster.as_ref().map(|cluster| format!("ltail={cluster}")));
            attributes.extend(to.cluster.as_ref().map(|cluster| format!("lhead={cluster}")));
            self.lines.line(depth, &format!("{} -> {} [{}];", from.bottom, to.top, attributes.join(", ")));
        }
        endpoints
    }

    fn shape(&mut self, shape: &Shape, depth: usize) -> Endpoints {
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
        Endpoints { top: node.clone(), bottom: node, cluster: None }
    }

    fn container(&mut self, shape: &Shape, depth: usize) -> Endpoints {
        let label = format!("{}: {}", shape.title, shape.detail);
        let (cluster, (top, bottom)) = self.cluster(&label, depth, |writer| {
            let (top, bottom) = (writer.anchor(depth + 1), writer.anchor(depth + 1));
            for (at, lane) in shape.lanes.iter().enumerate() {
                let endpoints = match (&lane.label, shape.lanes.len()) {
                    (None, 1) => writer.lane(lane, depth + 1),
                    (label, _) => {
                        let label = label.clone().unwrap_or_else(|| at.to_string());
                        writer
                            .cluster(&label, depth + 1, |writer| writer.lane_or_placeholder(lane, depth + 2))
                            .1
                    }
                };
                for endpoint in endpoints {
                    let line = format!("{top} -> {} -> {bottom} [style=invis];", invisible(&endpoint));
                    writer.lines.line(depth + 1, &line);
                }
            }
            (top, bottom)
        });
        Endpoints { top, bottom, cluster: Some(cluster) }
    }

    /// Draws a lane. Graphviz omits a cluster without nodes, so an empty lane gets a placeholder.
    fn lane_or_placeholder(&mut self, lane: &Lane, depth: usize) -> Vec<Endpoints> {
        if !lane.shapes.is_empty() {
            return self.lane(lane, depth);
        }
        let node = self.lines.name("n");
        self.lines.line(depth, &format!("{node} [label=\"nothing\", shape=plaintext];"));
        vec![Endpoints { top: node.clone(), bottom: node, cluster: None }]
    }
}

/// Returns the nodes of a shape, for an invisible edge through it.
fn invisible(endpoint: &Endpoints) -> String {
    if endpoint.top == endpoint.bottom {
        endpoint.top.clone()
    } else {
        format!("{} -> {}", endpoint.top, endpoint.bottom)
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace(char::is_control, " ")
}
