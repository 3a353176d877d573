//! The fields of a node. Traits and tags by hand are fields of their own, one an entry: `traits.CUSTOM_A`,
//! `tags.assigned.mysql`, so that several authors can share them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::name::{NodeName, TagName};
use stemma_core::object::{Extra, FieldOwners, GroupId, Inherited, NodeSpec};
use stemma_core::ownership::{Entry, OwnedMap, OwnedSet, Owner, Said};
use stemma_core::traits::TraitNames;
use stemma_wire::error::{ApiError, ErrorType};

use super::{Fields, Form, Kept, group, invalid, put, text, typed, unknown, wrong};
use crate::cache::Model;

impl Fields for NodeSpec {
    const NAMES: &'static [&'static str] = &[
        "nodegroup",
        "roles",
        "tags",
        "traits",
        "suppressed_traits",
        "properties",
        "instance_info",
        "mode",
        "hold",
        "parked",
    ];
    const KEPT: &'static [Kept] = IRONIC;
    const HAS_LEVELS: bool = true;

    fn name(text: &str) -> Result<Option<NodeName>, ApiError> {
        NodeName::new(text).map(Some).map_err(|e| invalid("name", e))
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
        let mut owners = self.owners.clone();
        owners.extend(owners_of("traits.", &self.traits));
        owners.extend(owners_of("tags.assigned.", &self.tags.assigned));
        owners.extend(owners_of("tags.unassigned.", &self.tags.unassigned));
        owners
    }

    fn set_owners(&mut self, owners: FieldOwners) {
        self.traits = owned_by("traits.", &self.traits, &owners);
        self.tags.assigned = owned_by("tags.assigned.", &self.tags.assigned, &owners);
        self.tags.unassigned = owned_by("tags.unassigned.", &self.tags.unassigned, &owners);
        let is_entry = |name: &str| name.starts_with("traits.") || name.starts_with("tags.");
        self.owners = owners.into_iter().filter(|(name, _)| !is_entry(name)).collect();
    }

    fn set(&mut self, model: &Model, name: &str, value: Option<Value>) -> Result<(), ApiError> {
        if let Some((list, entry)) = name.split_once('.') {
            return self.set_entry(list, entry, value.is_some());
        }
        match name {
            "nodegroup" => {
                let parent = text(name, value.as_ref(), 520)?.map(|parent| group(model, name, &parent).cloned());
                self.nodegroup = parent.transpose()?.map(|parent| GroupId(parent.meta.uuid));
            }
            "roles" => {
                self.roles = typed(name, value)?;
                let mut seen = std::collections::BTreeSet::new();
                self.roles.retain(|role| seen.insert(role.clone()));
            }
            "properties" => self.properties = typed(name, value)?,
            "instance_info" => self.instance_info = typed(name, value)?,
            "mode" => self.mode = typed(name, value)?,
            "hold" => self.hold = typed(name, value)?,
            "parked" => self.parked = typed(name, value)?,
            other => return Err(unknown::<Self>(other)),
        }
        Ok(())
    }

    fn get(&self, model: &Model) -> Map<String, Value> {
        let mut fields = Map::new();
        put(&mut fields, "nodegroup", &self.nodegroup.and_then(|id| group_path(model, id)));
        put(&mut fields, "roles", &self.roles);
        fields.extend(entry_names(self).map(|entry| (entry, Value::Bool(true))));
        put(&mut fields, "properties", &self.properties);
        put(&mut fields, "instance_info", &self.instance_info);
        put(&mut fields, "mode", &self.mode);
        put(&mut fields, "hold", &self.hold);
        put(&mut fields, "parked", &self.parked);
        fields
    }

    fn entries(name: &str, value: &Value) -> Result<Option<Vec<(String, Value)>>, ApiError> {
        let all = |list: &str, value: &Value| -> Result<Vec<(String, Value)>, ApiError> {
            let names: Vec<String> = match value {
                Value::Null => Vec::new(),
                value => serde_json::from_value(value.clone()).map_err(|_| wrong(list, "a list of names", value))?,
            };
            Ok(names.into_iter().map(|name| (format!("{list}.{name}"), Value::Bool(true))).collect())
        };
        match (name, value) {
            ("traits" | "suppressed_traits", value) => all(name, value).map(Some),
            ("tags", Value::Null) => Ok(Some(Vec::new())),
            ("tags", Value::Object(tags)) => {
                let mut entries = Vec::new();
                for (list, value) in tags {
                    match list.as_str() {
                        "assigned" | "unassigned" => entries.extend(all(&format!("tags.{list}"), value)?),
                        other => return Err(invalid("tags", format!("it has assigned and unassigned, not {other:?}"))),
                    }
                }
                Ok(Some(entries))
            }
            ("tags", other) => Err(wrong(name, "{\"assigned\": […], \"unassigned\": […]}", other)),
            _ => Ok(None),
        }
    }

    fn check(&self, _model: &Model) -> Result<(), ApiError> {
        if self.traits.len() > MOST_TRAITS {
            let message = format!(
                "a node has at most {MOST_TRAITS} traits from its operators, this would be {}",
                self.traits.len()
            );
            return Err(ApiError::new(ErrorType::TraitInvalid, message).field("traits"));
        }
        let both = self.tags.assigned.members().find(|tag| self.tags.unassigned.get(*tag).is_some());
        both.map_or(Ok(()), |tag| Err(invalid("tags", format!("{tag} can't be assigned and unassigned at once"))))
    }
}

