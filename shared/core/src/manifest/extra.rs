//! Fields of Ironic's and Magnum's bodies that are taken, stored and given back, and mean nothing here: what form each has,
//! and what is given back where it was never set, so that their clients find what they know.

use self::KeptForm::{Any, Flag, List, Number, Object, Text};

/// One kept field.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// Its name in a body.
    pub name: &'static str,
    /// What it may hold.
    pub form: KeptForm,
    /// The JSON text that an answer holds where it was never set; none where the field is left out then.
    pub default: Option<&'static str>,
}

/// What a kept field may hold, beside `null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptForm {
    /// A text of at most so many characters.
    Text(usize),
    /// A whole number.
    Number,
    /// True or false.
    Flag,
    /// An object.
    Object,
    /// A list.
    List,
    /// Any JSON value.
    Any,
}

const fn kept(name: &'static str, form: KeptForm, default: &'static str) -> Kept {
    Kept { name, form, default: Some(default) }
}

/// A text of the usual length, `null` where it was never set.
const fn text(name: &'static str) -> Kept {
    kept(name, Text(255), "null")
}

/// A field that other systems compute, and their clients send back.
const fn computed(name: &'static str) -> Kept {
    Kept { name, form: Any, default: None }
}

/// Magnum's cluster template.
pub(super) const TEMPLATE: &[Kept] = &[
    kept("apiserver_port", Number, "null"),
    text("cluster_distro"),
    text("coe"),
    text("dns_nameserver"),
    text("docker_storage_driver"),
    kept("docker_volume_size", Number, "null"),
    text("driver"),
    text("external_network_id"),
    text("fixed_network"),
    text("fixed_subnet"),
    text("flavor_id"),
    kept("floating_ip_enabled", Flag, "true"),
    kept("hidden", Flag, "false"),
    text("http_proxy"),
    text("https_proxy"),
    text("image_id"),
    text("insecure_registry"),
    text("keypair_id"),
    text("master_flavor_id"),
    kept("master_lb_enabled", Flag, "false"),
    text("network_driver"),
    text("no_proxy"),
    text("project_id"),
    kept("public", Flag, "false"),
    kept("registry_enabled", Flag, "false"),
    kept("server_type", Text(255), "\"vm\""),
    text("tags"),
    kept("tls_disabled", Flag, "false"),
    text("user_id"),
    text("volume_driver"),
];

/// Magnum's cluster.
pub(super) const CLUSTER: &[Kept] = &[
    text("api_address"),
    text("coe_version"),
    text("container_version"),
    kept("create_timeout", Number, "60"),
    text("discovery_url"),
    kept("docker_volume_size", Number, "null"),
    computed("faults"),
    text("fixed_network"),
    text("fixed_subnet"),
    text("flavor_id"),
    kept("floating_ip_enabled", Flag, "true"),
    text("health_status"),
    kept("health_status_reason", Object, "{}"),
    text("keypair"),
    computed("keypair_id"),
    kept("master_addresses", List, "[]"),
    kept("master_count", Number, "1"),
    text("master_flavor_id"),
    kept("master_lb_enabled", Flag, "false"),
    kept("node_addresses", List, "[]"),
    kept("node_count", Number, "1"),
    text("project_id"),
    computed("stack_id"),
    computed("status"),
    computed("status_reason"),
    text("user_id"),
];

/// Magnum's node group.
pub(super) const GROUP: &[Kept] = &[
    kept("docker_volume_size", Number, "null"),
    text("flavor_id"),
    text("image_id"),
    kept("is_default", Flag, "false"),
    kept("max_node_count", Number, "null"),
    kept("min_node_count", Number, "0"),
    kept("node_addresses", List, "[]"),
    kept("node_count", Number, "1"),
    kept("node_labels", Object, "{}"),
    kept("node_taints", List, "[]"),
    text("project_id"),
    kept("role", Text(255), "\"worker\""),
    computed("stack_id"),
    computed("status"),
    computed("status_reason"),
    text("version"),
];

/// Ironic's node.
pub(super) const NODE: &[Kept] = &[
    kept("automated_clean", Flag, "null"),
    text("bios_interface"),
    text("boot_interface"),
    computed("boot_mode"),
    kept("chassis_uuid", Text(36), "null"),
    kept("clean_step", Object, "{}"),
    kept("conductor_group", Text(255), "\"\""),
    text("console_interface"),
    text("deploy_interface"),
    kept("deploy_step", Object, "{}"),
    kept("disable_power_off", Flag, "false"),
    text("driver"),
    kept("driver_info", Object, "{}"),
    kept("driver_internal_info", Object, "{}"),
    kept("extra", Object, "{}"),
    text("firmware_interface"),
    text("inspect_interface"),
    text("instance_name"),
    kept("instance_uuid", Text(36), "null"),
    text("lessee"),
    text("management_interface"),
    kept("network_data", Object, "{}"),
    text("network_interface"),
    text("owner"),
    text("parent_node"),
    text("power_interface"),
    kept("protected", Flag, "false"),
    text("protected_reason"),
    text("raid_interface"),
    text("rescue_interface"),
    kept("resource_class", Text(80), "null"),
    kept("retired", Flag, "false"),
    text("retired_reason"),
    computed("secure_boot"),
    text("shard"),
    text("storage_interface"),
    text("vendor_interface"),
];
