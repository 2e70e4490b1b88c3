//! Layered graph layout (Sugiyama): assigns layers, reduces crossings, assigns coordinates and routes arrows.

use std::collections::VecDeque;

use super::picture::{Arrow, Lane, Look, Shape};
use crate::limits;

const GAP_X: f64 = 28.0;
const GAP_Y: f64 = 46.0;
const PADDING: f64 = 16.0;
const HEADER: f64 = 46.0;
const NOTE: f64 = 15.0;
const LANE_HEADER: f64 = 24.0;
/// The width that a long arrow reserves in each layer that it crosses.
const DUMMY_WIDTH: f64 = 14.0;
/// The distance between back edges.
const BACK_EDGE_GAP: f64 = 18.0;

/// A lane with coordinates. Its top left corner is at 0, 0.
#[derive(Debug)]
pub(super) struct LaneLayout<'p> {
    pub label: Option<&'p str>,
    pub width: f64,
    pub height: f64,
    pub shapes: Vec<ShapeLayout<'p>>,
    pub routes: Vec<Route<'p>>,
}

#[derive(Debug)]
pub(super) struct ShapeLayout<'p> {
    pub shape: &'p Shape,
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
    /// The lanes inside, with their top left corners relative to this shape.
    pub lanes: Vec<(f64, f64, LaneLayout<'p>)>,
}

/// The points of an arrow.
#[derive(Debug)]
pub(super) struct Route<'p> {
    pub points: Vec<(f64, f64)>,
    pub label: Option<&'p str>,
    pub is_back_edge: bool,
}

impl Route<'_> {
    /// Returns the position of the label: where the arrows of a choice have separated, above the first target.
    pub(super) fn label_position(&self) -> Option<(f64, f64)> {
        match self.points.as_slice() {
            [_, _, corner, other, ..] if self.is_back_edge => {
                Some((corner.0 + 4.0, f64::midpoint(corner.1, other.1)))
            }
            [_, first, ..] => Some((first.0 + 6.0, first.1 - 9.0)),
            _ => None,
        }
    }
}

pub(super) fn layout(lane: &Lane) -> LaneLayout<'_> {
    let mut shapes: Vec<ShapeLayout> = lane.shapes.iter().map(size).collect();
    let mut layers = Layers::new(lane, &shapes);
    layers.reduce_crossings();
    layers.assign_coordinates();
    for (shape, node) in shapes.iter_mut().zip(&layers.nodes) {
        (shape.x, shape.y) = (node.x - shape.width / 2.0, node.y);
    }
    let mut laid =
        LaneLayout { label: lane.label.as_deref(), width: 0.0, height: 0.0, shapes, routes: Vec::new() };
    laid.width = laid.shapes.iter().map(|shape| shape.x + shape.width).fold(layers.right(), f64::max);
    laid.height = laid.shapes.iter().map(|shape| shape.y + shape.height).fold(0.0, f64::max);
    laid.route(lane, &layers);
    laid
}

/// Computes the size of a shape. Lays out the lanes of a container.
fn size(shape: &Shape) -> ShapeLayout<'_> {
    let width_of =
        |text: &str, per_char: f64| f64::from(u32::try_from(text.chars().count()).unwrap_or(0)) * per_char;
    let note_width = shape.notes.iter().map(|note| width_of(note, 6.1) + 22.0).fold(0.0, f64::max);
    let text_width = (width_of(&shape.title, 8.0)).max(width_of(&shape.detail, 6.8)).max(note_width) + 32.0;
    let text_width = text_width.clamp(120.0, 420.0);
    let notes = if shape.notes.is_empty() { 0.0 } else { length(shape.notes.len()) * NOTE + 4.0 };
    let mut laid =
        ShapeLayout { shape, x: 0.0, y: 0.0, width: text_width, height: HEADER + notes, lanes: Vec::new() };
    match shape.look {
        Look::Start | Look::End => (laid.width, laid.height) = (64.0, 28.0),
        _ if shape.detail.is_empty() && shape.notes.is_empty() => laid.height = 34.0,
        _ => {}
    }
    if !shape.lanes.is_empty() {
        fill(&mut laid, shape);
    }
    laid
}

