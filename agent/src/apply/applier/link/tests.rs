//! Link tasks on an in-memory host, and on a real one below a temporary root.

use std::fs;
use std::os::unix::fs::symlink;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::apply::applier::testing::{block_on, site_of, task_of};
use crate::host::Host;
use crate::host::atomic::sweep;
use crate::host::memory::MemoryHost;
use crate::host::real::RealHost;

/// Returns a link task with these parameters, which may read the label `a` with this value.
fn task_with_label(parameters: &Value, value: &str) -> HostTask {
    task_of(("link", "link"), parameters, &[("a", value)])
}

fn task(parameters: &Value) -> HostTask {
    task_with_label(parameters, "x")
}

fn check(host: &MemoryHost, parameters: &Value) -> Result<CheckResult, TaskError> {
    block_on(LinkApplier.check(&site_of(Rc::new(host.clone())), &task(parameters)))
}

fn apply(host: &MemoryHost, parameters: &Value) -> Result<ApplyResult, TaskError> {
    block_on(LinkApplier.apply(&site_of(Rc::new(host.clone())), &task(parameters)))
}

/// Returns the target of a link, or `None` if nothing is at the path.
fn target(host: &MemoryHost, path: &str) -> Option<String> {
    let path = HostPath::parse(path).unwrap();
    host.parent_dir(&path).unwrap()?.read_link(path.name()).unwrap()
}

#[test]
fn apply_creates_and_replaces_link() {
    let host = MemoryHost::new();
    let parameters = json!({"path": "/srv/app/current", "target": "releases/{{ labels.a }}"});
    let Ok(CheckResult::Drifted { diff, .. }) = check(&host, &parameters) else { panic!("the link does not exist") };
    assert_eq!(diff, "--- /dev/null\n+++ /srv/app/current\n+link to releases/x\n");
    assert_eq!(apply(&host, &parameters).unwrap().diff, diff);
    assert_eq!(target(&host, "/srv/app/current").as_deref(), Some("releases/x"));
    assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
    let parameters = json!({"path": "/srv/app/current", "target": "/opt/v2"});
    let diff = apply(&host, &parameters).unwrap().diff;
    assert_eq!(diff, "--- /srv/app/current\n+++ /srv/app/current\n-link to releases/x\n+link to /opt/v2\n");
    assert_eq!((target(&host, "/srv/app/current").as_deref(), host.list("/srv/app").len()), (Some("/opt/v2"), 1));
    // The owner of a link has no effect.
    host.chown("/srv/app/current", 7);
    assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
    let absent = json!({"path": "/srv/app/current", "absent": true});
    assert_eq!(apply(&host, &absent).unwrap().diff, "--- /srv/app/current\n+++ /dev/null\n-link to /opt/v2\n");
    assert_eq!((check(&host, &absent), host.list("/srv/app").len()), (Ok(CheckResult::Converged), 0));
}

#[test]
fn s65_other_file_at_path_of_link_stays() {
    let host = MemoryHost::new();
    host.put("/srv/file", "x");
    host.put("/srv/dir/f", "x");
    host.put_special("/srv/fifo");
    for (path, found) in [("/srv/file", "a regular file"), ("/srv/dir", "a directory"), ("/srv/fifo", "a device, socket or FIFO")]
    {
        for mut parameters in [json!({"target": "/etc"}), json!({"absent": true})] {
            parameters["path"] = json!(path);
            let expected = format!("{path} is {found}, where a symbolic link was expected: move it away, or name another path");
            assert_eq!(check(&host, &parameters).unwrap_err().message, expected);
            assert_eq!(apply(&host, &parameters).unwrap_err().message, expected);
        }
    }
    assert_eq!(host.list("/srv"), ["dir", "fifo", "file"]);
}

#[test]
fn rendered_target_follows_rule_of_links() {
    let host = MemoryHost::new();
    let task = task_with_label(&json!({"path": "/srv/l", "target": "{{ labels.a }}"}), "");
    let error = block_on(LinkApplier.check(&site_of(Rc::new(host)), &task)).unwrap_err();
    assert!(error.message.starts_with("parameters.target: \"\" is not a path for a link"), "{}", error.message);
}

