//! Rules of the tasks that manage directories: which directories no task may take away, and which parameters belong
//! together. The controller checks literal values when a task is written. Hosts check what a template renders to.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::parameter_values::{error_at, is_true, literal_text};
use super::path::{
    AGENT_CONFIG_FILE, AGENT_RUN_DIR, AGENT_STATE_DIR, DEFAULT_HOST_LABEL_MAP, MAX_NAME_BYTES, MAX_PATH_BYTES, PathRefused,
    PathUse, ancestors, canonical_path, is_at_or_below, is_temporary_name,
};
use super::patterns::PathPatterns;
use crate::name::{has_control, truncated};

/// Directories of the operating system. A task that removed all that is in one of them would break the host.
const SYSTEM_DIRS: &[&str] = &[
    "/bin",
    "/boot",
    "/etc",
    "/etc/alternatives",
    "/etc/dbus-1",
    "/etc/init.d",
    "/etc/pam.d",
    "/etc/security",
    "/etc/selinux",
    "/etc/ssh",
    "/etc/ssl",
    "/etc/systemd",
    "/etc/systemd/system",
    "/etc/udev",
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

/// Directories of the operating system whose content belongs to it at any depth.
const SYSTEM_TREES: [&str; 14] = [
    "/boot",
    "/dev",
    "/lost+found",
    "/proc",
    // Without the socket of the bus, no task can change a unit.
    "/run/dbus",
    "/run/systemd",
    "/run/udev",
    "/sys",
    "/usr",
    "/var/lib/dpkg",
    "/var/lib/rpm",
    "/var/lib/systemd",
    "/var/log/journal",
    // Without it, a fleet has no controller.
    "/var/lib/stemma-controller",
];

/// The directory below `/usr` that belongs to the people of a host. What is below it is not of the operating system.
const LOCAL_DIR: &str = "/usr/local";

/// The directory with the configuration of the agent.
const AGENT_CONFIG_DIR: &str = "/etc/stemma";

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

/// Returns the error message for a path on the host that no task may copy: it belongs to the kernel, or it is, contains or is
/// below a directory of the agent, which has keys. Returns `None` for other paths.
pub fn agent_source_error(path: &str) -> Option<String> {
    let canonical = canonical_path(path);
    if let Some(kernel_dir) = ["/dev", "/proc", "/sys"].into_iter().find(|dir| is_at_or_below(&canonical, dir)) {
        return Some(format!(
            "{:?} is below {kernel_dir}, where the kernel has no files to copy: name another path, or read it by a `shell` task",
            truncated(path)
        ));
    }
    [AGENT_STATE_DIR, AGENT_CONFIG_DIR].into_iter().find_map(|agent_dir| {
        if is_at_or_below(&canonical, agent_dir) {
            Some(format!("{:?} belongs to the agent, and no task may copy it: name another path", truncated(path)))
        } else if is_at_or_below(agent_dir, &canonical) {
            Some(format!(
                "{:?} has {agent_dir} of the agent below it, and no task may copy that: name another directory",
                truncated(path)
            ))
        } else {
            None
        }
    })
}

/// Returns the error message for a directory whose content no task may remove as a whole, because the operating system
/// needs it. Returns `None` for other paths.
pub fn system_dir_error(path: &str) -> Option<String> {
    let canonical = canonical_path(path);
    let is_local = canonical != LOCAL_DIR && is_at_or_below(&canonical, LOCAL_DIR);
    let is_in_tree = || !is_local && SYSTEM_TREES.iter().any(|tree| is_at_or_below(&canonical, tree));
    let is_system_dir = SYSTEM_DIRS.contains(&path) || SYSTEM_DIRS.contains(&canonical.as_str()) || is_in_tree();
    is_system_dir.then(|| {
        format!(
            "{:?} is a directory of the operating system, and no task may remove everything in it: name a directory of your own, such as one below /srv, /opt or /usr/local, or name single files",
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

/// Maximum number of files that a `sync` task copies from a directory of the host.
pub const MAX_SYNCED_FILES: usize = 262_144;

/// Maximum number of directories on one path of a tree.
pub const MAX_TREE_DEPTH: usize = 128;

/// Returns the error message for a text that is no path below a directory, or `None` if it is one.
pub fn relative_path_error(text: &str) -> Option<String> {
    let is_valid = text.len() <= MAX_PATH_BYTES
        && !has_control(text)
        && text.split('/').count() <= MAX_TREE_DEPTH
        && text.split('/').all(|part| !matches!(part, "" | "." | "..") && part.len() <= MAX_NAME_BYTES);
    if !is_valid {
        return Some(format!(
            "{:?} is not a path below the directory: write a plain relative path such as css/site.css, without `.`, `..` and control characters",
            truncated(text)
        ));
    }
    let has_temporary_name = text.rsplit('/').next().is_some_and(is_temporary_name);
    has_temporary_name.then(|| PathRefused::TemporaryName(truncated(text)).to_string())
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
    let mut copies = Vec::new();
    let item_error = items.iter().enumerate().find_map(|(index, item)| {
        let text = |name: &str| item.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let is_known = item.as_object().is_some_and(|map| map.keys().all(|name| matches!(name.as_str(), "src" | "dst")));
        let (Some(src), Some(dst), true) = (text("src"), text("dst"), is_known) else {
            return Some(format!("item {index}: takes a map with the two texts src and dst"));
        };
        let source_error = || {
            let is_path = src.starts_with('/');
            is_path.then(|| path_error(src, PathUse::Read).or_else(|| agent_source_error(src))).flatten()
        };
        copies.push((src, dst));
        path_error(dst, PathUse::Write).or_else(source_error).map(|error| format!("item {index}: {error}"))
    });
    item_error.or_else(|| copy_paths_error(&copies).map(|(index, error)| format!("item {index}: {error}")))
}

/// Returns the index and the error message of the first copy, as its source and its path, that cannot be made next to the
/// others: a copy of a file to itself, a second copy to one path, or one below another. Known links are resolved.
pub fn copy_paths_error(copies: &[(&str, &str)]) -> Option<(usize, String)> {
    let mut all_paths = BTreeMap::new();
    for (index, (_, dst)) in copies.iter().enumerate() {
        all_paths.entry(canonical_path(dst)).or_insert((index, *dst));
    }
    let is_also_copied = |src: &str| src.starts_with('/') && all_paths.contains_key(&canonical_path(src));
    copies.iter().enumerate().find_map(|(index, (src, dst))| {
        let path = canonical_path(dst);
        let error = if canonical_path(src) == path {
            format!("{:?} is src and dst: name another dst, or remove the item", truncated(dst))
        } else if is_also_copied(src) {
            format!(
                "{:?} is the dst of another item, which replaces it: use a task for each of them, in an order",
                truncated(src)
            )
        } else if let Some((_, earlier)) = all_paths.get(&path).filter(|(first_index, _)| *first_index < index) {
            format!("{:?} is the dst of an earlier item too ({:?})", truncated(dst), truncated(earlier))
        } else {
            let (_, parent) = ancestors(&path).skip(1).find_map(|parent| all_paths.get(parent))?;
            format!("{:?} is below {:?}, which is the dst of a file too: rename one of them", truncated(dst), truncated(parent))
        };
        Some((index, error))
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
    let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
    let leads_to_itself = |target: &str| {
        let target = if target.starts_with('/') { target.to_owned() } else { format!("{dir}/{target}") };
        is_at_or_below(&target, path)
    };
    let is_own_target = literal_text(parameters, "target").is_some_and(leads_to_itself);
    let own_error = is_own_target.then(|| error_at("target", "is the path of the link itself, or below it: name another path"));
    system_error.map(|error| error_at("path", error)).into_iter().chain(own_error).collect()
}

/// Returns the errors of a `sync` task: a directory that no task may change or empty, and a source that overlaps with it or
/// with files of the agent.
pub(super) fn sync_contradictions(parameters: &Map<String, Value>) -> Vec<(String, String)> {
    let src = literal_text(parameters, "src");
    let overlap = || overlap_error(src?, literal_text(parameters, "dst")?);
    let src_error = src.and_then(agent_source_error).or_else(overlap).map(|error| error_at("src", error));
    let pattern_error = literal_text(parameters, "dst").and_then(|dst| absolute_pattern_error(parameters, dst));
    managed_dir_error(parameters, "dst", "delete").into_iter().chain(src_error).chain(pattern_error).collect()
}

/// Returns the error if a pattern of `ignore` is a path that begins with `dst`. A pattern is a path below `dst`, so that one
/// would match nothing.
fn absolute_pattern_error(parameters: &Map<String, Value>, dst: &str) -> Option<(String, String)> {
    let ignored = parameters.get("ignore")?;
    let items = ignored.as_array().map_or(std::slice::from_ref(ignored), Vec::as_slice);
    let patterns = items.iter().filter_map(Value::as_str);
    let below_dst = |(index, pattern): (usize, &str)| Some((index, pattern.to_owned(), pattern.strip_prefix(dst)?.to_owned()));
    let mut matches = patterns.enumerate().filter_map(below_dst).filter(|(.., rest)| rest.starts_with('/'));
    let (index, pattern, rest) = matches.next()?;
    let message =
        format!("{:?} begins with dst, and a pattern is a path below dst: write {:?}", truncated(&pattern), truncated(&rest));
    Some(error_at(&format!("ignore[{index}]"), message))
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
        for path in [
            "",
            "/a",
            "a/",
            "a//b",
            ".",
            "a/..",
            "../a",
            "a/./b",
            "a\n",
            &"a/".repeat(200),
            &"a".repeat(256),
            "a/.stemma-0123456789abcdef",
        ] {
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
        assert_eq!(copies(json!([{"src": "a", "dst": "/a"}, {"src": "/c", "dst": "/ab"}, {"src": "/c", "dst": "/b"}])), None);
        for (value, expected) in [
            (json!([{"src": "a"}]), "item 0: takes a map"),
            (json!([{"src": "a", "dst": "/a", "mode": "1"}]), "item 0: takes a map"),
            (json!([{"src": "a", "dst": "/a"}, {"src": "b", "dst": "/a"}]), "item 1: \"/a\" is the dst of an earlier item too"),
            (json!([{"src": "a", "dst": "b"}]), "item 0: relative"),
            (json!([{"src": "a", "dst": "/a"}, {"src": "b", "dst": "/a/b/c"}]), "item 1: \"/a/b/c\" is below \"/a\""),
            (json!([{"src": "b", "dst": "/a/b"}, {"src": "a", "dst": "/a"}]), "item 0: \"/a/b\" is below \"/a\""),
            (json!([{"src": "a", "dst": "/run/x"}, {"src": "b", "dst": "/var/run/x"}]), "item 1: \"/var/run/x\" is the dst"),
            (json!([{"src": "/lib/x", "dst": "/usr/lib/x"}]), "item 0: \"/usr/lib/x\" is src and dst"),
            (json!([{"src": "/a", "dst": "/b"}, {"src": "/b", "dst": "/c"}]), "item 1: \"/b\" is the dst of another item"),
            (
                json!([{"src": "/var/lib/stemma-agent/sync/key", "dst": "/b"}]),
                "item 0: \"/var/lib/stemma-agent/sync/key\" belongs",
            ),
        ] {
            let error = copies(value).unwrap();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn sync_errors_name_field() {
        for (parameters, fields) in [
            (json!({"dst": "/srv/a", "src": "/srv/b", "delete": true}), vec![]),
            (json!({"dst": "/srv/a", "src": "/srv/b", "ignore": ["/keep", "/srv/a/keep"]}), vec!["parameters.ignore[1]"]),
            (json!({"dst": "/srv/a", "src": "/srv/b", "ignore": "/srv/a/keep"}), vec!["parameters.ignore[0]"]),
            (json!({"dst": "/srv/a", "src": "/srv/b", "ignore": ["/srv/ab"]}), vec![]),
            (json!({"dst": "/srv/a", "src": "/proc/sys/net"}), vec!["parameters.src"]),
            (json!({"dst": "/srv/a", "src": "/srv/a/b"}), vec!["parameters.src"]),
            (json!({"dst": "/srv/a/b", "src": "/srv/a"}), vec!["parameters.src"]),
            (json!({"dst": "/usr/share", "src": "/srv/a"}), vec![]),
            (json!({"dst": "/usr/share", "src": "/srv/a", "delete": true}), vec!["parameters.dst"]),
            (json!({"dst": "/etc", "src": "/srv/a"}), vec!["parameters.dst"]),
            (json!({"dst": "/usr/lib/x86_64-linux-gnu", "src": "/srv/a", "delete": true}), vec!["parameters.dst"]),
            (json!({"dst": "/srv/a", "src": "/var"}), vec!["parameters.src"]),
            (json!({"dst": "/srv/a", "src": "/etc"}), vec!["parameters.src"]),
            (json!({"dst": "/srv/a", "src": "/var/lib/stemma-agent/sync"}), vec!["parameters.src"]),
            (json!({"dst": "/srv/a", "src": "/etc/apt"}), vec![]),
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
        for path in ["/srv", "/opt", "/home/app", "/var/log/app", "/var/run/app"] {
            assert_eq!(system_dir_error(path), None, "{path}");
        }
    }

    /// Regression test: only the tops were refused, so a task could empty `/usr/lib/systemd` or the database of dpkg.
    #[test]
    fn system_dir_error_covers_directories_below() {
        for path in [
            "/usr/lib/x86_64-linux-gnu",
            "/lib/systemd/system",
            "/usr/share/dbus-1",
            "/usr/local",
            "/usr/local/bin",
            "/var/lib/dpkg",
            "/var/lib/dpkg/info",
            "/run/dbus",
            "/var/run/systemd/system",
            "/var/lib/systemd",
            "/boot/grub",
            "/etc/systemd",
            "/etc/pam.d",
            "/var/lib/stemma-controller",
        ] {
            assert!(system_dir_error(path).is_some(), "{path}");
        }
        for path in ["/usr/local/share/app", "/usr/local/app", "/var/lib/app", "/etc/nginx", "/etc/systemd/network", "/usrx"] {
            assert_eq!(system_dir_error(path), None, "{path}");
        }
    }

    #[test]
    fn s63_source_with_files_of_agent_is_refused() {
        for path in
            ["/var", "/var/lib", "/var/lib/stemma-agent", "/var/lib/stemma-agent/sync/key", "/etc", "/etc/stemma/agent.toml"]
        {
            assert!(agent_source_error(path).is_some(), "{path}");
        }
        for path in ["/etc/stemmata", "/var/lib/stemma", "/srv", "/run/stemma"] {
            assert_eq!(agent_source_error(path), None, "{path}");
        }
    }

    #[test]
    fn link_errors_name_field() {
        for (parameters, fields) in [
            (json!({"path": "/srv/a", "target": "b"}), vec![]),
            (json!({"path": "/srv/a", "target": "/srv/a"}), vec!["parameters.target"]),
            (json!({"path": "/srv/a", "target": "a/x"}), vec!["parameters.target"]),
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
