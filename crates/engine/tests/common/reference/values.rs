//! Outputs of steps, their scopes, and the evaluation of expressions.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};
use steprail_core::budget::Budget;
use steprail_core::expr::{Ambient, Condition, Context, Root, StepIx, Template, ValueTemplate};
use steprail_core::plan::{Let, Plan};
use steprail_core::run::{Failure, FailureKind};

use super::Run;

/// A block execution, with its enclosing blocks.
pub(super) struct Scope<'s> {
    around: Option<&'s Scope<'s>>,
    /// The `foreach` step and the item, for the block of an item.
    item: Option<(StepIx, Value)>,
    /// Prefix of the paths of its steps.
    prefix: String,
    ended: RefCell<BTreeMap<StepIx, Ended>>,
    visits: RefCell<BTreeMap<StepIx, u32>>,
}

/// How a step ended.
#[derive(Clone)]
pub(super) struct Ended {
    pub status: &'static str,
    pub output: Value,
    pub error: Value,
    pub path: String,
}

impl<'s> Scope<'s> {
    pub(super) fn root() -> Self {
        Self::new(None, String::new(), None)
    }

    /// Creates a block of a step that is not a loop. Its results are visible in the enclosing block afterwards.
    pub(super) fn inside(around: &'s Scope<'s>, prefix: String) -> Self {
        Self::new(Some(around), prefix, None)
    }

    /// Creates the block of an item of a loop.
    pub(super) fn item(around: &'s Scope<'s>, prefix: String, owner: StepIx, item: Value) -> Self {
        Self::new(Some(around), prefix, Some((owner, item)))
    }

    fn new(around: Option<&'s Scope<'s>>, prefix: String, item: Option<(StepIx, Value)>) -> Self {
        Self { around, item, prefix, ended: RefCell::default(), visits: RefCell::default() }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the number of executions of a step.
    pub(super) fn visits(&self, step: StepIx) -> u32 {
        self.visits.borrow().get(&step).copied().unwrap_or_default()
    }

    pub(super) fn visit(&self, step: StepIx) {
        *self.visits.borrow_mut().entry(step).or_default() += 1;
    }

    pub(super) fn end(&self, step: StepIx, ended: Ended) {
        self.ended.borrow_mut().insert(step, ended);
    }

    /// Returns the path of a step that ended in this block.
    pub(super) fn path_of(&self, step: StepIx) -> String {
        self.ended.borrow().get(&step).map(|ended| ended.path.clone()).unwrap_or_default()
    }

    fn find(&self, step: StepIx) -> Option<Ended> {
        let found = self.ended.borrow().get(&step).cloned();
        found.or_else(|| self.around?.find(step))
    }

    fn find_item(&self, owner: StepIx) -> Option<Value> {
        match &self.item {
            Some((of, item)) if *of == owner => Some(item.clone()),
            _ => self.around?.find_item(owner),
        }
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        if let (Some(around), None) = (self.around, &self.item) {
            around.ended.borrow_mut().extend(std::mem::take(&mut *self.ended.borrow_mut()));
        }
    }
}

/// The values that an expression reads.
/// UUIDs are numbered: the test compares where they are, not their digits.
#[derive(Default)]
struct Bindings(HashMap<Root, Value>, Cell<u32>);

impl Context for Bindings {
    fn value(&self, root: &Root) -> Option<&Value> {
        self.0.get(root)
    }

    fn uuid(&self) -> Option<String> {
        self.1.set(self.1.get() + 1);
        Some(format!("00000000-0000-8000-8000-{:012}", self.1.get()))
    }
}

impl Run<'_> {
    pub(super) fn value(&self, scope: &Scope<'_>, template: &ValueTemplate) -> Result<Value, Failure> {
        let bindings = self.bindings(scope, |visit| template.roots(visit));
        template.eval(&bindings, &mut Budget::evaluation()).map_err(Failure::from)
    }

    /// Computes the values of a `let` step. Each can read the others.
    pub(super) fn compute(&self, scope: &Scope<'_>, step: &Let) -> Result<Value, Failure> {
        let roots =
            |visit: &mut dyn FnMut(&Root)| step.values.iter().for_each(|value| value.value.roots(visit));
        let mut bindings = self.bindings(scope, roots);
        let mut output = Map::new();
        for named in &step.values {
            let value = named.value.eval(&bindings, &mut Budget::evaluation())?;
            bindings.0.insert(Root::Let(named.number), value.clone());
            output.insert(named.name.to_string(), value);
        }
        Ok(Value::Object(output))
    }

