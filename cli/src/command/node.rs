//! Writes to nodes: traits, roles and manually assigned tags, park and hold, group and name. Except `node rename` and
//! `trait list`, each command accepts several nodes, by name or by a selection.

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

/// Runs `stemma trait`: lists, adds, removes, suppresses and unsuppresses traits of nodes.
pub(crate) async fn traits(api: &mut ApiClient, command: TraitCommand, output: Output) -> Result<()> {
    match command {
        TraitCommand::List { node } => list_traits(api, &node, output).await,
        TraitCommand::Add(nodes) => {
            // If another manager also added the trait, that manager still owns it. So `--overwrite` is not necessary.
            let args = OwnedNodeListArgs { targets: nodes, overwrite: true };
            // The sentence is `NODE has TRAIT`. No trait is skipped.
            write_separately(api, Endpoint::AddNodeTrait, &args, ("has", None), output).await
        }
        TraitCommand::Remove { what: args, all: false } => {
            let texts = ("no longer has", Some(SkipRule::Absent("trait", &["trait_sources"])));
            write_separately(api, Endpoint::DeleteNodeTrait, &args, texts, output).await
        }
        TraitCommand::Remove { what: args, all: true } => remove_all_traits(api, &args, output).await,
        TraitCommand::Suppress(args) => set_suppressed(api, &args, true, output).await,
        TraitCommand::Unsuppress(args) => set_suppressed(api, &args, false, output).await,
    }
}

/// Runs `stemma trait remove --all`, which removes all traits that operators added to the nodes.
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

/// Runs `stemma role`: adds roles to nodes, removes them, or lets extensions evaluate the roles again.
pub(crate) async fn role(api: &mut ApiClient, command: RoleCommand, output: Output) -> Result<()> {
    let (endpoint, args, result_text, skip_rule) = match command {
        RoleCommand::Add(args) => (Endpoint::GiveNodeRoles, args, "has role", None),
        RoleCommand::Remove(args) => {
            (Endpoint::TakeNodeRoles, args, "no longer has role", Some(SkipRule::Absent("role", &["roles"])))
        }
        RoleCommand::Refresh(nodes) => {
            // No manager owns what an extension decides.
            let args = OwnedNodeListArgs { targets: nodes, overwrite: true };
            (Endpoint::RefreshNodeRoles, args, "was evaluated again for role", None)
        }
    };
    write_in_one_request(api, endpoint, &args, ("roles", result_text, skip_rule), output).await
}

/// Runs `stemma tag assign`, or `stemma tag unassign` if `assign` is false.
pub(crate) async fn assign_tags(api: &mut ApiClient, args: &OwnedNodeListArgs, assign: bool, output: Output) -> Result<()> {
    let (endpoint, result_text, skip_rule) = if assign {
        (Endpoint::AssignNodeTags, "assigned", Some(SkipRule::Present("tag", "assigned_tags")))
    } else {
        (Endpoint::UnassignNodeTags, "unassigned", Some(SkipRule::Absent("tag", &["tags", "assigned_tags"])))
    };
    write_in_one_request(api, endpoint, args, ("tags", result_text, skip_rule), output).await
}

