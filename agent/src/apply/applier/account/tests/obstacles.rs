//! Account tasks on hosts whose state stands in the way: mounts, links, immutable files, directory services.

use super::*;
use crate::host::ReplaceBlocker;

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
    let memory = memory_host();
    memory.put("/etc/login.defs", "USERGROUPS_ENAB yes\n");
    edit_entry(&memory, "/etc/group", "nogroup", |_| false);
    let host: Rc<dyn Host> = Rc::new(memory.clone());
    let site = Site::new(host.clone(), Rc::new(Ledger::open(host.clone()).unwrap()));
    block_on(GroupApplier.check(&site, &task_of(("g", "group_account"), &group, &[]))).unwrap();
    let error = block_on(UserApplier.apply(&site, &task_of(("u", "user"), &user, &[]))).unwrap_err();
    assert!(error.message.contains("this host has no group 65534") && memory.commands_run().is_empty(), "{}", error.message);
}
