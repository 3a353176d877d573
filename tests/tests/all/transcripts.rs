//! Runs every operator script in `tests/scripts`.

use anyhow::Result;
use stemma_tests::transcript;

/// Each file in `tests/scripts` contains commands and their expected output. Runs the commands, and compares their
/// output with the file.
#[test]
fn transcripts_match_output() -> Result<()> {
    let mut scripts: Vec<_> =
        std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts"))?.collect::<std::io::Result<_>>()?;
    scripts.sort_by_key(std::fs::DirEntry::file_name);
    assert!(!scripts.is_empty());
    let failures: Vec<String> =
        scripts.iter().filter_map(|script| transcript::check(&script.path()).err()).map(|error| format!("{error:#}")).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    Ok(())
}
