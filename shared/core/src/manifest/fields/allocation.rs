//! The fields of an allocation, which the API's bodies have and no manifest.

use serde_json::Value;
use serde_json::value::RawValue;

use super::super::error::{BodyError, BodyErrorKind, no_object};
use super::super::extra::{self, Kept};
use super::super::names::Names;
use super::super::parts::name;
use super::super::reader::read;
use super::super::sound;
use super::node::read_group;
use super::{Field, Fields, field, shown};
use crate::field::{Form, Help, Part, REQUIRED};
use crate::object::{AllocationSpec, Extra, FieldOwners, Kind, NodeId};
use crate::traits::{MAX_TRAITS, Trait};

impl Fields for AllocationSpec {
    const FIELDS: &'static [Field<Self>] = &[
        field!(
            Self,
            resource_class: Form::Text,
            Help::new(REQUIRED, "The node's, letter by letter.", r#""baremetal""#),
            sound::needed_name
        ),
        field!(
            Self,
            traits: Form::up_to(MAX_TRAITS, &Form::Names),
            Help::new("[]", "The node has all of these; its instance wants them from then on.", r#"["CUSTOM_GPU"]"#),
            read_traits
        ),
        field!(
            Self,
            requirements: Form::MapOrList,
            Help::new("{}", "What the node must have: KEY to EXPRESSION.", r#"{"property:memory_mb": ">= 65536"}"#),
            sound::requirements
        ),
        Field {
            name: "candidate_nodes",
            form: Form::up_to(1_000, &Form::Names),
            help: Help::new(
                "[]",
                "The node is one of these, by name or uuid; any where none is named.",
                r#"["web-1"]"#,
            ),
            read: |spec, raw, names| {
                let given: Option<Vec<String>> = read(raw)?;
                spec.candidate_nodes =
                    given.unwrap_or_default().iter().map(|name| node(name, names)).collect::<Result<_, _>>()?;
                Ok(())
            },
            show: |spec, _| shown(&spec.candidate_nodes),
        },
        Field {
            name: "nodegroup",
            form: Form::Text,
            help: Help::new(
                "none",
                "The node is in this group, CLUSTER/GROUP, and meets what it requires.",
                r#""prod/frontends""#,
            ),
            read: |spec, raw, names| read_group(&mut spec.nodegroup, raw, names),
            show: |spec, names| {
                spec.nodegroup.map_or(Value::Null, |id| shown(&names.group_name(id).unwrap_or(id.to_string())))
            },
        },
        field!(
            Self,
            owner: Form::Text,
            Help::new("anybody", "Who owns the node, or leases it.", r#""project-1""#),
            sound::naming
        ),
    ];
    const NAMED_BY: &'static [Part] = &[name(r#""job-1""#)];
    const EXTRA: &'static [Kept] = extra::ALLOCATION;

    fn extra(&mut self) -> &mut Extra {
        &mut self.extra
    }

    fn extra_ref(&self) -> &Extra {
        &self.extra
    }

    fn owners(&mut self) -> &mut FieldOwners {
        &mut self.owners
    }
    fn owners_ref(&self) -> &FieldOwners {
        &self.owners
    }
}

fn node(name: &str, names: &dyn Names) -> Result<NodeId, BodyError> {
    names.node(name).ok_or_else(|| no_object("", (Kind::Node, "node"), name, names))
}

/// Each once, in the order in which they were asked for.
fn read_traits(to: &mut Vec<Trait>, raw: &RawValue, names: &dyn Names) -> Result<(), BodyError> {
    to.clear();
    for (at, name) in read::<Option<Vec<String>>>(raw)?.unwrap_or_default().iter().enumerate() {
        let wrong = |why: String| BodyError::of(BodyErrorKind::Trait, format!("[{at}]"), why);
        let name = names.traits().parse(name).map_err(|why| wrong(why.to_string()))?;
        if !to.contains(&name) {
            to.push(name);
        }
    }
    Ok(())
}
