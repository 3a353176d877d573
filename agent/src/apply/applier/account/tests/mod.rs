//! Account tasks on an in-memory host whose tools are imitated, and with the real shadow tools in a directory.

mod obstacles;
mod real_tools;

use std::rc::Rc;

use serde_json::{Value, json};

use super::*;
use crate::apply::applier::Applier;
use crate::apply::applier::testing::{site_of, task_of};
use crate::apply::ledger::Ledger;
use crate::apply::task::{ApplyResult, CheckResult, FailureEffect};
use crate::host::memory::MemoryHost;
use crate::host::{CommandResult, ExitKind, Host, HostCommand, Pending};

const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
ada:x:1000:1000:Ada:/home/ada:/bin/sh
";
const GROUP: &str = "root:x:0:\nadm:x:4:ada\nwww-data:x:33:\nweb:x:990:\nada:x:1000:\nnogroup:x:65534:\n";
const SHADOW: &str = "root:*:20000::::::\nwww-data:*:20000::::::\nada:$y$j9T$a$b:20000:0:99999:7:::\n";

/// The number of a group that only the directory service has.
const DIRECTORY_GID: &str = "7001";

/// Returns a host with these accounts, whose shadow tools are imitated.
fn memory_host() -> MemoryHost {
    let host = MemoryHost::new();
    for (path, text) in [
        ("/etc/passwd", PASSWD),
        ("/etc/group", GROUP),
        ("/etc/shadow", SHADOW),
        ("/etc/skel/.profile", "skel\n"),
        ("/home/ada/x", ""),
        ("/bin/bash", ""),
    ] {
        host.put(path, text);
    }
    host.chown("/home/ada", 1000);
    host.on_run(imitate_tool);
    host
}

fn block_on<T>(future: Pending<'_, T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn applier(kind: &str) -> &'static dyn Applier {
    if kind == "user" { &UserApplier } else { &GroupApplier }
}

fn check(host: &Rc<dyn Host>, kind: &str, parameters: &Value) -> Result<CheckResult, TaskError> {
    block_on(applier(kind).check(&site_of(host.clone()), &task_of(("t", kind), parameters, &[])))
}

fn apply(host: &Rc<dyn Host>, kind: &str, parameters: &Value) -> Result<ApplyResult, TaskError> {
    let ledger = Ledger::open(host.clone()).map_err(TaskError::from)?;
    let site = Site::new(host.clone(), Rc::new(ledger));
    block_on(applier(kind).apply(&site, &task_of(("t", kind), parameters, &[])))
}

/// Returns the value of an option, by its name or the next argument.
fn option<'a>(argv: &'a [String], name: &str) -> Option<&'a str> {
    argv.iter().position(|word| word == name).map(|index| argv[index + 1].as_str())
}

/// Edits the fields of the entry with this name in a file. Removes the entry if `edit` returns `false`.
fn edit_entry(host: &MemoryHost, path: &str, name: &str, edit: impl Fn(&mut Vec<String>) -> bool) {
    let lines = host.text(path).unwrap();
    let mut text = String::new();
    for line in lines.lines() {
        let mut fields: Vec<String> = line.split(':').map(str::to_owned).collect();
        if fields[0] != name || edit(&mut fields) {
            text.push_str(&format!("{}\n", fields.join(":")));
        }
    }
    host.put(path, &text);
}

fn append(host: &MemoryHost, path: &str, line: &str) {
    host.put(path, &format!("{}{line}\n", host.text(path).unwrap()));
}

/// Returns the number of a group that is given by its name or number.
fn gid(host: &MemoryHost, group: &str) -> String {
    let text = host.text("/etc/group").unwrap();
    let entry = text.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == group);
    let other = if group.parse::<u32>().is_ok() { group } else { DIRECTORY_GID };
    entry.map_or(other, |fields| fields[2]).to_owned()
}

