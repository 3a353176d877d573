//! A store that was restored from an older copy. Its hosts have revisions that the store has not reached.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::path::Path;

use hyper::Method;
use serde_json::json;
use stemma_controller::records::enrolled::agent_key;
use stemma_controller::records::{codec, key};
use stemma_controller::run::start;
use stemma_controller::store::Transaction;
use stemma_core::epoch::EpochHistory;
use stemma_wire::clock::{Clock as _, SystemClock};
use stemma_wire::message::checkin::HeldDesired;
use stemma_wire::message::signed::SignedDesired;
use stemma_wire::message::{Epoch, PartDigest, Revision, WireVersion};
use stemma_wire::sign::Verifier;
use uuid::Uuid;

use crate::fleet::{Fleet, Host, new_config, reconciled_options, wait_until};

/// Returns the state that a host reports as its own after it received this desired state.
fn held_desired(desired: &SignedDesired) -> HeldDesired {
    HeldDesired {
        epoch: desired.epoch,
        revision: desired.revision,
        known: desired.known_digest,
        task_set: desired.task_set_digest,
    }
}

/// Checks in with this state as the host's own. Returns the desired state in the response, if any.
async fn next_desired(host: &mut Host, state_of_host: HeldDesired) -> Option<SignedDesired> {
    host.held_desired = Some(state_of_host);
    host.next_update(0).await.desired
}

#[tokio::test]
async fn x02_hosts_ahead_are_reported_and_follow_in_new_epoch() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    let mut host = fleet.join_group("c/g", "web-1").await;
    let first_desired = host.first_state().await;
    let fleet_state = async || fleet.read("/v1/fleet").await;
    assert_eq!(fleet_state().await["ahead"], json!({"nodes": 0, "highest": null, "unknown_epochs": 0}));
    let (status, body) = fleet.request(Method::POST, "/v1/fleet/resume", &json!({})).await;
    assert_eq!((status, &body["resumed"]), (200, &json!(false)), "no host is ahead");

    let ahead = HeldDesired { revision: Revision(100_000), ..held_desired(&first_desired) };
    let with_other_parts = HeldDesired { known: PartDigest([7; 32]), ..ahead };
    for state_of_host in [ahead, with_other_parts] {
        assert_eq!(next_desired(&mut host, state_of_host).await, None, "the host would refuse a lower revision");
    }
    let state = fleet_state().await;
    assert_eq!(state["ahead"], json!({"nodes": 1, "highest": 100_000, "unknown_epochs": 0}));
    let node = fleet.read("/v1/nodes/web-1").await;
    let reason = "its host has a revision of another copy of the store, so nothing is sent to it";
    assert_eq!((&node["state"], &node["state_reason"]), (&json!("failed"), &json!(reason)));
    let finding = node["findings"].as_array().unwrap().iter().find(|finding| finding["code"] == "host.ahead").unwrap();
    let message = finding["message"].as_str().unwrap();
    let epoch_before = Uuid::from_bytes(first_desired.epoch.0);
    let sentence = format!("its host holds revision 100000 of epoch {epoch_before}, and the store is only at revision ");
    assert!(message.starts_with(&sentence), "{message}");
    assert!(message.ends_with("until an admin runs: stemma-controller resume-fleet"), "{message}");
    let read_untold_reason = async || fleet.read("/v1/nodes/web-1/explain?label=tier").await["untold"].clone();
    assert!(
        read_untold_reason().await.as_str().is_some_and(|text| text.starts_with(&sentence)),
        "{}",
        read_untold_reason().await
    );
    let metrics = fleet.components().metrics.text_for_cluster(None);
    assert!(metrics.contains("\nstemma_nodes_ahead 1\n"), "{metrics}");

    for (body, text) in [
        (json!({"reason": " "}), "the reason is empty: leave it out, or give the reason; nothing was changed"),
        (json!({"reason": "x".repeat(256)}), "the reason has 256 characters, and may have 255; nothing was changed"),
    ] {
        let (status, refusal) = fleet.request(Method::POST, "/v1/fleet/resume", &body).await;
        assert_eq!((status, &refusal["error"]["message"]), (400, &json!(text)));
    }
    let (status, body) = fleet.request(Method::POST, "/v1/fleet/resume", &json!({"reason": "a disk was lost"})).await;
    assert_eq!((status, &body["resumed"]), (200, &json!(true)), "{body}");
    let desired = loop {
        // Repeats until the reconciler has signed in the new epoch.
        if let Some(desired) = next_desired(&mut host, ahead).await {
            break desired;
        }
    };
    let change = desired.epoch_change.clone().expect("a change to the new epoch");
    assert_eq!((change.from, change.to, change.reason.as_str()), (first_desired.epoch, desired.epoch, "a disk was lost"));
    let verifier = Verifier::new(fleet.components().fleet.clone(), &[fleet.components().authority.root().clone()]).unwrap();
    let now_s = SystemClock.unix_seconds();
    verifier.check_epoch_change(&change, now_s).unwrap();
    verifier.check_desired(host.node, WireVersion::FIRST, &desired, now_s).unwrap();
    assert!(desired.revision >= change.at);

    assert_eq!(next_desired(&mut host, held_desired(&desired)).await, None, "the host has all of the state");
    let state = fleet_state().await;
    assert_eq!((&state["ahead"]["nodes"], &state["reason"]), (&json!(0), &json!("a disk was lost")));
    let node = fleet.read("/v1/nodes/web-1").await;
    assert!(!node["findings"].to_string().contains("host.ahead"), "{}", node["findings"]);
    let audit = fleet.read("/v1/audit?limit=1000").await;
    let entries = audit["audit"].as_array().unwrap();
    let resume_entry = entries.iter().find(|entry| entry["reason"] == "a disk was lost").unwrap();
    let (old_epoch, new_epoch) = (epoch_before, Uuid::from_bytes(desired.epoch.0));
    let action = json!({"kind": "fleet.resumed", "epoch_before": old_epoch, "epoch_after": new_epoch});
    assert_eq!((&resume_entry["action"], &resume_entry["objects"]), (&action, &json!([])), "{resume_entry}");
    assert_eq!(read_untold_reason().await, json!(null), "the host has confirmed its state");
}

