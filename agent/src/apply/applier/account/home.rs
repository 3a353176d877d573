//! The home directory of a user: created from `/etc/skel`, and removed.

use stemma_core::task::{check_writable, is_at_or_below};

use super::database::{LocalAccounts, UserRecord, setting};
use super::plan::{AccountPlan, ToolCall};
use crate::apply::listing::list_names;
use crate::apply::task::TaskError;
use crate::host::command::escape_controls;
use crate::host::{FileKind, Host, HostError, HostPath, Stat, shell_word};

/// The lowest number of a user whose missing home directory is created by default (`UID_MIN` of Debian and Fedora).
pub(super) const DEFAULT_MIN_UID: u32 = 1000;

/// The number of the user `nobody`.
pub(super) const NOBODY_UID: u32 = 65_534;

/// The home directory of users without one, by convention.
pub(super) const NONEXISTENT: &str = "/nonexistent";

/// The paths that stand for no home directory.
const PLACEHOLDERS: [&str; 2] = [NONEXISTENT, "/dev/null"];

/// The configuration of the shadow tools.
pub(super) const LOGIN_DEFS: &str = "/etc/login.defs";

/// The defaults of `useradd`.
const USERADD_DEFAULTS: &str = "/etc/default/useradd";

/// The directory with the files that each new home directory gets.
const SKELETON: &str = "/etc/skel";

/// The directories of a path that are part of the system, so that a home directory is at least one level below.
const MIN_HOME_DEPTH: usize = 2;

/// Maximum number of links on a path that are followed.
const MAX_LINKS: usize = 8;

/// Creates a home directory: `$1` is a temporary name next to it, `$2` the directory, `$3` the skeleton, `$4` owner and
/// group, `$5` the mode. The directory gets its name when it is complete. Its files get the labels of
/// `SELinux`, if the host has it.
const CREATE_SCRIPT: &str = "set -e
mkdir -p -- \"${2%/*}/\"
rm -rf -- \"$1\"
mkdir -m 0700 -- \"$1\"
if [ -d \"$3\" ]; then cp -RP --preserve=mode,timestamps,links -- \"$3/.\" \"$1/\"; fi
chown -hRP \"$4\" -- \"$1\"
chmod \"$5\" -- \"$1\"
mv -nT -- \"$1\" \"$2\"
[ ! -e \"$1\" ]
if [ -e /sys/fs/selinux/enforce ] && command -v restorecon >/dev/null; then restorecon -R -- \"$2\"; fi";

/// The rule whether a missing home directory is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Creation {
    /// The task does not create it.
    Never,
    /// The task creates it, unless the path leads through a link. Then the result says so.
    IfPossible,
    /// The task creates it, or fails.
    Required,
}

/// The home directory that a user will have.
pub(super) struct WantedHome<'a> {
    pub(super) path: &'a str,
    /// The name of the user.
    pub(super) user: &'a str,
    /// The number of the user. `None` if the system chooses it later.
    pub(super) uid: Option<u32>,
    pub(super) rule: Creation,
}

