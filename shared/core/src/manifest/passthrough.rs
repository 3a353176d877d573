//! Passthrough fields of Ironic's and Magnum's bodies. They are accepted, stored and returned. Only a few fields of a
//! node, such as `resource_class`, have an effect here. Each has a type, and a value that is returned if it was never
//! set, so that the clients of these systems find what they expect.

use serde_json::Value;
use uuid::Uuid as AnyUuid;

use self::PassthroughType::{Any, Flag, List, Name, NameOrNone, Number, Object, Text, Uuid};
use super::error::BodyError;
use crate::field::{FieldBound, FieldType, parse_boolean, parse_integer};
use crate::name::{canonical_uuid, truncated};

/// One passthrough field: a field of Ironic or Magnum that is stored and returned.
#[derive(Clone, Copy, Debug)]
pub struct PassthroughField {
    /// The name of the field in a body.
    pub name: &'static str,
    /// The values that the field accepts.
    pub kind: PassthroughType,
    /// The JSON text that a response contains if the field was never set. `None` if the response then omits the field.
    pub default: Option<&'static str>,
}

/// Fields of Ironic's nodes that are `null` in every response, such as the power state, because Stemma does not control
/// machines in this way.
pub const ALWAYS_NULL: &[&str] = &[
    "power_state",
    "target_power_state",
    "target_provision_state",
    "provision_updated_at",
    "reservation",
    "fault",
    "inspection_finished_at",
    "inspection_started_at",
    "conductor",
    "secure_boot",
    "boot_mode",
];

/// The values that a passthrough field accepts, in addition to `null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassthroughType {
    /// A text of at most this number of characters. It may be empty.
    Text(usize),
    /// A name of at most this number of characters. It must not be empty.
    Name(usize),
    /// A name of at most this number of characters, or an empty text, which means none.
    NameOrNone(usize),
    /// A uuid in any notation. It is stored in lower case with dashes.
    Uuid,
    /// A whole number, or the text of one, such as `"2"`. A text is stored as a number.
    Number,
    /// A boolean, or a text or number for one, such as `"yes"` or `1`. The value is stored as a boolean.
    Flag,
    /// An object without empty keys.
    Object,
    /// A list without empty texts.
    List,
    /// Any JSON value.
    Any,
}

impl PassthroughType {
    /// Returns the size limit of a field of this type.
    pub const fn bound(self) -> FieldBound {
        match self {
            // A character has at most four bytes in UTF-8.
            Text(characters) | Name(characters) | NameOrNone(characters) => FieldType::Text.bound().max_bytes(4 * characters),
            Uuid | Number | Flag => FieldType::Text.bound(),
            Object | List | Any => FieldType::Any.bound(),
        }
    }
}

impl PassthroughField {
    /// Returns a value as it is stored. A uuid is converted to lower case with dashes. A number or boolean in another
    /// form, such as text, becomes a JSON number or boolean. `null` is accepted for every type.
    ///
    /// # Errors
    /// [`BodyError`] with the type that the field needs, for a value of another type or a text that is too long.
    pub(super) fn normalize(&self, value: Value) -> Result<Value, BodyError> {
        let expected_type = match (self.kind, &value) {
            (_, Value::Null) | (Any, _) | (Flag, Value::Bool(_)) | (Object, Value::Object(_)) | (List, Value::Array(_)) => {
                return Ok(value);
            }
            (Uuid, Value::String(text)) if AnyUuid::parse_str(text).is_ok() => return Ok(canonical_uuid(text).into()),
            (Name(max) | NameOrNone(max) | Text(max), Value::String(text)) if text.chars().count() <= max => {
                return Ok(value);
            }
            (Number, Value::Number(number)) if !number.is_f64() => return Ok(value),
            (Number, Value::String(text)) if parse_integer::<i64>(text).is_some() => {
                return Ok(parse_integer::<i64>(text).into());
            }
            (Flag, Value::String(_) | Value::Number(_)) if boolean_value(&value).is_some() => {
                return Ok(boolean_value(&value).into());
            }
            (Uuid, _) => {
                let shown = truncated(&value.to_string());
                return Err(BodyError::new("", format!("a uuid is needed here, not {shown}: give one, or null")));
            }
            (Name(max) | NameOrNone(max) | Text(max), _) => {
                return Err(type_error(&format!("a text of at most {max} characters"), &value));
            }
            (Number, _) => "a whole number",
            (Flag, _) => "true or false",
            (Object, _) => "an object",
            (List, _) => "a list",
        };
        Err(type_error(expected_type, &value))
    }
}

/// Returns the error about a value of another type. `expected_type` is the needed type in words.
fn type_error(expected_type: &str, value: &Value) -> BodyError {
    BodyError::new("", format!("{expected_type} is needed here, not {}", truncated(&value.to_string())))
}

/// Returns the boolean that a text or number represents, such as `"yes"` or `1`, which `OpenStack`'s clients send.
/// Returns `None` for any other value.
fn boolean_value(value: &Value) -> Option<bool> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    parse_boolean(&text)
}

