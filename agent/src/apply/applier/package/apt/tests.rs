//! The commands of apt.

use std::time::Duration;

use super::super::request::{PackageRequest, PackageTarget, VersionRule};
use super::{APT_GET, change_words, full_name};

/// apt reads a word that ends with `+` or `-` as an instruction if it knows no package with this name.
#[test]
fn words_of_apt_are_no_instructions() {
    for (name, expected) in [("g++", "g++:native"), ("g++:i386", "g++:i386"), ("curl", "curl")] {
        assert_eq!(full_name(name), expected);
    }
    let timeout = Duration::from_secs(1);
    for (target, expected) in [
        (PackageTarget::Present(VersionRule::Any), "g++:native"),
        (PackageTarget::Present(VersionRule::Exact("1.0".into())), "g++:native=1.0"),
        (PackageTarget::Absent { purge: false }, "g++:native"),
    ] {
        let names = vec!["g++".to_owned()];
        let request =
            PackageRequest { names: names.clone(), target, hold: None, recommends: false, lock_timeout: timeout, timeout };
        assert_eq!(change_words(&[(&request, &names)]).last().unwrap(), expected);
    }
}

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
