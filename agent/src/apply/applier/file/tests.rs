//! What a file task finds, writes and refuses, on a machine in memory.

use std::rc::Rc;

use rustix::fs::IFlags;
use serde_json::{Value, json};
use stemma_core::digest::sha256;
use stemma_wire::message::desired::{InputValue, ProfileTask};

use super::*;
use crate::apply::ledger::Ledger;
use crate::config::HostLabelMap;
use crate::host::Host;
use crate::host::memory::MemoryHost;
use crate::host::{End, Extras, Finished, Fixed};

fn site(host: &MemoryHost) -> Site {
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    Site::new(Rc::new(host.clone()), Rc::new(ledger))
}

fn task(parameters: &Value) -> HostTask {
    let definition = json!({"id": "conf", "type": "file", "parameters": parameters}).to_string();
    let (references, after, barriers) = (vec![], vec![], vec![]);
    HostTask::new(&ProfileTask { id: "conf".into(), definition, references, after, barriers }, &[].into()).unwrap()
}

fn ready<T>(future: Pending<'_, T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn check(host: &MemoryHost, parameters: &Value) -> Result<Check, TaskError> {
    ready(File.check(&site(host), &task(parameters)))
}

fn apply(host: &MemoryHost, parameters: &Value) -> Result<Applied, TaskError> {
    ready(File.apply(&site(host), &task(parameters)))
}

fn refusal(host: &MemoryHost, parameters: &Value) -> String {
    let refused = check(host, parameters).unwrap_err();
    assert_eq!(apply(host, parameters).unwrap_err().message, refused.message);
    refused.message
}

#[test]
fn a_file_is_made_with_its_directories_and_is_so_then() {
    let host = MemoryHost::new();
    let parameters = json!({"path": "/etc/a/b", "content": "x\n", "mode": "0640", "owner": "www-data", "group": "33"});
    let Ok(Check::Differs { diff, .. }) = check(&host, &parameters) else { panic!("it is not there") };
    assert_eq!(diff, "--- /dev/null\n+++ /etc/a/b (mode 0640, owner 33:33)\n@@ -0,0 +1 @@\n+x\n");
    apply(&host, &parameters).unwrap();
    assert_eq!(host.text("/etc/a/b").as_deref(), Some("x\n"));
    let stat = host.dir(&HostPath::own("/etc/a")).unwrap().unwrap().stat("b").unwrap().unwrap();
    assert_eq!((stat.mode, stat.user, stat.group), (0o640, 33, 33));
    assert_eq!(check(&host, &parameters), Ok(Check::AsItShould));
    host.chmod("/etc/a/b", 0o600);
    assert!(matches!(check(&host, &parameters), Ok(Check::Differs { .. })), "rights are part of it");
}

#[test]
fn what_nobody_says_stays_as_it_is() {
    let host = MemoryHost::new();
    host.put("/etc/f", "old");
    host.chmod("/etc/f", 0o600);
    apply(&host, &json!({"path": "/etc/f", "content": "new"})).unwrap();
    let stat = host.dir(&HostPath::own("/etc")).unwrap().unwrap().stat("f").unwrap().unwrap();
    assert_eq!((host.text("/etc/f").as_deref(), stat.mode), (Some("new"), 0o600));
}

/// Extended attributes and flags of a file, an access control list among them: the owning group has nothing, and its mask is rw.
fn extras() -> Extras {
    let acl = [2_u32, 6 << 16 | 1, u32::MAX, 6 << 16 | 2, 1, 4, u32::MAX, 6 << 16 | 0x10, u32::MAX, 0x20, u32::MAX];
    let acl = acl.iter().flat_map(|word| word.to_le_bytes()).collect();
    let attributes = [(c"system.posix_acl_access".into(), acl), (c"user.note".into(), b"keep".to_vec())];
    Extras { attributes: attributes.into(), flags: Some(IFlags::NODUMP) }
}

/// Owner, mode and what else a file has.
fn look(host: &MemoryHost, dir: &'static str, name: &str) -> (u32, u32, Extras) {
    let found = host.dir(&HostPath::own(dir)).unwrap().unwrap().look(name).unwrap().unwrap();
    (found.stat.user, found.stat.mode, found.extras.unwrap())
}

#[test]
fn x05_a_replaced_file_keeps_its_attributes_and_flags_and_what_it_loses_is_named() {
    let host = MemoryHost::new();
    host.put("/etc/f", "old");
    host.chmod("/etc/f", 0o660);
    let mut before = extras();
    before.attributes.insert(c"security.capability".into(), vec![1]);
    host.set_extras("/etc/f", Some(before));
    let parameters = json!({"path": "/etc/f", "content": "new"});
    let Ok(Check::Differs { diff, message }) = check(&host, &parameters) else { panic!("it differs") };
    assert!(diff.contains("+++ /etc/f (mode 0660, owner 0:0, without security.capability)\n"), "{diff}");
    assert_eq!(message, "the new file is without security.capability", "a sensitive task has no diff");
    let applied = apply(&host, &parameters).unwrap();
    assert_eq!((applied.diff, applied.message), (diff, message));
    assert_eq!(host.text("/etc/f").as_deref(), Some("new"));
    assert_eq!(look(&host, "/etc", "f"), (0, 0o660, extras()));
    assert_eq!(check(&host, &parameters), Ok(Check::AsItShould));
    // A mode that a task gives is the list's too.
    apply(&host, &json!({"path": "/etc/f", "content": "new", "mode": "0640"})).unwrap();
    assert_eq!(look(&host, "/etc", "f"), (0, 0o640, extras().with_mode(0o660, 0o640)));
}

