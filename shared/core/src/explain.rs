//! The account of why a label, tag, task or trait of a node is as it is: from the lines of descent that resolve keeps, folding
//! nothing again. It is made as the JSON value in which it is shown, so that every program shows the same one.

use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::input::Read;
use crate::key::LabelValue;
use crate::labels::{Effect, Line};
use crate::name::{Name, PRIMARY_PREFIX};
use crate::object::{NodeId, SaidOnHost, Timestamp};
use crate::origin::{Level, Origin};
use crate::resolve::{Answer, Resolution};
use crate::role::TagOrigin;
use crate::task::Mode;
use crate::traits::TraitNames;

/// The fleet, and how its nodes are resolved.
#[derive(Clone, Copy)]
pub struct Fleetwide<'a> {
    /// The fleet.
    pub fleet: &'a Fleet,
    /// Resolves one of its nodes.
    pub resolve: &'a dyn Fn(NodeId) -> Resolution,
}

/// Why a label is as it is.
pub fn label(answer: &Answer, key: &str, time: fn(Timestamp) -> String) -> Value {
    let labels = answer.labels();
    let line = labels.line(key);
    let said = answer.observation().and_then(|seen| {
        let label = seen.labels.iter().find(|label| *label.key == *key)?;
        Some((label.value.to_string(), label.source.to_string()))
    });
    let taken = line.and_then(Line::effective).is_some_and(|effective| effective.origin == Origin::Host);
    let reported: Vec<Value> = said.iter().map(|(value, source)| {
        json!({"value": value, "source": source, "result": if taken { "wins" } else { "decides nothing: host_labels.accept does not name it, or an operator does" }})
    }).collect();
    let flows = answer.host_labels().decide(&labels).flows.contains(key);
    json!({
        "label": key,
        "value": line.and_then(Line::value).map(LabelValue::as_str),
        "levels": levels(answer, line, time),
        "reported": reported,
        "used_by": used_by(answer, key),
        "flows_to": if flows { vec!["/run/stemma/labels.json", "node label map"] } else { vec!["/run/stemma/labels.json"] },
    })
}

/// What each level says, the farthest from the host first; a level that says nothing is there too.
fn levels(answer: &Answer, line: Option<&Line<LabelValue>>, time: fn(Timestamp) -> String) -> Vec<Value> {
    let row = |level: Level, object: String| {
        let said = line.and_then(|line| line.outcomes().find(|(statement, _)| statement.level == level));
        match said {
            None => {
                json!({"level": level.name(), "object": object, "says": null, "stops": false, "merges": true, "owners": [], "result": "says nothing"})
            }
            Some((statement, effect)) => json!({
                "level": level.name(), "object": object, "says": statement.said.value().map(LabelValue::as_str), "stops": statement.said.is_tombstone(),
                "merges": statement.merges, "owners": *statement.owners, "result": result(effect),
                "since": statement.since_ms.map(|ms| time(Timestamp(ms))),
            }),
        }
    };
    let mut rows = Vec::new();
    if let Some(fold) = answer.fold() {
        rows.extend(fold.template.as_ref().map(|template| row(Level::ClusterTemplate, template.meta.name.to_string())));
        rows.push(row(Level::Cluster, fold.cluster.meta.name.to_string()));
        rows.push(row(Level::NodeGroup, fold.place()));
    }
    rows.push(row(Level::Node, answer.node().display_name()));
    rows
}

fn result(effect: Effect) -> String {
    match effect {
        Effect::Wins => "wins".to_owned(),
        Effect::OverriddenBy(level) => format!("overridden by the {level}"),
        Effect::Stops => "stops what is above".to_owned(),
        Effect::StoppedBy(level) => format!("stopped by the {level}"),
        Effect::ReplacedBy(level) => format!("not merged by the {level}"),
        Effect::NoEffect => "null where nothing is merged: no effect".to_owned(),
    }
}

