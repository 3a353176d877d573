//! Limits on the number of objects of a kind, and on the size of the records of nodes.

use stemma_core::object::Hold;
use stemma_core::rollout::RecordSize;

use super::*;

/// A limit below the current number removes nothing. It only refuses one more object.
#[tokio::test]
async fn x03_check_counts_allows_change_but_no_node_when_over_limit() {
    let site = WriteSite::new().await;
    for n in 1..=3 {
        site.write(add(n, "z")).await.unwrap();
    }
    let mut site = WriteSite { registry: site.registry.with_max_nodes(2), ..site };
    site.write(edit(1, |spec| spec.description = "x".to_owned())).await.expect("it adds none");
    site.write(move_node(1, "a")).await.expect("it stays in its cluster");
    let replace: WriteFn = Box::new(|work| {
        let node = Arc::clone(work.model.nodes.get(Uuid::from_u128(3)).unwrap());
        work.delete_node(&node)?;
        add(4, "z")(work)
    });
    site.write(replace).await.expect("there are as many as before");
    let refusal = site.write(add(5, "z")).await.expect_err("there would be more");
    let says = "the fleet would have 4 nodes (3 now), and the limit is 2; nothing was changed";
    assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::ObjectTooMany, says));
    // A caller that is bound to a cluster must not learn the number of nodes elsewhere.
    let rights = Rights { role: PrincipalRole::Operator, cluster: Some(ClusterId(CLUSTER)) };
    site.caller = Caller { requester: Requester { rights, ..Requester::from_listener("test") }, ..caller() };
    let refusal = site.write(add(5, "z")).await.expect_err("there would be more");
    let says = "the fleet would have more nodes than the limit of 2; nothing was changed";
    assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::ObjectTooMany, says));
    site.caller = caller();
    for n in [1, 2] {
        site.write(|work| work.delete_node(&site.node(n))).await.expect("there are fewer");
    }
}

/// A node that may not get its next task set keeps its record, in whichever cluster it is. An operator moved held nodes
/// into a cluster until its records used three times the quota. A node that leaves makes nothing larger.
#[tokio::test]
async fn x03_f07_check_records_counts_held_node_when_moved() {
    /// The quota of two nodes: 32 MiB, and 16 KiB for each.
    const FULL_BYTES: u64 = 33_587_200;
    let site = WriteSite::new().await;
    for (n, at) in [(1, "a"), (2, "o"), (3, "o")] {
        site.write(add(n, at)).await.unwrap();
    }
    let record = |n, cluster, stored| RecordSize {
        node: NodeId(Uuid::from_u128(n)),
        cluster: Some(ClusterId(cluster)),
        stored: Some(stored),
        next: None,
    };
    let records = [record(1, CLUSTER, 100_000), record(2, OTHER_CLUSTER, FULL_BYTES - 10), record(3, OTHER_CLUSTER, 10)];
    site.registry.record_quota().admit(&records, &[], |_| 2);
    let hold = || Some(Box::new(Hold { until: String::new(), reason: "x".into() }));
    for (what, at, held, is_taken) in [
        ("a held node comes", Some("o"), true, false),
        ("it leaves all clusters", None, true, true),
        ("it comes from there", Some("o"), true, false),
        ("its hold is taken back, and what it has goes", Some("o"), false, true),
    ] {
        let written = edit(1, move |spec| {
            spec.nodegroup = at.map(group);
            spec.hold = if held { hold() } else { None };
        });
        let told = site.write(written).await;
        assert_eq!(told.is_ok(), is_taken, "{what}: {told:?}");
        let Err(refused) = told else { continue };
        let says = "what is released to the nodes of cluster d would take about 33687200 bytes together";
        assert!(refused.message.starts_with(says) && refused.kind == ErrorType::ObjectTooMany, "{}", refused.message);
    }
    let gone = site.node(3);
    site.write(|work| work.delete_node(&gone)).await.expect("a node that goes makes nothing larger");
}