/// Makes a user a member of exactly these groups, or of these groups too.
fn set_groups(host: &MemoryHost, user: &str, groups: &str, is_exact: bool) {
    let names: Vec<String> =
        host.text("/etc/group").unwrap().lines().map(|line| line.split(':').next().unwrap().to_owned()).collect();
    for name in names {
        let is_member = groups.split(',').any(|group| group == name);
        edit_entry(host, "/etc/group", &name, |fields| {
            let mut members: Vec<&str> = fields[3].split(',').filter(|member| !member.is_empty()).collect();
            if is_exact || is_member {
                members.retain(|member| *member != user);
            }
            if is_member {
                members.push(user);
            }
            fields[3] = members.join(",");
            true
        });
    }
}

/// Imitates the shadow tools and the commands for home directories, as their manual pages describe them.
fn imitate_tool(host: &MemoryHost, command: &HostCommand) -> CommandResult {
    let argv = &command.argv;
    let name = argv.last().unwrap().as_str();
    let has = |flag: &str| argv.iter().any(|word| word == flag);
    match argv[0].as_str() {
        "groupadd" => append(host, "/etc/group", &format!("{name}:x:{}:", option(argv, "--gid").unwrap_or("980"))),
        "groupmod" => edit_entry(host, "/etc/group", name, |fields| {
            fields[2] = option(argv, "--gid").unwrap().to_owned();
            true
        }),
        "groupdel" => edit_entry(host, "/etc/group", name, |_| false),
        "useradd" => {
            let uid = option(argv, "--uid").unwrap_or(if has("--system") { "981" } else { "1001" });
            if has("--user-group") {
                append(host, "/etc/group", &format!("{name}:x:{uid}:"));
            }
            let gid = option(argv, "--gid").map_or_else(|| uid.to_owned(), |group| gid(host, group));
            let home = option(argv, "--home-dir").map_or_else(|| format!("/home/{name}"), str::to_owned);
            let [comment, shell] = ["--comment", "--shell"].map(|name| option(argv, name).unwrap_or_default());
            append(host, "/etc/passwd", &format!("{name}:x:{uid}:{gid}:{comment}:{home}:{shell}"));
            let expiry = option(argv, "--expiredate").map_or("", |_| "1");
            append(host, "/etc/shadow", &format!("{name}:!:20000:0:99999:7::{expiry}:"));
        }
        "usermod" => imitate_usermod(host, argv),
        "userdel" => {
            let passwd = host.text("/etc/passwd").unwrap();
            let entry = passwd.lines().find(|line| line.split(':').next() == Some(name)).unwrap();
            let user_gid = entry.split(':').nth(3).unwrap().to_owned();
            for path in ["/etc/passwd", "/etc/shadow"] {
                edit_entry(host, path, name, |_| false);
            }
            set_groups(host, name, "", true);
            if user_gid == gid(host, name)
                && host.text("/etc/login.defs").is_some_and(|text| text.contains("USERGROUPS_ENAB yes"))
            {
                edit_entry(host, "/etc/group", name, |_| false);
            }
        }
        "rm" => host.delete(name),
        "/bin/sh" => {
            host.put(&format!("{}/.profile", argv[5]), "skel\n");
            host.chown(&argv[5], argv[7].split(':').next().unwrap().parse().unwrap());
        }
        other => panic!("unexpected {other}"),
    }
    CommandResult { end: ExitKind::Status(0), output: String::new() }
}

fn imitate_usermod(host: &MemoryHost, argv: &[String]) {
    let name = argv.last().unwrap().as_str();
    let has = |flag: &str| argv.iter().any(|word| word == flag);
    edit_entry(host, "/etc/passwd", name, |fields| {
        for (flag, index) in [("--uid", 2), ("--comment", 4), ("--home", 5), ("--shell", 6)] {
            if let Some(value) = option(argv, flag) {
                fields[index] = value.to_owned();
            }
        }
        if let Some(group) = option(argv, "--gid") {
            fields[3] = gid(host, group);
        }
        true
    });
    edit_entry(host, "/etc/shadow", name, |fields| {
        if has("--lock") {
            fields[1] = format!("!{}", fields[1]);
        }
        if has("--unlock") {
            fields[1] = fields[1].strip_prefix('!').unwrap().to_owned();
        }
        if let Some(date) = option(argv, "--expiredate") {
            fields[7] = if date.is_empty() { String::new() } else { "1".to_owned() };
        }
        true
    });
    if let Some(uid) = option(argv, "--uid") {
        host.chown(&format!("/home/{name}"), uid.parse().unwrap());
    }
    if let Some(groups) = option(argv, "--groups") {
        set_groups(host, name, groups, !has("--append"));
    }
}