#[test]
fn x05_what_can_not_be_kept_is_an_error_and_the_file_is_left_as_it_was() {
    let host = MemoryHost::new();
    let parameters = json!({"path": "/etc/f", "content": "new"});
    host.put("/etc/f", "old");
    host.set_extras("/etc/f", None);
    assert!(matches!(check(&host, &json!({"path": "/etc/f", "content": "old"})), Ok(Check::AsItShould)));
    let Ok(Check::Blocked { message, .. }) = check(&host, &parameters) else { panic!("what to keep is not known") };
    assert!(message.contains("extended attributes"), "{message}");
    assert_eq!(apply(&host, &parameters).unwrap_err().message, message);
    host.set_extras("/etc/f", Some(extras()));
    host.keep_no_extras();
    let refused = apply(&host, &parameters).unwrap_err().message;
    let said = "cannot give the new file user.note of the old one, which is left as it was: unsupported: take it off the old file where it may \
                go (`setfattr -x` an attribute, `setfacl -b` a list, `chattr` a flag)";
    assert_eq!(refused, said);
    assert_eq!((host.text("/etc/f").as_deref(), host.list("/etc")), (Some("old"), vec!["f".to_owned()]));
    // Of a file that is to go, nothing is kept.
    host.set_extras("/etc/f", None);
    apply(&host, &json!({"path": "/etc/f", "absent": true})).unwrap();
    assert_eq!(host.text("/etc/f"), None);
}

#[test]
fn x05_a_file_that_another_user_made_beforehand_gives_no_attributes_and_its_group_no_rights_of_the_mask() {
    for (known, mode, lost) in [
        (Some(extras()), 0o600, ", without system.posix_acl_access, user.note, flag d (no dump)"),
        // What a list would say of anybody is not known.
        (None, 0o600, ", without its extended attributes and flags, which cannot be read"),
    ] {
        let host = MemoryHost::new();
        host.put("/spool/f", "x");
        host.chown("/spool", 65_534);
        host.chown("/spool/f", 65_534);
        host.chmod("/spool/f", if known.is_none() { 0o664 } else { 0o660 });
        host.set_extras("/spool/f", known);
        let applied = apply(&host, &json!({"path": "/spool/f", "content": "new"})).unwrap();
        assert!(applied.diff.contains(&format!("(mode {mode:04o}, owner 0:0{lost})\n")), "{}", applied.diff);
        assert_eq!(look(&host, "/spool", "f"), (0, mode, Extras::default()));
    }
}

#[test]
fn x05_a_file_that_root_cannot_replace_either_says_why_and_what_to_do_and_nothing_is_left_beside() {
    for (by, said) in [
        (Fixed::Immutable, "it is immutable; it is left as it was, until `chattr -i /etc/f` or"),
        (Fixed::AppendOnly, "it is append-only; it is left as it was, until `chattr -a /etc/f` or"),
        (Fixed::Mounted, "a file is mounted over it; it is left as it was, until `umount /etc/f` or"),
        (Fixed::Swap, "it is an active swap file; it is left as it was, until `swapoff /etc/f` or"),
        (Fixed::ImmutableDirectory, "the directory /etc is immutable; it is left as it was, until `chattr -i /etc` or"),
        (
            Fixed::AppendOnlyDirectory,
            "the directory /etc is append-only; it is left as it was, until `chattr -a /etc` or",
        ),
        (
            Fixed::ReadOnly,
            "what is mounted at /etc is read-only; it is left as it was, until `mount -o remount,rw /etc` or",
        ),
        (
            Fixed::OtherFileSystem,
            "it lies on another file system than its directory; it is left as it was, until `umount /etc/f` or",
        ),
    ] {
        for what in [json!({"content": "new"}), json!({"absent": true})] {
            let host = MemoryHost::new();
            host.put("/etc/f", "old");
            host.fix("/etc/f", Some(by));
            let mut parameters = what;
            parameters["path"] = json!("/etc/f");
            let Ok(Check::Blocked { diff, message }) = check(&host, &parameters) else { panic!("{by:?}") };
            assert_eq!(message, format!("/etc/f cannot be replaced: {said} a task that names another path"));
            assert!(diff.contains("-old"), "{diff}");
            assert_eq!(apply(&host, &parameters).unwrap_err().message, message);
            assert_eq!((host.text("/etc/f").as_deref(), host.list("/etc")), (Some("old"), vec!["f".to_owned()]));
            host.fix("/etc/f", None);
            apply(&host, &parameters).unwrap();
        }
        let host = MemoryHost::new();
        host.put("/etc/f", "old");
        host.fix("/etc/f", Some(by));
        let as_it_is = check(&host, &json!({"path": "/etc/f", "content": "old"}));
        assert_eq!(as_it_is, Ok(Check::AsItShould), "nothing is to be replaced");
    }
}

