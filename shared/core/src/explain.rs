//! The account of why a label, tag, task or trait of a node is as it is: from the lines of descent that resolve keeps, folding
//! nothing again. It is made as the JSON value in which it is shown, so that every program shows the same one.

use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::input::Read;
use crate::key::LabelValue;
use crate::labels::{Effect, LabelLayer, Line, OfferEffect};
use crate::name::{Name, PRIMARY_PREFIX};
use crate::object::{NodeId, Timestamp};
use crate::origin::{Level, Origin};
use crate::release::{Profile, TaskIx};
use crate::resolve::{Answer, Resolution, SetAside};
use crate::role::{RoleTable, TagOrigin};
use crate::status::TaskOutcome;
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
    let of_host = line.and_then(|line| line.offered().find(|(offer, _)| offer.origin == Origin::Host));
    let result = || match &of_host {
        Some((_, effect)) => offered(effect),
        None => "decides nothing: host_labels.accept does not name it".to_owned(),
    };
    let reported: Vec<Value> =
        said.iter().map(|(value, source)| json!({"value": value, "source": source, "result": result()})).collect();
    let flows = answer.host_labels().decide(&labels).flows.contains(key);
    json!({
        "label": key,
        "value": line.and_then(Line::value).map(LabelValue::as_str),
        "levels": levels(answer, line, time),
        "rules": rules(line),
        "reported": reported,
        "used_by": used_by(answer, key),
        "flows_to": if flows { vec!["/run/stemma/labels.json", "node label map"] } else { vec!["/run/stemma/labels.json"] },
        "to_host_map": flows,
    })
}

/// What each level says, the farthest from the host first; a level that says nothing is there too.
fn levels(answer: &Answer, line: Option<&Line<LabelValue>>, time: fn(Timestamp) -> String) -> Vec<Value> {
    let mut rows = Vec::new();
    let mut row = |level: Level, object: String, layer: &LabelLayer| {
        let said = line.and_then(|line| line.outcomes().find(|(statement, _)| statement.level == level));
        let row = match said {
            None => {
                // The farthest level has nothing above it.
                let replaces = !rows.is_empty() && layer.replaces();
                let result = if replaces { "replaces what is above" } else { "says nothing" };
                json!({"level": level.name(), "object": object, "says": null, "stops": false, "merges": !replaces, "owners": [], "result": result})
            }
            Some((statement, effect)) => json!({
                "level": level.name(), "object": object, "says": statement.said.value().map(LabelValue::as_str), "stops": statement.said.is_tombstone(),
                "merges": statement.merges, "owners": *statement.owners, "result": result(effect),
                "since": statement.since_ms.map(|ms| time(Timestamp(ms))),
            }),
        };
        rows.push(row);
    };
    if let Some(fold) = answer.fold() {
        if let Some(template) = &fold.template {
            row(Level::ClusterTemplate, template.meta.name.to_string(), &template.spec.inherited.labels);
        }
        row(Level::Cluster, fold.cluster.meta.name.to_string(), &fold.cluster.spec.inherited.labels);
        row(Level::NodeGroup, fold.place(), &fold.group.spec.inherited.labels);
    }
    row(Level::Node, answer.node().display_name(), &answer.node().spec.inherited.labels);
    rows
}

/// What inspection rules would fill in, in the order in which they were asked.
fn rules(line: Option<&Line<LabelValue>>) -> Vec<Value> {
    let rows = line.into_iter().flat_map(Line::offered).filter_map(|(offer, effect)| match &offer.origin {
        Origin::Rule(rule) => Some(json!({"rule": rule, "says": offer.value.as_str(), "result": offered(&effect)})),
        Origin::Default | Origin::Level(_) | Origin::Host => None,
    });
    rows.collect()
}