impl WantedHome<'_> {
    /// Compares the home directory with the task. Returns the directory if the task can create it. The plan gets the
    /// reason if the task cannot.
    pub(super) fn find_missing(&self, host: &dyn Host, plan: &mut AccountPlan) -> Result<Option<HostPath>, TaskError> {
        let Self { path, rule, .. } = *self;
        let is_placeholder = PLACEHOLDERS.contains(&path) && rule == Creation::IfPossible;
        if rule == Creation::Never || path == "/" || is_placeholder {
            return Ok(None);
        }
        let Ok(home) = HostPath::parse(path) else { return Ok(None) };
        let (refusal, is_behind_link) = match host.stat(&home) {
            Ok(None) => match check_writable(path) {
                Ok(()) => (untrusted_parent(host, &home)?, false),
                Err(error) => (Some(error.to_string()), false),
            },
            Ok(Some(stat)) => {
                self.compare_existing(&stat, plan);
                return Ok(None);
            }
            Err(HostError::Link { at, .. }) => {
                let (real_path, stat) = follow_links(host, &home)?;
                if stat.is_some() {
                    return Ok(None);
                }
                (Some(link_reason(&at, real_path.as_ref())), true)
            }
            Err(error @ HostError::WrongKind { .. }) => (Some(error.sentence()), false),
            Err(error) => return Err(error.into()),
        };
        let Some(reason) = refusal else {
            plan.add("home directory", &path);
            return Ok(Some(home));
        };
        if is_behind_link && rule == Creation::IfPossible {
            plan.remarks.push(format!("the home directory {path} is not created: {reason}"));
        } else {
            plan.add("home directory", &path);
            plan.refusal.get_or_insert(format!("the home directory {path} cannot be created: {reason}"));
        }
        Ok(None)
    }

    /// Compares an entry that exists at the path of the home directory with the task. A directory of root is that of a
    /// user who may not change it, such as one of sftp.
    fn compare_existing(&self, stat: &Stat, plan: &mut AccountPlan) {
        let Self { path, user, uid, .. } = *self;
        match stat.kind {
            FileKind::Directory if stat.user == 0 || uid.is_none_or(|uid| uid == stat.user) => {}
            FileKind::Directory => plan.remarks.push(format!(
                "the home directory {path} exists and belongs to the user with the number {old}, not to {user}: if {user} owns these files now, run `chown -hR --from={old} {user} {word}`",
                old = stat.user,
                word = shell_word(path)
            )),
            FileKind::Link => {}
            kind => {
                plan.add("home directory", &path);
                plan.refusal.get_or_insert(format!("the home directory {path} is {}: move it away", kind.as_str()));
            }
        }
    }
}

/// Returns the reason why a home directory behind a link is not created. `at` is the link, and `real_path` the
/// directory without links.
fn link_reason(at: &str, real_path: Option<&HostPath>) -> String {
    let advice = real_path.map_or_else(|| "write the path that it leads to".to_owned(), |path| format!("write `home: {path}`"));
    format!("{at} is a symbolic link, and links are not followed: {advice}")
}

/// Returns the path without the links in the directories above it, and the metadata of the entry there. The path is
/// `None` if a link leads nowhere.
pub(super) fn follow_links(host: &dyn Host, path: &HostPath) -> Result<(Option<HostPath>, Option<Stat>), HostError> {
    let mut path = path.clone();
    for _ in 0..MAX_LINKS {
        match host.stat(&path) {
            Err(HostError::Link { real: Some(real), .. }) => {
                let Ok(next) = HostPath::parse(&format!("{}/{}", real.trim_end_matches('/'), path.name())) else { break };
                path = next;
            }
            Err(HostError::Link { .. }) => break,
            result => return Ok((Some(path), result?)),
        }
    }
    Ok((None, None))
}

/// Returns the path of the home directory that `useradd` gives to a new user without `home`.
pub(super) fn default_path(host: &dyn Host, user: &str) -> Result<String, TaskError> {
    let base = setting(host, USERADD_DEFAULTS, "HOME")?.filter(|base| base.starts_with('/'));
    Ok(format!("{}/{user}", base.as_deref().unwrap_or("/home").trim_end_matches('/')))
}

/// Returns the tool that creates a home directory for a user.
pub(super) fn creation(host: &dyn Host, home: &HostPath, user: &UserRecord) -> Result<ToolCall, TaskError> {
    let parent = home.parent().map_or_else(String::new, |parent| parent.to_string());
    let temporary = HostPath::parse(&format!("{parent}/.{}.stemma-new", home.name()));
    let temporary = temporary.map_err(|error| TaskError::new(error.to_string()))?;
    let system_path = |path: &HostPath| host.system_path(path).display().to_string();
    let mut argv: Vec<String> = ["/bin/sh", "-c", CREATE_SCRIPT, "create-home"].map(str::to_owned).to_vec();
    argv.extend([system_path(&temporary), system_path(home), system_path(&HostPath::from_static(SKELETON))]);
    argv.extend([format!("{}:{}", user.uid, user.gid), format!("{:04o}", home_mode(host)?)]);
    Ok(ToolCall { argv, is_shadow_tool: false, note: String::new() })
}