/// The tasks of the node that read a label.
fn used_by(answer: &Answer, key: &str) -> Vec<String> {
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

/// Why a node has a tag, or has not. `change` is the verb by which an operator changes that, where there is one.
pub fn tag(fleet: Fleetwide<'_>, answer: &Answer, tag: &str) -> Value {
    if let Some(plain) = tag.strip_prefix(PRIMARY_PREFIX) {
        return primary_tag(fleet, answer, tag, plain);
    }
    let node = answer.node();
    let table = answer.fold().and_then(|fold| fold.table.as_ref());
    let effective = table.map(|table| table.effective_tags(&answer.roles(), &node.spec.tags)).unwrap_or_default();
    let origin = effective.iter().find(|(name, _)| ***name == *tag).map(|(_, origin)| origin);
    let change = match (origin, table.is_some_and(|table| table.is_visible(tag))) {
        (Some(_), _) => Some("unassign"),
        (None, true) => Some("assign"),
        (None, false) => None,
    };
    let unassigned = node.spec.tags.unassigned.members().any(|name| **name == *tag);
    let primary = answer.task_set().is_some_and(|set| set.primary_tags().iter().any(|name| **name == *tag));
    let mut why = match origin {
        Some(TagOrigin::Roles(roles)) => {
            let names: Vec<&str> = roles.iter().map(Name::as_str).collect();
            format!("the node has {}, which produce it", names.join(", "))
        }
        Some(TagOrigin::Assigned) => "it was assigned by hand".to_owned(),
        None if unassigned => "a role produces it, and it was unassigned by hand".to_owned(),
        None => "no role of the node produces it, and it was not assigned".to_owned(),
    };
    if primary && !is_matched(answer, tag) {
        why += &format!("; selectors match it as {PRIMARY_PREFIX}{tag}, in the place of {tag}");
    }
    json!({"tag": tag, "has": origin.is_some(), "primary": primary, "holder": holder(fleet, answer, tag), "origin": origin.map(tag_origin), "why": why, "change": change})
}

/// A name that selectors know and nobody assigns: it is where the tag behind it is held as primary.
fn primary_tag(fleet: Fleetwide<'_>, answer: &Answer, tag: &str, plain: &str) -> Value {
    let has = is_matched(answer, tag);
    let holder = holder(fleet, answer, plain);
    let why = match &holder {
        _ if has && is_matched(answer, plain) => {
            format!("it holds {plain} as primary, and selectors match it by both names")
        }
        _ if has => format!("it holds {plain} as primary, and selectors match {tag} in the place of {plain}"),
        Some(holder) => format!("{holder} holds {plain} as primary"),
        None => format!("no node of the cluster holds {plain} as primary"),
    };
    json!({"tag": tag, "has": has, "primary": has, "primary_of": plain, "holder": holder, "origin": null, "why": why})
}

/// Whether a tag selector of this name matches the node.
fn is_matched(answer: &Answer, tag: &str) -> bool {
    answer.task_set().is_some_and(|set| set.profile.place.names.tag_names().any(|name| name == tag))
}

/// The node of the same cluster that holds the tag as primary.
fn holder(Fleetwide { fleet, resolve }: Fleetwide<'_>, answer: &Answer, tag: &str) -> Option<String> {
    let holds =
        |answer: &Answer| answer.task_set().is_some_and(|set| set.primary_tags().iter().any(|own| **own == *tag));
    let chosen = fleet.primaries(answer.fold()?.cluster_id()).map(|primary| primary.spec.node);
    let chosen = chosen.filter_map(|node| resolve(node).answer().cloned()).find(|answer| holds(answer));
    let holder = chosen.map(|answer| answer.node().display_name());
    holder.or_else(|| holds(answer).then(|| answer.node().display_name()))
}

/// What keeps a host at that time from running what it was told to, or from being told more, a sentence each.
fn set_aside(answer: &Answer, now: Timestamp) -> Vec<String> {
    let because = |reason: &str| if reason.is_empty() { String::new() } else { format!(" ({reason})") };
    let mut said = Vec::new();
    let on_host = answer.said();
    if on_host.is_some_and(|said| said.paused) {
        said.push("it is paused on its host, which applies nothing until it is resumed there".to_owned());
    }
    if let Some(hold) = answer.hold().filter(|hold| hold.held().is_in_force(now)) {
        said.push(format!("it is held{}: it keeps the task set that it has", because(&hold.reason)));
    }
    let on_host_hold = on_host.and_then(SaidOnHost::held).filter(|(held, _)| held.is_in_force(now));
    if let Some((_, reason)) = on_host_hold {
        said.push(format!("it is held on its host{}: it keeps the task set that it has", because(reason)));
    }
    if answer.is_parked() {
        said.push("it is parked: out of budgets, barriers and primaries".to_owned());
    }
    if let Some(reason) = on_host.and_then(|said| said.parked.as_ref()) {
        said.push(format!("it is parked on its host{}: out of budgets, barriers and primaries", because(reason)));
    }
    if answer.is_paused() {
        said.push("its node group or cluster is paused: no new task set is given".to_owned());
    }
    match answer.mode().value {
        Mode::Observe => said.push("its mode is observe: no task is even checked".to_owned()),
        Mode::Noop => said.push("its mode is noop: tasks are checked, and nothing is changed".to_owned()),
        Mode::Apply => {}
    }
    said
}

/// Why a task falls to a node, or does not, and what keeps it at that time; `None` where the node's release has no such task.
pub fn task(answer: &Answer, id: &str, now: Timestamp) -> Option<Value> {
    let Some(set) = answer.task_set() else {
        return Some(json!({"task": id, "runs": false, "why": "the node is unplaced, or no level names a release"}));
    };
    let release = &set.profile.release;
    let ix = release.find(id)?;
    let falls = set.profile.all().contains(&ix);
    let left_out = set.left_out.iter().find(|(one, _)| *one == ix).map(|(_, why)| why.to_string());
    let placed = release.task(ix).placement_text();
    let why = match (falls, &left_out) {
        (false, _) => format!("it does not fall to this node: it is placed by {placed}"),
        (true, Some(reason)) => format!("it falls to this node by {placed}, and is left out: {reason}"),
        (true, None) => format!("it falls to this node by {placed}"),
    };
    // The name that the node's levels say: its profile may be that of another release of equal content.
    let named = answer.release().map(|release| release.name.to_string());
    let references: Vec<String> = release.task(ix).references.iter().map(ToString::to_string).collect();
    Some(json!({
        "task": id, "release": named, "runs": falls && left_out.is_none(), "why": why, "reads": references,
        "set_aside": set_aside(answer, now),
    }))
}

/// Why a node has a trait, or has not; `known` are the traits that an operator may give.
pub fn trait_name(answer: &Answer, name: &str, known: &TraitNames) -> Value {
    let given = answer.entry.traits();
    let sources: Vec<String> = given.sources_of(name).iter().map(ToString::to_string).collect();
    let (suppressed, has) = (given.suppressed.contains(name), given.has(name));
    let change = if suppressed { Some("unsuppress") } else { (!has && known.parse(name).is_ok()).then_some("add") };
    json!({"trait": name, "has": has, "sources": sources, "suppressed": suppressed, "change": change})
}

/// Where a tag comes from.
pub fn tag_origin(origin: &TagOrigin) -> Value {
    match origin {
        TagOrigin::Roles(roles) => json!({"roles": roles}),
        TagOrigin::Assigned => json!({"assigned": true}),
    }
}
