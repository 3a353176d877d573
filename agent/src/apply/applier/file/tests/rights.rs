//! Whose a file is afterwards, and who may do what with it: owner, mode, access control lists, attributes and flags.

use super::*;

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
fn x05_a_secret_and_what_stands_in_somebodys_directory_have_no_list_of_the_directory() {
    for (dir_of, secret, is_bare) in [(0, false, false), (0, true, true), (65_534, false, true)] {
        let host = MemoryHost::new();
        host.put("/run/credentials/stemma-agent.service/db", "x");
        host.put("/srv/other", "");
        host.chown("/srv", dir_of);
        host.give_new_files(extras());
        ready(File.apply(&site(&host), &writing("/srv/f", &json!({}), secret))).unwrap();
        let expected = if is_bare { Extras::default() } else { extras() };
        assert_eq!(look(&host, "/srv", "f").2, expected, "directory of {dir_of}, secret: {secret}");
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
        let task = writing("/spool/f", &parameters, secret);
        let found = ready(File.check(&site(&host), &task)).unwrap();
        let before = (of, mode);
        assert_eq!(found == Check::AsItShould, before == want, "{parameters} {mode:o}");
        ready(File.apply(&site(&host), &task)).unwrap();
        let (user, mode_now, _) = look(&host, "/spool", "f");
        assert_eq!((user, mode_now), want, "{parameters} {mode:o} of {of}, secret: {secret}");
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
        let task = writing("/etc/app/conf", &parameters, secret);
        let found = ready(File.check(&site(&host), &task)).unwrap();
        assert_eq!(found == Check::AsItShould, (app, mode) == want, "{parameters} {mode:o} in {dir:?}");
        ready(File.apply(&site(&host), &task)).unwrap();
        let (user, mode_now, _) = look(&host, "/etc/app", "conf");
        assert_eq!((user, mode_now), want, "{parameters} {mode:o} in {dir:?}, secret: {secret}");
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

/// A task that writes a file of these parameters, with a secret in it or without.
fn writing(path: &str, parameters: &Value, secret: bool) -> HostTask {
    let mut parameters = parameters.clone();
    let (key, text) = if secret { ("template", "{{ secret('db') }}") } else { ("content", "x") };
    (parameters["path"], parameters[key]) = (json!(path), json!(text));
    if secret { secret_task(&parameters) } else { task(&parameters) }
}

fn secret_task(parameters: &Value) -> HostTask {
    let definition = json!({"id": "conf", "type": "file", "parameters": parameters}).to_string();
    let (references, after, barriers) = (vec!["secret('db')".to_owned()], vec![], vec![]);
    let sent = [("secret('db')".to_owned(), InputValue::Secret { name: "db".into(), version: 1 })].into();
    HostTask::new(&ProfileTask { id: "conf".into(), definition, references, after, barriers }, &sent).unwrap()
}
