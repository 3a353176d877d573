//! Fields of Ironic's and Magnum's bodies that mean nothing here: what form each has, and what is given back where
//! it was never set, so that their clients find what they know.

use serde_json::{Map, Value};
use stemma_core::object::Kind;
use stemma_wire::error::{ApiError, ErrorType};

use crate::api::http::query::truth;

/// What a kept field may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text(usize),
    Number,
    Truth,
    Object,
    List,
}

use Form::{List, Number, Object, Text, Truth};

type Row = (&'static str, Form, &'static str);

/// Gives a body the defaults of its kind's kept fields, where it has none.
pub(super) fn fill(kind: Kind, body: &mut Map<String, Value>) {
    for (name, _, default) in table(kind) {
        let default = || serde_json::from_str(default).expect("the tables of kept fields hold JSON texts");
        body.entry((*name).to_owned()).or_insert_with(default);
    }
}

/// Checks the kept fields of a body that came in, and brings words for numbers and truth into JSON's own form.
///
/// # Errors
/// The first one of another form.
pub(super) fn check(kind: Kind, body: &mut Map<String, Value>) -> Result<(), ApiError> {
    for (name, form, _) in table(kind) {
        if let Some(value) = body.get_mut(*name) {
            read(name, *form, value)?;
        }
    }
    Ok(())
}

fn read(name: &str, form: Form, value: &mut Value) -> Result<(), ApiError> {
    let needed = match (form, &*value) {
        (_, Value::Null)
        | (Number, Value::Number(_))
        | (Truth, Value::Bool(_))
        | (Object, Value::Object(_))
        | (List, Value::Array(_)) => {
            return Ok(());
        }
        (Text(most), Value::String(text)) if text.chars().count() <= most => return Ok(()),
        (Text(most), _) => format!("a text of at most {most} characters"),
        (Number, Value::String(text)) if text.trim().parse::<i64>().is_ok() => {
            *value = text.trim().parse::<i64>().map_or(Value::Null, Value::from);
            return Ok(());
        }
        (Truth, Value::String(_) | Value::Number(_)) => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            if let Some(read) = truth(&text) {
                *value = Value::Bool(read);
                return Ok(());
            }
            "true or false".to_owned()
        }
        (Number, _) => "a whole number".to_owned(),
        (Truth, _) => "true or false".to_owned(),
        (Object, _) => "an object".to_owned(),
        (List, _) => "a list".to_owned(),
    };
    let found: String = value.to_string().chars().take(64).collect();
    let message = format!("Invalid input for field {name}: {needed} is needed here, not {found}");
    Err(ApiError::new(ErrorType::FieldInvalid, message).field(name))
}

const fn table(kind: Kind) -> &'static [Row] {
    match kind {
        Kind::ClusterTemplate => TEMPLATE,
        Kind::Cluster => CLUSTER,
        Kind::NodeGroup => GROUP,
        Kind::Node => NODE,
        _ => &[],
    }
}

const TEMPLATE: &[Row] = &[
    ("coe", Text(255), "null"),
    ("image_id", Text(255), "null"),
    ("flavor_id", Text(255), "null"),
    ("master_flavor_id", Text(255), "null"),
    ("dns_nameserver", Text(255), "null"),
    ("keypair_id", Text(255), "null"),
    ("external_network_id", Text(255), "null"),
    ("fixed_network", Text(255), "null"),
    ("fixed_subnet", Text(255), "null"),
    ("network_driver", Text(255), "null"),
    ("apiserver_port", Number, "null"),
    ("docker_volume_size", Number, "null"),
    ("cluster_distro", Text(255), "null"),
    ("http_proxy", Text(255), "null"),
    ("https_proxy", Text(255), "null"),
    ("no_proxy", Text(255), "null"),
    ("volume_driver", Text(255), "null"),
    ("registry_enabled", Truth, "false"),
    ("tls_disabled", Truth, "false"),
    ("public", Truth, "false"),
    ("server_type", Text(255), "\"vm\""),
    ("insecure_registry", Text(255), "null"),
    ("docker_storage_driver", Text(255), "null"),
    ("master_lb_enabled", Truth, "false"),
    ("floating_ip_enabled", Truth, "true"),
    ("project_id", Text(255), "null"),
    ("user_id", Text(255), "null"),
    ("hidden", Truth, "false"),
    ("tags", Text(255), "null"),
    ("driver", Text(255), "null"),
];

