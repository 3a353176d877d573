//! Shared values as CEL sees them, of late.
//!
//! Condition after condition and node after node reads the same look-up or the same large parameter. Each is looked through once for its
//! size, and copied once where a condition is evaluated that reads it: for all conditions, since one copy for each would be without bound.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cel::Value;
use stemma_core::input::SharedValue;

use super::value::{self, Size};

/// About how many bytes are kept. A value that is larger alone is kept until the next one comes.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// What an entry takes beside its value, about.
const ENTRY_BYTES: usize = 128;

static OF_LATE: Mutex<OfLate> = Mutex::new(OfLate { by_place: BTreeMap::new(), bytes: 0 });

/// By place in memory.
struct OfLate {
    by_place: BTreeMap<usize, Seen>,
    bytes: usize,
}

struct Seen {
    /// Nothing else can stand where a weak reference still points to.
    of: Weak<SharedValue>,
    size: Size,
    /// As CEL sees it, once it was asked for.
    value: Option<Value>,
}

/// The size of a shared value.
pub(super) fn size(shared: &Arc<SharedValue>) -> Size {
    if let Some(size) = look(shared, |seen| seen.size) {
        return size;
    }
    let size = Size::of(&shared.value());
    keep(shared, Seen { of: Arc::downgrade(shared), size, value: None });
    size
}

/// A shared value as CEL sees it.
pub(super) fn value(shared: &Arc<SharedValue>) -> Value {
    if let Some(value) = look(shared, |seen| seen.value.clone()).flatten() {
        return value;
    }
    let (size, value) = (size(shared), value::of(&shared.value()));
    keep(shared, Seen { of: Arc::downgrade(shared), size, value: Some(value.clone()) });
    value
}

fn look<T>(shared: &Arc<SharedValue>, read: impl FnOnce(&Seen) -> T) -> Option<T> {
    let of_late = OF_LATE.lock().unwrap_or_else(PoisonError::into_inner);
    of_late.by_place.get(&Arc::as_ptr(shared).addr()).map(read)
}

fn keep(shared: &Arc<SharedValue>, seen: Seen) {
    OF_LATE.lock().unwrap_or_else(PoisonError::into_inner).keep(Arc::as_ptr(shared).addr(), seen);
}

impl OfLate {
    fn keep(&mut self, place: usize, seen: Seen) {
        let bytes = seen.bytes();
        self.bytes -= self.by_place.remove(&place).map_or(0, |old| old.bytes());
        if self.bytes + bytes > MAX_BYTES {
            self.by_place.retain(|_, seen| seen.of.strong_count() > 0);
            self.bytes = self.by_place.values().map(Seen::bytes).sum();
        }
        if self.bytes + bytes > MAX_BYTES {
            self.by_place.clear();
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.by_place.insert(place, seen);
    }
}

impl Seen {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.value.as_ref().map_or(0, |_| self.size.memory())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(of: &Arc<SharedValue>) -> Seen {
        let size = Size::of(&of.value());
        Seen { of: Arc::downgrade(of), size, value: Some(value::of(&of.value())) }
    }

    #[test]
    fn no_more_is_kept_than_so_many_bytes_and_what_nobody_has_goes_first() {
        let mut of_late = OfLate { by_place: BTreeMap::new(), bytes: 0 };
        let text = || Arc::new(SharedValue::new(json!("x".repeat(1024 * 1024))));
        let kept: Vec<_> = (0..40).map(|_| text()).collect();
        for (place, of) in kept.iter().enumerate() {
            of_late.keep(place, seen(of));
        }
        for place in 0..1_000 {
            of_late.keep(1_000 + place, seen(&text()));
            assert!(of_late.bytes <= MAX_BYTES, "{}", of_late.bytes);
            assert_eq!(of_late.bytes, of_late.by_place.values().map(Seen::bytes).sum::<usize>());
        }
        assert!((0..40).all(|place| of_late.by_place.contains_key(&place)), "what somebody has stays");
        let many: Vec<_> = (0..100).map(|_| text()).collect();
        for (place, of) in many.iter().enumerate() {
            of_late.keep(5_000 + place, seen(of));
            assert!(of_late.bytes <= MAX_BYTES, "{}", of_late.bytes);
        }
    }
}
