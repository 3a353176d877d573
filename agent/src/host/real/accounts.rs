//! Users and groups by name, read from the files: no NSS, since it would load a C library's plug-ins as root and
//! may wait for a network. An account of a directory service is named by its number.
//!
//! A number that no line has is an account all the same, with the group of the same number and no other: the group of another account, or root's,
//! would be rights that nobody gave it.

use std::path::Path;

use stemma_core::task::MAX_ACCOUNT;

use crate::host::HostError;

/// The number of the entry `name` in a file of `/etc/passwd`'s or `/etc/group`'s form; digits are a number.
pub(super) fn number(kind: &'static str, file: &Path, name: &str) -> Result<u32, HostError> {
    if let Some(number) = number_of(name) {
        return Ok(number);
    }
    let text = std::fs::read_to_string(file).map_err(HostError::io("read", file.display().to_string()))?;
    lookup(&text, name).ok_or_else(|| HostError::NoAccount { kind, name: name.into() })
}

/// An account that a command runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    /// `None`: a number that no line has.
    pub(super) name: Option<String>,
    pub(super) user: u32,
    pub(super) group: u32,
    pub(super) home: String,
    pub(super) shell: String,
}

/// An entry of `/etc/passwd`, by name or number; or a number that has none.
pub(super) fn account(file: &Path, name: &str) -> Result<Account, HostError> {
    let text = std::fs::read_to_string(file).map_err(HostError::io("read", file.display().to_string()))?;
    let found = entry(&text, name).or_else(|| number_of(name).map(|number| by_number(&text, number)));
    found.ok_or_else(|| HostError::NoAccount { kind: "user", name: name.into() })
}

/// The primary group of the account of a number.
pub(super) fn primary_group(file: &Path, user: u32) -> u32 {
    // Where no line can be read, an account has the group of its number: root's is 0 there too.
    by_number(&std::fs::read_to_string(file).unwrap_or_default(), user).group
}

/// The account of a number: its line, or what is known of it without one.
fn by_number(text: &str, number: u32) -> Account {
    entry(text, &number.to_string()).filter(|account| account.user == number).unwrap_or_else(|| Account {
        name: None,
        user: number,
        group: number,
        home: "/".to_owned(),
        shell: "/bin/sh".to_owned(),
    })
}

fn entry(text: &str, name: &str) -> Option<Account> {
    let by_name = text.lines().find(|line| line.split(':').next() == Some(name));
    let line = by_name.or_else(|| text.lines().find(|line| line.split(':').nth(2) == Some(name)))?;
    let fields: Vec<_> = line.split(':').collect();
    let [name, _, user, group, _, home, shell] = fields[..] else { return None };
    let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
    Some(Account {
        name: Some(name.to_owned()),
        user: number_of(user)?,
        group: number_of(group)?,
        home: or(home, "/"),
        shell: or(shell, "/bin/sh"),
    })
}

/// A user's or group's number. The highest one is the system calls' word for "as it is", and nobody's number.
fn number_of(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && *number <= MAX_ACCOUNT)
}

fn lookup(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| number_of(fields.nth(1)?)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_by_its_whole_name() {
        let text = "root:x:0:0:root:/root:/bin/bash\nwww-data:x:33:33::/var/www:\n+::::::\n";
        for (name, number) in [("root", Some(0)), ("www-data", Some(33)), ("www", None), ("", None), ("+", None)] {
            assert_eq!(lookup(text, name), number, "{name}");
        }
    }

    #[test]
    fn an_account_has_its_home_and_shell() {
        let text = "root:x:0:0:root:/root:/bin/bash\n33:x:1:1::/one:\nwww-data:x:33:33:www,,:/var/www:/usr/sbin/nologin\nbad:x:y:1::/:\n";
        let found = |name: &str| entry(text, name).map(|found| (found.name, found.user, found.home, found.shell));
        let of = |name: &str, user, home: &str, shell: &str| Some((Some(name.into()), user, home.into(), shell.into()));
        assert_eq!(found("www-data"), of("www-data", 33, "/var/www", "/usr/sbin/nologin"));
        assert_eq!(found("0"), of("root", 0, "/root", "/bin/bash"));
        assert_eq!(found("33"), of("33", 1, "/one", "/bin/sh"), "a name goes before a number");
        assert_eq!((found("bad"), found("www"), found("")), (None, None, None));
    }

    #[test]
    fn y09_a_number_without_a_line_is_an_account_with_the_group_of_that_number() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passwd");
        std::fs::write(&file, "root:x:0:0:root:/root:/bin/bash\nnews:x:9:13::/n:/bin/n\n").unwrap();
        let alone =
            |number| Account { name: None, user: number, group: number, home: "/".into(), shell: "/bin/sh".into() };
        for (name, expected) in [("54321", alone(54321)), ("4294967294", alone(4_294_967_294)), ("7", alone(7))] {
            assert_eq!(account(&file, name).unwrap(), expected);
        }
        for name in ["9", "09", "news"] {
            let found = account(&file, name).unwrap();
            assert_eq!((found.user, found.group, found.name.as_deref()), (9, 13, Some("news")), "{name}");
        }
        for name in ["samu", "+5", "-1", "4294967295", "5 ", ""] {
            let refused = account(&file, name).unwrap_err().sentence();
            assert!(refused.contains("/etc/passwd") && refused.contains("number"), "{name}: {refused}");
        }
        let refused = number("group", &file, "utenti").unwrap_err().sentence();
        assert!(refused.contains("/etc/group") && refused.contains("number"), "{refused}");
    }

    #[test]
    fn y02_the_primary_group_of_a_number_is_that_of_its_line_or_the_number() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passwd");
        assert_eq!(primary_group(&file, 0), 0, "root has none but its own");
        std::fs::write(&file, "root:x:0:0:root:/root:/bin/bash\nnews:x:9:13::/n:/bin/n\n").unwrap();
        for (user, group) in [(0, 0), (9, 13), (54_321, 54_321)] {
            assert_eq!(primary_group(&file, user), group, "{user}");
        }
    }

    /// "no user …, give a number", though one was given.
    #[test]
    fn y09_a_number_that_no_account_can_have_is_said_to_be_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passwd");
        std::fs::write(&file, "root:x:0:0:root:/root:/bin/bash\n4294967296:x:7:7::/:/bin/sh\n").unwrap();
        for name in ["4294967295", "04294967295", "18446744073709551616"] {
            for (refused, kind, names) in [
                (account(&file, name).unwrap_err(), "user", "/etc/passwd"),
                (number("user", &file, name).unwrap_err(), "user", "/etc/passwd"),
                (number("group", &file, name).unwrap_err(), "group", "/etc/group"),
            ] {
                let expected = format!(
                    "{name:?} is no number of a {kind}: they go from 0 to 4294967294: give one of these, or a name in {names}; nothing was \
                     changed"
                );
                assert_eq!(refused.sentence(), expected);
            }
        }
        assert_eq!(account(&file, "4294967296").unwrap().user, 7, "a name");
        assert_eq!(number("user", &file, "4294967294").unwrap(), 4_294_967_294);
    }
}
