//! The three upper levels: template, cluster and node group.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ClusterId, Extra, FieldOwners, TagSpec, TemplateId};
use crate::field::{Form, REQUIRED, described, whole};
use crate::host_labels::HostLabels;
use crate::json::free_object;
use crate::labels::{AnnotationLayer, LabelLayer, ParameterLayer};
use crate::lifecycle::Lifecycle;
use crate::name::{Name, ReleaseRef, TagName, cut, suggest};
use crate::requirement::Requirements;
use crate::task::Mode;
use crate::time;

/// What goes down the levels, as one level's author gave it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Inherited {
    /// Labels: inherited, overridden, stopped.
    pub labels: LabelLayer,
    /// Annotations: they always merge.
    pub annotations: AnnotationLayer,
    /// Parameters: what is not a string, per top-level key.
    pub parameters: ParameterLayer,
    /// The lifecycle fields.
    pub lifecycle: Lifecycle,
}

/// Defaults for clusters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterTemplateSpec {
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Labels, annotations, parameters, lifecycle fields.
    pub inherited: Inherited,
    /// What its clusters run, unless a nearer level says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<ReleaseRef>,
    /// Which labels flow to the host label map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_labels: Option<HostLabels>,
    /// Magnum's further fields.
    #[serde(deserialize_with = "free_object", skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
    /// Who gave which field.
    #[serde(skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

/// A cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterSpec {
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Labels, annotations, parameters, lifecycle fields.
    pub inherited: Inherited,
    /// The template; `None`: the cluster is its own top level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_template: Option<TemplateId>,
    /// What its groups run, unless they say otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<ReleaseRef>,
    /// Which labels flow to the host label map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_labels: Option<HostLabels>,
    /// User-defined tags, visible in this cluster alone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<TagName, TagSpec>,
    /// Changes to what its roles produce.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<Name, RoleChange>,
    /// How rollouts go over its groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// No new lease in the whole cluster.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Which node holds a tag as primary, before any stored choice: tag to node name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub primaries: BTreeMap<TagName, String>,
    /// Magnum's further fields.
    #[serde(deserialize_with = "free_object", skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
    /// Who gave which field.
    #[serde(skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

described! {
    /// A cluster's change to what one role produces.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct RoleChange {
        /// Tags that the role produces here as well.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub add_tags: Vec<TagName> = Form::Names, "[]", r#"["canary"]"#;
        /// Tags that it does not produce here.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub remove_tags: Vec<TagName> = Form::Names, "[]", r#"["nginx"]"#;
    }
}

described! {
    /// How rollouts go over a cluster's groups.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Rollout {
        /// How many nodes of the cluster may be unavailable at once.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub max_unavailable: Option<MaxUnavailable> = Form::Share, "no limit", r#""10%""#;
        /// How many groups may roll out at once.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub max_groups: Option<u32> = Form::Count, "no limit", "1";
        /// The order of the groups, by name.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub order: Vec<String> = Form::up_to(4_096, &Form::Names), "none", r#"["databases", "frontends"]"#;
        /// Until this date no new lease is given.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub freeze: Option<FreezeUntil> = Form::Time, "none", r#""2026-12-31T00:00:00Z""#;
    }
}

/// A time as its author wrote it.
pub type FreezeUntil = String;

/// A number of nodes, or a percentage of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaxUnavailable {
    /// That many.
    Nodes(u32),
    /// That share, rounded down, at least one.
    Percent(u8),
}

described! {
    /// How a group's hosts are rolled out.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Strategy {
        /// Whether a rollout goes by itself, or node by node when an operator approves it.
        pub kind as "type": StrategyType = Form::OneOf(&["RollingUpdate", "OnDelete"]), "RollingUpdate", r#""RollingUpdate""#;
        /// How many nodes may be unavailable at once: a number from 1, or a percentage that is rounded down to at least 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub max_unavailable: Option<MaxUnavailable> = Form::Share, "1", r#""25%""#;
        /// How many nodes may fail before the rollout stops.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub max_failures: Option<u32> = Form::Count, "0", "1";
        /// How many nodes go first, or a selector of them.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub canary: Option<Value> = Form::Any, "none", "1";
        /// Whether the rollout waits for a person after the canaries.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub pause_after_canary: bool = Form::Flag, "false", "true";
        /// When new leases are given: days, start, duration, time zone.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub windows: Vec<Value> = Form::ListOf(Window::PARTS), "always", r#"[{"days": ["Mon"], "start": "22:00", "duration": "4h", "time_zone": "Europe/Berlin"}]"#;
    }
}

described! {
    /// When new leases are given, each week again. Kept as it was written: an older program took anything.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Window {
        /// On which days it begins: Mon, Tue, Wed, Thu, Fri, Sat, Sun.
        #[serde(default)]
        pub days: Option<Vec<String>> = Form::Names, "every day", r#"["Mon", "Thu"]"#;
        /// When it begins, as HH:MM.
        pub start: String = Form::Text, REQUIRED, r#""22:00""#;
        /// How long it is open, a week at most.
        pub duration: String = Form::Text, REQUIRED, r#""4h""#;
        /// In which time zone it begins, as the IANA names it.
        #[serde(default)]
        pub time_zone: Option<String> = Form::Text, "UTC", r#""Europe/Berlin""#;
    }
}

/// Whether a rollout goes by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StrategyType {
    /// By itself, within the budget.
    #[default]
    RollingUpdate,
    /// Node by node, when the operator approves it.
    OnDelete,
}

