//! Counts what a test's program allocates, so that a test can hold how much work something is.
//!
//! A ratio of CPU times depends on what else the machine does, and a build without optimization shifts it. The number of allocations is
//! the same in each run, on each machine, and nearly the same with and without optimization. What a loop does without an allocation is
//! not seen: a test that holds such a loop counts its turns where it runs.
//!
//! A program that uses this crate has its allocator. The counts are of the whole process, so a program counts in one test at a time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

/// Returns how many times this process has allocated memory.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Returns how many times this thread has allocated memory.
pub fn allocations_of_thread() -> u64 {
    OF_THREAD.with(Cell::get)
}

/// Returns how many bytes this process holds.
pub fn held_bytes() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// Returns the most bytes that this process held since [`reset_peak`], or since it began.
pub fn peak_bytes() -> usize {
    PEAK.load(Ordering::Relaxed)
}

/// Begins to count the peak anew.
pub fn reset_peak() {
    PEAK.store(held_bytes(), Ordering::Relaxed);
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(taken: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    // A thread that ends allocates after its own values are gone.
    let _ = OF_THREAD.try_with(|count| count.set(count.get() + 1));
    let held = HELD.fetch_add(taken, Ordering::Relaxed) + taken;
    PEAK.fetch_max(held, Ordering::Relaxed);
}

#[expect(unsafe_code, reason = "an allocator is asked for raw memory; each call goes to the system's as it came")]
// SAFETY: each method passes its arguments to the system's allocator unchanged, and counts beside it without allocating.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        count(size);
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_what_is_allocated_and_freed() {
        let (before, of_thread) = (allocations(), allocations_of_thread());
        reset_peak();
        let held = held_bytes();
        let text = std::hint::black_box(vec![0_u8; 1 << 20]);
        assert!(allocations() > before && allocations_of_thread() > of_thread);
        assert!(held_bytes() >= held + (1 << 20));
        drop(text);
        assert!(peak_bytes() >= held + (1 << 20), "the peak is kept when memory is freed");
        let other = std::thread::spawn(|| std::hint::black_box(vec![0_u8; 64]).len());
        assert_eq!(other.join().expect("no panic"), 64);
    }
}
