//! Tasks that run again for what another one has changed.

use super::*;

const NOTE: &[&str] = &["reload"];

/// A task that reloads when one of two files has changed; `before` are the files that the profile puts before it.
fn site_of(a: &str, b: &str, after: &[u16]) -> Set {
    let fields = json!({"parameters": {"command": NOTE}, "subscribes": ["conf-a", "/^conf-b/"]});
    Set::default().file("conf-a", &[], "/a", a).file("conf-b", &[], "/b", b).task("note", "shell", after, &fields)
}

fn reloads(host: &MemoryHost) -> usize {
    host.ran().iter().filter(|words| *words == NOTE).count()
}

/// The command ends so from now on.
fn ends_with(host: &MemoryHost, status: i32) {
    host.on_run(move |_, _| Finished { end: End::Status(status), output: String::new() });
}

/// Commands with this program fail from now on.
fn refuses(host: &MemoryHost, program: &'static str) {
    host.on_run(move |_, command| Finished {
        end: End::Status(i32::from(command.argv[0] == program)),
        output: String::new(),
    });
}

#[test]
fn w02_subscribes_a_change_runs_it_again_once_however_many_changed() {
    let host = MemoryHost::new();
    converge(&host, &site_of("1", "1", &[0, 1]));
    assert_eq!(reloads(&host), 1, "the first time, for its own content");
    converge(&host, &site_of("1", "1", &[0, 1]));
    assert_eq!(reloads(&host), 1, "nothing changed");
    let told = converge(&host, &site_of("2", "2", &[0, 1]));
    assert_eq!(reloads(&host), 2, "two changed, and it ran once");
    assert_eq!(told.last(), Some(&("note".to_owned(), Outcome::Changed)), "after both, in the same run");
    assert_eq!(converge(&host, &site_of("2", "2", &[0, 1])), []);
    assert_eq!(reloads(&host), 2);
    converge(&host, &site_of("2", "3", &[0, 1]));
    assert_eq!(reloads(&host), 3, "one that a pattern names");
}

#[test]
fn w02_subscribes_is_heeded_under_a_profile_without_an_order_for_it() {
    let host = MemoryHost::new();
    let fields = json!({"parameters": {"command": NOTE}, "subscribes": ["conf"]});
    let set = |content: &str| Set::default().task("note", "shell", &[], &fields).file("conf", &[], "/f", content);
    host.on_run(|host, _| Finished { end: End::Status(0), output: host.text("/f").unwrap_or_default() });
    for content in ["1", "2"] {
        let told = converge(&host, &set(content));
        assert_eq!(told, pairs(&[("conf", Outcome::Changed), ("note", Outcome::Changed)]));
        assert_eq!(site(&host).ledger.results().unwrap().last().unwrap().output, content, "after what changed");
    }
    assert_eq!(reloads(&host), 2);
}

#[test]
fn w02_subscribes_against_the_profiles_order_waits_for_the_next_run() {
    let host = MemoryHost::new();
    let fields = json!({"parameters": {"command": NOTE}, "subscribes": ["conf"]});
    let set = |content: &str| Set::default().task("note", "shell", &[], &fields).file("conf", &[0], "/f", content);
    converge(&host, &set("1"));
    assert_eq!(reloads(&host), 1);
    converge(&host, &set("1"));
    assert_eq!(reloads(&host), 2, "it changed after it");
    converge(&host, &set("1"));
    assert_eq!(reloads(&host), 2);
}

#[test]
fn w02_subscribes_counts_a_mend_too_and_is_none_itself() {
    let host = MemoryHost::new();
    converge(&host, &site_of("1", "1", &[0, 1]));
    for mends in 1..=3 {
        host.put("/a", "edited");
        converge(&host, &site_of("1", "1", &[0, 1]));
        assert_eq!(reloads(&host), 1 + mends);
    }
    converge(&host, &site_of("1", "2", &[0, 1]));
    assert_eq!(reloads(&host), 5, "what runs for another one is not contended");
}

#[test]
fn w02_subscribes_leaves_the_decision_to_guards() {
    let host = MemoryHost::new();
    let fields = json!({"parameters": {"command": NOTE, "creates": "/done"}, "subscribes": ["conf"]});
    let set = |content: &str| Set::default().file("conf", &[], "/f", content).task("note", "shell", &[0], &fields);
    host.put("/done", "");
    assert_eq!(converge(&host, &set("1")), pairs(&[("conf", Outcome::Changed), ("note", Outcome::Unchanged)]));
    assert_eq!(reloads(&host), 0, "its guard says that there is nothing to do");
    host.delete("/done");
    converge(&host, &set("1"));
    assert_eq!(reloads(&host), 1);
}

#[test]
fn w02_subscribes_is_kept_over_a_failure() {
    let host = MemoryHost::new();
    converge(&host, &site_of("1", "1", &[0, 1]));
    ends_with(&host, 1);
    assert!(converge(&host, &site_of("2", "1", &[0, 1])).contains(&("note".to_owned(), Outcome::Failed)));
    assert!(site(&host).ledger.is_to_refresh("note").unwrap());
    ends_with(&host, 0);
    converge(&host, &site_of("2", "1", &[0, 1]));
    converge(&host, &site_of("2", "1", &[0, 1]));
    assert_eq!(reloads(&host), 3, "again after the failure, and then no more");
}

