//! Account tasks on hosts whose state stands in the way: mounts, links, immutable files, directory services.

use super::*;
use crate::host::ReplaceBlocker;
use crate::host::real::RealHost;

/// Returns the message of a check that is blocked. The task must fail with the same message, and without a change.
fn blocked_message(memory: &MemoryHost, kind: &str, parameters: &Value) -> String {
    let host: Rc<dyn Host> = Rc::new(memory.clone());
    let message = match check(&host, kind, parameters).unwrap() {
        CheckResult::Blocked { message, .. } => message,
        other => panic!("{parameters}: {other:?}"),
    };
    let error = apply(&host, kind, parameters).unwrap_err();
    assert_eq!((error.effect, &error.message, memory.commands_run().len()), (FailureEffect::Unchanged, &message, 0));
    message
}

/// Returns the message and the diff of a check that finds differences.
fn drift(host: &Rc<dyn Host>, kind: &str, parameters: &Value) -> (String, String) {
    match check(host, kind, parameters).unwrap() {
        CheckResult::Drifted { message, diff } => (message, diff),
        other => panic!("{parameters}: {other:?}"),
    }
}

/// `rm --one-file-system` follows a bind mount of the same file system.
#[test]
fn home_with_mount_point_is_not_removed() {
    let parameters = json!({"name": "ada", "absent": true, "remove_home": true});
    for point in ["/home/ada/data", "/home/ada"] {
        let memory = memory_host();
        memory.put("/home/ada/data/x", "");
        memory.set_blocker(point, Some(ReplaceBlocker::Mounted));
        let message = blocked_message(&memory, "user", &parameters);
        let expected = format!(
            "the home directory /home/ada is not removed: something is mounted at {point}, and what is there would be removed too: unmount it (`umount {point}`), or remove `remove_home`; nothing was changed"
        );
        assert_eq!(message, expected);
    }
    let memory = memory_host();
    memory.put("/home/adam/x", "");
    memory.set_blocker("/home/adam", Some(ReplaceBlocker::Mounted));
    apply(&(Rc::new(memory.clone()) as Rc<dyn Host>), "user", &parameters).unwrap();
    assert!(memory.list("/home/ada").is_empty());
}

/// `userdel --remove` removes the directory of such an entry too, whatever is in it.
#[test]
fn home_with_unusual_path_is_not_removed() {
    let memory = memory_host();
    append(&memory, "/etc/passwd", "eve:x:1002:1002::/home/eve/:/bin/sh");
    let message = blocked_message(&memory, "user", &json!({"name": "eve", "absent": true, "remove_home": true}));
    assert!(message.starts_with("the home directory /home/eve/ is not removed: path \"/home/eve/\" names no file"), "{message}");
}

