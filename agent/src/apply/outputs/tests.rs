//! The files of `/run/stemma`: replaced as a whole, and only if they differ.

use std::rc::Rc;

use stemma_wire::message::desired::KnownLabel;

use super::*;
use crate::apply::testing::TestTaskSet;
use crate::host::memory::MemoryHost;

/// Returns the known part of a desired state with these labels, one annotation and two traits.
fn known_part(labels: &[(&str, &str)]) -> Known {
    let label = |value: &str| KnownLabel { value: value.into(), to_host: false, origin: String::new() };
    Known {
        labels: labels.iter().map(|(key, value)| ((*key).to_owned(), label(value))).collect(),
        annotations: [("a".to_owned(), "b\n".to_owned())].into(),
        traits: vec!["HW_B".into(), "HW_A".into()],
        ..Known::default()
    }
}

#[test]
fn write_creates_files_for_services() {
    let host = MemoryHost::new();
    let task_set = TaskSet { tags: vec!["mysql:1".into(), "nginx".into()], ..TaskSet::default() };
    assert_eq!(write_run_dir(&host, &known_part(&[("tier", "gold"), ("ntp", "n")]), &task_set).unwrap(), Vec::<String>::new());
    for (file, text) in [
        ("labels.json", "{\"ntp\":\"n\",\"tier\":\"gold\"}\n"),
        ("annotations.json", "{\"a\":\"b\\n\"}\n"),
        ("traits", "HW_A\nHW_B\n"),
        ("labels.env", "STEMMA_LABEL_NTP=\"n\"\nSTEMMA_LABEL_TIER=\"gold\"\n"),
        ("tags/mysql", "1\n"),
        ("tags/nginx", ""),
    ] {
        assert_eq!(host.text(&format!("/run/stemma/{file}")).as_deref(), Some(text), "{file}");
    }
    let task_set = TaskSet { tags: vec!["nginx".into()], ..TaskSet::default() };
    write_run_dir(&host, &known_part(&[]), &task_set).unwrap();
    assert_eq!(host.list("/run/stemma/tags"), ["nginx"]);
    host.restart();
    write_run_dir(&host, &known_part(&[]), &task_set).unwrap();
    assert_eq!(host.calls(), 0, "equal files are not written again");
}

#[test]
fn write_sweeps_leftovers_when_killed_before() {
    let host = MemoryHost::new();
    for leftover in ["/run/stemma/.stemma-0000000100000002", "/run/stemma/tags/.stemma-0000000100000003"] {
        host.put(leftover, "half");
    }
    host.put("/run/stemma/.another", "not the agent's");
    write_run_dir(&host, &known_part(&[]), &TaskSet::default()).unwrap();
    let names = ["annotations.json", "labels.env", "labels.json", "tags", "traits"];
    assert_eq!(host.list("/run/stemma"), [&[".another"], &names[..]].concat());
    assert_eq!(host.list("/run/stemma/tags"), Vec::<String>::new());
}

#[test]
fn write_replaces_foreign_object_at_output_path() {
    let host = MemoryHost::new();
    host.put_link("/run/stemma/labels.json");
    host.put_special("/run/stemma/traits");
    host.put("/run/stemma/labels.env", "edited");
    host.put_link("/run/stemma/tags/odd");
    write_run_dir(&host, &known_part(&[]), &TaskSet::default()).unwrap();
    assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{}\n"));
    assert_eq!(host.text("/run/stemma/traits").as_deref(), Some("HW_A\nHW_B\n"));
    assert_eq!(host.text("/run/stemma/labels.env").as_deref(), Some(""));
    assert_eq!(host.list("/run/stemma/tags"), Vec::<String>::new());
}

#[test]
fn write_corrects_mode_of_directories_when_unreadable() {
    let host = MemoryHost::new();
    write_run_dir(&host, &known_part(&[]), &TaskSet::default()).unwrap();
    for dir in ["/run/stemma", "/run/stemma/tags"] {
        let path = HostPath::from_static(dir);
        let mode = || {
            let parent = path.parent().unwrap();
            host.dir(&parent).unwrap().unwrap().stat(path.name()).unwrap().unwrap().mode
        };
        host.chmod(dir, 0o700);
        write_run_dir(&host, &known_part(&[]), &TaskSet::default()).unwrap();
        assert_eq!(mode(), 0o755, "{dir}");
    }
}

/// Regression test: a file that the agent could not write was only a finding, and the host counted as converged. A
/// failed write of the host label map counts as unwritten only in mode `apply`, and only if a label belongs in the map
/// or must be removed from it.
#[test]
fn y06_write_separates_failed_outputs_from_findings() {
    let expected = "host label map: /etc/stemma/node-labels is a device, socket or FIFO, where a regular file was expected: move it away, or \
                      name another path";
    for (has_map_label, mode, unwritten) in [
        (true, Mode::Apply, vec![expected]),
        // No label belongs in the map.
        (false, Mode::Apply, vec![]),
        (true, Mode::Noop, vec![]),
        (true, Mode::Observe, vec![]),
    ] {
        let host = MemoryHost::new();
        host.put_special("/etc/stemma/node-labels");
        let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
        let mut desired = TestTaskSet::default().label("tier", "gold").mode(mode).desired();
        desired.known.labels.values_mut().for_each(|label| label.to_host = has_map_label);
        let result = write(&host, &ledger, &AgentConfig::default(), &desired, None);
        assert_eq!(result.unwritten, unwritten, "{has_map_label} {mode:?}");
        assert_eq!(result.into_findings(), [expected], "the failure is a finding in each mode: {has_map_label} {mode:?}");
        assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"tier\":\"gold\"}\n"));
    }
    // A label that must be removed from the map is still there.
    let host = MemoryHost::new();
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    let mut desired = TestTaskSet::default().label("tier", "gold").desired();
    desired.known.labels.values_mut().for_each(|label| label.to_host = true);
    assert_eq!(write(&host, &ledger, &AgentConfig::default(), &desired, None), OutputsResult::default());
    host.delete("/etc/stemma/node-labels");
    host.put_special("/etc/stemma/node-labels");
    let result = write(&host, &ledger, &AgentConfig::default(), &TestTaskSet::default().desired(), None);
    assert_eq!(result.unwritten, [expected]);
}
