//! The three upper levels: cluster template, cluster and node group.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ClusterId, Extra, FieldOwners, TagSpec, TemplateId};
use crate::field::{FieldType, REQUIRED, manifest_struct, parse_integer};
use crate::host_labels::HostLabels;
use crate::json::deserialize_free_object;
use crate::labels::{AnnotationLayer, LabelLayer, ParameterLayer};
use crate::lifecycle::Lifecycle;
use crate::name::{Name, ReleaseRef, TagName, did_you_mean, truncated};
use crate::requirement::Requirements;
use crate::task::Mode;
use crate::time;

/// The values of one level that the levels below inherit, as authors wrote them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Inherited {
    /// Labels. A lower level can override a label or remove it.
    pub labels: LabelLayer,
    /// Annotations. They are always merged with the inherited ones.
    pub annotations: AnnotationLayer,
    /// Parameters: values of any JSON type, by top-level key.
    pub parameters: ParameterLayer,
    /// The lifecycle fields, such as the timeout of a drain. Nothing acts on them yet.
    pub lifecycle: Lifecycle,
}

/// A cluster template: defaults for clusters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterTemplateSpec {
    /// A description for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Labels, annotations, parameters and lifecycle fields.
    pub inherited: Inherited,
    /// The release of its clusters, unless a lower level sets another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<ReleaseRef>,
    /// The rules for labels in the host label map and for labels that hosts set. `None` for the default rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_labels: Option<HostLabels>,
    /// Other fields of Magnum's cluster templates. They are stored and returned, and have no effect here.
    #[serde(deserialize_with = "deserialize_free_object", skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
    /// The owners of each field.
    #[serde(skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

/// A cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterSpec {
    /// A description for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Labels, annotations, parameters and lifecycle fields.
    pub inherited: Inherited,
    /// The template of the cluster, or `None` if the cluster is the top level itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_template: Option<TemplateId>,
    /// The release of its groups, unless they set another. `None` for the release of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<ReleaseRef>,
    /// The rules for labels in the host label map and for labels that hosts set. `None` to inherit the rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_labels: Option<HostLabels>,
    /// User-defined tags, visible in this cluster only.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<TagName, TagSpec>,
    /// Changes to the tags that its roles produce.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<Name, RoleChange>,
    /// The limits and the order of a rollout over its groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// True if no new task set is released to the nodes of the cluster.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The name or uuid of the node that is to be primary of a tag, by tag. If this node has the tag, it is the
    /// primary, and the stored choice of a primary has no effect.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub primaries: BTreeMap<TagName, String>,
    /// Other fields of Magnum's clusters. They are stored and returned, and have no effect here.
    #[serde(deserialize_with = "deserialize_free_object", skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
    /// The owners of each field.
    #[serde(skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

manifest_struct! {
    /// A cluster's change to the tags that one role produces.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct RoleChange {
        /// Tags that the role produces here as well.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub add_tags: Vec<TagName> = FieldType::Names, "[]", r#"["canary"]"#;
        /// Tags that the role does not produce here.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub remove_tags: Vec<TagName> = FieldType::Names, "[]", r#"["nginx"]"#;
    }
}

manifest_struct! {
    /// The limits and the order of a rollout over the groups of a cluster. Nothing acts on them yet: task sets are
    /// released to all hosts at once.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Rollout {
        /// Maximum number of nodes of the cluster that may be unavailable at once: a number, or a percentage.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub max_unavailable: Option<MaxUnavailable> = FieldType::Share, "no limit", r#""10%""#;
        /// Maximum number of groups that roll out at once.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub max_groups: Option<u32> = FieldType::Count, "no limit", "1";
        /// The names of the groups, in the order in which they roll out.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub order: Vec<String> = FieldType::up_to(4_096, &FieldType::Names), "none", r#"["databases", "frontends"]"#;
        /// The time until which no new task set is released to hosts.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub freeze: Option<FreezeUntil> = FieldType::Time, "none", r#""2026-12-31T00:00:00Z""#;
    }
}

