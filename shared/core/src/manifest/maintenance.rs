//! `maintenance_reason`: why a node is parked. It goes when the node is parked no longer, whatever write ends that, as Ironic's goes with its
//! `maintenance`: else the next who parks the node would give a reason that is not theirs.
//!
//! A write that sets another reason keeps that one. So does a manifest that says one, also the one that stood: applied again, it would only set
//! it again. One that another manager owns is not taken by an apply that is not forced.

use super::author::Author;
use super::body::Body;
use super::fields::Fields;
use crate::ownership::Owner;

/// Its name in a body, and among the owners of fields.
pub(super) const REASON: &str = "maintenance_reason";
/// The name of what it is the reason of.
pub(super) const PARKED: &str = "parked";

/// Takes the reason away, with its owners, where a body ends the parking of a node and sets no other.
pub(super) fn settle<S: Fields>(before: &S, next: &mut S, body: &Body, author: Author<'_>) {
    if !ends(before, next) {
        return;
    }
    let takes_over = match author {
        Author::Update { .. } => true,
        Author::Apply { force, .. } | Author::Add { force, .. } => force,
    };
    let is_others = |owner: &Owner| owner.manager != *author.manager();
    if !takes_over && before.owners_ref().get(REASON).is_some_and(|owners| owners.iter().any(is_others)) {
        return;
    }
    let is_another = before.extra_ref().get(REASON) != next.extra_ref().get(REASON);
    if !body.says(REASON) || matches!(author, Author::Update { .. }) && !is_another {
        next.extra().remove(REASON);
        next.owners().remove(REASON);
    }
}

/// Whether the step from one spec to the next ends a maintenance, with which its reason goes.
pub(super) fn takes_reason<S: Fields>(before: &S, next: &S) -> bool {
    ends(before, next) && !next.extra_ref().contains_key(REASON)
}

fn ends<S: Fields>(before: &S, next: &S) -> bool {
    let is_parked = |spec: &S| spec.node_ref().is_some_and(|node| node.parked);
    is_parked(before) && !is_parked(next)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::author::Scope;
    use super::super::testing::Anybody;
    use super::super::write::write;
    use super::*;
    use crate::labels::BodyShape;
    use crate::object::NodeSpec;
    use crate::ownership::Manager;

    fn parked() -> NodeSpec {
        let mut spec = NodeSpec::default();
        let (manager, body) = (Manager::new("ops").unwrap(), r#"{"parked": true, "maintenance_reason": "disk"}"#);
        let author = Author::Update { manager: &manager, shape: BodyShape::Own };
        write(&mut spec, &Body::parse(body).unwrap(), author, &Anybody::default(), 0).unwrap();
        spec
    }

    /// Ironic's conductor: in `update_node` a reason goes when `maintenance` becomes false.
    #[test]
    fn y05_the_reason_goes_when_a_node_is_parked_no_longer() {
        let manager = Manager::new("ci").unwrap();
        let update = Author::Update { manager: &manager, shape: BodyShape::Own };
        let apply = |scope| Author::Apply { manager: &manager, scope, force: true, adopt: None };
        let (object, named) = (apply(Scope::Object), apply(Scope::Named));
        let add = Author::Add { manager: &manager, force: true };
        for (author, body, reason) in [
            (update, json!({"parked": false}), Value::Null),
            (update, json!({"parked": null}), Value::Null),
            (update, json!({"parked": false, "maintenance_reason": null}), Value::Null),
            (update, json!({"parked": false, "maintenance_reason": "fan"}), json!("fan")),
            (update, json!({"parked": false, "maintenance_reason": "disk"}), Value::Null),
            (update, json!({"parked": true}), json!("disk")),
            (update, json!({"mode": "noop"}), json!("disk")),
            (object, json!({"parked": false}), Value::Null),
            (object, json!({"parked": false, "maintenance_reason": "disk"}), json!("disk")),
            (object, json!({"parked": true}), json!("disk")),
            (named, json!({"parked": false}), Value::Null),
            (named, json!({"maintenance_reason": "fan"}), json!("fan")),
            (add, json!({"parked": false}), Value::Null),
        ] {
            let mut spec = parked();
            write(&mut spec, &Body::parse(&body.to_string()).unwrap(), author, &Anybody::default(), 0).unwrap();
            let left = spec.extra.get(REASON).cloned().unwrap_or_default();
            assert_eq!(left, reason, "{author:?} {body}");
            assert_eq!(spec.owners.contains_key(REASON), !reason.is_null(), "{author:?} {body}");
        }
    }

    #[test]
    fn y05_a_reason_that_another_manager_gives_is_not_taken_by_an_apply() {
        let [git, ops] = ["git", "ops"].map(|name| Manager::new(name).unwrap());
        let mut spec = NodeSpec::default();
        let mut apply = |manager, force, body: &str| {
            let author = Author::Apply { manager, scope: Scope::Object, force, adopt: None };
            write(&mut spec, &Body::parse(body).unwrap(), author, &Anybody::default(), 0).unwrap();
            spec.extra.get(REASON).cloned().unwrap_or_default()
        };
        apply(&git, false, r#"{"parked": true}"#);
        apply(&ops, false, r#"{"maintenance_reason": "disk"}"#);
        assert_eq!(apply(&git, false, r#"{"parked": false}"#), "disk");
        apply(&git, false, r#"{"parked": true}"#);
        assert_eq!(apply(&git, false, "{}"), "disk");
        apply(&git, false, r#"{"parked": true}"#);
        assert_eq!(apply(&git, true, r#"{"parked": false}"#), Value::Null);
    }

    /// What is stored of an older program is no concern of a write that parks nothing and ends nothing.
    #[test]
    fn y05_a_reason_of_a_node_that_is_not_parked_stays() {
        let manager = Manager::new("ci").unwrap();
        let mut spec = parked();
        spec.parked = false;
        let author = Author::Update { manager: &manager, shape: BodyShape::Own };
        write(&mut spec, &Body::parse(r#"{"parked": false}"#).unwrap(), author, &Anybody::default(), 0).unwrap();
        assert_eq!(spec.extra[REASON], "disk");
    }
}