    /// Evaluates to text. A value that is not text becomes JSON.
    pub(super) fn text(&self, scope: &Scope<'_>, template: &Template) -> Result<String, Failure> {
        Ok(match self.text_value(scope, template)? {
            Value::String(text) => text,
            other => other.to_string(),
        })
    }

    pub(super) fn text_value(&self, scope: &Scope<'_>, template: &Template) -> Result<Value, Failure> {
        let bindings = self.bindings(scope, |visit| template.roots(visit));
        let value = template.eval(&bindings, &mut Budget::evaluation()).map(std::borrow::Cow::into_owned);
        value.map_err(Failure::from)
    }

    pub(super) fn holds(&self, scope: &Scope<'_>, condition: &Condition) -> Result<bool, Failure> {
        let bindings = self.bindings(scope, |visit| condition.roots(visit));
        condition.holds(&bindings, &mut Budget::evaluation()).map_err(Failure::from)
    }

    /// Whether a condition on the result of a probe is true.
    pub(super) fn holds_of(
        &self,
        scope: &Scope<'_>,
        condition: &Condition,
        answer: Value,
    ) -> Result<bool, Failure> {
        let mut bindings = self.bindings(scope, |visit| condition.roots(visit));
        bindings.0.insert(Root::Probe, answer);
        condition.holds(&bindings, &mut Budget::evaluation()).map_err(Failure::from)
    }

    fn bindings(&self, scope: &Scope<'_>, roots: impl Fn(&mut dyn FnMut(&Root))) -> Bindings {
        let mut bindings = Bindings::default();
        roots(&mut |root| {
            if let Some(value) = self.read(scope, root) {
                bindings.0.insert(root.clone(), value);
            }
        });
        bindings
    }

    fn read(&self, scope: &Scope<'_>, root: &Root) -> Option<Value> {
        match root {
            Root::Inputs => Some(self.inputs.clone()),
            Root::Output(step) => Some(scope.find(*step)?.output),
            Root::FileRefs(step) => scope.find(*step)?.output.get("file_refs").cloned(),
            Root::Status(step) => Some(scope.find(*step)?.status.into()),
            Root::Error(step) => Some(scope.find(*step)?.error),
            Root::Item(owner) => scope.find_item(*owner),
            Root::Env => Some(json!({ "HOME": "/home/ann" })),
            Root::Ambient(Ambient::UserName) => Some("Ann".into()),
            Root::Ambient(Ambient::UserEmail) => Some("ann@example.org".into()),
            Root::Ambient(Ambient::UserId) => Some("ann".into()),
            Root::Ambient(Ambient::RunId)
            | Root::Probe
            | Root::Call(_)
            | Root::Variable(_)
            | Root::Let(_) => None,
            Root::Now => {
                let now = jiff::Timestamp::from_millisecond(self.world.clock.now());
                Some(now.expect("a time").to_string().into())
            }
            Root::Failure => self.failure.borrow().as_ref().map(|failure| json!(failure)),
        }
    }
}

pub(super) fn invalid(message: &str) -> Failure {
    Failure::new(FailureKind::Validation, message)
}

/// Fills in the defaults of inputs. Returns `None` if they do not match the declared ones.
pub(super) fn check_inputs(plan: &Plan, given: &Value) -> Option<Value> {
    let given = given.as_object()?;
    let mut inputs = Map::new();
    for declared in &plan.inputs {
        match given.get(&*declared.name).or(declared.default.as_ref()) {
            Some(value) if fits(value, declared.schema.json().get("type")) => {
                inputs.insert(declared.name.to_string(), value.clone());
            }
            None if !declared.required => {}
            _ => return None,
        }
    }
    given.keys().all(|name| inputs.contains_key(name)).then_some(Value::Object(inputs))
}

fn fits(value: &Value, kind: Option<&Value>) -> bool {
    match kind.and_then(Value::as_str) {
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => true,
    }
}