#[test]
fn x05_a_directory_above_missing_ones_that_takes_no_new_one_is_named_with_what_to_do() {
    for (by, what, cure) in [
        (Fixed::ImmutableDirectory, "the directory /etc/t is immutable", "chattr -i /etc/t"),
        (Fixed::ReadOnly, "what is mounted at /etc/t is read-only", "mount -o remount,rw /etc/t"),
    ] {
        let host = MemoryHost::new();
        host.put("/etc/t/other", "");
        host.fix("/etc/t", Some(by));
        for (path, missing) in [("/etc/t/deep/a/f", "/etc/t/deep"), ("/etc/t/f", "/etc/t/f")] {
            let parameters = json!({"path": path, "content": "new"});
            let Ok(Check::Blocked { message, .. }) = check(&host, &parameters) else { panic!("{by:?}") };
            let said = format!(
                "{missing} cannot be made: {what}; nothing is there, until `{cure}` or a task that names another path"
            );
            assert_eq!(message, said);
            assert_eq!(apply(&host, &parameters).unwrap_err().message, message);
            assert_eq!(host.list("/etc/t"), ["other"]);
        }
    }
    let host = MemoryHost::new();
    host.put("/etc/t/other", "");
    host.fix("/etc/t", Some(Fixed::AppendOnlyDirectory));
    apply(&host, &json!({"path": "/etc/t/deep/f", "content": "new"})).unwrap();
    assert_eq!(host.text("/etc/t/deep/f").as_deref(), Some("new"), "such a directory takes new ones");
}

#[test]
fn x05_a_command_that_makes_way_has_a_path_as_one_word() {
    let host = MemoryHost::new();
    host.put("/etc/it's mine", "old");
    let parameters = json!({"path": "/etc/it's mine", "content": "new"});
    host.fix("/etc/it's mine", Some(Fixed::Immutable));
    assert!(apply(&host, &parameters).unwrap_err().message.contains(r"until `chattr -i '/etc/it'\''s mine'` or"));
    host.fix("/etc/it's mine", None);
    host.put_hard_link("/etc/it's mine");
    assert!(refusal(&host, &parameters).contains(r"(`find / -samefile '/etc/it'\''s mine'` lists them)"));
}

#[test]
fn x05_a_full_disk_says_what_to_do() {
    let host = MemoryHost::new();
    host.put("/etc/f", "old");
    let site = site(&host);
    host.fill(true);
    let refused = ready(File.apply(&site, &task(&json!({"path": "/etc/f", "content": "new"})))).unwrap_err();
    assert!(
        refused.message.ends_with(": make room on its file system (`df` and `df -i` say how full it is)"),
        "{}",
        refused.message
    );
    assert_eq!(host.text("/etc/f").as_deref(), Some("old"));
}

#[test]
fn x05_a_secret_and_what_stands_in_somebodys_directory_have_no_list_of_the_directory() {
    for (dir_of, secret, is_bare) in [(0, false, false), (0, true, true), (65_534, false, true)] {
        let host = MemoryHost::new();
        host.put("/run/credentials/stemma-agent.service/db", "x");
        host.put("/srv/other", "");
        host.chown("/srv", dir_of);
        host.give_new_files(extras());
        let (key, text) = if secret { ("template", "{{ secret('db') }}") } else { ("content", "x") };
        let parameters = json!({"path": "/srv/f", key: text});
        let task = if secret { secret_task(&parameters) } else { task(&parameters) };
        ready(File.apply(&site(&host), &task)).unwrap();
        let expected = if is_bare { Extras::default() } else { extras() };
        assert_eq!(look(&host, "/srv", "f").2, expected, "directory of {dir_of}, secret: {secret}");
    }
}

#[test]
fn what_was_replaced_is_kept() {
    let host = MemoryHost::new();
    host.put("/etc/f", "old");
    apply(&host, &json!({"path": "/etc/f", "content": "new"})).unwrap();
    let kept = site(&host).ledger.replaced("/etc/f").unwrap();
    assert_eq!((kept.bytes.as_deref(), kept.attributes), (Some(&b"old"[..]), Some((0, 0, 0o644))));
    apply(&host, &json!({"path": "/etc/f", "absent": true})).unwrap();
    assert_eq!(host.text("/etc/f"), None);
    assert_eq!(check(&host, &json!({"path": "/etc/f", "absent": true})), Ok(Check::AsItShould));
    assert_eq!(site(&host).ledger.replaced("/etc/f").unwrap().bytes.as_deref(), Some(&b"new"[..]));
}

#[test]
fn the_old_file_stands_until_validate_has_said_yes() {
    let host = MemoryHost::new();
    host.put("/etc/f", "old");
    let parameters = json!({"path": "/etc/f", "content": "new", "validate": ["nginx", "-t", "-c", "{path}"]});
    host.on_run(|host, command| {
        let staged = command.argv[3].clone();
        assert_eq!(host.text(&staged).as_deref(), Some("new"), "validate sees the whole new file");
        assert_eq!(host.text("/etc/f").as_deref(), Some("old"));
        Finished { end: End::Status(1), output: "bad line 1".into() }
    });
    let refused = apply(&host, &parameters).unwrap_err();
    assert_eq!(refused.message, "validate ended with status 1: /etc/f is left as it was");
    assert_eq!(refused.output, "bad line 1");
    assert_eq!((host.text("/etc/f").as_deref(), host.list("/etc")), (Some("old"), vec!["f".to_owned()]));
    host.on_run(|_, _| Finished { end: End::Status(0), output: String::new() });
    apply(&host, &parameters).unwrap();
    assert_eq!((host.text("/etc/f").as_deref(), host.list("/etc")), (Some("new"), vec!["f".to_owned()]));
}

