//! Checks, writes and refusals of file tasks on an in-memory host.

use std::rc::Rc;

use rustix::fs::IFlags;
use serde_json::{Value, json};
use stemma_core::digest::sha256;
use stemma_wire::message::desired::{InputValue, ProfileTask};

use super::*;
use crate::apply::applier::testing::{block_on, site, task_of};
use crate::apply::ledger::Ledger;
use crate::config::HostLabelMapConfig;
use crate::host::Host;
use crate::host::memory::MemoryHost;
use crate::host::{CommandResult, ExitKind, Extras, ReplaceBlocker};

mod rights;

/// Returns a file task `conf` with these parameters. The task reads no labels and waits for no other task.
fn task(parameters: &Value) -> HostTask {
    task_of(("conf", "file"), parameters, &[])
}

/// Returns a file task that reads the label `a`, whose value is `value`.
fn task_with_label(parameters: &Value, value: &str) -> HostTask {
    task_of(("conf", "file"), parameters, &[("a", value)])
}

fn check(host: &MemoryHost, parameters: &Value) -> Result<CheckResult, TaskError> {
    block_on(FileApplier.check(&site(host), &task(parameters)))
}

fn apply(host: &MemoryHost, parameters: &Value) -> Result<ApplyResult, TaskError> {
    block_on(FileApplier.apply(&site(host), &task(parameters)))
}

/// Returns the message of the error with which both a check and an apply of the task fail.
fn refusal(host: &MemoryHost, parameters: &Value) -> String {
    let error = check(host, parameters).unwrap_err();
    assert_eq!(apply(host, parameters).unwrap_err().message, error.message);
    error.message
}

/// The user `www-data` of the in-memory host has the number 33. After the apply, a changed mode is a difference again.
#[test]
fn apply_creates_file_and_directories_when_missing() {
    let host = MemoryHost::new();
    let parameters = json!({"path": "/etc/a/b", "content": "x\n", "mode": "0640", "owner": "www-data", "group": "33"});
    let Ok(CheckResult::Drifted { diff, .. }) = check(&host, &parameters) else { panic!("the file does not exist") };
    assert_eq!(diff, "--- /dev/null\n+++ /etc/a/b (mode 0640, owner 33:33)\n@@ -0,0 +1 @@\n+x\n");
    apply(&host, &parameters).unwrap();
    assert_eq!(host.text("/etc/a/b").as_deref(), Some("x\n"));
    let stat = host.dir(&HostPath::from_static("/etc/a")).unwrap().unwrap().stat("b").unwrap().unwrap();
    assert_eq!((stat.mode, stat.user, stat.group), (0o640, 33, 33));
    assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
    host.chmod("/etc/a/b", 0o600);
    assert!(matches!(check(&host, &parameters), Ok(CheckResult::Drifted { .. })), "a changed mode is a difference");
}

#[test]
fn apply_keeps_mode_when_unspecified() {
    let host = MemoryHost::new();
    host.put("/etc/f", "old");
    host.chmod("/etc/f", 0o600);
    apply(&host, &json!({"path": "/etc/f", "content": "new"})).unwrap();
    let stat = host.dir(&HostPath::from_static("/etc")).unwrap().unwrap().stat("f").unwrap().unwrap();
    assert_eq!((host.text("/etc/f").as_deref(), stat.mode), (Some("new"), 0o600));
}

/// Returns extended attributes and flags of a file. One attribute is an access control list: user 1 may read and write,
/// the owning group has no rights, and the mask is `rw`.
fn extras() -> Extras {
    // The words are those of the kernel: the version 2, then two for each entry (`rights << 16 | kind`, and the user or
    // `u32::MAX`).
    let acl = [2_u32, 6 << 16 | 1, u32::MAX, 6 << 16 | 2, 1, 4, u32::MAX, 6 << 16 | 0x10, u32::MAX, 0x20, u32::MAX];
    let acl = acl.iter().flat_map(|word| word.to_le_bytes()).collect();
    let attributes = [(c"system.posix_acl_access".into(), acl), (c"user.note".into(), b"keep".to_vec())];
    Extras { attributes: attributes.into(), flags: Some(IFlags::NODUMP) }
}

