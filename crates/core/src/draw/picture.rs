//! The contents of a drawing, independent of the output format.

use crate::expr::{Expr, Part, Template, ValueTemplate, secret_reference};
use crate::plan::{BlockIx, Kind, Next, OnDeny, OnError, Plan, Sleep, Step, StepIx, Target};

/// A drawing of a plan.
#[derive(Debug)]
pub struct Picture {
    /// Name of the definition.
    pub title: String,
    /// The steps of the definition.
    pub root: Lane,
    /// The steps of `on_failure`.
    pub on_failure: Option<Lane>,
}

/// A block: shapes and the arrows between them.
#[derive(Debug, Default)]
pub struct Lane {
    /// Name or condition of the branch.
    pub label: Option<String>,
    /// The steps of the block.
    pub shapes: Vec<Shape>,
    /// The transitions between the shapes.
    pub arrows: Vec<Arrow>,
}

/// An arrow between two shapes of a lane, by their indexes.
#[derive(Debug)]
pub struct Arrow {
    /// Index of the shape that it starts at.
    pub from: usize,
    /// Index of the shape that it ends at.
    pub to: usize,
    /// The condition of the transition.
    pub label: Option<String>,
}

/// A step, or the start or end of a run.
#[derive(Debug)]
pub struct Shape {
    /// The appearance, which depends on the kind of the step.
    pub look: Look,
    /// Id of the step.
    pub title: String,
    /// What the step does.
    pub detail: String,
    /// Policies of the step.
    pub notes: Vec<String>,
    /// The blocks of the step.
    pub lanes: Vec<Lane>,
}

/// The appearance of a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Look {
    Start,
    End,
    Tool,
    Foreach,
    Parallel,
    Branch,
    Approve,
    Time,
    Workflow,
    Pass,
}

impl Picture {
    /// Creates the drawing of a plan.
    pub fn of(plan: &Plan) -> Self {
        let mut root = lane(plan, Plan::ROOT, None);
        add_ends(plan, &mut root);
        let on_failure = plan.on_failure.map(|block| lane(plan, block, Some("on failure".into())));
        Self { title: plan.name.to_string(), root, on_failure }
    }
}

/// Adds the start and the end of a run to the root.
fn add_ends(plan: &Plan, lane: &mut Lane) {
    let block = plan.block(Plan::ROOT);
    let (start, end) = (lane.shapes.len(), lane.shapes.len() + 1);
    lane.shapes.extend([point(Look::Start, "start"), point(Look::End, "end")]);
    let at = |step: &StepIx| block.steps.iter().position(|other| other == step);
    lane.arrows.extend(block.entry.iter().filter_map(at).map(|to| Arrow { from: start, to, label: None }));
    for (from, step) in block.steps.iter().enumerate() {
        match &plan.step(*step).next {
            Next::End => lane.arrows.push(Arrow { from, to: end, label: None }),
            Next::Dependents(dependents) if dependents.is_empty() => {
                lane.arrows.push(Arrow { from, to: end, label: None });
            }
            _ => {}
        }
    }
    if block.steps.is_empty() {
        lane.arrows.push(Arrow { from: start, to: end, label: None });
    }
}

fn point(look: Look, title: &str) -> Shape {
    Shape { look, title: title.into(), detail: String::new(), notes: Vec::new(), lanes: Vec::new() }
}

fn lane(plan: &Plan, block: BlockIx, label: Option<String>) -> Lane {
    let block = plan.block(block);
    // A linear search per arrow would be quadratic in long blocks.
    let index_of: std::collections::HashMap<StepIx, usize> =
        block.steps.iter().enumerate().map(|(at, step)| (*step, at)).collect();
    let mut arrows = Vec::new();
    for (from, step) in block.steps.iter().enumerate() {
        let step = plan.step(*step);
        let mut arrow = |to: &StepIx, label: Option<String>| {
            arrows.extend(index_of.get(to).map(|to| Arrow { from, to: *to, label }));
        };
        match &step.next {
            Next::End => {}
            Next::Step(next) => arrow(next, None),
            Next::Dependents(dependents) => dependents.iter().for_each(|next| arrow(next, None)),
            Next::Choose { choices, otherwise } => {
                let written = choices.iter().map(|choice| (choice.to, truncate(&choice.written)));
                let otherwise = otherwise.iter().map(|to| (*to, "else".into()));
                for (to, label) in written.chain(otherwise) {
                    if let Target::Step(next) = to {
                        arrow(&next, Some(label));
                    }
                }
            }
        }
        if let OnError::Goto(Target::Step(to)) = &step.on_error {
            arrow(to, Some("on error".into()));
        }
        if let Kind::Approve(approve) = &step.kind {
            if let OnDeny::Goto(Target::Step(to)) = &approve.on_deny {
                arrow(to, Some("denied".into()));
            }
            if let Some(Target::Step(to)) = &approve.on_timeout {
                arrow(to, Some("expired".into()));
            }
        }
    }
    let shapes = block.steps.iter().map(|step| shape(plan, plan.step(*step))).collect();
    Lane { label, shapes, arrows }
}

