//! The parameters of the task types that manage parts of the operating system: units, packages, accounts, directories
//! and links.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::parameter_type::ParameterType;
use super::parameters::{NameList, Parameter, ParameterPresence, ParameterTable, TypedParameters, parameters};

/// The values of `state` of a `service` task.
pub const SERVICE_STATES: &[&str] = &["running", "stopped"];

parameters! {
    /// The parameters of `service`.
    ServiceParameters:
    unit or "name", Unit Needed: "The systemd unit: a name such as `nginx` (`.service` is added) or `app@blue.service`, a socket or a timer.";
    state, Choice(SERVICE_STATES) Optional: "Whether the unit is started or stopped. Without it, the state is not changed.";
    enabled, Switch Optional: "Whether the unit starts at boot. Without it, this is not changed.";
    masked, Switch Optional: "Whether the unit is masked, so that nothing can start it. Without it, this is not changed.";
    reload, Flag Optional: "True to reload the unit, if it can, rather than restart it after a change of a task that this task subscribes to.";
    timeout, Seconds Optional: "The maximum duration of a start, stop, restart or reload, in seconds: 90 by default.";
}

parameters! {
    /// The parameters of `package`.
    PackageParameters:
    name, PackageNames Needed: "A package, or a list of packages, which one transaction installs or removes.";
    absent, Flag Optional: "True if the packages must not be installed.";
    purge, Flag Optional: "True if the removal of a package also removes its configuration files. Only with `absent`.";
    version, PackageVersion Optional: "The exact version. Only for a single package.";
    min_version, PackageVersion Optional: "The lowest version. A newer one is kept. Only for a single package.";
    hold, Switch Optional: "Whether upgrades of the system leave the packages as they are. Without it, this is not changed.";
    recommends, Flag Optional: "True if recommended packages are installed too.";
    lock_timeout, Seconds Optional: "The maximum time to wait for another package manager, in seconds: 600 by default.";
    timeout, Seconds Optional: "The maximum duration of the transaction, in seconds: 1800 by default.";
}

parameters! {
    /// The parameters of `user`.
    UserParameters:
    name, AccountName Needed: "The name of the user.";
    absent, Flag Optional: "True if the user must not exist. Its home directory is kept.";
    remove_home, Flag Optional: "True if the removal of the user also removes its home directory and mail. Only with `absent`.";
    uid, AccountId Optional: "The number of the user. Without it, the system chooses one.";
    group, Account Optional: "The primary group. Without it, a new user gets a group of its own name.";
    groups, AccountNames Optional: "Other groups of the user. The user may be in more groups, unless `exact_groups` is true.";
    exact_groups, Flag Optional: "True if the user is removed from groups that `groups` does not list.";
    home, Path Optional: "The home directory.";
    create_home, Switch Optional: "Whether a missing home directory is created: by default true, and false for a system account.";
    shell, Path Optional: "The login shell.";
    comment, Comment Optional: "The full name or purpose of the user (the GECOS field).";
    system, Flag Optional: "True if a new user gets a number of the range for system accounts.";
    locked, Switch Optional: "Whether the password is locked and the account expired, so that nobody can log in. Without it, this is not changed.";
}

parameters! {
    /// The parameters of `group_account`.
    GroupAccountParameters:
    name, AccountName Needed: "The name of the group.";
    absent, Flag Optional: "True if the group must not exist.";
    gid, AccountId Optional: "The number of the group. Without it, the system chooses one.";
    system, Flag Optional: "True if a new group gets a number of the range for system accounts.";
}

parameters! {
    /// The parameters of `directory`.
    DirectoryParameters:
    path, File Needed: "The directory. Missing directories above it are created.";
    absent, Flag Optional: "True if the directory must not exist. Only an empty directory is removed, unless `recursive` is true.";
    recursive, Flag Optional: "True if the removal of the directory also removes everything in it. Only with `absent`.";
    owner or "user_owner", Account Optional: "Its user.";
    group or "group_owner", Account Optional: "Its group.";
    mode or "permissions", Mode Optional: "Its rights.";
    dir_mode or "dir_permissions", Mode Optional: "The file mode of directories that are created above it.";
}

parameters! {
    /// The parameters of `link`. Exactly one of target and absent is required.
    LinkParameters:
    path, File Needed: "The symbolic link.";
    target, LinkTarget OneOf: "The path to which the link points: absolute, or relative to the directory of the link.";
    absent, Flag OneOf: "True if the link must not exist.";
    dir_mode or "dir_permissions", Mode Optional: "The file mode of directories that are created for the link.";
}

parameters! {
    /// The parameters of `sync`. Exactly one of src, files and, in a manifest, source_dir is required.
    SyncParameters:
    dst, File Needed: "The directory that gets the files. It is created if it is missing.";
    src, Path OneOf: "A directory on the host whose files and directories are copied.";
    files, Files OneOf: "The files: a map from a path below `dst` to the blob with the content, `sha256:…`, or in a manifest to the name of a file.";
    delete, Flag Optional: "True to remove everything else from `dst`, apart from what `ignore` names.";
    ignore, Patterns Optional: "Patterns of what is neither copied nor removed: `*.tmp` is a name at any depth, `cache/` a directory, `/a/b` a path below `dst`.";
    owner or "user_owner", Account Optional: "The user of the files and directories: by default the agent's user.";
    group or "group_owner", Account Optional: "Their group: by default the agent's group.";
    mode or "permissions", Mode Optional: "The rights of the files: by default 0644, or those of the file in `src`.";
    dir_mode or "dir_permissions", Mode Optional: "The rights of the directories: by default 0755 for new ones.";
    timeout, Count Optional: "A parameter of Fuel, without effect.";
}

parameters! {
    /// The parameters of `copy_files`.
    CopyFilesParameters:
    files, CopyList Needed: "A list of maps with `src` and `dst`. `src` is a file on the host (an absolute path) or a blob: `sha256:…`, or in a manifest a file's name.";
    overwrite, Switch Optional: "False to leave a file as it is if it exists: by default true.";
    owner or "user_owner", Account Optional: "The user of the files: by default the agent's user.";
    group or "group_owner", Account Optional: "Their group: by default the agent's group.";
    mode or "permissions", Mode Optional: "Their rights: by default 0644, or those of the file `src` on the host.";
    dir_mode or "dir_permissions", Mode Optional: "The file mode of directories that are created for the files.";
    timeout, Count Optional: "A parameter of Fuel, without effect.";
}

/// An item of the parameter `files` of `copy_files`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileCopy {
    /// The file on the host (an absolute path), or the blob.
    pub src: String,
    /// The path of the copy.
    pub dst: String,
}

/// The parameter `source_dir`, which only manifests have. The CLI reads the files of the directory and sends them as the
/// parameter `files`.
pub const SOURCE_DIR: Parameter = Parameter {
    name: "source_dir",
    alias: None,
    parameter_type: ParameterType::Text,
    presence: ParameterPresence::OneOf,
    meaning: "The directory with the files, at or below the manifest's directory.",
};