/// Applies a task on a new host and returns the commands that ran. The task must be converged afterwards.
fn commands(kind: &str, parameters: &Value) -> (Vec<String>, String) {
    let memory = memory_host();
    let host: Rc<dyn Host> = Rc::new(memory.clone());
    let result = apply(&host, kind, parameters).unwrap();
    assert_eq!(check(&host, kind, parameters).unwrap(), CheckResult::Converged, "{parameters}");
    assert_eq!(
        apply(&host, kind, parameters).unwrap(),
        ApplyResult { diff: diff_header(kind, parameters), ..ApplyResult::default() }
    );
    let commands = memory
        .commands_run()
        .into_iter()
        .map(|argv| if argv[0] == "/bin/sh" { format!("create {} {} {}", argv[5], argv[7], argv[8]) } else { argv.join(" ") });
    (commands.collect(), result.message)
}

fn diff_header(kind: &str, parameters: &Value) -> String {
    let account = format!("{} {}", if kind == "user" { "user" } else { "group" }, parameters["name"].as_str().unwrap());
    format!("--- {account}\n+++ {account}\n")
}

/// The options are those of useradd(8), usermod(8), userdel(8), groupadd(8), groupmod(8) and groupdel(8).
#[test]
fn apply_runs_shadow_tools_until_account_matches() {
    let new_user = "useradd --no-create-home";
    for (kind, parameters, expected) in [
        ("user", json!({"name": "bob"}), vec![&*format!("{new_user} --user-group bob"), "create /home/bob 1001:1001 0755"]),
        (
            "user",
            json!({"name": "web", "system": true, "home": "/srv/web", "shell": "/bin/false", "comment": "Web, all of it", "locked": true,
                "groups": ["adm", "33"]}),
            vec![
                &*format!(
                    "{new_user} --home-dir /srv/web --shell /bin/false --comment Web, all of it --expiredate 1970-01-02 --system --gid web web"
                ),
                "usermod --append --groups adm,www-data web",
            ],
        ),
        ("user", json!({"name": "bob", "uid": 700, "group": "adm"}), vec![&*format!("{new_user} --uid 700 --gid adm bob")]),
        (
            "user",
            json!({"name": "ada", "shell": "/bin/sh", "uid": 1000, "group": "1000", "groups": "adm", "comment": "Ada"}),
            vec![],
        ),
        ("user", json!({"name": "ada", "groups": "web"}), vec!["usermod --append --groups web ada"]),
        ("user", json!({"name": "ada", "groups": "web", "exact_groups": true}), vec!["usermod --groups web ada"]),
        ("user", json!({"name": "ada", "groups": ["ada"], "exact_groups": true}), vec!["usermod --groups  ada"]),
        ("user", json!({"name": "ada", "groups": [], "exact_groups": true}), vec!["usermod --groups  ada"]),
        ("user", json!({"name": "ada", "locked": true}), vec!["usermod --lock --expiredate 1970-01-02 ada"]),
        ("user", json!({"name": "ada", "locked": false}), vec![]),
        ("user", json!({"name": "www-data", "groups": "web"}), vec!["usermod --append --groups web www-data"]),
        (
            "user",
            json!({"name": "ada", "home": "/srv/ada", "group": "web", "create_home": true}),
            vec!["usermod --gid web --home /srv/ada ada", "create /srv/ada 1000:990 0755"],
        ),
        ("user", json!({"name": "ada", "absent": true}), vec!["userdel ada"]),
        (
            "user",
            json!({"name": "ada", "absent": true, "remove_home": true}),
            vec!["rm -rf --one-file-system -- /home/ada", "userdel --remove ada"],
        ),
        ("user", json!({"name": "bob", "absent": true, "remove_home": true}), vec![]),
        ("group_account", json!({"name": "app", "system": true, "gid": 77}), vec!["groupadd --system --gid 77 app"]),
        ("group_account", json!({"name": "web", "gid": 991}), vec!["groupmod --gid 991 web"]),
        ("group_account", json!({"name": "web"}), vec![]),
        ("group_account", json!({"name": "web", "absent": true}), vec!["groupdel web"]),
        ("group_account", json!({"name": "app", "absent": true}), vec![]),
    ] {
        assert_eq!(commands(kind, &parameters).0, expected, "{parameters}");
    }
    let (_, message) = commands("user", &json!({"name": "ada", "uid": 1500}));
    assert_eq!(message, "files outside of its home directory keep the number 1000: `find / -xdev -uid 1000` lists them");
}

