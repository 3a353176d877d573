//! The parameters of the task types that manage accounts: `user` and `group_account`.

use serde_json::{Map, Value};

use super::name_rules::comment_error;
use super::parameter_type::ParameterType;
use super::parameter_values::{error_at, is_set, is_true, literal_text};
use super::parameters::{NameList, Parameter, ParameterPresence, ParameterTable, TypedParameters, parameters};
use super::path::{check_replaceable, check_writable};
use crate::name::truncated;

/// The account under which the controller runs. An agent of the same machine must not remove or renumber it.
pub const CONTROLLER_ACCOUNT: &str = "stemma";

/// The parameters that may be set in a task that removes a user.
const ABSENT_USER_PARAMETERS: &[&str] = &["name", "absent", "remove_home"];

/// The parameters that may be set in a task that removes a group.
const ABSENT_GROUP_PARAMETERS: &[&str] = &["name", "absent"];

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
    home, Directory Optional: "The home directory.";
    create_home, Switch Optional: "Whether a missing home directory is created: by default true for a user with a number from 1000, and false for a system account.";
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

/// Returns the errors of parameters of a `user` task that contradict or need each other, each as the path of the field
/// and a message.
pub(super) fn user_contradictions(parameters: &Map<String, Value>) -> Vec<(String, String)> {
    let mut errors = absence_errors(parameters, ABSENT_USER_PARAMETERS);
    if is_true(parameters, "remove_home") && !is_true(parameters, "absent") {
        let message = "removes the home directory of a user that is removed: add `absent: true`, or remove it";
        errors.push(error_at("remove_home", message));
    }
    if is_true(parameters, "exact_groups") && !is_set(parameters, "groups") {
        errors.push(error_at("exact_groups", "needs the list `groups`: write the groups of the user, or remove it"));
    }
    if parameters.get("name").and_then(Value::as_str) == Some("root") {
        if let Some(name) = ["uid", "group"].into_iter().find(|name| is_set(parameters, name)) {
            errors.push(error_at(name, "changes the number or group of root, and nobody could administer the host: remove it"));
        }
        if literal_text(parameters, "home").is_some_and(|home| home != "/root") {
            errors.push(error_at("home", "moves the home directory of root, whose processes never end: remove it"));
        }
        let shell = literal_text(parameters, "shell").unwrap_or_default();
        if shell.ends_with("/nologin") || shell.ends_with("/false") {
            errors.push(error_at("shell", "lets nobody log in as root, and then su and sudo fail: remove it"));
        }
        if is_true(parameters, "locked") {
            errors.push(error_at(
                "locked",
                "makes root expire, and then cron, su and sudo refuse it: write a `shell` task with `passwd -l root`",
            ));
        }
    }
    if parameters.get("name").and_then(Value::as_str) == Some(CONTROLLER_ACCOUNT) {
        let names = ["uid", "group"].into_iter().filter(|name| is_set(parameters, name));
        for name in names.chain(is_true(parameters, "locked").then_some("locked")) {
            errors.push(error_at(name, CONTROLLER_ACCOUNT_STAYS));
        }
    }
    let has_required_home = is_true(parameters, "create_home");
    let home_error = |home: &str| comment_error(home).or_else(|| home_place_error(home, has_required_home));
    errors.extend(literal_text(parameters, "home").and_then(home_error).map(|message| error_at("home", message)));
    errors.extend(literal_text(parameters, "shell").and_then(login_shell_error).map(|message| error_at("shell", message)));
    errors.extend(protected_name_error(parameters, "user"));
    errors
}

/// Returns the errors of parameters of a `group_account` task that contradict each other, each as the path of the field
/// and a message.
pub(super) fn group_contradictions(parameters: &Map<String, Value>) -> Vec<(String, String)> {
    let mut errors = absence_errors(parameters, ABSENT_GROUP_PARAMETERS);
    if parameters.get("name").and_then(Value::as_str) == Some("root") && is_set(parameters, "gid") {
        errors.push(error_at("gid", "changes the number of the group root, to which files of the system belong: remove it"));
    }
    if parameters.get("name").and_then(Value::as_str) == Some(CONTROLLER_ACCOUNT) && is_set(parameters, "gid") {
        errors.push(error_at("gid", CONTROLLER_ACCOUNT_STAYS));
    }
    errors.extend(protected_name_error(parameters, "group"));
    errors
}

