//! Which variables there are, as minijinja scopes them.
//!
//! `for`, `with` and macros make a scope; `if` makes none, so what is set in one branch may or may not be
//! there afterwards. A loop's scope is emptied before each turn. Within a macro only its own scopes are
//! seen from here; what lies outside is the caller's to decide (`Walker::enclosed`).

use std::collections::{BTreeMap, BTreeSet};

use stemma_core::input::Reference;

use crate::shape::Shape;

/// A variable: what it may be, what it weighs ([`super::growth`]), and of what read it is the plain outcome.
#[derive(Clone)]
pub(super) struct Variable {
    pub(super) shape: Shape,
    pub(super) weight: u64,
    pub(super) read: Option<Reference>,
}

type Scope<'a> = BTreeMap<&'a str, Variable>;

impl Variable {
    /// Data of some weight.
    pub(super) fn plain(weight: u64) -> Self {
        Self::of(Shape::Plain, weight)
    }

    /// What is no plain outcome of a read.
    pub(super) fn of(shape: Shape, weight: u64) -> Self {
        Self { shape, weight, read: None }
    }
}

/// The scopes, the innermost last; the first is the template's own.
pub(super) struct Scopes<'a> {
    stack: Vec<Scope<'a>>,
    /// The first scope of the macro that is being walked.
    floor: usize,
}

/// What a name is.
pub(super) enum Found {
    /// A variable that is seen here.
    Here(Shape),
    /// A variable outside of the macro that is being walked.
    Outside(Shape),
    /// No variable.
    Nowhere,
}

impl Default for Scopes<'_> {
    fn default() -> Self {
        Self { stack: vec![Scope::new()], floor: 0 }
    }
}

impl<'a> Scopes<'a> {
    pub(super) fn push(&mut self) {
        self.stack.push(Scope::new());
    }

    pub(super) fn pop(&mut self) {
        self.stack.pop();
    }

    /// Enters a macro; what it gives goes to [`Scopes::leave_macro`].
    pub(super) fn enter_macro(&mut self) -> usize {
        self.push();
        std::mem::replace(&mut self.floor, self.stack.len() - 1)
    }

    pub(super) fn leave_macro(&mut self, floor: usize) {
        self.floor = floor;
        self.pop();
    }

    pub(super) fn is_in_macro(&self) -> bool {
        self.floor > 0
    }

    pub(super) fn bind(&mut self, name: &'a str, variable: Variable) {
        self.stack.last_mut().expect("the template's own scope stays").insert(name, variable);
    }

    /// What a variable weighs; `None` for what is none.
    pub(super) fn weight(&self, name: &str) -> Option<u64> {
        self.variable(name).map(|variable| variable.weight)
    }

    /// What a variable holds that was read and nothing else.
    pub(super) fn read(&self, name: &str) -> Option<&Reference> {
        self.variable(name).and_then(|variable| variable.read.as_ref())
    }

    fn variable(&self, name: &str) -> Option<&Variable> {
        self.stack.iter().rev().find_map(|scope| scope.get(name))
    }

    pub(super) fn find(&self, name: &str) -> Found {
        for (depth, scope) in self.stack.iter().enumerate().rev() {
            if let Some(variable) = scope.get(name) {
                let shape = variable.shape.clone();
                return if depth < self.floor { Found::Outside(shape) } else { Found::Here(shape) };
            }
        }
        Found::Nowhere
    }

    /// The innermost scope, to come back to before another branch.
    pub(super) fn save(&self) -> Scope<'a> {
        self.stack.last().cloned().unwrap_or_default()
    }

    /// Puts a saved scope back and gives the present one.
    pub(super) fn swap(&mut self, saved: Scope<'a>) -> Scope<'a> {
        std::mem::replace(self.stack.last_mut().expect("the template's own scope stays"), saved)
    }

    /// The scope after two branches, of which `other` is one and the present scope the second. `outer` says
    /// what a name is that one of them did not set.
    pub(super) fn join(&mut self, mut other: Scope<'a>, outer: impl Fn(&Self, &str) -> Shape) {
        let mut joined = Scope::new();
        let mut present = self.swap(Scope::new());
        let names: BTreeSet<&'a str> = present.keys().chain(other.keys()).copied().collect();
        for name in names {
            let left = present.remove(name);
            let right = other.remove(name);
            let weight = left.iter().chain(&right).map(|variable| variable.weight).max().unwrap_or(0);
            let reads = [&left, &right].map(|variable| variable.as_ref().and_then(|one| one.read.clone()));
            let shape = match (left, right) {
                (Some(left), Some(right)) => left.shape.join(right.shape),
                (Some(one), None) | (None, Some(one)) => one.shape.join(outer(self, name)),
                (None, None) => continue,
            };
            let weight = weight.max(self.weight(name).unwrap_or(0));
            let [read, other] = reads;
            joined.insert(name, Variable { shape, weight, read: read.filter(|read| Some(read) == other.as_ref()) });
        }
        self.swap(joined);
    }
}
