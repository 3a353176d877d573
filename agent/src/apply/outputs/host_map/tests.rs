//! Whose a key of the host label map is, in each format and after a crash anywhere.

use std::rc::Rc;

use super::*;
use crate::host::memory::MemoryHost;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn record(pairs: &[(&str, &str)]) -> HostMapRecord {
    HostMapRecord { path: String::new(), owned: map(pairs), writing: BTreeMap::new() }
}

#[test]
fn only_the_agents_own_keys_change() {
    type Pairs<'a> = &'a [(&'a str, &'a str)];
    let cases: [(&str, &str, Pairs<'_>, Pairs<'_>, &str, Pairs<'_>); 9] = [
        ("added at the end", "# mine\nzone=a\n", &[], &[("n/x", "1")], "# mine\nzone=a\nn/x=1\n", &[("n/x", "1")]),
        (
            "changed in its place",
            "n/x=1\nzone=a\n",
            &[("n/x", "1")],
            &[("n/x", "2")],
            "n/x=2\nzone=a\n",
            &[("n/x", "2")],
        ),
        ("dropped", "n/x=1\nzone=a\n", &[("n/x", "1")], &[], "zone=a\n", &[]),
        ("another's value stays", "n/x=7\n", &[], &[("n/x", "1")], "n/x=7\n", &[]),
        ("another's equal value stays its own", "n/x=1\n", &[], &[("n/x", "1")], "n/x=1\n", &[]),
        ("and is not removed", "n/x=1\n", &[], &[], "n/x=1\n", &[]),
        ("edited by another: theirs from then on", "n/x=7\n", &[("n/x", "1")], &[("n/x", "2")], "n/x=7\n", &[]),
        ("edited by another, then dropped: stays", "n/x=7\n", &[("n/x", "1")], &[], "n/x=7\n", &[]),
        ("taken out by another: put back", "", &[("n/x", "1")], &[("n/x", "1")], "n/x=1\n", &[("n/x", "1")]),
    ];
    for (name, present, owned, wanted, text, next) in cases {
        let plan = plan(Format::Env, Some(present), &record(owned), &map(wanted)).unwrap();
        assert_eq!(plan.text.as_deref().unwrap_or(present), text, "{name}");
        assert_eq!(plan.owned, map(next), "{name}");
    }
}

#[test]
fn each_format_keeps_what_others_wrote() {
    for (format, present, expected) in [
        (Format::Env, "# a\n\n b = 'c' \nodd line\n", "# a\n\n b = 'c' \nodd line\nn/x=1\n"),
        (
            Format::NodeFeatureDiscovery,
            "# +expiry-time=2030-01-01\nfeature\n",
            "# +expiry-time=2030-01-01\nfeature\nn/x=1\n",
        ),
        (
            Format::Json,
            "{\"z\": {\"deep\": 1}, \"a\": 2}",
            "{\n  \"z\": {\"deep\":1},\n  \"a\": 2,\n  \"n/x\": \"1\"\n}\n",
        ),
        (Format::Json, "", "{\n  \"n/x\": \"1\"\n}\n"),
    ] {
        let plan = plan(format, Some(present), &record(&[]), &map(&[("n/x", "1")])).unwrap();
        assert_eq!(plan.text.as_deref(), Some(expected), "{format:?}");
    }
    let error = plan(Format::Json, Some("[]"), &record(&[]), &map(&[])).unwrap_err().to_string();
    assert!(error.starts_with("the host label map is no JSON file") && error.ends_with("mend or remove it"), "{error}");
}

#[test]
fn of_a_key_that_stands_twice_the_last_value_counts_as_for_every_reader_of_json() {
    let twice = r#"{"n/x": "1", "other": true, "n/x": "2"}"#;
    for (wanted, findings) in [("2", 0), ("1", 1)] {
        let plan = plan(Format::Json, Some(twice), &record(&[]), &map(&[("n/x", wanted)])).unwrap();
        assert_eq!(plan.findings.len(), findings, "{wanted}");
    }
}

#[test]
fn a_feature_without_a_value_is_true() {
    let plan = plan(Format::NodeFeatureDiscovery, Some("n/x\n"), &record(&[]), &map(&[("n/x", "false")])).unwrap();
    assert_eq!(plan.findings, ["host label n/x: another author has \"true\" there, so \"false\" is not written"]);
}

const PATH: &str = "/etc/stemma/node-labels";

fn written(host: &MemoryHost, wanted: &[(&str, &str)], before: Option<&[(&str, &str)]>, mode: Mode) -> Vec<String> {
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    write(host, &ledger, &HostLabelMap::default(), &map(wanted), before.map(map).as_ref(), mode)
        .unwrap()
        .into_findings()
}

#[test]
fn without_its_record_it_claims_what_it_was_known_to_have_put_there_and_deletes_none_of_the_rest() {
    let host = MemoryHost::new();
    host.put(PATH, "n/old=1\nn/theirs=2\nzone=a\n");
    let before: &[(&str, &str)] = &[("n/old", "1"), ("n/theirs", "9")];
    written(&host, &[], Some(before), Mode::Apply);
    assert_eq!(host.text(PATH).unwrap(), "n/theirs=2\nzone=a\n");
}

#[test]
fn what_others_have_there_is_reported_and_what_is_the_agents_own_is_not() {
    let host = MemoryHost::new();
    host.put(PATH, "zone=a\nzone=b\n# c\nbad//key=1\nn/theirs=7\n");
    written(&host, &[("n/x", "1"), ("n/theirs", "1")], None, Mode::Apply);
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    let others = || others(&host, &ledger, &HostLabelMap::default()).unwrap();
    let said: Vec<_> = others().labels.into_iter().map(|(key, label)| (key, label.value, label.source)).collect();
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned(), "node-labels".to_owned());
    assert_eq!(said, [label("n/theirs", "7"), label("zone", "b")]);
    host.chmod(PATH, 0o666);
    assert_eq!(others().labels, BTreeMap::new(), "anybody could have written it");
    let says = "host label map /etc/stemma/node-labels can be written by others, so nothing that they have there is reported: chmod go-w, \
                chown root";
    assert_eq!(others().finding.as_deref(), Some(says));
}

