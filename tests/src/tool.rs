//! System programs that a test needs and the workspace does not build. `cargo xtask test` installs them. If one is
//! missing, the test reports this and is skipped. In CI (`STEMMA_REQUIRE_SHARED`) the test fails instead.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns whether a program is installed and works. The program works if it exits with status 0 when it runs with the
/// arguments. If it does not work, prints that the test is skipped.
///
/// # Panics
/// When the program does not work and `STEMMA_REQUIRE_SHARED` is set.
#[must_use]
#[allow(clippy::print_stderr, reason = "the reader of a test's output must see that it was skipped")]
pub fn is_available(program: &str, arguments: &[&str]) -> bool {
    let status_result =
        Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_working = status_result.is_ok_and(|status| status.success());
    assert!(is_working || std::env::var_os("STEMMA_REQUIRE_SHARED").is_none(), "{program} {arguments:?} does not work here");
    if !is_working {
        eprintln!("skipped: {program} {arguments:?} does not work here");
    }
    is_working
}

/// Returns the command line of `strace` that starts a program. The expressions select system calls, or make them fail.
/// The selected calls are written to the file `output`. `strace` runs as a detached process, so the started process is
/// the program itself.
#[must_use]
pub fn strace_command(output: &Path, expressions: &[&str]) -> Vec<OsString> {
    // `-D` detaches `strace`, `-f` follows threads and children, `-y` prints paths, and `-qq` hides messages of
    // `strace`.
    let mut command: Vec<OsString> = ["strace", "-D", "-f", "-y", "-qq", "-o"].map(OsString::from).into();
    command.push(output.into());
    command.extend(expressions.iter().flat_map(|expression| ["-e", expression]).map(OsString::from));
    command
}

/// Returns the command line that starts a program under a fake clock, or `None` if `faketime` is not installed. The
/// file contains the offset of the clock (`+3h`, `-2d`). It is read each time the program reads the clock. The
/// monotonic clock is not changed.
///
/// # Panics
/// When `faketime` is not installed and `STEMMA_REQUIRE_SHARED` is set, or its library is not where Debian puts it.
#[must_use]
pub fn faketime_command(offset_file: &Path) -> Option<Vec<OsString>> {
    // This check only prints the version. A start under the fake clock would fail if a killed process with the same id
    // had left files.
    if !is_available("faketime", &["--version"]) {
        return None;
    }
    remove_stale_clocks();
    let mut preload_setting = OsString::from("LD_PRELOAD=");
    preload_setting.push(faketime_library().expect("the package of faketime has its library where Debian puts it"));
    let mut timestamp_file = OsString::from("FAKETIME_TIMESTAMP_FILE=");
    timestamp_file.push(offset_file);
    let settings = ["FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1"].map(OsString::from);
    Some(["env".into(), preload_setting, timestamp_file].into_iter().chain(settings).collect())
}

/// Removes the shared memory files of killed processes that ran under a fake clock. Otherwise a new process with the
/// same id would not start.
fn remove_stale_clocks() {
    let paths = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.path());
    let stale_paths = paths.filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let process_id = name.strip_prefix("faketime_shm_").or_else(|| name.strip_prefix("sem.faketime_sem_"));
        process_id.is_some_and(|process_id| !Path::new("/proc").join(process_id).exists())
    });
    for path in stale_paths {
        // Another test may remove the file at the same time.
        let _result = std::fs::remove_file(path);
    }
}

/// Returns the path of the library of `faketime`. Its directory is named after the architecture of the machine.
fn faketime_library() -> Option<PathBuf> {
    let directories = std::fs::read_dir("/usr/lib").ok()?;
    let mut candidates = directories.flatten().map(|directory| directory.path().join("faketime/libfaketimeMT.so.1"));
    candidates.find(|library| library.exists())
}