macro_rules! passthrough_fields {
    ($($(#[$doc:meta])* $table:ident { $($form:expr, $default:expr => $($name:ident)+;)+ })+) => {$(
        $(#[$doc])*
        pub(super) const $table: &[PassthroughField] =
            &[$($(PassthroughField { name: stringify!($name), kind: $form, default: $default },)+)+];
    )+};
}

// Grouped by type, and by the value in a response if the field was never set (`None`: the response omits the field).
// Most texts have at most 255 characters. The fields with `None` are computed by other systems, and their clients send
// them back. Magnum refuses an empty name too. Ironic stores one, but no known client sends one.
passthrough_fields! {
    /// The passthrough fields of a cluster template, from Magnum.
    TEMPLATE {
        Number, Some("null") => apiserver_port docker_volume_size;
        Name(255), Some("null") => cluster_distro coe dns_nameserver docker_storage_driver driver external_network_id
            fixed_network fixed_subnet flavor_id http_proxy https_proxy image_id insecure_registry keypair_id
            master_flavor_id network_driver no_proxy project_id user_id volume_driver;
        Text(255), Some("null") => tags;
        Flag, Some("true") => floating_ip_enabled;
        Flag, Some("false") => hidden master_lb_enabled public registry_enabled tls_disabled;
        Name(255), Some("\"vm\"") => server_type;
    }

    /// The passthrough fields of a cluster, from Magnum.
    CLUSTER {
        Text(255), Some("null") => api_address coe_version container_version discovery_url health_status;
        Name(255), Some("null") => fixed_network fixed_subnet flavor_id keypair master_flavor_id project_id user_id;
        Number, Some("60") => create_timeout;
        Number, Some("null") => docker_volume_size;
        Any, None => faults keypair_id stack_id status status_reason;
        Flag, Some("true") => floating_ip_enabled;
        Object, Some("{}") => health_status_reason;
        List, Some("[]") => master_addresses node_addresses;
        Number, Some("1") => master_count node_count;
        Flag, Some("false") => master_lb_enabled;
    }

    /// The passthrough fields of a node group, from Magnum.
    GROUP {
        Number, Some("null") => docker_volume_size max_node_count;
        Name(255), Some("null") => flavor_id image_id project_id;
        Text(255), Some("null") => version;
        Flag, Some("false") => is_default;
        Number, Some("0") => min_node_count;
        List, Some("[]") => node_addresses node_taints;
        Number, Some("1") => node_count;
        Object, Some("{}") => node_labels;
        Name(255), Some("\"worker\"") => role;
        Any, None => stack_id status status_reason;
    }

    /// The passthrough fields of an allocation, from Ironic.
    ALLOCATION {
        Object, Some("{}") => extra;
    }

    /// The passthrough fields of a node, from Ironic.
    NODE {
        Flag, Some("null") => automated_clean;
        Name(255), Some("null") => bios_interface boot_interface console_interface deploy_interface driver
            firmware_interface inspect_interface instance_name lessee management_interface network_interface owner parent_node
            power_interface raid_interface rescue_interface shard storage_interface vendor_interface;
        Text(255), Some("null") => maintenance_reason protected_reason retired_reason;
        Any, None => boot_mode secure_boot;
        Name(36), Some("null") => chassis_uuid;
        Uuid, Some("null") => instance_uuid;
        Object, Some("{}") => clean_step deploy_step driver_info driver_internal_info extra network_data;
        NameOrNone(255), Some("\"\"") => conductor_group;
        Flag, Some("false") => disable_power_off protected retired;
        Name(80), Some("null") => resource_class;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `stored` is the value that is stored for the value `sent`, or `None` if the field refuses it.
    #[test]
    fn y05_passthrough_field_normalizes_or_rejects_value() {
        let uuid = "0D8E1F4A5B6C4D7E8F90A1B2C3D4E5F6";
        for (form, sent, stored) in [
            (Number, json!("2"), Some(json!(2))),
            (Number, json!(-5), Some(json!(-5))),
            (Number, json!(1.5), None),
            (Number, json!("-2"), Some(json!(-2))),
            (Number, json!("x"), None),
            (Number, json!(" 1"), None),
            (Number, json!("1\n"), None),
            (Number, json!("+1"), None),
            (Number, json!("007"), None),
            (Number, json!("1.0"), None),
            (Number, json!("1_0"), None),
            (Number, json!("\u{ff11}"), None),
            (Number, json!(true), None),
            (Flag, json!("yes"), Some(json!(true))),
            (Flag, json!(0), Some(json!(false))),
            (Flag, json!("maybe"), None),
            (Object, json!({"a": 1}), Some(json!({"a": 1}))),
            (Object, json!("x"), None),
            (List, json!([]), Some(json!([]))),
            (List, json!({}), None),
            (Text(3), json!("äöü"), Some(json!("äöü"))),
            (Text(3), json!("abcd"), None),
            (Name(3), json!(5), None),
            (Uuid, json!(uuid), Some(json!("0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6"))),
            (Uuid, json!("x"), None),
            (Any, json!([1]), Some(json!([1]))),
            (Flag, Value::Null, Some(Value::Null)),
        ] {
            let field = PassthroughField { name: "x", kind: form, default: None };
            assert_eq!(field.normalize(sent.clone()).ok(), stored, "{form:?} {sent}");
        }
    }
}