const CLUSTER: &[Row] = &[
    ("keypair", Text(255), "null"),
    ("node_count", Number, "1"),
    ("master_count", Number, "1"),
    ("docker_volume_size", Number, "null"),
    ("master_flavor_id", Text(255), "null"),
    ("flavor_id", Text(255), "null"),
    ("create_timeout", Number, "60"),
    ("discovery_url", Text(255), "null"),
    ("fixed_network", Text(255), "null"),
    ("fixed_subnet", Text(255), "null"),
    ("floating_ip_enabled", Truth, "true"),
    ("master_lb_enabled", Truth, "false"),
    ("health_status", Text(255), "null"),
    ("health_status_reason", Object, "{}"),
    ("api_address", Text(255), "null"),
    ("coe_version", Text(255), "null"),
    ("container_version", Text(255), "null"),
    ("node_addresses", List, "[]"),
    ("master_addresses", List, "[]"),
    ("project_id", Text(255), "null"),
    ("user_id", Text(255), "null"),
];

const GROUP: &[Row] = &[
    ("docker_volume_size", Number, "null"),
    ("flavor_id", Text(255), "null"),
    ("image_id", Text(255), "null"),
    ("node_count", Number, "1"),
    ("role", Text(255), "\"worker\""),
    ("min_node_count", Number, "0"),
    ("max_node_count", Number, "null"),
    ("is_default", Truth, "false"),
    ("node_labels", Object, "{}"),
    ("node_taints", List, "[]"),
    ("node_addresses", List, "[]"),
    ("version", Text(255), "null"),
    ("project_id", Text(255), "null"),
];

const NODE: &[Row] = &[
    ("driver", Text(255), "null"),
    ("driver_info", Object, "{}"),
    ("driver_internal_info", Object, "{}"),
    ("extra", Object, "{}"),
    ("resource_class", Text(80), "null"),
    ("instance_uuid", Text(36), "null"),
    ("instance_name", Text(255), "null"),
    ("chassis_uuid", Text(36), "null"),
    ("parent_node", Text(255), "null"),
    ("conductor_group", Text(255), "\"\""),
    ("automated_clean", Truth, "null"),
    ("owner", Text(255), "null"),
    ("lessee", Text(255), "null"),
    ("network_data", Object, "{}"),
    ("protected", Truth, "false"),
    ("protected_reason", Text(255), "null"),
    ("retired", Truth, "false"),
    ("retired_reason", Text(255), "null"),
    ("shard", Text(255), "null"),
    ("disable_power_off", Truth, "false"),
    ("clean_step", Object, "{}"),
    ("deploy_step", Object, "{}"),
    ("bios_interface", Text(255), "null"),
    ("boot_interface", Text(255), "null"),
    ("console_interface", Text(255), "null"),
    ("deploy_interface", Text(255), "null"),
    ("firmware_interface", Text(255), "null"),
    ("inspect_interface", Text(255), "null"),
    ("management_interface", Text(255), "null"),
    ("network_interface", Text(255), "null"),
    ("power_interface", Text(255), "null"),
    ("raid_interface", Text(255), "null"),
    ("rescue_interface", Text(255), "null"),
    ("storage_interface", Text(255), "null"),
    ("vendor_interface", Text(255), "null"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn forms_are_checked_and_words_are_read() {
        let mut body = json!({"node_count": "2", "master_lb_enabled": "yes", "keypair": null});
        check(Kind::Cluster, body.as_object_mut().unwrap()).unwrap();
        assert_eq!(body, json!({"node_count": 2, "master_lb_enabled": true, "keypair": null}));
        for body in [json!({"resource_class": "x".repeat(81)}), json!({"driver": 5}), json!({"extra": []})] {
            assert!(check(Kind::Node, &mut body.as_object().unwrap().clone()).is_err(), "{body}");
        }
    }

    #[test]
    fn every_default_is_json() {
        for kind in [Kind::ClusterTemplate, Kind::Cluster, Kind::NodeGroup, Kind::Node] {
            let mut body = Map::new();
            fill(kind, &mut body);
            assert_eq!(body.len(), table(kind).len());
        }
    }
}
