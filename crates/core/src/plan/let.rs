//! Compiles `let` steps: the order in which the values are computed follows from their references.

use std::collections::BTreeSet;

use super::compile::Compiler;
use super::{Kind, Let, LetValue};
use crate::diagnostic::{Code, Diagnostic, quoted};
use crate::document::MapEntry;
use crate::expr::{Root, ValueTemplate};
use crate::steps;

impl Compiler<'_, '_> {
    pub(super) fn compute(&mut self, written: &steps::Let) -> Kind {
        let Some(written) = &written.r#let else { return Kind::Pass };
        // The order of a map has no meaning, so names are numbered in their own order.
        let entries = written.sorted();
        self.let_names = Some(entries.iter().map(|entry| entry.key.clone()).collect());
        let values: Vec<ValueTemplate> = entries.iter().map(|entry| self.let_value(entry)).collect();
        self.let_names = None;
        let needs: Vec<BTreeSet<usize>> = values.iter().map(other_names).collect();
        let order = order(&needs).unwrap_or_else(|cycle| {
            self.report_cycle(
                &cycle.into_iter().filter_map(|at| entries.get(at).copied()).collect::<Vec<_>>(),
            );
            Vec::new()
        });
        let mut values: Vec<Option<ValueTemplate>> = values.into_iter().map(Some).collect();
        let ordered = order.into_iter().filter_map(|at| {
            let value = values.get_mut(at)?.take()?;
            Some(LetValue { name: entries[at].key.clone(), number: u32::try_from(at).ok()?, value })
        });
        Kind::Let(Let { values: ordered.collect() })
    }

    fn let_value(&mut self, entry: &MapEntry) -> ValueTemplate {
        let value = self.value(&entry.value);
        if !value.secrets().is_empty() {
            let message = "a secret can be used in `args` only: the values of a `let` step are recorded";
            self.report(Diagnostic::new(Code::InvalidTemplate, entry.value.span, message));
        }
        value
    }

    fn report_cycle(&mut self, entries: &[&MapEntry]) {
        let Some(first) = entries.first() else { return };
        let names: Vec<&str> = entries.iter().map(|entry| &*entry.key).collect();
        let (message, hint) = match names.as_slice() {
            [name] => {
                let message = format!("the value of `{name}` refers to itself");
                let hint = if self.declared.contains(name) {
                    format!("write `inputs.{name}` for the input")
                } else if self.outline.ids.contains_key(*name) {
                    format!("write `steps.{name}.output` for the step")
                } else {
                    "compute it from other values".to_owned()
                };
                (message, hint)
            }
            _ => (
                format!("the values of {} refer to one another", quoted(&names)),
                "compute one of them without the others".to_owned(),
            ),
        };
        self.report(Diagnostic::new(Code::DependencyCycle, first.key_span, message).hint(hint));
    }
}

/// The numbers of the names that a value reads.
fn other_names(value: &ValueTemplate) -> BTreeSet<usize> {
    let mut needs = BTreeSet::new();
    value.roots(&mut |root| {
        if let Root::Let(number) = root {
            needs.insert(*number as usize);
        }
    });
    needs
}

/// The order in which each value comes after those that it needs; otherwise in the order of names. The error contains
/// the values of a cycle.
fn order(needs: &[BTreeSet<usize>]) -> Result<Vec<usize>, Vec<usize>> {
    let mut order = Vec::with_capacity(needs.len());
    let mut left: BTreeSet<usize> = (0..needs.len()).collect();
    while let Some(first) = left.first().copied() {
        let ready = left.iter().copied().find(|at| needs[*at].is_disjoint(&left));
        let Some(ready) = ready else { return Err(cycle(first, needs, &left)) };
        left.remove(&ready);
        order.push(ready);
    }
    Ok(order)
}

/// Follows the needs of a value that cannot be computed, until one repeats.
fn cycle(from: usize, needs: &[BTreeSet<usize>], left: &BTreeSet<usize>) -> Vec<usize> {
    let mut path = vec![from];
    loop {
        let last = path.last().copied().unwrap_or(from);
        let Some(next) = needs[last].intersection(left).next().copied() else { return path };
        if let Some(start) = path.iter().position(|at| *at == next) {
            return path.split_off(start);
        }
        path.push(next);
    }
}
