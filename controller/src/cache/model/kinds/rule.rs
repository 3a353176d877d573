//! Inspection rules. Their results are computed from reports when they are read.

use stemma_core::fleet::FleetChange;
use stemma_core::name::ObjectName;
use stemma_core::object::{InspectionRuleSpec, Object};
use stemma_wire::error::{ApiError, ErrorType};

use super::{KIB, Resource, bad_name_error};
use crate::cache::model::Model;

impl Resource for InspectionRuleSpec {
    size_limited!(256 * KIB);

    fn name_text(name: &Option<ObjectName>) -> Option<String> {
        name.as_ref().map(ToString::to_string)
    }

    fn parse_name(text: &str) -> Result<Option<ObjectName>, ApiError> {
        ObjectName::new(text).map(Some).map_err(|e| bad_name_error(&e))
    }

    fn check_new_name(name: &Option<ObjectName>) -> Result<(), ApiError> {
        name.as_ref().map_or(Ok(()), |name| name.check_new(&[])).map_err(|e| bad_name_error(&e))
    }

    indexed_in!(rules, Rule);

    fn remove_change(object: &Object<Self>) -> Option<FleetChange> {
        Some(FleetChange::RemoveRule(object.meta.uuid))
    }

    /// Refuses to make a sensitive rule not sensitive, as Ironic does, so that what was hidden stays hidden.
    fn check_change(before: &Object<Self>, next: &Object<Self>, _model: &Model) -> Result<(), ApiError> {
        if next.spec.sensitive || !before.spec.sensitive {
            return Ok(());
        }
        let message =
            "a sensitive rule cannot be made readable, because its conditions and actions would be shown; nothing was changed";
        Err(ApiError::new(ErrorType::FieldInvalid, message).field("sensitive").detail("delete it and create another"))
    }
}
