//! Writes to nodes: traits, roles and manually assigned tags, park and hold, group and name. Except `rename`, each
//! takes several nodes, by name or by a selection.

use std::ops::ControlFlow;

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use stemma_core::name::NodeName;
use stemma_wire::endpoint::Endpoint;

use crate::api::{ApiClient, WriteRequest};
use crate::args::{KindArg, NodeCommand, NodeFieldArgs, NodeListArgs, Output, OwnedNodeListArgs, RoleCommand, TraitCommand};
use crate::command::batch::{TargetObject, Targets, WritePlan, run_batch};
use crate::command::manifest::is_set;
use crate::command::read;
use crate::command::report::WriteReport;
use crate::exit::Exit;
use crate::output::{cell_text, table};

/// Runs `trait`.
pub(crate) async fn traits(api: &mut ApiClient, command: TraitCommand, output: Output) -> Result<()> {
    match command {
        TraitCommand::List { node } => list_traits(api, &node, output).await,
        TraitCommand::Add(nodes) => {
            // Adding a trait that another manager also added takes nothing from it.
            let args = OwnedNodeListArgs { targets: nodes, overwrite: true };
            write_one_by_one(api, Endpoint::AddNodeTrait, &args, ("has", None), output).await
        }
        TraitCommand::Remove { what, all: false } => {
            let texts = ("no longer has", Some(SkipRule::Absent("trait", &["trait_sources"])));
            write_one_by_one(api, Endpoint::DeleteNodeTrait, &what, texts, output).await
        }
        TraitCommand::Remove { what, all: true } => remove_all_traits(api, &what, output).await,
        TraitCommand::Suppress(what) => set_suppressed(api, &what, true, output).await,
        TraitCommand::Unsuppress(what) => set_suppressed(api, &what, false, output).await,
    }
}

/// Runs `trait remove --all`.
async fn remove_all_traits(api: &mut ApiClient, args: &OwnedNodeListArgs, output: Output) -> Result<()> {
    let (nodes, names) = args.targets.split();
    if !names.is_empty() {
        return Err(Exit::Usage.with_message("--all removes every trait: do not name any"));
    }
    let nodes = Targets::for_kind(api, KindArg::Node, &nodes, &args.targets.selection).await?;
    let plan = async |_: &mut ApiClient, node: &TargetObject| {
        let write = KindArg::Node.write_request(Endpoint::DeleteNodeTraits, &node.name, &[])?;
        let sentence = format!("{node}: all traits that operators added are removed");
        Ok(WritePlan::from_write(write.without_force(args.overwrite), sentence))
    };
    run_batch(api, &nodes, output, plan).await
}

/// Runs `role`.
pub(crate) async fn role(api: &mut ApiClient, command: RoleCommand, output: Output) -> Result<()> {
    let (row, args, text, skip) = match command {
        RoleCommand::Add(what) => (Endpoint::GiveNodeRoles, what, "has role", None),
        RoleCommand::Remove(what) => {
            (Endpoint::TakeNodeRoles, what, "no longer has role", Some(SkipRule::Absent("role", &["roles"])))
        }
        RoleCommand::Refresh(nodes) => {
            // No manager owns what an extension decides.
            let args = OwnedNodeListArgs { targets: nodes, overwrite: true };
            (Endpoint::RefreshNodeRoles, args, "was evaluated again for role", None)
        }
    };
    write_in_one_request(api, row, &args, ("roles", text, skip), output).await
}

/// Assigns or unassigns tags by hand.
pub(crate) async fn assign_tags(api: &mut ApiClient, args: &OwnedNodeListArgs, assigns: bool, output: Output) -> Result<()> {
    let (row, text, skip) = if assigns {
        (Endpoint::AssignNodeTags, "assigned", Some(SkipRule::Present("tag", "assigned_tags")))
    } else {
        (Endpoint::UnassignNodeTags, "unassigned", Some(SkipRule::Absent("tag", &["tags", "assigned_tags"])))
    };
    write_in_one_request(api, row, args, ("tags", text, skip), output).await
}

