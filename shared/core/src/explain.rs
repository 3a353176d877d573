//! Explains why a label, tag, task or trait of a node has its state. The explanation is read from the provenance in the
//! resolved node, and nothing is resolved again. The result is a JSON value, so that every program shows the same one.

use serde_json::{Value, json};

use crate::finding::shorten;
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
use crate::status::{RebootReport, TaskOutcome};
use crate::traits::TraitNames;

/// The fleet, and a function that resolves its nodes.
#[derive(Clone, Copy)]
pub struct FleetContext<'a> {
    /// The fleet.
    pub fleet: &'a Fleet,
    /// The function that resolves a node of the fleet.
    pub resolve: &'a dyn Fn(NodeId) -> Resolution,
}

/// Explains the value of a label of a node as JSON: what each level, each inspection rule and the host provide for the
/// key, and the tasks whose templates read it. `flows_to` lists where the label goes on the host: always to a file of
/// the agent, and to the host label map (a file for other programs) if the label is exported.
pub fn explain_label(resolved_node: &ResolvedNode, key: &str, format_time: fn(Timestamp) -> String) -> Value {
    let labels = resolved_node.labels();
    let provenance = labels.provenance(key);
    let observed = resolved_node.observation().and_then(|observation| {
        let label = observation.labels.iter().find(|label| *label.key == *key)?;
        Some((label.value.to_string(), label.source.to_string()))
    });
    let host_fill = provenance.and_then(|provenance| provenance.fill_effects().find(|(fill, _)| fill.origin == Origin::Host));
    let effect_text = || match &host_fill {
        Some((_, effect)) => fill_effect_text(effect),
        None => "no effect: host_labels.accept does not contain the key".to_owned(),
    };
    let reported: Vec<Value> =
        observed.iter().map(|(value, source)| json!({"value": value, "source": source, "result": effect_text()})).collect();
    let is_exported = resolved_node.host_labels().map_labels(&labels).exported.contains(key);
    json!({
        "label": key,
        "value": provenance.and_then(Provenance::value).map(LabelValue::as_str),
        "levels": explain_levels(resolved_node, provenance, format_time),
        "rules": explain_rules(provenance),
        "reported": reported,
        "used_by": tasks_reading(resolved_node, key),
        "flows_to": if is_exported { vec!["/run/stemma/labels.json", "node label map"] } else { vec!["/run/stemma/labels.json"] },
        "to_host_map": is_exported,
    })
}

/// Returns one JSON object for each level, farthest level first: what the level provides for the key of `provenance`,
/// and the effect. Levels that provide nothing are included. If the node is in no group, or an object above it is
/// missing, the list has only the node.
fn explain_levels(node: &ResolvedNode, provenance: Option<&Provenance<LabelValue>>, time: fn(Timestamp) -> String) -> Vec<Value> {
    let mut explanations = Vec::new();
    let mut add_level = |level: Level, object: String, layer: &LabelLayer| {
        let outcome = provenance.and_then(|provenance| provenance.level_effects().find(|(entry, _)| entry.level == level));
        let explanation = match outcome {
            None => {
                // The level does not provide the key. It can still replace all labels above it, unless it is the
                // farthest level, which has nothing above it.
                let replaces = !explanations.is_empty() && layer.is_replacing();
                let result = if replaces { "replaces what is above" } else { "says nothing" };
                json!({"level": level.name(), "object": object, "says": null, "stops": false, "merges": !replaces, "owners": [], "result": result})
            }
            Some((entry, effect)) => json!({
                "level": level.name(), "object": object, "says": entry.value.value().map(LabelValue::as_str), "stops": entry.value.is_tombstone(),
                "merges": entry.is_merging, "owners": *entry.owners, "result": level_effect_text(effect),
                "since": entry.since_ms.map(|ms| time(Timestamp(ms))),
            }),
        };
        explanations.push(explanation);
    };
    if let Some(resolved_group) = node.resolved_group() {
        if let Some(template) = &resolved_group.template {
            add_level(Level::ClusterTemplate, template.meta.name.to_string(), &template.spec.inherited.labels);
        }
        add_level(Level::Cluster, resolved_group.cluster.meta.name.to_string(), &resolved_group.cluster.spec.inherited.labels);
        add_level(Level::NodeGroup, resolved_group.path(), &resolved_group.group.spec.inherited.labels);
    }
    add_level(Level::Node, node.node().display_name(), &node.node().spec.inherited.labels);
    explanations
}

