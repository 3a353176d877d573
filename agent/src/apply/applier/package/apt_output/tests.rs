//! Outputs of apt 2.6, shortened at the front.

use std::time::Duration;

use super::*;

fn request(name: &str, target: PackageTarget) -> PackageRequest {
    let timeout = Duration::from_secs(1);
    PackageRequest { names: vec![name.to_owned()], target, hold: None, recommends: false, lock_timeout: timeout, timeout }
}

/// Returns the result of a command of apt that fails with this output.
fn failed(output: &str) -> CommandResult {
    CommandResult { end: ExitKind::Status(APT_FAILED), output: output.to_owned() }
}

fn explain(target: PackageTarget, output: &str) -> (String, FailureEffect) {
    explain_failure(&request("demo", target), &failed(output), "", &[])
}

const PRESENT: PackageTarget = PackageTarget::Present(VersionRule::Any);

/// An output of apt, and the start of the message about it.
const REFUSALS: &[(&str, &str)] = &[
    ("Reading state information...\nE: Unable to locate package demo\n", "apt knows no package demo: correct its name"),
    (
        "However the following packages replace it:\n  demo-ng\n\nE: Package 'demo' has no installation candidate\n",
        "apt knows demo only by name",
    ),
    (
        "The following packages will be REMOVED:\n  exim4-base exim4-config\nThe following NEW packages will be installed:\n  demo\n\
         0 upgraded, 1 newly installed, 2 to remove and 0 not upgraded.\nE: Packages need to be removed but remove is disabled.\n",
        "with demo, apt would remove exim4-base, exim4-config, which the task does not name",
    ),
    (
        "The following held packages will be changed:\n  libdemo\nThe following packages will be upgraded:\n  demo libdemo\n\
         E: Held packages were changed and -y was used without --allow-change-held-packages.\n",
        "libdemo must change too, and is held: run `apt-mark unhold libdemo` on the host",
    ),
    (
        "The following packages have unmet dependencies:\n demo : Depends: libdemo but it is not installable\n\
         E: Unable to correct problems, you have held broken packages.\n",
        "the dependencies of demo cannot be met: demo : Depends: libdemo but it is not installable",
    ),
    (
        "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem. \n",
        "dpkg was interrupted: run `dpkg --configure -a`",
    ),
    (
        "E: You don't have enough free space in /var/cache/apt/archives/.\n",
        "a file system is too full for demo: E: You don't have enough free space in /var/cache/apt/archives/.",
    ),
    (
        "Err:1 http://deb.debian.org/debian bookworm/main amd64 demo amd64 1.0\n  Temporary failure resolving 'deb.debian.org'\n\
         E: Failed to fetch http://deb.debian.org/debian/pool/main/d/demo_1.0_amd64.deb  Temporary failure resolving 'deb.debian.org'\n\
         E: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?\n",
        "demo could not be fetched: Temporary failure resolving 'deb.debian.org'",
    ),
];

#[test]
fn refusal_names_cause_and_changes_nothing() {
    for (output, expected) in REFUSALS {
        let (message, effect) = explain(PRESENT, output);
        assert!(message.starts_with(expected) && message.ends_with("nothing was changed"), "{message}");
        assert_eq!(effect, FailureEffect::Unchanged, "{message}");
    }
    let output = "E: Version '3.0-1' for 'demo' was not found\n";
    let (message, _) = explain(PackageTarget::Present(VersionRule::Exact("3.0-1".into())), output);
    assert!(message.starts_with("parameters.version: apt knows no version 3.0-1 of demo"), "{message}");
    let (message, _) = explain(PRESENT, "E: Unable to locate package demo+:native\n");
    assert!(message.starts_with("apt knows no package demo+: correct its name"), "{message}");
    let (message, _) = explain(PRESENT, "E: Unable to locate package demo:i386\n");
    assert!(message.contains("source that has it, or run `dpkg --add-architecture i386` if the host does not"), "{message}");
    let stopped = CommandResult { end: ExitKind::TimedOut, output: String::new() };
    let (message, _) = explain_failure(&request("demo", PRESENT), &stopped, "", &[]);
    assert!(message.contains(": it did not end within 1 s (parameters.timeout) and was stopped: "), "{message}");
    let is_old = |output: &str| may_have_old_lists(&failed(output));
    assert!(is_old(output) && is_old(REFUSALS[0].0) && !is_old(REFUSALS[2].0));
    let output =
        "E: Malformed entry 1 in list file /etc/apt/sources.list.d/a.list (URI)\nE: The list of sources could not be read.\n";
    let (message, effect) = explain(PRESENT, output);
    assert_eq!(
        message,
        "apt-get could not install demo: Malformed entry 1 in list file /etc/apt/sources.list.d/a.list (URI); nothing was changed"
    );
    assert_eq!(effect, FailureEffect::Unchanged);
}

