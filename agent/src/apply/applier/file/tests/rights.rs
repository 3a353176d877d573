//! Rights of a file after a write: owner, mode, access control lists, attributes and flags.

use super::*;

/// Returns the owner, the mode and the extras (extended attributes and flags) of the file `name` in `dir`.
fn owner_mode_extras(host: &MemoryHost, dir: &'static str, name: &str) -> (u32, u32, Extras) {
    let details = host.dir(&HostPath::from_static(dir)).unwrap().unwrap().details(name).unwrap().unwrap();
    (details.stat.user, details.stat.mode, details.extras.unwrap())
}

/// `security.capability` belongs to the old content, so a new file does not get it.
#[test]
fn x05_apply_preserves_extras_and_names_losses_when_replacing() {
    let host = MemoryHost::new();
    host.put("/etc/f", "old");
    host.chmod("/etc/f", 0o660);
    let mut old_extras = extras();
    old_extras.attributes.insert(c"security.capability".into(), vec![1]);
    host.set_extras("/etc/f", Some(old_extras));
    let parameters = json!({"path": "/etc/f", "content": "new"});
    let Ok(CheckResult::Drifted { diff, message }) = check(&host, &parameters) else { panic!("the file differs") };
    assert!(diff.contains("+++ /etc/f (mode 0660, owner 0:0, without security.capability)\n"), "{diff}");
    assert_eq!(
        message, "the new file is without security.capability",
        "the message names the loss, because a sensitive task has no diff"
    );
    let result = apply(&host, &parameters).unwrap();
    assert_eq!((result.diff, result.message), (diff, message));
    assert_eq!(host.text("/etc/f").as_deref(), Some("new"));
    assert_eq!(owner_mode_extras(&host, "/etc", "f"), (0, 0o660, extras()));
    assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
    // The mode that the task sets also limits the access control list.
    apply(&host, &json!({"path": "/etc/f", "content": "new", "mode": "0640"})).unwrap();
    assert_eq!(owner_mode_extras(&host, "/etc", "f"), (0, 0o640, extras().with_mode(0o660, 0o640)));
}

#[test]
fn x05_apply_fails_and_keeps_file_when_extras_cannot_be_preserved() {
    let host = MemoryHost::new();
    let parameters = json!({"path": "/etc/f", "content": "new"});
    host.put("/etc/f", "old");
    // From here on, the extras of the file cannot be read.
    host.set_extras("/etc/f", None);
    assert!(matches!(check(&host, &json!({"path": "/etc/f", "content": "old"})), Ok(CheckResult::Converged)));
    let Ok(CheckResult::Blocked { message, .. }) = check(&host, &parameters) else {
        panic!("the extras to preserve are not known")
    };
    assert!(message.contains("extended attributes"), "{message}");
    assert_eq!(apply(&host, &parameters).unwrap_err().message, message);
    host.set_extras("/etc/f", Some(extras()));
    // The file system refuses extras for new files.
    host.refuse_extras();
    let message = apply(&host, &parameters).unwrap_err().message;
    let expected = "cannot give the new file user.note of the old one, which is left as it was: unsupported: remove it from the old file if it may \
                go (`setfattr -x` an attribute, `setfacl -b` a list, `chattr` a flag)";
    assert_eq!(message, expected);
    assert_eq!((host.text("/etc/f").as_deref(), host.list("/etc")), (Some("old"), vec!["f".to_owned()]));
    // A file that is to be deleted may have extras that cannot be read.
    host.set_extras("/etc/f", None);
    apply(&host, &json!({"path": "/etc/f", "absent": true})).unwrap();
    assert_eq!(host.text("/etc/f"), None);
}

#[test]
fn x05_apply_ignores_extras_when_another_user_created_file() {
    for (old_extras, mode, losses) in [
        (Some(extras()), 0o600, ", without system.posix_acl_access, user.note, flag d (no dump)"),
        // An access control list that cannot be read grants unknown rights, so only the owner gets rights.
        (None, 0o600, ", without its extended attributes and flags, which cannot be read"),
    ] {
        let host = MemoryHost::new();
        host.put("/spool/f", "x");
        host.chown("/spool", 65_534);
        host.chown("/spool/f", 65_534);
        // The mode 0664 would give rights to group and others, but the unreadable list may deny them to some users.
        host.chmod("/spool/f", if old_extras.is_none() { 0o664 } else { 0o660 });
        host.set_extras("/spool/f", old_extras);
        let result = apply(&host, &json!({"path": "/spool/f", "content": "new"})).unwrap();
        assert!(result.diff.contains(&format!("(mode {mode:04o}, owner 0:0{losses})\n")), "{}", result.diff);
        assert_eq!(owner_mode_extras(&host, "/spool", "f"), (0, mode, Extras::default()));
    }
}

