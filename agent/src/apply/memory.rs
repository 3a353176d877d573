//! What appliers remember between the tasks of one process, such as a database that they have read.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Values that appliers remember in memory, at most one of each type.
#[derive(Default)]
pub struct ApplierMemory {
    values: RefCell<BTreeMap<TypeId, Rc<dyn Any>>>,
    /// The number of the present run of a task set.
    run: Cell<u64>,
}

impl ApplierMemory {
    /// Returns the value of a type, which is created when it is first needed.
    ///
    /// # Panics
    /// Never: a value is stored under its own type.
    pub fn get<T: Any + Default>(&self) -> Rc<T> {
        let value = self.values.borrow_mut().entry(TypeId::of::<T>()).or_insert_with(|| Rc::new(T::default())).clone();
        value.downcast().expect("the value is stored under its type")
    }

    /// Begins a run of a task set. What an applier may do once in a run, it may do again.
    pub fn begin_run(&self) {
        self.run.set(self.run.get() + 1);
    }

    /// Returns the number of the present run.
    #[must_use]
    pub fn run(&self) -> u64 {
        self.run.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_returns_same_value_of_type() {
        let memory = ApplierMemory::default();
        memory.get::<Cell<u8>>().set(3);
        assert_eq!((memory.get::<Cell<u8>>().get(), memory.get::<Cell<u16>>().get()), (3, 0));
        memory.begin_run();
        assert_eq!(memory.run(), 1);
    }
}
