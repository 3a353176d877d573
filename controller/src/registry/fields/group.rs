//! The fields of a node group.

use serde_json::{Map, Value, json};
use stemma_core::name::ObjectName;
use stemma_core::object::{ClusterId, Extra, FieldOwners, Inherited, NodeGroupSpec};
use stemma_wire::error::{ApiError, ErrorType};

use super::{Fields, Form, Kept, cluster, invalid, put, release_ref, text, typed, unknown, wrong};
use crate::cache::Model;

impl Fields for NodeGroupSpec {
    const NAMES: &'static [&'static str] = &[
        "cluster",
        "release",
        "host_labels",
        "roles",
        "requirements",
        "strategy",
        "paused",
        "mode",
        "mend_offline",
        "splay",
        "silent_after",
    ];
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
            "cluster" => {
                let Some(parent) = text(name, value.as_ref(), 255)? else { return Ok(()) };
                let parent = ClusterId(cluster(model, name, &parent)?.meta.uuid);
                if parent != self.cluster {
                    return Err(invalid(
                        name,
                        "a node group stays in its cluster; make another group there and move its nodes",
                    ));
                }
            }
            "release" => self.release = release_ref(model, name, value.as_ref())?,
            "host_labels" => self.host_labels = typed(name, value)?,
            "roles" => self.roles = typed(name, value)?,
            "requirements" => self.requirements = value.as_ref().map(requirements).transpose()?.unwrap_or_default(),
            "strategy" => self.strategy = typed(name, value)?,
            "paused" => self.paused = typed(name, value)?,
            "mode" => self.mode = typed(name, value)?,
            "mend_offline" => self.mend_offline = typed(name, value)?,
            "splay" => self.splay_seconds = typed(name, value)?,
            "silent_after" => self.silent_after_seconds = typed(name, value)?,
            other => return Err(unknown::<Self>(other)),
        }
        Ok(())
    }

    fn get(&self, model: &Model) -> Map<String, Value> {
        let mut fields = Map::new();
        let parent = model.clusters.get(self.cluster.0);
        put(&mut fields, "cluster", &parent.map(|parent| parent.meta.name.to_string()));
        put(&mut fields, "release", &self.release);
        put(&mut fields, "host_labels", &self.host_labels);
        put(&mut fields, "roles", &self.roles);
        if !self.requirements.is_empty() {
            fields.insert("requirements".into(), written(&self.requirements));
        }
        put(&mut fields, "strategy", &self.strategy);
        put(&mut fields, "paused", &self.paused);
        put(&mut fields, "mode", &self.mode);
        put(&mut fields, "mend_offline", &self.mend_offline);
        put(&mut fields, "splay", &self.splay_seconds);
        put(&mut fields, "silent_after", &self.silent_after_seconds);
        fields
    }
}

/// Reads `{KEY: EXPRESSION}`, or a list of such where one key has two bounds.
fn requirements(value: &Value) -> Result<Vec<(String, String)>, ApiError> {
    let maps: Vec<&Value> = match value {
        Value::Object(_) => vec![value],
        Value::Array(list) => list.iter().collect(),
        other => return Err(wrong("requirements", "a map of keys and expressions, or a list of such", other)),
    };
    let mut read = Vec::new();
    for map in maps {
        let map = map.as_object().ok_or_else(|| wrong("requirements", "a map of keys and expressions", map))?;
        for (key, expression) in map {
            let Value::String(expression) = expression else {
                return Err(wrong(&format!("requirements.{key}"), "an expression, a text,", expression));
            };
            read.push((key.clone(), expression.clone()));
        }
    }
    if read.len() > MOST_REQUIREMENTS {
        let message = format!("a node group has at most {MOST_REQUIREMENTS} requirements, this one {}", read.len());
        return Err(ApiError::new(ErrorType::RequirementInvalid, message).field("requirements"));
    }
    Ok(read)
}

const MOST_REQUIREMENTS: usize = 64;

fn written(requirements: &[(String, String)]) -> Value {
    let map: Map<String, Value> = requirements.iter().map(|(key, e)| (key.clone(), e.clone().into())).collect();
    if map.len() == requirements.len() {
        return Value::Object(map);
    }
    requirements.iter().map(|(key, expression)| json!({key: expression})).collect()
}

/// Magnum's further fields, with the defaults that its API gives.
const MAGNUM: &[Kept] = &[
    Kept::new("docker_volume_size", Form::Number),
    Kept::new("flavor_id", Form::Text(255)),
    Kept::new("image_id", Form::Text(255)),
    Kept::new("node_count", Form::Number).or("1"),
    Kept::new("role", Form::Text(255)).or("\"worker\""),
    Kept::new("min_node_count", Form::Number).or("0"),
    Kept::new("max_node_count", Form::Number),
    Kept::new("is_default", Form::Truth).or("false"),
    Kept::new("node_labels", Form::Object).or("{}"),
    Kept::new("node_taints", Form::List).or("[]"),
    Kept::new("project_id", Form::Text(255)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_come_back_as_they_went_in() {
        for given in [json!({"a": "1", "trait:X": "required"}), json!([{"m": ">= 1"}, {"m": "<= 9"}])] {
            assert_eq!(written(&requirements(&given).unwrap()), given);
        }
        for wrong in [json!("x"), json!({"a": 1}), json!([["a", "b"]])] {
            assert!(requirements(&wrong).is_err(), "{wrong}");
        }
    }
}
