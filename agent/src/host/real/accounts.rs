//! Users and groups by name, read from the files: no NSS, since it would load a C library's plug-ins as root and
//! may wait for a network. An account of a directory service is named by its number.

use std::path::Path;

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
    pub(super) name: String,
    pub(super) user: u32,
    pub(super) group: u32,
    pub(super) home: String,
    pub(super) shell: String,
}

/// An entry of `/etc/passwd`, by name or number.
pub(super) fn account(file: &Path, name: &str) -> Result<Account, HostError> {
    let text = std::fs::read_to_string(file).map_err(HostError::io("read", file.display().to_string()))?;
    entry(&text, name).ok_or_else(|| HostError::NoAccount { kind: "user", name: name.into() })
}

fn entry(text: &str, name: &str) -> Option<Account> {
    let by_name = text.lines().find(|line| line.split(':').next() == Some(name));
    let line = by_name.or_else(|| text.lines().find(|line| line.split(':').nth(2) == Some(name)))?;
    let fields: Vec<_> = line.split(':').collect();
    let [name, _, user, group, _, home, shell] = fields[..] else { return None };
    let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
    Some(Account {
        name: name.to_owned(),
        user: number_of(user)?,
        group: number_of(group)?,
        home: or(home, "/"),
        shell: or(shell, "/bin/sh"),
    })
}

/// A user's or group's number. The highest one is the system calls' word for "as it is", and nobody's number.
fn number_of(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| *number != u32::MAX)
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
        let of = |name: &str, user, home: &str, shell: &str| Some((name.into(), user, home.into(), shell.into()));
        assert_eq!(found("www-data"), of("www-data", 33, "/var/www", "/usr/sbin/nologin"));
        assert_eq!(found("0"), of("root", 0, "/root", "/bin/bash"));
        assert_eq!(found("33"), of("33", 1, "/one", "/bin/sh"), "a name goes before a number");
        assert_eq!((found("bad"), found("www"), found("")), (None, None, None));
    }

    #[test]
    fn the_number_that_means_nobody_is_no_account() {
        let refused = number("user", Path::new("/etc/passwd"), "4294967295").unwrap_err().sentence();
        assert_eq!(refused, "no user \"4294967295\" on this host");
        assert_eq!(number("user", Path::new("/etc/passwd"), "4294967294").unwrap(), 4_294_967_294);
    }
}
