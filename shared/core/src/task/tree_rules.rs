//! Rules of the tasks that manage directories: which directories no task may take away, and which parameters belong
//! together. The controller checks literal values when a task is written. Hosts check what a template renders to.

use serde_json::{Map, Value};

use super::path::{
    AGENT_CONFIG_FILE, AGENT_RUN_DIR, AGENT_STATE_DIR, DEFAULT_HOST_LABEL_MAP, canonical_path, is_at_or_below, is_template,
};
use crate::name::truncated;

/// Directories of the operating system. A task that removed all that is in one of them would break the host.
const SYSTEM_DIRS: &[&str] = &[
    "/bin",
    "/boot",
    "/etc",
    "/home",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/lost+found",
    "/root",
    "/run",
    "/sbin",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/include",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/libx32",
    "/usr/local",
    "/usr/local/bin",
    "/usr/local/lib",
    "/usr/local/sbin",
    "/usr/sbin",
    "/usr/share",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/mail",
    "/var/spool",
    "/var/tmp",
];

/// The files and directories of the agent. A task that changed a directory above one of them could replace it.
const AGENT_PATHS: [&str; 4] = [AGENT_STATE_DIR, AGENT_RUN_DIR, AGENT_CONFIG_FILE, DEFAULT_HOST_LABEL_MAP];

/// Returns the error message for a directory that no task may change or remove, because files of the agent are below it.
/// Returns `None` for other paths.
pub fn agent_parent_error(path: &str) -> Option<String> {
    let canonical = canonical_path(path);
    let agent_path = AGENT_PATHS.into_iter().find(|agent_path| is_at_or_below(agent_path, &canonical))?;
    Some(format!(
        "{:?} has {agent_path} of the agent below it, so no task may change its rights or remove it: name another directory",
        truncated(path)
    ))
}

/// Returns the error message for a directory whose content no task may remove as a whole, because the operating system
/// needs it. Returns `None` for other paths.
pub fn system_dir_error(path: &str) -> Option<String> {
    let is_system_dir = SYSTEM_DIRS.contains(&path) || SYSTEM_DIRS.contains(&canonical_path(path).as_str());
    is_system_dir.then(|| {
        format!(
            "{:?} is a directory of the operating system, and no task may remove everything in it: name a directory below it",
            truncated(path)
        )
    })
}

/// Returns the errors of a `directory` task: a removal with its content that is no removal, and a path that no task may
/// change.
pub(super) fn directory_contradictions(parameters: &Map<String, Value>) -> Vec<(String, String)> {
    let is_set = |name: &str| parameters.get(name) == Some(&Value::Bool(true));
    let mut errors = Vec::new();
    if is_set("recursive") && !is_set("absent") {
        let message = "works only with `absent: true`: add that, or remove recursive".to_owned();
        errors.push(("parameters.recursive".to_owned(), message));
    }
    if let Some(path) = parameters.get("path").and_then(Value::as_str).filter(|path| !is_template(path)) {
        let system_error = || is_set("recursive").then(|| system_dir_error(path)).flatten();
        errors.extend(agent_parent_error(path).or_else(system_error).map(|error| ("parameters.path".to_owned(), error)));
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `/var/run` is a known link to `/run`.
    #[test]
    fn s63_directory_above_agent_files_is_refused() {
        for path in ["/etc", "/etc/stemma", "/var", "/var/lib", "/var/lib/stemma-agent", "/run", "/var/run", "/run/stemma"] {
            assert!(agent_parent_error(path).is_some(), "{path}");
        }
        for path in ["/etc/stemma/hooks.d", "/etc/stemmata", "/srv", "/var/lib/app", "/var/cache"] {
            assert_eq!(agent_parent_error(path), None, "{path}");
        }
    }

    #[test]
    fn system_dir_error_covers_known_links() {
        for path in ["/usr", "/bin", "/lib64", "/usr/tmp", "/var/run", "/home", "/var/log"] {
            assert!(system_dir_error(path).is_some(), "{path}");
        }
        for path in ["/srv", "/opt", "/home/app", "/var/log/app", "/usr/share/app"] {
            assert_eq!(system_dir_error(path), None, "{path}");
        }
    }

    #[test]
    fn directory_errors_name_field() {
        for (parameters, fields) in [
            (json!({"path": "/srv/a", "recursive": true}), vec!["parameters.recursive"]),
            (json!({"path": "/srv/a", "recursive": true, "absent": true}), vec![]),
            (json!({"path": "/home", "absent": true}), vec![]),
            (json!({"path": "/home", "absent": true, "recursive": true}), vec!["parameters.path"]),
            (json!({"path": "/etc/stemma"}), vec!["parameters.path"]),
            (json!({"path": "/{{ labels.a }}", "absent": true, "recursive": true}), vec![]),
        ] {
            let errors = directory_contradictions(parameters.as_object().unwrap());
            assert_eq!(errors.iter().map(|(field, _)| field.as_str()).collect::<Vec<_>>(), fields, "{parameters}");
        }
    }
}
