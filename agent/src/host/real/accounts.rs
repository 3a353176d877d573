//! Finds users and groups by name: first in `/etc/passwd` and `/etc/group`, then in the directory services of the machine
//! ([`DirectoryLookup`]). A number is never looked up in a directory service, so it is valid while no service answers.
//!
//! A number without an entry in the file is a valid account. The only group of such an account has the same number. Any
//! other group, such as the group of root, would give the account rights that nobody granted.

use std::path::Path;

use stemma_core::task::MAX_ACCOUNT_ID;

use crate::host::{AccountKind, HostError};

/// Returns the id of the user or group `name` in a file in the format of `/etc/passwd` or `/etc/group`, or else in a
/// directory service. If `name` is a valid id in digits, that id is returned without a look-up.
pub(super) fn find_number(kind: AccountKind, file: &Path, directory: DirectoryLookup<'_>, name: &str) -> Result<u32, HostError> {
    if let Some(id) = parse_number(name) {
        return Ok(id);
    }
    let text = std::fs::read_to_string(file).map_err(HostError::io("read", file.display().to_string()))?;
    if let Some(id) = entry_number(&text, name) {
        return Ok(id);
    }
    let entry = directory(kind, name)?;
    let id = entry.and_then(|entry| parse_number(entry.split(':').nth(2)?));
    id.ok_or_else(|| HostError::NoAccount { kind, name: name.into() })
}

/// A function that returns the entry of an account from the directory services of the machine, or `None` if they do not
/// have the name.
pub(super) type DirectoryLookup<'a> = &'a dyn Fn(AccountKind, &str) -> Result<Option<String>, HostError>;

/// An account that a command runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    /// Name of the user. `None` for a number without an entry in `/etc/passwd`.
    pub(super) name: Option<String>,
    pub(super) user: u32,
    pub(super) group: u32,
    pub(super) home: String,
    pub(super) shell: String,
}

/// Returns the account with this name or number from a file in the format of `/etc/passwd`, or the account with this name
/// from a directory service. A number without an entry in the file gets an account with defaults. Fails if no entry has the
/// name.
pub(super) fn find_account(file: &Path, directory: DirectoryLookup<'_>, name: &str) -> Result<Account, HostError> {
    let text = std::fs::read_to_string(file).map_err(HostError::io("read", file.display().to_string()))?;
    let account = parse_entry(&text, name).or_else(|| parse_number(name).map(|number| account_for_number(&text, number)));
    let account = match account {
        Some(account) => Some(account),
        None => directory(AccountKind::User, name)?.and_then(|entry| parse_account(&entry)),
    };
    account.ok_or_else(|| HostError::NoAccount { kind: AccountKind::User, name: name.into() })
}

/// Returns the id of the primary group of a user id, from a file in the format of `/etc/passwd`. Returns the user id
/// itself if the file has no entry for it or cannot be read.
pub(super) fn primary_group(file: &Path, user: u32) -> u32 {
    // If the file cannot be read, the group gets the same number as the user. For root this number is 0, the group that
    // root has in every such file.
    account_for_number(&std::fs::read_to_string(file).unwrap_or_default(), user).group
}

/// Returns the account of a user number from the text of `/etc/passwd`. A number without an entry gets defaults: the
/// group of the same number, the directory `/` and the shell `/bin/sh`.
fn account_for_number(text: &str, number: u32) -> Account {
    parse_entry(text, &number.to_string()).filter(|account| account.user == number).unwrap_or_else(|| Account {
        name: None,
        user: number,
        group: number,
        home: "/".to_owned(),
        shell: "/bin/sh".to_owned(),
    })
}

/// Returns the account of the entry of `/etc/passwd` with this name, or else of the first entry with this number.
/// Returns `None` if there is no such entry, or if the entry is not well formed.
fn parse_entry(text: &str, name: &str) -> Option<Account> {
    let entry_by_name = text.lines().find(|line| line.split(':').next() == Some(name));
    let line = entry_by_name.or_else(|| text.lines().find(|line| line.split(':').nth(2) == Some(name)))?;
    parse_account(line)
}

/// Returns the account of an entry in the format of `/etc/passwd`, or `None` if the entry is not well formed.
fn parse_account(line: &str) -> Option<Account> {
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

/// Parses a user or group id. Returns `None` if the text contains anything but digits, or if the number is too high.
/// The highest 32-bit number is not an id, because in system calls it means "unchanged".
fn parse_number(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && *number <= MAX_ACCOUNT_ID)
}