/// Arranges the lanes of a container side by side below its header.
fn fill<'p>(laid: &mut ShapeLayout<'p>, shape: &'p Shape) {
    let (mut x, mut tallest) = (PADDING, 0.0f64);
    let top = laid.height;
    for lane in &shape.lanes {
        let mut inner = layout(lane);
        let header = if inner.label.is_some() { LANE_HEADER } else { 0.0 };
        let label_width = inner.label.map_or(0.0, |label| length(label.chars().count()) * 6.6 + 12.0);
        inner.widen(label_width.max(60.0));
        inner.height = inner.height.max(24.0);
        tallest = tallest.max(inner.height + header);
        let width = inner.width;
        laid.lanes.push((x, top + header, inner));
        x += width + PADDING;
    }
    let spare = (laid.width - x).max(0.0);
    laid.lanes.iter_mut().for_each(|(x, ..)| *x += spare / 2.0);
    laid.width = laid.width.max(x);
    laid.height = top + tallest + PADDING;
}

fn length(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

/// A shape, or a dummy node that reserves space for a long arrow.
#[derive(Debug, Clone)]
struct Node {
    layer: usize,
    is_dummy: bool,
    width: f64,
    height: f64,
    x: f64,
    y: f64,
    up: Vec<usize>,
    down: Vec<usize>,
}

struct Layers {
    nodes: Vec<Node>,
    layers: Vec<Vec<usize>>,
    /// The dummy nodes of each arrow, from top to bottom; `None` for back edges.
    dummies: Vec<Option<Vec<usize>>>,
}

impl Layers {
    fn new(lane: &Lane, shapes: &[ShapeLayout]) -> Self {
        let back = find_back_edges(lane);
        let layer_of = assign_layers(lane, &back);
        let mut nodes: Vec<Node> = shapes
            .iter()
            .zip(&layer_of)
            .map(|(shape, layer)| Node {
                layer: *layer,
                is_dummy: false,
                width: shape.width,
                height: shape.height,
                x: 0.0,
                y: 0.0,
                up: Vec::new(),
                down: Vec::new(),
            })
            .collect();
        let span = |arrow: &Arrow| layer_of[arrow.to].saturating_sub(layer_of[arrow.from] + 1);
        let detours = lane.arrows.iter().map(span).sum::<usize>() <= limits::DRAWN_PASSAGES;
        let mut dummies = Vec::with_capacity(lane.arrows.len());
        for (arrow, is_back_edge) in lane.arrows.iter().zip(&back) {
            if *is_back_edge {
                dummies.push(None);
                continue;
            }
            let (mut above, mut passed) = (arrow.from, Vec::new());
            let passed_layers = layer_of[arrow.from] + 1..layer_of[arrow.to];
            for layer in passed_layers.filter(|_| detours) {
                let dummy = nodes.len();
                nodes.push(Node {
                    layer,
                    is_dummy: true,
                    width: DUMMY_WIDTH,
                    height: 0.0,
                    x: 0.0,
                    y: 0.0,
                    up: vec![above],
                    down: Vec::new(),
                });
                nodes[above].down.push(dummy);
                passed.push(dummy);
                above = dummy;
            }
            nodes[above].down.push(arrow.to);
            nodes[arrow.to].up.push(above);
            dummies.push(Some(passed));
        }
        let count = nodes.iter().map(|node| node.layer + 1).max().unwrap_or(0);
        let mut layers = vec![Vec::new(); count];
        for (at, node) in nodes.iter().enumerate() {
            layers[node.layer].push(at);
        }
        Self { nodes, layers, dummies }
    }

    /// Sorts each layer by the mean position of its neighbours, alternating downwards and upwards.
    fn reduce_crossings(&mut self) {
        const SWEEPS: usize = 6;
        let mut position = vec![0.0; self.nodes.len()];
        for sweep in 0..SWEEPS {
            let downwards = sweep % 2 == 0;
            for step in 0..self.layers.len() {
                let layer = if downwards { step } else { self.layers.len() - 1 - step };
                for (at, node) in self.layers[layer].iter().enumerate() {
                    position[*node] = length(at);
                }
                let nodes = &self.nodes;
                let desired = |node: usize| {
                    let neighbours = if downwards { &nodes[node].up } else { &nodes[node].down };
                    mean(neighbours.iter().map(|other| position[*other])).unwrap_or(position[node])
                };
                let mut sorted: Vec<(f64, usize)> =
                    self.layers[layer].iter().map(|node| (desired(*node), *node)).collect();
                sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
                self.layers[layer] = sorted.into_iter().map(|(_, node)| node).collect();
                for (at, node) in self.layers[layer].iter().enumerate() {
                    position[*node] = length(at);
                }
            }
        }
    }

    /// Assigns coordinates: y by layer, x near the neighbours of a node.
    fn assign_coordinates(&mut self) {
        const SWEEPS: usize = 8;
        let mut y = 0.0;
        for layer in &self.layers {
            let height = layer.iter().map(|node| self.nodes[*node].height).fold(0.0, f64::max);
            for node in layer {
                let node = &mut self.nodes[*node];
                node.y = y;
                if node.is_dummy {
                    node.height = height;
                }
            }
            y += height + GAP_Y;
        }
        for layer in 0..self.layers.len() {
            self.spread(layer, &vec![0.0; self.layers[layer].len()]);
        }
        for sweep in 0..SWEEPS {
            for step in 0..self.layers.len() {
                let layer = if sweep % 2 == 0 { step } else { self.layers.len() - 1 - step };
                let desired: Vec<f64> = self.layers[layer]
                    .iter()
                    .map(|node| {
                        let node = &self.nodes[*node];
                        let neighbours = if sweep % 2 == 0 { &node.up } else { &node.down };
                        mean(neighbours.iter().map(|other| self.nodes[*other].x)).unwrap_or(node.x)
                    })
                    .collect();
                self.spread(layer, &desired);
            }
        }
        let left = self.nodes.iter().map(|node| node.x - node.width / 2.0).fold(f64::INFINITY, f64::min);
        self.nodes.iter_mut().for_each(|node| node.x -= left);
    }

    /// Moves the nodes of a layer as close to their desired positions as their widths allow: the mean of a
    /// pass that pushes to the right and one that pushes to the left.
    fn spread(&mut self, layer: usize, desired: &[f64]) {
        let order = self.layers[layer].clone();
        let distance = |one: &Node, other: &Node| f64::midpoint(one.width, other.width) + GAP_X;
        let mut rightwards = desired.to_vec();
        for at in 1..order.len() {
            let min_x = rightwards[at - 1] + distance(&self.nodes[order[at - 1]], &self.nodes[order[at]]);
            rightwards[at] = rightwards[at].max(min_x);
        }
        let mut leftwards = desired.to_vec();
        for at in (1..order.len()).rev() {
            let max_x = leftwards[at] - distance(&self.nodes[order[at - 1]], &self.nodes[order[at]]);
            leftwards[at - 1] = leftwards[at - 1].min(max_x);
        }
        for (at, node) in order.iter().enumerate() {
            self.nodes[*node].x = f64::midpoint(rightwards[at], leftwards[at]);
        }
    }

    /// Returns the bottom of a layer.
    fn bottom(&self, layer: usize) -> f64 {
        self.layers[layer].iter().map(|at| self.nodes[*at].y + self.nodes[*at].height).fold(0.0, f64::max)
    }

    fn right(&self) -> f64 {
        self.nodes.iter().map(|node| node.x + node.width / 2.0).fold(0.0, f64::max)
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then_some(sum / count)
}

/// The state of a shape in the depth-first search.
#[derive(Clone, Copy, PartialEq)]
enum State {
    New,
    Open,
    Done,
}

/// Finds the arrows to a shape that is an ancestor of their start in a depth-first search.
fn find_back_edges(lane: &Lane) -> Vec<bool> {
    let mut outgoing: Vec<Vec<usize>> = vec![Vec::new(); lane.shapes.len()];
    let mut is_target = vec![false; lane.shapes.len()];
    for (at, arrow) in lane.arrows.iter().enumerate() {
        outgoing[arrow.from].push(at);
        is_target[arrow.to] = true;
    }
    let mut state = vec![State::New; lane.shapes.len()];
    let mut back = vec![false; lane.arrows.len()];
    let first = (0..lane.shapes.len()).filter(|at| !is_target[*at]);
    for start in first.chain(0..lane.shapes.len()) {
        let mut stack = if state[start] == State::New { vec![(start, 0)] } else { Vec::new() };
        while let Some((shape, tried)) = stack.pop() {
            state[shape] = State::Open;
            let Some(arrow) = outgoing[shape].get(tried) else {
                state[shape] = State::Done;
                continue;
            };
            stack.push((shape, tried + 1));
            let to = lane.arrows[*arrow].to;
            match state[to] {
                State::Open => back[*arrow] = true,
                State::New => stack.push((to, 0)),
                State::Done => {}
            }
        }
    }
    back
}

/// Assigns each shape to the layer below its lowest predecessor.
fn assign_layers(lane: &Lane, back: &[bool]) -> Vec<usize> {
    let forward = || lane.arrows.iter().zip(back).filter(|(_, back)| !**back).map(|(arrow, _)| arrow);
    let mut waits = vec![0; lane.shapes.len()];
    let mut outgoing: Vec<Vec<usize>> = vec![Vec::new(); lane.shapes.len()];
    for arrow in forward() {
        waits[arrow.to] += 1;
        outgoing[arrow.from].push(arrow.to);
    }
    let mut layer = vec![0; lane.shapes.len()];
    let mut queue: VecDeque<usize> = (0..lane.shapes.len()).filter(|at| waits[*at] == 0).collect();
    while let Some(at) = queue.pop_front() {
        for to in &outgoing[at] {
            layer[*to] = layer[*to].max(layer[at] + 1);
            waits[*to] -= 1;
            if waits[*to] == 0 {
                queue.push_back(*to);
            }
        }
    }
    layer
}

impl<'p> LaneLayout<'p> {
    /// Widens the lane to at least this width and centres its contents.
    fn widen(&mut self, width: f64) {
        let spare = (width - self.width).max(0.0);
        self.shapes.iter_mut().for_each(|shape| shape.x += spare / 2.0);
        self.routes.iter_mut().flat_map(|route| &mut route.points).for_each(|(x, _)| *x += spare / 2.0);
        self.width += spare;
    }

    fn route(&mut self, lane: &'p Lane, layers: &Layers) {
        let mut returns = 0.0;
        for (arrow, dummies) in lane.arrows.iter().zip(&layers.dummies) {
            let (from, to) = (&self.shapes[arrow.from], &self.shapes[arrow.to]);
            let points = if let Some(dummies) = dummies {
                let below = |shape: &ShapeLayout| (shape.x + shape.width / 2.0, shape.y + shape.height);
                let mut points = vec![below(from)];
                for dummy in dummies.iter().map(|at| &layers.nodes[*at]) {
                    points.extend([(dummy.x, dummy.y), (dummy.x, dummy.y + dummy.height)]);
                }
                points.push((to.x + to.width / 2.0, to.y));
                points
            } else {
                returns += 1.0;
                let x = layers.right() + returns * BACK_EDGE_GAP;
                // Horizontal parts run between the layers, where no shape is.
                let below = layers.bottom(layers.nodes[arrow.from].layer) + GAP_Y * 0.3;
                let above = to.y - GAP_Y * 0.3;
                let (start, end) = (from.x + from.width * 0.7, to.x + to.width * 0.7);
                vec![
                    (start, from.y + from.height),
                    (start, below),
                    (x, below),
                    (x, above),
                    (end, above),
                    (end, to.y),
                ]
            };
            let label = arrow.label.as_deref();
            self.routes.push(Route { points, label, is_back_edge: dummies.is_none() });
        }
        let points = self.routes.iter().flat_map(|route| &route.points).map(|(x, _)| x + DUMMY_WIDTH / 2.0);
        let labels = self.routes.iter().filter_map(|route| {
            let width = length(route.label?.chars().count()) * 6.2;
            route.label_position().map(|(x, _)| x + width)
        });
        self.width = points.chain(labels).fold(self.width, f64::max);
    }
}
