//! The material given beside the checkout. Absent in a plain clone: then a test that needs it says so and is
//! skipped, but in CI (`STEMMA_REQUIRE_SHARED`) its absence is a failure.

use std::path::PathBuf;

/// The path of given material, or `None` (said on standard error) where it is absent.
///
/// # Panics
/// When it is absent and `STEMMA_REQUIRE_SHARED` is set.
#[must_use]
#[allow(clippy::print_stderr)] // The reader of a test's output must see that it was skipped.
pub fn path(relative: &str) -> Option<PathBuf> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared")).join(relative);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("STEMMA_REQUIRE_SHARED").is_none(), "{} is absent", path.display());
    eprintln!("skipped: {} is absent", path.display());
    None
}
