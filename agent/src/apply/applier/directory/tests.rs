//! Directory tasks on an in-memory host, and on a real one below a temporary root.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::apply::applier::testing::{block_on, site_of, task_of};
use crate::host::Host;
use crate::host::memory::MemoryHost;
use crate::host::real::RealHost;

fn task(parameters: &Value) -> HostTask {
    task_of(("dir", "directory"), parameters, &[])
}

fn check(host: &MemoryHost, parameters: &Value) -> Result<CheckResult, TaskError> {
    block_on(DirectoryApplier.check(&site_of(Rc::new(host.clone())), &task(parameters)))
}

fn apply(host: &MemoryHost, parameters: &Value) -> Result<ApplyResult, TaskError> {
    block_on(DirectoryApplier.apply(&site_of(Rc::new(host.clone())), &task(parameters)))
}

/// Returns mode, owner and group of an entry, or `None` if it does not exist.
fn rights(host: &MemoryHost, path: &str) -> Option<(u32, u32, u32)> {
    let path = HostPath::parse(path).unwrap();
    let stat = host.parent_dir(&path).unwrap()?.stat(path.name()).unwrap()?;
    Some((stat.mode, stat.user, stat.group))
}

/// The user `www-data` of the in-memory host has the number 33.
#[test]
fn apply_creates_directory_and_those_above() {
    let host = MemoryHost::new();
    let parameters = json!({"path": "/srv/a/b", "mode": "2750", "owner": "www-data", "group": "33", "dir_mode": "0711"});
    let Ok(CheckResult::Drifted { diff, .. }) = check(&host, &parameters) else { panic!("the directory does not exist") };
    assert_eq!(diff, "--- /dev/null\n+++ /srv/a/b\n+directory\n+mode 2750\n+owner 33:33\n");
    assert_eq!(apply(&host, &parameters).unwrap().diff, diff);
    assert_eq!(rights(&host, "/srv/a/b"), Some((0o2750, 33, 33)));
    assert_eq!(rights(&host, "/srv/a"), Some((0o711, 0, 0)));
    assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
}

#[test]
fn apply_changes_only_set_parameters() {
    for (parameters, expected_diff, expected_rights) in [
        (json!({"path": "/srv/a"}), "", (0o770, 7, 7)),
        (json!({"path": "/srv/a", "mode": "0755"}), "-mode 0770\n+mode 0755\n", (0o755, 7, 7)),
        (json!({"path": "/srv/a", "group": "33"}), "-owner 7:7\n+owner 7:33\n", (0o770, 7, 33)),
        (
            json!({"path": "/srv/a", "owner": "root", "group": "root", "mode": "0700"}),
            "-mode 0770\n-owner 7:7\n+mode 0700\n+owner 0:0\n",
            (0o700, 0, 0),
        ),
    ] {
        let host = MemoryHost::new();
        host.put("/srv/a/f", "kept");
        host.chmod("/srv/a", 0o770);
        host.chown("/srv/a", 7);
        host.chgrp("/srv/a", 7);
        match check(&host, &parameters).unwrap() {
            CheckResult::Converged => assert_eq!(expected_diff, ""),
            CheckResult::Drifted { diff, .. } => {
                assert_eq!(diff, format!("--- /srv/a\n+++ /srv/a\n{expected_diff}"));
                apply(&host, &parameters).unwrap();
            }
            result => panic!("{result:?}"),
        }
        assert_eq!(rights(&host, "/srv/a"), Some(expected_rights), "{parameters}");
        assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
        assert_eq!(host.text("/srv/a/f").as_deref(), Some("kept"));
    }
}

/// The directory `/tmp` is open to all users, so its owner may have made `/tmp/a`. In `/srv`, root gave it to a service.
#[test]
fn s67_new_owner_is_alone_in_directory_of_other_user() {
    for (parent_mode, expected_mode) in [(0o1777, 0o755), (0o755, 0o777)] {
        let host = MemoryHost::new();
        host.put_dir("/tmp/a");
        host.chmod("/tmp", parent_mode);
        host.chmod("/tmp/a", 0o777);
        host.chown("/tmp/a", 7);
        let result = apply(&host, &json!({"path": "/tmp/a", "owner": "www-data"})).unwrap();
        assert_eq!(rights(&host, "/tmp/a"), Some((expected_mode, 33, 0)));
        let message = if expected_mode == 0o755 { "mode 0777 becomes 0755" } else { "" };
        assert_eq!(result.message, message);
    }
}