/// As Ironic's specification has it, for each source.
pub const MOST_TRAITS: usize = 50;

trait Entries {
    fn set_entry(&mut self, list: &str, entry: &str, present: bool) -> Result<(), ApiError>;
}

impl Entries for NodeSpec {
    fn set_entry(&mut self, list: &str, entry: &str, present: bool) -> Result<(), ApiError> {
        match (list, entry.split_once('.')) {
            ("traits", _) => change(&mut self.traits, trait_name(entry, present)?, present),
            ("suppressed_traits", _) if present => drop(self.suppressed_traits.insert(trait_name(entry, present)?)),
            ("suppressed_traits", _) => drop(self.suppressed_traits.remove(entry)),
            ("tags", Some(("assigned", tag))) => change(&mut self.tags.assigned, tag_name(tag)?, present),
            ("tags", Some(("unassigned", tag))) => change(&mut self.tags.unassigned, tag_name(tag)?, present),
            _ => return Err(unknown::<Self>(list)),
        }
        Ok(())
    }
}

/// Adds or takes away a member; who owns it is written when the owners are.
fn change<K: Ord + Clone + fmt::Display>(set: &mut OwnedSet<K>, member: K, present: bool) {
    let mut entries: BTreeMap<K, Entry<()>> = set.iter().map(|(key, entry)| (key.clone(), entry.clone())).collect();
    if present {
        entries.entry(member).or_insert_with(|| Entry { said: Said::Value(()), owners: Arc::from([]), since_ms: None });
    } else {
        entries.remove(&member);
    }
    *set = OwnedMap::from_entries(entries);
}

fn owners_of<K: Ord + fmt::Display>(prefix: &str, set: &OwnedSet<K>) -> Vec<(String, Arc<[Owner]>)> {
    set.iter().map(|(key, entry)| (format!("{prefix}{key}"), Arc::clone(&entry.owners))).collect()
}

fn owned_by<K: Ord + Clone + fmt::Display>(prefix: &str, set: &OwnedSet<K>, owners: &FieldOwners) -> OwnedSet<K> {
    OwnedMap::from_entries(set.iter().map(|(key, entry)| {
        let owners = owners.get(&format!("{prefix}{key}")).cloned().unwrap_or_else(|| Arc::clone(&entry.owners));
        (key.clone(), Entry { owners, ..entry.clone() })
    }))
}