#[test]
fn x01_of_more_labels_of_others_than_are_reported_the_number_is_said() {
    let host = MemoryHost::new();
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    let others_of = |count: usize| {
        let lines: String = (0..count).map(|at| format!("k{at:03}=1\n")).collect();
        host.put(PATH, &lines);
        let Others { labels, finding } = others(&host, &ledger, &HostLabelMap::default()).unwrap();
        (labels.len(), labels.into_keys().next_back(), finding)
    };
    let last = Some("k255".to_owned());
    assert_eq!(others_of(256), (256, last.clone(), None));
    let says = "host label map /etc/stemma/node-labels: 3 labels of others are not reported: at most 256 are, the first by key";
    assert_eq!(others_of(259), (256, last, Some(says.to_owned())));
}

#[test]
fn the_map_is_written_in_mode_apply_alone() {
    let host = MemoryHost::new();
    for (mode, findings) in [
        (Mode::Observe, vec![]),
        (Mode::Noop, vec!["noop: host label map /etc/stemma/node-labels would be changed".to_owned()]),
    ] {
        assert_eq!(written(&host, &[("n/x", "1")], None, mode), findings);
        assert_eq!(host.text(PATH), None);
    }
    written(&host, &[("n/x", "1")], None, Mode::Apply);
    assert_eq!(host.text(PATH).as_deref(), Some("n/x=1\n"));
}