/// The time until which no new task set is to be released to the hosts of a cluster, as its author wrote it.
pub type FreezeUntil = String;

/// The maximum number of nodes that may be unavailable at once in a rollout: a number, or a percentage of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaxUnavailable {
    /// A number of nodes.
    Nodes(u32),
    /// A percentage of the nodes, rounded down, but at least one node.
    Percent(u8),
}

manifest_struct! {
    /// The rules for a rollout over the hosts of a group. Nothing acts on them yet: task sets are released to all hosts
    /// at once.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Strategy {
        /// The way in which a rollout proceeds: automatically (`RollingUpdate`), or node by node when an operator approves it (`OnDelete`).
        pub kind as "type": StrategyType = FieldType::OneOf(&["RollingUpdate", "OnDelete"]), "RollingUpdate", r#""RollingUpdate""#;
        /// Maximum number of nodes that may be unavailable at once: a number from 1, or a percentage that is rounded down to at least 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub max_unavailable: Option<MaxUnavailable> = FieldType::Share, "1", r#""25%""#;
        /// Maximum number of nodes that may fail; if another node fails, the rollout stops.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub max_failures: Option<u32> = FieldType::Count, "0", "1";
        /// The nodes that roll out first: their number, or a selector of their labels.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub canary: Option<Value> = FieldType::Any, "none", "1";
        /// True if the rollout waits for an operator after the first nodes (the canaries).
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub pause_after_canary: bool = FieldType::Flag, "false", "true";
        /// The periods in which new task sets are released to hosts: days, start, duration, time zone.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub windows: Vec<Value> = FieldType::ListOf(Window::FIELD_DEFS), "always", r#"[{"days": ["Mon"], "start": "22:00", "duration": "4h", "time_zone": "Europe/Berlin"}]"#;
    }
}

manifest_struct! {
    /// A period in which new task sets are released to hosts, on each day or on some days of the week. Nothing acts on
    /// it yet. A spec stores the JSON as written instead of this type, because older versions accepted any text.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Window {
        /// The days on which the window opens: Mon, Tue, Wed, Thu, Fri, Sat, Sun.
        #[serde(default)]
        pub days: Option<Vec<String>> = FieldType::Names, "every day", r#"["Mon", "Thu"]"#;
        /// The time at which the window opens, as HH:MM.
        pub start: String = FieldType::Text, REQUIRED, r#""22:00""#;
        /// The length of the window, at most a week.
        pub duration: String = FieldType::Text, REQUIRED, r#""4h""#;
        /// The IANA name of the time zone of `start`.
        #[serde(default)]
        pub time_zone: Option<String> = FieldType::Text, "UTC", r#""Europe/Berlin""#;
    }
}

/// The way in which a rollout over the hosts of a group proceeds: automatically, or by approval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StrategyType {
    /// A rollout that proceeds automatically, within the maximum number of unavailable nodes.
    #[default]
    RollingUpdate,
    /// A rollout that changes a node when an operator approves it.
    OnDelete,
}

/// A node group: nodes of a cluster with the same configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeGroupSpec {
    /// The cluster of the group.
    pub cluster: ClusterId,
    /// A description for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Labels, annotations, parameters and lifecycle fields.
    #[serde(default)]
    pub inherited: Inherited,
    /// The release of its nodes, or `None` for the release of the nearest level above that sets one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<ReleaseRef>,
    /// The rules for labels in the host label map and for labels that hosts set. `None` to inherit the rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_labels: Option<HostLabels>,
    /// The roles of its nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Name>,
    /// The requirements that a node must meet. A node that does not meet one does not get its next task set.
    #[serde(default, skip_serializing_if = "requires_nothing")]
    pub requirements: Requirements,
    /// The rules for a rollout over its hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// True if no new task set is released to the nodes of the group.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The mode of its nodes, if a node does not set its own. If neither is set, the mode is `apply`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// True if a host without a connection to a controller may run mends that interrupt the host. Nothing acts on this
    /// field yet: hosts correct drift without a controller, whatever the value is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mend_offline: bool,
    /// True if its hosts remove files that only tasks wrote, that nobody changed since, and that no task manages any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remove_orphans: bool,
    /// The number of seconds over which its hosts spread their hooks (programs of the site that run on a host after a
    /// change of labels, annotations, traits or tags). Each host waits for a random part of it. `None` means 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub splay_seconds: Option<u32>,
    /// The number of seconds without contact after which a host counts as silent. The default is 90.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_after_seconds: Option<u32>,
    /// Other fields of Magnum's node groups. They are stored and returned, and have no effect here.
    #[serde(default, deserialize_with = "deserialize_free_object", skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
    /// The owners of each field.
    #[serde(default, skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

