//! A store that was restored from an older copy: its hosts hold revisions that it has not reached.

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

/// Returns what a host holds after it got this desired state.
fn held_desired(desired: &SignedDesired) -> HeldDesired {
    HeldDesired {
        epoch: desired.epoch,
        revision: desired.revision,
        known: desired.known_digest,
        task_set: desired.task_set_digest,
    }
}

/// Returns the desired state that the host is sent, if any.
async fn next_desired(host: &mut Host, held: HeldDesired) -> Option<SignedDesired> {
    host.held_desired = Some(held);
    host.next_update(0).await.desired
}

#[tokio::test]
async fn x02_hosts_ahead_are_reported_and_follow_in_new_epoch() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    let mut host = fleet.join_group("c/g", "web-1").await;
    let first = host.first_state().await;
    let fleet_state = async || fleet.read("/v1/fleet").await;
    assert_eq!(fleet_state().await["ahead"], json!({"nodes": 0, "highest": null, "unknown_epochs": 0}));
    let (status, body) = fleet.request(Method::POST, "/v1/fleet/resume", &json!({})).await;
    assert_eq!((status, &body["resumed"]), (200, &json!(false)), "no host is ahead");

    let ahead = HeldDesired { revision: Revision(100_000), ..held_desired(&first) };
    let with_other_parts = HeldDesired { known: PartDigest([7; 32]), ..ahead };
    for holds in [ahead, with_other_parts] {
        assert_eq!(next_desired(&mut host, holds).await, None, "it would refuse it");
    }
    let state = fleet_state().await;
    assert_eq!(state["ahead"], json!({"nodes": 1, "highest": 100_000, "unknown_epochs": 0}));
    let node = fleet.read("/v1/nodes/web-1").await;
    let reason = "its host has a revision of another copy of the store, so nothing is sent to it";
    assert_eq!((&node["state"], &node["state_reason"]), (&json!("failed"), &json!(reason)));
    let finding = node["findings"].as_array().unwrap().iter().find(|one| one["code"] == "host.ahead").unwrap();
    let message = finding["message"].as_str().unwrap();
    let epoch_before = Uuid::from_bytes(first.epoch.0);
    let sentence = format!("its host holds revision 100000 of epoch {epoch_before}, and the store has come to revision ");
    assert!(message.starts_with(&sentence), "{message}");
    assert!(message.ends_with("until an admin runs: stemma-controller resume-fleet"), "{message}");
    let untold = async || fleet.read("/v1/nodes/web-1/explain?label=tier").await["untold"].clone();
    assert!(untold().await.as_str().is_some_and(|said| said.starts_with(&sentence)), "{}", untold().await);
    let metrics = fleet.parts().metrics.text_for_cluster(None);
    assert!(metrics.contains("\nstemma_nodes_ahead 1\n"), "{metrics}");

    for (body, said) in [
        (json!({"reason": " "}), "the reason is empty: leave it out, or say why; nothing was changed"),
        (json!({"reason": "x".repeat(256)}), "the reason has 256 characters, and may have 255; nothing was changed"),
    ] {
        let (status, refused) = fleet.request(Method::POST, "/v1/fleet/resume", &body).await;
        assert_eq!((status, &refused["error"]["message"]), (400, &json!(said)));
    }
    let (status, body) = fleet.request(Method::POST, "/v1/fleet/resume", &json!({"reason": "a disk was lost"})).await;
    assert_eq!((status, &body["resumed"]), (200, &json!(true)), "{body}");
    let desired = loop {
        // Repeats until the reconciler has signed in the new epoch.
        if let Some(desired) = next_desired(&mut host, ahead).await {
            break desired;
        }
    };
    let change = desired.epoch_change.clone().expect("it leads there");
    assert_eq!((change.from, change.to, change.reason.as_str()), (first.epoch, desired.epoch, "a disk was lost"));
    let verifier = Verifier::new(fleet.parts().fleet.clone(), &[fleet.parts().authority.root().clone()]).unwrap();
    let now = SystemClock.unix_seconds();
    verifier.check_epoch_change(&change, now).unwrap();
    verifier.check_desired(host.node, WireVersion::FIRST, &desired, now).unwrap();
    assert!(desired.revision >= change.at);

    assert_eq!(next_desired(&mut host, held_desired(&desired)).await, None, "it holds all");
    let state = fleet_state().await;
    assert_eq!((&state["ahead"]["nodes"], &state["reason"]), (&json!(0), &json!("a disk was lost")));
    let node = fleet.read("/v1/nodes/web-1").await;
    assert!(!node["findings"].to_string().contains("host.ahead"), "{}", node["findings"]);
    let audit = fleet.read("/v1/audit?limit=1000").await;
    let entries = audit["audit"].as_array().unwrap();
    let resumed = entries.iter().find(|one| one["reason"] == "a disk was lost").unwrap();
    let (before, after) = (epoch_before, Uuid::from_bytes(desired.epoch.0));
    let action = json!({"kind": "fleet.resumed", "epoch_before": before, "epoch_after": after});
    assert_eq!((&resumed["action"], &resumed["objects"]), (&action, &json!([])), "{resumed}");
    assert_eq!(untold().await, json!(null), "it is told");
}

