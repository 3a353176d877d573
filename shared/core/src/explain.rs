//! Explains why a label, tag, task or trait of a node has its state. The explanation is read from the provenance in the
//! resolved node, and nothing is resolved again. The result is a JSON value, so that every program shows the same one.

use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::input::Read;
use crate::key::LabelValue;
use crate::labels::{FillEffect, LabelLayer, LevelEffect, Provenance};
use crate::name::{Name, PRIMARY_PREFIX};
use crate::object::{NodeId, Timestamp};
use crate::origin::{Level, Origin};
use crate::release::{Profile, TaskIndex};
use crate::resolve::{NodeBlocker, Resolution, ResolvedNode};
use crate::role::{RoleTable, TagOrigin};
use crate::status::TaskOutcome;
use crate::traits::TraitNames;

/// The fleet, and a function that resolves its nodes.
#[derive(Clone, Copy)]
pub struct FleetContext<'a> {
    /// The fleet.
    pub fleet: &'a Fleet,
    /// Resolves a node of the fleet.
    pub resolve: &'a dyn Fn(NodeId) -> Resolution,
}

/// Explains the value of a label: what each level, inspection rule and the host provides, and which tasks read it.
pub fn explain_label(answer: &ResolvedNode, key: &str, time: fn(Timestamp) -> String) -> Value {
    let labels = answer.labels();
    let line = labels.provenance(key);
    let observed = answer.observation().and_then(|seen| {
        let label = seen.labels.iter().find(|label| *label.key == *key)?;
        Some((label.value.to_string(), label.source.to_string()))
    });
    let host_offer = line.and_then(|line| line.fill_effects().find(|(offer, _)| offer.origin == Origin::Host));
    let result = || match &host_offer {
        Some((_, effect)) => fill_effect_text(effect),
        None => "no effect: host_labels.accept does not contain the key".to_owned(),
    };
    let reported: Vec<Value> =
        observed.iter().map(|(value, source)| json!({"value": value, "source": source, "result": result()})).collect();
    let is_exported = answer.host_labels().map_labels(&labels).exported.contains(key);
    json!({
        "label": key,
        "value": line.and_then(Provenance::value).map(LabelValue::as_str),
        "levels": explain_levels(answer, line, time),
        "rules": explain_rules(line),
        "reported": reported,
        "used_by": tasks_reading(answer, key),
        "flows_to": if is_exported { vec!["/run/stemma/labels.json", "node label map"] } else { vec!["/run/stemma/labels.json"] },
        "to_host_map": is_exported,
    })
}

/// Returns what each level provides, farthest level first. Levels that provide nothing are included.
fn explain_levels(answer: &ResolvedNode, line: Option<&Provenance<LabelValue>>, time: fn(Timestamp) -> String) -> Vec<Value> {
    let mut rows = Vec::new();
    let mut row = |level: Level, object: String, layer: &LabelLayer| {
        let outcome = line.and_then(|line| line.level_effects().find(|(statement, _)| statement.level == level));
        let row = match outcome {
            None => {
                // The farthest level has nothing above it.
                let replaces = !rows.is_empty() && layer.is_replacing();
                let result = if replaces { "replaces what is above" } else { "says nothing" };
                json!({"level": level.name(), "object": object, "says": null, "stops": false, "merges": !replaces, "owners": [], "result": result})
            }
            Some((statement, effect)) => json!({
                "level": level.name(), "object": object, "says": statement.value.value().map(LabelValue::as_str), "stops": statement.value.is_tombstone(),
                "merges": statement.is_merging, "owners": *statement.owners, "result": level_effect_text(effect),
                "since": statement.since_ms.map(|ms| time(Timestamp(ms))),
            }),
        };
        rows.push(row);
    };
    if let Some(resolved) = answer.resolved_group() {
        if let Some(template) = &resolved.template {
            row(Level::ClusterTemplate, template.meta.name.to_string(), &template.spec.inherited.labels);
        }
        row(Level::Cluster, resolved.cluster.meta.name.to_string(), &resolved.cluster.spec.inherited.labels);
        row(Level::NodeGroup, resolved.path(), &resolved.group.spec.inherited.labels);
    }
    row(Level::Node, answer.node().display_name(), &answer.node().spec.inherited.labels);
    rows
}