#[test]
fn x05_new_file_gets_no_default_acl_when_secret_or_unprotected() {
    // User 65534 owns the directory of the last case and can write there. So that directory does not protect the file.
    for (dir_owner, is_secret, has_no_extras) in [(0, false, false), (0, true, true), (65_534, false, true)] {
        let host = MemoryHost::new();
        // The secret `db` that the task reads.
        host.put("/run/credentials/stemma-agent.service/db", "x");
        host.put("/srv/other", "");
        host.chown("/srv", dir_owner);
        host.set_new_file_extras(extras());
        block_on(FileApplier.apply(&site(&host), &file_task("/srv/f", &json!({}), is_secret))).unwrap();
        let expected = if has_no_extras { Extras::default() } else { extras() };
        assert_eq!(owner_mode_extras(&host, "/srv", "f").2, expected, "directory of {dir_owner}, secret: {is_secret}");
    }
}

/// The file system gives each new file the mode 0755, as FAT does. An apply fails only if the task sets another mode.
#[test]
fn y09_apply_fails_without_writing_when_file_system_ignores_mode() {
    let host = MemoryHost::new();
    host.put("/boot/efi/f", "old");
    host.force_mode(0o755);
    let parameters = json!({"path": "/boot/efi/f", "content": "new", "mode": "0600"});
    let message = apply(&host, &parameters).unwrap_err().message;
    assert!(
        message.starts_with("parameters.mode: the file system of /boot/efi/f does not store it: 0600 becomes 0755"),
        "{message}"
    );
    assert_eq!(host.text("/boot/efi/f").as_deref(), Some("old"));
    assert_eq!(host.list("/boot/efi"), ["f"], "no unfinished file is left in the directory");
    for mode_field in [json!({}), json!({"mode": "0755"})] {
        let mut parameters = json!({"path": "/boot/efi/f", "content": format!("for {mode_field}")});
        parameters.as_object_mut().unwrap().extend(mode_field.as_object().unwrap().clone());
        apply(&host, &parameters).unwrap();
        assert_eq!(host.text("/boot/efi/f").unwrap(), format!("for {mode_field}"));
    }
}

/// A change of the owner clears setuid, as on Linux. So the mode 4755 shows that the mode was set after the owner.
#[test]
fn s67_apply_sets_upper_mode_bits_after_owner() {
    let host = MemoryHost::new();
    let parameters = json!({"path": "/bin/tool", "content": "", "owner": "www-data", "mode": "4755"});
    apply(&host, &parameters).unwrap();
    let stat = host.dir(&HostPath::from_static("/bin")).unwrap().unwrap().stat("tool").unwrap().unwrap();
    assert_eq!((stat.user, stat.mode), (33, 0o4755));
}

/// User `nobody` owns the directory, and could have created the old file. The new file belongs to root or to the owner
/// that the task sets. Its mode is that of the old file only if the old file belonged to root or to this owner, and its
/// setuid bit only if to root. If the task sets no mode, a content with a secret gives others no rights.
#[test]
fn w10_07_apply_ignores_mode_and_owner_when_another_user_created_file() {
    let nobody = 65_534;
    // Mode and owner of the old file, parameters of the task, whether its content is a secret, and the expected owner
    // and mode.
    for (mode, owner, parameters, is_secret, expected) in [
        (0o666, nobody, json!({}), true, (0, 0o600)),
        (0o666, nobody, json!({}), false, (0, 0o644)),
        (0o4777, nobody, json!({"owner": "root"}), false, (0, 0o644)),
        (0o4777, nobody, json!({"owner": "root"}), true, (0, 0o600)),
        (0o666, nobody, json!({"owner": "www-data"}), true, (33, 0o600)),
        (0o4777, 33, json!({"owner": "www-data"}), false, (33, 0o777)),
        (0o640, 33, json!({"owner": "www-data"}), false, (33, 0o640)),
        (0o777, nobody, json!({"mode": "0640"}), false, (0, 0o640)),
        (0o644, 0, json!({}), true, (0, 0o640)),
        (0o755, 0, json!({}), false, (0, 0o755)),
    ] {
        let host = MemoryHost::new();
        host.put("/run/credentials/stemma-agent.service/db", "x");
        host.put("/spool/f", "x");
        host.chown("/spool", nobody);
        host.chmod("/spool/f", mode);
        host.chown("/spool/f", owner);
        let task = file_task("/spool/f", &parameters, is_secret);
        let check_result = block_on(FileApplier.check(&site(&host), &task)).unwrap();
        let old_owner_and_mode = (owner, mode);
        assert_eq!(check_result == CheckResult::Converged, old_owner_and_mode == expected, "{parameters} {mode:o}");
        block_on(FileApplier.apply(&site(&host), &task)).unwrap();
        let (user, new_mode, _) = owner_mode_extras(&host, "/spool", "f");
        assert_eq!((user, new_mode), expected, "{parameters} {mode:o} of {owner}, secret: {is_secret}");
        assert_eq!(block_on(FileApplier.check(&site(&host), &task)), Ok(CheckResult::Converged), "{parameters}");
    }
}