/// The report that a backup was made is stored and audited, and the age of the backup is shown. A dry run stores no
/// report. A report with a revision that the store does not have is refused.
#[tokio::test]
async fn x02_metrics_show_age_of_last_backup() {
    let fleet = Fleet::start().await;
    let age_s = || {
        let metrics = fleet.components().metrics.text_for_cluster(None);
        let line = metrics.lines().find_map(|line| line.strip_prefix("stemma_backup_age_seconds "));
        line.map(|age_s| age_s.parse::<u64>().unwrap())
    };
    assert_eq!((age_s(), &fleet.read("/v1/fleet").await["backup"]), (None, &json!(null)), "no backup was made yet");
    let head = fleet.last_revision().await;
    let backup_body = |revision: u64| json!({"revision": revision, "bytes": 188_416, "encrypted": true});
    let (status, refusal) = fleet.request(Method::POST, "/v1/backups", &backup_body(head + 1)).await;
    let sentence = format!("revision {} is ahead of the store's, which is {head}; nothing was changed", head + 1);
    assert_eq!((status, &refusal["error"]["message"]), (400, &json!(sentence)));
    let (status, answer) = fleet.request(Method::POST, "/v1/backups?dry_run=true", &backup_body(head)).await;
    assert_eq!((status, age_s()), (200, None), "a dry run records no backup: {answer}");
    let (status, answer) = fleet.request(Method::POST, "/v1/backups", &backup_body(head)).await;
    let backup = &answer["backup"];
    assert_eq!((status, &backup["revision"], &backup["encrypted"]), (200, &json!(head), &json!(true)), "{backup}");
    assert!(age_s().is_some_and(|age_s| age_s < 600), "{:?}", age_s());
    fleet.clock.advance(90_000);
    assert!(age_s().is_some_and(|age_s| (90_000..90_600).contains(&age_s)), "{:?}", age_s());
    assert_eq!(fleet.read("/v1/fleet").await["backup"], *backup);
    let audit = fleet.read("/v1/audit?limit=1000").await.to_string();
    assert!(audit.contains(&format!("a backup of revision {head} was made, 188416 bytes, encrypted")), "{audit}");
    assert!(audit.contains("\"backup.made\""), "{audit}");
    // An admin's certificate is not enough for a backup, because it contains the keys of the fleet.
    let (status, refusal) = fleet.request(Method::GET, "/v1/backup", &json!(null)).await;
    assert_eq!((status, &refusal["error"]["type"]), (403, &json!("auth.forbidden")), "{refusal}");
}