/// The agent is killed, or the power is cut, before each of its changes. A reader always finds the old or the new link,
/// and the next pass leaves no unfinished link.
#[test]
fn x05_link_is_old_or_new_after_crash_at_any_step() {
    let parameters = json!({"path": "/srv/l", "target": "new"});
    let new_host = || {
        let host = MemoryHost::new();
        host.put_link_to("/srv/l", "old");
        drop(site_of(Rc::new(host.clone())));
        host.restart();
        host
    };
    let host = new_host();
    apply(&host, &parameters).unwrap();
    let calls = host.calls();
    assert_eq!(calls, 3, "symlink, rename and fsync");
    for (call, is_power_cut) in (0..calls).flat_map(|call| [(call, false), (call, true)]) {
        let host = new_host();
        let site = site_of(Rc::new(host.clone()));
        host.crash_before(call);
        block_on(LinkApplier.apply(&site, &task(&parameters))).unwrap_err();
        if is_power_cut {
            host.cut_power();
        } else {
            host.restart();
        }
        assert!(["old", "new"].contains(&&*target(&host, "/srv/l").unwrap()), "call {call}");
        sweep(&host, &*host.dir(&HostPath::from_static("/srv")).unwrap().unwrap()).unwrap();
        apply(&host, &parameters).unwrap();
        host.cut_power();
        assert_eq!((target(&host, "/srv/l").as_deref(), host.list("/srv").len()), (Some("new"), 1));
    }
}

/// An attacker repeatedly replaces the directory of the link by a link that leads outside of the root. No link is ever
/// made outside.
#[test]
fn s64_link_stays_inside_root_when_directory_becomes_link() {
    const ROUNDS: usize = 1000;
    let (root, outside) =
        (tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap(), tempfile::tempdir().unwrap());
    let host: Rc<dyn Host> = Rc::new(RealHost::new(root.path()).unwrap());
    let site = site_of(host);
    let (dir, moved_dir) = (root.path().join("dir"), root.path().join("kept"));
    fs::create_dir(&dir).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let attacker = {
        let (is_over, dir, moved_dir, outside) = (is_over.clone(), dir.clone(), moved_dir.clone(), outside.path().to_owned());
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                // The agent makes the directory again at a moment at which it does not exist.
                if fs::rename(&dir, &moved_dir).is_err() {
                    let _ = fs::remove_dir_all(&moved_dir);
                }
                let _ = symlink(&outside, &dir);
                let _ = fs::remove_file(&dir);
                let _ = fs::rename(&moved_dir, &dir);
            }
        })
    };
    let (mut link_count, mut attempt_count) = (0, 0);
    while link_count < ROUNDS && attempt_count < 1000 * ROUNDS {
        attempt_count += 1;
        let parameters = json!({"path": "/dir/link", "target": format!("to/{attempt_count}")});
        link_count += usize::from(block_on(LinkApplier.apply(&site, &task(&parameters))).is_ok());
    }
    is_over.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    assert_eq!(link_count, ROUNDS);
    assert!(outside.path().read_dir().unwrap().next().is_none());
}

/// A template can render to a link of the operating system, which a check of the manifest does not see.
#[test]
fn s63_link_of_system_is_neither_replaced_nor_removed() {
    let host = MemoryHost::new();
    host.put_link_to("/bin", "usr/bin");
    for parameters in [json!({"path": "/{{ labels.a }}", "target": "/tmp"}), json!({"path": "/{{ labels.a }}", "absent": true})] {
        let task = task_with_label(&parameters, "bin");
        let site = site_of(Rc::new(host.clone()));
        let errors = [block_on(LinkApplier.check(&site, &task)).err(), block_on(LinkApplier.apply(&site, &task)).err()];
        for error in errors {
            assert!(error.unwrap().message.contains("belongs to the operating system"), "{parameters}");
        }
        assert_eq!(target(&host, "/bin").as_deref(), Some("usr/bin"));
    }
}
