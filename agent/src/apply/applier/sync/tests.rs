//! Tree tasks on an in-memory host, and on a real one below a temporary root.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use stemma_core::digest::sha256;

use super::*;
use crate::apply::applier::testing::{block_on, site_of, task_of};
use crate::apply::task::FailureEffect;
use crate::host::memory::MemoryHost;
use crate::host::real::RealHost;
use crate::host::{Host, ReplaceBlocker};

fn task(parameters: &Value) -> HostTask {
    task_of(("tree", "sync"), parameters, &[])
}

fn check(host: &MemoryHost, parameters: &Value) -> Result<CheckResult, TaskError> {
    block_on(SyncApplier.check(&site_of(Rc::new(host.clone())), &task(parameters)))
}

fn apply(host: &MemoryHost, parameters: &Value) -> Result<ApplyResult, TaskError> {
    block_on(SyncApplier.apply(&site_of(Rc::new(host.clone())), &task(parameters)))
}

/// Stores a blob on the host, and returns its name.
fn blob(host: &MemoryHost, content: &str) -> String {
    let hash = Hash(sha256(content.as_bytes()));
    site_of(Rc::new(host.clone())).ledger.store_body(hash, content.as_bytes()).unwrap();
    format!("sha256:{hash}")
}

/// The tree has a file that is equal, one with another content, a link, a FIFO and files that the source does not have.
#[test]
fn apply_makes_tree_equal_to_blobs() {
    let host = MemoryHost::new();
    host.put("/srv/w/same", "same");
    host.put("/srv/w/a/old", "old");
    host.put("/srv/w/gone/deep/f", "x");
    host.put("/srv/w/cache/f", "kept");
    host.put("/srv/w/a/x.tmp", "kept");
    host.put("/etc/f", "kept");
    host.put_link_to("/srv/w/link", "/etc");
    host.put_link_to("/srv/w/dir", "/etc");
    host.put_special("/srv/w/fifo");
    let files =
        json!({"same": blob(&host, "same"), "a/old": blob(&host, "new"), "b/c/n": blob(&host, "n"), "dir/f": blob(&host, "f")});
    let parameters = json!({"dst": "/srv/w", "files": files, "delete": true, "ignore": ["cache/", "*.tmp"]});
    let Ok(CheckResult::Drifted { diff, message }) = check(&host, &parameters) else { panic!("the tree differs") };
    assert_eq!(
        diff,
        "--- /srv/w\n+++ /srv/w\n-fifo\n-gone/deep/f\n-gone/deep/\n-gone/\n-link\n~a/old\n+b/\n+b/c/\n+b/c/n\n-dir\n+dir/\n+dir/f\n"
    );
    assert_eq!(message, "5 added, 1 changed, 6 removed");
    assert_eq!(apply(&host, &parameters).unwrap().diff, diff);
    assert_eq!(host.list("/srv/w"), ["a", "b", "cache", "dir", "same"]);
    assert_eq!(host.list("/srv/w/a"), ["old", "x.tmp"]);
    for (path, text) in [("/srv/w/a/old", "new"), ("/srv/w/b/c/n", "n"), ("/srv/w/dir/f", "f"), ("/etc/f", "kept")] {
        assert_eq!(host.text(path).as_deref(), Some(text), "{path}");
    }
    assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
}

/// Without `delete`, other files stay, and another kind of file in the way is an error that names it.
#[test]
fn s65_apply_without_delete_keeps_other_files() {
    let host = MemoryHost::new();
    host.put("/srv/w/other", "kept");
    let parameters =
        json!({"dst": "/srv/w", "files": {"a/f": blob(&host, "f")}, "mode": "0600", "dir_mode": "0700", "owner": "www-data"});
    apply(&host, &parameters).unwrap();
    assert_eq!((host.text("/srv/w/other").as_deref(), host.text("/srv/w/a/f").as_deref()), (Some("kept"), Some("f")));
    let stat = host.dir(&HostPath::from_static("/srv/w/a")).unwrap().unwrap().stat("f").unwrap().unwrap();
    assert_eq!((stat.mode, stat.user), (0o600, 33));
    let stat = host.dir(&HostPath::from_static("/srv/w/a")).unwrap().unwrap().own_stat().unwrap();
    assert_eq!((stat.mode, stat.user), (0o700, 33));
    assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
    host.delete("/srv/w/a/f");
    host.put_link_to("/srv/w/a/f", "/etc/shadow");
    let error = check(&host, &parameters).unwrap_err();
    assert_eq!(
        error.message,
        "/srv/w/a/f is a symbolic link, where a regular file was expected: move it away, or set `delete: true`"
    );
    assert_eq!(apply(&host, &parameters).unwrap_err().message, error.message);
}