/// Returns the number in the third field of the entry with this name: the id of the user or group.
pub(super) fn entry_number(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| parse_number(fields.nth(1)?)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine without directory services.
    const NO_DIRECTORY: DirectoryLookup<'_> = &|_, _| Ok(None);

    #[test]
    fn entry_number_matches_whole_name() {
        let text = "root:x:0:0:root:/root:/bin/bash\nwww-data:x:33:33::/var/www:\n+::::::\n";
        for (name, number) in [("root", Some(0)), ("www-data", Some(33)), ("www", None), ("", None), ("+", None)] {
            assert_eq!(entry_number(text, name), number, "{name}");
        }
    }

    /// The second entry has the name `33` and the number 1. The last entry is not valid, because its number is `y`.
    #[test]
    fn parse_entry_finds_account_by_name_or_number() {
        let text = "root:x:0:0:root:/root:/bin/bash\n33:x:1:1::/one:\nwww-data:x:33:33:www,,:/var/www:/usr/sbin/nologin\nbad:x:y:1::/:\n";
        let parsed = |name: &str| parse_entry(text, name).map(|parsed| (parsed.name, parsed.user, parsed.home, parsed.shell));
        let account = |name: &str, user, home: &str, shell: &str| Some((Some(name.into()), user, home.into(), shell.into()));
        assert_eq!(parsed("www-data"), account("www-data", 33, "/var/www", "/usr/sbin/nologin"));
        assert_eq!(parsed("0"), account("root", 0, "/root", "/bin/bash"));
        assert_eq!(parsed("33"), account("33", 1, "/one", "/bin/sh"), "a name has precedence over a number");
        assert_eq!((parsed("bad"), parsed("www"), parsed("")), (None, None, None));
    }

    /// A number without an entry gets an account whose group has the same number. A name without an entry and an
    /// invalid number are refused.
    #[test]
    fn y09_find_account_accepts_names_and_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passwd");
        std::fs::write(&file, "root:x:0:0:root:/root:/bin/bash\nnews:x:9:13::/n:/bin/n\n").unwrap();
        let account_without_entry =
            |number| Account { name: None, user: number, group: number, home: "/".into(), shell: "/bin/sh".into() };
        for (name, expected) in [
            ("54321", account_without_entry(54321)),
            ("4294967294", account_without_entry(4_294_967_294)),
            ("7", account_without_entry(7)),
        ] {
            assert_eq!(find_account(&file, NO_DIRECTORY, name).unwrap(), expected);
        }
        for name in ["9", "09", "news"] {
            let account = find_account(&file, NO_DIRECTORY, name).unwrap();
            assert_eq!((account.user, account.group, account.name.as_deref()), (9, 13, Some("news")), "{name}");
        }
        for name in ["samu", "+5", "-1", "4294967295", "5 ", ""] {
            let message = find_account(&file, NO_DIRECTORY, name).unwrap_err().sentence();
            assert!(message.contains("/etc/passwd") && message.contains("number"), "{name}: {message}");
        }
        let message = find_number(AccountKind::Group, &file, NO_DIRECTORY, "utenti").unwrap_err().sentence();
        assert!(message.contains("/etc/group") && message.contains("number"), "{message}");
    }

    #[test]
    fn y02_primary_group_is_from_entry_or_number() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passwd");
        assert_eq!(primary_group(&file, 0), 0, "without the file, root has group 0");
        std::fs::write(&file, "root:x:0:0:root:/root:/bin/bash\nnews:x:9:13::/n:/bin/n\n").unwrap();
        for (user, group) in [(0, 0), (9, 13), (54_321, 54_321)] {
            assert_eq!(primary_group(&file, user), group, "{user}");
        }
    }

    /// The highest 32-bit number and all larger numbers are not valid ids. Regression test: the error was "no user …,
    /// give a number", although the name was a number.
    #[test]
    fn y09_find_account_rejects_reserved_number() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passwd");
        std::fs::write(&file, "root:x:0:0:root:/root:/bin/bash\n4294967296:x:7:7::/:/bin/sh\n").unwrap();
        for name in ["4294967295", "04294967295", "18446744073709551616"] {
            for (error, kind, file_name) in [
                (find_account(&file, NO_DIRECTORY, name).unwrap_err(), "user", "/etc/passwd"),
                (find_number(AccountKind::User, &file, NO_DIRECTORY, name).unwrap_err(), "user", "/etc/passwd"),
                (find_number(AccountKind::Group, &file, NO_DIRECTORY, name).unwrap_err(), "group", "/etc/group"),
            ] {
                let expected = format!(
                    "{name:?} is not a valid number of a {kind}: use one from 0 to 4294967294, or a name in {file_name}; nothing was \
                     changed"
                );
                assert_eq!(error.sentence(), expected);
            }
        }
        assert_eq!(find_account(&file, NO_DIRECTORY, "4294967296").unwrap().user, 7, "an entry has this name");
        assert_eq!(find_number(AccountKind::User, &file, NO_DIRECTORY, "4294967294").unwrap(), 4_294_967_294);
    }

    /// A local name takes precedence, a number needs no look-up, and a directory service has the other names.
    #[test]
    fn find_account_asks_directory_after_local_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passwd");
        std::fs::write(&file, "root:x:0:0:root:/root:/bin/bash\nnews:x:9:13::/n:/bin/n\n").unwrap();
        let lookups = std::cell::Cell::new(0);
        let directory = |kind: AccountKind, name: &str| {
            lookups.set(lookups.get() + 1);
            let user = "alice:*:70001:70002:Alice:/home/alice:/bin/zsh".to_owned();
            Ok(match (kind, name) {
                (AccountKind::User, "alice") => Some(user),
                (AccountKind::Group, "staff") => Some("staff:*:70002:alice".to_owned()),
                _ => None,
            })
        };
        let account = find_account(&file, &directory, "alice").unwrap();
        assert_eq!((account.name.as_deref(), account.user, account.group), (Some("alice"), 70001, 70002));
        assert_eq!((account.home.as_str(), account.shell.as_str()), ("/home/alice", "/bin/zsh"));
        assert_eq!(find_number(AccountKind::User, &file, &directory, "alice").unwrap(), 70001);
        assert_eq!(find_number(AccountKind::Group, &file, &directory, "staff").unwrap(), 70002);
        assert_eq!(lookups.take(), 3);
        assert_eq!(find_account(&file, &directory, "news").unwrap().user, 9);
        assert_eq!(find_account(&file, &directory, "70001").unwrap().name, None);
        assert_eq!(find_number(AccountKind::User, &file, &directory, "70001").unwrap(), 70001);
        assert_eq!(lookups.take(), 0);
        assert!(find_account(&file, &directory, "bob").is_err() && lookups.take() == 1);
    }
}