/// Which names a command skips on nodes that a selection found. On a node that was named by the user, the same case is
/// an error.
#[derive(Clone, Copy, Debug)]
enum SkipRule {
    /// Skip a name that the command would remove, if none of these fields of the node lists it. The first value is the
    /// noun to print.
    Absent(&'static str, &'static [&'static str]),
    /// Skip a name that the command would add, if this field of the node lists it already. The first value is the noun
    /// to print.
    Present(&'static str, &'static str),
}

impl SkipRule {
    /// Returns whether a name is skipped on a node.
    fn should_skip(self, node: &Value, name: &str) -> bool {
        let lists = |field: &str| match node.get(field) {
            Some(Value::Array(items)) => items.iter().any(|item| item.as_str() == Some(name)),
            Some(Value::Object(map)) => map.contains_key(name),
            _ => false,
        };
        match self {
            Self::Absent(_, fields) => !fields.iter().any(|field| lists(field)),
            Self::Present(_, field) => lists(field),
        }
    }

    /// Returns the sentence about the skipped names of a node.
    fn message(self, node: &TargetObject, names: &[String]) -> String {
        let names = names.join(", ");
        match self {
            Self::Absent(noun, _) => format!("{node} has no {noun} {names}: nothing to remove"),
            Self::Present(noun, _) => format!("{node} has {noun} {names} already"),
        }
    }
}

/// Returns the names to write to a node. If all of them are skipped, returns a plan without writes instead.
async fn remaining_names(
    api: &mut ApiClient,
    (nodes, node): (&Targets, &TargetObject),
    names: &[String],
    rule: Option<SkipRule>,
) -> Result<ControlFlow<WritePlan, Vec<String>>> {
    let Some(rule) = rule.filter(|_| nodes.is_selected) else { return Ok(ControlFlow::Continue(names.to_vec())) };
    let present = read::read_one(api, KindArg::Node, &node.name).await?;
    let (skipped, rest): (Vec<String>, Vec<String>) = names.iter().cloned().partition(|name| rule.should_skip(&present, name));
    if rest.is_empty() {
        return Ok(ControlFlow::Break(WritePlan::no_change(rule.message(node, &skipped), present)));
    }
    if !skipped.is_empty() {
        errln!("info: {}", rule.message(node, &skipped));
    }
    Ok(ControlFlow::Continue(rest))
}

/// Returns the nodes of a command, and the names to add or remove.
async fn split_targets(api: &mut ApiClient, args: &NodeListArgs, word: &str) -> Result<(Targets, Vec<String>)> {
    let (nodes, names) = args.split();
    let Some(first) = names.first() else {
        return Err(Exit::Usage.with_message(format!("which {word}? name the node, then the {word}")));
    };
    // With a selection, a node in the command line would be taken for one of the names.
    if !args.selection.is_empty() && names.len() > 1 && is_node_word(api, first).await? {
        let sentence = format!("{first} is named and others are selected: use names or a selection, not both");
        return Err(Exit::Usage.with_message(sentence));
    }
    Ok((Targets::for_kind(api, KindArg::Node, &nodes, &args.selection).await?, names))
}

/// Returns whether a word names a node, or several separated by commas.
async fn is_node_word(api: &mut ApiClient, word: &str) -> Result<bool> {
    if word.contains(',') {
        return Ok(true);
    }
    match NodeName::new(word) {
        Ok(_) => Ok(api.find(&Endpoint::GetNode.path(&[word])).await?.is_some()),
        Err(_) => Ok(false),
    }
}

/// Writes all names in one request, so a node gets all of them or none.
async fn write_in_one_request(
    api: &mut ApiClient,
    row: Endpoint,
    args: &OwnedNodeListArgs,
    (field, text, skip): (&str, &str, Option<SkipRule>),
    output: Output,
) -> Result<()> {
    let (nodes, names) = split_targets(api, &args.targets, field).await?;
    let plan = async |api: &mut ApiClient, node: &TargetObject| {
        let names = match remaining_names(api, (&nodes, node), &names, skip).await? {
            ControlFlow::Continue(names) => names,
            ControlFlow::Break(step) => return Ok(step),
        };
        let write = KindArg::Node.write_request(row, &node.name, &[])?.with_json(&json!({field: names}));
        Ok(WritePlan::from_write(write.without_force(args.overwrite), format!("{node} {text} {}", names.join(", "))))
    };
    run_batch(api, &nodes, output, plan).await
}

/// Writes each trait in its own request.
async fn write_one_by_one(
    api: &mut ApiClient,
    row: Endpoint,
    args: &OwnedNodeListArgs,
    (text, skip): (&str, Option<SkipRule>),
    output: Output,
) -> Result<()> {
    let (nodes, names) = split_targets(api, &args.targets, "traits").await?;
    let plan = async |api: &mut ApiClient, node: &TargetObject| {
        let names = match remaining_names(api, (&nodes, node), &names, skip).await? {
            ControlFlow::Continue(names) => names,
            ControlFlow::Break(step) => return Ok(step),
        };
        let write = |name: &String| {
            KindArg::Node.write_request(row, &node.name, &[name]).map(|write| write.without_force(args.overwrite))
        };
        let writes = names.iter().map(write);
        let sentence = format!("{node} {text} {}", names.join(", "));
        Ok(WritePlan { writes: writes.collect::<Result<_>>()?, ..WritePlan::no_change(sentence, Value::Null) })
    };
    run_batch(api, &nodes, output, plan).await
}

/// Runs `trait list`: prints the traits of a node with their sources, and the suppressed traits.
async fn list_traits(api: &mut ApiClient, node: &str, output: Output) -> Result<()> {
    let object = read::read_one(api, KindArg::Node, node).await?;
    let sources = object.get("trait_sources").cloned().unwrap_or_default();
    let entries = || sources.as_object().into_iter().flatten();
    let suppressed = || object.get("suppressed_traits").and_then(Value::as_array).into_iter().flatten();
    let shown = || {
        let rows = entries().map(|(name, from)| vec![name.clone(), cell_text(Some(from))]);
        let suppressed_rows = suppressed().map(|name| vec![cell_text(Some(name)), "suppressed".to_owned()]);
        table(&["trait", "from"], rows.chain(suppressed_rows))
    };
    read::print_list(&sources, ("trait", entries().map(|(name, _)| name.as_str())), shown, output)
}

/// Adds traits to the suppressed traits of each node, or removes them.
async fn set_suppressed(api: &mut ApiClient, args: &OwnedNodeListArgs, adds: bool, output: Output) -> Result<()> {
    let (nodes, names) = split_targets(api, &args.targets, "traits").await?;
    let plan = async |api: &mut ApiClient, node: &TargetObject| {
        let object = read::read_one(api, KindArg::Node, &node.name).await?;
        let present = object.get("suppressed_traits").and_then(Value::as_array).into_iter().flatten();
        let mut suppressed: Vec<String> = present.filter_map(Value::as_str).map(str::to_owned).collect();
        let missing: Vec<&str> = names.iter().filter(|name| !suppressed.contains(name)).map(String::as_str).collect();
        if !adds && !missing.is_empty() {
            let sentence = format!("{node}: {} is not suppressed", missing.join(", "));
            if !nodes.is_selected {
                return Err(Exit::NotFound.with_message(sentence));
            }
            if missing.len() == names.len() {
                return Ok(WritePlan::no_change(sentence, object));
            }
            errln!("info: {sentence}");
        }
        suppressed.retain(|name| !names.contains(name));
        if adds {
            suppressed.extend(names.iter().cloned());
            suppressed.sort();
        }
        let listed = if suppressed.is_empty() { "nothing".to_owned() } else { suppressed.join(", ") };
        // Replaces the whole list, so it fails if another client has written since the read.
        let write = node_patch(node, &json!({"suppressed_traits": suppressed}))?.if_revision(read::object_revision(&object));
        let write = write.without_force(args.overwrite);
        Ok(WritePlan::from_write(write, format!("{node}: suppressed {listed}")))
    };
    run_batch(api, &nodes, output, plan).await
}

/// Runs `node`.
pub(crate) async fn node(api: &mut ApiClient, command: NodeCommand, reason: Option<&str>, output: Output) -> Result<()> {
    match command {
        NodeCommand::Park { nodes, release_primary } => {
            // With `--release-primary`, a parked node is written too, to give away its primaries.
            let unchanged_text = (!release_primary).then_some("parked already");
            let mut fields = json!({"parked": true});
            // Without a reason, a parked node keeps its reason.
            if let Some(reason) = reason {
                fields["maintenance_reason"] = reason.into();
            }
            let update = FieldUpdate { fields, state_text: "parked", unchanged_text, should_release_primary: release_primary };
            set_fields(api, &nodes, update, output).await
        }
        NodeCommand::Unpark(nodes) => {
            let update = FieldUpdate::end(json!({"parked": false}), "no longer parked", "not parked");
            set_fields(api, &nodes, update, output).await
        }
        NodeCommand::Hold { nodes, until, duration } => {
            let until = hold_end(until.as_deref(), duration)?;
            if until.is_none() && reason.is_none() {
                let sentence = "a hold needs a reason or an end: --reason TEXT, --until TIME or --for DURATION";
                return Err(Exit::Usage.with_message(sentence));
            }
            let held = until.as_ref().map_or_else(|| "held".to_owned(), |end| format!("held until {end}"));
            // Omitted fields are sent as null, so they remove those of an earlier hold.
            let fields = json!({"hold": {"until": until, "reason": reason}});
            let held = FieldUpdate { fields, state_text: &held, unchanged_text: None, should_release_primary: false };
            set_fields(api, &nodes, held, output).await
        }
        NodeCommand::Unhold(nodes) => {
            let update = FieldUpdate::end(json!({"hold": null}), "no longer held", "not held");
            set_fields(api, &nodes, update, output).await
        }
        NodeCommand::Move { mut words, out, selection, overwrite } => {
            let group = if out { None } else { words.pop() };
            if group.as_ref().is_none_or(|group| !group.contains('/')) && !out {
                let sentence = "no target group: name it last, as CLUSTER/GROUP, or use --out";
                return Err(Exit::Usage.with_message(sentence));
            }
            let nodes = NodeFieldArgs { names: words, selection, overwrite };
            move_nodes(api, &nodes, group.as_deref().map(|group| KindArg::Nodegroup.bare_name(group)), output).await
        }
        NodeCommand::Rename { node, name } => rename_node(api, &node, &name, output).await,
    }
}

/// A change that is made to each node.
struct FieldUpdate<'a> {
    /// The fields to set, with their values.
    fields: Value,
    /// The node's new state, for the printed sentence.
    state_text: &'a str,
    /// The text for a node that already has these values and so is not written. `None` if the node is written anyway.
    unchanged_text: Option<&'static str>,
    /// True if the node's primaries move to the next node.
    should_release_primary: bool,
}

impl FieldUpdate<'static> {
    /// Returns the change that ends a park or hold.
    const fn end(fields: Value, state_text: &'static str, unchanged_text: &'static str) -> Self {
        Self { fields, state_text, unchanged_text: Some(unchanged_text), should_release_primary: false }
    }
}