/// `userdel` removes the group of the user's name if `USERGROUPS_ENAB` is set.
#[test]
fn removal_of_user_keeps_group_of_task() {
    let (group, user) = (json!({"name": "ada"}), json!({"name": "ada", "absent": true}));
    for (defs, is_managed, expected) in [
        ("USERGROUPS_ENAB yes\n", true, vec!["usermod --home /nonexistent --gid nogroup ada", "userdel ada"]),
        ("USERGROUPS_ENAB yes\n", false, vec!["userdel ada"]),
        ("USERGROUPS_ENAB no\n", true, vec!["userdel ada"]),
    ] {
        let memory = memory_host();
        memory.put("/etc/login.defs", defs);
        let host: Rc<dyn Host> = Rc::new(memory.clone());
        let site = Site::new(host.clone(), Rc::new(Ledger::open(host.clone()).unwrap()));
        if is_managed {
            block_on(GroupApplier.apply(&site, &task_of(("g", "group_account"), &group, &[]))).unwrap();
        }
        let result = block_on(UserApplier.apply(&site, &task_of(("u", "user"), &user, &[]))).unwrap();
        let commands: Vec<_> = memory.commands_run().iter().map(|argv| argv.join(" ")).collect();
        assert_eq!(commands, expected, "{defs} {is_managed}");
        let stays = memory.text("/etc/group").unwrap().contains("ada:x:1000:");
        assert_eq!(stays, expected.len() == 2 || defs.contains("no\n"), "{defs} {is_managed}");
        assert_eq!(result.message.contains("the group ada stays"), expected.len() == 2, "{}", result.message);
    }
    // A task that wants no group any more does not keep it.
    let memory = memory_host();
    memory.put("/etc/login.defs", "USERGROUPS_ENAB yes\n");
    let host: Rc<dyn Host> = Rc::new(memory.clone());
    let site = Site::new(host.clone(), Rc::new(Ledger::open(host.clone()).unwrap()));
    for group in [&group, &json!({"name": "ada", "absent": true})] {
        block_on(GroupApplier.check(&site, &task_of(("g", "group_account"), group, &[]))).unwrap();
    }
    block_on(UserApplier.apply(&site, &task_of(("u", "user"), &user, &[]))).unwrap();
    assert_eq!(memory.commands_run().len(), 1, "{:?}", memory.commands_run());
    let memory = memory_host();
    memory.put("/etc/login.defs", "USERGROUPS_ENAB yes\n");
    edit_entry(&memory, "/etc/group", "nogroup", |_| false);
    let host: Rc<dyn Host> = Rc::new(memory.clone());
    let site = Site::new(host.clone(), Rc::new(Ledger::open(host.clone()).unwrap()));
    block_on(GroupApplier.check(&site, &task_of(("g", "group_account"), &group, &[]))).unwrap();
    let error = block_on(UserApplier.apply(&site, &task_of(("u", "user"), &user, &[]))).unwrap_err();
    assert!(error.message.contains("this host has no group 65534") && memory.commands_run().is_empty(), "{}", error.message);
}

/// A user whose home directory cannot be created is not created either.
#[test]
fn impossible_home_is_found_before_user_is_created() {
    let memory = memory_host();
    memory.put("/tmp/x", "");
    memory.chmod("/tmp", 0o1777);
    memory.put("/home/bob", "");
    for (parameters, expected) in [
        (json!({"name": "bob"}), "the home directory /home/bob is a regular file: move it away; "),
        (json!({"name": "new", "home": "/home/bob/new"}), "the home directory /home/bob/new cannot be created: /home/bob is a "),
        (json!({"name": "new", "home": "/tmp/new"}), "the home directory /tmp/new cannot be created: users other than root can "),
    ] {
        let message = blocked_message(&memory, "user", &parameters);
        assert!(message.starts_with(expected), "{message}");
    }
    let host: Rc<dyn Host> = Rc::new(memory.clone());
    assert_eq!(drift(&host, "user", &json!({"name": "new"})).0, "user new: would change user, home directory");
    assert_eq!(drift(&host, "user", &json!({"name": "new", "system": true})).0, "user new: would change user");
    let placeholder = json!({"name": "new", "home": "/dev/null"});
    assert_eq!(drift(&host, "user", &placeholder).0, "user new: would change user, home");
    memory.put("/etc/default/useradd", "# HOME=/x\nHOME=/tmp\n");
    let message = blocked_message(&memory, "user", &json!({"name": "new"}));
    assert!(message.starts_with("the home directory /tmp/new cannot be created"), "{message}");
}

