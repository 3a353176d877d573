//! Account tasks with the real shadow tools, in a directory.

use std::os::unix::fs::MetadataExt as _;

use super::*;
use crate::host::real::RealHost;

/// Returns a directory with the files of accounts. `None` if the tests do not run as root, or if there are no shadow tools.
fn accounts_directory() -> Option<tempfile::TempDir> {
    let has_tools = std::path::Path::new("/usr/sbin/useradd").exists();
    if !rustix::process::geteuid().is_root() || !has_tools {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in [
        ("etc/passwd", PASSWD),
        ("etc/group", GROUP),
        ("etc/shadow", SHADOW),
        ("etc/gshadow", "root:*::\nadm:*::ada\nwww-data:*::\nweb:!::\nada:!::\nnogroup:*::\n"),
        (
            "etc/login.defs",
            "UID_MIN 1000\nUID_MAX 60000\nSYS_UID_MIN 100\nSYS_UID_MAX 999\nHOME_MODE 0750\nUSERGROUPS_ENAB yes\n",
        ),
        ("etc/skel/.profile", "skel\n"),
        ("home/keep", ""),
    ] {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    Some(dir)
}

/// The real tools change the files below a directory, and nothing else. Without root or the tools, nothing is tested.
#[test]
fn shadow_tools_change_accounts_below_root_directory() {
    let Some(dir) = accounts_directory() else { return };
    let host: Rc<dyn Host> = Rc::new(RealHost::new(dir.path()).unwrap());
    let machine_files = || ["/etc/passwd", "/etc/group", "/etc/shadow"].map(|path| std::fs::read(path).unwrap());
    let before = machine_files();
    let entry = |path: &str, name: &str| {
        let text = std::fs::read_to_string(dir.path().join(path)).unwrap();
        text.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap_or_default().to_owned()
    };
    let converge = |kind: &str, parameters: Value| {
        apply(&host, kind, &parameters).unwrap_or_else(|error| panic!("{parameters}: {error:?}"));
        assert_eq!(check(&host, kind, &parameters).unwrap(), CheckResult::Converged, "{parameters}");
    };
    converge("group_account", json!({"name": "app", "gid": 700}));
    converge(
        "user",
        json!({"name": "bob", "uid": 1234, "group": "app", "groups": ["adm", "web"], "shell": "/bin/sh", "comment": "Bob B.",
            "home": "/srv/a/bob", "locked": true}),
    );
    assert_eq!(entry("etc/passwd", "bob"), "bob:x:1234:700:Bob B.:/srv/a/bob:/bin/sh");
    assert!(entry("etc/shadow", "bob").starts_with("bob:!:") && entry("etc/shadow", "bob").ends_with(":1:"));
    assert_eq!((entry("etc/group", "adm"), entry("etc/group", "web")), ("adm:x:4:ada,bob".into(), "web:x:990:bob".into()));
    let home = std::fs::metadata(dir.path().join("srv/a/bob")).unwrap();
    assert_eq!((home.uid(), home.gid(), home.mode() & 0o7777), (1234, 700, 0o750));
    let profile = std::fs::metadata(dir.path().join("srv/a/bob/.profile")).unwrap();
    assert_eq!((profile.uid(), profile.gid()), (1234, 700));
    converge(
        "user",
        json!({"name": "bob", "groups": ["web"], "exact_groups": true, "shell": "/bin/bash", "locked": false, "uid": 1235}),
    );
    assert_eq!(entry("etc/passwd", "bob"), "bob:x:1235:700:Bob B.:/srv/a/bob:/bin/bash");
    assert!(
        entry("etc/shadow", "bob").starts_with("bob:!:") && entry("etc/shadow", "bob").ends_with("::"),
        "the password stays locked"
    );
    assert_eq!(entry("etc/group", "adm"), "adm:x:4:ada");
    converge("user", json!({"name": "ada", "locked": true, "groups": [], "exact_groups": true}));
    converge("user", json!({"name": "ada", "locked": false}));
    assert_eq!(entry("etc/shadow", "ada"), "ada:$y$j9T$a$b:20000:0:99999:7:::");
    converge("group_account", json!({"name": "app", "gid": 701}));
    assert_eq!(host.user_id("bob").unwrap(), 1235, "owners are looked up below the root directory first");
    assert_eq!(host.group_id("app").unwrap(), 701);
    converge("user", json!({"name": "bob", "absent": true, "remove_home": true}));
    assert!(!dir.path().join("srv/a/bob").exists() && dir.path().join("srv/a").exists());
    converge("group_account", json!({"name": "app", "absent": true}));
    let site = Site::new(host.clone(), Rc::new(Ledger::open(host.clone()).unwrap()));
    std::fs::create_dir_all(dir.path().join("home/ada")).unwrap();
    std::os::unix::fs::chown(dir.path().join("home/ada"), Some(1000), Some(1000)).unwrap();
    let keep = task_of(("g", "group_account"), &json!({"name": "ada"}), &[]);
    block_on(GroupApplier.apply(&site, &keep)).unwrap();
    let remove = task_of(("u", "user"), &json!({"name": "ada", "absent": true}), &[]);
    block_on(UserApplier.apply(&site, &remove)).unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!((entry("etc/passwd", "ada"), entry("etc/group", "ada")), (String::new(), "ada:x:1000:".to_owned()));
    let home = std::fs::metadata(dir.path().join("home/ada")).unwrap();
    assert_eq!((home.uid(), home.gid()), (1000, 1000), "the files of the user keep their group");
    converge("user", json!({"name": "svc", "system": true}));
    assert!(!dir.path().join("home/svc").exists());
    assert!(before == machine_files(), "the accounts of this machine are unchanged");
}

/// Tasks of one account that have no order between them run at the same time, and `useradd` looks for the account before it
/// locks the files. Without root or the tools, nothing is tested.
#[test]
fn account_is_created_once_by_concurrent_tasks() {
    let Some(dir) = accounts_directory() else { return };
    let host: Rc<dyn Host> = Rc::new(RealHost::new(dir.path()).unwrap());
    let site = Site::new(host.clone(), Rc::new(Ledger::open(host).unwrap()));
    let tasks = ["adm", "web"].map(|group| task_of((group, "user"), &json!({"name": "bob", "groups": [group]}), &[]));
    let group = task_of(("group", "group_account"), &json!({"name": "bob"}), &[]);
    block_on(Box::pin(async {
        let applies = tokio::join!(
            UserApplier.apply(&site, &tasks[0]),
            UserApplier.apply(&site, &tasks[1]),
            GroupApplier.apply(&site, &group)
        );
        assert!(applies.0.is_ok() && applies.1.is_ok() && applies.2.is_ok(), "{applies:?}");
    }));
    let entries = |path: &str| {
        let text = std::fs::read_to_string(dir.path().join(path)).unwrap();
        text.lines().filter(|line| line.contains("bob")).map(str::to_owned).collect::<Vec<_>>()
    };
    let users = entries("etc/passwd");
    assert!(users.len() == 1 && users[0].starts_with("bob:x:1001:1001::/home/bob:"), "{users:?}");
    assert_eq!(entries("etc/group"), ["adm:x:4:ada,bob", "web:x:990:bob", "bob:x:1001:"]);
}