#[test]
fn check_shows_differences_and_runs_no_process() {
    let memory = memory_host();
    let host: Rc<dyn Host> = Rc::new(memory.clone());
    let parameters = json!({"name": "ada", "shell": "/bin/bash", "comment": "Ada", "groups": ["web"], "locked": true});
    let CheckResult::Drifted { diff, message } = check(&host, "user", &parameters).unwrap() else { panic!("drifted") };
    assert_eq!(
        diff,
        "--- user ada\n+++ user ada\n-shell: /bin/sh\n+shell: /bin/bash\n-groups: adm\n+groups: adm,web\n-locked: false\n+locked: true\n"
    );
    assert_eq!(message, "user ada: would change shell, groups, locked");
    assert_eq!((memory.commands_run().len(), memory.directory_lookups()), (0, 0));
}

/// A group that does not exist may be created by a task before, so a check of such a user is no failure.
#[test]
fn missing_group_blocks_apply_and_not_check() {
    let memory = memory_host();
    let host: Rc<dyn Host> = Rc::new(memory.clone());
    for parameters in [
        json!({"name": "bob", "group": "app"}),
        json!({"name": "bob", "groups": ["adm", "app"]}),
        json!({"name": "ada", "group": "app"}),
        json!({"name": "ada", "groups": ["app"]}),
    ] {
        let CheckResult::Drifted { message, .. } = check(&host, "user", &parameters).unwrap() else { panic!("{parameters}") };
        assert!(message.contains("there is no group app on this host"), "{message}");
        let error = apply(&host, "user", &parameters).unwrap_err();
        assert!(error.message.ends_with("create it (`group_account`); nothing was changed"), "{}", error.message);
        assert_eq!((error.effect, memory.commands_run().len()), (FailureEffect::Unchanged, 0));
    }
}