/// The message says what is there, and a link is never followed.
#[test]
fn s65_other_file_at_path_is_refused_by_name() {
    let host = MemoryHost::new();
    host.put("/srv/file", "x");
    host.put_link_to("/srv/link", "/etc");
    host.put_special("/srv/fifo");
    for (path, found) in
        [("/srv/file", "a regular file"), ("/srv/link", "a symbolic link"), ("/srv/fifo", "a device, socket or FIFO")]
    {
        for mut parameters in [json!({"mode": "0700"}), json!({"absent": true}), json!({"absent": true, "recursive": true})] {
            parameters["path"] = json!(path);
            let expected = format!("{path} is {found}, where a directory was expected: move it away, or name another path");
            assert_eq!(check(&host, &parameters).unwrap_err().message, expected);
            assert_eq!(apply(&host, &parameters).unwrap_err().message, expected);
        }
    }
    let error = check(&host, &json!({"path": "/srv/link/a"})).unwrap_err();
    assert!(error.message.contains("/srv/link is a symbolic link, and links are not followed"), "{}", error.message);
    assert_eq!(host.list("/srv"), ["fifo", "file", "link"]);
}

#[test]
fn absent_removes_only_empty_directory() {
    let host = MemoryHost::new();
    let parameters = json!({"path": "/srv/a", "absent": true});
    assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged), "nothing is there");
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        host.put(&format!("/srv/a/{name}"), "");
    }
    let expected = "/srv/a is not empty, and is left as it was: it has a, b, c, d, e and 2 more; remove these, or set `recursive: true` to remove \
                    all that is in it";
    let Ok(CheckResult::Blocked { message, .. }) = check(&host, &parameters) else { panic!("the directory is not empty") };
    assert_eq!(message, expected);
    assert_eq!(apply(&host, &parameters).unwrap_err().message, expected);
    assert_eq!(host.list("/srv/a").len(), 7);
    for name in host.list("/srv/a") {
        host.delete(&format!("/srv/a/{name}"));
    }
    let diff = "--- /srv/a\n+++ /dev/null\n-directory\n-mode 0755\n-owner 0:0\n";
    assert_eq!(apply(&host, &parameters).unwrap().diff, diff);
    assert_eq!(host.list("/srv"), [""; 0]);
}

#[test]
fn recursive_removes_links_and_files_of_tree() {
    let host = MemoryHost::new();
    host.put("/etc/f", "kept");
    host.put("/srv/a/b/c/f", "x");
    host.put("/srv/a/g", "x");
    host.put_link_to("/srv/a/b/link", "/etc");
    host.put_special("/srv/a/fifo");
    let parameters = json!({"path": "/srv/a", "absent": true, "recursive": true});
    let Ok(CheckResult::Drifted { diff, .. }) = check(&host, &parameters) else { panic!("the tree exists") };
    assert_eq!(diff, "--- /srv/a\n+++ /dev/null\n-directory\n-mode 0755\n-owner 0:0\n-b/\n-b/c/\n-b/c/f\n-b/link\n-fifo\n-g\n");
    apply(&host, &parameters).unwrap();
    assert_eq!((host.list("/srv"), host.text("/etc/f").as_deref()), (vec![], Some("kept")));
}

/// Something is mounted at `/srv/a/b/c`. Nothing is removed.
#[test]
fn x05_recursive_stops_before_mount_point() {
    let host = MemoryHost::new();
    host.put("/srv/a/b/c/f", "x");
    host.put("/srv/a/a", "x");
    host.set_blocker("/srv/a/b/c", Some(ReplaceBlocker::Mounted));
    let parameters = json!({"path": "/srv/a", "absent": true, "recursive": true});
    let Ok(CheckResult::Blocked { message, .. }) = check(&host, &parameters) else { panic!("a mount point is in the tree") };
    assert!(
        message.starts_with("something is mounted at /srv/a/b/c, and a tree is not removed across a mount point"),
        "{message}"
    );
    assert_eq!(apply(&host, &parameters).unwrap_err().message, message);
    assert_eq!(host.list("/srv/a"), ["a", "b"]);
}