/// Returns the error message for a text that cannot be a login shell in `/etc/passwd`, or `None` if it can. The whole
/// field is the path of the program.
pub fn login_shell_error(text: &str) -> Option<String> {
    let has_blank = text.contains(char::is_whitespace);
    comment_error(text).or_else(|| {
        has_blank.then(|| {
            format!("{:?} has a blank, and a login shell has no arguments: write the path of the program", truncated(text))
        })
    })
}

/// Returns the error message for a home directory where none can be created, or `None` for another one. `/dev/null`
/// stands for no home directory, unless the task requires one.
fn home_place_error(home: &str, is_required: bool) -> Option<String> {
    if home == "/dev/null" && !is_required {
        return None;
    }
    check_writable(home).err()?;
    let owner = if check_replaceable(home).is_err() { "the kernel" } else { "the agent" };
    Some(format!("{:?} belongs to {owner}, and nobody has a home directory there: write another path", truncated(home)))
}

/// Returns an error for each parameter that describes an account although the task removes the account.
fn absence_errors(parameters: &Map<String, Value>, allowed: &[&str]) -> Vec<(String, String)> {
    if !is_true(parameters, "absent") {
        return Vec::new();
    }
    let is_contradiction = |name: &&String| !allowed.contains(&name.as_str()) && is_set(parameters, name);
    let contradiction = |name: &String| error_at(name, "describes an account that `absent: true` removes: remove one of both");
    parameters.keys().filter(is_contradiction).map(contradiction).collect()
}

/// The error message of a task that changes the account of the controller.
const CONTROLLER_ACCOUNT_STAYS: &str =
    "changes the account of the controller of Stemma, which could not read its files any more: remove it";

/// Accounts without which the bus, the package manager or the network of a host does not work.
const SYSTEM_ACCOUNTS: &[&str] =
    &["_apt", "dbus", "messagebus", "nobody", "nogroup", "systemd-network", "systemd-resolve", "systemd-journal"];

