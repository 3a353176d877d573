//! The parts of a unit that need no systemd: its program, its environment, and the reasons why a program cannot run. The
//! test of booted machines runs units.

use std::fs::{Permissions, set_permissions, write};
use std::io::Read as _;

use super::*;

fn prepared(program: &str, path: &str) -> CommandSetup {
    CommandSetup { argv: vec![program.into()], env: [("PATH".into(), path.into())].into(), input: None }
}

/// A name is searched in the absolute directories of `PATH`, and only a file that can be executed is found.
#[test]
fn program_is_found_in_path_of_command() {
    let dir = tempfile::tempdir().unwrap();
    let (empty, full) = (dir.path().join("empty"), dir.path().join("full"));
    for directory in [&empty, &full] {
        std::fs::create_dir(directory).unwrap();
        write(directory.join("tool"), "").unwrap();
    }
    set_permissions(full.join("tool"), Permissions::from_mode(0o755)).unwrap();
    let path = format!("relative:{}:{}", empty.display(), full.display());
    assert_eq!(find_program(&prepared("tool", &path), "/srv").unwrap(), full.join("tool").display().to_string());
    assert_eq!(find_program(&prepared("/no/such", &path), "/srv").unwrap(), "/no/such");
    assert_eq!(find_program(&prepared("bin/tool", &path), "/srv").unwrap(), "/srv/bin/tool");
    for program in ["other", ""] {
        assert_eq!(find_program(&prepared(program, &path), "/srv").unwrap_err().kind(), io::ErrorKind::NotFound, "{program}");
    }
}

/// The expected text follows the rules of `EnvironmentFile=` in systemd.exec(5).
#[test]
fn environment_file_quotes_values_and_rejects_names() {
    let env = |name: &str, value: &str| environment_file(&[(name.to_owned(), value.to_owned())].into());
    for (value, line) in
        [("a b", "A=\"a b\"\n"), ("$x \"q\" `c` \\", "A=\"\\$x \\\"q\\\" \\`c\\` \\\\\"\n"), ("1\n2", "A=\"1\n2\"\n")]
    {
        let mut text = String::new();
        env("A", value).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, line);
    }
    for name in ["a.b", "1a", "a b", ""] {
        let error = env(name, "x").unwrap_err().sentence();
        assert!(error.contains("names of letters, digits and `_`"), "{name}: {error}");
    }
}

#[test]
fn execution_error_names_cause_of_status() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("program");
    let program = path.display().to_string();
    let kind = |text: &str, mode| {
        write(&path, text).unwrap();
        set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        execution_error(&program).map(|error| error.raw_os_error().unwrap())
    };
    assert_eq!(execution_error(&program).unwrap().kind(), io::ErrorKind::NotFound);
    assert_eq!(kind("#!/bin/sh\n", 0o644), Some(libc::EACCES));
    assert_eq!(kind("#!/no/such/interpreter\n", 0o755), Some(libc::ENOENT));
    assert_eq!(kind("echo\n", 0o755), Some(libc::ENOEXEC));
    // Nothing speaks against this script, so the status is its own.
    assert_eq!(kind("#!/bin/sh\nexit 203\n", 0o755), None);
}

/// Guards, validations and hooks are stopped after a crash, because they can run again. So only tasks are counted.
#[test]
fn running_tasks_are_counted_until_dropped() {
    let units = Units::new();
    let running = TaskCount::new(&units.running_tasks);
    assert_eq!(units.running_tasks.get(), 1);
    drop(running);
    assert_eq!(units.running_tasks.get(), 0);
}