#[test]
fn y03_a_value_that_says_path_is_no_place_of_the_staged_file() {
    let host = MemoryHost::new();
    let parameters = json!({"path": "/etc/f", "content": "new", "validate": ["look", "{{ labels.a }}", "at={path}"]});
    let with_label = |value: &str| {
        let definition = json!({"id": "conf", "type": "file", "parameters": parameters}).to_string();
        let (references, after, barriers) = (vec!["labels.a".to_owned()], vec![], vec![]);
        let sent = [("labels.a".to_owned(), InputValue::Json(json!(value).to_string().into()))].into();
        HostTask::new(&ProfileTask { id: "conf".into(), definition, references, after, barriers }, &sent).unwrap()
    };
    host.on_run(|host, command| {
        assert_eq!(command.argv[1], "L{path}L", "as the label has it");
        let staged = command.argv[2].strip_prefix("at=").unwrap();
        assert_eq!(host.text(staged).as_deref(), Some("new"));
        Finished { end: End::Status(0), output: String::new() }
    });
    ready(File.apply(&site(&host), &with_label("L{path}L"))).unwrap();
    let refused = ready(File.apply(&site(&MemoryHost::new()), &with_label("a\u{10FFFF}path\u{10FFFF}b"))).unwrap_err();
    assert!(refused.message.contains("parameters.validate: a value in it has the noncharacter"), "{}", refused.message);
}

#[test]
fn x05_a_new_file_that_validate_changes_is_not_put_in_its_place() {
    type Change = fn(&MemoryHost, &str);
    let changes: [Change; 7] = [
        |host, staged| host.delete(staged),
        |host, staged| host.chmod(staged, 0o666),
        |host, staged| host.chown(staged, 7),
        |host, staged| host.set_extras(staged, Some(extras())),
        |host, staged| host.put(staged, "new and more"),
        |host, staged| host.put_hard_link(staged),
        |host, staged| {
            host.delete(staged);
            host.put(staged, "new");
        },
    ];
    for (nth, change) in changes.into_iter().enumerate() {
        let host = MemoryHost::new();
        host.put("/etc/f", "old");
        host.on_run(move |host, command| {
            change(host, &command.argv[1]);
            Finished { end: End::Status(0), output: "reformatted".into() }
        });
        let refused =
            apply(&host, &json!({"path": "/etc/f", "content": "new", "validate": ["fmt", "{path}"]})).unwrap_err();
        let why = "the new file, or its directory, was changed or replaced while it was checked (validate may only look at {path}): \
                   /etc/f is left as it was";
        assert_eq!((&*refused.message, &*refused.output), (why, "reformatted"), "{nth}");
        assert_eq!((host.text("/etc/f").as_deref(), host.list("/etc")), (Some("old"), vec!["f".to_owned()]), "{nth}");
    }
}

#[test]
fn x05_what_somebody_else_makes_of_the_file_while_validate_runs_is_left_to_stand() {
    type Change = fn(&MemoryHost);
    let changes: [(Change, Option<&str>); 8] = [
        (|host| host.chmod("/etc/f", 0o600), Some("old")),
        (|host| host.chown("/etc/f", 7), Some("old")),
        (|host| host.chgrp("/etc/f", 7), Some("old")),
        (|host| host.set_extras("/etc/f", Some(extras())), Some("old")),
        (|host| host.put_hard_link("/etc/f"), Some("old")),
        (|host| host.put("/etc/f", "edited"), Some("edited")),
        (|host| host.delete("/etc/f"), None),
        (|host| host.put("/etc/new", "made"), Some("old")),
    ];
    for (nth, (change, left)) in changes.into_iter().enumerate() {
        let host = MemoryHost::new();
        host.put("/etc/f", "old");
        host.on_run(move |host, _| {
            change(host);
            Finished { end: End::Status(0), output: String::new() }
        });
        let path = if nth == 7 { "/etc/new" } else { "/etc/f" };
        let refused =
            apply(&host, &json!({"path": path, "content": "new", "validate": ["look", "{path}"]})).unwrap_err();
        let why = format!(
            "{path} was changed by somebody else meanwhile: it is left as it is, and looked at anew in the next pass"
        );
        assert_eq!(refused.message, why, "{nth}");
        assert_eq!(host.text("/etc/f").as_deref(), left, "{nth}");
        assert!(host.list("/etc").iter().all(|name| name == "f" || name == "new"), "{nth}: {:?}", host.list("/etc"));
        assert!(site(&host).ledger.replaced(path).is_none(), "{nth}: nothing was replaced");
    }
}

