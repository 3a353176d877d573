//! Fields of Ironic's and Magnum's bodies that are taken, stored and given back, and mean nothing here.

/// Magnum's cluster template.
pub(super) const TEMPLATE: &[&str] = &[
    "apiserver_port", "cluster_distro", "coe", "dns_nameserver", "docker_storage_driver", "docker_volume_size", "driver",
    "external_network_id", "fixed_network", "fixed_subnet", "flavor_id", "floating_ip_enabled", "hidden", "http_proxy",
    "https_proxy", "image_id", "insecure_registry", "keypair_id", "master_flavor_id", "master_lb_enabled", "network_driver",
    "no_proxy", "project_id", "public", "registry_enabled", "server_type", "tags", "tls_disabled", "user_id", "volume_driver",
];

/// Magnum's cluster.
pub(super) const CLUSTER: &[&str] = &[
    "api_address", "coe_version", "container_version", "create_timeout", "discovery_url", "docker_volume_size", "faults",
    "fixed_network", "fixed_subnet", "flavor_id", "floating_ip_enabled", "health_status", "health_status_reason", "keypair",
    "keypair_id", "master_addresses", "master_count", "master_flavor_id", "master_lb_enabled", "node_addresses",
    "node_count", "project_id", "stack_id", "status", "status_reason", "user_id",
];

/// Magnum's node group.
pub(super) const GROUP: &[&str] = &[
    "docker_volume_size", "flavor_id", "image_id", "is_default", "max_node_count", "min_node_count", "node_addresses",
    "node_count", "node_labels", "node_taints", "project_id", "role", "stack_id", "status", "status_reason", "version",
];

/// Ironic's node.
pub(super) const NODE: &[&str] = &[
    "automated_clean", "bios_interface", "boot_interface", "boot_mode", "chassis_uuid", "clean_step", "conductor_group",
    "console_interface", "deploy_interface", "deploy_step", "disable_power_off", "driver", "driver_info",
    "driver_internal_info", "extra", "firmware_interface", "inspect_interface", "instance_name", "instance_uuid", "lessee",
    "management_interface", "network_data", "network_interface", "owner", "parent_node", "power_interface", "protected",
    "protected_reason", "raid_interface", "rescue_interface", "resource_class", "retired", "retired_reason", "secure_boot",
    "shard", "storage_interface", "vendor_interface",
];