/// Returns what inspection rules would fill in, in the order of their evaluation.
fn explain_rules(line: Option<&Provenance<LabelValue>>) -> Vec<Value> {
    let rows = line.into_iter().flat_map(Provenance::fill_effects).filter_map(|(offer, effect)| match &offer.origin {
        Origin::Rule(rule) => Some(json!({"rule": rule, "says": offer.value.as_str(), "result": fill_effect_text(&effect)})),
        Origin::Default | Origin::Level(_) | Origin::Host => None,
    });
    rows.collect()
}

/// Returns the effect of a value that a rule or the host would fill in.
fn fill_effect_text(effect: &FillEffect) -> String {
    match effect {
        FillEffect::Wins => "wins".to_owned(),
        FillEffect::DecidedBy(level) => format!("no effect: the {level} decides the key"),
        FillEffect::FilledBy(origin) => format!("no effect: {origin} fills the key"),
        FillEffect::Restricted => "no effect: the key is restricted".to_owned(),
    }
}

fn level_effect_text(effect: LevelEffect) -> String {
    match effect {
        LevelEffect::Wins => "wins".to_owned(),
        LevelEffect::OverriddenBy(level) => format!("overridden by the {level}"),
        LevelEffect::Tombstone => "stops what is above".to_owned(),
        LevelEffect::TombstonedBy(level) => format!("stopped by the {level}"),
        LevelEffect::ReplacedBy(level) => format!("not merged by the {level}"),
        LevelEffect::NoEffect => "null where nothing is merged: no effect".to_owned(),
    }
}

/// Returns the tasks of the node that read a label.
fn tasks_reading(answer: &ResolvedNode, key: &str) -> Vec<String> {
    let Some(set) = answer.task_set() else { return Vec::new() };
    let release = &set.profile.release;
    let reads = |read: &Read| match read {
        Read::Label(name) => **name == *key,
        Read::LabelsWithPrefix(prefix) => key.starts_with(&**prefix),
        _ => false,
    };
    let using = set.profile.tasks.iter().filter(|ix| release.task(**ix).references.iter().any(|r| reads(r.read())));
    using.map(|ix| release.id(*ix).to_owned()).collect()
}

/// Explains why a node has a tag, or lacks it. `change` in the result is the verb with which an operator can change
/// that, if there is one.
pub fn explain_tag(fleet: FleetContext<'_>, answer: &ResolvedNode, tag: &str) -> Value {
    if let Some(plain) = tag.strip_prefix(PRIMARY_PREFIX) {
        return explain_primary_tag(fleet, answer, tag, plain);
    }
    let node = answer.node();
    let table = answer.resolved_group().and_then(|resolved| resolved.role_table.as_ref());
    let effective = table.map(|table| table.effective_tags(&answer.roles(), &node.spec.tags)).unwrap_or_default();
    let origin = effective.iter().find(|(name, _)| ***name == *tag).map(|(_, origin)| origin);
    let change = match (origin, table.is_some_and(|table| table.is_visible(tag))) {
        (Some(_), _) => Some("unassign"),
        (None, true) => Some("assign"),
        (None, false) => None,
    };
    let produces = |table: &RoleTable, role: &Name| table.produced_tags(role, &node.spec.tags).any(|given| **given == *tag);
    let is_produced = table.is_some_and(|table| answer.roles().iter().any(|role| produces(table, role)));
    let unassigned = node.spec.tags.unassigned.members().any(|name| **name == *tag);
    let primary = answer.task_set().is_some_and(|set| set.primary_tags().iter().any(|name| **name == *tag));
    let mut why = match origin {
        Some(TagOrigin::Roles { roles, extensions }) => {
            let names: Vec<&str> = roles.iter().map(Name::as_str).collect();
            let by = match extensions.iter().map(String::as_str).collect::<Vec<_>>().join(", ") {
                none if none.is_empty() => none,
                names => format!(", as extension {names} decided"),
            };
            match &names[..] {
                [one] => format!("the node has role {one}, which produces it{by}"),
                several => format!("the node has roles {}, which produce it{by}", several.join(", ")),
            }
        }
        Some(TagOrigin::Assigned) => "it was assigned by hand".to_owned(),
        None if unassigned && is_produced => "a role produces it, and it was unassigned by hand".to_owned(),
        None if unassigned => "it was unassigned by hand, and no role of the node produces it".to_owned(),
        None => "no role of the node produces it, and it was not assigned".to_owned(),
    };
    if let Some((role, extension)) = table.filter(|_| !is_produced).and_then(|table| withheld_by_extension(table, answer, tag)) {
        why += &format!(": role {role} declares it, and extension {extension} decided otherwise for this node");
    }
    if primary && !is_selected(answer, tag) {
        why += &format!("; selectors match it as {PRIMARY_PREFIX}{tag}, in the place of {tag}");
    }
    json!({"tag": tag, "has": origin.is_some(), "primary": primary, "holder": primary_holder(fleet, answer, tag), "origin": origin.map(tag_origin_json), "why": why, "change": change})
}