/// After an apply, a check reads no file: both copies would fail to be read.
#[test]
fn unchanged_tree_is_not_read() {
    let host = MemoryHost::new();
    host.put("/opt/src/a/f", "content");
    let parameters = json!({"dst": "/srv/w", "src": "/opt/src", "delete": true});
    apply(&host, &parameters).unwrap();
    assert_eq!(host.text("/srv/w/a/f").as_deref(), Some("content"));
    host.fail_reads("/srv/w/a/f", 1);
    assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
    host.fail_reads("/opt/src/a/f", 1);
    assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
    host.fail_reads("", 0);
    // A file of the same size is read, because its version is another one.
    host.put("/srv/w/a/f", "CONTENT");
    assert!(matches!(check(&host, &parameters), Ok(CheckResult::Drifted { .. })));
    host.put("/opt/src/a/f", "CONTENT");
    assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
    host.fail_reads("/srv/w/a/f", 1);
    assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged), "the comparison is recorded");
}

/// Regression test: the record lost the files that the walk had not reached, so they were reported as orphans.
#[test]
fn tree_task_manages_all_files_after_failed_apply() {
    let host = MemoryHost::new();
    for name in ["a", "b", "c/d"] {
        host.put(&format!("/opt/src/{name}"), "1");
    }
    let parameters = json!({"dst": "/srv/w", "src": "/opt/src"});
    apply(&host, &parameters).unwrap();
    let managed = || SyncApplier.managed_objects(&site_of(Rc::new(host.clone())), &task(&parameters)).unwrap();
    let before = managed();
    assert_eq!(before.len(), 5, "{before:?}");
    host.put("/opt/src/a", "longer");
    host.fail_reads("/opt/src/a", 1);
    apply(&host, &parameters).unwrap_err();
    assert_eq!(managed(), before);
}

#[test]
fn s63_invalid_paths_of_trees_are_refused() {
    let host = MemoryHost::new();
    host.put("/opt/src/f", "x");
    host.put_link_to("/opt/links/l", "/etc/shadow");
    let name = blob(&host, "x");
    for (parameters, reason) in [
        (json!({"dst": "/etc", "src": "/opt/src"}), "has /etc/stemma/agent.toml of the agent below it".to_owned()),
        (json!({"dst": "/usr/lib", "src": "/opt/src", "delete": true}), "is a directory of the operating system".to_owned()),
        (
            json!({"dst": "/var/lib/dpkg/info", "src": "/opt/src", "delete": true}),
            "is a directory of the operating system".to_owned(),
        ),
        (json!({"dst": "/srv/w", "src": "/etc"}), "has /etc/stemma of the agent below it".to_owned()),
        (json!({"dst": "/var/lib/stemma-agent/x", "src": "/opt/src"}), "belongs to the agent".to_owned()),
        (json!({"dst": "/srv/w", "src": "/var/lib/stemma-agent/apply"}), "belongs to the agent".to_owned()),
        (json!({"dst": "/srv/w", "src": "/var/lib"}), "has /var/lib/stemma-agent of the agent below it".to_owned()),
        (json!({"dst": "/opt/src/a", "src": "/opt/src"}), "overlaps with dst".to_owned()),
        (json!({"dst": "/srv/w", "src": "/opt/none"}), "parameters.src: /opt/none does not exist".to_owned()),
        (json!({"dst": "/srv/w", "src": "/opt/links"}), "parameters.src: l is a symbolic link".to_owned()),
        (json!({"dst": "/srv/w", "files": {"../f": name}}), "is not a path below the directory".to_owned()),
        (json!({"dst": "/srv/w", "files": {"f": "none"}}), "it does not name a blob".to_owned()),
        (
            json!({"dst": "/srv/w", "src": "/opt/src", "delete": true, "ignore": ["a", "**/b"]}),
            "parameters.ignore: \"**/b\" has **".to_owned(),
        ),
    ] {
        let error = check(&host, &parameters).unwrap_err();
        assert!(error.message.contains(&reason), "{}", error.message);
        assert_eq!(apply(&host, &parameters).unwrap_err().message, error.message);
    }
    assert_eq!(host.list("/srv"), [""; 0]);
}