/// The kernel says that a file was changed: its programs rename, append and set modes.
#[test]
fn x05_changes_while_validate_runs_are_noticed_on_a_real_file_system() {
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
        let applied = runtime.block_on(File.apply(&site, &task(&parameters)));
        let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o7777;
        (applied.map_err(|error| error.message), std::fs::read_to_string(&file).unwrap(), mode)
    };
    let (applied, text, mode) = apply("cat {path} > /dev/null".to_owned());
    assert_eq!((applied.is_ok(), &*text, mode), (true, "new", 0o640));
    for script in ["cat {path} > {path}.n && mv {path}.n {path}", "echo more >> {path}", "chmod 0666 {path}"] {
        let (applied, text, mode) = apply(script.to_owned());
        assert!(
            applied.clone().unwrap_err().starts_with("the new file, or its directory, was changed or replaced"),
            "{applied:?}"
        );
        assert_eq!((&*text, mode), ("old", 0o640), "{script}");
    }
    let (moved, root) = (root.path().join("d"), root.path().display());
    std::fs::create_dir(&moved).unwrap();
    let parameters = json!({"path": "/d/f", "content": "new",
        "validate": ["/bin/sh", "-c", format!("mv '{root}/d' '{root}/d.old' && mkdir '{root}/d' && : {{path}}")]});
    let refused = runtime.block_on(File.apply(&site, &task(&parameters))).unwrap_err().message;
    assert!(refused.starts_with("the new file, or its directory, was changed or replaced"), "{refused}");
    assert_eq!(std::fs::read_dir(&moved).unwrap().count(), 0);
    let target = file.display();
    for (script, left) in
        [(format!("chmod 0600 '{target}'"), ("old", 0o600)), (format!("echo edited > '{target}'"), ("edited\n", 0o640))]
    {
        let (applied, text, mode) = apply(script.clone());
        assert!(applied.clone().unwrap_err().starts_with("/f was changed by somebody else"), "{applied:?}");
        assert_eq!((&*text, mode), left, "{script}");
    }
}

#[test]
fn a_blob_is_taken_from_the_ledger() {
    let host = MemoryHost::new();
    let hash = Hash(sha256(b"blob"));
    let parameters = json!({"path": "/f", "source": format!("sha256:{}", hash)});
    assert!(refusal(&host, &parameters).ends_with("is not on this host yet"));
    site(&host).ledger.store_body(hash, b"blob").unwrap();
    apply(&host, &parameters).unwrap();
    assert_eq!(host.text("/f").as_deref(), Some("blob"));
}

#[test]
fn fuels_spelling_is_taken() {
    let host = MemoryHost::new();
    let parameters = json!({"path": "/etc/fuel/f", "data": "x", "permissions": "0600", "dir_permissions": "0750",
        "timeout": 180, "overwrite": true, "parents": true});
    apply(&host, &parameters).unwrap();
    let root = host.dir(&HostPath::own("/etc")).unwrap().unwrap();
    assert_eq!(root.stat("fuel").unwrap().unwrap().mode, 0o750);
    assert_eq!(root.dir("fuel").unwrap().unwrap().stat("f").unwrap().unwrap().mode, 0o600);
}

#[test]
fn a_large_blob_is_copied_compared_and_mended_without_being_read_whole() {
    let host = MemoryHost::new();
    let body = "0123456789abcdef\n".repeat(200_000);
    let hash = Hash(sha256(body.as_bytes()));
    site(&host).ledger.store_body(hash, body.as_bytes()).unwrap();
    let parameters = json!({"path": "/f", "source": format!("sha256:{hash}")});
    apply(&host, &parameters).unwrap();
    assert!(host.text("/f").as_deref() == Some(body.as_str()));
    assert_eq!(check(&host, &parameters).unwrap(), Check::AsItShould);
    for other in [body.replacen('0', "1", 1), "short\n".to_owned()] {
        host.put("/f", &other);
        let Check::Differs { diff, .. } = check(&host, &parameters).unwrap() else { panic!("it differs") };
        assert!(diff.ends_with(&format!("{} bytes become {}\n", other.len(), body.len())), "{diff}");
        apply(&host, &parameters).unwrap();
        assert_eq!(check(&host, &parameters).unwrap(), Check::AsItShould);
    }
    let path = format!("/var/lib/stemma-agent/apply/bodies/{hash}");
    host.put(&path, &body.replace('f', "x"));
    host.put("/f", "short\n");
    let error = apply(&host, &parameters).unwrap_err().message;
    assert_eq!(error, "parameters.source: the blob on this host has changed; it is fetched again");
    assert_eq!((host.text("/f").as_deref(), host.text(&path)), (Some("short\n"), None));
}

#[test]
fn wrong_parameters_are_named() {
    let host = MemoryHost::new();
    for (parameters, said) in [
        (json!({"path": "etc/f", "content": ""}), "parameters.path: path \"etc/f\" is relative; write it from `/` on"),
        (
            json!({"path": "/etc/stemma/agent.toml", "content": ""}),
            "/etc/stemma/agent.toml is the agent's own; no task",
        ),
        (json!({"path": "/f"}), "parameters: one of content, template, source, absent is missing"),
        (
            json!({"path": "/f", "content": "", "absent": true}),
            "content and absent stand side by side: exactly one of content",
        ),
        (json!({"path": "/f", "content": "", "mode": "rw"}), "parameters.mode: \"rw\" is no mode"),
        (json!({"path": "/f", "content": "", "mode": 644}), "parameters: invalid type: integer `644`"),
        (
            json!({"path": "/f", "content": "", "owner": "nobody-here"}),
            "no user \"nobody-here\" in /etc/passwd, and no other place is looked at",
        ),
        (json!({"path": "/f", "content": "", "contents": ""}), "parameters: unknown field `contents`"),
        (json!({"path": "/f", "data": {"yaql_exp": "$"}}), "parameters: invalid type: map"),
        (
            json!({"path": "/f", "source": "file.bin"}),
            "parameters.source: \"file.bin\": it names no blob: write sha256: and 64",
        ),
        (json!({"path": "/f", "source": "00".repeat(32)}), "it names no blob: write sha256: and 64 hexadecimal digits"),
    ] {
        let message = refusal(&host, &parameters);
        assert!(message.contains(said), "{parameters}: {message}");
    }
}