#[tokio::test]
async fn x02_metrics_show_age_of_last_backup() {
    let fleet = Fleet::start().await;
    let age = || {
        let metrics = fleet.parts().metrics.text_for_cluster(None);
        let line = metrics.lines().find_map(|line| line.strip_prefix("stemma_backup_age_seconds "));
        line.map(|age| age.parse::<u64>().unwrap())
    };
    assert_eq!((age(), &fleet.read("/v1/fleet").await["backup"]), (None, &json!(null)), "none was made");
    let head = fleet.last_revision().await;
    let made = |revision: u64| json!({"revision": revision, "bytes": 188_416, "encrypted": true});
    let (status, refused) = fleet.request(Method::POST, "/v1/backups", &made(head + 1)).await;
    let sentence = format!("revision {} is ahead of the store's, which is {head}; nothing was changed", head + 1);
    assert_eq!((status, &refused["error"]["message"]), (400, &json!(sentence)));
    let (status, told) = fleet.request(Method::POST, "/v1/backups?dry_run=true", &made(head)).await;
    assert_eq!((status, age()), (200, None), "it is tried out: {told}");
    let (status, told) = fleet.request(Method::POST, "/v1/backups", &made(head)).await;
    let told = &told["backup"];
    assert_eq!((status, &told["revision"], &told["encrypted"]), (200, &json!(head), &json!(true)), "{told}");
    assert!(age().is_some_and(|age| age < 600), "{:?}", age());
    fleet.clock.advance(90_000);
    assert!(age().is_some_and(|age| (90_000..90_600).contains(&age)), "{:?}", age());
    assert_eq!(fleet.read("/v1/fleet").await["backup"], *told);
    let audit = fleet.read("/v1/audit?limit=1000").await.to_string();
    assert!(audit.contains(&format!("a backup of revision {head} was made, 188416 bytes, encrypted")), "{audit}");
    assert!(audit.contains("\"backup.made\""), "{audit}");
    // An admin's certificate is not enough for a backup, because it contains the keys of the fleet.
    let (status, refused) = fleet.request(Method::GET, "/v1/backup", &json!(null)).await;
    assert_eq!((status, &refused["error"]["type"]), (403, &json!("auth.forbidden")), "{refused}");
}

#[tokio::test]
async fn x02_epoch_survives_restart_and_follows_earlier_ones() {
    let mut fleet = Fleet::start_reconciled().await;
    let mut host = fleet.join("web-1").await;
    let first = host.first_state().await;
    let ahead = HeldDesired { revision: Revision(100_000), ..held_desired(&first) };
    let mut epochs = vec![first.epoch];
    for _ in 0..2 {
        let present = HeldDesired { epoch: *epochs.last().unwrap(), ..ahead };
        assert_eq!(next_desired(&mut host, present).await, None);
        let (status, body) = fleet.request(Method::POST, "/v1/fleet/resume", &json!({})).await;
        assert_eq!((status, &body["resumed"]), (200, &json!(true)), "{body}");
        let epoch: Uuid = body["epoch"].as_str().unwrap().parse().unwrap();
        epochs.push(Epoch(*epoch.as_bytes()));
    }
    fleet = fleet.restart(reconciled_options()).await;
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    for epoch in &epochs[..2] {
        host.held_desired = Some(HeldDesired { epoch: *epoch, ..ahead });
        let desired = host.next_update(30_000).await.desired.expect("it is led on");
        assert_eq!((desired.epoch, desired.epoch_change.unwrap().from), (epochs[2], *epoch));
    }
}