/// A blocker is a reason why not even root can replace the file. Check and apply name the reason and the command that
/// removes it. The old file stays, without an unfinished file in its directory.
#[test]
fn x05_apply_explains_and_cleans_up_when_root_cannot_replace_file() {
    for (blocker, reason) in [
        (ReplaceBlocker::Immutable, "it is immutable; it is left as it was, until `chattr -i /etc/f` or"),
        (ReplaceBlocker::AppendOnly, "it is append-only; it is left as it was, until `chattr -a /etc/f` or"),
        (ReplaceBlocker::Mounted, "a file is mounted over it; it is left as it was, until `umount /etc/f` or"),
        (ReplaceBlocker::Swap, "it is an active swap file; it is left as it was, until `swapoff /etc/f` or"),
        (ReplaceBlocker::ImmutableDirectory, "the directory /etc is immutable; it is left as it was, until `chattr -i /etc` or"),
        (
            ReplaceBlocker::AppendOnlyDirectory,
            "the directory /etc is append-only; it is left as it was, until `chattr -a /etc` or",
        ),
        (
            ReplaceBlocker::ReadOnly,
            "the file system at /etc is read-only; it is left as it was, until `mount -o remount,rw /etc` or",
        ),
        (
            ReplaceBlocker::OtherFileSystem,
            "it lies on another file system than its directory; it is left as it was, until `umount /etc/f` or",
        ),
    ] {
        for content_fields in [json!({"content": "new"}), json!({"absent": true})] {
            let host = MemoryHost::new();
            host.put("/etc/f", "old");
            host.set_blocker("/etc/f", Some(blocker));
            let mut parameters = content_fields;
            parameters["path"] = json!("/etc/f");
            let Ok(CheckResult::Blocked { diff, message }) = check(&host, &parameters) else { panic!("{blocker:?}") };
            assert_eq!(message, format!("/etc/f cannot be replaced: {reason} a task that names another path"));
            assert!(diff.contains("-old"), "{diff}");
            assert_eq!(apply(&host, &parameters).unwrap_err().message, message);
            assert_eq!((host.text("/etc/f").as_deref(), host.list("/etc")), (Some("old"), vec!["f".to_owned()]));
            host.set_blocker("/etc/f", None);
            apply(&host, &parameters).unwrap();
        }
        let host = MemoryHost::new();
        host.put("/etc/f", "old");
        host.set_blocker("/etc/f", Some(blocker));
        let unchanged_result = check(&host, &json!({"path": "/etc/f", "content": "old"}));
        assert_eq!(unchanged_result, Ok(CheckResult::Converged), "a file with the wanted content need not be replaced");
    }
}

/// A directory that is immutable or read-only prevents the creation of the file, or of a directory above the file. The
/// message names the directory, and the entry that is missing. An append-only directory does not prevent the creation
/// of a directory in it.
#[test]
fn x05_apply_names_directory_when_subdirectory_cannot_be_created() {
    for (blocker, reason, cure) in [
        (ReplaceBlocker::ImmutableDirectory, "the directory /etc/t is immutable", "chattr -i /etc/t"),
        (ReplaceBlocker::ReadOnly, "the file system at /etc/t is read-only", "mount -o remount,rw /etc/t"),
    ] {
        let host = MemoryHost::new();
        host.put("/etc/t/other", "");
        host.set_blocker("/etc/t", Some(blocker));
        for (path, missing) in [("/etc/t/deep/a/f", "/etc/t/deep"), ("/etc/t/f", "/etc/t/f")] {
            let parameters = json!({"path": path, "content": "new"});
            let Ok(CheckResult::Blocked { message, .. }) = check(&host, &parameters) else { panic!("{blocker:?}") };
            let expected =
                format!("{missing} cannot be made: {reason}; nothing is there, until `{cure}` or a task that names another path");
            assert_eq!(message, expected);
            assert_eq!(apply(&host, &parameters).unwrap_err().message, message);
            assert_eq!(host.list("/etc/t"), ["other"]);
        }
    }
    let host = MemoryHost::new();
    host.put("/etc/t/other", "");
    host.set_blocker("/etc/t", Some(ReplaceBlocker::AppendOnlyDirectory));
    apply(&host, &json!({"path": "/etc/t/deep/f", "content": "new"})).unwrap();
    assert_eq!(host.text("/etc/t/deep/f").as_deref(), Some("new"), "an append-only directory accepts new entries");
}