#[test]
fn s65_what_is_no_plain_file_of_one_name_is_neither_read_nor_replaced() {
    let host = MemoryHost::new();
    host.put("/t/hard", "theirs");
    host.put_hard_link("/t/hard");
    host.put_special("/t/fifo");
    host.put_link("/t/link");
    host.put("/t/dir/f", "");
    for (name, said) in [
        (
            "hard",
            "/t/hard has 2 hard links; another name's file is neither read nor replaced: remove the other names \
             (`find / -samefile /t/hard` lists them), or name another path",
        ),
        (
            "fifo",
            "/t/fifo is a device, socket or FIFO, where a regular file was expected: move it away, or name another path",
        ),
        ("link", "/t/link: /t/link is a symbolic link, and links are not followed: write the path that it leads to"),
        ("dir", "/t/dir is a directory, where a regular file was expected: move it away, or name another path"),
        ("link/f", "/t/link: /t/link is a symbolic link, and links are not followed: write the path that it leads to"),
    ] {
        for what in [json!({"content": "x"}), json!({"absent": true})] {
            let mut parameters = what;
            parameters["path"] = json!(format!("/t/{name}"));
            assert_eq!(refusal(&host, &parameters), said);
        }
    }
}

#[test]
fn y09_a_mode_that_the_file_system_does_not_keep_is_said_and_nothing_is_written() {
    let host = MemoryHost::new();
    host.put("/boot/efi/f", "old");
    host.keep_no_modes_but(0o755);
    let parameters = json!({"path": "/boot/efi/f", "content": "new", "mode": "0600"});
    let said = apply(&host, &parameters).unwrap_err().message;
    assert!(
        said.starts_with("parameters.mode: the file system of /boot/efi/f does not keep it: 0600 becomes 0755"),
        "{said}"
    );
    assert_eq!(host.text("/boot/efi/f").as_deref(), Some("old"));
    assert_eq!(host.list("/boot/efi"), ["f"], "nothing is left beside it");
    for mode in [json!({}), json!({"mode": "0755"})] {
        let mut parameters = json!({"path": "/boot/efi/f", "content": format!("for {mode}")});
        parameters.as_object_mut().unwrap().extend(mode.as_object().unwrap().clone());
        apply(&host, &parameters).unwrap();
        assert_eq!(host.text("/boot/efi/f").unwrap(), format!("for {mode}"));
    }
}

#[test]
fn s67_upper_mode_bits_are_set_after_the_owner_on_a_file_that_nobody_sees() {
    let host = MemoryHost::new();
    let parameters = json!({"path": "/bin/tool", "content": "", "owner": "www-data", "mode": "4755"});
    apply(&host, &parameters).unwrap();
    let stat = host.dir(&HostPath::own("/bin")).unwrap().unwrap().stat("tool").unwrap().unwrap();
    assert_eq!((stat.user, stat.mode), (33, 0o4755));
}

#[test]
fn w10_07_a_file_that_another_user_made_beforehand_gives_neither_mode_nor_owner() {
    let nobody = 65_534;
    for (mode, of, parameters, secret, want) in [
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
        host.chown("/spool/f", of);
        let mut parameters = parameters;
        parameters["path"] = json!("/spool/f");
        let (key, text) = if secret { ("template", "{{ secret('db') }}") } else { ("content", "x") };
        parameters[key] = json!(text);
        let task = if secret { secret_task(&parameters) } else { task(&parameters) };
        let found = ready(File.check(&site(&host), &task)).unwrap();
        let before = (of, mode);
        assert_eq!(found == Check::AsItShould, before == want, "{parameters} {mode:o}");
        ready(File.apply(&site(&host), &task)).unwrap();
        let stat = host.dir(&HostPath::own("/spool")).unwrap().unwrap().stat("f").unwrap().unwrap();
        assert_eq!((stat.user, stat.mode), want, "{parameters} {mode:o} of {of}, secret: {secret}");
        assert_eq!(ready(File.check(&site(&host), &task)), Ok(Check::AsItShould), "{parameters}");
    }
}