#[test]
fn s63_paths_above_agent_and_system_are_refused() {
    let host = MemoryHost::new();
    host.put("/usr/lib/x", "x");
    for (parameters, reason) in [
        (json!({"path": "/etc/stemma", "mode": "0777"}), "has /etc/stemma/agent.toml of the agent below it"),
        (json!({"path": "/var", "absent": true}), "has /var/lib/stemma-agent of the agent below it"),
        (json!({"path": "/var/lib/stemma-agent/x"}), "belongs to the agent"),
        (json!({"path": "/usr/lib", "absent": true, "recursive": true}), "is a directory of the operating system"),
        (json!({"path": "/srv", "recursive": true}), "parameters.recursive: works only with `absent: true`"),
    ] {
        let error = check(&host, &parameters).unwrap_err();
        assert!(error.message.contains(reason), "{}", error.message);
        assert_eq!(apply(&host, &parameters).unwrap_err(), error);
    }
}

/// Regression test: the agent did nothing else until the last entry of a tree was removed.
#[test]
fn removal_of_tree_lets_other_work_continue() {
    let host = MemoryHost::new();
    (0..3).for_each(|number| host.put(&format!("/srv/old/{number}"), "x"));
    let (site, task) = (site_of(Rc::new(host.clone())), task(&json!({"path": "/srv/old", "absent": true, "recursive": true})));
    let removal = DirectoryApplier.apply(&site, &task);
    let pauses = std::cell::Cell::new(0);
    let other_work = async {
        loop {
            pauses.set(pauses.get() + 1);
            tokio::task::yield_now().await;
        }
    };
    block_on(async {
        tokio::select! {
            biased;
            result = removal => drop(result.unwrap()),
            () = other_work => {}
        }
    });
    assert!(pauses.get() > 6, "once for each entry that is listed and removed: {}", pauses.get());
    assert_eq!(host.list("/srv"), [""; 0]);
}

/// The agent is killed, or the power is cut, before each of its changes. The next pass finishes the work.
#[test]
fn x05_next_pass_resumes_after_crash_at_any_step() {
    let create = json!({"path": "/srv/a/b", "mode": "0770", "owner": "www-data", "group": "www-data"});
    let remove = json!({"path": "/srv/old", "absent": true, "recursive": true});
    for (parameters, is_there) in [(create, true), (remove, false)] {
        let new_host = || {
            let host = MemoryHost::new();
            host.put("/srv/old/x/f", "x");
            host.put("/srv/old/g", "x");
            drop(site_of(Rc::new(host.clone())));
            host.restart();
            host
        };
        let host = new_host();
        apply(&host, &parameters).unwrap();
        let calls = host.calls();
        assert!(calls > 3, "{calls}");
        for (call, is_power_cut) in (0..calls).flat_map(|call| [(call, false), (call, true)]) {
            let host = new_host();
            let site = site_of(Rc::new(host.clone()));
            host.crash_before(call);
            block_on(DirectoryApplier.apply(&site, &task(&parameters))).unwrap_err();
            if is_power_cut {
                host.cut_power();
            } else {
                host.restart();
            }
            if check(&host, &parameters) != Ok(CheckResult::Converged) {
                apply(&host, &parameters).unwrap();
            }
            assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged), "call {call}, power cut {is_power_cut}");
            let expected = is_there.then_some((0o770, 33, 33));
            assert_eq!(rights(&host, parameters["path"].as_str().unwrap()), expected);
        }
    }
}