#[test]
fn w10_07_apply_keeps_owner_and_mode_when_directory_is_root_only() {
    let app = 33;
    // A directory with its owner and mode, the mode of the old file, which belongs to `app`, parameters of the task,
    // whether its content is a secret, and the expected owner and mode.
    for (dir, mode, parameters, is_secret, expected) in [
        (("/etc/app", 0, 0o755), 0o600, json!({}), false, (app, 0o600)),
        (("/etc/app", 0, 0o755), 0o640, json!({}), true, (app, 0o640)),
        (("/etc/app", 0, 0o755), 0o644, json!({}), true, (app, 0o640)),
        (("/etc/app", 0, 0o755), 0o4755, json!({}), false, (app, 0o755)),
        (("/etc/app", 0, 0o755), 0o600, json!({"owner": "root"}), false, (0, 0o600)),
        // Another user could have created the file. Root becomes its owner, and the mode grants no more than before.
        (("/etc/app", app, 0o755), 0o600, json!({}), false, (0, 0o600)),
        (("/etc/app", 0, 0o775), 0o640, json!({}), false, (0, 0o640)),
        (("/etc/app", 0, 0o1777), 0o666, json!({}), false, (0, 0o644)),
        (("/etc", app, 0o755), 0o600, json!({}), false, (0, 0o600)),
    ] {
        let host = MemoryHost::new();
        host.put("/run/credentials/stemma-agent.service/db", "x");
        host.put("/etc/app/conf", "x");
        host.chown("/etc/app/conf", app);
        host.chmod("/etc/app/conf", mode);
        host.chown(dir.0, dir.1);
        host.chmod(dir.0, dir.2);
        let task = file_task("/etc/app/conf", &parameters, is_secret);
        let check_result = block_on(FileApplier.check(&site(&host), &task)).unwrap();
        assert_eq!(check_result == CheckResult::Converged, (app, mode) == expected, "{parameters} {mode:o} in {dir:?}");
        block_on(FileApplier.apply(&site(&host), &task)).unwrap();
        let (user, new_mode, _) = owner_mode_extras(&host, "/etc/app", "conf");
        assert_eq!((user, new_mode), expected, "{parameters} {mode:o} in {dir:?}, secret: {is_secret}");
        assert_eq!(block_on(FileApplier.check(&site(&host), &task)), Ok(CheckResult::Converged), "{parameters} in {dir:?}");
    }
}

#[test]
fn x05_apply_adds_no_read_rights_when_owner_and_group_change() {
    let nobody = 65_534;
    // Group and mode of the old file, and the mode of the new file, whose owner and group are root.
    for (group, mode, expected_mode) in
        [(4, 0o604, 0o600), (4, 0o640, 0o600), (4, 0o044, 0), (4, 0o644, 0o644), (0, 0o640, 0o640)]
    {
        let host = MemoryHost::new();
        host.put("/spool/f", "x");
        host.chown("/spool", nobody);
        host.chown("/spool/f", nobody);
        host.chgrp("/spool/f", group);
        host.chmod("/spool/f", mode);
        apply(&host, &json!({"path": "/spool/f", "content": "new"})).unwrap();
        assert_eq!(owner_mode_extras(&host, "/spool", "f"), (0, expected_mode, Extras::default()), "{mode:o} of group {group}");
    }
}

