//! A cache of shared values in their CEL form.
//!
//! Many conditions of many nodes read the same look-up or the same large parameter. Each such value is measured once,
//! and converted once when a condition that reads it is evaluated. All conditions share the cache: the
//! memory for one copy per condition would have no limit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cel::Value;
use stemma_core::input::SharedValue;

use super::value::{self, ValueSize};

/// Approximate maximum size of the cache, in bytes. A single value that is larger is stored too, until the next value
/// is inserted.
const MAX_CACHE_BYTES: usize = 64 * 1024 * 1024;

/// Approximate memory of an entry without its value, in bytes.
const ENTRY_OVERHEAD_BYTES: usize = 128;

/// The cache of the process. All conditions use it, so conditions that read the same value need not convert it again.
static VALUE_CACHE: Mutex<ValueCache> = Mutex::new(ValueCache { by_address: BTreeMap::new(), bytes: 0 });

/// A cache of the sizes and CEL forms of shared values, by the address of the value. A shared value is an input that is
/// stored once for all tasks that read it.
struct ValueCache {
    by_address: BTreeMap<usize, CachedValue>,
    /// Approximate memory of all entries, in bytes.
    bytes: usize,
}

/// A shared value in the cache.
struct CachedValue {
    /// A weak reference to the shared value. While it exists, no other value can have the same address.
    source: Weak<SharedValue>,
    size: ValueSize,
    /// The CEL form. `None` until a condition needs it.
    value: Option<Value>,
}

/// Returns the size of a shared value. If the cache lacks the value, measures it and stores the size in the cache.
pub(super) fn cached_size(shared: &Arc<SharedValue>) -> ValueSize {
    if let Some(size) = read_cached(shared, |entry| entry.size) {
        return size;
    }
    let size = ValueSize::from_json(&shared.value());
    insert_cached(shared, CachedValue { source: Arc::downgrade(shared), size, value: None });
    size
}

/// Returns a shared value in its CEL form. If the cache lacks this form, converts the value and caches the form.
pub(super) fn cached_value(shared: &Arc<SharedValue>) -> Value {
    if let Some(value) = read_cached(shared, |entry| entry.value.clone()).flatten() {
        return value;
    }
    let (size, value) = (cached_size(shared), value::to_cel(&shared.value()));
    insert_cached(shared, CachedValue { source: Arc::downgrade(shared), size, value: Some(value.clone()) });
    value
}

/// Returns the result of `read` for the entry of a shared value, or `None` if the cache has no entry for the value.
fn read_cached<T>(shared: &Arc<SharedValue>, read: impl FnOnce(&CachedValue) -> T) -> Option<T> {
    let cache = VALUE_CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    cache.by_address.get(&Arc::as_ptr(shared).addr()).map(read)
}

/// Adds or replaces the entry of a shared value.
fn insert_cached(shared: &Arc<SharedValue>, entry: CachedValue) {
    VALUE_CACHE.lock().unwrap_or_else(PoisonError::into_inner).insert(Arc::as_ptr(shared).addr(), entry);
}

impl ValueCache {
    /// Adds or replaces an entry. If the cache is full, removes the entries of values that no longer exist. If the
    /// cache is still full after that, removes all entries.
    fn insert(&mut self, address: usize, entry: CachedValue) {
        let bytes = entry.bytes();
        self.bytes -= self.by_address.remove(&address).map_or(0, |old_entry| old_entry.bytes());
        if self.bytes + bytes > MAX_CACHE_BYTES {
            self.by_address.retain(|_, entry| entry.source.strong_count() > 0);
            self.bytes = self.by_address.values().map(CachedValue::bytes).sum();
        }
        if self.bytes + bytes > MAX_CACHE_BYTES {
            self.by_address.clear();
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.by_address.insert(address, entry);
    }
}

impl CachedValue {
    /// Returns the approximate memory of the entry, in bytes. A value that is not converted yet counts as 0.
    fn bytes(&self) -> usize {
        ENTRY_OVERHEAD_BYTES + self.value.as_ref().map_or(0, |_| self.size.memory_bytes())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn new_entry(shared: &Arc<SharedValue>) -> CachedValue {
        let size = ValueSize::from_json(&shared.value());
        CachedValue { source: Arc::downgrade(shared), size, value: Some(value::to_cel(&shared.value())) }
    }

    #[test]
    fn value_cache_evicts_unreferenced_first_when_full() {
        let mut cache = ValueCache { by_address: BTreeMap::new(), bytes: 0 };
        let new_value = || Arc::new(SharedValue::new(json!("x".repeat(1024 * 1024))));
        let referenced_values: Vec<_> = (0..40).map(|_| new_value()).collect();
        for (address, shared) in referenced_values.iter().enumerate() {
            cache.insert(address, new_entry(shared));
        }
        for address in 0..1_000 {
            cache.insert(1_000 + address, new_entry(&new_value()));
            assert!(cache.bytes <= MAX_CACHE_BYTES, "{}", cache.bytes);
            assert_eq!(cache.bytes, cache.by_address.values().map(CachedValue::bytes).sum::<usize>());
        }
        assert!((0..40).all(|key| cache.by_address.contains_key(&key)), "values that are still referenced stay in the cache");
        let more_values: Vec<_> = (0..100).map(|_| new_value()).collect();
        for (address, shared) in more_values.iter().enumerate() {
            cache.insert(5_000 + address, new_entry(shared));
            assert!(cache.bytes <= MAX_CACHE_BYTES, "{}", cache.bytes);
        }
    }
}