impl NodeGroupSpec {
    /// The default number of seconds without contact after which a host counts as silent.
    pub const DEFAULT_SILENT_AFTER_SECONDS: u32 = 90;

    /// Creates a group of this cluster. All other fields have their defaults.
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
            remove_orphans: false,
            splay_seconds: None,
            silent_after_seconds: None,
            extra: Extra::new(),
            owners: FieldOwners::default(),
        }
    }
}

impl Window {
    /// Checks the days, the start, the duration and the time zone of the window.
    ///
    /// # Errors
    /// Returns the first invalid field and a message about it.
    pub fn check(&self) -> Result<(), (String, String)> {
        const WEEK_SECONDS: u64 = 7 * 86_400;
        let days = self.days.iter().flatten().enumerate();
        if let Some((index, day)) = days.into_iter().find(|(_, day)| !time::is_weekday(day)) {
            let why = format!("{:?} is not a day: use Mon, Tue, Wed, Thu, Fri, Sat or Sun", truncated(day));
            return Err((format!("days[{index}]"), why));
        }
        if time::parse_minute_of_day(&self.start).is_none() {
            let why = format!("{:?} is not a time of day: write it as 22:00, from 00:00 to 23:59", truncated(&self.start));
            return Err(("start".to_owned(), why));
        }
        let duration_seconds = time::parse_duration(&self.duration).map_err(|why| ("duration".to_owned(), why.to_string()))?;
        if duration_seconds > WEEK_SECONDS {
            return Err(("duration".to_owned(), format!("{:?} is longer than a week: the maximum is 7d", self.duration)));
        }
        let Some(zone) = self.time_zone.as_deref() else { return Ok(()) };
        // The error of `time_zone_name` is the most similar name of a time zone, if there is one.
        time::time_zone_name(zone).map(drop).map_err(|similar| {
            let (zone, suggestion) = (truncated(zone), did_you_mean(similar));
            let why = format!("{zone:?} is not a time zone{suggestion}: use an IANA name, such as Europe/Berlin or UTC");
            ("time_zone".to_owned(), why)
        })
    }
}

/// Returns whether there is no requirement. If so, the field is not serialized.
fn requires_nothing(requirements: &Requirements) -> bool {
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
        Self::parse(&Value::deserialize(deserializer)?)
            .ok_or_else(|| serde::de::Error::custom("a whole number of nodes, or a percentage from \"1%\" to \"100%\""))
    }
}

impl MaxUnavailable {
    /// Parses an integer of at least 1, or a percentage such as `25%` (1 to 100). Returns `None` for any other value.
    pub fn parse(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => u32::try_from(number.as_u64()?).ok().filter(|count| *count > 0).map(Self::Nodes),
            Value::String(text) => {
                let share: u8 = parse_integer(text.strip_suffix('%')?)?;
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
    fn y04_max_unavailable_accepts_only_count_or_percentage() {
        for (value, expected) in [
            (json!(1), Some(MaxUnavailable::Nodes(1))),
            (json!(4_294_967_295_u32), Some(MaxUnavailable::Nodes(u32::MAX))),
            (json!("1%"), Some(MaxUnavailable::Percent(1))),
            (json!("100%"), Some(MaxUnavailable::Percent(100))),
        ] {
            assert_eq!(MaxUnavailable::parse(&value), expected, "{value}");
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
            assert_eq!(MaxUnavailable::parse(&value), None, "{value}");
        }
    }
}