/// Two resumes of the fleet begin two new epochs. After a restart, a host in either of the earlier epochs gets a state
/// of the last one.
#[tokio::test]
async fn x02_epoch_survives_restart_and_follows_earlier_ones() {
    let mut fleet = Fleet::start_reconciled().await;
    let mut host = fleet.join("web-1").await;
    let first_desired = host.first_state().await;
    let ahead = HeldDesired { revision: Revision(100_000), ..held_desired(&first_desired) };
    let mut epochs = vec![first_desired.epoch];
    for _ in 0..2 {
        let state_of_host = HeldDesired { epoch: *epochs.last().unwrap(), ..ahead };
        assert_eq!(next_desired(&mut host, state_of_host).await, None);
        let (status, body) = fleet.request(Method::POST, "/v1/fleet/resume", &json!({})).await;
        assert_eq!((status, &body["resumed"]), (200, &json!(true)), "{body}");
        let epoch: Uuid = body["epoch"].as_str().unwrap().parse().unwrap();
        epochs.push(Epoch(*epoch.as_bytes()));
    }
    fleet = fleet.restart(reconciled_options()).await;
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    for epoch in &epochs[..2] {
        host.held_desired = Some(HeldDesired { epoch: *epoch, ..ahead });
        let desired = host.next_update(30_000).await.desired.expect("a state of the current epoch");
        assert_eq!((desired.epoch, desired.epoch_change.unwrap().from), (epochs[2], *epoch));
    }
}

