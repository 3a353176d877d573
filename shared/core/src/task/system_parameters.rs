//! The parameters of the task types that manage parts of the operating system: units, packages, directories and
//! links.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::Task;
use super::name_rules::unit_name;
use super::parameter_type::ParameterType;
use super::parameter_values::{error_at, is_true};
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

/// The unit of the agent.
const AGENT_UNIT: &str = "stemma-agent.service";

/// The error message of a `service` task that would end the agent.
pub const AGENT_ENDS_ITSELF: &str = "the agent does not stop, disable or mask itself, because nothing would start it again: run `stemma-agent leave` on the \
    host, or set the mode of the node to observe";

/// Units that end, stop or suspend the host when they start. Systemd lists them in `systemd.special(7)`.
const HOST_ENDING_UNITS: &[&str] = &[
    "poweroff",
    "halt",
    "reboot",
    "kexec",
    "soft-reboot",
    "shutdown",
    "umount",
    "final",
    "exit",
    "ctrl-alt-del",
    "rescue",
    "emergency",
    "runlevel0",
    "runlevel1",
    "runlevel6",
    "sleep",
    "suspend",
    "hibernate",
    "hybrid-sleep",
    "suspend-then-hibernate",
];

/// The units without which neither the agent nor `systemctl` of other users can speak to systemd.
const BUS_UNITS: &[&str] = &["dbus.service", "dbus.socket", "dbus-broker.service"];

/// The error message of a `service` task that would end or suspend its host.
pub const UNIT_ENDS_HOST: &str =
    "the start of this unit ends or suspends the host at each check: write a `reboot` task for a reboot, or remove `state`";

/// Returns whether the start of a unit ends, stops or suspends the host: a unit of [`HOST_ENDING_UNITS`], or the service of
/// one (`systemd-poweroff.service`).
pub fn ends_host(unit: &str) -> bool {
    let Some((name, unit_type)) = unit.rsplit_once('.') else { return false };
    match unit_type {
        "target" => HOST_ENDING_UNITS.contains(&name),
        "service" => {
            name == "rescue"
                || name == "emergency"
                || name.strip_prefix("systemd-").is_some_and(|name| HOST_ENDING_UNITS.contains(&name))
        }
        _ => false,
    }
}

/// Returns the errors of parameters of a `service` task that contradict each other.
pub(super) fn service_contradictions(values: &Map<String, Value>) -> Vec<(String, String)> {
    let has = |name: &str, value: Value| values.get(name) == Some(&value);
    let (is_running, is_stopped) = (has("state", "running".into()), has("state", "stopped".into()));
    let is_masked = is_true(values, "masked");
    let unit = ["unit", "name"].iter().find_map(|name| values.get(*name)?.as_str()).map(unit_name);
    let ends_agent = unit.as_deref() == Some(AGENT_UNIT) && (is_stopped || is_masked || has("enabled", false.into()));
    let ends_bus = (is_stopped || is_masked) && unit.as_deref().is_some_and(|unit| BUS_UNITS.contains(&unit));
    let rules = [
        (ends_agent, "unit", AGENT_ENDS_ITSELF),
        (
            ends_bus,
            "unit",
            "the agent speaks to systemd over D-Bus, so no task stops or masks it: remove the task, or set `enabled` only",
        ),
        (is_running && unit.as_deref().is_some_and(ends_host), "unit", UNIT_ENDS_HOST),
        (is_masked && is_running, "masked", "a masked unit cannot run: remove it, or write `state: stopped`"),
        (is_masked && is_true(values, "enabled"), "masked", "a masked unit cannot be enabled: remove it, or `enabled: true`"),
        (
            is_stopped && is_true(values, "reload"),
            "reload",
            "a stopped unit is not reloaded: remove it, or write `state: running`",
        ),
    ];
    let errors = rules.into_iter().filter(|(is_violated, ..)| *is_violated);
    errors.map(|(_, name, message)| error_at(name, message)).collect()
}

/// Returns the error of a `service` task that would do nothing, or `None` for any other task.
pub(super) fn idle_service_error(task: &Task) -> Option<(String, String)> {
    let is_set = |name: &str| task.parameters.get(name).is_some_and(|value| !value.is_null());
    let does_nothing =
        task.kind == "service" && task.subscribes.is_empty() && !["state", "enabled", "masked"].into_iter().any(is_set);
    does_nothing.then(|| {
        let message = "the task does nothing: add `state`, `enabled` or `masked`, or `subscribes` with the tasks whose changes restart the unit";
        ("parameters".to_owned(), message.to_owned())
    })
}

