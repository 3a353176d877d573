//! Explains why an existing program cannot be run. The error of the system only states that a file is missing or has a
//! wrong format, and does not name the file.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::io::Errno;

use crate::host::HostError;

/// Number of bytes that are read from the beginning of a program. The kernel searches only these bytes for the name of
/// the interpreter.
const MAX_HEAD_BYTES: u64 = 256;

/// The first bytes of a binary program.
const ELF_MAGIC: &[u8] = b"\x7fELF";

/// Advice for a script without an interpreter line.
const SHEBANG_ADVICE: &str = "begin it with the line of its interpreter, as #!/bin/sh";

/// Returns the error for a program that could not be run. If the absolute path `program` exists, the system's text for
/// "not found" or a wrong format is replaced by one that names the missing part and a remedy.
pub(super) fn exec_error(program: &str, error: io::Error) -> HostError {
    let is_sentence = error.kind() == io::ErrorKind::NotFound && program.contains(' ');
    let sentence_advice =
        || is_sentence.then(|| format!("{error}: each item of a command is one argument, so write its words as separate items"));
    let reason = read_head(program).and_then(|head| failure_reason(&head, &error)).or_else(sentence_advice);
    HostError::io("run", program)(match reason {
        Some(reason) => io::Error::new(error.kind(), reason),
        None => error,
    })
}

/// Returns the error with which the system cannot run the program at this path, or `None` if nothing speaks against it.
/// systemd reports such an error only as an exit status, with which a program can also end by itself.
pub(super) fn find_exec_error(program: &str) -> Option<io::Error> {
    let metadata = match fs::metadata(program) {
        Ok(metadata) => metadata,
        Err(error) => return Some(error),
    };
    if !is_executable(&metadata) {
        return Some(Errno::ACCESS.into());
    }
    let head = read_head(program)?;
    match interpreter(&head) {
        Some(interpreter) => (!Path::new(&interpreter).exists()).then(|| Errno::NOENT.into()),
        None => (!head.starts_with(ELF_MAGIC)).then(|| Errno::NOEXEC.into()),
    }
}

/// Returns whether a file with this metadata can be executed.
pub(super) fn is_executable(metadata: &Metadata) -> bool {
    metadata.is_file() && metadata.permissions().mode() & 0o111 != 0
}

/// Returns the first [`MAX_HEAD_BYTES`] of a program. Returns `None` if `program` is not an absolute path, is not a
/// file, or cannot be read.
fn read_head(program: &str) -> Option<Vec<u8>> {
    let path = Path::new(program);
    if !path.is_absolute() || !path.is_file() {
        return None;
    }
    let mut head = Vec::new();
    File::open(path).ok()?.take(MAX_HEAD_BYTES).read_to_end(&mut head).ok()?;
    Some(head)
}

/// Returns why a program with these first bytes could not be run. Returns `None` for an error of the system that needs
/// no further explanation, such as "Permission denied".
fn failure_reason(head: &[u8], error: &io::Error) -> Option<String> {
    match Errno::from_io_error(error)? {
        Errno::NOENT => Some(missing_message(head)),
        Errno::NOEXEC => Some(not_executable_message(head)),
        _ => None,
    }
}

/// Returns a message for an existing program that cannot start because another file is missing: the interpreter of a
/// script, the loader of a binary, or what the interpreter needs. `head` contains the first bytes of the program.
fn missing_message(head: &[u8]) -> String {
    let Some(name) = interpreter(head) else {
        return "it exists, and the loader that it was built for is missing: install a build for this system".to_owned();
    };
    if Path::new(&name).exists() {
        return format!("it exists, and so does its interpreter {name:?}, which cannot start: install that again");
    }
    let line_end = if name.ends_with('\r') { "; the line ends with a carriage return: save the file without any" } else { "" };
    format!(
        "it exists, and the interpreter {name:?} that its first line names is missing: install that, or name another one{line_end}"
    )
}

/// Returns the reason why the kernel does not accept a file as a program, from the first bytes of the file.
fn not_executable_message(head: &[u8]) -> String {
    match head {
        [] => format!("it is empty: {SHEBANG_ADVICE}"),
        [0xef, 0xbb, 0xbf, ..] => "a byte order mark is before its first line: save the file without it".to_owned(),
        _ if head.starts_with(ELF_MAGIC) => {
            "it is a program of another kind of machine, or a damaged one: install a build for this one".to_owned()
        }
        _ => format!("its first line names no interpreter: {SHEBANG_ADVICE}"),
    }
}

/// Returns the path of the interpreter from the first line of a script (`#!PATH`). Returns `None` for any other file.
fn interpreter(head: &[u8]) -> Option<String> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = line.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty())?;
    Some(String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each case contains the beginning of a program, the system's error, and a part of the message.
    #[test]
    fn y09_exec_error_names_missing_part_with_advice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        let program = path.display().to_string();
        for (head, errno, expected) in [
            (&b"#!/no/such -x\n"[..], Errno::NOENT, "the interpreter \"/no/such\" that its first line names is missing: install"),
            (
                b"#! /no/such\r\n",
                Errno::NOENT,
                "\"/no/such\\r\" that its first line names is missing: install that, or name another one; the line ends with a carriage return",
            ),
            (b"#!/proc/self/status\n", Errno::NOENT, "and so does its interpreter \"/proc/self/status\", which cannot start"),
            (b"\x7fELF\x02", Errno::NOENT, "the loader that it was built for is missing: install a build"),
            (b"echo\n", Errno::NOEXEC, "its first line names no interpreter: begin it with the line of its interpreter"),
            (b"#!\n", Errno::NOEXEC, "its first line names no interpreter"),
            (b"", Errno::NOEXEC, "it is empty: begin it"),
            (b"\xef\xbb\xbf#!/bin/sh\n", Errno::NOEXEC, "a byte order mark is before its first line"),
            (b"\x7fELF\x02", Errno::NOEXEC, "a program of another kind of machine"),
            (b"\x7fELF\x02", Errno::NOEXEC, "or a damaged one: install a build for this one"),
            (b"#!/bin/sh\n", Errno::ACCESS, "Permission denied (os error 13)"),
        ] {
            fs::write(&path, head).unwrap();
            let message = exec_error(&program, errno.into()).sentence();
            assert!(message.starts_with(&format!("cannot run {program}: ")) && message.contains(expected), "{message}");
        }
        let message = exec_error("true", Errno::NOENT.into()).sentence();
        assert_eq!(message, "cannot run true: No such file or directory (os error 2)", "it cannot be searched for in `PATH`");
        let message = exec_error("nginx -t", Errno::NOENT.into()).sentence();
        assert!(message.ends_with("each item of a command is one argument, so write its words as separate items"), "{message}");
    }

    #[test]
    fn find_exec_error_returns_cause_of_status() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        let program = path.display().to_string();
        let kind = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            find_exec_error(&program).map(|error| error.raw_os_error().unwrap())
        };
        assert_eq!(find_exec_error(&program).unwrap().kind(), io::ErrorKind::NotFound);
        assert_eq!(kind("#!/bin/sh\n", 0o644), Some(libc::EACCES));
        assert_eq!(kind("#!/no/such/interpreter\n", 0o755), Some(libc::ENOENT));
        assert_eq!(kind("echo\n", 0o755), Some(libc::ENOEXEC));
        // Nothing speaks against this script, so the status is its own.
        assert_eq!(kind("#!/bin/sh\nexit 203\n", 0o755), None);
    }
}
