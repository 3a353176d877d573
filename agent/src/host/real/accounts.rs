//! Users and groups by name, read from the files: no NSS, since it would load a C library's plug-ins as root and
//! may wait for a network. An account of a directory service is named by its number.

use std::path::Path;

use crate::host::HostError;

/// The number of the entry `name` in a file of `/etc/passwd`'s or `/etc/group`'s form; digits are a number.
pub(super) fn number(kind: &'static str, file: &Path, name: &str) -> Result<u32, HostError> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let text = std::fs::read_to_string(file).map_err(HostError::io("read", file.display().to_string()))?;
    lookup(&text, name).ok_or_else(|| HostError::NoAccount { kind, name: name.into() })
}

/// User and primary group of an entry of `/etc/passwd`, by name or number.
pub(super) fn user_and_group(file: &Path, name: &str) -> Result<(u32, u32), HostError> {
    let text = std::fs::read_to_string(file).map_err(HostError::io("read", file.display().to_string()))?;
    both(&text, name).ok_or_else(|| HostError::NoAccount { kind: "user", name: name.into() })
}

fn both(text: &str, name: &str) -> Option<(u32, u32)> {
    text.lines().find_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        let (user, group) = (fields.get(2)?, fields.get(3)?);
        (fields[0] == name || *user == name).then(|| Some((user.parse().ok()?, group.parse().ok()?))).flatten()
    })
}

fn lookup(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
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
}