/// An older copy of the data directory is put in place by hand, without `restore`.
#[tokio::test]
async fn x02_hosts_stay_ahead_when_store_was_rolled_back() {
    let mut fleet = Fleet::start_reconciled().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    let mut hosts = [fleet.join_group("c/g", "web-1").await, fleet.join_group("c/g", "web-2").await];
    for host in &mut hosts {
        host.first_state().await;
    }
    let (data, copy) = (fleet.directory.path().join("data"), fleet.directory.path().join("copy"));
    fleet.controller.stop().await;
    copy_directory(&data, &copy);
    fleet.controller = start(new_config(data.clone()), reconciled_options()).await.unwrap();
    fleet.apply(json!([{"kind": "NodeGroup", "cluster": "c", "name": "g", "labels": {"tier": "silver"}}])).await;
    for host in &mut hosts {
        host.client = fleet.client(host.chain.clone(), host.key.clone_key());
        host.held_desired = Some(held_desired(&host.next_update(30_000).await.desired.expect("the label")));
    }
    fleet.controller.stop().await;
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&copy, &data).unwrap();
    fleet.controller = start(new_config(data.clone()), reconciled_options()).await.unwrap();
    let [first, second] = &mut hosts;
    let latest = first.held_desired.unwrap();
    first.client = fleet.client(first.chain.clone(), first.key.clone_key());
    assert_eq!(next_desired(first, latest).await, None);

    // Writes that do not affect the hosts, and one that does.
    for at in 0..30 {
        fleet.apply(json!([{"kind": "Cluster", "name": format!("x{at}")}])).await;
    }
    fleet.apply(json!([{"kind": "NodeGroup", "cluster": "c", "name": "g", "labels": {"tier": "bronze"}}])).await;
    let revision = fleet.read("/v1/fleet").await["revision"].as_u64().unwrap();
    assert!(revision > latest.revision.0, "the store has passed what the host holds: {revision}");
    for is_started_again in [false, true] {
        if is_started_again {
            fleet.controller.stop().await;
            fleet.controller = start(new_config(data.clone()), reconciled_options()).await.unwrap();
        }
        for host in [&mut *first, &mut *second] {
            host.client = fleet.client(host.chain.clone(), host.key.clone_key());
            let held = host.held_desired.unwrap();
            assert_eq!(next_desired(host, held).await, None);
        }
        assert_eq!(fleet.read("/v1/fleet").await["ahead"]["nodes"], json!(2));
        let untold = fleet.read("/v1/nodes/web-2/explain?label=tier").await["untold"].clone();
        let said = untold.as_str().unwrap_or_default();
        assert!(
            said.contains(" and told it nothing later than revision ") && said.ends_with("stemma-controller resume-fleet"),
            "{said}"
        );
    }
    let (status, body) = fleet.request(Method::POST, "/v1/fleet/resume", &json!({})).await;
    assert_eq!((status, &body["resumed"]), (200, &json!(true)), "{body}");
    for host in [first, second] {
        let desired = host.next_update(30_000).await.desired.expect("it is led on");
        assert_eq!(desired.epoch_change.unwrap().from, latest.epoch);
    }
}

/// The store of an earlier version has no record of what its hosts were sent.
#[tokio::test]
async fn x02_host_without_record_counts_as_never_sent() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    let mut first = fleet.join_group("c/g", "web-1").await;
    let mut second = fleet.join_group("c/g", "web-2").await;
    let first = held_desired(&first.first_state().await);
    let since = fleet.read("/v1/fleet").await["revision"].as_u64().unwrap();
    for at in 0..10 {
        fleet.apply(json!([{"kind": "Cluster", "name": format!("x{at}")}])).await;
    }
    let holds = |revision| HeldDesired { revision: Revision(revision), known: PartDigest([7; 32]), ..first };
    assert_eq!(next_desired(&mut second, holds(since + 5)).await, None);
    assert!(next_desired(&mut second, holds(first.revision.0)).await.is_some());
}