/// On a real file system: links out of the tree, names that are not UTF-8, hard links and a FIFO.
#[test]
fn s65_recursive_removes_real_tree_and_nothing_outside() {
    use std::os::unix::ffi::OsStrExt as _;
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let host: Rc<dyn Host> = Rc::new(RealHost::new(root.path()).unwrap());
    let tree = root.path().join("srv/tree");
    let odd_name = std::ffi::OsStr::from_bytes(b"odd\xff");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::create_dir_all(tree.join(odd_name).join("below")).unwrap();
    fs::write(tree.join(odd_name).join(odd_name), "x").unwrap();
    fs::write(outside.path().join("kept"), "kept").unwrap();
    fs::write(root.path().join("hard"), "kept").unwrap();
    fs::hard_link(root.path().join("hard"), tree.join("a/hard")).unwrap();
    symlink(outside.path(), tree.join("a/b/link")).unwrap();
    symlink("../..", tree.join("a/up")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, tree.join("a/fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let parameters = json!({"path": "/srv/tree", "absent": true, "recursive": true});
    block_on(DirectoryApplier.apply(&site_of(host), &task(&parameters))).unwrap();
    assert!(!tree.exists());
    assert_eq!(fs::read_to_string(outside.path().join("kept")).unwrap(), "kept");
    assert_eq!(fs::read_to_string(root.path().join("hard")).unwrap(), "kept");
}

/// An attacker repeatedly replaces a directory of the tree by a link that leads outside of the root, while the agent removes
/// the tree and changes the owner of the directory. Nothing outside is removed or changed.
#[test]
fn s64_directory_task_stays_inside_root_when_directory_becomes_link() {
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("kept"), "kept").unwrap();
    fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = |text: &str| root.path().join(text);
    let site = site_of(Rc::new(RealHost::new(root.path()).unwrap()));
    let is_over = Arc::new(AtomicBool::new(false));
    let attacker = {
        let (is_over, dir, moved_dir, outside) =
            (is_over.clone(), path("srv/tree/dir"), path("moved"), outside.path().to_owned());
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let _ = fs::rename(&dir, &moved_dir);
                let _ = symlink(&outside, &dir);
                let _ = fs::remove_file(&dir);
                if fs::rename(&moved_dir, &dir).is_err() {
                    let _ = fs::remove_dir_all(&moved_dir);
                }
            }
        })
    };
    let tasks =
        [json!({"path": "/srv/tree/dir", "mode": "0700"}), json!({"path": "/srv/tree", "absent": true, "recursive": true})]
            .map(|parameters| task(&parameters));
    let mut success_count = 0;
    for round in 0..2000 {
        let _ = fs::create_dir_all(path("srv/tree/dir/sub"));
        success_count += usize::from(block_on(DirectoryApplier.apply(&site, &tasks[round % 2])).is_ok());
    }
    is_over.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    assert!(success_count > 0);
    assert_eq!(fs::read_to_string(outside.path().join("kept")).unwrap(), "kept");
    assert_eq!(fs::metadata(outside.path()).unwrap().mode() & 0o7777, 0o755);
}

/// A new directory inherits the setgid bit of the one above, unless the author sets the mode.
#[test]
fn apply_keeps_inherited_setgid_bit_on_real_host() {
    let root = tempfile::tempdir().unwrap();
    let host: Rc<dyn Host> = Rc::new(RealHost::new(root.path()).unwrap());
    fs::create_dir(root.path().join("srv")).unwrap();
    fs::set_permissions(root.path().join("srv"), fs::Permissions::from_mode(0o2755)).unwrap();
    let site = site_of(host);
    for (parameters, expected_mode) in [(json!({"path": "/srv/a"}), 0o2755), (json!({"path": "/srv/b", "mode": "0750"}), 0o750)] {
        block_on(DirectoryApplier.apply(&site, &task(&parameters))).unwrap();
        assert_eq!(block_on(DirectoryApplier.check(&site, &task(&parameters))), Ok(CheckResult::Converged));
        let path = root.path().join(&parameters["path"].as_str().unwrap()[1..]);
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, expected_mode);
    }
}

/// A tree that is deeper than the agent opens directories is refused before anything is removed.
#[test]
fn recursive_refuses_deep_tree() {
    let host = MemoryHost::new();
    let deep = "/d".repeat(stemma_core::task::tree_rules::MAX_TREE_DEPTH + 1);
    host.put(&format!("/srv/a{deep}/f"), "x");
    let parameters = json!({"path": "/srv/a", "absent": true, "recursive": true});
    let error = apply(&host, &parameters).unwrap_err();
    assert!(error.message.contains("is more than 128 directories below /srv/a"), "{}", error.message);
    assert_eq!(host.list("/srv/a"), ["d"]);
}
