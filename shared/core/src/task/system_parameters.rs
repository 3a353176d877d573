//! The parameters of the task types that manage parts of the operating system: units, packages, directories and
//! links.

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