/// While a restored store waits, each node reports that, whether its host has checked in or not.
#[tokio::test]
async fn x02_state_finding_and_explanation_agree_when_store_waits() {
    let mut fleet = Fleet::start_reconciled().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    let mut old = fleet.join_group("c/g", "web-1").await;
    old.first_state().await;
    fleet.apply(json!([{"kind": "Node", "name": "web-3", "nodegroup": "c/g"}])).await;
    // The state in which `restore` leaves the store.
    let (epoch, head) = (fleet.read("/v1/fleet").await["epoch"].clone(), fleet.last_revision().await);
    let line = EpochHistory::new(epoch.as_str().unwrap().parse().unwrap());
    let restored = line.with_restore(line.next_id(SystemClock.unix_seconds() * 1000, &[7; 10], []), head, "restored");
    let waits = Transaction::new().put(key::EPOCH_LINE, codec::encode(&restored));
    fleet.parts().registry.store().commit(waits).await.unwrap();
    fleet = fleet.restart(reconciled_options()).await;
    let of_all = json!({"enrolled": 1, "checked_in": 0});
    let hosts = async || {
        let hosts = fleet.read("/v1/fleet").await["hosts"].clone();
        json!({"enrolled": hosts["enrolled"], "checked_in": hosts["checked_in"]})
    };
    assert_eq!(hosts().await, of_all, "none has come");
    let mut new = fleet.join_group("c/g", "web-2").await;
    assert_eq!(new.next_update(0).await.desired, None, "nobody is told anything");
    assert_eq!(hosts().await, json!({"enrolled": 2, "checked_in": 1}));

    let restored = "the store was restored from a backup and waits";
    let why = format!("{restored}; nothing is sent to the host until an admin runs: stemma-controller resume-fleet");
    let reason = format!("{restored}: nothing is sent until an admin runs stemma-controller resume-fleet");
    for name in ["web-1", "web-2", "web-3"] {
        let node = fleet.read(&format!("/v1/nodes/{name}")).await;
        assert_eq!((&node["state"], &node["state_reason"]), (&json!("waiting"), &json!(reason)), "{name}");
        let object = format!("node/{name}");
        let found = json!({"severity": "warning", "code": "fleet.waiting", "object": object, "message": why});
        assert!(node["findings"].as_array().unwrap().contains(&found), "{}", node["findings"]);
        let explained = fleet.read(&format!("/v1/nodes/{name}/explain?label=tier")).await;
        assert_eq!(explained["untold"], json!(why));
    }
    let (status, body) = fleet.request(Method::POST, "/v1/fleet/resume", &json!({})).await;
    assert_eq!((status, &body["resumed"]), (200, &json!(true)), "{body}");
    while new.next_update(0).await.desired.is_none() {}
    for name in ["web-1", "web-2", "web-3"] {
        let node = fleet.read(&format!("/v1/nodes/{name}")).await;
        assert!(!node["findings"].to_string().contains("fleet.waiting"), "{}", node["findings"]);
        assert_ne!(node["state_reason"], json!(reason));
    }
    // The host of the first node has not checked in. The node is shown as awaiting it until then. The host of the
    // second node has checked in, and the third node has no host.
    let awaited = async |name: &str| {
        let node = fleet.read(&format!("/v1/nodes/{name}")).await;
        let waiting = fleet.read("/v1/nodes?state=waiting").await;
        let is_listed = waiting["nodes"].as_array().unwrap().iter().any(|node| node["name"] == name);
        let is_awaited = node["state_reason"] == "its host has not checked in since the present epoch of the store began";
        let is_found = node["findings"].to_string().contains("host.awaited");
        (is_awaited, is_found, is_awaited && is_listed)
    };
    assert_eq!(awaited("web-1").await, (true, true, true));
    for name in ["web-2", "web-3"] {
        assert!(!awaited(name).await.1, "{name}");
    }
    old.client = fleet.client(old.chain.clone(), old.key.clone_key());
    while old.next_update(0).await.desired.is_none() {}
    while awaited("web-1").await != (false, false, false) {
        tokio::task::yield_now().await;
    }
}

