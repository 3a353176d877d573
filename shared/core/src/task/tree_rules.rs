//! Rules of the tasks that manage directories: which directories no task may take away, and which parameters belong
//! together. The controller checks literal values when a task is written. Hosts check what a template renders to.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::parameters::{error_at, is_true, literal_text};
use super::path::{
    AGENT_CONFIG_FILE, AGENT_RUN_DIR, AGENT_STATE_DIR, DEFAULT_HOST_LABEL_MAP, MAX_NAME_BYTES, MAX_PATH_BYTES, PathUse,
    canonical_path, is_at_or_below,
};
use super::patterns::PathPatterns;
use crate::name::{has_control, truncated};

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

/// Returns the error message for a link that no task may replace or remove, because the operating system needs what is
/// there: a link of the system such as `/lib64`, and if the link is removed (`is_absent`) also a directory of the system
/// that can be a link, such as `/home`. Returns `None` for other paths.
pub fn system_link_error(path: &str, is_absent: bool) -> Option<String> {
    let canonical = canonical_path(path);
    let is_system_link = canonical != path && SYSTEM_DIRS.contains(&canonical.as_str());
    (is_system_link || is_absent && SYSTEM_DIRS.contains(&path)).then(|| {
        format!("{:?} belongs to the operating system, and no task may replace or remove it: name another path", truncated(path))
    })
}

/// Maximum number of files of a `sync` or `copy_files` task.
pub const MAX_TREE_FILES: usize = 4096;

/// Maximum number of directories on one path of a tree.
pub const MAX_TREE_DEPTH: usize = 128;

/// Returns the error message for a text that is no path below a directory, or `None` if it is one.
pub fn relative_path_error(text: &str) -> Option<String> {
    let is_valid = text.len() <= MAX_PATH_BYTES
        && !has_control(text)
        && text.split('/').count() <= MAX_TREE_DEPTH
        && text.split('/').all(|part| !matches!(part, "" | "." | "..") && part.len() <= MAX_NAME_BYTES);
    (!is_valid).then(|| {
        format!(
            "{:?} is not a path below the directory: write a plain relative path such as css/site.css, without `.`, `..` and control characters",
            truncated(text)
        )
    })
}

/// Returns the error message for the parameter `files` of `sync`, or `None` if it is valid.
pub(super) fn files_error(files: &Map<String, Value>) -> Option<String> {
    if files.is_empty() {
        return Some("has no file: name one, or remove the task".to_owned());
    }
    if files.len() > MAX_TREE_FILES {
        return Some(format!("has {} files: at most {MAX_TREE_FILES} are allowed; use several tasks", files.len()));
    }
    files.iter().find_map(|(path, source)| {
        let parent = path.rmatch_indices('/').map(|(index, _)| &path[..index]).find(|parent| files.contains_key(*parent));
        let parent_error =
            || parent.map(|parent| format!("{:?} is below {:?}, which is a file too", truncated(path), truncated(parent)));
        let source_error = || {
            let is_named = source.as_str().is_some_and(|text| !text.is_empty() && !has_control(text));
            (!is_named).then(|| format!("{:?} must have a text as its value: the name of a file, or sha256:…", truncated(path)))
        };
        relative_path_error(path).or_else(parent_error).or_else(source_error)
    })
}

/// Returns the error message for the parameter `files` of `copy_files`, or `None` if it is valid. `path_error` checks an
/// absolute path.
pub(super) fn copy_list_error(items: &[Value], path_error: &dyn Fn(&str, PathUse) -> Option<String>) -> Option<String> {
    if items.len() > MAX_TREE_FILES {
        return Some(format!("has {} files: at most {MAX_TREE_FILES} are allowed; use several tasks", items.len()));
    }
    let mut paths = BTreeSet::new();
    items.iter().enumerate().find_map(|(index, item)| {
        let text = |name: &str| item.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let is_known = item.as_object().is_some_and(|map| map.keys().all(|name| matches!(name.as_str(), "src" | "dst")));
        let (Some(src), Some(dst), true) = (text("src"), text("dst"), is_known) else {
            return Some(format!("item {index}: takes a map with the two texts src and dst"));
        };
        let source_error = || if src.starts_with('/') { path_error(src, PathUse::Read) } else { None };
        let repeated = (!paths.insert(dst)).then(|| format!("{:?} is the dst of an earlier item too", truncated(dst)));
        repeated.or_else(|| path_error(dst, PathUse::Write)).or_else(source_error).map(|error| format!("item {index}: {error}"))
    })
}

/// Returns the patterns of what a task neither writes nor removes below its path.
pub fn ignored_patterns(parameters: &Map<String, Value>) -> PathPatterns {
    let patterns = match parameters.get("ignore") {
        Some(Value::String(pattern)) => vec![pattern.clone()],
        Some(Value::Array(items)) => items.iter().filter_map(|item| Some(item.as_str()?.to_owned())).collect(),
        _ => Vec::new(),
    };
    PathPatterns::new(patterns)
}

/// Returns the errors of a `directory` task: a removal with its content that is no removal, and a path that no task may
/// change.
pub(super) fn directory_contradictions(parameters: &Map<String, Value>) -> Vec<(String, String)> {
    let mut errors = Vec::new();
    if is_true(parameters, "recursive") && !is_true(parameters, "absent") {
        errors.push(error_at("recursive", "works only with `absent: true`: add that, or remove recursive"));
    }
    errors.extend(managed_dir_error(parameters, "path", "recursive"));
    errors
}