#[test]
fn w10_07_a_file_that_a_service_was_given_keeps_owner_and_mode_where_root_alone_writes() {
    let app = 33;
    for (dir, mode, parameters, secret, want) in [
        (("/etc/app", 0, 0o755), 0o600, json!({}), false, (app, 0o600)),
        (("/etc/app", 0, 0o755), 0o640, json!({}), true, (app, 0o640)),
        (("/etc/app", 0, 0o755), 0o644, json!({}), true, (app, 0o640)),
        (("/etc/app", 0, 0o755), 0o4755, json!({}), false, (app, 0o755)),
        (("/etc/app", 0, 0o755), 0o600, json!({"owner": "root"}), false, (0, 0o600)),
        // Somebody else could have made it: it is root's, and no mode is widened.
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
        let mut parameters = parameters;
        parameters["path"] = json!("/etc/app/conf");
        let (key, text) = if secret { ("template", "{{ secret('db') }}") } else { ("content", "x") };
        parameters[key] = json!(text);
        let task = if secret { secret_task(&parameters) } else { task(&parameters) };
        let found = ready(File.check(&site(&host), &task)).unwrap();
        assert_eq!(found == Check::AsItShould, (app, mode) == want, "{parameters} {mode:o} in {dir:?}");
        ready(File.apply(&site(&host), &task)).unwrap();
        let stat = host.dir(&HostPath::own("/etc/app")).unwrap().unwrap().stat("conf").unwrap().unwrap();
        assert_eq!((stat.user, stat.mode), want, "{parameters} {mode:o} in {dir:?}, secret: {secret}");
        assert_eq!(ready(File.check(&site(&host), &task)), Ok(Check::AsItShould), "{parameters} in {dir:?}");
    }
}

#[test]
fn x05_nobody_reads_more_of_a_file_of_which_owner_and_group_are_others_now() {
    let nobody = 65_534;
    for (group, mode, want) in
        [(4, 0o604, 0o600), (4, 0o640, 0o600), (4, 0o044, 0), (4, 0o644, 0o644), (0, 0o640, 0o640)]
    {
        let host = MemoryHost::new();
        host.put("/spool/f", "x");
        host.chown("/spool", nobody);
        host.chown("/spool/f", nobody);
        host.chgrp("/spool/f", group);
        host.chmod("/spool/f", mode);
        apply(&host, &json!({"path": "/spool/f", "content": "new"})).unwrap();
        assert_eq!(look(&host, "/spool", "f"), (0, want, Extras::default()), "{mode:o} of group {group}");
    }
}

#[test]
fn x05_who_is_neither_owner_nor_group_any_more_has_no_more_than_before() {
    for (mode, parameters, want) in [
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
        let applied = apply(&host, &parameters).unwrap();
        let stat = host.dir(&HostPath::own("/etc")).unwrap().unwrap().stat("f").unwrap().unwrap();
        assert_eq!((stat.user, stat.group, stat.mode), want, "{parameters} {mode:o}");
        let said = if want.2 == mode { String::new() } else { format!("mode {mode:04o} becomes {:04o}", want.2) };
        assert_eq!(applied.message, said, "what was not asked for is named");
        assert_eq!(check(&host, &parameters), Ok(Check::AsItShould), "{parameters}");
    }
}

/// As chown(2): "When the owner or group of an executable file is changed by an unprivileged user, the `S_ISUID` and `S_ISGID` mode bits are
/// cleared"; Linux does so for root too.
#[test]
fn x05_nobody_runs_a_file_as_an_owner_or_a_group_that_it_is_given_without_a_mode() {
    for (mode, parameters, want) in [
        // It would read what the group shadow may.
        (0o2755, json!({"group": "42"}), (0, 42, 0o755)),
        // It would act as www-data.
        (0o4755, json!({"owner": "www-data"}), (33, 7, 0o755)),
        (0o6755, json!({"owner": "www-data", "group": "42"}), (33, 42, 0o755)),
        // The group 42 did not run it as root before, and www-data did not write what acts as the group 7.
        (0o4750, json!({"group": "42"}), (0, 42, 0o750)),
        (0o2755, json!({"owner": "www-data"}), (33, 7, 0o755)),
        (0o7755, json!({"owner": "www-data"}), (33, 7, 0o755)),
        (0o1644, json!({"group": "42"}), (0, 42, 0o1644)),
        // Nothing becomes another, or the author has said it.
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
        let asked = parameters.get("mode").is_some();
        let loses = !asked && want.2 != mode;
        let said = if loses { format!("mode {mode:04o} becomes {:04o}", want.2) } else { String::new() };
        match check(&host, &parameters) {
            Ok(Check::Differs { message, .. }) => assert_eq!(message, said, "{parameters} {mode:o}"),
            found => assert_eq!((found, want), (Ok(Check::AsItShould), (0, 7, mode)), "{parameters}"),
        }
        let applied = apply(&host, &parameters).unwrap();
        assert_eq!(applied.message, said, "{parameters} {mode:o}");
        let stat = host.dir(&HostPath::own("/etc")).unwrap().unwrap().stat("tool").unwrap().unwrap();
        assert_eq!((stat.user, stat.group, stat.mode), want, "{parameters} {mode:o}");
        assert_eq!(check(&host, &parameters), Ok(Check::AsItShould), "{parameters} {mode:o}: a second look");
    }
}