/// The rule by which a command skips names of traits, roles or tags on nodes that a selection found. If the user named
/// the node, the controller refuses such a name.
#[derive(Clone, Copy, Debug)]
enum SkipRule {
    /// Skip a name to remove that none of these fields of the node contains. The first value is the noun to print.
    Absent(&'static str, &'static [&'static str]),
    /// Skip a name to add that this field of the node already lists. The first value is the noun to print.
    Present(&'static str, &'static str),
}

impl SkipRule {
    /// Returns whether the rule skips a name on a node.
    fn should_skip(self, node: &Value, name: &str) -> bool {
        let has_name = |field: &str| match node.get(field) {
            Some(Value::Array(items)) => items.iter().any(|item| item.as_str() == Some(name)),
            Some(Value::Object(map)) => map.contains_key(name),
            _ => false,
        };
        match self {
            Self::Absent(_, fields) => !fields.iter().any(|field| has_name(field)),
            Self::Present(_, field) => has_name(field),
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

/// Returns the names to write to a node, without those that the rule skips, and prints a note about the skipped names.
/// If all names are skipped, returns a plan without writes in place of the names.
async fn remaining_names(
    api: &mut ApiClient,
    (nodes, node): (&Targets, &TargetObject),
    names: &[String],
    rule: Option<SkipRule>,
) -> Result<ControlFlow<WritePlan, Vec<String>>> {
    let Some(rule) = rule.filter(|_| nodes.is_selected) else { return Ok(ControlFlow::Continue(names.to_vec())) };
    let current = read::read_object(api, KindArg::Node, &node.name).await?;
    let (skipped, rest): (Vec<String>, Vec<String>) = names.iter().cloned().partition(|name| rule.should_skip(&current, name));
    if rest.is_empty() {
        return Ok(ControlFlow::Break(WritePlan::no_change(rule.message(node, &skipped), current)));
    }
    if !skipped.is_empty() {
        errln!("info: {}", rule.message(node, &skipped));
    }
    Ok(ControlFlow::Continue(rest))
}

/// Returns the nodes of a command, and the names of the traits, roles or tags that it writes to them. `word` is the
/// plural noun for these. Fails if there is no such name, or if nodes are both named and selected.
async fn split_targets(api: &mut ApiClient, args: &NodeListArgs, word: &str) -> Result<(Targets, Vec<String>)> {
    let (nodes, names) = args.split();
    let Some(first) = names.first() else {
        return Err(Exit::Usage.with_message(format!("which {word}? name the node, then the {word}")));
    };
    // With a selection, all words are names of traits, roles or tags, so a node among them is a mistake.
    if !args.selection.is_empty() && names.len() > 1 && is_node_word(api, first).await? {
        let sentence = format!("{first} is named and others are selected: use names or a selection, not both");
        return Err(Exit::Usage.with_message(sentence));
    }
    Ok((Targets::for_kind(api, KindArg::Node, &nodes, &args.selection).await?, names))
}

/// Returns whether a word is the name of an existing node, or a list separated by commas, which only nodes can be.
async fn is_node_word(api: &mut ApiClient, word: &str) -> Result<bool> {
    if word.contains(',') {
        return Ok(true);
    }
    match NodeName::new(word) {
        Ok(_) => Ok(api.find(&Endpoint::GetNode.path(&[word])).await?.is_some()),
        Err(_) => Ok(false),
    }
}

/// Writes the names of roles or tags in one request for each node. So on one node, either all names take effect or
/// none. `result_text` is printed between the node and the names, as in `node web-1 has role db`.
async fn write_in_one_request(
    api: &mut ApiClient,
    endpoint: Endpoint,
    args: &OwnedNodeListArgs,
    (field, result_text, skip_rule): (&str, &str, Option<SkipRule>),
    output: Output,
) -> Result<()> {
    let (nodes, names) = split_targets(api, &args.targets, field).await?;
    let plan = async |api: &mut ApiClient, node: &TargetObject| {
        let names = match remaining_names(api, (&nodes, node), &names, skip_rule).await? {
            ControlFlow::Continue(names) => names,
            ControlFlow::Break(write_plan) => return Ok(write_plan),
        };
        let write = KindArg::Node.write_request(endpoint, &node.name, &[])?.with_json(&json!({field: names}));
        Ok(WritePlan::from_write(write.without_force(args.overwrite), format!("{node} {result_text} {}", names.join(", "))))
    };
    run_batch(api, &nodes, output, plan).await
}

/// Writes each trait of each node in its own request. `result_text` is printed between the node and the traits.
async fn write_separately(
    api: &mut ApiClient,
    endpoint: Endpoint,
    args: &OwnedNodeListArgs,
    (result_text, skip_rule): (&str, Option<SkipRule>),
    output: Output,
) -> Result<()> {
    let (nodes, names) = split_targets(api, &args.targets, "traits").await?;
    let plan = async |api: &mut ApiClient, node: &TargetObject| {
        let names = match remaining_names(api, (&nodes, node), &names, skip_rule).await? {
            ControlFlow::Continue(names) => names,
            ControlFlow::Break(write_plan) => return Ok(write_plan),
        };
        let write = |name: &String| {
            KindArg::Node.write_request(endpoint, &node.name, &[name]).map(|write| write.without_force(args.overwrite))
        };
        let writes = names.iter().map(write);
        let sentence = format!("{node} {result_text} {}", names.join(", "));
        // A node has as many writes as traits, so the plan is built from one without writes.
        Ok(WritePlan { writes: writes.collect::<Result<_>>()?, ..WritePlan::no_change(sentence, Value::Null) })
    };
    run_batch(api, &nodes, output, plan).await
}

/// Runs `stemma trait list`: prints the traits of a node with their sources, in a table also the suppressed traits.
async fn list_traits(api: &mut ApiClient, node: &str, output: Output) -> Result<()> {
    let object = read::read_object(api, KindArg::Node, node).await?;
    let sources = object.get("trait_sources").cloned().unwrap_or_default();
    let entries = || sources.as_object().into_iter().flatten();
    let suppressed = || object.get("suppressed_traits").and_then(Value::as_array).into_iter().flatten();
    let as_table = || {
        let rows = entries().map(|(name, source_list)| vec![name.clone(), cell_text(Some(source_list))]);
        let suppressed_rows = suppressed().map(|name| vec![cell_text(Some(name)), "suppressed".to_owned()]);
        table(&["trait", "from"], rows.chain(suppressed_rows))
    };
    read::print_list(&sources, ("trait", entries().map(|(name, _)| name.as_str())), as_table, output)
}

/// Adds traits to the suppressed traits of each node, or removes them if `should_add` is false. A trait to remove that
/// is not suppressed is skipped on a selected node. On a node that the user named, such a trait is an error.
async fn set_suppressed(api: &mut ApiClient, args: &OwnedNodeListArgs, should_add: bool, output: Output) -> Result<()> {
    let (nodes, names) = split_targets(api, &args.targets, "traits").await?;
    let plan = async |api: &mut ApiClient, node: &TargetObject| {
        let object = read::read_object(api, KindArg::Node, &node.name).await?;
        let current = object.get("suppressed_traits").and_then(Value::as_array).into_iter().flatten();
        let mut suppressed: Vec<String> = current.filter_map(Value::as_str).map(str::to_owned).collect();
        let missing: Vec<&str> = names.iter().filter(|name| !suppressed.contains(name)).map(String::as_str).collect();
        if !should_add && !missing.is_empty() {
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
        if should_add {
            suppressed.extend(names.iter().cloned());
            suppressed.sort();
        }
        let suppressed_text = if suppressed.is_empty() { "nothing".to_owned() } else { suppressed.join(", ") };
        // Replaces the whole list, so it fails if another client has written since the read.
        let write = node_patch(node, &json!({"suppressed_traits": suppressed}))?.if_revision(read::object_revision(&object));
        let write = write.without_force(args.overwrite);
        Ok(WritePlan::from_write(write, format!("{node}: suppressed {suppressed_text}")))
    };
    run_batch(api, &nodes, output, plan).await
}

/// Runs `stemma node`: parks, unparks, holds, unholds, moves, reboots or renames nodes.
pub(crate) async fn node(api: &mut ApiClient, command: NodeCommand, reason: Option<&str>, output: Output) -> Result<()> {
    match command {
        NodeCommand::Park { nodes, release_primary } => {
            // With `--release-primary`, a parked node is written too, to give away its primaries.
            let unchanged_text = (!release_primary).then_some("parked already");
            let mut fields = json!({"parked": true});
            // Without a new reason, the reason of a parked node remains.
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
            let hold_text = until.as_ref().map_or_else(|| "held".to_owned(), |end| format!("held until {end}"));
            // Omitted fields are sent as null, so they remove those of an earlier hold.
            let fields = json!({"hold": {"until": until, "reason": reason}});
            let update = FieldUpdate { fields, state_text: &hold_text, unchanged_text: None, should_release_primary: false };
            set_fields(api, &nodes, update, output).await
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
        NodeCommand::Reboot { names, selection } => {
            let nodes = Targets::for_kind(api, KindArg::Node, &names, &selection).await?;
            let plan = async |_: &mut ApiClient, node: &TargetObject| {
                let write = KindArg::Node.write_request(Endpoint::RebootNode, &node.name, &[])?;
                Ok(WritePlan::from_write(write, format!("{node}: reboot requested")))
            };
            run_batch(api, &nodes, output, plan).await
        }
        NodeCommand::Rename { node, name } => rename_node(api, &node, &name, output).await,
    }
}

/// A change of fields that a command applies to each node.
struct FieldUpdate<'a> {
    /// The fields to set, with their values.
    fields: Value,
    /// The new state of the node, such as `parked`, for the printed sentence.
    state_text: &'a str,
    /// The text for a node that already has these values. Such a node is not written. `None` if each node is written.
    unchanged_text: Option<&'static str>,
    /// True if the write also moves each primary of the node that the cluster does not name.
    should_release_primary: bool,
}

impl FieldUpdate<'static> {
    /// Returns the change that ends a park or hold. A node without a park or hold is not written.
    const fn end(fields: Value, state_text: &'static str, unchanged_text: &'static str) -> Self {
        Self { fields, state_text, unchanged_text: Some(unchanged_text), should_release_primary: false }
    }
}

/// Applies a [`FieldUpdate`] to each node.
async fn set_fields(api: &mut ApiClient, args: &NodeFieldArgs, update: FieldUpdate<'_>, output: Output) -> Result<()> {
    let nodes = Targets::for_kind(api, KindArg::Node, &args.names, &args.selection).await?;
    let plan = async |api: &mut ApiClient, node: &TargetObject| {
        if let Some(unchanged_text) = update.unchanged_text {
            let current = read::read_object(api, KindArg::Node, &node.name).await?;
            let mut fields = update.fields.as_object().into_iter().flatten();
            if fields.all(|(field, value)| has_value(&current, field, value)) {
                return Ok(WritePlan::no_change(format!("{node} is {unchanged_text}"), current));
            }
        }
        let write = node_patch(node, &update.fields)?;
        let write = if update.should_release_primary { write.with_query("release_primary=true") } else { write };
        Ok(WritePlan::from_write(write.without_force(args.overwrite), format!("{node} is {}", update.state_text)))
    };
    run_batch(api, &nodes, output, plan).await
}

/// Returns whether a field of a node already has the value. A text must be equal. For another value, it is enough that
/// both values are set, or both are unset: `null`, `false` and empty values are unset ([`is_set`]).
fn has_value(node: &Value, field: &str, value: &Value) -> bool {
    let current = node.get(field).unwrap_or(&Value::Null);
    if value.is_string() { current == value } else { is_set(current) == is_set(value) }
}

fn node_patch(node: &TargetObject, fields: &Value) -> Result<WriteRequest> {
    Ok(KindArg::Node.write_request(Endpoint::PatchNode, &node.name, &[])?.with_json(fields))
}

/// Returns the end of a hold: the given text, or the UTC time after the duration in seconds. Returns `None` if neither
/// is given. Fails for a time that is invalid or past, and for a duration that is too long.
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

/// Moves each node into a group, or out of its group if `group` is `None`. A node that is there already is not written.
async fn move_nodes(api: &mut ApiClient, args: &NodeFieldArgs, group: Option<&str>, output: Output) -> Result<()> {
    let nodes = Targets::for_kind(api, KindArg::Node, &args.names, &args.selection).await?;
    let plan = async |api: &mut ApiClient, node: &TargetObject| {
        let object = read::read_object(api, KindArg::Node, &node.name).await?;
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

/// Returns a note about the consequences if a node leaves its cluster by a move from the group `current` to `group`. A
/// group has the form `CLUSTER/GROUP`, and `None` is no group.
fn leave_note(node: &Value, current: Option<&str>, group: Option<&str>) -> Option<String> {
    let cluster = |group: Option<&str>| Some(group?.split_once('/')?.0.to_owned());
    let old_cluster = cluster(current).filter(|old| cluster(group).as_ref() != Some(old))?;
    let primaries = node.get("primary_tags").filter(|tags| tags.as_array().is_some_and(|tags| !tags.is_empty()));
    let note =
        primaries.map_or_else(String::new, |tags| format!(" it gives back its primaries there ({}), and", cell_text(Some(tags))));
    Some(format!("leaves cluster {old_cluster}:{note} nothing is drained before it leaves"))
}

/// Renames a node. Fails if another client has changed the node since this function read it.
async fn rename_node(api: &mut ApiClient, node: &str, name: &str, output: Output) -> Result<()> {
    let object = read::read_object(api, KindArg::Node, node).await?;
    let write = KindArg::Node.write_request(Endpoint::PatchNode, node, &[])?.with_json(&json!({"name": name}));
    let response = api.send(write.if_revision(read::object_revision(&object))).await?;
    let sentence = format!("node {} is called {name}", read::object_name(KindArg::Node, &object));
    WriteReport { kind: "node", name, sentence, answer: response }.print(api, output).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_end_accepts_only_future_time() {
        assert_eq!(hold_end(None, None).unwrap(), None);
        assert_eq!(hold_end(Some("2999-01-02T03:04:05+01:00"), None).unwrap().unwrap(), "2999-01-02T03:04:05+01:00");
        assert_eq!(hold_end(Some("9999-12-31T23:59:59Z"), None).unwrap().unwrap(), "9999-12-31T23:59:59Z");
        assert!(hold_end(None, Some(7_200)).unwrap().is_some());
        for (until, duration, expected) in [
            (Some("2001-01-01T00:00:00Z"), None, "--until is in the past"),
            (Some("tomorrow"), None, "--until \"tomorrow\" is not a time"),
            (Some("2999-12-31T23:59:60Z"), None, "--until \"2999-12-31T23:59:60Z\" is not a time"),
            (Some("2999-12-31T23:59:59+25:00"), None, "--until \"2999-12-31T23:59:59+25:00\" is not a time"),
            (None, Some(u64::MAX), "--for is too long: give a shorter duration"),
        ] {
            let error = hold_end(until, duration).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    /// A parked node with another reason must be written. Ironic's `PUT …/maintenance` also replaces the reason.
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

    /// The node has the tag `db` by a role, and the tag `old` because an operator assigned it.
    #[test]
    fn y09_skip_rule_skips_name_without_effect() {
        let node = json!({"trait_sources": {"CUSTOM_A": ["operator"]}, "tags": ["db"], "assigned_tags": ["old"]});
        let (absent_rule, present_rule) =
            (SkipRule::Absent("tag", &["tags", "assigned_tags"]), SkipRule::Present("tag", "assigned_tags"));
        for (rule, name, expected) in [
            (SkipRule::Absent("trait", &["trait_sources"]), "CUSTOM_A", false),
            (SkipRule::Absent("trait", &["trait_sources"]), "CUSTOM_B", true),
            (absent_rule, "db", false),
            (absent_rule, "old", false),
            (absent_rule, "web", true),
            (present_rule, "old", true),
            (present_rule, "db", false),
        ] {
            assert_eq!(rule.should_skip(&node, name), expected, "{rule:?} {name}");
        }
        let (target, names) = (TargetObject { kind: "node", name: "s1".to_owned() }, ["a".to_owned(), "b".to_owned()]);
        assert_eq!(absent_rule.message(&target, &names), "node s1 has no tag a, b: nothing to remove");
        assert_eq!(present_rule.message(&target, &names), "node s1 has tag a, b already");
    }

    #[test]
    fn leave_note_mentions_primaries_when_node_leaves_cluster() {
        let node = json!({"primary_tags": ["mysql"]});
        let note = leave_note(&node, Some("eu/db"), Some("us/db")).unwrap();
        assert_eq!(note, "leaves cluster eu: it gives back its primaries there (mysql), and nothing is drained before it leaves");
        assert_eq!(
            leave_note(&json!({}), Some("eu/db"), None).unwrap(),
            "leaves cluster eu: nothing is drained before it leaves"
        );
        assert_eq!(leave_note(&node, Some("eu/db"), Some("eu/web")), None);
        assert_eq!(leave_note(&node, None, Some("eu/web")), None);
    }
}