#[test]
fn x05_apply_gives_former_owner_and_group_no_additional_rights() {
    // The old file belongs to user 0 and group 7. Its mode, parameters of the task, and the expected owner, group and
    // mode.
    for (mode, parameters, expected) in [
        (0o604, json!({"group": "4"}), (0, 4, 0o600)),
        (0o644, json!({"group": "4"}), (0, 4, 0o644)),
        (0o650, json!({"group": "4"}), (0, 4, 0o650)),
        (0o604, json!({"group": "7"}), (0, 7, 0o604)),
        (0o066, json!({"owner": "www-data"}), (33, 7, 0)),
        (0o466, json!({"owner": "www-data"}), (33, 7, 0o444)),
        (0o640, json!({"owner": "www-data"}), (33, 7, 0o640)),
        (0o604, json!({"group": "4", "mode": "0604"}), (0, 4, 0o604)),
    ] {
        let host = MemoryHost::new();
        host.put("/etc/f", "old");
        host.chgrp("/etc/f", 7);
        host.chmod("/etc/f", mode);
        let mut parameters = parameters;
        (parameters["path"], parameters["content"]) = (json!("/etc/f"), json!("new"));
        let result = apply(&host, &parameters).unwrap();
        let stat = host.dir(&HostPath::from_static("/etc")).unwrap().unwrap().stat("f").unwrap().unwrap();
        assert_eq!((stat.user, stat.group, stat.mode), expected, "{parameters} {mode:o}");
        let message = if expected.2 == mode { String::new() } else { format!("mode {mode:04o} becomes {:04o}", expected.2) };
        assert_eq!(result.message, message, "the message names a change of mode that the task does not request");
        assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged), "{parameters}");
    }
}

/// Checks the rule of chown(2): a change of owner or group clears the `S_ISUID` and `S_ISGID` mode bits of an
/// executable file. Linux clears them for root too.
#[test]
fn x05_apply_clears_setuid_and_setgid_when_owner_changes_without_mode() {
    for (mode, parameters, expected_rights) in [
        // If the setgid bit remained, the file would run with the rights of group 42 (shadow).
        (0o2755, json!({"group": "42"}), (0, 42, 0o755)),
        // If the setuid bit remained, the file would run as www-data.
        (0o4755, json!({"owner": "www-data"}), (33, 7, 0o755)),
        (0o6755, json!({"owner": "www-data", "group": "42"}), (33, 42, 0o755)),
        // Otherwise group 42 could now run the file as root, or www-data could now write a file that runs as group 7.
        (0o4750, json!({"group": "42"}), (0, 42, 0o750)),
        (0o2755, json!({"owner": "www-data"}), (33, 7, 0o755)),
        // The sticky bit is cleared if the owner changes, and remains if only the group changes.
        (0o7755, json!({"owner": "www-data"}), (33, 7, 0o755)),
        (0o1644, json!({"group": "42"}), (0, 42, 0o1644)),
        // Owner and group do not change, or the task sets the mode.
        (0o6755, json!({"owner": "root", "group": "7"}), (0, 7, 0o6755)),
        (0o6755, json!({}), (0, 7, 0o6755)),
        (0o2755, json!({"group": "42", "mode": "2755"}), (0, 42, 0o2755)),
        (0o755, json!({"owner": "www-data", "mode": "4755"}), (33, 7, 0o4755)),
    ] {
        let host = MemoryHost::new();
        host.put("/etc/tool", "old");
        host.chgrp("/etc/tool", 7);
        host.chmod("/etc/tool", mode);
        let mut parameters = parameters;
        (parameters["path"], parameters["content"]) = (json!("/etc/tool"), json!("old"));
        let has_mode = parameters.get("mode").is_some();
        let is_reduced = !has_mode && expected_rights.2 != mode;
        let expected = if is_reduced { format!("mode {mode:04o} becomes {:04o}", expected_rights.2) } else { String::new() };
        match check(&host, &parameters) {
            Ok(CheckResult::Drifted { message, .. }) => assert_eq!(message, expected, "{parameters} {mode:o}"),
            check_result => {
                assert_eq!((check_result, expected_rights), (Ok(CheckResult::Converged), (0, 7, mode)), "{parameters}");
            }
        }
        let result = apply(&host, &parameters).unwrap();
        assert_eq!(result.message, expected, "{parameters} {mode:o}");
        let stat = host.dir(&HostPath::from_static("/etc")).unwrap().unwrap().stat("tool").unwrap().unwrap();
        assert_eq!((stat.user, stat.group, stat.mode), expected_rights, "{parameters} {mode:o}");
        assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged), "{parameters} {mode:o}: the second check");
    }
}

