//! Paths of step executions, such as `per_file[3].export` and `check#2`.

use super::parts::ScopeKey;
use super::state::Run;
use crate::expr::StepIx;
use crate::plan::{Kind, Plan};

impl Run {
    /// Returns the path of a step's next execution in a block.
    ///
    /// Ids are unique in a definition, so a path contains only what can run more than once: the items of a
    /// `foreach`, and the visits of a loop in the graph form.
    pub(super) fn path(&self, plan: &Plan, scope: ScopeKey, step: StepIx) -> String {
        let mut path = self.prefix(plan, scope);
        path.push_str(&plan.step(step).id);
        let visits = self.scopes.get(&scope).and_then(|scope| scope.visits.get(&step)).copied();
        if let Some(before) = visits.filter(|before| *before > 0) {
            path.push_str(&format!("#{}", before + 1));
        }
        path
    }

    fn prefix(&self, plan: &Plan, scope: ScopeKey) -> String {
        let Some(owner) = self.live.get(&scope.n) else { return String::new() };
        if let Kind::Foreach(_) = plan.step(owner.step).kind {
            return format!("{}[{}].", owner.path, scope.index);
        }
        let id = &*plan.step(owner.step).id;
        // Only later visits of a block (`#2`) are part of the path.
        match owner.path.strip_suffix(id) {
            Some(before) => before.to_owned(),
            None => format!("{}.", owner.path),
        }
    }
}
