//! Counts the allocations of a test program, so that a test can limit how much work an operation does.
//!
//! A ratio of CPU times depends on what else runs on the machine, and differs in a build without optimization. The
//! number of allocations is the same in each run, on each machine, and nearly the same with and without optimization. A
//! loop that does not allocate is not seen. A test of such a loop counts the iterations in the loop.
//!
//! A program that uses this crate gets its allocator. The counts cover the whole process, so only one test at a time
//! may count.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static THREAD_ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Returns how many times this process has allocated memory.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Returns how many times this thread has allocated memory.
pub fn thread_allocations() -> u64 {
    THREAD_ALLOCATIONS.with(Cell::get)
}

/// Returns how many bytes this process has allocated and not freed.
pub fn held_bytes() -> usize {
    HELD_BYTES.load(Ordering::Relaxed)
}

/// Returns the highest number of bytes that this process held since [`reset_peak`], or since its start.
pub fn peak_bytes() -> usize {
    PEAK_BYTES.load(Ordering::Relaxed)
}

/// Restarts the peak count at the bytes held now.
pub fn reset_peak() {
    PEAK_BYTES.store(held_bytes(), Ordering::Relaxed);
}

struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn count(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    // A thread that ends still allocates after its thread-local values are gone.
    let _ = THREAD_ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    let held = HELD_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK_BYTES.fetch_max(held, Ordering::Relaxed);
}

#[expect(unsafe_code, reason = "an allocator is asked for raw memory; each call goes to the system's as it came")]
// SAFETY: each method passes its arguments to the system's allocator unchanged, and counts without allocating.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds `dealloc`'s contract.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        HELD_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        count(size);
        // SAFETY: the caller upholds `realloc`'s contract.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_allocations() {
        let (before, of_thread) = (allocations(), thread_allocations());
        reset_peak();
        let held = held_bytes();
        let text = std::hint::black_box(vec![0_u8; 1 << 20]);
        assert!(allocations() > before && thread_allocations() > of_thread);
        assert!(held_bytes() >= held + (1 << 20));
        drop(text);
        assert!(peak_bytes() >= held + (1 << 20), "the peak is kept when memory is freed");
        let other = std::thread::spawn(|| std::hint::black_box(vec![0_u8; 64]).len());
        assert_eq!(other.join().expect("no panic"), 64);
    }
}