/// What came of what a rule or the host would fill in.
fn offered(effect: &OfferEffect) -> String {
    match effect {
        OfferEffect::Wins => "wins".to_owned(),
        OfferEffect::SaidBy(level) => format!("decides nothing: the {level} does"),
        OfferEffect::FilledBy(origin) => format!("decides nothing: {origin} gives it"),
        OfferEffect::Restricted => "decides nothing: the key is restricted".to_owned(),
    }
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
    let gives = |table: &RoleTable, role: &Name| table.given(role, &node.spec.tags).any(|given| **given == *tag);
    let is_produced = table.is_some_and(|table| answer.roles().iter().any(|role| gives(table, role)));
    let unassigned = node.spec.tags.unassigned.members().any(|name| **name == *tag);
    let primary = answer.task_set().is_some_and(|set| set.primary_tags().iter().any(|name| **name == *tag));
    let mut why = match origin {
        Some(TagOrigin::Roles { roles, extensions }) => {
            let names: Vec<&str> = roles.iter().map(Name::as_str).collect();
            let by = match extensions.iter().map(String::as_str).collect::<Vec<_>>().join(", ") {
                none if none.is_empty() => none,
                names => format!(": so decided extension {names}"),
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
    if let Some((role, extension)) = table.filter(|_| !is_produced).and_then(|table| withheld(table, answer, tag)) {
        why += &format!(": role {role} declares it, and extension {extension} decided otherwise for this node");
    }
    if primary && !is_matched(answer, tag) {
        why += &format!("; selectors match it as {PRIMARY_PREFIX}{tag}, in the place of {tag}");
    }
    json!({"tag": tag, "has": origin.is_some(), "primary": primary, "holder": holder(fleet, answer, tag), "origin": origin.map(tag_origin), "why": why, "change": change})
}

/// A role of the node that declares a tag and does not produce it there, with the extension that decided so.
fn withheld<'a>(table: &'a RoleTable, answer: &'a Answer, tag: &str) -> Option<(Name, &'a str)> {
    let by_hand = &answer.node().spec.tags;
    let declares = |role: &Name| table.produced_by(role).iter().any(|own| **own == *tag);
    let decided = |role: Name| table.decision(&role, by_hand).map(|decided| (role, &*decided.extension));
    answer.roles().into_iter().filter(declares).find_map(decided)
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

/// What became of a task on its node, as whoever keeps that says.
pub struct Ran<'a> {
    /// Which tasks run of what was released to the node; `None`: none does.
    pub runs: Option<&'a dyn Fn(&str) -> bool>,
    /// Whether a task set was ever released to the node, be it one without tasks.
    pub has_set: bool,
    /// That what the node is to be told is too large to be sent.
    pub too_large: Option<String>,
    /// The release of the task set that the node keeps while another one waits; `None`: it has what it is to have.
    pub keeps: Option<String>,
    /// Whether the host said that it holds that task set.
    pub told: bool,
    /// What became of it in the task set that is in force; `None`: nothing is known yet.
    pub outcome: Option<TaskOutcome>,
    /// The barriers that are shut for the node, each with the `task` and the `selector` by which it is named.
    pub shut: &'a dyn Fn() -> Vec<Value>,
}

/// Why a task falls to a node, or does not, and what keeps it at that time; `None` where neither the node's release nor its host has such
/// a task.
pub fn task(answer: &Answer, id: &str, now: Timestamp, ran: &Ran<'_>) -> Option<Value> {
    // The name that the node's levels say: its profile may be that of another release of equal content.
    let named = answer.release().map(|release| release.name.to_string());
    let released = ran.runs.is_some_and(|runs| runs(id));
    let explained = |aside: SetAside<'_>| if ran.has_set { aside.explained() } else { aside.explained_without_set() };
    let set_aside = answer.set_aside(ran.runs).filter(|aside| aside.is_in_force(now)).map(explained);
    let too_large = ran.too_large.iter().map(|error| format!("{error}: its host keeps what it has"));
    let mut set_aside: Vec<String> = set_aside.chain(too_large).collect();
    let found = answer.task_set().and_then(|set| Some((set, set.profile.release.find(id)?)));
    let Some((set, ix)) = found else {
        let why = match (answer.task_set(), released) {
            (None, _) => "the node is unplaced, or no level names a release",
            (Some(_), true) => "the node's release has no such task",
            (Some(_), false) => return None,
        };
        return Some(json!({
            "task": id, "release": named, "runs": false, "why": why, "reads": [], "set_aside": set_aside, "released": released,
            "keeps": ran.keeps, "told": ran.told, "waits": [],
        }));
    };
    let release = &set.profile.release;
    let observed = "the task's mode is observe: it is neither run nor checked";
    set_aside.extend(release.task(ix).task.is_observed().then(|| observed.to_owned()));
    let falls = set.profile.all().contains(&ix);
    let left_out = set.why_left_out(ix).map(|why| why.to_string());
    let placed = release.placement_text(ix);
    let why = match (falls, &left_out) {
        (false, _) => format!("it does not run on this node: it is placed by {placed}"),
        (true, Some(reason)) => format!("it is placed on this node by {placed}, and is left out: {reason}"),
        (true, None) => format!("it runs on this node by {placed}"),
    };
    let references: Vec<String> = release.task(ix).references.iter().map(ToString::to_string).collect();
    // As barriers ask: one that drifted or would change something is not done.
    let is_done = ran.outcome == Some(TaskOutcome::Succeeded);
    let waits = if is_done { Vec::new() } else { waits(&set.profile, ix, ran.shut) };
    // What a node that keeps its task set runs of that name is of the kept one.
    let released = released && ran.keeps.is_none();
    Some(json!({
        "task": id, "release": named, "runs": falls && left_out.is_none(), "why": why, "reads": references,
        "set_aside": set_aside, "released": released, "keeps": ran.keeps, "told": ran.told, "waits": waits,
    }))
}

/// The shut barriers that keep a task from being started, each with the task of this node that waits at it (`here`).
fn waits(profile: &Profile, ix: TaskIx, shut: &dyn Fn() -> Vec<Value>) -> Vec<Value> {
    let before = profile.barriers_before(ix);
    let shut = if before.is_empty() { Vec::new() } else { shut() };
    let rows = before.into_iter().filter_map(|(here, barrier)| {
        let (task, selector) = (profile.release.id(barrier.task), barrier.to_string());
        let mut row = shut.iter().find(|row| row["task"] == *task && row["selector"] == *selector)?.clone();
        row["here"] = profile.release.id(here).into();
        Some(row)
    });
    rows.collect()
}

/// Why a node has a trait, or has not; `known` are the traits that an operator may give.
pub fn trait_name(answer: &Answer, name: &str, known: &TraitNames) -> Value {
    let given = answer.entry.traits(&answer.ruled);
    let sources: Vec<String> = given.sources_of(name).iter().map(ToString::to_string).collect();
    let (suppressed, has) = (given.suppressed.contains(name), given.has(name));
    let change = if suppressed { Some("unsuppress") } else { (!has && known.parse(name).is_ok()).then_some("add") };
    let why = match (has, suppressed, sources.join(", ")) {
        (true, _, sources) => format!("it is given by: {sources}"),
        (false, true, sources) if sources.is_empty() => {
            "an operator suppressed it, and nothing gives it now".to_owned()
        }
        (false, true, sources) => format!("an operator suppressed it; it is given by: {sources}"),
        (false, false, _) => "no operator and no inspection rule gave it, and the host did not detect it".to_owned(),
    };
    json!({"trait": name, "has": has, "sources": sources, "suppressed": suppressed, "why": why, "change": change})
}

/// Where a tag comes from.
pub fn tag_origin(origin: &TagOrigin) -> Value {
    match origin {
        TagOrigin::Roles { roles, extensions } if extensions.is_empty() => json!({"roles": roles}),
        TagOrigin::Roles { roles, extensions } => json!({"roles": roles, "extensions": extensions}),
        TagOrigin::Assigned => json!({"assigned": true}),
    }
}