/// Returns the error if the task removes an account of the system or of the controller. `kind` is `user` or `group`.
fn protected_name_error(parameters: &Map<String, Value>, kind: &str) -> Option<(String, String)> {
    let name = parameters.get("name").and_then(Value::as_str).filter(|_| is_true(parameters, "absent"))?;
    let needed_by = match name {
        "root" => "the system",
        name if SYSTEM_ACCOUNTS.contains(&name) => "the system",
        CONTROLLER_ACCOUNT => "the controller of Stemma",
        _ => return None,
    };
    Some(error_at("absent", format!("would remove the {kind} {name}, which {needed_by} needs: remove the task")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::condition::testing::OneSecret;
    use crate::task::{Task, check_task};

    /// Returns the errors of a task of this type, in one text.
    fn errors(kind: &str, parameters: &Value) -> String {
        let task = Task { parameters: parameters.as_object().cloned().unwrap(), ..Task::new("t", kind) };
        let errors = check_task(&task, &OneSecret).into_iter().map(|(field, message)| format!("{field}: {message}"));
        errors.collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn account_task_is_accepted_when_parameters_agree() {
        for (kind, parameters) in [
            (
                "user",
                json!({"name": "web", "uid": 990, "group": "web", "groups": ["adm", "{{ labels.team }}"], "exact_groups": true}),
            ),
            ("user", json!({"name": "{{ labels.team }}", "home": "/srv/{{ labels.team }}", "shell": "/bin/sh", "locked": false})),
            ("user", json!({"name": "web", "absent": true, "remove_home": true, "uid": null, "system": false})),
            (
                "user",
                json!({"name": "ada", "home": "/", "groups": [], "exact_groups": true, "create_home": true, "comment": "Ada, room 4"}),
            ),
            ("user", json!({"name": "root", "shell": "/bin/bash", "groups": "adm"})),
            ("user", json!({"name": "web", "home": "/dev/null", "groups": ["{{ labels.a }}", "{{ labels.b }}"]})),
            ("user", json!({"name": "web", "home": "/proc{{ labels.team }}", "shell": "{{ labels.shell }}"})),
            ("group_account", json!({"name": "web", "gid": 990, "system": true})),
            ("group_account", json!({"name": "web", "absent": true})),
        ] {
            assert_eq!(errors(kind, &parameters), "", "{parameters}");
        }
    }

    #[test]
    fn account_task_is_refused_when_parameters_contradict() {
        for (kind, parameters, expected) in [
            (
                "user",
                json!({"name": "web", "remove_home": true}),
                "parameters.remove_home: removes the home directory of a user that is",
            ),
            ("user", json!({"name": "web", "exact_groups": true}), "parameters.exact_groups: needs the list `groups`"),
            (
                "user",
                json!({"name": "web", "absent": true, "uid": 7}),
                "parameters.uid: describes an account that `absent: true` removes",
            ),
            (
                "user",
                json!({"name": "root", "absent": true}),
                "parameters.absent: would remove the user root, which the system needs",
            ),
            (
                "user",
                json!({"name": "stemma", "absent": true}),
                "parameters.absent: would remove the user stemma, which the controller",
            ),
            ("user", json!({"name": "root", "uid": 5}), "parameters.uid: changes the number or group of root"),
            ("user", json!({"name": "root", "locked": true}), "parameters.locked: makes root expire"),
            ("user", json!({"name": "stemma", "locked": true}), "parameters.locked: changes the account of the controller"),
            ("group_account", json!({"name": "stemma", "gid": 7}), "parameters.gid: changes the account of the controller"),
            ("user", json!({"name": "root", "home": "/srv"}), "parameters.home: moves the home directory of root"),
            ("user", json!({"name": "root", "shell": "/usr/sbin/nologin"}), "parameters.shell: lets nobody log in as root"),
            ("user", json!({"name": "_apt", "absent": true}), "parameters.absent: would remove the user _apt, which the system"),
            ("user", json!({"name": "web", "uid": 0}), "parameters.uid: 0 is not a number for an account"),
            ("user", json!({"name": "web", "comment": "a:b"}), "parameters.comment: \"a:b\" does not fit into /etc/passwd"),
            ("user", json!({"name": "-web"}), "parameters.name: \"-web\" is not a name for an account"),
            ("user", json!({"name": "web", "groups": ["adm", "-x"]}), "parameters.groups: item 1: \"-x\" is not an account"),
            ("user", json!({"name": "web", "home": "srv"}), "parameters.home: path \"srv\" is relative"),
            ("user", json!({"name": "web", "shell": "/bin/a:b"}), "parameters.shell: \"/bin/a:b\" does not fit into /etc/passwd"),
            (
                "user",
                json!({"name": "web", "groups": "adm,sudo"}),
                "parameters.groups: \"adm,sudo\" is not the name of one group: write a list, [adm, sudo]",
            ),
            (
                "user",
                json!({"name": "web", "groups": ["adm", "a,b"]}),
                "parameters.groups: item 1: \"a,b\" is not the name of one",
            ),
            (
                "user",
                json!({"name": "web", "groups": ["adm", "adm"]}),
                "parameters.groups: item 1: \"adm\" is there twice: remove",
            ),
            (
                "user",
                json!({"name": "web", "shell": "/bin/sh -l"}),
                "parameters.shell: \"/bin/sh -l\" has a blank, and a login shell has no arguments: write the path of the program",
            ),
            ("user", json!({"name": "web", "home": "/proc/a"}), "parameters.home: \"/proc/a\" belongs to the kernel, and nobody"),
            ("user", json!({"name": "web", "home": "/sys"}), "parameters.home: \"/sys\" belongs to the kernel"),
            (
                "user",
                json!({"name": "web", "home": "/dev/null", "create_home": true}),
                "parameters.home: \"/dev/null\" belongs to",
            ),
            (
                "user",
                json!({"name": "web", "home": "/var/lib/stemma-agent/x"}),
                "parameters.home: \"/var/lib/stemma-agent/x\" belongs",
            ),
            ("user", json!({"uid": 7}), "parameters: name is missing"),
            ("group_account", json!({"name": "web", "absent": true, "gid": 7}), "parameters.gid: describes an account"),
            ("group_account", json!({"name": "root", "gid": 7}), "parameters.gid: changes the number of the group root"),
            ("group_account", json!({"name": "root", "absent": true}), "parameters.absent: would remove the group root"),
            ("group_account", json!({"name": "web", "gid": "7"}), "parameters.gid: takes a whole number from 1, not \"7\""),
        ] {
            let errors = errors(kind, &parameters);
            assert!(errors.starts_with(expected), "{parameters}: {errors}");
        }
    }
}