#[test]
fn a_crash_anywhere_leaves_no_key_without_an_owner() {
    let before = |host: &MemoryHost| {
        host.put(PATH, "zone=a\n");
        written(host, &[("n/x", "1"), ("n/y", "1")], None, Mode::Apply);
        host.revive();
    };
    let whole = MemoryHost::new();
    before(&whole);
    written(&whole, &[("n/x", "2"), ("n/z", "1")], None, Mode::Apply);
    for call in 0..whole.calls() {
        for power in [false, true] {
            let host = MemoryHost::new();
            before(&host);
            host.die_before(call);
            let ledger = Ledger::open(Rc::new(host.clone()));
            let config = HostLabelMap::default();
            let wanted = map(&[("n/x", "2"), ("n/z", "1")]);
            let _ = ledger.and_then(|ledger| write(&host, &ledger, &config, &wanted, None, Mode::Apply));
            if power {
                host.cut_power();
            } else {
                host.revive();
            }
            written(&host, &[("n/x", "2"), ("n/z", "1")], None, Mode::Apply);
            assert_eq!(host.text(PATH).unwrap(), "zone=a\nn/x=2\nn/z=1\n", "call {call}, power {power}");
            written(&host, &[], None, Mode::Apply);
            assert_eq!(host.text(PATH).unwrap(), "zone=a\n", "call {call}, power {power}");
        }
    }
}

#[test]
fn two_crashes_anywhere_leave_no_key_without_an_owner() {
    for (first, second, power) in (0..30).flat_map(|a| (0..30).flat_map(move |b| [(a, b, false), (a, b, true)])) {
        let host = MemoryHost::new();
        host.put(PATH, "zone=a\n");
        written(&host, &[("n/x", "1")], None, Mode::Apply);
        host.revive();
        for (call, wanted) in [(first, &[("n/x", "2"), ("n/y", "1")][..]), (second, &[("n/x", "3")])] {
            host.die_before(call);
            let ledger = Ledger::open(Rc::new(host.clone()));
            let _ = ledger
                .and_then(|ledger| write(&host, &ledger, &HostLabelMap::default(), &map(wanted), None, Mode::Apply));
            // The power goes with the second.
            if power && call == second { host.cut_power() } else { host.revive() }
        }
        written(&host, &[("n/x", "3")], None, Mode::Apply);
        assert_eq!(host.text(PATH).unwrap(), "zone=a\nn/x=3\n", "died before {first}, then {second}, power {power}");
    }
}

#[test]
fn another_path_takes_the_agents_keys_along_and_leaves_the_rest() {
    let next = "/etc/other-labels";
    for (format, before, after) in [
        (Format::Env, "zone=a\nn/theirs=1\n", "zone=a\nn/theirs=1\n"),
        (Format::NodeFeatureDiscovery, "feature\n", "feature\n"),
        (Format::Json, "{\"zone\": \"a\"}", "{\n  \"zone\": \"a\"\n}\n"),
    ] {
        let wanted = map(&[("n/x", "1"), ("n/theirs", "2")]);
        for call in 0..20 {
            let host = MemoryHost::new();
            host.put(PATH, before);
            let at = |path: &str, format, mode| {
                let ledger = Ledger::open(Rc::new(host.clone()))?;
                let config = HostLabelMap { path: path.into(), format };
                write(&host, &ledger, &config, &wanted, None, mode).map(Written::into_findings)
            };
            at(PATH, format, Mode::Apply).unwrap();
            at(next, Format::Env, Mode::Noop).unwrap();
            assert!(host.text(PATH).unwrap().contains("n/x"), "only mode apply changes it");
            host.die_before(call);
            let _ = at(next, Format::Env, Mode::Apply);
            host.revive();
            assert_eq!(at(next, Format::Env, Mode::Apply).unwrap(), [""; 0], "{format:?}");
            assert_eq!(host.text(PATH).unwrap(), after, "{format:?}, died before {call}");
            assert_eq!(host.text(next).unwrap(), "n/theirs=2\nn/x=1\n");
        }
    }
}

#[test]
fn x05_what_was_left_unfinished_beside_the_map_goes_where_it_may_be_written() {
    for (mode, is_left) in [(Mode::Noop, true), (Mode::Apply, false)] {
        let host = MemoryHost::new();
        let left = "/etc/stemma/.stemma-0123456789abcdef";
        host.put(left, "half");
        let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
        write(&host, &ledger, &HostLabelMap::default(), &map(&[("n/x", "1")]), None, mode).unwrap();
        assert_eq!(host.text(left).is_some(), is_left, "{mode:?}");
    }
}