/// Makes the changes of a [`FieldUpdate`] to each node.
async fn set_fields(api: &mut ApiClient, args: &NodeFieldArgs, update: FieldUpdate<'_>, output: Output) -> Result<()> {
    let nodes = Targets::for_kind(api, KindArg::Node, &args.names, &args.selection).await?;
    let plan = async |api: &mut ApiClient, node: &TargetObject| {
        if let Some(already) = update.unchanged_text {
            let current = read::read_one(api, KindArg::Node, &node.name).await?;
            let mut fields = update.fields.as_object().into_iter().flatten();
            if fields.all(|(field, value)| has_value(&current, field, value)) {
                return Ok(WritePlan::no_change(format!("{node} is {already}"), current));
            }
        }
        let write = node_patch(node, &update.fields)?;
        let write = if update.should_release_primary { write.with_query("release_primary=true") } else { write };
        Ok(WritePlan::from_write(write.without_force(args.overwrite), format!("{node} is {}", update.state_text)))
    };
    run_batch(api, &nodes, output, plan).await
}

/// Returns whether a field of a node already has the value. Texts are compared; for other values only being set or
/// unset counts.
fn has_value(node: &Value, field: &str, value: &Value) -> bool {
    let present = node.get(field).unwrap_or(&Value::Null);
    if value.is_string() { present == value } else { is_set(present) == is_set(value) }
}

