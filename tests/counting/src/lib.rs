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

/// Number of allocations of this process.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Number of bytes that are allocated now.
static ALLOCATED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Highest value of [`ALLOCATED_BYTES`] since the last reset.
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static THREAD_ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the number of allocations of this process so far.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Returns the number of allocations of the calling thread so far.
pub fn thread_allocations() -> u64 {
    THREAD_ALLOCATIONS.with(Cell::get)
}

/// Returns the number of bytes that this process has allocated and not freed.
pub fn allocated_bytes() -> usize {
    ALLOCATED_BYTES.load(Ordering::Relaxed)
}

/// Returns the highest number of allocated bytes since [`reset_peak`], or since the start of the process.
pub fn peak_bytes() -> usize {
    PEAK_BYTES.load(Ordering::Relaxed)
}

/// Sets the peak to the number of bytes that are allocated now.
pub fn reset_peak() {
    PEAK_BYTES.store(allocated_bytes(), Ordering::Relaxed);
}

struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Counts one allocation of this size, for the process and for its thread.
fn count_allocation(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    // A thread that ends may allocate after its thread-local values are destroyed.
    let _ = THREAD_ALLOCATIONS.try_with(|thread_count| thread_count.set(thread_count.get() + 1));
    let allocated = ALLOCATED_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK_BYTES.fetch_max(allocated, Ordering::Relaxed);
}

#[expect(unsafe_code, reason = "`GlobalAlloc` is an unsafe trait; each call goes unchanged to the system's allocator")]
// SAFETY: each method passes its arguments to the system's allocator unchanged, and counts without allocating.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size());
        // SAFETY: the caller upholds `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALLOCATED_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds `dealloc`'s contract.
        unsafe { System.dealloc(memory, layout) }
    }

    /// Counts a reallocation as a release of the old bytes and an allocation of the new size.
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATED_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        count_allocation(size);
        // SAFETY: the caller upholds `realloc`'s contract.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_allocations() {
        let (count_before, thread_count_before) = (allocations(), thread_allocations());
        reset_peak();
        let bytes_before = allocated_bytes();
        let buffer = std::hint::black_box(vec![0_u8; 1 << 20]);
        assert!(allocations() > count_before && thread_allocations() > thread_count_before);
        assert!(allocated_bytes() >= bytes_before + (1 << 20));
        drop(buffer);
        assert!(peak_bytes() >= bytes_before + (1 << 20), "the peak remains when memory is freed");
        // Allocations of another thread are counted without a panic.
        let thread_handle = std::thread::spawn(|| std::hint::black_box(vec![0_u8; 64]).len());
        assert_eq!(thread_handle.join().expect("no panic"), 64);
    }
}
