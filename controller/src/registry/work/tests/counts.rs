//! Limits on the number of objects of a kind, and on the size of the records of nodes.

use stemma_core::object::Hold;
use stemma_core::rollout::RecordSize;

use super::*;

/// A limit below the current number of nodes deletes no node. It only refuses a write after which there would be more
/// nodes.
#[tokio::test]
async fn x03_check_counts_allows_change_but_no_node_when_over_limit() {
    let site = WriteSite::new().await;
    for number in 1..=3 {
        site.write(add_node(number, "z")).await.unwrap();
    }
    let mut site = WriteSite { registry: site.registry.with_max_nodes(2), ..site };
    site.write(edit_node(1, |spec| spec.description = "x".to_owned())).await.expect("the edit adds no node");
    site.write(move_node(1, "a")).await.expect("the node stays in its cluster");
    let replace: WriteFn = Box::new(|work| {
        let node = Arc::clone(work.model.nodes.get(Uuid::from_u128(3)).unwrap());
        work.delete_node(&node)?;
        add_node(4, "z")(work)
    });
    site.write(replace).await.expect("the number of nodes is unchanged");
    let refusal = site.write(add_node(5, "z")).await.expect_err("the write adds a node");
    let expected = "the fleet would have 4 nodes (3 now), and the limit is 2; nothing was changed";
    assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::ObjectTooMany, expected));
    // A caller that is bound to a cluster must not learn the number of nodes elsewhere.
    let rights = Rights { role: PrincipalRole::Operator, cluster: Some(ClusterId(CLUSTER)) };
    site.caller = Caller { requester: Requester { rights, ..Requester::from_listener("test") }, ..caller() };
    let refusal = site.write(add_node(5, "z")).await.expect_err("the write adds a node");
    let expected = "the fleet would have more nodes than the limit of 2; nothing was changed";
    assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::ObjectTooMany, expected));
    site.caller = caller();
    for number in [1, 2] {
        site.write(|work| work.delete_node(&site.node(number))).await.expect("a deletion reduces the number");
    }
}

/// The record of a node is the stored task set that was released to the node. If a held node moves to another cluster,
/// its record counts for the quota of that cluster. Regression: an operator moved held nodes into a cluster until the
/// records of the cluster used three times the quota. A write that removes a node from a cluster is accepted.
#[tokio::test]
async fn x03_f07_check_records_counts_held_node_when_moved() {
    /// Quota of a cluster with two nodes, in bytes: 32 MiB, and 16 KiB for each node.
    const FULL_BYTES: u64 = 33_587_200;
    let site = WriteSite::new().await;
    for (number, group_role) in [(1, "a"), (2, "o"), (3, "o")] {
        site.write(add_node(number, group_role)).await.unwrap();
    }
    let record = |number, cluster, stored| RecordSize {
        node: NodeId(Uuid::from_u128(number)),
        cluster: Some(ClusterId(cluster)),
        stored: Some(stored),
        next: None,
    };
    let records = [record(1, CLUSTER, 100_000), record(2, OTHER_CLUSTER, FULL_BYTES - 10), record(3, OTHER_CLUSTER, 10)];
    site.registry.record_quota().update_and_decide(&records, &[], |_| 2);
    let hold = || Some(Box::new(Hold { until: String::new(), reason: "x".into() }));
    for (case, group_role, is_held, is_accepted) in [
        ("a held node moves into the full cluster", Some("o"), true, false),
        ("the node leaves all clusters", None, true, true),
        ("the node moves into the full cluster from no cluster", Some("o"), true, false),
        ("the node moves without a hold, so its record will be replaced", Some("o"), false, true),
    ] {
        let edit_placement = edit_node(1, move |spec| {
            spec.nodegroup = group_role.map(group);
            spec.hold = if is_held { hold() } else { None };
        });
        let result = site.write(edit_placement).await;
        assert_eq!(result.is_ok(), is_accepted, "{case}: {result:?}");
        let Err(error) = result else { continue };
        // The full quota, and the 100,000 bytes of the record of node 1.
        let expected_start = "what is released to the nodes of cluster d would take about 33687200 bytes together";
        assert!(error.message.starts_with(expected_start) && error.kind == ErrorType::ObjectTooMany, "{}", error.message);
    }
    let deleted_node = site.node(3);
    site.write(|work| work.delete_node(&deleted_node)).await.expect("a deletion makes no cluster larger");
}