parameters! {
    /// The parameters of `package`.
    PackageParameters:
    name, PackageNames Needed: "A package, or a list of packages, which one transaction installs or removes. A name without an architecture means that of the host.";
    absent, Flag Optional: "True if the packages must not be installed. Packages that depend on them are removed too.";
    purge, Flag Optional: "True if the removal of a package also removes its configuration files. Only with `absent`.";
    version, PackageVersion Optional: "The exact version, also if a newer one is installed. Only for a single package.";
    min_version, PackageVersion Optional: "The lowest version. A newer one is kept. Only for a single package.";
    hold, Switch Optional: "Whether upgrades of the system leave the packages as they are. Without it, this is not changed, and a package that somebody holds gets no other version.";
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

parameters! {
    /// The parameters of `sync`. Exactly one of src, files and, in a manifest, `source_dir` is required.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::condition::testing::OneSecret;
    use crate::task::{Task, check_task};

    /// Returns the errors of a task of this type with these parameters, one in each line.
    fn errors(kind: &str, parameters: serde_json::Value) -> String {
        let serde_json::Value::Object(parameters) = parameters else { return "no parameters".to_owned() };
        let errors = check_task(&Task { parameters, ..Task::new("t", kind) }, &OneSecret);
        errors.into_iter().map(|(field, message)| format!("{field}: {message}")).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn service_parameters_must_not_contradict() {
        let masked_error = "parameters.masked: a masked unit cannot run: remove it, or write `state: stopped`";
        let enabled_error = "parameters.masked: a masked unit cannot be enabled: remove it, or `enabled: true`";
        let reload_error = "parameters.reload: a stopped unit is not reloaded: remove it, or write `state: running`";
        let host_error =
            "parameters.unit: the start of this unit ends or suspends the host at each check: write a `reboot` task for a reboot, or remove `state`".to_owned();
        for (parameters, expected) in [
            (json!({"unit": "a", "masked": true, "state": "running"}), masked_error.to_owned()),
            (json!({"unit": "a", "masked": true, "enabled": true}), enabled_error.to_owned()),
            (
                json!({"name": "a", "masked": true, "enabled": true, "state": "running"}),
                format!("{masked_error}\n{enabled_error}"),
            ),
            (json!({"unit": "a", "state": "stopped", "reload": true}), reload_error.to_owned()),
            (
                json!({"unit": "stemma-agent", "enabled": false}),
                "parameters.unit: the agent does not stop, disable or mask itself, because nothing would start it again: run `stemma-agent leave` on the \
                 host, or set the mode of the node to observe"
                    .to_owned(),
            ),
            (json!({"unit": "poweroff.target", "state": "running"}), host_error.clone()),
            (json!({"unit": "systemd-suspend", "state": "running"}), host_error.clone()),
            (json!({"unit": "emergency", "state": "running"}), host_error),
            (
                json!({"unit": "dbus", "state": "stopped"}),
                "parameters.unit: the agent speaks to systemd over D-Bus, so no task stops or masks it: remove the task, or set `enabled` only".to_owned(),
            ),
            (json!({"unit": "dbus.socket", "state": "running"}), String::new()),
            (json!({"unit": "sleep.target", "masked": true}), String::new()),
            (json!({"unit": "poweroff", "state": "running"}), String::new()),
            (json!({"unit": "stemma-agent", "state": "running"}), String::new()),
            (json!({"unit": "a", "state": "stopped", "reload": false, "enabled": true}), String::new()),
            (json!({"unit": "a", "state": "stopped", "masked": true, "enabled": false}), String::new()),
            (json!({"unit": "a", "state": "running", "masked": false, "enabled": true}), String::new()),
            (json!({"unit": "a", "state": null, "masked": true}), String::new()),
            (json!({"unit": "a@{{ labels.b }}.service", "state": "running", "reload": true}), String::new()),
        ] {
            assert_eq!(errors("service", parameters.clone()), expected, "{parameters}");
        }
    }

    /// A unit that nothing says anything about is left as it is, unless a change of another task restarts it.
    #[test]
    fn service_task_without_effect_is_refused() {
        for parameters in [json!({"unit": "a"}), json!({"unit": "a", "state": null, "reload": true, "timeout": 9})] {
            assert_eq!(
                errors("service", parameters.clone()),
                "parameters: the task does nothing: add `state`, `enabled` or `masked`, or `subscribes` with the tasks whose changes restart the unit"
            );
            let serde_json::Value::Object(parameters) = parameters else { continue };
            let task = Task { parameters, subscribes: vec!["conf".to_owned()], ..Task::new("t", "service") };
            assert_eq!(check_task(&task, &OneSecret), []);
        }
        for parameters in [json!({"unit": "a", "enabled": false}), json!({"unit": "a", "masked": false})] {
            assert_eq!(errors("service", parameters), "");
        }
    }

    #[test]
    fn service_parameters_are_checked_where_written() {
        for (parameters, expected) in [
            (json!({}), "parameters: unit is missing"),
            (json!({"unit": ["a", "b"]}), "parameters.unit: takes the name of a unit, not a list: write a task for each unit"),
            (json!({"unit": "a", "state": "started"}), "parameters.state: takes one of running, stopped, not \"started\""),
            (json!({"unit": "a", "enabled": "yes"}), "parameters.enabled: takes true or false, not \"yes\""),
            (json!({"unit": "a", "reload": 1}), "parameters.reload: takes true or false, not 1"),
            (
                json!({"unit": "a", "timeout": 0}),
                "parameters.timeout: is not a valid timeout: write at least 1 second, or remove it",
            ),
            (json!({"unit": "a", "unit_name": "b"}), "parameters.unit_name: is not a parameter of this type"),
            (json!({"unit": "a.slice"}), "parameters.unit: \"a.slice\" is not a unit that a task can manage"),
            (json!({"unit": "app@.service"}), "parameters.unit: \"app@.service\" is a template of units"),
            (json!({"unit": "../a"}), "parameters.unit: \"../a\" is not the name of a unit"),
            (json!({"unit": "a {{ secret('db') }}", "state": "running"}), "parameters.unit: reads a secret"),
        ] {
            let errors = errors("service", parameters.clone());
            assert!(errors.starts_with(expected), "{parameters}: {errors}");
        }
    }
}
