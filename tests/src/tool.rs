//! System programs that a test needs and the workspace does not build. `cargo xtask test` installs them. If one is
//! missing, the test reports this and is skipped. In CI (`STEMMA_REQUIRE_SHARED`) the test fails instead.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns whether a program is installed and works, that is, whether `program arguments` exits with status 0.
///
/// # Panics
/// When it does not and `STEMMA_REQUIRE_SHARED` is set.
#[must_use]
#[allow(clippy::print_stderr, reason = "the reader of a test's output must see that it was skipped")]
pub fn is_available(program: &str, arguments: &[&str]) -> bool {
    let result = Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = result.is_ok_and(|status| status.success());
    assert!(is_there || std::env::var_os("STEMMA_REQUIRE_SHARED").is_none(), "{program} {arguments:?} does not work here");
    if !is_there {
        eprintln!("skipped: {program} {arguments:?} does not work here");
    }
    is_there
}

/// Returns the command line that starts a program under `strace`. System calls that the expressions select are written
/// to a file, or fail as an expression injects it. The tracer runs as a detached process, so the started process is the
/// program itself.
#[must_use]
pub fn strace_command(output: &Path, expressions: &[&str]) -> Vec<OsString> {
    let mut command: Vec<OsString> = ["strace", "-D", "-f", "-y", "-qq", "-o"].map(OsString::from).into();
    command.push(output.into());
    command.extend(expressions.iter().flat_map(|expression| ["-e", expression]).map(OsString::from));
    command
}

/// Returns the command line that starts a program under a fake clock, or `None` if `faketime` is not installed. The
/// file contains the offset of the clock (`+3h`, `-2d`), and is read each time the program reads the clock. The
/// monotonic clock is not changed.
#[must_use]
pub fn faketime_command(offset_file: &Path) -> Option<Vec<OsString>> {
    // Only the version is printed: a start under the fake clock fails if a killed process with the same id has left its
    // files.
    if !is_available("faketime", &["--version"]) {
        return None;
    }
    remove_stale_clocks();
    let mut preload = OsString::from("LD_PRELOAD=");
    preload.push(faketime_library().expect("the package of faketime has its library where Debian puts it"));
    let mut file = OsString::from("FAKETIME_TIMESTAMP_FILE=");
    file.push(offset_file);
    let settings = ["FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1"].map(OsString::from);
    Some(["env".into(), preload, file].into_iter().chain(settings).collect())
}

/// Removes files of killed processes that ran under a fake clock. Otherwise a process that gets the same id would not
/// start.
fn remove_stale_clocks() {
    let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.path());
    let stale = names.filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let process = name.strip_prefix("faketime_shm_").or_else(|| name.strip_prefix("sem.faketime_sem_"));
        process.is_some_and(|process| !Path::new("/proc").join(process).exists())
    });
    for path in stale {
        // Another test may remove it at the same time.
        let _removed = std::fs::remove_file(path);
    }
}

/// Returns the path of the package's library, which is below a directory named after the machine's architecture.
fn faketime_library() -> Option<PathBuf> {
    let directories = std::fs::read_dir("/usr/lib").ok()?;
    let mut candidates = directories.flatten().map(|directory| directory.path().join("faketime/libfaketimeMT.so.1"));
    candidates.find(|library| library.exists())
}