/// Returns the errors of a `link` task: a path that no task may change, and a link to itself.
pub(super) fn link_contradictions(parameters: &Map<String, Value>) -> Vec<(String, String)> {
    let Some(path) = literal_text(parameters, "path") else { return Vec::new() };
    let system_error = system_link_error(path, is_true(parameters, "absent"));
    let is_own_target = literal_text(parameters, "target") == Some(path);
    let own_error = is_own_target.then(|| error_at("target", "is the path of the link itself: name another path"));
    system_error.map(|error| error_at("path", error)).into_iter().chain(own_error).collect()
}

/// Returns the errors of a `sync` task: a directory that no task may change or empty, and a source that overlaps with it.
pub(super) fn sync_contradictions(parameters: &Map<String, Value>) -> Vec<(String, String)> {
    let overlap = || overlap_error(literal_text(parameters, "src")?, literal_text(parameters, "dst")?);
    let overlap = overlap().map(|error| error_at("src", error));
    managed_dir_error(parameters, "dst", "delete").into_iter().chain(overlap).collect()
}

/// Returns the error if no task may change the directory in the parameter `name`, or if the task removes all that is in
/// it and may not. The task does so if the parameter `removal` is true.
fn managed_dir_error(parameters: &Map<String, Value>, name: &str, removal: &str) -> Option<(String, String)> {
    let path = literal_text(parameters, name)?;
    let system_error = || is_true(parameters, removal).then(|| system_dir_error(path)).flatten();
    agent_parent_error(path).or_else(system_error).map(|error| error_at(name, error))
}

/// Returns the error message for a source directory that is at, above or below the directory that gets the files.
pub fn overlap_error(src: &str, dst: &str) -> Option<String> {
    let (canonical_src, canonical_dst) = (canonical_path(src), canonical_path(dst));
    let overlaps = is_at_or_below(&canonical_src, &canonical_dst) || is_at_or_below(&canonical_dst, &canonical_src);
    overlaps.then(|| format!("{:?} overlaps with dst {:?}: name two separate directories", truncated(src), truncated(dst)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn s63_relative_path_error_rejects_path_tricks() {
        for path in ["a", "a/b", ".hidden", "a b", "...", "\u{e4}"] {
            assert_eq!(relative_path_error(path), None, "{path}");
        }
        for path in ["", "/a", "a/", "a//b", ".", "a/..", "../a", "a/./b", "a\n", &"a/".repeat(200), &"a".repeat(256)] {
            assert!(relative_path_error(path).is_some(), "{path}");
        }
    }

    #[test]
    fn files_and_copy_list_errors_name_item() {
        let files = |value: Value| files_error(value.as_object().unwrap());
        assert_eq!(files(json!({"a": "x", "b/c": "sha256:0"})), None);
        for value in [json!({}), json!({"../a": "x"}), json!({"a": 1}), json!({"a": ""}), json!({"a": "x", "a/b": "x"})] {
            assert!(files(value.clone()).is_some(), "{value}");
        }
        let path_error = |text: &str, _: PathUse| (!text.starts_with('/')).then(|| "relative".to_owned());
        let copies = |value: Value| copy_list_error(value.as_array().unwrap(), &path_error);
        assert_eq!(copies(json!([{"src": "a", "dst": "/a"}, {"src": "/b", "dst": "/b"}])), None);
        for (value, expected) in [
            (json!([{"src": "a"}]), "item 0: takes a map"),
            (json!([{"src": "a", "dst": "/a", "mode": "1"}]), "item 0: takes a map"),
            (json!([{"src": "a", "dst": "/a"}, {"src": "b", "dst": "/a"}]), "item 1: \"/a\" is the dst of an earlier item too"),
            (json!([{"src": "a", "dst": "b"}]), "item 0: relative"),
        ] {
            assert!(copies(value).unwrap().starts_with(expected));
        }
    }

    #[test]
    fn sync_errors_name_field() {
        for (parameters, fields) in [
            (json!({"dst": "/srv/a", "src": "/srv/b", "delete": true}), vec![]),
            (json!({"dst": "/srv/a", "src": "/srv/a/b"}), vec!["parameters.src"]),
            (json!({"dst": "/srv/a/b", "src": "/srv/a"}), vec!["parameters.src"]),
            (json!({"dst": "/usr/share", "src": "/srv/a"}), vec![]),
            (json!({"dst": "/usr/share", "src": "/srv/a", "delete": true}), vec!["parameters.dst"]),
            (json!({"dst": "/etc", "src": "/srv/a"}), vec!["parameters.dst"]),
        ] {
            let errors = sync_contradictions(parameters.as_object().unwrap());
            assert_eq!(errors.iter().map(|(field, _)| field.as_str()).collect::<Vec<_>>(), fields, "{parameters}");
        }
    }

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
    fn link_errors_name_field() {
        for (parameters, fields) in [
            (json!({"path": "/srv/a", "target": "b"}), vec![]),
            (json!({"path": "/srv/a", "target": "/srv/a"}), vec!["parameters.target"]),
            (json!({"path": "/bin", "target": "/tmp"}), vec!["parameters.path"]),
            (json!({"path": "/var/run", "absent": true}), vec!["parameters.path"]),
            (json!({"path": "/home", "target": "/srv/home"}), vec![]),
            (json!({"path": "/home", "absent": true}), vec!["parameters.path"]),
            (json!({"path": "/usr/bin/python", "target": "python3"}), vec![]),
            (json!({"path": "/{{ labels.a }}", "absent": true}), vec![]),
        ] {
            let errors = link_contradictions(parameters.as_object().unwrap());
            assert_eq!(errors.iter().map(|(field, _)| field.as_str()).collect::<Vec<_>>(), fields, "{parameters}");
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
