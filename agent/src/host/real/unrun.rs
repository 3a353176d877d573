//! Why a program that is there cannot be run: the system says that something is missing, and not what.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use rustix::io::Errno;

use crate::host::HostError;

/// How much of a program is read: the kernel looks no further for the name of its interpreter.
const HEAD: u64 = 256;

/// What every script may begin with.
const BEGIN: &str = "begin it with the line of its interpreter, as #!/bin/sh";

/// That a program could not be run. Where it is there, what it lacks and what to do are said in the place of the system's words.
pub(super) fn unrun(program: &str, error: io::Error) -> HostError {
    let why = head(program).and_then(|head| why(&head, &error));
    HostError::io("run", program)(match why {
        Some(why) => io::Error::new(error.kind(), why),
        None => error,
    })
}

/// The beginning of a program, where that is a file and can be read.
fn head(program: &str) -> Option<Vec<u8>> {
    let path = Path::new(program);
    if !path.is_absolute() || !path.is_file() {
        return None;
    }
    let mut head = Vec::new();
    File::open(path).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
    Some(head)
}

fn why(head: &[u8], error: &io::Error) -> Option<String> {
    match Errno::from_io_error(error)? {
        Errno::NOENT => Some(missing(head)),
        Errno::NOEXEC => Some(no_program(head)),
        _ => None,
    }
}

/// What is not there of a program that is.
fn missing(head: &[u8]) -> String {
    let Some(name) = interpreter(head) else {
        return "it is there, and the loader that it was built for is not: install a build for this system".to_owned();
    };
    if Path::new(&name).exists() {
        return format!("it is there, and so is its interpreter {name:?}, which cannot start: install that again");
    }
    let line_end =
        if name.ends_with('\r') { "; the line ends with a carriage return: save the file without any" } else { "" };
    format!(
        "it is there, and the interpreter {name:?} that its first line names is not: install that, or name another one{line_end}"
    )
}

/// Why the kernel takes a file for no program.
fn no_program(head: &[u8]) -> String {
    match head {
        [] => format!("it is empty: {BEGIN}"),
        [0xef, 0xbb, 0xbf, ..] => "a byte order mark stands before its first line: save the file without it".to_owned(),
        [0x7f, b'E', b'L', b'F', ..] => {
            "it is a program of another kind of machine, or a damaged one: install a build for this one".to_owned()
        }
        _ => format!("its first line names no interpreter: {BEGIN}"),
    }
}

/// The interpreter that the first line of a script names.
fn interpreter(head: &[u8]) -> Option<String> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = line.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty())?;
    Some(String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y09_what_a_program_lacks_is_said_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        let program = path.display().to_string();
        for (head, errno, expected) in [
            (
                &b"#!/no/such -x\n"[..],
                Errno::NOENT,
                "the interpreter \"/no/such\" that its first line names is not: install",
            ),
            (
                b"#! /no/such\r\n",
                Errno::NOENT,
                "\"/no/such\\r\" that its first line names is not: install that, or name another one; the line ends with a carriage return",
            ),
            (
                b"#!/proc/self/status\n",
                Errno::NOENT,
                "and so is its interpreter \"/proc/self/status\", which cannot start",
            ),
            (b"\x7fELF\x02", Errno::NOENT, "the loader that it was built for is not: install a build"),
            (
                b"echo\n",
                Errno::NOEXEC,
                "its first line names no interpreter: begin it with the line of its interpreter",
            ),
            (b"#!\n", Errno::NOEXEC, "its first line names no interpreter"),
            (b"", Errno::NOEXEC, "it is empty: begin it"),
            (b"\xef\xbb\xbf#!/bin/sh\n", Errno::NOEXEC, "a byte order mark stands before its first line"),
            (b"\x7fELF\x02", Errno::NOEXEC, "a program of another kind of machine"),
            (b"\x7fELF\x02", Errno::NOEXEC, "or a damaged one: install a build for this one"),
            (b"#!/bin/sh\n", Errno::ACCESS, "Permission denied (os error 13)"),
        ] {
            std::fs::write(&path, head).unwrap();
            let said = unrun(&program, errno.into()).sentence();
            assert!(said.starts_with(&format!("cannot run {program}: ")) && said.contains(expected), "{said}");
        }
        let said = unrun("true", Errno::NOENT.into()).sentence();
        assert_eq!(said, "cannot run true: No such file or directory (os error 2)", "it is looked for in `PATH`");
    }
}