/// Returns one JSON object for each inspection rule that offers a value for the key: the value and its effect. The
/// order is that of evaluation.
fn explain_rules(provenance: Option<&Provenance<LabelValue>>) -> Vec<Value> {
    let rules = provenance.into_iter().flat_map(Provenance::fill_effects).filter_map(|(fill, effect)| match &fill.origin {
        Origin::Rule(rule) => Some(json!({"rule": rule, "says": fill.value.as_str(), "result": fill_effect_text(&effect)})),
        Origin::Default | Origin::Level(_) | Origin::Host => None,
    });
    rules.collect()
}

/// Returns a text for the effect of a value that a rule or the host offers for a label. Such a value is used only if no
/// level decides the key.
fn fill_effect_text(effect: &FillEffect) -> String {
    match effect {
        FillEffect::Wins => "wins".to_owned(),
        FillEffect::DecidedBy(level) => format!("no effect: the {level} decides the key"),
        FillEffect::FilledBy(origin) => format!("no effect: {origin} fills the key"),
        FillEffect::Restricted => "no effect: the key is restricted".to_owned(),
    }
}

/// Returns a text for the effect of what a level provides for a label. The text "what is above" means the levels
/// farther from the host.
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

/// Returns the ids of the node's tasks of phase `apply` whose templates read a label. Conditions are not searched.
fn tasks_reading(resolved_node: &ResolvedNode, key: &str) -> Vec<String> {
    let Some(set) = resolved_node.task_set() else { return Vec::new() };
    let release = &set.profile.release;
    let reads = |read: &Read| match read {
        Read::Label(name) => **name == *key,
        Read::LabelsWithPrefix(prefix) => key.starts_with(&**prefix),
        _ => false,
    };
    let tasks = set.profile.tasks.iter().filter(|task| release.task(**task).references.iter().any(|input| reads(input.read())));
    tasks.map(|task| release.id(*task).to_owned()).collect()
}

/// Explains as JSON why a node has a tag or lacks it. In the result, `change` is the verb of the command with which an
/// operator can change this ("assign" or "unassign"), if there is one.
pub fn explain_tag(fleet: FleetContext<'_>, resolved_node: &ResolvedNode, tag: &str) -> Value {
    // A name `primary-TAG` is not a tag of its own.
    if let Some(held_tag) = tag.strip_prefix(PRIMARY_PREFIX) {
        return explain_primary_tag(fleet, resolved_node, tag, held_tag);
    }
    let node = resolved_node.node();
    let table = resolved_node.resolved_group().and_then(|resolved| resolved.role_table.as_ref());
    let effective_tags = table.map(|table| table.effective_tags(&resolved_node.roles(), &node.spec.tags)).unwrap_or_default();
    let origin = effective_tags.iter().find(|(name, _)| ***name == *tag).map(|(_, origin)| origin);
    let change = match (origin, table.is_some_and(|table| table.is_declared_or_produced(tag))) {
        (Some(_), _) => Some("unassign"),
        (None, true) => Some("assign"),
        (None, false) => None,
    };
    let produces = |table: &RoleTable, role: &Name| table.produced_tags(role, &node.spec.tags).any(|name| **name == *tag);
    let has_source = table.is_some_and(|table| resolved_node.roles().iter().any(|role| produces(table, role)));
    let is_unassigned = node.spec.tags.unassigned.members().any(|name| **name == *tag);
    let is_primary = resolved_node.task_set().is_some_and(|task_set| task_set.primary_tags().iter().any(|name| **name == *tag));
    let mut why = match origin {
        Some(TagOrigin::Roles { roles, extensions }) => {
            let names: Vec<&str> = roles.iter().map(Name::as_str).collect();
            let decision_text = match extensions.iter().map(String::as_str).collect::<Vec<_>>().join(", ") {
                text if text.is_empty() => text,
                text => format!(", as extension {text} decided"),
            };
            match &names[..] {
                [name] => format!("the node has role {name}, which produces it{decision_text}"),
                names => format!("the node has roles {}, which produce it{decision_text}", names.join(", ")),
            }
        }
        Some(TagOrigin::Assigned) => "it was assigned by hand".to_owned(),
        None if is_unassigned && has_source => "a role produces it, and it was unassigned by hand".to_owned(),
        None if is_unassigned => "it was unassigned by hand, and no role of the node produces it".to_owned(),
        None => "no role of the node produces it, and it was not assigned".to_owned(),
    };
    if let Some((role, name)) = table.filter(|_| !has_source).and_then(|table| withheld_by_extension(table, resolved_node, tag)) {
        why += &format!(": role {role} declares it, and extension {name} decided otherwise for this node");
    }
    // In some releases, selectors find the primary of a tag by the name `primary-TAG` only.
    if is_primary && !is_selected(resolved_node, tag) {
        why += &format!("; selectors match it as {PRIMARY_PREFIX}{tag}, in the place of {tag}");
    }
    json!({"tag": tag, "has": origin.is_some(), "primary": is_primary, "holder": primary_holder(fleet, resolved_node, tag), "origin": origin.map(tag_origin_json), "why": why, "change": change})
}

