//! Programs of the system that a test needs and the workspace does not build. `cargo xtask test` installs them; where one is absent a
//! test says so and is skipped, but in CI (`STEMMA_REQUIRE_SHARED`) its absence is a failure.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
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

/// The words of a start under a clock that a file sets, before the program's own: the file says by how much it is ahead (`+3h`) or
/// behind (`-2d`), and is read at each look at the time. What measures durations alone goes on as it did. `None`: `faketime` is not there.
#[must_use]
pub fn clocked(by: &Path) -> Option<Vec<OsString>> {
    // Its version alone: a start under its clock may find what a killed process of the same number has left.
    if !is_there("faketime", &["--version"]) {
        return None;
    }
    forget_ended_clocks();
    let mut preload = OsString::from("LD_PRELOAD=");
    preload.push(library().expect("the package of faketime has its library where Debian puts it"));
    let mut file = OsString::from("FAKETIME_TIMESTAMP_FILE=");
    file.push(by);
    let settings = ["FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1"].map(OsString::from);
    Some(["env".into(), preload, file].into_iter().chain(settings).collect())
}

/// Removes what processes that were killed under such a clock have left. A process that got the number of one of them would not start.
fn forget_ended_clocks() {
    let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.path());
    let ended = names.filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let process = name.strip_prefix("faketime_shm_").or_else(|| name.strip_prefix("sem.faketime_sem_"));
        process.is_some_and(|process| !Path::new("/proc").join(process).exists())
    });
    for path in ended {
        // Another test may do the same.
        let _removed = std::fs::remove_file(path);
    }
}

/// Where the package has its library: below a directory that is named by the machine's architecture.
fn library() -> Option<PathBuf> {
    let directories = std::fs::read_dir("/usr/lib").ok()?;
    let mut candidates = directories.flatten().map(|directory| directory.path().join("faketime/libfaketimeMT.so.1"));
    candidates.find(|library| library.exists())
}
