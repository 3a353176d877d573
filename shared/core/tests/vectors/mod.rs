//! Reads the shared test vectors, which are next to the repository. If they are missing, a test reports that and
//! passes, unless `STEMMA_REQUIRE_SHARED` is set.

use std::path::PathBuf;

use serde::de::DeserializeOwned;

/// Reads and parses a file of the shared material, for example `vectors/labels/label_merge.json`. Returns `None` if the
/// file is missing.
pub(crate) fn read_json<T: DeserializeOwned>(path: &str) -> Option<T> {
    let text = read_text(path)?;
    Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}")))
}

/// Reads a file of the shared material as text. If the file is missing, prints that the test is skipped and returns
/// `None`. With `STEMMA_REQUIRE_SHARED` a missing file is a panic.
#[allow(clippy::print_stderr, reason = "the reader of a test's output must see that it was skipped")]
#[allow(clippy::disallowed_methods, reason = "the vectors are files; core itself reads none")]
pub(crate) fn read_text(path: &str) -> Option<String> {
    let file = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")).join(path);
    match std::fs::read_to_string(&file) {
        Ok(text) => Some(text),
        Err(error) => {
            assert!(std::env::var_os("STEMMA_REQUIRE_SHARED").is_none(), "{}: {error}", file.display());
            eprintln!("skipped: {} is not there", file.display());
            None
        }
    }
}
