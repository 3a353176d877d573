//! Owners of the keys of the host label map, in each format and after a crash at any call.

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
fn plan_changes_only_owned_keys() {
    type Pairs<'a> = &'a [(&'a str, &'a str)];
    // Name, old text, owned keys, wanted labels, expected text, and the keys that the agent owns afterwards.
    let cases: [(&str, &str, Pairs<'_>, Pairs<'_>, &str, Pairs<'_>); 9] = [
        ("added at the end", "# mine\nzone=a\n", &[], &[("n/x", "1")], "# mine\nzone=a\nn/x=1\n", &[("n/x", "1")]),
        ("changed in its place", "n/x=1\nzone=a\n", &[("n/x", "1")], &[("n/x", "2")], "n/x=2\nzone=a\n", &[("n/x", "2")]),
        ("no longer wanted", "n/x=1\nzone=a\n", &[("n/x", "1")], &[], "zone=a\n", &[]),
        ("another author's value is unchanged", "n/x=7\n", &[], &[("n/x", "1")], "n/x=7\n", &[]),
        ("another author's equal value stays that author's", "n/x=1\n", &[], &[("n/x", "1")], "n/x=1\n", &[]),
        ("another author's value is not removed", "n/x=1\n", &[], &[], "n/x=1\n", &[]),
        ("edited by another author: belongs to that author", "n/x=7\n", &[("n/x", "1")], &[("n/x", "2")], "n/x=7\n", &[]),
        ("edited by another author, then not wanted: unchanged", "n/x=7\n", &[("n/x", "1")], &[], "n/x=7\n", &[]),
        ("removed by another author: added again", "", &[("n/x", "1")], &[("n/x", "1")], "n/x=1\n", &[("n/x", "1")]),
    ];
    for (name, old_text, owned, wanted_labels, expected, next_owned) in cases {
        let plan = plan(LabelMapFormat::Env, Some(old_text), &record(owned), &map(wanted_labels)).unwrap();
        assert_eq!(plan.text.as_deref().unwrap_or(old_text), expected, "{name}");
        assert_eq!(plan.owned, map(next_owned), "{name}");
    }
}

#[test]
fn plan_keeps_foreign_lines_in_each_format() {
    for (format, old_text, expected) in [
        (LabelMapFormat::Env, "# a\n\n b = 'c' \nodd line\n", "# a\n\n b = 'c' \nodd line\nn/x=1\n"),
        (
            LabelMapFormat::NodeFeatureDiscovery,
            "# +expiry-time=2030-01-01\nfeature\n",
            "# +expiry-time=2030-01-01\nfeature\nn/x=1\n",
        ),
        (
            LabelMapFormat::Json,
            "{\"z\": {\"deep\": 1}, \"a\": 2}",
            "{\n  \"z\": {\"deep\":1},\n  \"a\": 2,\n  \"n/x\": \"1\"\n}\n",
        ),
        (LabelMapFormat::Json, "", "{\n  \"n/x\": \"1\"\n}\n"),
    ] {
        let plan = plan(format, Some(old_text), &record(&[]), &map(&[("n/x", "1")])).unwrap();
        assert_eq!(plan.text.as_deref(), Some(expected), "{format:?}");
    }
    let error = plan(LabelMapFormat::Json, Some("[]"), &record(&[]), &map(&[])).unwrap_err().to_string();
    assert!(
        error.starts_with("the host label map is not a valid JSON file") && error.ends_with("correct or remove it"),
        "{error}"
    );
}

#[test]
fn json_map_uses_last_value_when_key_is_duplicated() {
    let map_text = r#"{"n/x": "1", "other": true, "n/x": "2"}"#;
    for (wanted_value, finding_count) in [("2", 0), ("1", 1)] {
        let plan = plan(LabelMapFormat::Json, Some(map_text), &record(&[]), &map(&[("n/x", wanted_value)])).unwrap();
        assert_eq!(plan.findings.len(), finding_count, "{wanted_value}");
    }
}

#[test]
fn feature_without_value_is_true() {
    let plan = plan(LabelMapFormat::NodeFeatureDiscovery, Some("n/x\n"), &record(&[]), &map(&[("n/x", "false")])).unwrap();
    assert_eq!(plan.findings, ["host label n/x: another author has \"true\" there, so \"false\" is not written"]);
}

const PATH: &str = "/etc/stemma/node-labels";

/// Writes the host label map at [`PATH`] in this mode. `previous_labels` are the labels of the previous desired state.
/// Returns the findings.
fn write_to_map(
    host: &MemoryHost,
    wanted_labels: &[(&str, &str)],
    previous_labels: Option<&[(&str, &str)]>,
    mode: Mode,
) -> Vec<String> {
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    write(host, &ledger, &HostLabelMapConfig::default(), &map(wanted_labels), previous_labels.map(map).as_ref(), mode)
        .unwrap()
        .into_findings()
}

/// The agent has lost its record. The map and the previous labels have the same value of `n/old`, so the agent claims
/// and removes this key. The values of `n/theirs` differ, so this key counts as another author's, and stays.
#[test]
fn host_map_claims_only_previous_labels_when_record_is_lost() {
    let host = MemoryHost::new();
    host.put(PATH, "n/old=1\nn/theirs=2\nzone=a\n");
    let previous_labels: &[(&str, &str)] = &[("n/old", "1"), ("n/theirs", "9")];
    write_to_map(&host, &[], Some(previous_labels), Mode::Apply);
    assert_eq!(host.text(PATH).unwrap(), "n/theirs=2\nzone=a\n");
}

/// The map has two lines for `zone`, of which the last is valid, and a key that is not a label. The agent writes `n/x`,
/// but not `n/theirs`, which another author owns. If any user can write the map, no labels are returned.
#[test]
fn foreign_labels_contains_only_valid_labels_of_others() {
    let host = MemoryHost::new();
    host.put(PATH, "zone=a\nzone=b\n# c\nbad//key=1\nn/theirs=7\n");
    write_to_map(&host, &[("n/x", "1"), ("n/theirs", "1")], None, Mode::Apply);
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    let foreign = || foreign_labels(&host, &ledger, &HostLabelMapConfig::default()).unwrap();
    let labels: Vec<_> = foreign().labels.into_iter().map(|(key, label)| (key, label.value, label.source)).collect();
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned(), "node-labels".to_owned());
    assert_eq!(labels, [label("n/theirs", "7"), label("zone", "b")]);
    host.chmod(PATH, 0o666);
    assert_eq!(foreign().labels, BTreeMap::new(), "any user could have written the map");
    let finding = "host label map /etc/stemma/node-labels can be written by others, so labels of others in it are not reported: chmod go-w, \
                chown root";
    assert_eq!(foreign().finding.as_deref(), Some(finding));
}