/// Returns a role of the node that declares the tag but does not give it to this node, and the name of the extension
/// that decided this. The caller must have checked that no role of the node produces the tag.
fn withheld_by_extension<'a>(table: &'a RoleTable, resolved_node: &'a ResolvedNode, tag: &str) -> Option<(Name, &'a str)> {
    let node_tags = &resolved_node.node().spec.tags;
    let declares = |role: &Name| table.declared_tags(role).iter().any(|declared_tag| **declared_tag == *tag);
    let decision = |role: Name| table.decision(&role, node_tags).map(|decision| (role, &*decision.extension));
    resolved_node.roles().into_iter().filter(declares).find_map(decision)
}

/// Explains as JSON whether a node has the tag `primary-TAG`. Selectors match this name on the node that holds TAG as
/// primary. In some releases, they also match TAG there, and in others they do not. No operator can assign
/// `primary-TAG`. `tag` is the whole name, and `held_tag` is TAG.
fn explain_primary_tag(fleet: FleetContext<'_>, resolved_node: &ResolvedNode, tag: &str, held_tag: &str) -> Value {
    let has = is_selected(resolved_node, tag);
    let holder = primary_holder(fleet, resolved_node, held_tag);
    let why = match &holder {
        _ if has && is_selected(resolved_node, held_tag) => {
            format!("it holds {held_tag} as primary, and selectors match it by both names")
        }
        _ if has => format!("it holds {held_tag} as primary, and selectors match {tag} in the place of {held_tag}"),
        Some(holder) => format!("{holder} holds {held_tag} as primary"),
        None => format!("no node of the cluster holds {held_tag} as primary"),
    };
    json!({"tag": tag, "has": has, "primary": has, "primary_of": held_tag, "holder": holder, "origin": null, "why": why})
}

/// Returns whether a selector with this tag name matches the node.
fn is_selected(resolved_node: &ResolvedNode, tag: &str) -> bool {
    resolved_node.task_set().is_some_and(|task_set| task_set.profile.key.names.tag_names().any(|name| name == tag))
}

/// Returns the name of the node in the same cluster that holds the tag as primary: a node that a stored choice names,
/// or the node itself, whose choice may not be stored yet. Another primary without a stored choice is not found.
fn primary_holder(FleetContext { fleet, resolve }: FleetContext<'_>, resolved_node: &ResolvedNode, tag: &str) -> Option<String> {
    let holds = |other: &ResolvedNode| other.task_set().is_some_and(|set| set.primary_tags().iter().any(|name| **name == *tag));
    let chosen = fleet.primaries(resolved_node.resolved_group()?.cluster_id()).map(|primary| primary.spec.node);
    let chosen = chosen.filter_map(|node| resolve(node).resolved_node().cloned()).find(|other| holds(other));
    let holder = chosen.map(|other| other.node().display_name());
    holder.or_else(|| holds(resolved_node).then(|| resolved_node.node().display_name()))
}

