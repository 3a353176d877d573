//! Material from the directory next to the checkout. It does not exist in a plain clone. A test that needs it then
//! reports this and is skipped. In CI (`STEMMA_REQUIRE_SHARED`) the test fails instead.

use std::path::PathBuf;

/// Returns the path of a file of this material. Returns `None`, with a note on standard error, if it does not exist.
///
/// # Panics
/// When it does not exist and `STEMMA_REQUIRE_SHARED` is set.
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
