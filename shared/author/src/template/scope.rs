//! The variables of a template, in minijinja's scopes.
//!
//! `for`, `with` and macros open a scope. `if` does not, so a variable that is set in one branch may or may not exist
//! afterwards. A loop's scope is emptied before each iteration. Within a macro, only its own scopes are visible.
//! What a name outside of them stands for depends on the call of the macro (`TemplateWalker::macro_captures`).

use std::collections::{BTreeMap, BTreeSet};

use stemma_core::input::Reference;

use crate::shape::Shape;

/// A variable: what it may stand for, its weight ([`super::growth`]), and the read whose unchanged value it holds, if
/// any.
#[derive(Clone)]
pub(super) struct Variable {
    pub(super) shape: Shape,
    pub(super) weight: u64,
    pub(super) read: Option<Reference>,
}

type ScopeVariables<'a> = BTreeMap<&'a str, Variable>;

impl Variable {
    /// Creates a variable for plain data of this weight.
    pub(super) fn from_weight(weight: u64) -> Self {
        Self::from_shape(Shape::Plain, weight)
    }

    /// Creates a variable that does not hold the unchanged value of a read.
    pub(super) fn from_shape(shape: Shape, weight: u64) -> Self {
        Self { shape, weight, read: None }
    }
}

/// The scopes, the innermost last. The first is that of the template.
pub(super) struct Scopes<'a> {
    stack: Vec<ScopeVariables<'a>>,
    /// Index of the first scope of the macro that is being walked, or 0 outside of macros.
    macro_start: usize,
}

/// The result of the search for a name.
pub(super) enum VariableBinding {
    /// A variable that is visible here.
    Visible(Shape),
    /// A variable outside of the macro that is being walked.
    Outside(Shape),
    /// Not a variable.
    Unbound,
}

impl Default for Scopes<'_> {
    fn default() -> Self {
        Self { stack: vec![ScopeVariables::new()], macro_start: 0 }
    }
}

impl<'a> Scopes<'a> {
    pub(super) fn push(&mut self) {
        self.stack.push(ScopeVariables::new());
    }

    pub(super) fn pop(&mut self) {
        self.stack.pop();
    }

    /// Enters a macro. The result must be passed to [`Scopes::leave_macro`].
    pub(super) fn enter_macro(&mut self) -> usize {
        self.push();
        std::mem::replace(&mut self.macro_start, self.stack.len() - 1)
    }

    pub(super) fn leave_macro(&mut self, start: usize) {
        self.macro_start = start;
        self.pop();
    }

    pub(super) fn is_in_macro(&self) -> bool {
        self.macro_start > 0
    }

    pub(super) fn bind(&mut self, name: &'a str, variable: Variable) {
        self.stack.last_mut().expect("the template's own scope stays").insert(name, variable);
    }

    /// Returns the weight of a variable, or `None` if no variable has this name.
    pub(super) fn weight(&self, name: &str) -> Option<u64> {
        self.variable(name).map(|variable| variable.weight)
    }

    /// Returns the read whose unchanged value a variable holds.
    pub(super) fn read_reference(&self, name: &str) -> Option<&Reference> {
        self.variable(name).and_then(|variable| variable.read.as_ref())
    }

    fn variable(&self, name: &str) -> Option<&Variable> {
        self.stack.iter().rev().find_map(|scope| scope.get(name))
    }

    /// Finds the innermost variable with a name.
    pub(super) fn find(&self, name: &str) -> VariableBinding {
        for (depth, scope) in self.stack.iter().enumerate().rev() {
            if let Some(variable) = scope.get(name) {
                let shape = variable.shape.clone();
                return if depth < self.macro_start { VariableBinding::Outside(shape) } else { VariableBinding::Visible(shape) };
            }
        }
        VariableBinding::Unbound
    }

    /// Returns a copy of the innermost scope, to restore it before another branch.
    pub(super) fn save(&self) -> ScopeVariables<'a> {
        self.stack.last().cloned().unwrap_or_default()
    }

    /// Restores a saved scope and returns the current one.
    pub(super) fn swap(&mut self, saved: ScopeVariables<'a>) -> ScopeVariables<'a> {
        std::mem::replace(self.stack.last_mut().expect("the template's own scope stays"), saved)
    }

    /// Joins the scopes that two branches left, `other` and the current one, into the current one. `outer` returns what
    /// a name stands for in a branch that did not set it.
    pub(super) fn join(&mut self, mut other: ScopeVariables<'a>, outer: impl Fn(&Self, &str) -> Shape) {
        let mut joined = ScopeVariables::new();
        let mut current = self.swap(ScopeVariables::new());
        let names: BTreeSet<&'a str> = current.keys().chain(other.keys()).copied().collect();
        for name in names {
            let left = current.remove(name);
            let right = other.remove(name);
            let weight = left.iter().chain(&right).map(|variable| variable.weight).max().unwrap_or(0);
            let reads = [&left, &right].map(|variable| variable.as_ref().and_then(|one| one.read.clone()));
            let shape = match (left, right) {
                (Some(left), Some(right)) => left.shape.join(right.shape),
                (Some(variable), None) | (None, Some(variable)) => variable.shape.join(outer(self, name)),
                (None, None) => continue,
            };
            let weight = weight.max(self.weight(name).unwrap_or(0));
            let [read, other] = reads;
            joined.insert(name, Variable { shape, weight, read: read.filter(|read| Some(read) == other.as_ref()) });
        }
        self.swap(joined);
    }
}
