//! The commands of apt.

use std::time::Duration;

use super::super::request::{PackageRequest, PackageTarget, VersionRule};
use super::{APT_GET, change_words};

/// Returns the words of a command after the options that each command has.
fn last_words(target: PackageTarget, recommends: bool) -> Vec<String> {
    let timeout = Duration::from_secs(1);
    let names = vec!["nginx".to_owned(), "curl".to_owned()];
    let request = PackageRequest { names: names.clone(), target, hold: None, recommends, lock_timeout: timeout, timeout };
    let mut words = change_words(&[(&request, &names)]);
    let rest = words.split_off(APT_GET.len());
    assert_eq!(words, APT_GET);
    rest
}

#[test]
fn commands_of_apt_keep_other_packages() {
    let no_recommends = "APT::Install-Recommends=false";
    for (target, recommends, expected) in [
        (PackageTarget::Present(VersionRule::Any), false, vec!["-o", no_recommends, "--no-remove", "install", "nginx", "curl"]),
        (
            PackageTarget::Present(VersionRule::AtLeast("1.0".into())),
            true,
            vec!["-o", "APT::Install-Recommends=true", "--no-remove", "install", "nginx", "curl"],
        ),
        (
            PackageTarget::Present(VersionRule::Exact("1.0-1".into())),
            false,
            vec!["-o", no_recommends, "--no-remove", "--allow-downgrades", "install", "nginx=1.0-1", "curl=1.0-1"],
        ),
        (PackageTarget::Absent { purge: false }, false, vec!["remove", "nginx", "curl"]),
        (PackageTarget::Absent { purge: true }, false, vec!["purge", "nginx", "curl"]),
    ] {
        assert_eq!(last_words(target, recommends), expected);
    }
}
