//! Texts that the records of many nodes have, each held once: what a group says to its nodes, and why a task is left out on each of them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// So few are never looked through for those that nobody has any more.
const FEW: usize = 1024;

/// The texts in use. A clone is the same collection.
#[derive(Clone, Debug, Default)]
pub(in crate::cache) struct Texts(Arc<Mutex<HashSet<Arc<str>>>>);

impl Texts {
    /// Puts in the place of each text an equal one that others have, or remembers it for those that come.
    pub(super) fn share<'a>(&self, texts: impl Iterator<Item = &'a mut Arc<str>>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for text in texts {
            if let Some(same) = known.get(&**text) {
                *text = Arc::clone(same);
                continue;
            }
            if known.len() >= FEW && known.len().is_power_of_two() {
                known.retain(|text| Arc::strong_count(text) > 1);
            }
            known.insert(Arc::clone(text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x03_f07_a_text_that_many_have_is_held_once_and_one_that_nobody_has_is_forgotten() {
        let texts = Texts::default();
        let clone = texts.clone();
        let mut one: Arc<str> = "condition is false: labels.tier == 'gold'".into();
        let mut other: Arc<str> = one.to_string().into();
        texts.share([&mut one].into_iter());
        clone.share([&mut other].into_iter());
        assert!(Arc::ptr_eq(&one, &other));
        for number in 0..100_000_u32 {
            texts.share([&mut Arc::from(number.to_string())].into_iter());
        }
        let known = texts.0.lock().unwrap();
        assert!(known.len() <= 2 * FEW && known.contains(&*one), "{}", known.len());
    }
}
