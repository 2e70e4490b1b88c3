//! SVG output, which follows the light or dark setting of the browser.

use std::fmt::Write;

use super::layout::{LaneLayout, Route, ShapeLayout, layout};
use super::picture::{Look, Picture};

const MARGIN: f64 = 24.0;
const TITLE: f64 = 34.0;

const STYLE: &str = "
  svg { --page:#ffffff; --ink:#1f2328; --soft:#59636e; --line:#8c959f; --box:#ffffff; --group:#f6f8fa;
    --tool:#0969da; --approve:#9a6700; --approve-box:#fff8e1; --time:#6e7781; --flow:#8250df; --end:#1a7f37;
    background:var(--page); font-family:system-ui,-apple-system,'Segoe UI',sans-serif }
  @media (prefers-color-scheme: dark) { svg { --page:#0d1117; --ink:#e6edf3; --soft:#9198a1; --line:#6e7681;
    --box:#161b22; --group:#10151c; --tool:#4493f8; --approve:#d29922; --approve-box:#2b2111; --time:#9198a1;
    --flow:#ab7df8; --end:#3fb950 } }
  text { fill:var(--ink); font-size:13px } .title { font-weight:600 } .detail,.lane { fill:var(--soft); font-size:12px }
  .note { fill:var(--soft); font-size:11px } .heading { font-size:16px; font-weight:600 }
  .box { fill:var(--box); stroke:var(--line) } .group { fill:var(--group); stroke:var(--line) }
  .area { fill:none; stroke:var(--line); stroke-dasharray:3 4; opacity:.7 } .tool { stroke:var(--tool) }
  .approve { fill:var(--approve-box); stroke:var(--approve); stroke-width:1.5 } .time { stroke:var(--time) }
  .foreach,.parallel,.branch,.workflow { stroke:var(--flow) } .start,.end { stroke:var(--end) }
  .arrow { fill:none; stroke:var(--line); stroke-width:1.4 } .back { stroke-dasharray:5 4 }
  .label { font-size:11px; fill:var(--soft); paint-order:stroke; stroke:var(--page); stroke-width:4px }
";

/// Renders a picture as SVG.
pub fn svg(picture: &Picture) -> String {
    let root = layout(&picture.root);
    let failure = picture.on_failure.as_ref().map(layout);
    let beside = failure.as_ref().map_or(0.0, |lane| lane.width + 3.0 * MARGIN);
    let title_width = f64::from(u32::try_from(picture.title.chars().count()).unwrap_or(0)) * 9.5;
    let width = (root.width + beside).max(title_width) + 2.0 * MARGIN;
    let height =
        root.height.max(failure.as_ref().map_or(0.0, |lane| lane.height + 40.0)) + TITLE + 2.0 * MARGIN;
    let title = escape(&picture.title);
    let mut writer = Writer { out: String::new() };
    writer.line(&format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" role=\"img\" aria-label=\"workflow {title}\">"
    ));
    writer.line(&format!("<style>{STYLE}</style>"));
    writer.line(
        "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" \
         orient=\"auto-start-reverse\"><path d=\"M0 0 8 4 0 8z\" fill=\"context-stroke\"/></marker></defs>",
    );
    writer.text(MARGIN, MARGIN + 14.0, "heading", &picture.title);
    writer.lane(&root, MARGIN, MARGIN + TITLE);
    if let Some(lane) = &failure {
        let x = root.width + 3.0 * MARGIN;
        writer.area(x, MARGIN + TITLE, lane, "on failure");
    }
    writer.line("</svg>");
    writer.out
}

struct Writer {
    out: String,
}

impl Writer {
    fn line(&mut self, text: &str) {
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.line(&format!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>", escape(text)));
    }

    /// Draws a lane with a frame and a label.
    fn area(&mut self, x: f64, y: f64, lane: &LaneLayout, label: &str) {
        let (width, height) = (lane.width.max(100.0) + 24.0, lane.height + 40.0);
        self.line(&format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"10\" class=\"area\"/>"
        ));
        self.text(x + 12.0, y + 19.0, "lane", label);
        self.lane(lane, x + 12.0, y + 28.0);
    }

    fn lane(&mut self, lane: &LaneLayout, x: f64, y: f64) {
        for shape in &lane.shapes {
            self.shape(shape, x + shape.x, y + shape.y);
        }
        for route in &lane.routes {
            self.route(route, x, y);
        }
        for route in &lane.routes {
            self.label(route, x, y);
        }
    }

    fn shape(&mut self, laid: &ShapeLayout, x: f64, y: f64) {
        let shape = laid.shape;
        let (width, height) = (laid.width, laid.height);
        let (frame, look) = (if laid.lanes.is_empty() { "box" } else { "group" }, class(shape.look));
        let radius = match shape.look {
            Look::Start | Look::End | Look::Time => height / 2.0,
            Look::Approve => 4.0,
            _ => 8.0,
        };
        self.line(&format!(
            "<g><title>{}</title><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             rx=\"{radius:.1}\" class=\"{frame} {look}\"/>",
            escape(&format!("{} {}", shape.title, shape.detail))
        ));
        if matches!(shape.look, Look::Start | Look::End) {
            self.text(x + 16.0, y + 18.5, "detail", &shape.title);
        } else {
            let indent = if shape.look == Look::Time { 20.0 } else { 14.0 };
            self.text(x + indent, y + 21.0, "title", &truncate(&shape.title, (width - 28.0) / 7.6));
            self.text(x + indent, y + 38.0, "detail", &truncate(&shape.detail, (width - 28.0) / 6.4));
            let mut below = y + 54.0;
            for note in &shape.notes {
                self.text(x + indent, below, "note", &format!("· {note}"));
                below += 15.0;
            }
        }
        for (left, top, lane) in &laid.lanes {
            if let Some(label) = lane.label {
                self.text(x + left, y + top - 8.0, "lane", label);
            }
            self.lane(lane, x + left, y + top);
        }
        self.line("</g>");
    }

    fn route(&mut self, route: &Route, x: f64, y: f64) {
        let points: Vec<(f64, f64)> = route.points.iter().map(|(px, py)| (x + px, y + py)).collect();
        let Some((first, rest)) = points.split_first() else { return };
        let mut path = format!("M{:.1} {:.1}", first.0, first.1);
        let mut from = *first;
        for to in rest {
            if route.is_back_edge {
                let _ = write!(path, " L{:.1} {:.1}", to.0, to.1);
            } else {
                let middle = f64::midpoint(from.1, to.1);
                let _ = write!(
                    path,
                    " C{:.1} {middle:.1} {:.1} {middle:.1} {:.1} {:.1}",
                    from.0, to.0, to.0, to.1
                );
            }
            from = *to;
        }
        let class = if route.is_back_edge { "arrow back" } else { "arrow" };
        self.line(&format!("<path d=\"{path}\" class=\"{class}\" marker-end=\"url(#tip)\"/>"));
    }

    fn label(&mut self, route: &Route, x: f64, y: f64) {
        if let (Some(label), Some(position)) = (route.label, route.label_position()) {
            self.text(x + position.0, y + position.1, "label", label);
        }
    }
}

fn class(look: Look) -> &'static str {
    match look {
        Look::Start => "start",
        Look::End => "end",
        Look::Tool => "tool",
        Look::Foreach => "foreach",
        Look::Parallel => "parallel",
        Look::Branch => "branch",
        Look::Approve => "approve",
        Look::Time => "time",
        Look::Workflow => "workflow",
        Look::Pass => "pass",
    }
}

/// Truncates a text to a number of characters.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a width in characters is small")]
fn truncate(text: &str, fits: f64) -> String {
    let fits = fits.max(4.0) as usize;
    if text.chars().count() <= fits {
        text.to_owned()
    } else {
        text.chars().take(fits - 1).chain(['…']).collect()
    }
}

fn escape(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            control if control.is_control() => out.push(' '),
            other => out.push(other),
        }
    }
    out
}
