//! Inspection rules: what they give is worked out from reports, where somebody asks.

use stemma_core::fleet::Change;
use stemma_core::name::ObjectName;
use stemma_core::object::{InspectionRuleSpec, Object};
use stemma_wire::error::{ApiError, ErrorType};

use super::{KIB, Resource, bad_name};
use crate::cache::model::Model;

impl Resource for InspectionRuleSpec {
    bounded!(256 * KIB);

    fn name_text(name: &Option<ObjectName>) -> Option<String> {
        name.as_ref().map(ToString::to_string)
    }

    fn parse_name(text: &str) -> Result<Option<ObjectName>, ApiError> {
        ObjectName::new(text).map(Some).map_err(|e| bad_name(&e))
    }

    fn check_new_name(name: &Option<ObjectName>) -> Result<(), ApiError> {
        name.as_ref().map_or(Ok(()), |name| name.check_new(&[])).map_err(|e| bad_name(&e))
    }

    kept_in!(rules, Rule);

    fn remove_change(object: &Object<Self>) -> Option<Change> {
        Some(Change::RemoveRule(object.meta.uuid))
    }

    /// What nobody was shown stays so, as in Ironic.
    fn check_change(before: &Object<Self>, next: &Object<Self>, _model: &Model) -> Result<(), ApiError> {
        if next.spec.sensitive || !before.spec.sensitive {
            return Ok(());
        }
        let message = "a sensitive rule stays sensitive: what it asks and does would be shown; nothing was changed";
        Err(ApiError::new(ErrorType::FieldInvalid, message).field("sensitive").detail("delete it, and make another"))
    }
}