/// An operator puts an older copy of the data directory in place by hand. Without `restore`, no new epoch begins.
#[tokio::test]
async fn x02_hosts_stay_ahead_when_store_was_rolled_back() {
    let mut fleet = Fleet::start_reconciled().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    let mut hosts = [fleet.join_group("c/g", "web-1").await, fleet.join_group("c/g", "web-2").await];
    for host in &mut hosts {
        host.first_state().await;
    }
    let (data, copy_path) = (fleet.directory.path().join("data"), fleet.directory.path().join("copy"));
    fleet.controller.stop().await;
    copy_directory(&data, &copy_path);
    fleet.controller = start(new_config(data.clone()), reconciled_options()).await.unwrap();
    fleet.apply(json!([{"kind": "NodeGroup", "cluster": "c", "name": "g", "labels": {"tier": "silver"}}])).await;
    for host in &mut hosts {
        host.client = fleet.client(host.chain.clone(), host.key.clone_key());
        host.held_desired = Some(held_desired(&host.next_update(30_000).await.desired.expect("the state with the label")));
    }
    fleet.controller.stop().await;
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&copy_path, &data).unwrap();
    fleet.controller = start(new_config(data.clone()), reconciled_options()).await.unwrap();
    let [first_host, second_host] = &mut hosts;
    let latest_state = first_host.held_desired.unwrap();
    first_host.client = fleet.client(first_host.chain.clone(), first_host.key.clone_key());
    assert_eq!(next_desired(first_host, latest_state).await, None);

    // Writes that do not affect the hosts, and one that does.
    for index in 0..30 {
        fleet.apply(json!([{"kind": "Cluster", "name": format!("x{index}")}])).await;
    }
    fleet.apply(json!([{"kind": "NodeGroup", "cluster": "c", "name": "g", "labels": {"tier": "bronze"}}])).await;
    let revision = fleet.read("/v1/fleet").await["revision"].as_u64().unwrap();
    assert!(revision > latest_state.revision.0, "the store has passed the revision of the hosts: {revision}");
    for is_restarted in [false, true] {
        if is_restarted {
            fleet.controller.stop().await;
            fleet.controller = start(new_config(data.clone()), reconciled_options()).await.unwrap();
        }
        for host in [&mut *first_host, &mut *second_host] {
            host.client = fleet.client(host.chain.clone(), host.key.clone_key());
            let state_of_host = host.held_desired.unwrap();
            assert_eq!(next_desired(host, state_of_host).await, None);
        }
        assert_eq!(fleet.read("/v1/fleet").await["ahead"]["nodes"], json!(2));
        let untold = fleet.read("/v1/nodes/web-2/explain?label=tier").await["untold"].clone();
        let text = untold.as_str().unwrap_or_default();
        assert!(
            text.contains(" and has sent it nothing later than revision ") && text.ends_with("stemma-controller resume-fleet"),
            "{text}"
        );
    }
    let (status, body) = fleet.request(Method::POST, "/v1/fleet/resume", &json!({})).await;
    assert_eq!((status, &body["resumed"]), (200, &json!(true)), "{body}");
    for host in [first_host, second_host] {
        let desired = host.next_update(30_000).await.desired.expect("a state of the new epoch");
        assert_eq!(desired.epoch_change.unwrap().from, latest_state.epoch);
    }
}

/// The store of an earlier version has no record of the states that were sent to its hosts. A host without such a
/// record may report a revision from before the first record of the store. If it reports a later one, it counts as
/// ahead and gets nothing.
#[tokio::test]
async fn x02_host_without_record_counts_as_never_sent() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    let mut first_host = fleet.join_group("c/g", "web-1").await;
    let mut second_host = fleet.join_group("c/g", "web-2").await;
    let first_held = held_desired(&first_host.first_state().await);
    let revision = fleet.read("/v1/fleet").await["revision"].as_u64().unwrap();
    for index in 0..10 {
        fleet.apply(json!([{"kind": "Cluster", "name": format!("x{index}")}])).await;
    }
    let state_at = |revision| HeldDesired { revision: Revision(revision), known: PartDigest([7; 32]), ..first_held };
    assert_eq!(next_desired(&mut second_host, state_at(revision + 5)).await, None);
    assert!(next_desired(&mut second_host, state_at(first_held.revision.0)).await.is_some());
}