/// Builds a change of a node's own fields.
fn node_patch(node: &TargetObject, fields: &Value) -> Result<WriteRequest> {
    Ok(KindArg::Node.write_request(Endpoint::PatchNode, &node.name, &[])?.with_json(fields))
}

/// Returns the end of a hold: the given text, or the UTC time after the duration. `None` if the hold has no end.
fn hold_end(until: Option<&str>, duration: Option<u64>) -> Result<Option<String>> {
    let now = Timestamp::now();
    let now_ms = u64::try_from(now.as_millisecond()).unwrap_or_default();
    match (until, duration) {
        (None, None) => Ok(None),
        (Some(text), _) => match stemma_core::time::parse(text) {
            Ok(end) if end > now_ms => Ok(Some(text.to_owned())),
            Ok(_) => Err(Exit::Usage.with_message("--until is in the past")),
            Err(error) => Err(Exit::Usage.with_message(format!("--until {error}"))),
        },
        (None, Some(seconds)) => {
            let end = i64::try_from(seconds).ok().map(SignedDuration::from_secs);
            let end = end.and_then(|length| now.checked_add(length).ok());
            let end = end.ok_or_else(|| Exit::Usage.with_message("--for is too long: give a shorter duration"))?;
            Ok(Some(end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()))
        }
    }
}