#[test]
fn w02_subscribes_is_kept_while_something_else_that_it_requires_fails() {
    let host = MemoryHost::new();
    let fields = json!({"parameters": {"command": NOTE}, "subscribes": ["conf"]});
    let set = |content: &str, kind: &str| {
        let other = json!({"parameters": {"path": "/other", "content": ""}});
        let set = Set::default().file("conf", &[], "/f", content).task("other", kind, &[], &other);
        set.task("note", "shell", &[0, 1], &fields)
    };
    converge(&host, &set("1", "file"));
    assert!(converge(&host, &set("2", "teapot")).contains(&("note".to_owned(), Outcome::DependencyFailed)));
    converge(&host, &set("2", "file"));
    assert_eq!(reloads(&host), 2, "conf did not change in this run");
}

#[test]
fn w02_subscribes_hears_of_no_change_where_validate_refused_it() {
    let host = MemoryHost::new();
    let set = |content: &str| {
        let conf = json!({"parameters": {"path": "/a", "content": content, "validate": ["test", "{path}"]}});
        let note = json!({"parameters": {"command": NOTE}, "subscribes": ["conf"]});
        Set::default().task("conf", "file", &[], &conf).task("note", "shell", &[], &note)
    };
    let refuses = |word| refuses(&host, word);
    refuses("");
    converge(&host, &set("1"));
    refuses("test");
    assert!(converge(&host, &set("2")).contains(&("conf".to_owned(), Outcome::Failed)));
    converge(&host, &set("1"));
    assert_eq!(reloads(&host), 1, "the file is as it was");
    assert!(!site(&host).ledger.is_to_refresh("note").unwrap());
    refuses("reload");
    assert!(converge(&host, &set("3")).contains(&("note".to_owned(), Outcome::Failed)));
    refuses("test");
    converge(&host, &set("2"));
    assert!(site(&host).ledger.is_to_refresh("note").unwrap(), "a wish of before is kept");
}

#[test]
fn w02_subscribes_is_taken_back_only_where_no_other_task_changed_something_for_it() {
    let note = json!({"parameters": {"command": NOTE}, "subscribes": ["a", "b"]});
    let conf = |path: &str, content: &str, validate: &[&str], retries: u8| json!({"retries": retries, "parameters": {"path": path, "content": content, "validate": validate}});
    let set = |content: &str, of_b: &[&str], retries: [u8; 2]| {
        Set::default()
            .task("a", "file", &[], &conf("/a", content, &["test", "{path}"], retries[0]))
            .task("b", "file", &[], &conf("/b", content, of_b, retries[1]))
            .task("note", "shell", &[], &note)
    };
    // The one that is tried again ends last.
    for (of_b, retries, is_kept) in [
        (&["true"][..], [1, 0], true),
        (&["true"], [0, 1], true),
        (&["test", "{path}"], [1, 0], false),
        (&["test", "{path}"], [0, 1], false),
    ] {
        let host = MemoryHost::new();
        refuses(&host, "");
        converge(&host, &set("1", of_b, retries));
        refuses(&host, "test");
        let told = converge(&host, &set("2", of_b, retries));
        assert!(told.contains(&("a".to_owned(), Outcome::Failed)), "{told:?}");
        assert_eq!(told.contains(&("b".to_owned(), Outcome::Changed)), is_kept, "{told:?}");
        assert_eq!(site(&host).ledger.is_to_refresh("note").unwrap(), is_kept, "{of_b:?} {retries:?}");
    }
}

#[test]
fn w02_subscribes_is_kept_over_a_power_cut_at_any_call() {
    let changed = || site_of("2", "1", &[0, 1]);
    let started = || {
        let host = MemoryHost::new();
        converge(&host, &site_of("1", "1", &[0, 1]));
        host.revive();
        host
    };
    let whole = started();
    converge(&whole, &changed());
    for call in 0..whole.calls() {
        let host = started();
        host.die_before(call);
        let profile: Profile = postcard::from_bytes(&changed().profile().1).unwrap();
        let cut = Run::plan(site(&host), &Ceiling::default(), &changed().desired(), &profile, Purpose::Converge);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        if let Ok(mut run) = cut {
            let open = BTreeSet::new();
            let _ = runtime.block_on(async {
                while run.work(&open).await? {}
                anyhow::Ok(())
            });
            let _ = run.settle();
        }
        host.cut_power();
        let begun = site(&host).ledger.step("note").unwrap().is_some_and(|step| step.state == StepState::Begun);
        converge(&host, &changed());
        let is_unknown = site(&host).ledger.is_to_refresh("note").unwrap();
        assert!(begun || reloads(&host) >= 2, "died before call {call}: the change was made, and nobody was told");
        assert_eq!(is_unknown, begun, "died before call {call}: it is kept until it has succeeded, and no longer");
    }
}

#[test]
fn w02_subscribes_shows_in_a_look_what_would_run_again() {
    let host = MemoryHost::new();
    let look = |set: &Set| run_with(&host, set, &Ceiling::default(), Purpose::Check).0;
    converge(&host, &site_of("1", "1", &[0, 1]));
    let told = look(&site_of("2", "1", &[0, 1]));
    assert!(told.contains(&("note".to_owned(), Outcome::WouldChange)), "{told:?}");
    assert_eq!(reloads(&host), 1);
    assert!(look(&site_of("1", "1", &[0, 1])).contains(&("note".to_owned(), Outcome::Unchanged)));
}