/// The nodes of a cluster that are alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeGroupSpec {
    /// The cluster.
    pub cluster: ClusterId,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Labels, annotations, parameters, lifecycle fields.
    #[serde(default)]
    pub inherited: Inherited,
    /// What its nodes run, if not what the cluster says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<ReleaseRef>,
    /// Which labels flow to the host label map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_labels: Option<HostLabels>,
    /// The roles of its nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Name>,
    /// What a node must have. An unmet one holds the node's next task set.
    #[serde(default, skip_serializing_if = "asks_nothing")]
    pub requirements: Requirements,
    /// How its hosts are rolled out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// No new lease.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The mode of its nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Whether a host mends without a controller what would interrupt it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mend_offline: bool,
    /// Over how long its hosts spread what they do at a change, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub splay_seconds: Option<u32>,
    /// After how many seconds without a word a host counts as silent; 90 unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_after_seconds: Option<u32>,
    /// Magnum's further fields.
    #[serde(default, deserialize_with = "free_object", skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
    /// Who gave which field.
    #[serde(default, skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

impl NodeGroupSpec {
    /// After so many seconds without a word a host counts as silent, where its group does not say.
    pub const SILENT_AFTER_SECONDS: u32 = 90;

    /// A group of that cluster with everything else at its default.
    pub fn new(cluster: ClusterId) -> Self {
        Self {
            cluster,
            description: String::new(),
            inherited: Inherited::default(),
            release: None,
            host_labels: None,
            roles: Vec::new(),
            requirements: Requirements::default(),
            strategy: None,
            paused: false,
            mode: None,
            mend_offline: false,
            splay_seconds: None,
            silent_after_seconds: None,
            extra: Extra::new(),
            owners: FieldOwners::default(),
        }
    }
}

impl Window {
    /// The first field that is wrong, and what is wrong with it.
    ///
    /// # Errors
    /// The field's name, with a sentence.
    pub fn check(&self) -> Result<(), (String, String)> {
        const WEEK: u64 = 7 * 86_400;
        let days = self.days.iter().flatten().enumerate();
        if let Some((at, day)) = days.into_iter().find(|(_, day)| !time::is_day(day)) {
            let why = format!("{:?} is no day: they are Mon, Tue, Wed, Thu, Fri, Sat, Sun", cut(day));
            return Err((format!("days[{at}]"), why));
        }
        if time::minute_of_day(&self.start).is_none() {
            let why = format!("{:?} is no time of a day: write it as 22:00, from 00:00 to 23:59", cut(&self.start));
            return Err(("start".to_owned(), why));
        }
        let length = time::seconds(&self.duration).map_err(|why| ("duration".to_owned(), why.to_string()))?;
        if length > WEEK {
            return Err(("duration".to_owned(), format!("{:?} is longer than a week: say 7d at most", self.duration)));
        }
        let Some(zone) = self.time_zone.as_deref() else { return Ok(()) };
        time::zone_name(zone).map(drop).map_err(|meant| {
            let (zone, meant) = (cut(zone), suggest(meant));
            let why =
                format!("{zone:?} is no name of a time zone{meant}: write one of the IANA's, as Europe/Berlin or UTC");
            ("time_zone".to_owned(), why)
        })
    }
}

fn asks_nothing(requirements: &Requirements) -> bool {
    requirements.0.is_empty()
}

impl Serialize for MaxUnavailable {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nodes(count) => serializer.serialize_u32(*count),
            Self::Percent(share) => serializer.collect_str(&format_args!("{share}%")),
        }
    }
}

impl<'de> Deserialize<'de> for MaxUnavailable {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::read(&Value::deserialize(deserializer)?)
            .ok_or_else(|| serde::de::Error::custom("a whole number of nodes, or a percentage from \"1%\" to \"100%\""))
    }
}

impl MaxUnavailable {
    /// A whole number of at least 1, or a text as `25%` (1 to 100).
    pub fn read(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => u32::try_from(number.as_u64()?).ok().filter(|count| *count > 0).map(Self::Nodes),
            Value::String(text) => {
                let share: u8 = whole(text.strip_suffix('%')?)?;
                (1..=100).contains(&share).then_some(Self::Percent(share))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn y04_a_share_of_nodes_is_written_in_one_way() {
        for (value, expected) in [
            (json!(1), Some(MaxUnavailable::Nodes(1))),
            (json!(4_294_967_295_u32), Some(MaxUnavailable::Nodes(u32::MAX))),
            (json!("1%"), Some(MaxUnavailable::Percent(1))),
            (json!("100%"), Some(MaxUnavailable::Percent(100))),
        ] {
            assert_eq!(MaxUnavailable::read(&value), expected, "{value}");
            assert_eq!(serde_json::to_value(expected).unwrap(), value);
        }
        for value in [
            json!(0),
            json!(-1),
            json!(1.0),
            json!(4_294_967_296_u64),
            json!("5"),
            json!("%"),
            json!("0%"),
            json!("101%"),
            json!("257%"),
            json!("05%"),
            json!("+5%"),
            json!("-5%"),
            json!(" 5%"),
            json!("5 %"),
            json!("5%%"),
            json!("5.0%"),
            json!("1e1%"),
            json!("0x5%"),
            json!("\u{ff15}%"),
            json!(true),
            json!(["5%"]),
            json!(null),
        ] {
            assert_eq!(MaxUnavailable::read(&value), None, "{value}");
        }
    }
}
