//! How many objects of a kind there may be.

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
