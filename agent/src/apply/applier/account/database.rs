//! The local accounts of a host, as its files `/etc/passwd`, `/etc/group` and `/etc/shadow` have them.

use std::collections::BTreeSet;

use crate::apply::task::TaskError;
use crate::host::{AccountKind, Host, HostError, HostPath, MAX_ACCOUNT_FILE_BYTES};

/// The file with the password hashes and the days on which accounts expire.
pub(super) const SHADOW: &str = "/etc/shadow";

/// The file with the passwords of groups.
pub(super) const GROUP_SHADOW: &str = "/etc/gshadow";

/// The local accounts at one moment.
pub(super) struct LocalAccounts {
    passwd: String,
    group: String,
    /// The text of `/etc/shadow`. Empty if it was not read, or if it does not exist.
    shadow: String,
}

/// An entry of `/etc/passwd`, or of a user of a directory service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UserRecord {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) comment: String,
    pub(super) home: String,
    pub(super) shell: String,
    /// The second field: `x` if the password hash is in `/etc/shadow`.
    password: String,
}

/// An entry of `/etc/group`, or of a group of a directory service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupRecord {
    pub(super) name: String,
    pub(super) gid: u32,
    pub(super) members: Vec<String>,
}

/// The rules by which a user can log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoginState {
    /// The password hash, with `!` in front if the password is locked.
    hash: String,
    /// The day since 1970 on which the account expires. `None` if it never does.
    expiry_day: Option<i64>,
}

impl LocalAccounts {
    /// Reads the files below the root directory. `/etc/shadow` is read only with `with_shadow`.
    ///
    /// # Errors
    /// [`TaskError`] if a file cannot be read, or if `/etc/passwd` does not exist.
    pub(super) fn read(host: &dyn Host, with_shadow: bool) -> Result<Self, TaskError> {
        let missing_error = || {
            let file = AccountKind::User.file();
            TaskError::new(format!("{file} does not exist on this host, so it has no accounts to manage; nothing was changed"))
        };
        let passwd = read_text(host, AccountKind::User.file())?.ok_or_else(missing_error)?;
        let group = read_text(host, AccountKind::Group.file())?.unwrap_or_default();
        let shadow = if with_shadow { read_text(host, SHADOW)?.unwrap_or_default() } else { String::new() };
        Ok(Self { passwd, group, shadow })
    }

    /// Returns all users. Lines that are not well formed are skipped.
    pub(super) fn users(&self) -> impl Iterator<Item = UserRecord> {
        self.passwd.lines().filter_map(UserRecord::parse)
    }

    /// Returns all groups. Lines that are not well formed are skipped.
    fn groups(&self) -> impl Iterator<Item = GroupRecord> {
        self.group.lines().filter_map(GroupRecord::parse)
    }

    /// Returns the user with this name.
    pub(super) fn user(&self, name: &str) -> Option<UserRecord> {
        self.users().find(|user| user.name == name)
    }

    /// Returns the group with this name.
    pub(super) fn group(&self, name: &str) -> Option<GroupRecord> {
        self.groups().find(|group| group.name == name)
    }

    /// Returns the first group with this number.
    pub(super) fn group_with_id(&self, gid: u32) -> Option<GroupRecord> {
        self.groups().find(|group| group.gid == gid)
    }

    /// Returns the group with this name or number, as a task refers to it.
    pub(super) fn find_group(&self, reference: &str) -> Option<GroupRecord> {
        reference.parse().map_or_else(|_| self.group(reference), |gid| self.group_with_id(gid))
    }

    /// Returns the names of the groups that list a user as a member. The primary group is not included, unless it also
    /// lists the user.
    pub(super) fn groups_with_member(&self, user: &str) -> BTreeSet<String> {
        let has_member = |group: &GroupRecord| group.members.iter().any(|member| member == user);
        self.groups().filter(has_member).map(|group| group.name).collect()
    }

    /// Returns the rules by which a user can log in.
    pub(super) fn login_state(&self, user: &UserRecord) -> LoginState {
        let entry = self.shadow.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == user.name);
        let Some(fields) = entry else { return LoginState { hash: user.password.clone(), expiry_day: None } };
        let field = |index: usize| fields.get(index).copied().unwrap_or_default();
        LoginState { hash: field(1).to_owned(), expiry_day: field(7).parse().ok().filter(|day| *day >= 0) }
    }
}

impl UserRecord {
    /// Parses a line of `/etc/passwd`. Returns `None` if the line is not well formed.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let fields: Vec<_> = line.split(':').collect();
        let [name, password, uid, gid, comment, home, shell] = fields[..] else { return None };
        let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
        let [name, password, comment, home, shell] = [name, password, comment, home, shell].map(str::to_owned);
        Some(Self { name, uid, gid, comment, home, shell, password })
    }
}

