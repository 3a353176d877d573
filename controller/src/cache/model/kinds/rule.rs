//! Inspection rules. Their results are not stored, but computed from the hosts' reports when they are read.

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
        ObjectName::new(text).map(Some).map_err(|error| bad_name_error(&error))
    }

    fn check_new_name(name: &Option<ObjectName>) -> Result<(), ApiError> {
        name.as_ref().map_or(Ok(()), |name| name.check_new(&[])).map_err(|error| bad_name_error(&error))
    }

    indexed_in!(rules, Rule);

    fn remove_change(object: &Object<Self>) -> Option<FleetChange> {
        Some(FleetChange::RemoveRule(object.meta.uuid))
    }

    /// Fails if a sensitive rule would become not sensitive. As in Ironic, this would show its hidden conditions and
    /// actions.
    fn check_change(old_object: &Object<Self>, new_object: &Object<Self>, _model: &Model) -> Result<(), ApiError> {
        if new_object.spec.sensitive || !old_object.spec.sensitive {
            return Ok(());
        }
        let message =
            "a sensitive rule cannot be made readable, because its conditions and actions would be shown; nothing was changed";
        Err(ApiError::new(ErrorType::FieldInvalid, message).field("sensitive").detail("delete it and create another"))
    }
}