/// Returns a role of the node that declares the tag but does not produce it there, and the extension that decided this.
fn withheld_by_extension<'a>(table: &'a RoleTable, answer: &'a ResolvedNode, tag: &str) -> Option<(Name, &'a str)> {
    let node_tags = &answer.node().spec.tags;
    let declares = |role: &Name| table.declared_tags(role).iter().any(|produced| **produced == *tag);
    let decided = |role: Name| table.decision(&role, node_tags).map(|decided| (role, &*decided.extension));
    answer.roles().into_iter().filter(declares).find_map(decided)
}

/// Explains a primary name (`primary-…` of a tag), which selectors match but which cannot be assigned. The node has it
/// if it holds the tag as primary.
fn explain_primary_tag(fleet: FleetContext<'_>, answer: &ResolvedNode, tag: &str, plain: &str) -> Value {
    let has = is_selected(answer, tag);
    let holder = primary_holder(fleet, answer, plain);
    let why = match &holder {
        _ if has && is_selected(answer, plain) => {
            format!("it holds {plain} as primary, and selectors match it by both names")
        }
        _ if has => format!("it holds {plain} as primary, and selectors match {tag} in the place of {plain}"),
        Some(holder) => format!("{holder} holds {plain} as primary"),
        None => format!("no node of the cluster holds {plain} as primary"),
    };
    json!({"tag": tag, "has": has, "primary": has, "primary_of": plain, "holder": holder, "origin": null, "why": why})
}

/// Returns whether a tag selector of this name matches the node.
fn is_selected(answer: &ResolvedNode, tag: &str) -> bool {
    answer.task_set().is_some_and(|set| set.profile.key.names.tag_names().any(|name| name == tag))
}

/// Returns the node of the same cluster that holds the tag as primary.
fn primary_holder(FleetContext { fleet, resolve }: FleetContext<'_>, answer: &ResolvedNode, tag: &str) -> Option<String> {
    let holds = |answer: &ResolvedNode| answer.task_set().is_some_and(|set| set.primary_tags().iter().any(|name| **name == *tag));
    let chosen = fleet.primaries(answer.resolved_group()?.cluster_id()).map(|primary| primary.spec.node);
    let chosen = chosen.filter_map(|node| resolve(node).resolved_node().cloned()).find(|answer| holds(answer));
    let holder = chosen.map(|answer| answer.node().display_name());
    holder.or_else(|| holds(answer).then(|| answer.node().display_name()))
}

/// The state of a task on its node, as far as the caller stores it and resolve does not.
pub struct TaskRunState<'a> {
    /// Returns whether a task runs, of those released to the node. `None` if nothing was released.
    pub should_run: Option<&'a dyn Fn(&str) -> bool>,
    /// True if a task set was ever released to the node, even one without tasks.
    pub has_task_set: bool,
    /// The error if the node's desired state is too large to be sent.
    pub too_large: Option<String>,
    /// The release of the task set that the node keeps while another one waits. `None` if the node has its newest task
    /// set.
    pub kept_release: Option<String>,
    /// True if the host confirmed that it holds the kept task set.
    pub is_confirmed: bool,
    /// The outcome of the task in the task set in force. `None` if it is not known yet.
    pub outcome: Option<TaskOutcome>,
    /// Returns the closed barriers of the node, each with the `task` and `selector` that name it.
    pub closed_barriers: &'a dyn Fn() -> Vec<Value>,
}