/// A script of a package may write each message of apt. dpkg has begun then.
#[test]
fn output_of_scripts_is_no_message_of_apt() {
    let end = "dpkg: error processing package demo (--configure):\nErrors were encountered while processing:\n demo\n\
               E: Sub-process /usr/bin/dpkg returned an error code (1)\n";
    let texts = OLD_LIST_TEXTS.iter().chain(LOCK_TEXTS).map(|text| format!("E: {text}\n"));
    for script_output in texts.chain(REFUSALS.iter().map(|(output, _)| (*output).to_owned())) {
        let output = format!("Setting up demo (1.0) ...\n{script_output}{end}");
        for target in [PRESENT, PackageTarget::Present(VersionRule::Exact("1.0".into()))] {
            let (message, effect) = explain(target, &output);
            assert!(message.starts_with("apt-get could not install demo: dpkg could not process demo: "), "{message}");
            assert!(!message.contains("nothing was changed") && effect == FailureEffect::Partial, "{message}");
        }
        let result = failed(&output);
        assert!(!may_have_old_lists(&result) && !has_lock_error(&result), "{output}");
        for end in [ExitKind::Status(137), ExitKind::Signal(9), ExitKind::TimedOut] {
            let killed = CommandResult { end, output: script_output.clone() };
            assert!(has_dpkg_begun(&killed) && !may_have_old_lists(&killed) && !has_lock_error(&killed), "{end:?}");
        }
    }
}

#[test]
fn failure_in_middle_names_packages_of_dpkg() {
    let output = "Unpacking demo (1.0) ...\nSetting up demo (1.0) ...\ndpkg: error processing package demo (--configure):\n \
                  installed demo package post-installation script subprocess returned error exit status 3\n\
                  Errors were encountered while processing:\n demo\nE: Sub-process /usr/bin/dpkg returned an error code (1)\n";
    for (broken, advice) in [
        (vec![], "correct the cause, which the output names, and the next pass tries again"),
        (
            vec![("demo".to_owned(), BrokenState::NotConfigured("half-configured"))],
            "run `dpkg --configure -a` on the host and read what it reports",
        ),
        (
            vec![("demo".to_owned(), BrokenState::MustReinstall), ("a".to_owned(), BrokenState::NotConfigured("unpacked"))],
            "run `dpkg --configure -a` and then `apt-get install --reinstall demo` on the host and read what it reports",
        ),
    ] {
        let (message, effect) = explain_failure(&request("demo", PRESENT), &failed(output), "", &broken);
        assert_eq!(message, format!("apt-get could not install demo: dpkg could not process demo: {advice}"));
        assert_eq!(effect, FailureEffect::Partial);
    }
    let full_disk = "Unpacking demo (1.0) ...\ndpkg: error: No space left on device\nE: Sub-process /usr/bin/dpkg returned an error code (2)\n";
    let (message, effect) = explain(PackageTarget::Absent { purge: true }, full_disk);
    assert_eq!(
        message,
        "apt-get could not purge demo: Sub-process /usr/bin/dpkg returned an error code (2): correct the cause, which the output names, and the next \
         pass tries again"
    );
    assert_eq!(effect, FailureEffect::Partial);
}

#[test]
fn candidate_is_read_from_policy() {
    let output = "demo:\n  Installed: 1.0-1\n  Candidate: 1.1-1\n  Version table:\n     1.1-1 500\n";
    assert_eq!(find_candidate(output).as_deref(), Some("1.1-1"));
    assert_eq!(find_candidate("demo:\n  Installed: (none)\n  Candidate: (none)\n"), None);
    assert_eq!(find_candidate(""), None);
    let output = "demo:\n  Installed: 1.0+\n  Candidate: 1.1-1\n  Version table:\n     1.1-1 500\n *** 1.0 100\n        100 /var/lib/dpkg/status\n";
    assert!(has_version(output, "1.1-1") && has_version(output, "1.0"));
    assert!(!has_version(output, "1.0+") && !has_version("", "1.0"));
}
