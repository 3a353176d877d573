//! The variables of a template, in minijinja's scopes.
//!
//! `for`, `with` and macros open a scope. `if` does not, so a variable that is set in one branch may or may not exist
//! afterwards. A loop's scope is emptied before each iteration. Within a macro, only its own scopes are visible. The
//! value of a name outside of these scopes depends on the call of the macro (`TemplateWalker::macro_captures`).

use std::collections::{BTreeMap, BTreeSet};

use stemma_core::input::Reference;

use crate::shape::Shape;

#[derive(Clone)]
pub(super) struct Variable {
    /// The kind of value that the variable may have.
    pub(super) shape: Shape,
    /// The number of inputs that the value may be concatenated from ([`super::growth`]).
    pub(super) weight: u64,
    /// The reference to the input whose value the variable has unchanged, if any.
    pub(super) read: Option<Reference>,
}

/// The variables of one scope, by name.
type ScopeVariables<'a> = BTreeMap<&'a str, Variable>;

impl Variable {
    /// Creates a variable for plain data with this weight.
    pub(super) fn from_weight(weight: u64) -> Self {
        Self::from_shape(Shape::Plain, weight)
    }

    /// Creates a variable with this shape and weight, whose value is not the unchanged value of an input.
    pub(super) fn from_shape(shape: Shape, weight: u64) -> Self {
        Self { shape, weight, read: None }
    }
}

/// The stack of scopes, the innermost last. The first scope is that of the template itself.
pub(super) struct Scopes<'a> {
    stack: Vec<ScopeVariables<'a>>,
    /// Index of the first scope of the macro that is being visited, or 0 outside of macros.
    macro_start: usize,
}

/// The result of the search for a name among the variables of a template.
pub(super) enum VariableBinding {
    /// A variable that is visible in the part of the template that is being visited.
    Visible(Shape),
    /// A variable outside of the macro that is being visited. The macro can use it only if it is itself a macro.
    Outside(Shape),
    /// No variable has the name. It may be the name of a root or function.
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

    /// Opens the scope of a macro. Returns the value that [`Scopes::leave_macro`] needs to restore the enclosing
    /// scopes.
    pub(super) fn enter_macro(&mut self) -> usize {
        self.push();
        std::mem::replace(&mut self.macro_start, self.stack.len() - 1)
    }

    /// Closes the scope of a macro. `start` is the result of [`Scopes::enter_macro`].
    pub(super) fn leave_macro(&mut self, start: usize) {
        self.macro_start = start;
        self.pop();
    }

    pub(super) fn is_in_macro(&self) -> bool {
        self.macro_start > 0
    }

    /// Sets a variable in the innermost scope.
    pub(super) fn bind(&mut self, name: &'a str, variable: Variable) {
        self.stack.last_mut().expect("the template's own scope stays").insert(name, variable);
    }

    /// Returns the weight of a variable, or `None` if no variable has this name.
    pub(super) fn weight(&self, name: &str) -> Option<u64> {
        self.variable(name).map(|variable| variable.weight)
    }

    /// Returns the reference to the input whose value a variable has unchanged, if any.
    pub(super) fn read_reference(&self, name: &str) -> Option<&Reference> {
        self.variable(name).and_then(|variable| variable.read.as_ref())
    }

    /// Returns the innermost variable with a name, also if it is outside of the macro that is being visited.
    fn variable(&self, name: &str) -> Option<&Variable> {
        self.stack.iter().rev().find_map(|scope| scope.get(name))
    }

    /// Finds the innermost variable with a name, and returns its shape.
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

    /// Replaces the innermost scope by a saved one, and returns the replaced scope.
    pub(super) fn swap(&mut self, saved: ScopeVariables<'a>) -> ScopeVariables<'a> {
        std::mem::replace(self.stack.last_mut().expect("the template's own scope stays"), saved)
    }

    /// Replaces the innermost scope by the join of two scopes: itself, and the scope `other` that another branch left.
    /// `outer` returns the shape that a name has in a branch that did not set it.
    pub(super) fn join(&mut self, mut other: ScopeVariables<'a>, outer: impl Fn(&Self, &str) -> Shape) {
        let mut joined = ScopeVariables::new();
        let mut current = self.swap(ScopeVariables::new());
        let names: BTreeSet<&'a str> = current.keys().chain(other.keys()).copied().collect();
        for name in names {
            let left = current.remove(name);
            let right = other.remove(name);
            let weight = left.iter().chain(&right).map(|variable| variable.weight).max().unwrap_or(0);
            let reads = [&left, &right].map(|variable| variable.as_ref().and_then(|inner| inner.read.clone()));
            let shape = match (left, right) {
                (Some(left), Some(right)) => left.shape.join(right.shape),
                (Some(variable), None) | (None, Some(variable)) => variable.shape.join(outer(self, name)),
                (None, None) => continue,
            };
            let weight = weight.max(self.weight(name).unwrap_or(0));
            // The variable keeps its reference only if both branches left the value of the same input in it.
            let [read, other] = reads;
            joined.insert(name, Variable { shape, weight, read: read.filter(|read| Some(read) == other.as_ref()) });
        }
        self.swap(joined);
    }
}