#[test]
fn x05_delete_stops_before_mount_point() {
    let host = MemoryHost::new();
    host.put("/srv/w/m/f", "x");
    host.put("/srv/w/a", "x");
    host.set_blocker("/srv/w/m", Some(ReplaceBlocker::Mounted));
    let parameters = json!({"dst": "/srv/w", "files": {"n": blob(&host, "n")}, "delete": true});
    let error = apply(&host, &parameters).unwrap_err();
    assert!(error.message.starts_with("something is mounted at /srv/w/m, and a mount point is not removed"), "{}", error.message);
    assert_eq!(host.list("/srv/w"), ["a", "m"]);
}

/// What prevents a change below the top of the tree is found before the first change.
#[test]
fn apply_changes_nothing_when_entry_is_blocked() {
    let host = MemoryHost::new();
    for path in ["/srv/w/a", "/srv/w/z/f", "/srv/w/z/other"] {
        host.put(path, "old");
    }
    let files = json!({"a": blob(&host, "new"), "z/f": blob(&host, "new"), "z/n/f": blob(&host, "new")});
    let parameters = json!({"dst": "/srv/w", "files": files, "delete": true});
    for (path, blocker, expected) in [
        ("/srv/w/z/f", ReplaceBlocker::Immutable, "/srv/w/z/f cannot be replaced: it is immutable"),
        ("/srv/w/z/f", ReplaceBlocker::Mounted, "/srv/w/z/f cannot be replaced: a file is mounted over it"),
        ("/srv/w/z/other", ReplaceBlocker::AppendOnly, "/srv/w/z/other cannot be replaced: it is append-only"),
        ("/srv/w/z", ReplaceBlocker::ImmutableDirectory, "the directory /srv/w/z is immutable"),
    ] {
        host.set_blocker(path, Some(blocker));
        let Ok(CheckResult::Blocked { message, .. }) = check(&host, &parameters) else { panic!("{path} is blocked") };
        assert!(message.contains(expected), "{message}");
        let error = apply(&host, &parameters).unwrap_err();
        assert_eq!((error.message, error.effect), (message, FailureEffect::Unchanged));
        assert_eq!(host.text("/srv/w/a").as_deref(), Some("old"), "{path}");
        host.set_blocker(path, None);
    }
    apply(&host, &parameters).unwrap();
    assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
}

/// The agent is killed, or the power is cut, before each of its changes. The next pass finishes the work and leaves no
/// unfinished file.
#[test]
fn x05_next_pass_resumes_tree_after_crash_at_any_step() {
    let new_host = || {
        let host = MemoryHost::new();
        host.put("/srv/w/old/f", "x");
        host.put("/srv/w/b", "before");
        let files = json!({"a/f": blob(&host, "f"), "b": blob(&host, "after"), "c": blob(&host, "c")});
        let site = site_of(Rc::new(host.clone()));
        host.restart();
        (host, site, json!({"dst": "/srv/w", "files": files, "delete": true}))
    };
    let (host, host_site, parameters) = new_host();
    block_on(SyncApplier.apply(&host_site, &task(&parameters))).unwrap();
    let calls = host.calls();
    assert!(calls > 15, "{calls}");
    for (call, is_power_cut) in (0..calls).flat_map(|call| [(call, false), (call, true)]) {
        let (host, host_site, parameters) = new_host();
        host.crash_before(call);
        // A crash in the last calls, which only write the record, is no error.
        let _ = block_on(SyncApplier.apply(&host_site, &task(&parameters)));
        if is_power_cut {
            host.cut_power();
        } else {
            host.restart();
        }
        assert!(["before", "after"].contains(&&*host.text("/srv/w/b").unwrap()), "call {call}");
        if check(&host, &parameters) != Ok(CheckResult::Converged) {
            apply(&host, &parameters).unwrap();
        }
        assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
        assert_eq!((host.list("/srv/w"), host.list("/srv/w/a")), (vec!["a".into(), "b".into(), "c".into()], vec!["f".into()]));
        assert_eq!(host.text("/srv/w/b").as_deref(), Some("after"));
    }
}

