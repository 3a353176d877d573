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
