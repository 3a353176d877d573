//! The commands of dnf, and the output of rpm.

use std::time::Duration;

use super::*;

/// An output of `rpm -q` with [`QUERY_FORMAT`].
const OUTPUT: &str = "bash\tx86_64\t5.2.26-1.fc39\npackage nginx is not installed\nkernel\tx86_64\t6.5.6-300.fc39\n\
                      kernel\tx86_64\t6.10.6-100.fc39\nglibc\ti686\t2.38-18.fc39\nbind\tx86_64\t32:9.18.28-2.fc39\n";

#[test]
fn state_is_found_in_output_of_rpm() {
    for (name, version) in [
        ("bash", Some("5.2.26-1.fc39")),
        ("nginx", None),
        ("kernel", Some("6.10.6-100.fc39")),
        ("glibc:i686", Some("2.38-18.fc39")),
        ("glibc:x86_64", None),
        ("bind", Some("32:9.18.28-2.fc39")),
    ] {
        assert_eq!(find_state(name, OUTPUT).version.as_deref(), version, "{name}");
    }
}

#[test]
fn output_of_scripts_is_no_message_of_dnf() {
    let begun = |output: &str| has_transaction_begun(&CommandResult { end: ExitKind::Status(1), output: output.to_owned() });
    assert!(!begun("Running transaction check\nNo match for argument: demo\nError: Unable to find a match: demo\n"));
    assert!(begun("Running transaction test\nRunning transaction\n  Installing: demo\nStatus code: 404\n"));
    assert!(begun("Status code: 404\nFailed:\n  demo-1.0-1.x86_64\n\nError: Transaction failed\n"));
}

#[test]
fn error_of_dnf_has_text_of_next_lines() {
    let solver = "Error: \n Problem: conflicting requests\n  - nothing provides libx needed by demo-1.0-1.x86_64\n(try to add '--skip-broken' to skip)\n";
    for (output, expected) in [
        (solver, Some("Error: Problem: conflicting requests - nothing provides libx needed by demo-1.0-1.x86_64")),
        ("Error: Transaction failed\nlast line\n", Some("Error: Transaction failed")),
        (
            "error: %prein(demo-1.0-1.x86_64) scriptlet failed, exit status 7\n  Verifying : demo 2/2Error: Transaction failed\n",
            Some("Error: Transaction failed; error: %prein(demo-1.0-1.x86_64) scriptlet failed, exit status 7"),
        ),
        ("killed\n", None),
    ] {
        assert_eq!(error_text(output).as_deref(), expected);
    }
}

#[test]
fn dnf_installs_upgrades_or_removes_packages() {
    let states = ["bash", "nginx"].map(|name| find_state(name, OUTPUT));
    for (target, expected) in [
        (PackageTarget::Present(VersionRule::Any), vec!["install nginx", "upgrade bash"]),
        (PackageTarget::Present(VersionRule::AtLeast("9".into())), vec!["install nginx", "upgrade bash"]),
        (PackageTarget::Present(VersionRule::Exact("1.2-3".into())), vec!["install bash-1.2-3 nginx-1.2-3"]),
        (PackageTarget::Absent { purge: true }, vec!["remove bash nginx"]),
    ] {
        let (names, timeout) = (vec!["bash".to_owned(), "nginx".to_owned()], Duration::from_secs(1));
        let request =
            PackageRequest { names: names.clone(), target, hold: None, recommends: false, lock_timeout: timeout, timeout };
        let commands = change_words(&request, &names, &states);
        let commands: Vec<_> = commands.iter().map(|words| words[5..].join(" ")).collect();
        assert_eq!(commands, expected);
        assert!(change_words(&request, &names, &states)[0].contains(&"--setopt=install_weak_deps=False".to_owned()));
    }
}