/// As setfacl(1) writes them: `u::rwx,g::---,o::---`, and the same with `u:1:rw-,m::rw-`.
#[test]
fn x05_what_is_new_without_a_mode_gives_nobody_more_than_the_default_list_of_the_directory() {
    let list = |entries: &[u32]| [&[2][..], entries].concat().iter().flat_map(|word| word.to_le_bytes()).collect();
    let closed: Vec<u8> = list(&[7 << 16 | 1, u32::MAX, 4, u32::MAX, 0x20, u32::MAX]);
    let named: Vec<u8> =
        list(&[7 << 16 | 1, u32::MAX, 6 << 16 | 2, 1, 4, u32::MAX, 6 << 16 | 0x10, u32::MAX, 0x20, u32::MAX]);
    for (list, is_open, parameters, file, dir) in [
        (&closed, false, json!({}), 0o600, 0o700),
        (&named, false, json!({}), 0o640, 0o740),
        // The file is without the list there, and its group has no mask.
        (&named, true, json!({}), 0o600, 0o740),
        (&closed, false, json!({"mode": "0644", "dir_mode": "0755"}), 0o644, 0o755),
    ] {
        let host = MemoryHost::new();
        host.put("/srv/other", "");
        let attributes = [(c"system.posix_acl_default".into(), list.clone())];
        host.set_extras("/srv", Some(Extras { attributes: attributes.into(), flags: None }));
        if is_open {
            host.chmod("/srv", 0o775);
        }
        for path in ["/srv/f", "/srv/a/b/f"] {
            let mut parameters = parameters.clone();
            (parameters["path"], parameters["content"]) = (json!(path), json!("x"));
            // What is made on the way has the list by the kernel; this machine gives none.
            apply(&host, &parameters).unwrap();
            let parent = HostPath::parse(path).unwrap().parent().unwrap();
            let found = host.dir(&parent).unwrap().unwrap().stat("f").unwrap().unwrap();
            assert_eq!(found.mode, file, "{path} {parameters}");
            assert_eq!(check(&host, &parameters), Ok(Check::AsItShould), "{path} {parameters}");
        }
        let made = |dir: &'static str, name: &str| {
            host.dir(&HostPath::own(dir)).unwrap().unwrap().stat(name).unwrap().unwrap().mode
        };
        assert_eq!((made("/srv", "a"), made("/srv/a", "b")), (dir, dir), "{parameters}");
    }
}

#[test]
fn x05_rights_that_a_sensitive_task_takes_away_without_being_told_to_are_named_in_its_result() {
    let host = MemoryHost::new();
    host.put("/run/credentials/stemma-agent.service/db", "x");
    host.put("/spool/f", "x");
    host.chown("/spool", 65_534);
    host.chown("/spool/f", 65_534);
    host.chmod("/spool/f", 0o4755);
    let task = secret_task(&json!({"path": "/spool/f", "template": "{{ secret('db') }}"}));
    let said = "mode 4755 becomes 0600, owner 65534 becomes 0";
    let Ok(Check::Differs { message, .. }) = ready(File.check(&site(&host), &task)) else { panic!("it differs") };
    assert_eq!(message, said);
    assert_eq!(ready(File.apply(&site(&host), &task)).unwrap().message, said);
}

fn secret_task(parameters: &Value) -> HostTask {
    let definition = json!({"id": "conf", "type": "file", "parameters": parameters}).to_string();
    let (references, after, barriers) = (vec!["secret('db')".to_owned()], vec![], vec![]);
    let sent = [("secret('db')".to_owned(), InputValue::Secret { name: "db".into(), version: 1 })].into();
    HostTask::new(&ProfileTask { id: "conf".into(), definition, references, after, barriers }, &sent).unwrap()
}

#[test]
fn a_file_larger_than_any_that_is_written_is_replaced_and_removed() {
    for (parameters, found) in [
        (json!({"path": "/big", "content": "small"}), Some("small".to_owned())),
        (json!({"path": "/big", "absent": true}), None),
    ] {
        let host = MemoryHost::new();
        host.put("/big", &"x".repeat(64 * 1024 * 1024 + 1));
        host.put_hard_link("/big");
        assert!(refusal(&host, &parameters).contains("2 hard links"), "it may be someone else's");
        host.put("/big", &"x".repeat(64 * 1024 * 1024 + 1));
        let Ok(Check::Differs { diff, .. }) = check(&host, &parameters) else { panic!("{parameters}") };
        assert!(diff.contains("67108865 bytes become"), "{diff}");
        apply(&host, &parameters).unwrap();
        assert_eq!(host.text("/big"), found, "{parameters}");
        assert_eq!(check(&host, &parameters), Ok(Check::AsItShould));
        assert_eq!(site(&host).ledger.replaced("/big"), None, "too large to be kept");
    }
}

/// Where the owner of a host keeps the host label map, which two would write by turns.
#[test]
fn y01_the_host_label_map_is_no_tasks_wherever_the_configuration_has_it() {
    let host = MemoryHost::new();
    let map = |path: &str| HostLabelMap { path: path.to_owned(), ..HostLabelMap::default() };
    for (configured, path, is_own) in [
        ("/etc/stemma/node-labels", "/etc/stemma/node-labels", true),
        ("/etc/site/labels", "/etc/site/labels", true),
        ("/etc/site/labels", "/etc/site/labels/x", true),
        ("/run/site", "/var/run/site", true),
        ("/etc/site/labels", "/etc/site/other", false),
    ] {
        let site = site(&host).with_label_map(&map(configured));
        let refused = state(&site, &task(&json!({"path": path, "content": "x"}))).err();
        let said = refused.map(|error| error.message);
        let own = format!("parameters.path: {path} is the agent's own; no task writes there");
        assert_eq!(said, is_own.then_some(own), "{configured} {path}");
    }
}
