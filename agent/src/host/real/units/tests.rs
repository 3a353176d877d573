//! The parts of a unit that need no systemd: its program, its environment, and what is done with a unit that an earlier
//! agent left. The test of booted machines runs units.

use std::fs::{Permissions, set_permissions, write};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;

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
fn left_unit_is_followed_kept_or_discarded() {
    let (success, failure) = (Some(UnitEnd::Exited(0)), Some(UnitEnd::Exited(1)));
    for (task, is_recorded, end, action) in [
        (Some("t"), true, None, LeftAction::Follow("t")),
        (Some("t"), true, success, LeftAction::Follow("t")),
        (Some("t"), true, failure, LeftAction::Follow("t")),
        (Some("t"), false, None, LeftAction::Follow("t")),
        (Some("t"), false, success, LeftAction::Keep),
        (Some("t"), false, failure, LeftAction::Discard),
        (None, false, success, LeftAction::Keep),
        (None, false, None, LeftAction::Discard),
        (None, false, failure, LeftAction::Discard),
    ] {
        assert_eq!(left_action(task, is_recorded, end), action, "{task:?} {is_recorded} {end:?}");
    }
}