#[test]
fn account_is_not_changed_when_change_is_dangerous() {
    let memory = memory_host();
    append(
        &memory,
        "/etc/passwd",
        "toor:x:0:0::/root:/bin/sh\nstemma:x:998:998::/var/lib/stemma:/bin/sh\nbus:x:5:5::/home:/bin/sh",
    );
    append(&memory, "/etc/passwd", "eve:x:1002:1002::/home/eve:/bin/sh\nnested:x:1003:1003::/home/ada/n:/bin/sh");
    memory.put("/home/eve/x", "");
    memory.put("/proc/4711/comm", "sleep\n");
    memory.chown("/proc/4711", 33);
    memory.put("/tmp/x", "");
    memory.chmod("/tmp", 0o1777);
    let host: Rc<dyn Host> = Rc::new(memory.clone());
    for (kind, parameters, expected) in [
        ("user", json!({"name": "toor", "absent": true}), "user toor is needed by the system: remove the task"),
        ("user", json!({"name": "toor", "uid": 7}), "user toor is an account of root: no task changes its number"),
        ("user", json!({"name": "toor", "locked": true}), "user toor is an account of root: no task changes its number"),
        ("user", json!({"name": "{{ 'stemma' }}", "uid": 7}), "user stemma is the account of the controller of Stemma"),
        ("user", json!({"name": "ada", "uid": 33}), "parameters.uid: the user www-data has the number 33: write another one"),
        ("user", json!({"name": "new", "uid": 33}), "parameters.uid: the user www-data has the number 33: write another one"),
        ("user", json!({"name": "www-data", "uid": 34}), "user www-data has running processes, sleep (4711): end them first"),
        (
            "user",
            json!({"name": "www-data", "absent": true}),
            "user www-data has running processes, sleep (4711): end them first",
        ),
        (
            "user",
            json!({"name": "bus", "absent": true, "remove_home": true}),
            "the home directory /home is not removed: it is a dir",
        ),
        (
            "user",
            json!({"name": "ada", "absent": true, "remove_home": true}),
            "the home directory /home/ada is not removed: the home",
        ),
        (
            "user",
            json!({"name": "eve", "absent": true, "remove_home": true}),
            "the home directory /home/eve is not removed: it belongs to",
        ),
        (
            "user",
            json!({"name": "ada", "home": "/tmp/ada"}),
            "the home directory /tmp/ada cannot be created: users other than root can",
        ),
        ("user", json!({"name": "ada", "home": "/tmp/x"}), "the home directory /tmp/x is a regular file: move it away"),
        ("group_account", json!({"name": "ada", "absent": true}), "group ada is the primary group of ada: give them another one"),
        ("group_account", json!({"name": "web", "gid": 33}), "parameters.gid: the group www-data has the number 33"),
    ] {
        let CheckResult::Blocked { message, .. } = check(&host, kind, &parameters).unwrap() else { panic!("{parameters}") };
        assert!(message.starts_with(expected) && message.ends_with("; nothing was changed"), "{message}");
        let error = apply(&host, kind, &parameters).unwrap_err();
        assert_eq!((error.effect, error.message, memory.commands_run().len()), (FailureEffect::Unchanged, message, 0));
    }
    for (parameters, expected) in [
        (json!({"name": "stemma", "uid": 7}), "parameters.uid: changes the account of the controller"),
        (json!({"name": "root", "absent": true}), "parameters.absent: would remove the user root"),
        (json!({"name": "ada", "exact_groups": true}), "parameters.exact_groups: needs the list"),
        (json!({"name": "a:b"}), "parameters.name: \"a:b\" is not a name for an account"),
    ] {
        let message = check(&host, "user", &parameters).unwrap_err().message;
        assert!(message.starts_with(expected) && message.ends_with("; nothing was changed"), "{message}");
    }
}

/// An account of a directory service is compared with the task, and never changed.
#[test]
fn account_of_directory_service_is_compared_and_not_changed() {
    let memory = memory_host();
    memory.put_directory_entry(AccountKind::User, "alice:*:70001:70002:Alice:/home/alice:/bin/bash");
    memory.put_directory_entry(AccountKind::Group, "staff:*:70002:alice,ada");
    let host: Rc<dyn Host> = Rc::new(memory.clone());
    for (kind, parameters) in [
        ("user", json!({"name": "alice"})),
        ("user", json!({"name": "alice", "uid": 70001, "group": "staff", "shell": "/bin/bash", "groups": ["staff"]})),
        ("user", json!({"name": "ada", "groups": ["staff"]})),
        ("group_account", json!({"name": "staff", "gid": 70002})),
    ] {
        assert_eq!(check(&host, kind, &parameters).unwrap(), CheckResult::Converged, "{parameters}");
    }
    let user = "user alice comes from a directory service (NSS), not from /etc/passwd: change it there; nothing was changed";
    let group = "group staff comes from a directory service (NSS), not from /etc/group: change it there; nothing was changed";
    for (kind, parameters, expected) in [
        ("user", json!({"name": "alice", "shell": "/bin/sh"}), user),
        ("user", json!({"name": "alice", "groups": ["adm"]}), user),
        ("user", json!({"name": "alice", "locked": true}), user),
        ("user", json!({"name": "alice", "absent": true}), user),
        ("group_account", json!({"name": "staff", "gid": 5}), group),
        ("group_account", json!({"name": "staff", "absent": true}), group),
    ] {
        let error = apply(&host, kind, &parameters).unwrap_err();
        assert_eq!((error.message.as_str(), error.effect), (expected, FailureEffect::Unchanged), "{parameters}");
    }
    let error = apply(&host, "user", &json!({"name": "www-data", "groups": ["staff"]})).unwrap_err();
    assert!(error.message.starts_with("parameters.groups[0]: group staff comes from a directory service"), "{}", error.message);
    assert_eq!(memory.commands_run().len(), 0);
}

