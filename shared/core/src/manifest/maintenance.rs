//! `maintenance_reason`: the reason why a node is parked. A write that ends the parking clears the reason, as Ironic
//! clears it with `maintenance`. Otherwise the next user who parks the node would publish the reason of another user.
//!
//! The reason is not cleared in these cases: an update sets another reason; a manifest sets a reason, even the stored
//! one, because its next apply would set it again; or an apply that is not forced would clear a reason that another
//! manager owns.

use super::body::JsonBody;
use super::fields::SpecFields;
use super::write_mode::WriteMode;
use crate::ownership::Owner;

/// Name of the field with the reason why a node is parked, in a body and among the owners of fields.
pub(super) const REASON_FIELD: &str = "maintenance_reason";
/// Name of the boolean field that parks a node: the node then runs no task.
pub(super) const PARKED_FIELD: &str = "parked";

/// Removes the maintenance reason and its owners if the write unparks the node and sets no new reason. An apply without
/// force does not remove a reason that another manager owns. An apply that contains a reason, even the stored one,
/// keeps it, because the next apply would set it again. An update that sends the stored reason removes it.
pub(super) fn clear_reason_if_unparked<S: SpecFields>(previous: &S, next: &mut S, body: &JsonBody, author: WriteMode<'_>) {
    if !ends_parking(previous, next) {
        return;
    }
    let may_overwrite = match author {
        WriteMode::Update { .. } => true,
        WriteMode::Apply { force, .. } | WriteMode::Add { force, .. } => force,
    };
    let is_other_manager = |owner: &Owner| owner.manager != *author.manager();
    if !may_overwrite && previous.owners().get(REASON_FIELD).is_some_and(|owners| owners.iter().any(is_other_manager)) {
        return;
    }
    let is_new_reason = previous.extra().get(REASON_FIELD) != next.extra().get(REASON_FIELD);
    if !body.has_value(REASON_FIELD) || matches!(author, WriteMode::Update { .. }) && !is_new_reason {
        next.extra_mut().remove(REASON_FIELD);
        next.owners_mut().remove(REASON_FIELD);
    }
}

/// Returns whether a write unparks the node and leaves no reason in the spec.
pub(super) fn clears_reason<S: SpecFields>(previous: &S, next: &S) -> bool {
    ends_parking(previous, next) && !next.extra().contains_key(REASON_FIELD)
}

/// Returns whether the node is parked in `previous` and not in `next`. False for an object that is not a node.
fn ends_parking<S: SpecFields>(previous: &S, next: &S) -> bool {
    let is_parked = |spec: &S| spec.node().is_some_and(|node| node.parked);
    is_parked(previous) && !is_parked(next)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::testing::AnyNameResolver;
    use super::super::write::write_body;
    use super::super::write_mode::ApplyScope;
    use super::*;
    use crate::labels::BodyShape;
    use crate::object::NodeSpec;
    use crate::ownership::Manager;

    /// Returns a node that the manager `ops` parked with the reason `disk`.
    fn parked_node() -> NodeSpec {
        let mut spec = NodeSpec::default();
        let (manager, body) = (Manager::new("ops").unwrap(), r#"{"parked": true, "maintenance_reason": "disk"}"#);
        let author = WriteMode::Update { manager: &manager, shape: BodyShape::Native };
        write_body(&mut spec, &JsonBody::parse(body).unwrap(), author, &AnyNameResolver::default(), 0).unwrap();
        spec
    }

    /// The node is parked with the reason `disk` before each write. As in Ironic, the reason is cleared when the node
    /// is unparked, unless the write sets a new reason or a manifest still contains the reason.
    #[test]
    fn y05_reason_is_cleared_when_node_is_unparked() {
        let manager = Manager::new("ci").unwrap();
        let update = WriteMode::Update { manager: &manager, shape: BodyShape::Native };
        let apply = |scope| WriteMode::Apply { manager: &manager, scope, force: true, adopt: None };
        let (apply_object, apply_fields) = (apply(ApplyScope::Object), apply(ApplyScope::NamedFields));
        let add = WriteMode::Add { manager: &manager, force: true };
        for (author, body, reason) in [
            (update, json!({"parked": false}), Value::Null),
            (update, json!({"parked": null}), Value::Null),
            (update, json!({"parked": false, "maintenance_reason": null}), Value::Null),
            (update, json!({"parked": false, "maintenance_reason": "fan"}), json!("fan")),
            (update, json!({"parked": false, "maintenance_reason": "disk"}), Value::Null),
            (update, json!({"parked": true}), json!("disk")),
            (update, json!({"mode": "noop"}), json!("disk")),
            (apply_object, json!({"parked": false}), Value::Null),
            (apply_object, json!({"parked": false, "maintenance_reason": "disk"}), json!("disk")),
            (apply_object, json!({"parked": true}), json!("disk")),
            (apply_fields, json!({"parked": false}), Value::Null),
            (apply_fields, json!({"maintenance_reason": "fan"}), json!("fan")),
            (add, json!({"parked": false}), Value::Null),
        ] {
            let mut spec = parked_node();
            write_body(&mut spec, &JsonBody::parse(&body.to_string()).unwrap(), author, &AnyNameResolver::default(), 0).unwrap();
            let stored_reason = spec.extra.get(REASON_FIELD).cloned().unwrap_or_default();
            assert_eq!(stored_reason, reason, "{author:?} {body}");
            assert_eq!(spec.owners.contains_key(REASON_FIELD), !reason.is_null(), "{author:?} {body}");
        }
    }

    /// In this test, `git` owns `parked` and `ops` owns the reason. If an apply of `git` unparks the node, the reason
    /// stays, unless the apply is forced. An empty manifest of `git` unparks the node too.
    #[test]
    fn y05_apply_keeps_reason_owned_by_another_manager() {
        let [git, ops] = ["git", "ops"].map(|name| Manager::new(name).unwrap());
        let mut spec = NodeSpec::default();
        let mut apply = |manager, force, body: &str| {
            let author = WriteMode::Apply { manager, scope: ApplyScope::Object, force, adopt: None };
            write_body(&mut spec, &JsonBody::parse(body).unwrap(), author, &AnyNameResolver::default(), 0).unwrap();
            spec.extra.get(REASON_FIELD).cloned().unwrap_or_default()
        };
        apply(&git, false, r#"{"parked": true}"#);
        apply(&ops, false, r#"{"maintenance_reason": "disk"}"#);
        assert_eq!(apply(&git, false, r#"{"parked": false}"#), "disk");
        apply(&git, false, r#"{"parked": true}"#);
        assert_eq!(apply(&git, false, "{}"), "disk");
        apply(&git, false, r#"{"parked": true}"#);
        assert_eq!(apply(&git, true, r#"{"parked": false}"#), Value::Null);
    }

    /// A write that neither parks nor unparks a node does not change a reason that an older version left.
    #[test]
    fn y05_reason_stays_when_node_is_not_parked() {
        let manager = Manager::new("ci").unwrap();
        let mut spec = parked_node();
        spec.parked = false;
        let author = WriteMode::Update { manager: &manager, shape: BodyShape::Native };
        write_body(&mut spec, &JsonBody::parse(r#"{"parked": false}"#).unwrap(), author, &AnyNameResolver::default(), 0).unwrap();
        assert_eq!(spec.extra[REASON_FIELD], "disk");
    }
}