/// The test uses two access control lists. In the notation of setfacl(1), `owner_only_acl` is `u::rwx,g::---,o::---`.
/// `named_user_acl` also contains `u:1:rw-,m::rw-`.
#[test]
fn x05_new_file_mode_is_limited_by_default_acl_when_unspecified() {
    let encode_acl = |entries: &[u32]| [&[2][..], entries].concat().iter().flat_map(|word| word.to_le_bytes()).collect();
    let owner_only_acl: Vec<u8> = encode_acl(&[7 << 16 | 1, u32::MAX, 4, u32::MAX, 0x20, u32::MAX]);
    let named_user_acl: Vec<u8> =
        encode_acl(&[7 << 16 | 1, u32::MAX, 6 << 16 | 2, 1, 4, u32::MAX, 6 << 16 | 0x10, u32::MAX, 0x20, u32::MAX]);
    for (acl, is_group_writable, parameters, file_mode, dir_mode) in [
        (&owner_only_acl, false, json!({}), 0o600, 0o700),
        (&named_user_acl, false, json!({}), 0o640, 0o740),
        // In a directory that its group can write, the file gets no list. The group bits of its mode are then the
        // rights of the group, not the mask.
        (&named_user_acl, true, json!({}), 0o600, 0o740),
        (&owner_only_acl, false, json!({"mode": "0644", "dir_mode": "0755"}), 0o644, 0o755),
    ] {
        let host = MemoryHost::new();
        host.put("/srv/other", "");
        let attributes = [(c"system.posix_acl_default".into(), acl.clone())];
        host.set_extras("/srv", Some(Extras { attributes: attributes.into(), flags: None }));
        if is_group_writable {
            host.chmod("/srv", 0o775);
        }
        for path in ["/srv/f", "/srv/a/b/f"] {
            let mut parameters = parameters.clone();
            (parameters["path"], parameters["content"]) = (json!(path), json!("x"));
            // On a real host, the kernel copies the default list to new directories. The in-memory host does not.
            apply(&host, &parameters).unwrap();
            let parent = HostPath::parse(path).unwrap().parent().unwrap();
            let stat = host.dir(&parent).unwrap().unwrap().stat("f").unwrap().unwrap();
            assert_eq!(stat.mode, file_mode, "{path} {parameters}");
            assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged), "{path} {parameters}");
        }
        let mode_of = |dir: &'static str, name: &str| {
            host.dir(&HostPath::from_static(dir)).unwrap().unwrap().stat(name).unwrap().unwrap().mode
        };
        assert_eq!((mode_of("/srv", "a"), mode_of("/srv/a", "b")), (dir_mode, dir_mode), "{parameters}");
    }
}

#[test]
fn x05_sensitive_task_result_names_unrequested_changes_of_rights() {
    let host = MemoryHost::new();
    host.put("/run/credentials/stemma-agent.service/db", "x");
    host.put("/spool/f", "x");
    host.chown("/spool", 65_534);
    host.chown("/spool/f", 65_534);
    host.chmod("/spool/f", 0o4755);
    let task = secret_task(&json!({"path": "/spool/f", "template": "{{ secret('db') }}"}));
    let expected = "mode 4755 becomes 0600, owner 65534 becomes 0";
    let Ok(CheckResult::Drifted { message, .. }) = block_on(FileApplier.check(&site(&host), &task)) else {
        panic!("the file differs")
    };
    assert_eq!(message, expected);
    assert_eq!(block_on(FileApplier.apply(&site(&host), &task)).unwrap().message, expected);
}

/// Returns a task that writes the file at `path` with these parameters. If `is_secret` is true, the content is the
/// value of the secret `db`, else `x`.
fn file_task(path: &str, parameters: &Value, is_secret: bool) -> HostTask {
    let mut parameters = parameters.clone();
    let (key, text) = if is_secret { ("template", "{{ secret('db') }}") } else { ("content", "x") };
    (parameters["path"], parameters[key]) = (json!(path), json!(text));
    if is_secret { secret_task(&parameters) } else { task(&parameters) }
}

/// Returns a file task `conf` with these parameters. The task reads version 1 of the secret `db`.
fn secret_task(parameters: &Value) -> HostTask {
    let definition = json!({"id": "conf", "type": "file", "parameters": parameters}).to_string();
    let (references, after, barriers) = (vec!["secret('db')".to_owned()], vec![], vec![]);
    let inputs = [("secret('db')".to_owned(), InputValue::Secret { name: "db".into(), version: 1 })].into();
    HostTask::new(&ProfileTask { id: "conf".into(), definition, references, after, barriers }, &inputs).unwrap()
}