#[test]
fn x01_foreign_labels_counts_rest_when_over_limit() {
    let host = MemoryHost::new();
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    let read_foreign = |count: usize| {
        let lines: String = (0..count).map(|index| format!("k{index:03}=1\n")).collect();
        host.put(PATH, &lines);
        let ForeignLabels { labels, finding } = foreign_labels(&host, &ledger, &HostLabelMapConfig::default()).unwrap();
        (labels.len(), labels.into_keys().next_back(), finding)
    };
    let last = Some("k255".to_owned());
    assert_eq!(read_foreign(256), (256, last.clone(), None));
    let expected =
        "host label map /etc/stemma/node-labels: 3 labels of others are not reported: at most 256 are, the first by key";
    assert_eq!(read_foreign(259), (256, last, Some(expected.to_owned())));
}

#[test]
fn write_changes_map_only_in_mode_apply() {
    let host = MemoryHost::new();
    for (mode, findings) in
        [(Mode::Observe, vec![]), (Mode::Noop, vec!["noop: host label map /etc/stemma/node-labels would be changed".to_owned()])]
    {
        assert_eq!(write_to_map(&host, &[("n/x", "1")], None, mode), findings);
        assert_eq!(host.text(PATH), None);
    }
    write_to_map(&host, &[("n/x", "1")], None, Mode::Apply);
    assert_eq!(host.text(PATH).as_deref(), Some("n/x=1\n"));
}

/// The agent is killed, or the power is cut, before each call that changes the host. Afterwards the agent can still
/// change and remove each of its keys.
#[test]
fn write_leaves_no_unowned_key_when_killed_once() {
    let prepare = |host: &MemoryHost| {
        host.put(PATH, "zone=a\n");
        write_to_map(host, &[("n/x", "1"), ("n/y", "1")], None, Mode::Apply);
        host.restart();
    };
    let uninterrupted_host = MemoryHost::new();
    prepare(&uninterrupted_host);
    write_to_map(&uninterrupted_host, &[("n/x", "2"), ("n/z", "1")], None, Mode::Apply);
    for call in 0..uninterrupted_host.calls() {
        for is_power_cut in [false, true] {
            let host = MemoryHost::new();
            prepare(&host);
            host.crash_before(call);
            let ledger = Ledger::open(Rc::new(host.clone()));
            let config = HostLabelMapConfig::default();
            let wanted_labels = map(&[("n/x", "2"), ("n/z", "1")]);
            let _ = ledger.and_then(|ledger| write(&host, &ledger, &config, &wanted_labels, None, Mode::Apply));
            if is_power_cut {
                host.cut_power();
            } else {
                host.restart();
            }
            write_to_map(&host, &[("n/x", "2"), ("n/z", "1")], None, Mode::Apply);
            assert_eq!(host.text(PATH).unwrap(), "zone=a\nn/x=2\nn/z=1\n", "call {call}, power {is_power_cut}");
            write_to_map(&host, &[], None, Mode::Apply);
            assert_eq!(host.text(PATH).unwrap(), "zone=a\n", "call {call}, power {is_power_cut}");
        }
    }
}