/// After a restore, the store waits until an admin resumes the fleet. Until then each node shows this, whether or not
/// its host has checked in.
#[tokio::test]
async fn x02_state_finding_and_explanation_agree_when_store_waits() {
    let mut fleet = Fleet::start_reconciled().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    let mut old_host = fleet.join_group("c/g", "web-1").await;
    old_host.first_state().await;
    fleet.apply(json!([{"kind": "Node", "name": "web-3", "nodegroup": "c/g"}])).await;
    // The state in which `restore` leaves the store.
    let (epoch, head) = (fleet.read("/v1/fleet").await["epoch"].clone(), fleet.last_revision().await);
    let epoch_history = EpochHistory::new(epoch.as_str().unwrap().parse().unwrap());
    let restored_history =
        epoch_history.with_restore(epoch_history.next_id(SystemClock.unix_seconds() * 1000, &[7; 10], []), head, "restored");
    let transaction = Transaction::new().put(key::EPOCH_LINE, codec::encode(&restored_history));
    fleet.components().registry.store().commit(transaction).await.unwrap();
    fleet = fleet.restart(reconciled_options()).await;
    let expected_hosts = json!({"enrolled": 1, "checked_in": 0});
    let hosts = async || {
        let hosts = fleet.read("/v1/fleet").await["hosts"].clone();
        json!({"enrolled": hosts["enrolled"], "checked_in": hosts["checked_in"]})
    };
    assert_eq!(hosts().await, expected_hosts, "no host has checked in");
    let mut new_host = fleet.join_group("c/g", "web-2").await;
    assert_eq!(new_host.next_update(0).await.desired, None, "nothing is sent to any host");
    assert_eq!(hosts().await, json!({"enrolled": 2, "checked_in": 1}));

    let restored = "the store was restored from a backup and waits";
    let finding_message = format!("{restored}; nothing is sent to the host until an admin runs: stemma-controller resume-fleet");
    let reason = format!("{restored}: nothing is sent until an admin runs stemma-controller resume-fleet");
    for name in ["web-1", "web-2", "web-3"] {
        let node = fleet.read(&format!("/v1/nodes/{name}")).await;
        assert_eq!((&node["state"], &node["state_reason"]), (&json!("waiting"), &json!(reason)), "{name}");
        let object = format!("node/{name}");
        let finding = json!({"severity": "warning", "code": "fleet.waiting", "object": object, "message": finding_message});
        assert!(node["findings"].as_array().unwrap().contains(&finding), "{}", node["findings"]);
        let explanation = fleet.read(&format!("/v1/nodes/{name}/explain?label=tier")).await;
        assert_eq!(explanation["untold"], json!(finding_message));
    }
    let (status, body) = fleet.request(Method::POST, "/v1/fleet/resume", &json!({})).await;
    assert_eq!((status, &body["resumed"]), (200, &json!(true)), "{body}");
    while new_host.next_update(0).await.desired.is_none() {}
    for name in ["web-1", "web-2", "web-3"] {
        let node = fleet.read(&format!("/v1/nodes/{name}")).await;
        assert!(!node["findings"].to_string().contains("fleet.waiting"), "{}", node["findings"]);
        assert_ne!(node["state_reason"], json!(reason));
    }
    // The host of web-1 has not checked in since the resume, so web-1 awaits it. The host of web-2 has checked in, and
    // web-3 has no host.
    let awaited = async |name: &str| {
        let node = fleet.read(&format!("/v1/nodes/{name}")).await;
        let waiting_nodes = fleet.read("/v1/nodes?state=waiting").await;
        let is_listed = waiting_nodes["nodes"].as_array().unwrap().iter().any(|node| node["name"] == name);
        let is_awaited = node["state_reason"] == "its host has not checked in since the present epoch of the store began";
        let is_found = node["findings"].to_string().contains("host.awaited");
        (is_awaited, is_found, is_awaited && is_listed)
    };
    assert_eq!(awaited("web-1").await, (true, true, true));
    for name in ["web-2", "web-3"] {
        assert!(!awaited(name).await.1, "{name}");
    }
    old_host.client = fleet.client(old_host.chain.clone(), old_host.key.clone_key());
    while old_host.next_update(0).await.desired.is_none() {}
    while awaited("web-1").await != (false, false, false) {
        tokio::task::yield_now().await;
    }
}

/// Copies the files of a directory and of its subdirectories.
fn copy_directory(source: &Path, destination: &Path) {
    std::fs::create_dir(destination).unwrap();
    for entry in std::fs::read_dir(source).unwrap() {
        let entry = entry.unwrap();
        let destination = destination.join(entry.file_name());
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => copy_directory(&entry.path(), &destination),
            kind if kind.is_file() => drop(std::fs::copy(entry.path(), destination).unwrap()),
            _ => {}
        }
    }
}