fn shape(plan: &Plan, step: &Step) -> Shape {
    let (look, detail, lanes) = match &step.kind {
        Kind::Call(call) => {
            let server = call.server.as_ref().map(|server| format!("{server} · ")).unwrap_or_default();
            (Look::Tool, format!("{server}{}", call.tool), Vec::new())
        }
        Kind::Foreach(each) => {
            let detail = format!("for each {} in {}", each.item, items_detail(&each.items));
            (Look::Foreach, detail, vec![lane(plan, each.body, None)])
        }
        Kind::Parallel(parallel) => {
            let name = |block: BlockIx| plan.block(block).name.as_ref().map(ToString::to_string);
            let lanes = parallel.branches.iter().map(|block| lane(plan, *block, name(*block)));
            (Look::Parallel, "at the same time".into(), lanes.collect())
        }
        Kind::Branch(branch) => {
            let cases = branch.cases.iter().map(|case| lane(plan, case.then, Some(truncate(&case.written))));
            let otherwise = branch.otherwise.iter().map(|block| lane(plan, *block, Some("else".into())));
            (Look::Branch, "one of".into(), cases.chain(otherwise).collect())
        }
        Kind::Approve(approve) => {
            let question =
                approve.gate.prompt.as_ref().map_or_else(|| "waits for approval".into(), template_text);
            (Look::Approve, truncate(&question), Vec::new())
        }
        Kind::Sleep(sleep) => (Look::Time, sleep_detail(sleep), Vec::new()),
        Kind::Wait(wait) => {
            (Look::Time, format!("waits for {}", truncate(&template_text(&wait.event))), Vec::new())
        }
        Kind::Workflow(workflow) => (Look::Workflow, format!("workflow {}", workflow.name), Vec::new()),
        Kind::Let(values) => {
            let names: Vec<&str> = values.values.iter().map(|value| &*value.name).collect();
            (Look::Pass, truncate(&format!("computes {}", names.join(", "))), Vec::new())
        }
        Kind::Pass => (Look::Pass, String::new(), Vec::new()),
    };
    Shape { look, title: step.id.to_string(), detail, notes: notes(step), lanes }
}

fn notes(step: &Step) -> Vec<String> {
    let mut notes = Vec::new();
    if step.needs_human.is_some() {
        notes.push("needs approval".into());
    }
    if let Some(retry) = step.retry.as_ref().filter(|retry| retry.max_attempts > 1) {
        notes.push(format!("up to {} attempts", retry.max_attempts));
    }
    if let Some(timeout) = step.timeout_ms {
        notes.push(format!("at most {}", duration(timeout)));
    }
    match &step.kind {
        Kind::Call(call) if call.idempotency.is_some() => notes.push("once per key".into()),
        Kind::Foreach(each) if each.concurrency > 1 => notes.push(format!("{} at a time", each.concurrency)),
        Kind::Parallel(crate::plan::Parallel { concurrency: Some(number), .. }) => {
            notes.push(format!("{number} at a time"));
        }
        _ => {}
    }
    if let Next::Choose { choices, .. } = &step.next {
        let leaving = choices.iter().filter(|choice| choice.to == Target::End);
        notes.extend(leaving.map(|choice| format!("done if {}", truncate(&choice.written))));
    }
    if step.on_error == OnError::Continue {
        notes.push("continues on error".into());
    }
    notes
}

fn sleep_detail(sleep: &Sleep) -> String {
    match sleep {
        Sleep::For(millis) => format!("sleeps {}", duration(*millis)),
        Sleep::Until(moment) => match jiff::Timestamp::from_millisecond(*moment) {
            Ok(moment) => format!("sleeps until {moment}"),
            Err(_) => "sleeps".into(),
        },
        Sleep::ForComputed(template) => format!("sleeps {}", truncate(&template_text(template))),
        Sleep::UntilComputed(template) => format!("sleeps until {}", truncate(&template_text(template))),
    }
}

fn duration(millis: u64) -> String {
    match millis {
        millis if millis % 86_400_000 == 0 => format!("{} d", millis / 86_400_000),
        millis if millis % 3_600_000 == 0 => format!("{} h", millis / 3_600_000),
        millis if millis % 60_000 == 0 => format!("{} min", millis / 60_000),
        millis if millis % 1_000 == 0 => format!("{} s", millis / 1_000),
        millis => format!("{millis} ms"),
    }
}

fn items_detail(value: &ValueTemplate) -> String {
    match value {
        ValueTemplate::Text(template) => truncate(&template_text(template)),
        ValueTemplate::List(items) => format!("{} items", items.len()),
        ValueTemplate::Literal(serde_json::Value::Array(items)) => format!("{} items", items.len()),
        _ => "a list".into(),
    }
}

/// Returns a template approximately as written.
fn template_text(template: &Template) -> String {
    let expr = |expr: &Expr| match expr {
        Expr::Ref(reference) => reference.written.to_string(),
        Expr::Query(query) => query.base.written.to_string(),
        _ => "…".into(),
    };
    match template {
        Template::Literal(value) => value.as_str().unwrap_or_default().to_owned(),
        Template::Whole(whole) => expr(whole),
        Template::Mixed(parts) => parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.to_string(),
                Part::Secret(name) => secret_reference(name),
                Part::Expr(part) => format!("‹{}›", expr(part)),
            })
            .collect(),
    }
}

/// Joins a text into one line and truncates it to 40 characters.
fn truncate(text: &str) -> String {
    const CHARS: usize = 40;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= CHARS { line } else { line.chars().take(CHARS - 1).chain(['…']).collect() }
}
