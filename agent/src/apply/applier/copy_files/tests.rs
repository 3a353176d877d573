//! Copies of single files on an in-memory host.

use serde_json::{Value, json};
use stemma_core::digest::sha256;
use stemma_wire::message::Hash;

use super::*;
use crate::apply::applier::testing::{block_on, site, task_of};
use crate::host::memory::MemoryHost;
use crate::host::{Host, ReplaceBlocker};

fn task(parameters: &Value) -> HostTask {
    task_of(("copy", "copy_files"), parameters, &[])
}

fn check(host: &MemoryHost, parameters: &Value) -> Result<CheckResult, TaskError> {
    block_on(CopyFilesApplier.check(&site(host), &task(parameters)))
}

fn apply(host: &MemoryHost, parameters: &Value) -> Result<ApplyResult, TaskError> {
    block_on(CopyFilesApplier.apply(&site(host), &task(parameters)))
}

/// Stores a blob on the host, and returns its name.
fn blob(host: &MemoryHost, content: &str) -> String {
    let hash = Hash(sha256(content.as_bytes()));
    site(host).ledger.store_body(hash, content.as_bytes()).unwrap();
    format!("sha256:{hash}")
}

#[test]
fn apply_copies_blobs_and_files_of_host() {
    let host = MemoryHost::new();
    host.put("/opt/f", "from host");
    host.chmod("/opt/f", 0o6755);
    host.put("/srv/b", "old");
    let files = json!([{"src": "/opt/f", "dst": "/srv/a/f"}, {"src": blob(&host, "from blob"), "dst": "/srv/b"}]);
    let parameters = json!({"files": files, "owner": "www-data", "dir_permissions": "0711"});
    let Ok(CheckResult::Drifted { diff, .. }) = check(&host, &parameters) else { panic!("both files differ") };
    assert_eq!(diff, "+/srv/a/f\n~/srv/b\n");
    assert_eq!(apply(&host, &parameters).unwrap().diff, diff);
    assert_eq!((host.text("/srv/a/f").as_deref(), host.text("/srv/b").as_deref()), (Some("from host"), Some("from blob")));
    let srv = host.dir(&HostPath::from_static("/srv")).unwrap().unwrap();
    assert_eq!(srv.stat("a").unwrap().unwrap().mode, 0o711);
    let stat = srv.dir("a").unwrap().unwrap().stat("f").unwrap().unwrap();
    assert_eq!((stat.mode, stat.user), (0o755, 33), "the copy is without setuid and setgid");
    // Neither file is read again.
    host.fail_reads("/srv/a/f", 1);
    assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
    host.fail_reads("", 0);
    host.chmod("/srv/b", 0o600);
    assert!(matches!(check(&host, &parameters), Ok(CheckResult::Drifted { .. })));
}

#[test]
fn overwrite_false_keeps_existing_file() {
    let host = MemoryHost::new();
    host.put("/srv/a", "theirs");
    let name = blob(&host, "new");
    let parameters = json!({"files": [{"src": name, "dst": "/srv/a"}, {"src": name, "dst": "/srv/b"}], "overwrite": false});
    assert_eq!(apply(&host, &parameters).unwrap().diff, "+/srv/b\n");
    assert_eq!((host.text("/srv/a").as_deref(), host.text("/srv/b").as_deref()), (Some("theirs"), Some("new")));
    assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
}

/// A link or directory at a path, a missing source and a file that cannot be replaced are errors. Nothing is changed then.
#[test]
fn s65_obstacle_at_one_path_changes_nothing() {
    let host = MemoryHost::new();
    host.put("/srv/dir/f", "x");
    host.put_link_to("/srv/link", "/etc/shadow");
    host.put("/srv/fixed", "x");
    host.set_blocker("/srv/fixed", Some(ReplaceBlocker::Immutable));
    let name = blob(&host, "new");
    for (src, dst, reason) in [
        (name.as_str(), "/srv/dir", "/srv/dir is a directory, where a regular file was expected"),
        (&name, "/srv/link", "/srv/link is a symbolic link, where a regular file was expected"),
        (&name, "/srv/fixed", "/srv/fixed cannot be replaced: it is immutable"),
        (&name, "/var/lib/stemma-agent/x", "belongs to the agent"),
        ("/opt/none", "/srv/b", "parameters.files[1].src: /opt/none does not exist"),
        ("/var/lib/stemma-agent/apply/seal-key", "/srv/b", "belongs to the agent"),
        ("/srv/link", "/srv/b", "/srv/link is a symbolic link"),
        (&name, "/srv/first/b", "parameters.files[1]: \"/srv/first/b\" is below \"/srv/first\""),
        ("/srv/fixed", "/srv/fixed", "parameters.files[1]: \"/srv/fixed\" is src and dst"),
        ("sha256:0", "/srv/b", "parameters.files[1].src: \"sha256:0\": it does not name a blob"),
    ] {
        let parameters = json!({"files": [{"src": name, "dst": "/srv/first"}, {"src": src, "dst": dst}]});
        let error = apply(&host, &parameters).unwrap_err();
        assert!(error.message.contains(reason), "{}", error.message);
        assert_eq!(host.list("/srv"), ["dir", "fixed", "link"]);
    }
}
