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

/// Name of the field, in a body and among the owners of fields.
pub(super) const REASON: &str = "maintenance_reason";
/// Name of the field that the reason belongs to.
pub(super) const PARKED: &str = "parked";

/// Clears the reason and its owners if a body ends the parking of a node and sets no other reason.
pub(super) fn clear_with_parked<S: SpecFields>(before: &S, next: &mut S, body: &JsonBody, author: WriteMode<'_>) {
    if !ends_parking(before, next) {
        return;
    }
    let takes_over = match author {
        WriteMode::Update { .. } => true,
        WriteMode::Apply { force, .. } | WriteMode::Add { force, .. } => force,
    };
    let is_others = |owner: &Owner| owner.manager != *author.manager();
    if !takes_over && before.owners().get(REASON).is_some_and(|owners| owners.iter().any(is_others)) {
        return;
    }
    let is_another = before.extra().get(REASON) != next.extra().get(REASON);
    if !body.has_value(REASON) || matches!(author, WriteMode::Update { .. }) && !is_another {
        next.extra_mut().remove(REASON);
        next.owners_mut().remove(REASON);
    }
}

/// Returns whether the step from one spec to the next ends a maintenance and clears its reason.
pub(super) fn clears_reason<S: SpecFields>(before: &S, next: &S) -> bool {
    ends_parking(before, next) && !next.extra().contains_key(REASON)
}

/// Returns whether the node is parked in the first spec and not in the second.
fn ends_parking<S: SpecFields>(before: &S, next: &S) -> bool {
    let is_parked = |spec: &S| spec.node().is_some_and(|node| node.parked);
    is_parked(before) && !is_parked(next)
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

    fn parked_node() -> NodeSpec {
        let mut spec = NodeSpec::default();
        let (manager, body) = (Manager::new("ops").unwrap(), r#"{"parked": true, "maintenance_reason": "disk"}"#);
        let author = WriteMode::Update { manager: &manager, shape: BodyShape::Native };
        write_body(&mut spec, &JsonBody::parse(body).unwrap(), author, &AnyNameResolver::default(), 0).unwrap();
        spec
    }

    /// Ironic's conductor clears a reason in `update_node` when `maintenance` becomes false.
    #[test]
    fn y05_reason_is_cleared_when_node_is_unparked() {
        let manager = Manager::new("ci").unwrap();
        let update = WriteMode::Update { manager: &manager, shape: BodyShape::Native };
        let apply = |scope| WriteMode::Apply { manager: &manager, scope, force: true, adopt: None };
        let (object, named) = (apply(ApplyScope::Object), apply(ApplyScope::NamedFields));
        let add = WriteMode::Add { manager: &manager, force: true };
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
            let mut spec = parked_node();
            write_body(&mut spec, &JsonBody::parse(&body.to_string()).unwrap(), author, &AnyNameResolver::default(), 0).unwrap();
            let left = spec.extra.get(REASON).cloned().unwrap_or_default();
            assert_eq!(left, reason, "{author:?} {body}");
            assert_eq!(spec.owners.contains_key(REASON), !reason.is_null(), "{author:?} {body}");
        }
    }

    #[test]
    fn y05_apply_keeps_reason_owned_by_another_manager() {
        let [git, ops] = ["git", "ops"].map(|name| Manager::new(name).unwrap());
        let mut spec = NodeSpec::default();
        let mut apply = |manager, force, body: &str| {
            let author = WriteMode::Apply { manager, scope: ApplyScope::Object, force, adopt: None };
            write_body(&mut spec, &JsonBody::parse(body).unwrap(), author, &AnyNameResolver::default(), 0).unwrap();
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

    /// A write that neither parks nor unparks a node leaves a reason of an older version alone.
    #[test]
    fn y05_reason_stays_when_node_is_not_parked() {
        let manager = Manager::new("ci").unwrap();
        let mut spec = parked_node();
        spec.parked = false;
        let author = WriteMode::Update { manager: &manager, shape: BodyShape::Native };
        write_body(&mut spec, &JsonBody::parse(r#"{"parked": false}"#).unwrap(), author, &AnyNameResolver::default(), 0).unwrap();
        assert_eq!(spec.extra[REASON], "disk");
    }
}