/// After a resume, a host in an epoch of another store gets a desired state whenever it checks in, if that epoch began
/// before the current one. A host of a later epoch gets nothing until a second resume.
#[tokio::test]
async fn x02_hosts_of_foreign_epochs_follow_after_resume() {
    const DAY_MS: u64 = 24 * 3600 * 1000;
    let fleet = Fleet::start_reconciled().await;
    let mut host = fleet.join("web-1").await;
    let first_desired = host.first_state().await;
    let ahead = HeldDesired { revision: Revision(100_000), ..held_desired(&first_desired) };
    // Epochs of stores that this store does not know.
    let now_ms = SystemClock.unix_seconds() * 1000;
    let epoch_at = |at_ms: u64| Epoch(*EpochHistory::new(Uuid::nil()).next_id(at_ms, &[7; 10], []).as_bytes());
    let (earlier, later) = (epoch_at(now_ms - DAY_MS), epoch_at(now_ms + DAY_MS));
    assert_eq!(
        next_desired(&mut host, HeldDesired { epoch: earlier, ..ahead }).await,
        None,
        "no admin has resumed the fleet yet"
    );
    assert_eq!(next_desired(&mut host, ahead).await, None);
    let resume = async || fleet.request(Method::POST, "/v1/fleet/resume", &json!({})).await;
    assert_eq!(resume().await.1["resumed"], true);
    let wait_for_desired = async |host: &mut Host, state_of_host: HeldDesired| loop {
        // Repeats until the reconciler has signed in the new epoch.
        if let Some(desired) = next_desired(host, state_of_host).await {
            break desired;
        }
    };
    wait_for_desired(&mut host, ahead).await;

    let desired = next_desired(&mut host, HeldDesired { epoch: earlier, ..ahead }).await.expect("a state without another resume");
    let change = desired.epoch_change.clone().unwrap();
    assert_eq!((change.from, change.to), (earlier, desired.epoch));
    let verifier = Verifier::new(fleet.components().fleet.clone(), &[fleet.components().authority.root().clone()]).unwrap();
    verifier.check_epoch_change(&change, SystemClock.unix_seconds()).unwrap();
    assert!(desired.revision >= change.at);

    let later_state = HeldDesired { epoch: later, ..ahead };
    assert_eq!(next_desired(&mut host, later_state).await, None, "the other store may be a newer copy of this one");
    let node = fleet.read("/v1/nodes/web-1").await;
    let finding = node["findings"].as_array().unwrap().iter().find(|finding| finding["code"] == "host.ahead").unwrap();
    let message = finding["message"].as_str().unwrap();
    let epoch = Uuid::from_bytes(later.0);
    assert!(message.starts_with(&format!("its host holds revision 100000 of another store (epoch {epoch})")), "{message}");
    assert!(message.ends_with("until an admin runs: stemma-controller resume-fleet"), "{message}");
    let unknown_count = fleet.read("/v1/fleet").await["ahead"]["unknown_epochs"].clone();
    assert_eq!(unknown_count, json!(1));
    assert_eq!(resume().await.1["resumed"], true, "a second resume");
    assert_eq!(wait_for_desired(&mut host, later_state).await.epoch_change.unwrap().from, later);
}

#[tokio::test]
async fn x02_unknown_host_is_refused_and_counted() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let node = host.node;
    // A backup from before the host joined has no record of the host.
    let deletion = Transaction::new().delete(agent_key(node));
    fleet.components().registry.store().commit(deletion).await.unwrap();
    wait_until(|| !fleet.components().identities.is_enrolled(node)).await;
    let metrics_text = || fleet.components().metrics.text_for_cluster(None);
    assert!(metrics_text().contains("\nstemma_hosts_unknown 0\n"), "{}", metrics_text());
    for _ in 0..2 {
        assert_eq!(host.check_in(0).await.unwrap_err().kind, "auth.revoked");
        host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    }
    // The metric counts hosts, so the second attempt of the same host does not change it.
    assert!(metrics_text().contains("\nstemma_hosts_unknown 1\n"), "{}", metrics_text());
    assert_eq!(fleet.read("/v1/fleet").await["unknown_hosts"], json!(1));
}