/// Returns the tool that removes the home directory of a user, or `None` if it does not exist. The plan gets the reason if
/// the directory must not be removed.
pub(super) fn removal(
    host: &dyn Host,
    accounts: &LocalAccounts,
    user: &UserRecord,
    plan: &mut AccountPlan,
) -> Result<Option<ToolCall>, TaskError> {
    if user.home.is_empty() {
        return Ok(None);
    }
    let refusal = |reason: &str| {
        format!("the home directory {} is not removed: {reason}; remove it yourself, or remove `remove_home`", user.home)
    };
    let home = match HostPath::parse(&user.home) {
        Ok(home) => home,
        // `userdel --remove` would remove it without these checks.
        Err(error) => {
            plan.remove("home directory", &user.home);
            plan.refusal.get_or_insert(refusal(&error.to_string()));
            return Ok(None);
        }
    };
    if host.stat(&home)?.is_none() {
        return Ok(None);
    }
    plan.remove("home directory", &user.home);
    if let Some(reason) = removal_refusal(host, accounts, user, &home)? {
        plan.refusal.get_or_insert(refusal(&reason));
    } else if let Some(reason) = mount_refusal(host, &home)? {
        plan.refusal.get_or_insert(reason);
    }
    let argv = ["rm", "-rf", "--one-file-system", "--", &host.system_path(&home).display().to_string()];
    Ok(Some(ToolCall { argv: argv.map(str::to_owned).to_vec(), is_shadow_tool: false, note: String::new() }))
}

/// Returns the reason why a home directory must not be removed.
fn removal_refusal(
    host: &dyn Host,
    accounts: &LocalAccounts,
    user: &UserRecord,
    home: &HostPath,
) -> Result<Option<String>, TaskError> {
    if home.names().count() < MIN_HOME_DEPTH {
        return Ok(Some("it is a directory of the system".to_owned()));
    }
    if check_writable(home.as_str()).is_err() {
        return Ok(Some("it belongs to the agent or to the kernel".to_owned()));
    }
    let is_inside = |path: &str| path == home.as_str() || path.starts_with(&format!("{home}/"));
    if let Some(other) = accounts.users().find(|other| other.name != user.name && is_inside(&other.home)) {
        return Ok(Some(format!("the home directory of {} is in it", other.name)));
    }
    match host.stat(home)? {
        Some(stat) if stat.kind != FileKind::Directory => return Ok(Some(format!("it is {}", stat.kind.as_str()))),
        Some(stat) if stat.user != user.uid => return Ok(Some(format!("it belongs to the user with the number {}", stat.user))),
        _ => {}
    }
    untrusted_parent(host, home)
}

/// Returns the reason why a home directory must not be removed, if something is mounted at it or below it. `rm` has an
/// option for other file systems, and follows a bind mount of the same file system.
fn mount_refusal(host: &dyn Host, home: &HostPath) -> Result<Option<String>, TaskError> {
    let mut points = host.mount_points()?;
    points.retain(|point| is_at_or_below(point, home.as_str()));
    points.sort_unstable();
    points.dedup();
    // The user chooses the names of mount points, and root copies the command.
    let Some(first) = points.first().map(|point| shell_word(point)) else { return Ok(None) };
    let sentence = format!(
        "the home directory {home} is not removed: something is mounted at {}, and what is there would be removed too: unmount it (`umount {first}`), or remove `remove_home`",
        list_names(&points)
    );
    Ok(Some(escape_controls(&sentence)))
}

/// Returns the reason why the directories above a home directory cannot be trusted: another user could replace them.
fn untrusted_parent(host: &dyn Host, home: &HostPath) -> Result<Option<String>, TaskError> {
    let Some(parent) = home.parent() else { return Ok(None) };
    let untrusted = host.first_untrusted_dir(&parent)?;
    Ok(untrusted.map(|(dir, _)| format!("users other than root can write {dir}, which is above it")))
}

/// Returns the mode of new home directories, as `useradd` determines it from `/etc/login.defs`.
fn home_mode(host: &dyn Host) -> Result<u32, TaskError> {
    let octal = |name: &str| -> Result<Option<u32>, TaskError> {
        let value = setting(host, LOGIN_DEFS, name)?;
        Ok(value.and_then(|value| u32::from_str_radix(&value, 8).ok()).filter(|mode| *mode <= 0o777))
    };
    Ok(match octal("HOME_MODE")? {
        Some(mode) => mode,
        None => 0o777 & !octal("UMASK")?.unwrap_or(0o022),
    })
}
