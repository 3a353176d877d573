//! The parameters of the task types that concern the host as a whole: its reboot.

use super::parameter_type::ParameterType;
use super::parameters::{Parameter, ParameterPresence, ParameterTable, TypedParameters, parameters};

/// The value of `when` of a `reboot` task that asks for a reboot only if the system requires one.
pub const WHEN_REQUIRED: &str = "required";

/// The values of `when` of a `reboot` task.
pub const REBOOT_CONDITIONS: &[&str] = &["always", WHEN_REQUIRED];

parameters! {
    /// The parameters of `reboot`.
    RebootParameters:
    when, Choice(REBOOT_CONDITIONS) Optional: "`always`, the default, asks for a reboot once for each content of the task. `required` asks only while the system requires a reboot.";
    timeout, Seconds Optional: "The time within which the host must go down after the reboot has begun, in seconds: 300 by default.";
}