/// The part of the state of a task on its node that resolve does not compute. The caller provides it.
pub struct TaskRunState<'a> {
    /// Function that returns whether the task with this id runs, according to the task set that was released to the
    /// node. `None` if no task set was released, or one without tasks.
    pub should_run: Option<&'a dyn Fn(&str) -> bool>,
    /// True if a task set was ever released to the node, even one without tasks.
    pub has_task_set: bool,
    /// The error message if the desired state of the node is too large to be sent. Otherwise `None`.
    pub too_large: Option<String>,
    /// The release of the task set that the node keeps because a newer one is withheld, or a text that it has no tasks.
    /// `None` if no newer task set is withheld, or if none was released to the node yet.
    pub kept_release: Option<String>,
    /// True if the host confirmed the last released task set or sent results for it, and is not ahead of the store.
    pub is_confirmed: bool,
    /// The outcome of the task in the last released task set. `None` if the host has not reported it.
    pub outcome: Option<TaskOutcome>,
    /// Function that returns the closed barriers of the node as JSON. The members `task` and `selector` of each
    /// identify the barrier.
    pub closed_barriers: &'a dyn Fn() -> Vec<Value>,
}

/// Explains as JSON why a task runs on a node or does not run, and what delays it at the time `now`. In the result,
/// `set_aside` lists what blocks the node or the task, `waits` lists closed barriers, and `keeps` is the release of an
/// old task set. Returns `None` if the node has a release, and neither it nor the released task set has the task.
pub fn explain_task(resolved_node: &ResolvedNode, id: &str, now: Timestamp, state: &TaskRunState<'_>) -> Option<Value> {
    // The name that the node's levels give the release. The profile may be of another release with equal content.
    let release_name = resolved_node.release().map(|release| release.name.to_string());
    let is_released = state.should_run.is_some_and(|runs| runs(id));
    let explain = |blocker: NodeBlocker<'_>| {
        if state.has_task_set { blocker.explanation() } else { blocker.explanation_without_task_set() }
    };
    let blockers = resolved_node.blockers(state.should_run).filter(|blocker| blocker.is_in_force(now)).map(explain);
    let too_large = state.too_large.iter().map(|error| format!("{error}: its host keeps what it has"));
    let mut blockers: Vec<String> = blockers.chain(too_large).collect();
    let set_and_index = resolved_node.task_set().and_then(|task_set| Some((task_set, task_set.profile.release.task_index(id)?)));
    let Some((task_set, index)) = set_and_index else {
        let why = match (resolved_node.task_set(), is_released) {
            (None, _) => "the node is unplaced, or no level names a release",
            (Some(_), true) => "the node's release has no such task",
            (Some(_), false) => return None,
        };
        return Some(json!({
            "task": id, "release": release_name, "runs": false, "why": why, "reads": [], "set_aside": blockers, "released": is_released,
            "keeps": state.kept_release, "told": state.is_confirmed, "waits": [],
        }));
    };
    let release = &task_set.profile.release;
    let observe_text = "the task's mode is observe: it is neither run nor checked";
    blockers.extend(release.task(index).task.is_observed().then(|| observe_text.to_owned()));
    let is_placed = task_set.profile.placed_tasks().any(|task| task == index);
    let skipped = task_set.skip_reason(index).map(|why| why.to_string());
    let placed = release.placement_text(index);
    let unassigning: Vec<&str> = task_set.profile.tasks_that_unassign(index).map(|task| release.id(task)).collect();
    let why = match (is_placed, &skipped) {
        (false, _) if task_set.profile.unassign.contains(&index) => {
            format!("it runs once on this node when {} is no longer placed there (on_unassign)", unassigning.join(" or "))
        }
        (false, _) => format!("it does not run on this node: it is placed by {placed}"),
        (true, Some(reason)) => format!("it is placed on this node by {placed}, and is left out: {reason}"),
        (true, None) => format!("it runs on this node by {placed}"),
    };
    let references: Vec<String> = release.task(index).references.iter().map(ToString::to_string).collect();
    // As for barriers, a task that drifted or would change something is not done.
    let is_done = state.outcome == Some(TaskOutcome::Succeeded);
    let waits = if is_done { Vec::new() } else { explain_waits(&task_set.profile, index, state.closed_barriers) };
    // If the node keeps its task set, a running task of that name belongs to the kept set.
    let is_released = is_released && state.kept_release.is_none();
    Some(json!({
        "task": id, "release": release_name, "runs": is_placed && skipped.is_none(), "why": why, "reads": references,
        "set_aside": blockers, "released": is_released, "keeps": state.kept_release, "told": state.is_confirmed, "waits": waits,
    }))
}