/// Each of the two messages that advise a command quotes the path in it for the shell.
#[test]
fn x05_advice_quotes_path_as_one_word() {
    let host = MemoryHost::new();
    host.put("/etc/it's mine", "old");
    let parameters = json!({"path": "/etc/it's mine", "content": "new"});
    host.set_blocker("/etc/it's mine", Some(ReplaceBlocker::Immutable));
    assert!(apply(&host, &parameters).unwrap_err().message.contains(r"until `chattr -i '/etc/it'\''s mine'` or"));
    host.set_blocker("/etc/it's mine", None);
    host.increase_link_count("/etc/it's mine");
    assert!(refusal(&host, &parameters).contains(r"(`find / -samefile '/etc/it'\''s mine'` lists them)"));
}

#[test]
fn x05_apply_gives_advice_when_disk_is_full() {
    let host = MemoryHost::new();
    host.put("/etc/f", "old");
    let site = site(&host);
    host.set_full(true);
    let error = block_on(FileApplier.apply(&site, &task(&json!({"path": "/etc/f", "content": "new"})))).unwrap_err();
    assert!(
        error.message.ends_with(": make room on its file system (`df` and `df -i` show how full it is)"),
        "{}",
        error.message
    );
    assert_eq!(host.text("/etc/f").as_deref(), Some("old"));
}

/// Each apply stores the file that it replaces or deletes as the undo note of the path, in place of the earlier note.
#[test]
fn apply_backs_up_replaced_or_deleted_file() {
    let host = MemoryHost::new();
    host.put("/etc/f", "old");
    apply(&host, &json!({"path": "/etc/f", "content": "new"})).unwrap();
    let backup = site(&host).ledger.undo_note("/etc/f").unwrap();
    assert_eq!((backup.bytes.as_deref(), backup.attributes), (Some(&b"old"[..]), Some((0, 0, 0o644))));
    apply(&host, &json!({"path": "/etc/f", "absent": true})).unwrap();
    assert_eq!(host.text("/etc/f"), None);
    assert_eq!(check(&host, &json!({"path": "/etc/f", "absent": true})), Ok(CheckResult::Converged));
    assert_eq!(site(&host).ledger.undo_note("/etc/f").unwrap().bytes.as_deref(), Some(&b"new"[..]));
}

#[test]
fn apply_keeps_old_file_until_validate_succeeds() {
    let host = MemoryHost::new();
    host.put("/etc/f", "old");
    let parameters = json!({"path": "/etc/f", "content": "new", "validate": ["nginx", "-t", "-c", "{path}"]});
    host.on_run(|host, command| {
        let staged = command.argv[3].clone();
        assert_eq!(host.text(&staged).as_deref(), Some("new"), "validate sees the whole new file");
        assert_eq!(host.text("/etc/f").as_deref(), Some("old"));
        CommandResult { end: ExitKind::Status(1), output: "bad line 1".into() }
    });
    let error = apply(&host, &parameters).unwrap_err();
    assert_eq!(error.message, "validate ended with status 1: /etc/f is left as it was");
    assert_eq!(error.output, "bad line 1");
    assert_eq!((host.text("/etc/f").as_deref(), host.list("/etc")), (Some("old"), vec!["f".to_owned()]));
    host.on_run(|_, _| CommandResult { end: ExitKind::Status(0), output: String::new() });
    apply(&host, &parameters).unwrap();
    assert_eq!((host.text("/etc/f").as_deref(), host.list("/etc")), (Some("new"), vec!["f".to_owned()]));
}

/// In `validate`, only a `{path}` that the author wrote stands for the path of the new file. A `{path}` in the value of
/// a label stays as it is. A value that contains the internal placeholder of the path is refused.
#[test]
fn y03_validate_ignores_placeholder_when_value_contains_path() {
    let host = MemoryHost::new();
    let parameters = json!({"path": "/etc/f", "content": "new", "validate": ["look", "{{ labels.a }}", "at={path}"]});
    let with_label = |value: &str| task_with_label(&parameters, value);
    host.on_run(|host, command| {
        assert_eq!(command.argv[1], "L{path}L", "the value of the label is unchanged");
        let staged = command.argv[2].strip_prefix("at=").unwrap();
        assert_eq!(host.text(staged).as_deref(), Some("new"));
        CommandResult { end: ExitKind::Status(0), output: String::new() }
    });
    block_on(FileApplier.apply(&site(&host), &with_label("L{path}L"))).unwrap();
    let error = block_on(FileApplier.apply(&site(&MemoryHost::new()), &with_label("a\u{10FFFF}path\u{10FFFF}b"))).unwrap_err();
    assert!(error.message.contains("parameters.validate: a value contains the noncharacter"), "{}", error.message);
}

