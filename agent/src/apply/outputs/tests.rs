//! The files of `/run/stemma`: replaced whole, and only when they differ.

use std::rc::Rc;

use stemma_wire::message::desired::KnownLabel;

use super::*;
use crate::apply::testing::Set;
use crate::host::memory::MemoryHost;

fn known(labels: &[(&str, &str)]) -> Known {
    let label = |value: &str| KnownLabel { value: value.into(), to_host: false, origin: String::new() };
    Known {
        labels: labels.iter().map(|(key, value)| ((*key).to_owned(), label(value))).collect(),
        annotations: [("a".to_owned(), "b\n".to_owned())].into(),
        traits: vec!["HW_B".into(), "HW_A".into()],
        ..Known::default()
    }
}

#[test]
fn what_services_read_is_there() {
    let host = MemoryHost::new();
    let task_set = TaskSet { tags: vec!["mysql:1".into(), "nginx".into()], ..TaskSet::default() };
    assert_eq!(write_run(&host, &known(&[("tier", "gold"), ("ntp", "n")]), &task_set).unwrap(), Vec::<String>::new());
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
    write_run(&host, &known(&[]), &task_set).unwrap();
    assert_eq!(host.list("/run/stemma/tags"), ["nginx"]);
    host.revive();
    write_run(&host, &known(&[]), &task_set).unwrap();
    assert_eq!(host.calls(), 0, "what is equal is not written again");
}

#[test]
fn what_a_crash_left_half_written_is_swept() {
    let host = MemoryHost::new();
    for left in ["/run/stemma/.stemma-0000000100000002", "/run/stemma/tags/.stemma-0000000100000003"] {
        host.put(left, "half");
    }
    host.put("/run/stemma/.another", "not the agent's");
    write_run(&host, &known(&[]), &TaskSet::default()).unwrap();
    let names = ["annotations.json", "labels.env", "labels.json", "tags", "traits"];
    assert_eq!(host.list("/run/stemma"), [&[".another"], &names[..]].concat());
    assert_eq!(host.list("/run/stemma/tags"), Vec::<String>::new());
}

#[test]
fn what_was_put_in_the_place_of_an_output_goes() {
    let host = MemoryHost::new();
    host.put_link("/run/stemma/labels.json");
    host.put_special("/run/stemma/traits");
    host.put("/run/stemma/labels.env", "edited");
    host.put_link("/run/stemma/tags/odd");
    write_run(&host, &known(&[]), &TaskSet::default()).unwrap();
    assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{}\n"));
    assert_eq!(host.text("/run/stemma/traits").as_deref(), Some("HW_A\nHW_B\n"));
    assert_eq!(host.text("/run/stemma/labels.env").as_deref(), Some(""));
    assert_eq!(host.list("/run/stemma/tags"), Vec::<String>::new());
}

#[test]
fn directories_that_were_left_closed_are_opened_to_readers() {
    let host = MemoryHost::new();
    write_run(&host, &known(&[]), &TaskSet::default()).unwrap();
    for dir in ["/run/stemma", "/run/stemma/tags"] {
        let path = HostPath::own(dir);
        let mode = || {
            let parent = path.parent().unwrap();
            host.dir(&parent).unwrap().unwrap().stat(path.name()).unwrap().unwrap().mode
        };
        host.chmod(dir, 0o700);
        write_run(&host, &known(&[]), &TaskSet::default()).unwrap();
        assert_eq!(mode(), 0o755, "{dir}");
    }
}

/// All of it was a finding, and its host was converged.
#[test]
fn y06_what_is_to_be_there_and_cannot_be_written_is_told_apart() {
    let in_the_way = "host label map: /etc/stemma/node-labels is a device, socket or FIFO, where a regular file was expected: move it away, or \
                      name another path";
    for (flows, mode, unwritten) in [
        (true, Mode::Apply, vec![in_the_way]),
        // Nothing is to be there.
        (false, Mode::Apply, vec![]),
        (true, Mode::Noop, vec![]),
        (true, Mode::Observe, vec![]),
    ] {
        let host = MemoryHost::new();
        host.put_special("/etc/stemma/node-labels");
        let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
        let mut desired = Set::default().label("tier", "gold").mode(mode).desired();
        desired.known.labels.values_mut().for_each(|label| label.to_host = flows);
        let written = write(&host, &ledger, &Config::default(), &desired, None);
        assert_eq!(written.unwritten, unwritten, "{flows} {mode:?}");
        assert_eq!(written.into_findings(), [in_the_way], "it is said in any case: {flows} {mode:?}");
        assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"tier\":\"gold\"}\n"));
    }
    // What is to be taken away from there is there still.
    let host = MemoryHost::new();
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    let mut desired = Set::default().label("tier", "gold").desired();
    desired.known.labels.values_mut().for_each(|label| label.to_host = true);
    assert_eq!(write(&host, &ledger, &Config::default(), &desired, None), Written::default());
    host.delete("/etc/stemma/node-labels");
    host.put_special("/etc/stemma/node-labels");
    let written = write(&host, &ledger, &Config::default(), &Set::default().desired(), None);
    assert_eq!(written.unwritten, [in_the_way]);
}