/// Two writes are interrupted, each before one of its first 30 calls. The next write then changes or removes each key
/// of the agent.
#[test]
fn write_leaves_no_unowned_key_when_killed_twice() {
    for (first, second, is_power_cut) in (0..30).flat_map(|a| (0..30).flat_map(move |b| [(a, b, false), (a, b, true)])) {
        let host = MemoryHost::new();
        host.put(PATH, "zone=a\n");
        write_to_map(&host, &[("n/x", "1")], None, Mode::Apply);
        host.restart();
        for (call, wanted_labels) in [(first, &[("n/x", "2"), ("n/y", "1")][..]), (second, &[("n/x", "3")])] {
            host.crash_before(call);
            let ledger = Ledger::open(Rc::new(host.clone()));
            let _ = ledger
                .and_then(|ledger| write(&host, &ledger, &HostLabelMapConfig::default(), &map(wanted_labels), None, Mode::Apply));
            // The power is cut at the second crash, and also at the first one if both calls have the same number.
            if is_power_cut && call == second { host.cut_power() } else { host.restart() }
        }
        write_to_map(&host, &[("n/x", "3")], None, Mode::Apply);
        assert_eq!(
            host.text(PATH).unwrap(),
            "zone=a\nn/x=3\n",
            "crashed before call {first}, then {second}, power {is_power_cut}"
        );
    }
}

/// After a first write, the configuration names another file. The agent removes its keys from the old file, also if the
/// agent crashes during the next write.
#[test]
fn write_moves_owned_keys_when_path_changes() {
    let next_path = "/etc/other-labels";
    for (format, old_text, expected) in [
        (LabelMapFormat::Env, "zone=a\nn/theirs=1\n", "zone=a\nn/theirs=1\n"),
        (LabelMapFormat::NodeFeatureDiscovery, "feature\n", "feature\n"),
        (LabelMapFormat::Json, "{\"zone\": \"a\"}", "{\n  \"zone\": \"a\"\n}\n"),
    ] {
        let wanted_labels = map(&[("n/x", "1"), ("n/theirs", "2")]);
        for call in 0..20 {
            let host = MemoryHost::new();
            host.put(PATH, old_text);
            let write_at = |path: &str, format, mode| {
                let ledger = Ledger::open(Rc::new(host.clone()))?;
                let config = HostLabelMapConfig { path: path.into(), format };
                write(&host, &ledger, &config, &wanted_labels, None, mode).map(OutputsResult::into_findings)
            };
            write_at(PATH, format, Mode::Apply).unwrap();
            write_at(next_path, LabelMapFormat::Env, Mode::Noop).unwrap();
            assert!(host.text(PATH).unwrap().contains("n/x"), "only mode apply changes the old map");
            host.crash_before(call);
            let _ = write_at(next_path, LabelMapFormat::Env, Mode::Apply);
            host.restart();
            assert_eq!(write_at(next_path, LabelMapFormat::Env, Mode::Apply).unwrap(), [""; 0], "{format:?}");
            assert_eq!(host.text(PATH).unwrap(), expected, "{format:?}, crashed before call {call}");
            assert_eq!(host.text(next_path).unwrap(), "n/theirs=2\nn/x=1\n");
        }
    }
}

#[test]
fn x05_write_sweeps_leftovers_next_to_map_only_in_mode_apply() {
    for (mode, leftover_remains) in [(Mode::Noop, true), (Mode::Apply, false)] {
        let host = MemoryHost::new();
        let leftover = "/etc/stemma/.stemma-0123456789abcdef";
        host.put(leftover, "half");
        let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
        write(&host, &ledger, &HostLabelMapConfig::default(), &map(&[("n/x", "1")]), None, mode).unwrap();
        assert_eq!(host.text(leftover).is_some(), leftover_remains, "{mode:?}");
    }
}