/// Regression test: for a `validate` command without a program, the check reported that the file would be changed.
#[test]
fn y09_apply_rejects_validate_without_program_before_writing() {
    let expected = "parameters.validate: the first item must be the program, but it is missing";
    // A file that already has the wanted content needs no `validate`, so that task is not refused.
    for (initial_text, is_refused) in [("old", true), ("new", false)] {
        let host = MemoryHost::new();
        host.put("/etc/f", initial_text);
        let validate = json!(["{{ labels.a }}", "{path}"]);
        let task = task_with_label(&json!({"path": "/etc/f", "content": "new", "validate": validate}), "");
        match block_on(FileApplier.check(&site(&host), &task)) {
            Ok(CheckResult::Blocked { message, .. }) if is_refused => assert_eq!(message, expected),
            found => assert_eq!(found, Ok(CheckResult::Converged), "{initial_text}"),
        }
        if is_refused {
            assert_eq!(block_on(FileApplier.apply(&site(&host), &task)).unwrap_err().message, expected);
        }
        assert_eq!((host.text("/etc/f").as_deref(), host.list("/etc")), (Some(initial_text), vec!["f".to_owned()]));
        assert_eq!(host.last_command(), None);
    }
}

/// The command `validate` makes each change of the list to the staged file (the new file under its temporary name).
#[test]
fn x05_apply_discards_new_file_when_validate_modifies_file() {
    type EditFile = fn(&MemoryHost, &str);
    let changes: [EditFile; 7] = [
        |host, staged| host.delete(staged),
        |host, staged| host.chmod(staged, 0o666),
        |host, staged| host.chown(staged, 7),
        |host, staged| host.set_extras(staged, Some(extras())),
        |host, staged| host.put(staged, "new and more"),
        |host, staged| host.increase_link_count(staged),
        // The content is the same, but the file is another one.
        |host, staged| {
            host.delete(staged);
            host.put(staged, "new");
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let host = MemoryHost::new();
        host.put("/etc/f", "old");
        host.on_run(move |host, command| {
            change(host, &command.argv[1]);
            CommandResult { end: ExitKind::Status(0), output: "reformatted".into() }
        });
        let error = apply(&host, &json!({"path": "/etc/f", "content": "new", "validate": ["fmt", "{path}"]})).unwrap_err();
        let expected = "the new file, or its directory, was changed or replaced while it was checked (validate may only read {path}): \
                   /etc/f is left as it was";
        assert_eq!((&*error.message, &*error.output), (expected, "reformatted"), "{index}");
        assert_eq!((host.text("/etc/f").as_deref(), host.list("/etc")), (Some("old"), vec!["f".to_owned()]), "{index}");
    }
}

#[test]
fn x05_apply_keeps_foreign_change_when_made_during_validate() {
    type EditHost = fn(&MemoryHost);
    let changes: [(EditHost, Option<&str>); 8] = [
        // A change by another program, and the text of `/etc/f` afterwards.
        (|host| host.chmod("/etc/f", 0o600), Some("old")),
        (|host| host.chown("/etc/f", 7), Some("old")),
        (|host| host.chgrp("/etc/f", 7), Some("old")),
        (|host| host.set_extras("/etc/f", Some(extras())), Some("old")),
        (|host| host.increase_link_count("/etc/f"), Some("old")),
        (|host| host.put("/etc/f", "edited"), Some("edited")),
        (|host| host.delete("/etc/f"), None),
        (|host| host.put("/etc/new", "made"), Some("old")),
    ];
    for (index, (change, expected_text)) in changes.into_iter().enumerate() {
        let host = MemoryHost::new();
        host.put("/etc/f", "old");
        host.on_run(move |host, _| {
            change(host);
            CommandResult { end: ExitKind::Status(0), output: String::new() }
        });
        // The last change creates the file that the task would create.
        let path = if index == 7 { "/etc/new" } else { "/etc/f" };
        let error = apply(&host, &json!({"path": path, "content": "new", "validate": ["look", "{path}"]})).unwrap_err();
        let expected = format!(
            "{path} was changed by another program during this pass: it is left unchanged, and checked again in the next pass"
        );
        assert_eq!(error.message, expected, "{index}");
        assert_eq!(host.text("/etc/f").as_deref(), expected_text, "{index}");
        assert!(host.list("/etc").iter().all(|name| name == "f" || name == "new"), "{index}: {:?}", host.list("/etc"));
        assert!(site(&host).ledger.undo_note(path).is_none(), "{index}: nothing was replaced");
    }
}

/// On a real host, `validate` first only reads the new file. Then it renames the file, adds text or changes the mode.
/// At last it replaces the directory, or changes the mode or the text of the old file. The apply notices each change.
#[test]
fn x05_apply_detects_changes_during_validate_when_host_is_real() {
    use std::os::unix::fs::PermissionsExt as _;
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("f");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let host = Rc::new(crate::host::real::RealHost::new(root.path()).unwrap());
    let site = Site::new(host.clone(), Rc::new(Ledger::open(host.clone()).unwrap()));
    let apply = |script: String| {
        std::fs::write(&file, "old").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        let parameters = json!({"path": "/f", "content": "new", "validate": ["/bin/sh", "-c", script]});
        let result = runtime.block_on(FileApplier.apply(&site, &task(&parameters)));
        let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o7777;
        (result.map_err(|error| error.message), std::fs::read_to_string(&file).unwrap(), mode)
    };
    let (result, text, mode) = apply("cat {path} > /dev/null".to_owned());
    assert_eq!((result.is_ok(), &*text, mode), (true, "new", 0o640));
    for script in ["cat {path} > {path}.n && mv {path}.n {path}", "echo more >> {path}", "chmod 0666 {path}"] {
        let (result, text, mode) = apply(script.to_owned());
        assert!(result.clone().unwrap_err().starts_with("the new file, or its directory, was changed or replaced"), "{result:?}");
        assert_eq!((&*text, mode), ("old", 0o640), "{script}");
    }
    let (replaced_dir, root) = (root.path().join("d"), root.path().display());
    std::fs::create_dir(&replaced_dir).unwrap();
    let parameters = json!({"path": "/d/f", "content": "new",
        "validate": ["/bin/sh", "-c", format!("mv '{root}/d' '{root}/d.old' && mkdir '{root}/d' && : {{path}}")]});
    let message = runtime.block_on(FileApplier.apply(&site, &task(&parameters))).unwrap_err().message;
    assert!(message.starts_with("the new file, or its directory, was changed or replaced"), "{message}");
    assert_eq!(std::fs::read_dir(&replaced_dir).unwrap().count(), 0);
    let target = file.display();
    for (script, expected) in
        [(format!("chmod 0600 '{target}'"), ("old", 0o600)), (format!("echo edited > '{target}'"), ("edited\n", 0o640))]
    {
        let (result, text, mode) = apply(script.clone());
        assert!(result.clone().unwrap_err().starts_with("/f was changed by another program"), "{result:?}");
        assert_eq!((&*text, mode), expected, "{script}");
    }
}

/// A task with `source` fails until the ledger has the blob.
#[test]
fn apply_writes_blob_from_ledger() {
    let host = MemoryHost::new();
    let hash = Hash(sha256(b"blob"));
    let parameters = json!({"path": "/f", "source": format!("sha256:{}", hash)});
    assert!(refusal(&host, &parameters).ends_with("is not on this host yet"));
    site(&host).ledger.store_body(hash, b"blob").unwrap();
    apply(&host, &parameters).unwrap();
    assert_eq!(host.text("/f").as_deref(), Some("blob"));
}

/// Fuel writes `data` for `content`, `permissions` for `mode` and `dir_permissions` for `dir_mode`. Its parameters
/// `timeout`, `overwrite` and `parents` have no effect.
#[test]
fn parameters_accept_fuel_spelling() {
    let host = MemoryHost::new();
    let parameters = json!({"path": "/etc/fuel/f", "data": "x", "permissions": "0600", "dir_permissions": "0750",
        "timeout": 180, "overwrite": true, "parents": true});
    apply(&host, &parameters).unwrap();
    let root = host.dir(&HostPath::from_static("/etc")).unwrap().unwrap();
    assert_eq!(root.stat("fuel").unwrap().unwrap().mode, 0o750);
    assert_eq!(root.dir("fuel").unwrap().unwrap().stat("f").unwrap().unwrap().mode, 0o600);
}

/// A blob above the limit for memory is copied from the ledger in pieces, and compared by its hash. If the blob in the
/// ledger is damaged, the apply fails and removes the blob.
#[test]
fn apply_streams_blob_when_large() {
    let host = MemoryHost::new();
    let body = "0123456789abcdef\n".repeat(200_000);
    let hash = Hash(sha256(body.as_bytes()));
    site(&host).ledger.store_body(hash, body.as_bytes()).unwrap();
    let parameters = json!({"path": "/f", "source": format!("sha256:{hash}")});
    apply(&host, &parameters).unwrap();
    assert!(host.text("/f").as_deref() == Some(body.as_str()));
    assert_eq!(check(&host, &parameters).unwrap(), CheckResult::Converged);
    for old_text in [body.replacen('0', "1", 1), "short\n".to_owned()] {
        host.put("/f", &old_text);
        let CheckResult::Drifted { diff, .. } = check(&host, &parameters).unwrap() else { panic!("the file differs") };
        assert!(diff.ends_with(&format!("{} bytes become {}\n", old_text.len(), body.len())), "{diff}");
        apply(&host, &parameters).unwrap();
        assert_eq!(check(&host, &parameters).unwrap(), CheckResult::Converged);
    }
    // Damages the blob: the text differs from its hash.
    let path = format!("/var/lib/stemma-agent/apply/bodies/{hash}");
    host.put(&path, &body.replace('f', "x"));
    host.put("/f", "short\n");
    let error = apply(&host, &parameters).unwrap_err().message;
    assert_eq!(error, "parameters.source: the blob on this host has changed; it is fetched again");
    assert_eq!((host.text("/f").as_deref(), host.text(&path)), (Some("short\n"), None));
}

#[test]
fn check_names_parameter_when_invalid() {
    let host = MemoryHost::new();
    for (parameters, expected) in [
        (json!({"path": "etc/f", "content": ""}), "parameters.path: path \"etc/f\" is relative; write it from `/` on"),
        (json!({"path": "/etc/stemma/agent.toml", "content": ""}), "/etc/stemma/agent.toml belongs to the agent; no task"),
        (json!({"path": "/f"}), "parameters: one of content, template, source, absent is missing"),
        (json!({"path": "/f", "content": "", "absent": true}), "content and absent are both set: exactly one of content"),
        (json!({"path": "/f", "content": "", "mode": "rw"}), "parameters.mode: \"rw\" is not a file mode"),
        (json!({"path": "/f", "content": "", "mode": 644}), "parameters: invalid type: integer `644`"),
        (
            json!({"path": "/f", "content": "", "owner": "nobody-here"}),
            "no user \"nobody-here\" in /etc/passwd, nor in a directory service",
        ),
        (json!({"path": "/f", "content": "", "contents": ""}), "parameters: unknown field `contents`"),
        (json!({"path": "/f", "data": {"yaql_exp": "$"}}), "parameters: invalid type: map"),
        (
            json!({"path": "/f", "source": "file.bin"}),
            "parameters.source: \"file.bin\": it does not name a blob: write sha256: and 64",
        ),
        (json!({"path": "/f", "source": "00".repeat(32)}), "it does not name a blob: write sha256: and 64 hexadecimal digits"),
    ] {
        let message = refusal(&host, &parameters);
        assert!(message.contains(expected), "{parameters}: {message}");
    }
}

#[test]
fn s65_apply_rejects_path_when_not_regular_single_link_file() {
    let host = MemoryHost::new();
    host.put("/t/hard", "theirs");
    host.increase_link_count("/t/hard");
    host.put_special("/t/fifo");
    host.put_link("/t/link");
    host.put("/t/dir/f", "");
    for (name, expected) in [
        (
            "hard",
            "/t/hard has 2 hard links; such a file is neither read nor replaced: remove the other names \
             (`find / -samefile /t/hard` lists them), or name another path",
        ),
        ("fifo", "/t/fifo is a device, socket or FIFO, where a regular file was expected: move it away, or name another path"),
        ("link", "/t/link is a symbolic link, and links are not followed: write the path that it leads to"),
        ("dir", "/t/dir is a directory, where a regular file was expected: move it away, or name another path"),
        ("link/f", "/t/link is a symbolic link, and links are not followed: write the path that it leads to"),
    ] {
        for content_fields in [json!({"content": "x"}), json!({"absent": true})] {
            let mut parameters = content_fields;
            parameters["path"] = json!(format!("/t/{name}"));
            assert_eq!(refusal(&host, &parameters), expected);
        }
    }
}

#[test]
fn apply_replaces_and_removes_file_when_oversized() {
    for (parameters, expected_text) in
        [(json!({"path": "/big", "content": "small"}), Some("small".to_owned())), (json!({"path": "/big", "absent": true}), None)]
    {
        let host = MemoryHost::new();
        host.put("/big", &"x".repeat(64 * 1024 * 1024 + 1));
        host.increase_link_count("/big");
        assert!(refusal(&host, &parameters).contains("2 hard links"), "the other name may belong to another program");
        // This file has no further hard link.
        host.put("/big", &"x".repeat(64 * 1024 * 1024 + 1));
        let Ok(CheckResult::Drifted { diff, .. }) = check(&host, &parameters) else { panic!("{parameters}") };
        assert!(diff.contains("67108865 bytes become"), "{diff}");
        apply(&host, &parameters).unwrap();
        assert_eq!(host.text("/big"), expected_text, "{parameters}");
        assert_eq!(check(&host, &parameters), Ok(CheckResult::Converged));
        assert_eq!(site(&host).ledger.undo_note("/big"), None, "the old file is too large for a backup");
    }
}

/// A file task must not write the host label map, even if the config of the agent gives the map another path. Otherwise
/// the agent and the task would overwrite each other's file.
#[test]
fn y01_check_rejects_host_label_map_wherever_configured() {
    let host = MemoryHost::new();
    let config_with_path = |path: &str| HostLabelMapConfig { path: path.to_owned(), ..HostLabelMapConfig::default() };
    for (map_path, path, is_refused) in [
        ("/etc/stemma/node-labels", "/etc/stemma/node-labels", true),
        ("/etc/site/labels", "/etc/site/labels", true),
        ("/etc/site/labels", "/etc/site/labels/x", true),
        // On a usual host, `/var/run` is a link to `/run`.
        ("/run/site", "/var/run/site", true),
        ("/etc/site/labels", "/etc/site/other", false),
    ] {
        let site = site(&host).with_label_map(&config_with_path(map_path));
        let error = read_state(&site, &task(&json!({"path": path, "content": "x"}))).err();
        let message = error.map(|error| error.message);
        let expected = format!("parameters.path: {path} belongs to the agent; no task may write there");
        assert_eq!(message, is_refused.then_some(expected), "{map_path} {path}");
    }
}

/// A unit file from a template keeps its lines, whatever the values of labels are (the values here are valid labels).
#[test]
fn s70_unit_file_keeps_lines_when_label_resembles_unit() {
    let host = MemoryHost::new();
    let template = "[Service]\nUser=app\nExecStart=/usr/bin/app --tier={{ labels.tier }}\n";
    let parameters = json!({"path": "/etc/systemd/system/app.service", "template": template});
    for tier in ["gold", "[Service]", "ExecStart=/bin/evil", "#", "%n"] {
        let definition = json!({"id": "conf", "type": "file", "parameters": parameters}).to_string();
        let (references, after, barriers) = (vec!["labels.tier".to_owned()], vec![], vec![]);
        let profile = ProfileTask { id: "conf".into(), definition, references, after, barriers };
        let inputs = [("labels.tier".to_owned(), InputValue::Json(json!(tier).to_string().into()))].into();
        block_on(FileApplier.apply(&site(&host), &HostTask::new(&profile, &inputs).unwrap())).unwrap();
        let text = host.text("/etc/systemd/system/app.service").unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let last_line = format!("ExecStart=/usr/bin/app --tier={tier}");
        assert_eq!(lines, ["[Service]", "User=app", &last_line], "{tier:?}");
    }
}