/// A locked password has a hash, so its unlock gives the password back. An account without a password stays without.
#[test]
fn unlock_restores_password_and_opens_no_account() {
    for (shadow, expected) in [
        ("!$6$x:20000:0:99999:7::1:", "ada:$6$x:20000:0:99999:7:::"),
        ("!!$6$x:20000:0:99999:7::1:", "ada:$6$x:20000:0:99999:7:::"),
        ("!$6$x:20000:0:99999:7:::", "ada:$6$x:20000:0:99999:7:::"),
        ("!:20000:0:99999:7::1:", "ada:!:20000:0:99999:7:::"),
        ("*:20000:0:99999:7::1:", "ada:*:20000:0:99999:7:::"),
        ("!*:20000:0:99999:7::1:", "ada:!*:20000:0:99999:7:::"),
    ] {
        let memory = memory_host();
        memory.put("/etc/shadow", &format!("ada:{shadow}\n"));
        let host: Rc<dyn Host> = Rc::new(memory.clone());
        let result = apply(&host, "user", &json!({"name": "ada", "locked": false})).unwrap();
        assert_eq!(memory.text("/etc/shadow").unwrap().trim_end(), expected);
        assert_eq!(result.message.contains("only its expiry was removed"), !shadow.contains('$'), "{}", result.message);
    }
}

/// The agent is killed before and after each tool. A locked account is never open in between.
#[test]
fn apply_resumes_when_killed_at_any_step() {
    for (kind, parameters) in [
        ("user", json!({"name": "bob", "locked": true, "groups": ["adm", "web"], "exact_groups": true, "create_home": true})),
        (
            "user",
            json!({"name": "ada", "locked": true, "uid": 1500, "shell": "/bin/bash", "home": "/srv/ada", "groups": ["web"]}),
        ),
        ("user", json!({"name": "ada", "absent": true, "remove_home": true})),
        ("group_account", json!({"name": "web", "gid": 991})),
    ] {
        for call in 0.. {
            let memory = memory_host();
            let host: Rc<dyn Host> = Rc::new(memory.clone());
            memory.crash_before(call);
            let result = apply(&host, kind, &parameters);
            if !memory.is_crashed() {
                result.unwrap();
                assert!(call >= 2, "each tool is two calls");
                break;
            }
            memory.restart();
            let shadow = memory.text("/etc/shadow").unwrap();
            assert!(
                shadow
                    .lines()
                    .filter(|line| line.starts_with("bob:"))
                    .all(|line| line.starts_with("bob:!:") && line.ends_with(":1:"))
            );
            apply(&host, kind, &parameters).unwrap();
            assert_eq!(check(&host, kind, &parameters).unwrap(), CheckResult::Converged, "{parameters} {call}");
        }
    }
}

#[test]
fn apply_waits_for_lock_and_reports_failing_tool() {
    let memory = memory_host();
    let attempts = std::cell::Cell::new(0);
    memory.on_run(move |host, command| {
        attempts.set(attempts.get() + 1);
        if attempts.get() < 3 {
            let output = "groupadd: cannot lock /etc/group; try again later.\n".to_owned();
            return CommandResult { end: ExitKind::Status(10), output };
        }
        imitate_tool(host, command)
    });
    let host: Rc<dyn Host> = Rc::new(memory.clone());
    apply(&host, "group_account", &json!({"name": "app"})).unwrap();
    assert_eq!(memory.commands_run().len(), 3);
    memory.on_run(|_, _| CommandResult { end: ExitKind::Status(4), output: "no\n".into() });
    let error = apply(&host, "group_account", &json!({"name": "other"})).unwrap_err();
    assert_eq!((error.message.as_str(), error.output.as_str()), ("groupadd ended with status 4", "no\n"));
    memory.on_run(|_, _| CommandResult { end: ExitKind::Status(0), output: String::new() });
    let error = apply(&host, "group_account", &json!({"name": "other"})).unwrap_err();
    assert!(error.message.starts_with("group other is not as the task describes it, although `groupadd other` succeeded"));
}