/// A number, or the group of the user's own name, may be in a directory service.
#[test]
fn numbers_and_groups_of_directory_service_are_found() {
    let memory = memory_host();
    memory.put_directory_entry(AccountKind::User, "ldapu:*:7000:7001::/home/ldapu:/bin/bash");
    memory.put_directory_entry(AccountKind::Group, "ldapm:*:7001:ada");
    let service = "of a directory service (NSS) has the number";
    for (kind, parameters, expected) in [
        (
            "user",
            json!({"name": "carl", "uid": 7000}),
            format!("parameters.uid: the user ldapu {service} 7000: write another one"),
        ),
        (
            "user",
            json!({"name": "ada", "uid": 7000}),
            format!("parameters.uid: the user ldapu {service} 7000: write another one"),
        ),
        ("group_account", json!({"name": "g7", "gid": 7001}), format!("parameters.gid: the group ldapm {service} 7001: write")),
        ("group_account", json!({"name": "web", "gid": 7001}), format!("parameters.gid: the group ldapm {service} 7001: write")),
        (
            "user",
            json!({"name": "www-data", "groups": ["7001"]}),
            "parameters.groups[0]: group ldapm comes from a dir".to_owned(),
        ),
    ] {
        let message = blocked_message(&memory, kind, &parameters);
        assert!(message.starts_with(&expected), "{message}");
    }
    let host: Rc<dyn Host> = Rc::new(memory.clone());
    assert_eq!(check(&host, "user", &json!({"name": "ada", "groups": ["7001"]})).unwrap(), CheckResult::Converged);
    let CheckResult::Blocked { diff, .. } = check(&host, "user", &json!({"name": "carl", "groups": ["ldapm"]})).unwrap() else {
        panic!("the group cannot be changed");
    };
    assert_eq!(diff.matches("+groups: ldapm").count(), 1, "{diff}");
    apply(&host, "user", &json!({"name": "ldapm", "create_home": false})).unwrap();
    assert_eq!(memory.commands_run()[0].join(" "), "useradd --no-create-home --gid ldapm ldapm");
}

#[test]
fn home_of_directory_user_is_created_when_required() {
    let memory = memory_host();
    memory.put_directory_entry(AccountKind::User, "alice:*:70001:70002:Alice:/home/alice:/bin/bash");
    let host: Rc<dyn Host> = Rc::new(memory.clone());
    let parameters = json!({"name": "alice", "create_home": true});
    assert_eq!(drift(&host, "user", &parameters).0, "user alice: would change home directory");
    apply(&host, "user", &parameters).unwrap();
    assert_eq!(memory.commands_run()[0][7], "70001:70002");
    assert_eq!(check(&host, "user", &parameters).unwrap(), CheckResult::Converged);
    memory.delete("/home/alice");
    let other = json!({"name": "alice", "create_home": true, "shell": "/bin/sh"});
    assert!(matches!(check(&host, "user", &other).unwrap(), CheckResult::Blocked { .. }));
    assert_eq!(check(&host, "user", &json!({"name": "alice"})).unwrap(), CheckResult::Converged, "not by default");
}

#[test]
fn missing_primary_group_is_shown_by_name_or_number() {
    let memory = memory_host();
    let host: Rc<dyn Host> = Rc::new(memory.clone());
    for (group, reason) in [
        ("nogrp", "there is no group nogrp on this host: let a task before this one create it (`group_account`)"),
        (
            "4242",
            "there is no group with the number 4242 on this host: let a task before this one create it (`group_account` with `gid`)",
        ),
    ] {
        for user in ["ada", "bob"] {
            let parameters = json!({"name": user, "group": group, "create_home": false});
            let (message, diff) = drift(&host, "user", &parameters);
            assert!(message.ends_with(&format!(" (parameters.group: {reason})")), "{message}");
            let old = if user == "ada" { "-group: ada (1000)\n" } else { "" };
            assert!(diff.contains(&format!("{old}+group: {group}\n")), "{diff}");
            let message = apply(&host, "user", &parameters).unwrap_err().message;
            assert_eq!(message, format!("parameters.group: {reason}; nothing was changed"));
        }
    }
    assert!(memory.commands_run().is_empty());
}

