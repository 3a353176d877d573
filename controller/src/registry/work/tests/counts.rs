//! How many objects of a kind there may be, and how much the records of nodes may take.

use stemma_core::object::Hold;
use stemma_core::rollout::RecordSize;

use super::*;

/// A configuration that says less than there are takes nothing away, and is in the way of nothing but one more.
#[tokio::test]
async fn x03_a_store_that_holds_more_nodes_than_there_may_be_is_changed_and_gets_no_more() {
    let site = Site::new().await;
    for n in 1..=3 {
        site.write(add(n, "z")).await.unwrap();
    }
    let mut site = Site { registry: site.registry.holding(2), ..site };
    site.write(edit(1, |spec| spec.description = "x".to_owned())).await.expect("it adds none");
    site.write(move_to(1, "a")).await.expect("it stays in its cluster");
    let replace: Write = Box::new(|work| {
        let node = Arc::clone(work.model.nodes.get(Uuid::from_u128(3)).unwrap());
        work.delete_node(&node)?;
        add(4, "z")(work)
    });
    site.write(replace).await.expect("there are as many as before");
    let refusal = site.write(add(5, "z")).await.expect_err("there would be more");
    let says = "the fleet would have 4 nodes (3 now), and the most are 2; nothing was changed";
    assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::ObjectTooMany, says));
    // Who is bound to a cluster is not told how many others have.
    let rights = Rights { role: PrincipalRole::Operator, within: Some(ClusterId(CLUSTER)) };
    site.caller = Caller { who: Who { rights, ..Who::by_way("test") }, ..caller() };
    let refusal = site.write(add(5, "z")).await.expect_err("there would be more");
    let says = "the fleet would have more nodes than it may have, which are 2; nothing was changed";
    assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::ObjectTooMany, says));
    site.caller = caller();
    for n in [1, 2] {
        site.write(|work| work.delete_node(&site.node(n))).await.expect("there are fewer");
    }
}

/// What keeps its next task set from a node keeps it its record, wherever it stands. An operator moved held nodes into a cluster until its records took
/// three times what they may. A node that goes makes nothing larger.
#[tokio::test]
async fn x03_f07_what_a_held_node_has_counts_where_it_comes_and_a_full_cluster_lets_nodes_go() {
    /// What two nodes may have: 32 MiB, and 16 KiB for each.
    const FULL: u64 = 33_587_200;
    let site = Site::new().await;
    for (n, at) in [(1, "a"), (2, "o"), (3, "o")] {
        site.write(add(n, at)).await.unwrap();
    }
    let record = |n, cluster, stored| RecordSize {
        node: NodeId(Uuid::from_u128(n)),
        cluster: Some(ClusterId(cluster)),
        stored: Some(stored),
        next: None,
    };
    let records = [record(1, CLUSTER, 100_000), record(2, OTHER, FULL - 10), record(3, OTHER, 10)];
    site.registry.room().admit(&records, &[], |_| 2);
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