/// A hard-linked file is replaced and not written through, and setuid of a source is not copied.
#[test]
fn s67_real_tree_copies_rights_without_setuid() {
    let root = tempfile::tempdir().unwrap();
    let path = |text: &str| root.path().join(text);
    fs::create_dir_all(path("opt/src/bin")).unwrap();
    fs::create_dir_all(path("srv/w/bin")).unwrap();
    fs::write(path("opt/src/bin/tool"), "new").unwrap();
    fs::set_permissions(path("opt/src/bin/tool"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::write(path("theirs"), "theirs").unwrap();
    fs::hard_link(path("theirs"), path("srv/w/bin/tool")).unwrap();
    let site = site_of(Rc::new(RealHost::new(root.path()).unwrap()));
    let parameters = json!({"dst": "/srv/w", "src": "/opt/src", "delete": true});
    block_on(SyncApplier.apply(&site, &task(&parameters))).unwrap();
    assert_eq!(fs::read_to_string(path("srv/w/bin/tool")).unwrap(), "new");
    assert_eq!(fs::metadata(path("srv/w/bin/tool")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fs::read_to_string(path("theirs")).unwrap(), "theirs");
    assert_eq!(block_on(SyncApplier.check(&site, &task(&parameters))), Ok(CheckResult::Converged));
}

/// An attacker repeatedly replaces a directory of the tree by a link that leads outside of the root. Nothing outside is
/// written or removed.
#[test]
fn s64_tree_stays_inside_root_when_directory_becomes_link() {
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("kept"), "kept").unwrap();
    let path = |text: &str| root.path().join(text);
    fs::create_dir_all(path("opt/src/dir")).unwrap();
    fs::create_dir_all(path("srv/w/dir")).unwrap();
    let site = site_of(Rc::new(RealHost::new(root.path()).unwrap()));
    let is_over = Arc::new(AtomicBool::new(false));
    let attacker = {
        let (is_over, dir, moved_dir, outside) = (is_over.clone(), path("srv/w/dir"), path("kept"), outside.path().to_owned());
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                if fs::rename(&dir, &moved_dir).is_err() {
                    let _ = fs::remove_dir_all(&moved_dir);
                }
                let _ = symlink(&outside, &dir);
                let _ = fs::remove_file(&dir);
                let _ = fs::rename(&moved_dir, &dir);
            }
        })
    };
    let mut success_count = 0;
    for round in 0..2000 {
        fs::write(path("opt/src/dir/f"), format!("{round}")).unwrap();
        let parameters = json!({"dst": "/srv/w", "src": "/opt/src", "delete": true});
        success_count += usize::from(block_on(SyncApplier.apply(&site, &task(&parameters))).is_ok());
    }
    is_over.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    assert!(success_count > 0);
    let names: Vec<_> = outside.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["kept"]);
}

/// A source with such a file is refused before the first change, so that the tree is not copied in part.
#[test]
fn sync_refuses_hard_linked_source_before_changes() {
    let host = MemoryHost::new();
    for name in ["a", "m", "z"] {
        host.put(&format!("/srv/s/{name}"), name);
    }
    host.increase_link_count("/srv/s/m");
    host.put("/srv/d/old", "old");
    let parameters = json!({"src": "/srv/s", "dst": "/srv/d", "delete": true});
    for error in [check(&host, &parameters).err(), apply(&host, &parameters).err()] {
        let message = error.unwrap().message;
        assert!(message.starts_with("parameters.src: m has 2 hard links"), "{message}");
    }
    assert_eq!(host.list("/srv/d"), ["old"]);
    // What the task ignores is not copied.
    let parameters = json!({"src": "/srv/s", "dst": "/srv/d", "delete": true, "ignore": "m"});
    apply(&host, &parameters).unwrap();
    assert_eq!(host.list("/srv/d"), ["a", "z"]);
}

/// Regression test: an unfinished file of the agent in the source was copied, and removed again as one.
#[test]
fn sync_copies_no_unfinished_file_of_agent() {
    let host = MemoryHost::new();
    host.put("/srv/s/f", "f");
    host.put("/srv/s/.stemma-0123456789abcdef", "half");
    let parameters = json!({"src": "/srv/s", "dst": "/srv/d"});
    apply(&host, &parameters).unwrap();
    assert_eq!(host.list("/srv/d"), ["f"]);
    assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
}

