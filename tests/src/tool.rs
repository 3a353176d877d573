//! Programs of the system that a test needs and the workspace does not build. `cargo xtask test` installs them; where one is absent a
//! test says so and is skipped, but in CI (`STEMMA_REQUIRE_SHARED`) its absence is a failure.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

/// Whether a program is there and works: that `program arguments` ends well.
///
/// # Panics
/// When it does not and `STEMMA_REQUIRE_SHARED` is set.
#[must_use]
#[allow(clippy::print_stderr, reason = "the reader of a test's output must see that it was skipped")]
pub fn is_there(program: &str, arguments: &[&str]) -> bool {
    let tried =
        Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = tried.is_ok_and(|status| status.success());
    assert!(
        is_there || std::env::var_os("STEMMA_REQUIRE_SHARED").is_none(),
        "{program} {arguments:?} does not work here"
    );
    if !is_there {
        eprintln!("skipped: {program} {arguments:?} does not work here");
    }
    is_there
}

/// The words of a start under `strace`, before the program's own: what the expressions name is written to a file, or fails as they say.
/// The tracer stands aside, so that what is started is the program itself.
#[must_use]
pub fn traced(to: &Path, expressions: &[&str]) -> Vec<OsString> {
    let mut words: Vec<OsString> = ["strace", "-D", "-f", "-y", "-qq", "-o"].map(OsString::from).into();
    words.push(to.into());
    words.extend(expressions.iter().flat_map(|expression| ["-e", expression]).map(OsString::from));
    words
}