impl GroupRecord {
    /// Parses a line of `/etc/group`. Returns `None` if the line is not well formed.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let fields: Vec<_> = line.split(':').collect();
        let [name, _, gid, members] = fields[..] else { return None };
        let members = members.split(',').filter(|member| !member.is_empty()).map(str::to_owned).collect();
        Some(Self { name: name.to_owned(), gid: gid.parse().ok()?, members })
    }
}

impl LoginState {
    /// Returns whether nobody can log in: the password is locked or there is none, and the account has expired.
    pub(super) fn is_locked(&self, today: i64) -> bool {
        self.hash.starts_with(['!', '*']) && self.is_expired(today)
    }

    /// Returns whether the account has expired.
    pub(super) fn is_expired(&self, today: i64) -> bool {
        self.expiry_day.is_some_and(|day| day <= today)
    }

    /// Returns whether the account has a password that is locked: `!` in front of a hash.
    pub(super) fn has_locked_password(&self) -> bool {
        let hash = self.hash.trim_start_matches('!');
        hash.len() < self.hash.len() && !hash.is_empty() && !hash.starts_with('*')
    }
}

/// Returns the group of a directory service with this name or number, as a task refers to it. The caller has not found
/// it in the local file.
pub(super) fn directory_group(host: &dyn Host, reference: &str) -> Result<Option<GroupRecord>, HostError> {
    let entry = match reference.parse() {
        Ok(gid) => host.directory_entry_with_id(AccountKind::Group, gid)?,
        Err(_) => host.directory_entry(AccountKind::Group, reference)?,
    };
    Ok(entry.as_deref().and_then(GroupRecord::parse))
}

/// Returns the value of a variable in a configuration file of the shadow tools, in which a blank or `=` is between
/// both.
pub(super) fn setting(host: &dyn Host, path: &'static str, name: &str) -> Result<Option<String>, TaskError> {
    let text = read_text(host, path)?.unwrap_or_default();
    let mut words = text.lines().map(|line| line.split([' ', '\t', '=']).filter(|word| !word.is_empty()));
    Ok(words.find_map(|mut words| if words.next() == Some(name) { words.next().map(str::to_owned) } else { None }))
}

/// Returns the content of a file as text, or `None` if it does not exist.
pub(super) fn read_text(host: &dyn Host, path: &'static str) -> Result<Option<String>, TaskError> {
    let path = HostPath::from_static(path);
    let Some(dir) = host.parent_dir(&path)? else { return Ok(None) };
    Ok(dir.read(path.name(), MAX_ACCOUNT_FILE_BYTES)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// passwd(5) and shadow(5) define the fields. `*` and `!` are no hashes, and an account expires on its day.
    #[test]
    fn login_state_follows_shadow_fields() {
        let accounts = LocalAccounts {
            passwd: "ada:x:1000:1000::/home/ada:/bin/sh\n".into(),
            group: "adm:x:4:bob,ada\nada:x:1000:\nbroken:x\n".into(),
            shadow: String::new(),
        };
        let ada = accounts.user("ada").unwrap();
        for (fields, is_locked, is_expired, has_locked_password) in [
            ("$y$j9T$a$b:20000:0:99999:7:::", false, false, false),
            ("!$y$j9T$a$b:20000:0:99999:7:::", false, false, true),
            ("!!$6$a$b:20000:0:99999:7::1:", true, true, true),
            ("!:20000:0:99999:7::1:", true, true, false),
            ("*:20000:0:99999:7::1:", true, true, false),
            ("!*:20000:0:99999:7::20001:", false, false, false),
            ("!:20000:0:99999:7::20000:", true, true, false),
            (":20000:0:99999:7::0:", false, true, false),
            ("!:20000", false, false, false),
        ] {
            let accounts = LocalAccounts {
                shadow: format!("root:*:1::::::\nada:{fields}\n"),
                ..LocalAccounts { passwd: accounts.passwd.clone(), group: String::new(), shadow: String::new() }
            };
            let state = accounts.login_state(&ada);
            let found = (state.is_locked(20_000), state.is_expired(20_000), state.has_locked_password());
            assert_eq!(found, (is_locked, is_expired, has_locked_password), "{fields}");
        }
        assert_eq!(accounts.groups_with_member("ada").into_iter().collect::<Vec<_>>(), ["adm"]);
        assert_eq!((accounts.group("broken"), accounts.group_with_id(4).unwrap().name.as_str()), (None, "adm"));
    }
}
