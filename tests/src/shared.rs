//! Shared test material from the directory next to the checkout. A plain clone does not have that directory. A test
//! that needs the material then prints that it is skipped. In CI (`STEMMA_REQUIRE_SHARED`) the test fails instead.

use std::path::PathBuf;

/// Returns the path of a file in the shared material next to the checkout. If the file does not exist, prints that the
/// test is skipped and returns `None`.
///
/// # Panics
/// When the file does not exist and `STEMMA_REQUIRE_SHARED` is set.
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
