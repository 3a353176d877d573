//! The fields of a cluster template.

use serde_json::{Map, Value};
use stemma_core::name::ObjectName;
use stemma_core::object::{ClusterTemplateSpec, Extra, FieldOwners, Inherited};
use stemma_wire::error::ApiError;

use super::{Fields, Form, Kept, invalid, put, release_ref, typed, unknown};
use crate::cache::Model;

impl Fields for ClusterTemplateSpec {
    const NAMES: &'static [&'static str] = &["release", "host_labels"];
    const KEPT: &'static [Kept] = MAGNUM;
    const HAS_LEVELS: bool = true;

    fn name(text: &str) -> Result<ObjectName, ApiError> {
        ObjectName::new(text).map_err(|e| invalid("name", e))
    }

    fn inherited(&self) -> Option<&Inherited> {
        Some(&self.inherited)
    }

    fn inherited_mut(&mut self) -> Option<&mut Inherited> {
        Some(&mut self.inherited)
    }

    fn description_mut(&mut self) -> &mut String {
        &mut self.description
    }

    fn extra_mut(&mut self) -> &mut Extra {
        &mut self.extra
    }

    fn owners(&self) -> FieldOwners {
        self.owners.clone()
    }

    fn set_owners(&mut self, owners: FieldOwners) {
        self.owners = owners;
    }

    fn set(&mut self, model: &Model, name: &str, value: Option<Value>) -> Result<(), ApiError> {
        match name {
            "release" => self.release = release_ref(model, name, value.as_ref())?,
            "host_labels" => self.host_labels = typed(name, value)?,
            other => return Err(unknown::<Self>(other)),
        }
        Ok(())
    }

    fn get(&self, _model: &Model) -> Map<String, Value> {
        let mut fields = Map::new();
        put(&mut fields, "release", &self.release);
        put(&mut fields, "host_labels", &self.host_labels);
        fields
    }
}

/// Magnum's further fields, with the defaults that its API gives.
const MAGNUM: &[Kept] = &[
    Kept::new("coe", Form::Text(255)),
    Kept::new("image_id", Form::Text(255)),
    Kept::new("flavor_id", Form::Text(255)),
    Kept::new("master_flavor_id", Form::Text(255)),
    Kept::new("dns_nameserver", Form::Text(255)),
    Kept::new("keypair_id", Form::Text(255)),
    Kept::new("external_network_id", Form::Text(255)),
    Kept::new("fixed_network", Form::Text(255)),
    Kept::new("fixed_subnet", Form::Text(255)),
    Kept::new("network_driver", Form::Text(255)),
    Kept::new("apiserver_port", Form::Number),
    Kept::new("docker_volume_size", Form::Number),
    Kept::new("cluster_distro", Form::Text(255)),
    Kept::new("http_proxy", Form::Text(255)),
    Kept::new("https_proxy", Form::Text(255)),
    Kept::new("no_proxy", Form::Text(255)),
    Kept::new("volume_driver", Form::Text(255)),
    Kept::new("registry_enabled", Form::Truth).or("false"),
    Kept::new("tls_disabled", Form::Truth).or("false"),
    Kept::new("public", Form::Truth).or("false"),
    Kept::new("server_type", Form::Text(255)).or("\"vm\""),
    Kept::new("insecure_registry", Form::Text(255)),
    Kept::new("docker_storage_driver", Form::Text(255)),
    Kept::new("master_lb_enabled", Form::Truth).or("false"),
    Kept::new("floating_ip_enabled", Form::Truth).or("true"),
    Kept::new("project_id", Form::Text(255)),
    Kept::new("user_id", Form::Text(255)),
    Kept::new("hidden", Form::Truth).or("false"),
    Kept::new("tags", Form::Text(255)),
    Kept::new("driver", Form::Text(255)),
];
