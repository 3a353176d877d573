//! The fields of a cluster.

use serde_json::{Map, Value};
use stemma_core::name::ObjectName;
use stemma_core::object::{ClusterSpec, Extra, FieldOwners, Inherited, TemplateId};
use stemma_wire::error::ApiError;

use super::{Fields, Form, Kept, invalid, put, release_ref, template, text, typed, unknown};
use crate::cache::Model;

impl Fields for ClusterSpec {
    const NAMES: &'static [&'static str] =
        &["cluster_template", "release", "host_labels", "tags", "roles", "rollout", "paused", "primaries"];
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
            "cluster_template" => {
                let parent = text(name, value.as_ref(), 255)?.map(|parent| template(model, name, &parent).cloned());
                self.cluster_template = parent.transpose()?.map(|parent| TemplateId(parent.meta.uuid));
            }
            "release" => self.release = release_ref(model, name, value.as_ref())?,
            "host_labels" => self.host_labels = typed(name, value)?,
            "tags" => self.tags = typed(name, value)?,
            "roles" => self.roles = typed(name, value)?,
            "rollout" => self.rollout = typed(name, value)?,
            "paused" => self.paused = typed(name, value)?,
            "primaries" => self.primaries = typed(name, value)?,
            other => return Err(unknown::<Self>(other)),
        }
        Ok(())
    }

    fn get(&self, model: &Model) -> Map<String, Value> {
        let mut fields = Map::new();
        let parent = self.cluster_template.and_then(|id| model.templates.get(id.0));
        put(&mut fields, "cluster_template", &parent.map(|parent| parent.meta.name.to_string()));
        put(&mut fields, "release", &self.release);
        put(&mut fields, "host_labels", &self.host_labels);
        put(&mut fields, "tags", &self.tags);
        put(&mut fields, "roles", &self.roles);
        put(&mut fields, "rollout", &self.rollout);
        put(&mut fields, "paused", &self.paused);
        put(&mut fields, "primaries", &self.primaries);
        fields
    }
}

/// Magnum's further fields, with the defaults that its API gives.
const MAGNUM: &[Kept] = &[
    Kept::new("keypair", Form::Text(255)),
    Kept::new("node_count", Form::Number).or("1"),
    Kept::new("master_count", Form::Number).or("1"),
    Kept::new("docker_volume_size", Form::Number),
    Kept::new("master_flavor_id", Form::Text(255)),
    Kept::new("flavor_id", Form::Text(255)),
    Kept::new("create_timeout", Form::Number).or("60"),
    Kept::new("discovery_url", Form::Text(255)),
    Kept::new("fixed_network", Form::Text(255)),
    Kept::new("fixed_subnet", Form::Text(255)),
    Kept::new("floating_ip_enabled", Form::Truth),
    Kept::new("master_lb_enabled", Form::Truth),
    Kept::new("health_status", Form::Text(255)),
    Kept::new("health_status_reason", Form::Object).or("{}"),
    Kept::new("project_id", Form::Text(255)),
    Kept::new("user_id", Form::Text(255)),
];