/// Returns the closed barriers that delay a task, as JSON. These are the barriers of the task itself, and those of
/// tasks before it on the node. The member `here` of each is the task of this node that waits at the barrier.
fn explain_waits(profile: &Profile, index: TaskIndex, closed_barriers: &dyn Fn() -> Vec<Value>) -> Vec<Value> {
    let task_barriers = profile.barriers_before(index);
    let barriers = if task_barriers.is_empty() { Vec::new() } else { closed_barriers() };
    let explanations = task_barriers.into_iter().filter_map(|(waiting_task, barrier)| {
        let (task, selector) = (profile.release.id(barrier.task), barrier.to_string());
        let mut explanation = barriers.iter().find(|closed| closed["task"] == *task && closed["selector"] == *selector)?.clone();
        explanation["here"] = profile.release.id(waiting_task).into();
        Some(explanation)
    });
    explanations.collect()
}

/// Explains that a task waits for a reboot of its host, because it has asked for one, or because a task before it has. Returns
/// `None` if it does not wait. `has_ended` is true if the host has reported its outcome in the last released task set, and
/// `report` is what the host reports about its reboot.
pub fn explain_reboot(resolved_node: &ResolvedNode, id: &str, has_ended: bool, report: &RebootReport) -> Option<String> {
    let reason = match report.tasks.iter().find(|asked| asked.task == id) {
        Some(asked) => format!("it waits for a reboot of its host, for which it has asked: {}", shorten(&asked.reason)),
        None if has_ended => return None,
        None => {
            let profile = &resolved_node.task_set()?.profile;
            let index = profile.release.task_index(id)?;
            let is_before = |task: &str| profile.release.task_index(task).is_some_and(|task| profile.is_before(task, index));
            let asked = report.tasks.iter().find(|asked| is_before(&asked.task))?;
            format!("it waits for task {}, which waits for a reboot of its host", shorten(&asked.task))
        }
    };
    let problem = report.problem.as_ref();
    let problem = problem.map_or_else(String::new, |problem| format!("; the last reboot has not happened: {}", shorten(problem)));
    Some(format!("{reason}{problem}: run `stemma node reboot {}`", resolved_node.node().display_name()))
}

/// Explains as JSON why a node has a trait or lacks it. In the result, `change` is the verb of the command with which
/// an operator can change this ("add" or "unsuppress"). An operator can add only traits that `names` contains.
pub fn explain_trait(resolved_node: &ResolvedNode, name: &str, names: &TraitNames) -> Value {
    let traits = resolved_node.entry.traits(&resolved_node.rule_outcome);
    let sources: Vec<String> = traits.trait_sources(name).iter().map(ToString::to_string).collect();
    let (suppressed, is_effective) = (traits.suppressed.contains(name), traits.has_trait(name));
    let change = if suppressed { Some("unsuppress") } else { (!is_effective && names.parse(name).is_ok()).then_some("add") };
    let why = match (is_effective, suppressed, sources.join(", ")) {
        (true, _, sources) => format!("it is given by: {sources}"),
        (false, true, sources) if sources.is_empty() => "an operator suppressed it, and nothing gives it now".to_owned(),
        (false, true, sources) => format!("an operator suppressed it; it is given by: {sources}"),
        (false, false, _) => "no operator and no inspection rule gave it, and the host did not detect it".to_owned(),
    };
    json!({"trait": name, "has": is_effective, "sources": sources, "suppressed": suppressed, "why": why, "change": change})
}

/// Returns the origin of a tag of a node as JSON: the roles that give it, and the extensions that chose the tag for
/// some of these roles; or that the tag was assigned by hand.
pub fn tag_origin_json(origin: &TagOrigin) -> Value {
    match origin {
        TagOrigin::Roles { roles, extensions } if extensions.is_empty() => json!({"roles": roles}),
        TagOrigin::Roles { roles, extensions } => json!({"roles": roles, "extensions": extensions}),
        TagOrigin::Assigned => json!({"assigned": true}),
    }
}
