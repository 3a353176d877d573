//! Finds users and groups by name in `/etc/passwd` and `/etc/group`. NSS is not used, because it would load plug-ins of
//! a C library as root and may wait for a network. So an account of a directory service must be named by its number.
//!
//! A number without an entry is a valid account. Its only group has the same number, because any other group, such as
//! that of root, would give the account rights that nobody granted.

use std::path::Path;

use stemma_core::task::MAX_ACCOUNT_ID;

use crate::host::HostError;

/// Returns the id of the entry `name` in a file in the format of `/etc/passwd` or `/etc/group`. A `name` of digits is
/// returned as the id itself.
pub(super) fn find_number(kind: &'static str, file: &Path, name: &str) -> Result<u32, HostError> {
    if let Some(number) = parse_number(name) {
        return Ok(number);
    }
    let text = std::fs::read_to_string(file).map_err(HostError::io("read", file.display().to_string()))?;
    parse_entry_number(&text, name).ok_or_else(|| HostError::NoAccount { kind, name: name.into() })
}

/// An account that a command runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    /// Name of the user. `None` for a number without an entry.
    pub(super) name: Option<String>,
    pub(super) user: u32,
    pub(super) group: u32,
    pub(super) home: String,
    pub(super) shell: String,
}

/// Returns an entry of `/etc/passwd` by name or number, or an account for a number without an entry.
pub(super) fn find_account(file: &Path, name: &str) -> Result<Account, HostError> {
    let text = std::fs::read_to_string(file).map_err(HostError::io("read", file.display().to_string()))?;
    let account = parse_entry(&text, name).or_else(|| parse_number(name).map(|number| account_for_number(&text, number)));
    account.ok_or_else(|| HostError::NoAccount { kind: "user", name: name.into() })
}

/// Returns the primary group of a user id.
pub(super) fn primary_group(file: &Path, user: u32) -> u32 {
    // If the file cannot be read, the group has the same number as the user. For root this is 0, which is right.
    account_for_number(&std::fs::read_to_string(file).unwrap_or_default(), user).group
}

/// Returns the account of a number: its entry, or defaults if it has none.
fn account_for_number(text: &str, number: u32) -> Account {
    parse_entry(text, &number.to_string()).filter(|account| account.user == number).unwrap_or_else(|| Account {
        name: None,
        user: number,
        group: number,
        home: "/".to_owned(),
        shell: "/bin/sh".to_owned(),
    })
}

/// Returns the entry of `/etc/passwd` with this name, or else with this number.
fn parse_entry(text: &str, name: &str) -> Option<Account> {
    let by_name = text.lines().find(|line| line.split(':').next() == Some(name));
    let line = by_name.or_else(|| text.lines().find(|line| line.split(':').nth(2) == Some(name)))?;
    let fields: Vec<_> = line.split(':').collect();
    let [name, _, user, group, _, home, shell] = fields[..] else { return None };
    let or_default = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
    Some(Account {
        name: Some(name.to_owned()),
        user: parse_number(user)?,
        group: parse_number(group)?,
        home: or_default(home, "/"),
        shell: or_default(shell, "/bin/sh"),
    })
}

/// Parses a user or group id. The highest number is not an id: in system calls it means "unchanged".
fn parse_number(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && *number <= MAX_ACCOUNT_ID)
}

/// Returns the number in the third field of the entry with this name.
fn parse_entry_number(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| parse_number(fields.nth(1)?)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_entry_matches_whole_name() {
        let text = "root:x:0:0:root:/root:/bin/bash\nwww-data:x:33:33::/var/www:\n+::::::\n";
        for (name, number) in [("root", Some(0)), ("www-data", Some(33)), ("www", None), ("", None), ("+", None)] {
            assert_eq!(parse_entry_number(text, name), number, "{name}");
        }
    }

    #[test]
    fn account_has_home_and_shell() {
        let text = "root:x:0:0:root:/root:/bin/bash\n33:x:1:1::/one:\nwww-data:x:33:33:www,,:/var/www:/usr/sbin/nologin\nbad:x:y:1::/:\n";
        let found = |name: &str| parse_entry(text, name).map(|found| (found.name, found.user, found.home, found.shell));
        let of = |name: &str, user, home: &str, shell: &str| Some((Some(name.into()), user, home.into(), shell.into()));
        assert_eq!(found("www-data"), of("www-data", 33, "/var/www", "/usr/sbin/nologin"));
        assert_eq!(found("0"), of("root", 0, "/root", "/bin/bash"));
        assert_eq!(found("33"), of("33", 1, "/one", "/bin/sh"), "a name goes before a number");
        assert_eq!((found("bad"), found("www"), found("")), (None, None, None));
    }

    #[test]
    fn y09_account_for_number_uses_same_group_when_unlisted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passwd");
        std::fs::write(&file, "root:x:0:0:root:/root:/bin/bash\nnews:x:9:13::/n:/bin/n\n").unwrap();
        let alone = |number| Account { name: None, user: number, group: number, home: "/".into(), shell: "/bin/sh".into() };
        for (name, expected) in [("54321", alone(54321)), ("4294967294", alone(4_294_967_294)), ("7", alone(7))] {
            assert_eq!(find_account(&file, name).unwrap(), expected);
        }
        for name in ["9", "09", "news"] {
            let found = find_account(&file, name).unwrap();
            assert_eq!((found.user, found.group, found.name.as_deref()), (9, 13, Some("news")), "{name}");
        }
        for name in ["samu", "+5", "-1", "4294967295", "5 ", ""] {
            let refused = find_account(&file, name).unwrap_err().sentence();
            assert!(refused.contains("/etc/passwd") && refused.contains("number"), "{name}: {refused}");
        }
        let refused = find_number("group", &file, "utenti").unwrap_err().sentence();
        assert!(refused.contains("/etc/group") && refused.contains("number"), "{refused}");
    }

    #[test]
    fn y02_primary_group_is_from_entry_or_number() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passwd");
        assert_eq!(primary_group(&file, 0), 0, "root has none but its own");
        std::fs::write(&file, "root:x:0:0:root:/root:/bin/bash\nnews:x:9:13::/n:/bin/n\n").unwrap();
        for (user, group) in [(0, 0), (9, 13), (54_321, 54_321)] {
            assert_eq!(primary_group(&file, user), group, "{user}");
        }
    }

    /// Before the fix, the error was "no user …, give a number", though one was given.
    #[test]
    fn y09_find_account_rejects_reserved_number() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passwd");
        std::fs::write(&file, "root:x:0:0:root:/root:/bin/bash\n4294967296:x:7:7::/:/bin/sh\n").unwrap();
        for name in ["4294967295", "04294967295", "18446744073709551616"] {
            for (refused, kind, names) in [
                (find_account(&file, name).unwrap_err(), "user", "/etc/passwd"),
                (find_number("user", &file, name).unwrap_err(), "user", "/etc/passwd"),
                (find_number("group", &file, name).unwrap_err(), "group", "/etc/group"),
            ] {
                let expected = format!(
                    "{name:?} is not a valid number of a {kind}: use one from 0 to 4294967294, or a name in {names}; nothing was \
                     changed"
                );
                assert_eq!(refused.sentence(), expected);
            }
        }
        assert_eq!(find_account(&file, "4294967296").unwrap().user, 7, "a name");
        assert_eq!(find_number("user", &file, "4294967294").unwrap(), 4_294_967_294);
    }
}