/// Copies the files of a directory and of its subdirectories.
fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => copy_directory(&entry.path(), &to),
            kind if kind.is_file() => drop(std::fs::copy(entry.path(), to).unwrap()),
            _ => {}
        }
    }
}

/// A resume applies to each host that was away, but not to a host that got its state from a later store.
#[tokio::test]
async fn x02_hosts_of_foreign_epochs_follow_after_resume() {
    const DAY_MS: u64 = 24 * 3600 * 1000;
    let fleet = Fleet::start_reconciled().await;
    let mut host = fleet.join("web-1").await;
    let first = host.first_state().await;
    let ahead = HeldDesired { revision: Revision(100_000), ..held_desired(&first) };
    // Epochs of stores that this store does not know.
    let now_ms = SystemClock.unix_seconds() * 1000;
    let began = |at_ms: u64| Epoch(*EpochHistory::new(Uuid::nil()).next_id(at_ms, &[7; 10], []).as_bytes());
    let (earlier, later) = (began(now_ms - DAY_MS), began(now_ms + DAY_MS));
    assert_eq!(next_desired(&mut host, HeldDesired { epoch: earlier, ..ahead }).await, None, "nobody has said so yet");
    assert_eq!(next_desired(&mut host, ahead).await, None);
    let resume = async || fleet.request(Method::POST, "/v1/fleet/resume", &json!({})).await;
    assert_eq!(resume().await.1["resumed"], true);
    let led = async |host: &mut Host, holds: HeldDesired| loop {
        // Repeats until the reconciler has signed in the new epoch.
        if let Some(desired) = next_desired(host, holds).await {
            break desired;
        }
    };
    led(&mut host, ahead).await;

    let desired =
        next_desired(&mut host, HeldDesired { epoch: earlier, ..ahead }).await.expect("it is led on without another word");
    let change = desired.epoch_change.clone().unwrap();
    assert_eq!((change.from, change.to), (earlier, desired.epoch));
    let verifier = Verifier::new(fleet.parts().fleet.clone(), &[fleet.parts().authority.root().clone()]).unwrap();
    verifier.check_epoch_change(&change, SystemClock.unix_seconds()).unwrap();
    assert!(desired.revision >= change.at);

    let of_later = HeldDesired { epoch: later, ..ahead };
    assert_eq!(next_desired(&mut host, of_later).await, None, "that store may have taken over from this one");
    let node = fleet.read("/v1/nodes/web-1").await;
    let finding = node["findings"].as_array().unwrap().iter().find(|one| one["code"] == "host.ahead").unwrap();
    let message = finding["message"].as_str().unwrap();
    let epoch = Uuid::from_bytes(later.0);
    assert!(message.starts_with(&format!("its host holds revision 100000 of another store (epoch {epoch})")), "{message}");
    assert!(message.ends_with("until an admin runs: stemma-controller resume-fleet"), "{message}");
    let unknown = fleet.read("/v1/fleet").await["ahead"]["unknown_epochs"].clone();
    assert_eq!(unknown, json!(1));
    assert_eq!(resume().await.1["resumed"], true, "a second resume");
    assert_eq!(led(&mut host, of_later).await.epoch_change.unwrap().from, later);
}

#[tokio::test]
async fn x02_unknown_host_is_refused_and_counted() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let node = host.node;
    // As in a backup from before the host joined.
    let forgets = Transaction::new().delete(agent_key(node));
    fleet.parts().registry.store().commit(forgets).await.unwrap();
    wait_until(|| !fleet.parts().identities.is_enrolled(node)).await;
    let counted = || fleet.parts().metrics.text_for_cluster(None);
    assert!(counted().contains("\nstemma_hosts_unknown 0\n"), "{}", counted());
    for _ in 0..2 {
        assert_eq!(host.check_in(0).await.unwrap_err().kind, "auth.revoked");
        host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    }
    assert!(counted().contains("\nstemma_hosts_unknown 1\n"), "{}", counted());
    assert_eq!(fleet.read("/v1/fleet").await["unknown_hosts"], json!(1));
}