/// Moves each node into a group, or out of its own.
async fn move_nodes(api: &mut ApiClient, args: &NodeFieldArgs, group: Option<&str>, output: Output) -> Result<()> {
    let nodes = Targets::for_kind(api, KindArg::Node, &args.names, &args.selection).await?;
    let plan = async |api: &mut ApiClient, node: &TargetObject| {
        let object = read::read_one(api, KindArg::Node, &node.name).await?;
        let current = object.get("nodegroup").and_then(Value::as_str);
        let (from, to) = (current.unwrap_or("no group"), group.unwrap_or("no group"));
        if current == group {
            let sentence = format!("{node} is in {to} already");
            return Ok(WritePlan::no_change(sentence, object));
        }
        let write = node_patch(node, &json!({"nodegroup": group}))?.if_revision(read::object_revision(&object));
        let write = write.without_force(args.overwrite);
        let note = leave_note(&object, current, group);
        Ok(WritePlan { note, ..WritePlan::from_write(write, format!("{node} moved from {from} to {to}")) })
    };
    run_batch(api, &nodes, output, plan).await
}

/// Returns the consequences for a node that leaves its cluster, or `None` if it stays in it.
fn leave_note(node: &Value, current: Option<&str>, group: Option<&str>) -> Option<String> {
    let cluster = |group: Option<&str>| Some(group?.split_once('/')?.0.to_owned());
    let old_cluster = cluster(current).filter(|left| cluster(group).as_ref() != Some(left))?;
    let primaries = node.get("primary_tags").filter(|tags| tags.as_array().is_some_and(|tags| !tags.is_empty()));
    let note =
        primaries.map_or_else(String::new, |tags| format!(" it gives back its primaries there ({}), and", cell_text(Some(tags))));
    Some(format!("leaves cluster {old_cluster}:{note} nothing is drained before it leaves"))
}