/// Explains why a task runs on a node or does not, and what delays it at `now`. Returns `None` if neither the node's
/// release nor its host has the task.
pub fn explain_task(answer: &ResolvedNode, id: &str, now: Timestamp, state: &TaskRunState<'_>) -> Option<Value> {
    // The name that the node's levels give the release. The profile may be of another release with equal content.
    let release_name = answer.release().map(|release| release.name.to_string());
    let is_released = state.should_run.is_some_and(|runs| runs(id));
    let explained = |blocker: NodeBlocker<'_>| {
        if state.has_task_set { blocker.explanation() } else { blocker.explanation_without_task_set() }
    };
    let blockers = answer.blockers(state.should_run).filter(|aside| aside.is_in_force(now)).map(explained);
    let too_large = state.too_large.iter().map(|error| format!("{error}: its host keeps what it has"));
    let mut blockers: Vec<String> = blockers.chain(too_large).collect();
    let found = answer.task_set().and_then(|set| Some((set, set.profile.release.task_index(id)?)));
    let Some((set, ix)) = found else {
        let why = match (answer.task_set(), is_released) {
            (None, _) => "the node is unplaced, or no level names a release",
            (Some(_), true) => "the node's release has no such task",
            (Some(_), false) => return None,
        };
        return Some(json!({
            "task": id, "release": release_name, "runs": false, "why": why, "reads": [], "set_aside": blockers, "released": is_released,
            "keeps": state.kept_release, "told": state.is_confirmed, "waits": [],
        }));
    };
    let release = &set.profile.release;
    let observed = "the task's mode is observe: it is neither run nor checked";
    blockers.extend(release.task(ix).task.is_observed().then(|| observed.to_owned()));
    let is_placed = set.profile.all_tasks().contains(&ix);
    let skipped = set.skip_reason(ix).map(|why| why.to_string());
    let placed = release.placement_text(ix);
    let why = match (is_placed, &skipped) {
        (false, _) => format!("it does not run on this node: it is placed by {placed}"),
        (true, Some(reason)) => format!("it is placed on this node by {placed}, and is left out: {reason}"),
        (true, None) => format!("it runs on this node by {placed}"),
    };
    let references: Vec<String> = release.task(ix).references.iter().map(ToString::to_string).collect();
    // As for barriers, a task that drifted or would change something is not done.
    let is_done = state.outcome == Some(TaskOutcome::Succeeded);
    let waits = if is_done { Vec::new() } else { explain_waits(&set.profile, ix, state.closed_barriers) };
    // If the node keeps its task set, a running task of that name belongs to the kept set.
    let is_released = is_released && state.kept_release.is_none();
    Some(json!({
        "task": id, "release": release_name, "runs": is_placed && skipped.is_none(), "why": why, "reads": references,
        "set_aside": blockers, "released": is_released, "keeps": state.kept_release, "told": state.is_confirmed, "waits": waits,
    }))
}

/// Returns the closed barriers that delay a task, each with the task of this node that waits there (`here`).
fn explain_waits(profile: &Profile, ix: TaskIndex, closed: &dyn Fn() -> Vec<Value>) -> Vec<Value> {
    let before = profile.barriers_before(ix);
    let barriers = if before.is_empty() { Vec::new() } else { closed() };
    let rows = before.into_iter().filter_map(|(here, barrier)| {
        let (task, selector) = (profile.release.id(barrier.task), barrier.to_string());
        let mut row = barriers.iter().find(|row| row["task"] == *task && row["selector"] == *selector)?.clone();
        row["here"] = profile.release.id(here).into();
        Some(row)
    });
    rows.collect()
}

/// Explains why a node has a trait, or lacks it. Traits that are not in `known` cannot be added by an operator.
pub fn explain_trait(answer: &ResolvedNode, name: &str, known: &TraitNames) -> Value {
    let traits = answer.entry.traits(&answer.rule_outcome);
    let sources: Vec<String> = traits.trait_sources(name).iter().map(ToString::to_string).collect();
    let (suppressed, has) = (traits.suppressed.contains(name), traits.has_trait(name));
    let change = if suppressed { Some("unsuppress") } else { (!has && known.parse(name).is_ok()).then_some("add") };
    let why = match (has, suppressed, sources.join(", ")) {
        (true, _, sources) => format!("it is given by: {sources}"),
        (false, true, sources) if sources.is_empty() => "an operator suppressed it, and nothing gives it now".to_owned(),
        (false, true, sources) => format!("an operator suppressed it; it is given by: {sources}"),
        (false, false, _) => "no operator and no inspection rule gave it, and the host did not detect it".to_owned(),
    };
    json!({"trait": name, "has": has, "sources": sources, "suppressed": suppressed, "why": why, "change": change})
}

/// Returns where a tag comes from.
pub fn tag_origin_json(origin: &TagOrigin) -> Value {
    match origin {
        TagOrigin::Roles { roles, extensions } if extensions.is_empty() => json!({"roles": roles}),
        TagOrigin::Roles { roles, extensions } => json!({"roles": roles, "extensions": extensions}),
        TagOrigin::Assigned => json!({"assigned": true}),
    }
}
