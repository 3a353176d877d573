//! Tasks that one change makes together: the packages of several tasks in one transaction.

use super::*;

const STATUS_PATH: &str = "/var/lib/dpkg/status";

/// Returns a host on which a simulated apt installs each package except `unknown`, and removes packages.
fn package_host() -> MemoryHost {
    let host = MemoryHost::new();
    host.put(STATUS_PATH, &stanza("present", "install ok installed"));
    host.put("/var/lib/apt/lists/deb.debian.org_main_binary-amd64_Packages", "");
    host.on_run(|host, command| {
        let Some(position) = command.argv.iter().position(|word| word == "install" || word == "remove") else {
            return CommandResult { end: ExitKind::Status(0), output: String::new() };
        };
        let (verb, names) = (command.argv[position].as_str(), &command.argv[position + 1..]);
        if names.iter().any(|name| name == "unknown") {
            return CommandResult { end: ExitKind::Status(100), output: "E: Unable to locate package unknown\n".into() };
        }
        let status = if verb == "install" { "install ok installed" } else { "deinstall ok config-files" };
        for name in names {
            let text = host.text(STATUS_PATH).unwrap();
            let others = text.split_inclusive("\n\n").filter(|stanza| !stanza.starts_with(&format!("Package: {name}\n")));
            let text: String = others.map(str::to_owned).chain([stanza(name, status)]).collect();
            host.put(STATUS_PATH, &text);
        }
        CommandResult { end: ExitKind::Status(0), output: String::new() }
    });
    host
}

fn stanza(name: &str, status: &str) -> String {
    format!("Package: {name}\nStatus: {status}\nArchitecture: all\nVersion: 1.0\n\n")
}

/// Returns the verbs and the packages of the commands of apt that were run.
fn apt_commands(host: &MemoryHost) -> Vec<String> {
    let words = |words: Vec<String>| {
        let position = words.iter().position(|word| ["install", "remove", "update"].contains(&word.as_str())).unwrap();
        words[position..].join(" ")
    };
    host.commands_run().into_iter().map(words).collect()
}

fn package(set: TestTaskSet, name: &str, after: &[u16]) -> TestTaskSet {
    set.task(name, "package", after, &json!({"parameters": {"name": name}}))
}

/// The task `later` has an order after `one`, and the file is between the packages in the profile.
#[test]
fn ready_package_tasks_are_one_transaction() {
    let host = package_host();
    let set = package(TestTaskSet::default(), "one", &[]).file("file", &[], "/file", "");
    let set = package(package(package(set, "two", &[]), "present", &[]), "later", &[0]);
    let set = set.task("gone", "package", &[], &json!({"parameters": {"name": "missing", "absent": true}}));
    let mut outcomes = converge(&host, &set);
    outcomes.sort_by(|left, right| left.0.cmp(&right.0));
    let expected = [
        ("file", Outcome::Changed),
        ("gone", Outcome::Unchanged),
        ("later", Outcome::Changed),
        ("one", Outcome::Changed),
        ("present", Outcome::Unchanged),
        ("two", Outcome::Changed),
    ];
    assert_eq!(outcomes, pairs(&expected));
    assert_eq!(apt_commands(&host), ["install one two", "install later"]);
    host.on_run(|_, command| panic!("{:?}: a second run changes nothing", command.argv));
    converge(&host, &set);
}

/// Each task has the error or the diff of its own packages.
#[test]
fn failed_transaction_is_repeated_task_by_task() {
    let host = package_host();
    let set = package(package(package(TestTaskSet::default(), "one", &[]), "unknown", &[]), "two", &[]);
    let profile: Profile = postcard::from_bytes(&set.profile().1).unwrap();
    let mut run = TaskRun::plan(site(&host), &Ceiling::default(), &set.desired(), &profile, RunPurpose::Converge).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async { while run.advance(&BTreeSet::new()).await.unwrap() {} });
    let mut results = run.save_results().unwrap();
    results.sort_by(|left, right| left.task.cmp(&right.task));
    let texts: Vec<_> = results.iter().map(|result| (result.task.as_str(), result.outcome, result.diff.as_str())).collect();
    assert_eq!(
        texts,
        [
            ("one", Outcome::Changed, "-one: absent\n+one: 1.0\n"),
            ("two", Outcome::Changed, "-two: absent\n+two: 1.0\n"),
            ("unknown", Outcome::Failed, ""),
        ]
    );
    assert!(results[2].message.starts_with("apt knows no package unknown"), "{}", results[2].message);
    let alone = ["install one", "install unknown", "install two"];
    assert_eq!(apt_commands(&host), [&["install one unknown two", "update", "install one unknown two"][..], &alone].concat());
}

#[test]
fn tasks_with_other_options_are_not_in_transaction() {
    let host = package_host();
    let set = package(TestTaskSet::default(), "one", &[])
        .task("two", "package", &[], &json!({"parameters": {"name": "two", "recommends": true}}))
        .task("three", "package", &[], &json!({"parameters": {"name": "present", "absent": true}}))
        .task("four", "package", &[], &json!({"mode": "noop", "parameters": {"name": "four"}}))
        .task("five", "package", &[], &json!({"parameters": {"name": ["one", "five"]}}));
    converge(&host, &set);
    // A removal is simulated first.
    assert_eq!(apt_commands(&host), ["install one", "install five", "install two", "remove present", "remove present"]);
}

#[test]
fn check_runs_no_transaction() {
    let host = package_host();
    let set = package(package(TestTaskSet::default(), "one", &[]), "two", &[]);
    let (outcomes, _) = run_with(&host, &set, &Ceiling::default(), RunPurpose::Check);
    assert_eq!(outcomes, pairs(&[("one", Outcome::WouldChange), ("two", Outcome::WouldChange)]));
    assert!(host.commands_run().is_empty());
}