/// Renames a node. Fails if another client has written it since the read.
async fn rename_node(api: &mut ApiClient, node: &str, name: &str, output: Output) -> Result<()> {
    let object = read::read_one(api, KindArg::Node, node).await?;
    let write = KindArg::Node.write_request(Endpoint::PatchNode, node, &[])?.with_json(&json!({"name": name}));
    let answer = api.send(write.if_revision(read::object_revision(&object))).await?;
    let sentence = format!("node {} is called {name}", read::object_name(KindArg::Node, &object));
    WriteReport { kind: "node", name, sentence, answer }.print(api, output).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_end_rejects_past_time() {
        assert_eq!(hold_end(None, None).unwrap(), None);
        assert_eq!(hold_end(Some("2999-01-02T03:04:05+01:00"), None).unwrap().unwrap(), "2999-01-02T03:04:05+01:00");
        assert_eq!(hold_end(Some("9999-12-31T23:59:59Z"), None).unwrap().unwrap(), "9999-12-31T23:59:59Z");
        assert!(hold_end(None, Some(7_200)).unwrap().is_some());
        for (until, duration, told) in [
            (Some("2001-01-01T00:00:00Z"), None, "--until is in the past"),
            (Some("tomorrow"), None, "--until \"tomorrow\" is not a time"),
            (Some("2999-12-31T23:59:60Z"), None, "--until \"2999-12-31T23:59:60Z\" is not a time"),
            (Some("2999-12-31T23:59:59+25:00"), None, "--until \"2999-12-31T23:59:59+25:00\" is not a time"),
            (None, Some(u64::MAX), "--for is too long: give a shorter duration"),
        ] {
            let error = hold_end(until, duration).unwrap_err().to_string();
            assert!(error.starts_with(told), "{error}");
        }
    }

    /// Ironic's `PUT …/maintenance` on a node in maintenance replaces its reason.
    #[test]
    fn y05_has_value_is_false_when_reason_differs() {
        let parked = json!({"parked": true, "maintenance_reason": "disk", "hold": null});
        for (field, value, expected) in [
            ("parked", json!(true), true),
            ("parked", json!(false), false),
            ("maintenance_reason", json!("disk"), true),
            ("maintenance_reason", json!("fan"), false),
            ("hold", Value::Null, true),
        ] {
            assert_eq!(has_value(&parked, field, &value), expected, "{field} {value}");
        }
        assert!(!has_value(&json!({"parked": false}), "maintenance_reason", &json!("fan")));
    }

    #[test]
    fn y09_skip_rule_skips_selected_node_when_nothing_changes() {
        let node = json!({"trait_sources": {"CUSTOM_A": ["operator"]}, "tags": ["db"], "assigned_tags": ["old"]});
        let (taken, given) = (SkipRule::Absent("tag", &["tags", "assigned_tags"]), SkipRule::Present("tag", "assigned_tags"));
        for (passes, name, expected) in [
            (SkipRule::Absent("trait", &["trait_sources"]), "CUSTOM_A", false),
            (SkipRule::Absent("trait", &["trait_sources"]), "CUSTOM_B", true),
            (taken, "db", false),
            (taken, "old", false),
            (taken, "web", true),
            (given, "old", true),
            (given, "db", false),
        ] {
            assert_eq!(passes.should_skip(&node, name), expected, "{passes:?} {name}");
        }
        let (s1, names) = (TargetObject { kind: "node", name: "s1".to_owned() }, ["a".to_owned(), "b".to_owned()]);
        assert_eq!(taken.message(&s1, &names), "node s1 has no tag a, b: nothing to remove");
        assert_eq!(given.message(&s1, &names), "node s1 has tag a, b already");
    }

    #[test]
    fn leave_note_mentions_primaries_when_node_leaves_cluster() {
        let node = json!({"primary_tags": ["mysql"]});
        let told = leave_note(&node, Some("eu/db"), Some("us/db")).unwrap();
        assert_eq!(told, "leaves cluster eu: it gives back its primaries there (mysql), and nothing is drained before it leaves");
        assert_eq!(
            leave_note(&json!({}), Some("eu/db"), None).unwrap(),
            "leaves cluster eu: nothing is drained before it leaves"
        );
        assert_eq!(leave_note(&node, Some("eu/db"), Some("eu/web")), None);
        assert_eq!(leave_note(&node, None, Some("eu/web")), None);
    }
}