fn entry_names(spec: &NodeSpec) -> impl Iterator<Item = String> {
    (spec.tags.assigned.members().map(|tag| format!("tags.assigned.{tag}")))
        .chain(spec.tags.unassigned.members().map(|tag| format!("tags.unassigned.{tag}")))
        .chain(spec.traits.members().map(|name| format!("traits.{name}")))
        .chain(spec.suppressed_traits.iter().map(|name| format!("suppressed_traits.{name}")))
}

fn tag_name(tag: &str) -> Result<TagName, ApiError> {
    TagName::new(tag).map_err(|e| invalid("tags", e))
}

/// A name that is given is checked against the vocabulary; one that is taken away need not be in it any more.
fn trait_name(name: &str, present: bool) -> Result<Arc<str>, ApiError> {
    if present {
        let refused = |e: stemma_core::traits::InvalidTrait| {
            ApiError::new(ErrorType::TraitInvalid, e.to_string()).field("traits")
        };
        TraitNames::default().parse(name).map_err(refused)?;
    }
    Ok(name.into())
}

/// How a group is named from outside of its cluster.
pub fn group_path(model: &Model, id: GroupId) -> Option<String> {
    let group = model.groups.get(id.0)?;
    let cluster = model.clusters.get(group.spec.cluster.0)?;
    Some(format!("{}/{}", cluster.meta.name, group.meta.name))
}

/// The operators' traits and tags as lists again, as bodies and manifests show them.
pub fn lists(spec: &NodeSpec) -> [(&'static str, Value); 3] {
    let assigned: Vec<_> = spec.tags.assigned.members().collect();
    let unassigned: Vec<_> = spec.tags.unassigned.members().collect();
    [
        ("traits", json!(spec.traits.members().collect::<Vec<_>>())),
        ("suppressed_traits", json!(spec.suppressed_traits)),
        ("tags", json!({"assigned": assigned, "unassigned": unassigned})),
    ]
}

/// Ironic's further fields, with the defaults that its API gives.
const IRONIC: &[Kept] = &[
    Kept::new("driver", Form::Text(255)),
    Kept::new("driver_info", Form::Object).or("{}"),
    Kept::new("extra", Form::Object).or("{}"),
    Kept::new("resource_class", Form::Text(80)),
    Kept::new("instance_uuid", Form::Text(36)),
    Kept::new("instance_name", Form::Text(255)),
    Kept::new("chassis_uuid", Form::Text(36)),
    Kept::new("parent_node", Form::Text(255)),
    Kept::new("conductor_group", Form::Text(255)).or("\"\""),
    Kept::new("automated_clean", Form::Truth),
    Kept::new("owner", Form::Text(255)),
    Kept::new("lessee", Form::Text(255)),
    Kept::new("network_data", Form::Object).or("{}"),
    Kept::new("protected", Form::Truth).or("false"),
    Kept::new("protected_reason", Form::Text(255)),
    Kept::new("retired", Form::Truth).or("false"),
    Kept::new("retired_reason", Form::Text(255)),
    Kept::new("maintenance_reason", Form::Text(255)),
    Kept::new("shard", Form::Text(255)),
    Kept::new("disable_power_off", Form::Truth).or("false"),
    Kept::new("console_enabled", Form::Truth).or("false"),
    Kept::new("bios_interface", Form::Text(255)),
    Kept::new("boot_interface", Form::Text(255)),
    Kept::new("console_interface", Form::Text(255)),
    Kept::new("deploy_interface", Form::Text(255)),
    Kept::new("firmware_interface", Form::Text(255)),
    Kept::new("inspect_interface", Form::Text(255)),
    Kept::new("management_interface", Form::Text(255)),
    Kept::new("network_interface", Form::Text(255)),
    Kept::new("power_interface", Form::Text(255)),
    Kept::new("raid_interface", Form::Text(255)),
    Kept::new("rescue_interface", Form::Text(255)),
    Kept::new("storage_interface", Form::Text(255)),
    Kept::new("vendor_interface", Form::Text(255)),
];