/// Regression test: the files beyond the size of the record were read in each check.
#[test]
fn unchanged_large_tree_is_not_read() {
    let host = MemoryHost::new();
    for number in 0..2100 {
        host.put(&format!("/opt/src/{number:04}"), "x");
    }
    let parameters = json!({"dst": "/srv/w", "src": "/opt/src"});
    apply(&host, &parameters).unwrap();
    for path in ["/opt/src/0000", "/opt/src/2099", "/srv/w/2099"] {
        host.fail_reads(path, 1);
        assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
    }
    let objects = SyncApplier.managed_objects(&site_of(Rc::new(host.clone())), &task(&parameters)).unwrap();
    assert_eq!(objects.iter().map(|object| object.content_count).collect::<Vec<_>>(), [Some(2100)]);
}

#[test]
fn tree_with_too_many_files_is_refused() {
    let host = MemoryHost::new();
    for name in ["a", "b/c", "d"] {
        host.put(&format!("/opt/src/{name}"), "x");
    }
    let (site, task) = (site_of(Rc::new(host.clone())), task(&json!({"dst": "/srv/w", "src": "/opt/src"})));
    let tree = read_tree(&site, &task).unwrap();
    for (room, is_accepted) in [(3, true), (2, false)] {
        let mut walk = TreeWalk::new((&site, &task), &tree, SyncRecord::default(), false);
        walk.room = room;
        let source = walk.open_source().unwrap();
        let result = block_on(sync_dir(&mut walk, None, source, String::new(), 0));
        assert_eq!(result.is_ok(), is_accepted, "{result:?}");
        assert!(result.err().is_none_or(|error| error.message.contains("/srv/w would get more than 262144 files")));
    }
}

/// Each row has the parameters of a task besides its files, and the watched paths below the tree with `e` for a directory
/// with its entries. With `ignore` or without `delete`, files of other programs in the tree are no drift.
#[test]
fn watched_paths_are_tree_with_delete_or_files() {
    let host = MemoryHost::new();
    let site = site_of(Rc::new(host.clone()));
    let file = blob(&host, "x");
    for (other, expected) in [
        (json!({"delete": true}), "e e:a e:a/b e:c"),
        (json!({"delete": true, "ignore": ["*.tmp"]}), "f f:a f:a/b f:c f:a/b/x f:c/y f:z"),
        (json!({}), "f f:a f:a/b f:c f:a/b/x f:c/y f:z"),
    ] {
        let mut parameters = json!({"dst": "/srv/w", "files": {"a/b/x": file, "c/y": file, "z": file}});
        parameters.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        let watched = SyncApplier.watched_paths(&site, &task(&parameters));
        let word = |(path, scope): &(HostPath, WatchScope)| {
            let kind = if *scope == WatchScope::Entries { "e" } else { "f" };
            format!("{kind}{}", path.as_str().strip_prefix("/srv/w").unwrap().replacen('/', ":", 1))
        };
        assert_eq!(watched.iter().map(word).collect::<Vec<_>>().join(" "), expected, "{parameters}");
    }
    let many: Vec<String> = (0..3000).map(|number| format!("d{number:04}/deep/f")).collect();
    let dirs = watched_dirs(&many);
    assert_eq!(dirs.len(), MAX_WATCHED_DIRS);
    assert!(dirs.iter().all(|dir| !dir.contains('/')), "the nearest directories come first");
}

/// The source is on the host, so the files are those that the last run has compared. A new file and a changed one below the
/// tree wake the watch.
#[tokio::test(flavor = "current_thread")]
async fn change_below_tree_wakes_watch() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    fs::create_dir_all(root.join("src/a")).unwrap();
    fs::write(root.join("src/a/f"), "x").unwrap();
    for (delete, changed) in [(true, "dst/a/new"), (true, "dst/a/f"), (false, "dst/a/f")] {
        let site = site_of(Rc::new(RealHost::new(&root).unwrap()));
        let task = task(&json!({"dst": "/dst", "src": "/src", "delete": delete}));
        SyncApplier.apply(&site, &task).await.unwrap();
        let paths = SyncApplier.watched_paths(&site, &task);
        let watched = paths.into_iter().map(|(path, scope)| (site.host.system_path(&path), scope)).collect();
        let watch = crate::watch::FileWatch::new(root.clone(), watched);
        fs::write(root.join(changed), "other").unwrap();
        let is_woken = tokio::time::timeout(std::time::Duration::from_mins(2), watch.changed()).await.is_ok();
        assert!(is_woken, "{delete} {changed}");
    }
}