/// The task is done, and its result says what people must know.
#[test]
fn result_names_foreign_home_and_missing_shell() {
    let memory = memory_host();
    memory.put("/home/bob/x", "");
    memory.chown("/home/bob", 2000);
    let host: Rc<dyn Host> = Rc::new(memory.clone());
    let bob = json!({"name": "bob", "uid": 1001, "shell": "/no/such"});
    let home = "the home directory /home/bob exists and belongs to the user with the number 2000, not to bob: if bob owns these files now, run `chown -hR --from=2000 bob /home/bob`";
    let shell = "the shell /no/such does not exist on this host, and nobody can log in with it: let a task install it, or correct `shell`";
    assert_eq!(drift(&host, "user", &bob).0, format!("user bob: would change user, uid, shell; {home}; {shell}"));
    assert_eq!(apply(&host, "user", &bob).unwrap().message, format!("{home}; {shell}"));
    assert_eq!(apply(&host, "user", &bob).unwrap().message, "");
    let root = blocked_message(&memory_host(), "user", &json!({"name": "root", "shell": "/no/such"}));
    assert!(root.starts_with("the shell /no/such does not exist on this host"), "{root}");
    memory.chown("/home/bob", 0);
    let message = apply(&host, "user", &json!({"name": "bob", "shell": "/bin/bash"})).unwrap().message;
    assert_eq!(message, "", "root owns the directories of sftp");
}

/// Links are resolved only to name the path that the task must have.
#[test]
fn home_behind_link_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("etc")).unwrap();
    std::fs::create_dir_all(dir.path().join("data/home/old")).unwrap();
    std::fs::create_dir_all(dir.path().join("usr/bin")).unwrap();
    std::fs::write(dir.path().join("usr/bin/bash"), "").unwrap();
    for (target, link) in [("/data/home", "home"), ("usr/bin", "bin")] {
        std::os::unix::fs::symlink(target, dir.path().join(link)).unwrap();
    }
    std::fs::write(dir.path().join("etc/passwd"), PASSWD).unwrap();
    std::fs::write(dir.path().join("etc/group"), GROUP).unwrap();
    let host: Rc<dyn Host> = Rc::new(RealHost::new(dir.path()).unwrap());
    let reason = "/home is a symbolic link, and links are not followed: write `home: /data/home/h6`";
    let (message, _) = drift(&host, "user", &json!({"name": "h6", "shell": "/bin/bash"}));
    assert_eq!(message, format!("user h6: would change user, shell; the home directory /home/h6 is not created: {reason}"));
    let CheckResult::Blocked { message, .. } = check(&host, "user", &json!({"name": "h6", "create_home": true})).unwrap() else {
        panic!("the home directory cannot be created");
    };
    assert_eq!(message, format!("the home directory /home/h6 cannot be created: {reason}; nothing was changed"));
    assert_eq!(drift(&host, "user", &json!({"name": "old", "create_home": true})).0, "user old: would change user");
}

#[test]
fn immutable_account_file_is_found_before_changes() {
    for (path, kind, parameters) in [
        ("/etc/passwd", "user", json!({"name": "ada", "shell": "/bin/bash"})),
        ("/etc/shadow", "user", json!({"name": "ada", "locked": true})),
        ("/etc/group", "user", json!({"name": "ada", "groups": ["web"]})),
        ("/etc/group", "group_account", json!({"name": "app"})),
    ] {
        let memory = memory_host();
        memory.set_blocker(path, Some(ReplaceBlocker::Immutable));
        let expected = format!(
            "{path} cannot be replaced: it is immutable; it is left as it was, until `chattr -i {path}`; nothing was changed"
        );
        assert_eq!(blocked_message(&memory, kind, &parameters), expected);
    }
    let memory = memory_host();
    memory.set_blocker("/etc/group", Some(ReplaceBlocker::Immutable));
    apply(&(Rc::new(memory.clone()) as Rc<dyn Host>), "user", &json!({"name": "ada", "shell": "/bin/bash"})).unwrap();
}

#[test]
fn left_lock_file_is_named() {
    let output = "usermod: lock /etc/passwd.lock already used by PID 1\nusermod: cannot lock /etc/passwd; try again later.\n";
    assert_eq!(
        plan::lock_reason(output),
        ": for a minute, a lock file has stopped it (lock /etc/passwd.lock already used by PID 1): end the process that holds it, or remove the file if that process does not change accounts"
    );
    assert!(plan::lock_reason("usermod: cannot lock /etc/passwd; try again later.\n").contains("`fuser -v /etc/.pwd.lock`"));
}
