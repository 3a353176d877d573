//! Writes about nodes: what is given to them (traits, roles, tags by hand), how they are set aside, where they stand and how they are
//! called. Each takes several nodes, by name or by a selection.

use std::ops::ControlFlow;

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use stemma_core::name::NodeName;
use stemma_wire::endpoint::Endpoint;

use crate::api::{Api, Write};
use crate::args::{Kind, NodeVerb, Nodes, NodesAndNames, NodesAndOwned, Output, Role, Trait};
use crate::command::done::Done;
use crate::command::each::{Object, Objects, Step, each};
use crate::command::question;
use crate::command::written::is_said;
use crate::exit::Exit;
use crate::output::{cell, table};

/// `trait`.
pub(crate) async fn traits(api: &mut Api, what: Trait, output: Output) -> Result<()> {
    match what {
        Trait::List { node } => list_traits(api, &node, output).await,
        Trait::Add(what) => {
            // To give what another gave already takes nothing from them.
            let what = NodesAndOwned { what, overwrite: true };
            one_by_one(api, Endpoint::AddNodeTrait, &what, ("has", None), output).await
        }
        Trait::Remove { what, all: false } => {
            let says = ("no longer has", Some(PassedOver::Absent("trait", &["trait_sources"])));
            one_by_one(api, Endpoint::DeleteNodeTrait, &what, says, output).await
        }
        Trait::Remove { what, all: true } => remove_all(api, &what, output).await,
        Trait::Suppress(what) => suppress(api, &what, true, output).await,
        Trait::Unsuppress(what) => suppress(api, &what, false, output).await,
    }
}

/// `trait remove --all`.
async fn remove_all(api: &mut Api, asked: &NodesAndOwned, output: Output) -> Result<()> {
    let (nodes, rest) = asked.what.split();
    if !rest.is_empty() {
        return Err(Exit::Usage.because("--all takes every trait: name none"));
    }
    let nodes = Objects::of_kind(api, Kind::Node, &nodes, &asked.what.selection).await?;
    let plan = async |_: &mut Api, node: &Object| {
        let write = Kind::Node.write(Endpoint::DeleteNodeTraits, &node.name, &[])?;
        let sentence = format!("{node}: all traits that operators gave are gone");
        Ok(Step::of(write.overwriting(asked.overwrite), sentence))
    };
    each(api, &nodes, output, plan).await
}

/// `role`.
pub(crate) async fn role(api: &mut Api, what: Role, output: Output) -> Result<()> {
    let (row, what, has, passes) = match what {
        Role::Add(what) => (Endpoint::GiveNodeRoles, what, "has role", None),
        Role::Remove(what) => {
            (Endpoint::TakeNodeRoles, what, "no longer has role", Some(PassedOver::Absent("role", &["roles"])))
        }
        Role::Refresh(what) => {
            // What an extension decides is no manager's.
            let what = NodesAndOwned { what, overwrite: true };
            (Endpoint::RefreshNodeRoles, what, "was decided again for role", None)
        }
    };
    together(api, row, &what, ("roles", has, passes), output).await
}

/// Assigns or unassigns tags by hand.
pub(crate) async fn tags(api: &mut Api, what: &NodesAndOwned, assigns: bool, output: Output) -> Result<()> {
    let (row, became, passes) = if assigns {
        (Endpoint::AssignNodeTags, "assigned", Some(PassedOver::Present("tag", "assigned_tags")))
    } else {
        (Endpoint::UnassignNodeTags, "unassigned", Some(PassedOver::Absent("tag", &["tags", "assigned_tags"])))
    };
    together(api, row, what, ("tags", became, passes), output).await
}

/// What a verb passes over of the nodes that a selection found. Of a node that was named the same is a refusal: whoever named it meant it.
#[derive(Clone, Copy, Debug)]
enum PassedOver {
    /// What the verb takes, called so, where none of these fields of a node lists it.
    Absent(&'static str, &'static [&'static str]),
    /// What the verb gives, called so, where this field lists it already.
    Present(&'static str, &'static str),
}

impl PassedOver {
    /// Whether this is passed over of a node.
    fn is(self, node: &Value, name: &str) -> bool {
        let lists = |field: &str| match node.get(field) {
            Some(Value::Array(all)) => all.iter().any(|one| one.as_str() == Some(name)),
            Some(Value::Object(all)) => all.contains_key(name),
            _ => false,
        };
        match self {
            Self::Absent(_, fields) => !fields.iter().any(|field| lists(field)),
            Self::Present(_, field) => lists(field),
        }
    }

    /// What is said of a node of which these are passed over.
    fn said(self, node: &Object, names: &[String]) -> String {
        let names = names.join(", ");
        match self {
            Self::Absent(what, _) => format!("{node} has no {what} {names}: nothing to take away"),
            Self::Present(what, _) => format!("{node} has {what} {names} already"),
        }
    }
}

/// What is to be written of a node, of these names: none, with the sentence, where all are passed over.
async fn left(
    api: &mut Api,
    (nodes, node): (&Objects, &Object),
    names: &[String],
    passes: Option<PassedOver>,
) -> Result<ControlFlow<Step, Vec<String>>> {
    let Some(passes) = passes.filter(|_| nodes.is_selected) else { return Ok(ControlFlow::Continue(names.to_vec())) };
    let present = question::one(api, Kind::Node, &node.name).await?;
    let (over, left): (Vec<String>, Vec<String>) = names.iter().cloned().partition(|name| passes.is(&present, name));
    if left.is_empty() {
        return Ok(ControlFlow::Break(Step::nothing(passes.said(node, &over), present)));
    }
    if !over.is_empty() {
        tell!("info: {}", passes.said(node, &over));
    }
    Ok(ControlFlow::Continue(left))
}

/// What a command gives or takes, and from whom.
async fn nodes_and_names(api: &mut Api, what: &NodesAndNames, word: &str) -> Result<(Objects, Vec<String>)> {
    let (nodes, rest) = what.split();
    let Some(first) = rest.first() else {
        return Err(Exit::Usage.because(format!("which {word}? name the node, then the {word}")));
    };
    // Beside a selection a node would be taken for one of the names.
    if !what.selection.is_empty() && rest.len() > 1 && are_nodes(api, first).await? {
        let sentence = format!("{first} is named, and others are selected: do one of them");
        return Err(Exit::Usage.because(sentence));
    }
    Ok((Objects::of_kind(api, Kind::Node, &nodes, &what.selection).await?, rest))
}

/// Whether a word names a node, or several with commas.
async fn are_nodes(api: &mut Api, word: &str) -> Result<bool> {
    if word.contains(',') {
        return Ok(true);
    }
    match NodeName::new(word) {
        Ok(_) => Ok(api.find(&Endpoint::GetNode.path(&[word])).await?.is_some()),
        Err(_) => Ok(false),
    }
}

/// Several names in one request: of each node all or none.
async fn together(
    api: &mut Api,
    row: Endpoint,
    asked: &NodesAndOwned,
    (word, has, passes): (&str, &str, Option<PassedOver>),
    output: Output,
) -> Result<()> {
    let (nodes, names) = nodes_and_names(api, &asked.what, word).await?;
    let plan = async |api: &mut Api, node: &Object| {
        let names = match left(api, (&nodes, node), &names, passes).await? {
            ControlFlow::Continue(names) => names,
            ControlFlow::Break(nothing) => return Ok(nothing),
        };
        let write = Kind::Node.write(row, &node.name, &[])?.json(&json!({word: names}));
        Ok(Step::of(write.overwriting(asked.overwrite), format!("{node} {has} {}", names.join(", "))))
    };
    each(api, &nodes, output, plan).await
}

/// Each trait is a request of its own.
async fn one_by_one(
    api: &mut Api,
    row: Endpoint,
    asked: &NodesAndOwned,
    (has, passes): (&str, Option<PassedOver>),
    output: Output,
) -> Result<()> {
    let (nodes, names) = nodes_and_names(api, &asked.what, "traits").await?;
    let plan = async |api: &mut Api, node: &Object| {
        let names = match left(api, (&nodes, node), &names, passes).await? {
            ControlFlow::Continue(names) => names,
            ControlFlow::Break(nothing) => return Ok(nothing),
        };
        let write =
            |name: &String| Kind::Node.write(row, &node.name, &[name]).map(|write| write.overwriting(asked.overwrite));
        let writes = names.iter().map(write);
        let sentence = format!("{node} {has} {}", names.join(", "));
        Ok(Step { writes: writes.collect::<Result<_>>()?, ..Step::nothing(sentence, Value::Null) })
    };
    each(api, &nodes, output, plan).await
}

async fn list_traits(api: &mut Api, node: &str, output: Output) -> Result<()> {
    let object = question::one(api, Kind::Node, node).await?;
    let sources = object.get("trait_sources").cloned().unwrap_or_default();
    let given = || sources.as_object().into_iter().flatten();
    let suppressed = || object.get("suppressed_traits").and_then(Value::as_array).into_iter().flatten();
    let shown = || {
        let given = given().map(|(name, from)| vec![name.clone(), cell(Some(from))]);
        let left_out = suppressed().map(|name| vec![cell(Some(name)), "suppressed".to_owned()]);
        table(&["trait", "from"], given.chain(left_out))
    };
    question::print_list(&sources, ("trait", given().map(|(name, _)| name.as_str())), shown, output)
}

/// Adds traits to those that are suppressed, or takes them out.
async fn suppress(api: &mut Api, asked: &NodesAndOwned, is_more: bool, output: Output) -> Result<()> {
    let (nodes, names) = nodes_and_names(api, &asked.what, "traits").await?;
    let plan = async |api: &mut Api, node: &Object| {
        let object = question::one(api, Kind::Node, &node.name).await?;
        let present = object.get("suppressed_traits").and_then(Value::as_array).into_iter().flatten();
        let mut all: Vec<String> = present.filter_map(Value::as_str).map(str::to_owned).collect();
        let missing: Vec<&str> = names.iter().filter(|name| !all.contains(name)).map(String::as_str).collect();
        if !is_more && !missing.is_empty() {
            let sentence = format!("{node}: {} is not suppressed", missing.join(", "));
            if !nodes.is_selected {
                return Err(Exit::NotFound.because(sentence));
            }
            if missing.len() == names.len() {
                return Ok(Step::nothing(sentence, object));
            }
            tell!("info: {sentence}");
        }
        all.retain(|name| !names.contains(name));
        if is_more {
            all.extend(names.iter().cloned());
            all.sort();
        }
        let sentence = if all.is_empty() { "nothing".to_owned() } else { all.join(", ") };
        // The whole list, unless someone else wrote meanwhile.
        let write = edit(node, &json!({"suppressed_traits": all}))?.if_still_at(question::revision(&object));
        let write = write.overwriting(asked.overwrite);
        Ok(Step::of(write, format!("{node}: suppressed {sentence}")))
    };
    each(api, &nodes, output, plan).await
}

/// `node`.
pub(crate) async fn node(api: &mut Api, what: NodeVerb, reason: Option<&str>, output: Output) -> Result<()> {
    match what {
        NodeVerb::Park { nodes, release_primary } => {
            // Also of a node that is parked already what it holds is given away.
            let already = (!release_primary).then_some("parked already");
            let mut fields = json!({"parked": true});
            // Without one, that of a node that is parked already stays.
            if let Some(reason) = reason {
                fields["maintenance_reason"] = reason.into();
            }
            set(api, &nodes, Becoming { fields, is: "parked", already, release_primary }, output).await
        }
        NodeVerb::Unpark(nodes) => {
            let already = Some("not parked");
            let is = "no longer parked";
            let fields = json!({"parked": false});
            set(api, &nodes, Becoming { fields, is, already, release_primary: false }, output).await
        }
        NodeVerb::Hold { nodes, until, duration } => {
            let until = end(until.as_deref(), duration)?;
            if until.is_none() && reason.is_none() {
                let sentence = "say why they are held, or until when: --reason TEXT, --until TIME or --for DURATION";
                return Err(Exit::Usage.because(sentence));
            }
            let held = until.as_ref().map_or_else(|| "held".to_owned(), |end| format!("held until {end}"));
            // What is not said now takes away what an earlier hold said.
            let fields = json!({"hold": {"until": until, "reason": reason}});
            let held = Becoming { fields, is: &held, already: None, release_primary: false };
            set(api, &nodes, held, output).await
        }
        NodeVerb::Unhold(nodes) => {
            let already = Some("not held");
            let is = "no longer held";
            let fields = json!({"hold": null});
            set(api, &nodes, Becoming { fields, is, already, release_primary: false }, output).await
        }
        NodeVerb::Move { mut words, out, selection, overwrite } => {
            let group = if out { None } else { words.pop() };
            if group.as_ref().is_none_or(|group| !group.contains('/')) && !out {
                let sentence = "where to? name the group last, as CLUSTER/GROUP, or say --out";
                return Err(Exit::Usage.because(sentence));
            }
            let nodes = Nodes { names: words, selection, overwrite };
            move_into(api, &nodes, group.as_deref().map(|group| Kind::Nodegroup.bare(group)), output).await
        }
        NodeVerb::Rename { node, name } => rename(api, &node, &name, output).await,
    }
}

/// What a verb makes of each node.
struct Becoming<'a> {
    /// The fields that it sets, and to what.
    fields: Value,
    /// What the node is then.
    is: &'a str,
    /// What is said of a node that is so already, of which nothing is written.
    already: Option<&'static str>,
    /// Whether what the node holds as primary is given to the next one.
    release_primary: bool,
}

/// Makes the same of each node.
async fn set(api: &mut Api, what: &Nodes, becomes: Becoming<'_>, output: Output) -> Result<()> {
    let nodes = Objects::of_kind(api, Kind::Node, &what.names, &what.selection).await?;
    let plan = async |api: &mut Api, node: &Object| {
        if let Some(already) = becomes.already {
            let present = question::one(api, Kind::Node, &node.name).await?;
            let mut fields = becomes.fields.as_object().into_iter().flatten();
            if fields.all(|(field, value)| is_so(&present, field, value)) {
                return Ok(Step::nothing(format!("{node} is {already}"), present));
            }
        }
        let write = edit(node, &becomes.fields)?;
        let write = if becomes.release_primary { write.with_term("release_primary=true") } else { write };
        Ok(Step::of(write.overwriting(what.overwrite), format!("{node} is {}", becomes.is)))
    };
    each(api, &nodes, output, plan).await
}

/// Whether a field of a node is what it is set to: a text is that text, and anything else is there or is not.
fn is_so(node: &Value, field: &str, value: &Value) -> bool {
    let present = node.get(field).unwrap_or(&Value::Null);
    if value.is_string() { present == value } else { is_said(present) == is_said(value) }
}

/// A change of a node's own fields.
fn edit(node: &Object, fields: &Value) -> Result<Write> {
    Ok(Kind::Node.write(Endpoint::PatchNode, &node.name, &[])?.json(fields))
}

/// The end of a hold that was said, as it was written or as a time in UTC; none for one without an end.
fn end(until: Option<&str>, duration: Option<u64>) -> Result<Option<String>> {
    let now = Timestamp::now();
    let now_ms = u64::try_from(now.as_millisecond()).unwrap_or_default();
    match (until, duration) {
        (None, None) => Ok(None),
        (Some(text), _) => match stemma_core::time::read(text) {
            Ok(end) if end > now_ms => Ok(Some(text.to_owned())),
            Ok(_) => Err(Exit::Usage.because("--until is over already")),
            Err(why) => Err(Exit::Usage.because(format!("--until {why}"))),
        },
        (None, Some(seconds)) => {
            let end = i64::try_from(seconds).ok().map(SignedDuration::from_secs);
            let end = end.and_then(|length| now.checked_add(length).ok());
            let end = end.ok_or_else(|| Exit::Usage.because("--for leads past the end of all time: say less"))?;
            Ok(Some(end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()))
        }
    }
}

/// Moves each node into a group, or out of its own.
async fn move_into(api: &mut Api, what: &Nodes, group: Option<&str>, output: Output) -> Result<()> {
    let nodes = Objects::of_kind(api, Kind::Node, &what.names, &what.selection).await?;
    let plan = async |api: &mut Api, node: &Object| {
        let object = question::one(api, Kind::Node, &node.name).await?;
        let before = object.get("nodegroup").and_then(Value::as_str);
        let (from, to) = (before.unwrap_or("no group"), group.unwrap_or("no group"));
        if before == group {
            let sentence = format!("{node} is in {to} already");
            return Ok(Step::nothing(sentence, object));
        }
        let write = edit(node, &json!({"nodegroup": group}))?.if_still_at(question::revision(&object));
        let write = write.overwriting(what.overwrite);
        let note = leaves(&object, before, group);
        Ok(Step { note, ..Step::of(write, format!("{node} moved from {from} to {to}")) })
    };
    each(api, &nodes, output, plan).await
}

/// What it means for a node to leave its cluster; none where it stays in it.
fn leaves(node: &Value, before: Option<&str>, group: Option<&str>) -> Option<String> {
    let cluster = |group: Option<&str>| Some(group?.split_once('/')?.0.to_owned());
    let left = cluster(before).filter(|left| cluster(group).as_ref() != Some(left))?;
    let primaries = node.get("primary_tags").filter(|tags| tags.as_array().is_some_and(|tags| !tags.is_empty()));
    let gives_back = primaries
        .map_or_else(String::new, |tags| format!(" it gives back its primaries there ({}), and", cell(Some(tags))));
    Some(format!("leaves cluster {left}:{gives_back} nothing is drained before it goes"))
}

/// Gives a node another name, unless someone else wrote it meanwhile.
async fn rename(api: &mut Api, node: &str, name: &str, output: Output) -> Result<()> {
    let object = question::one(api, Kind::Node, node).await?;
    let write = Kind::Node.write(Endpoint::PatchNode, node, &[])?.json(&json!({"name": name}));
    let answer = api.send(write.if_still_at(question::revision(&object))).await?;
    let sentence = format!("node {} is called {name}", question::name(Kind::Node, &object));
    Done { kind: "node", name, sentence, answer }.say(api, output).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_ends_at_a_time_to_come() {
        assert_eq!(end(None, None).unwrap(), None);
        assert_eq!(end(Some("2999-01-02T03:04:05+01:00"), None).unwrap().unwrap(), "2999-01-02T03:04:05+01:00");
        assert_eq!(end(Some("9999-12-31T23:59:59Z"), None).unwrap().unwrap(), "9999-12-31T23:59:59Z");
        assert!(end(None, Some(7_200)).unwrap().is_some());
        for (until, duration, told) in [
            (Some("2001-01-01T00:00:00Z"), None, "--until is over already"),
            (Some("tomorrow"), None, "--until \"tomorrow\" is no time"),
            (Some("2999-12-31T23:59:60Z"), None, "--until \"2999-12-31T23:59:60Z\" is no time"),
            (Some("2999-12-31T23:59:59+25:00"), None, "--until \"2999-12-31T23:59:59+25:00\" is no time"),
            (None, Some(u64::MAX), "--for leads past the end of all time"),
        ] {
            let error = end(until, duration).unwrap_err().to_string();
            assert!(error.starts_with(told), "{error}");
        }
    }

    /// Ironic's `PUT …/maintenance` of a node in maintenance gives it another reason.
    #[test]
    fn y05_a_node_that_is_parked_for_another_reason_is_written() {
        let parked = json!({"parked": true, "maintenance_reason": "disk", "hold": null});
        for (field, value, expected) in [
            ("parked", json!(true), true),
            ("parked", json!(false), false),
            ("maintenance_reason", json!("disk"), true),
            ("maintenance_reason", json!("fan"), false),
            ("hold", Value::Null, true),
        ] {
            assert_eq!(is_so(&parked, field, &value), expected, "{field} {value}");
        }
        assert!(!is_so(&json!({"parked": false}), "maintenance_reason", &json!("fan")));
    }

    #[test]
    fn y09_what_a_selected_node_has_not_is_not_taken_and_what_it_has_is_not_given() {
        let node = json!({"trait_sources": {"CUSTOM_A": ["operator"]}, "tags": ["db"], "assigned_tags": ["old"]});
        let (taken, given) =
            (PassedOver::Absent("tag", &["tags", "assigned_tags"]), PassedOver::Present("tag", "assigned_tags"));
        for (passes, name, expected) in [
            (PassedOver::Absent("trait", &["trait_sources"]), "CUSTOM_A", false),
            (PassedOver::Absent("trait", &["trait_sources"]), "CUSTOM_B", true),
            (taken, "db", false),
            (taken, "old", false),
            (taken, "web", true),
            (given, "old", true),
            (given, "db", false),
        ] {
            assert_eq!(passes.is(&node, name), expected, "{passes:?} {name}");
        }
        let (s1, names) = (Object { kind: "node", name: "s1".to_owned() }, ["a".to_owned(), "b".to_owned()]);
        assert_eq!(taken.said(&s1, &names), "node s1 has no tag a, b: nothing to take away");
        assert_eq!(given.said(&s1, &names), "node s1 has tag a, b already");
    }

    #[test]
    fn a_node_that_leaves_its_cluster_gives_its_primaries_back_and_is_not_drained() {
        let node = json!({"primary_tags": ["mysql"]});
        let told = leaves(&node, Some("eu/db"), Some("us/db")).unwrap();
        assert_eq!(
            told,
            "leaves cluster eu: it gives back its primaries there (mysql), and nothing is drained before it goes"
        );
        assert_eq!(
            leaves(&json!({}), Some("eu/db"), None).unwrap(),
            "leaves cluster eu: nothing is drained before it goes"
        );
        assert_eq!(leaves(&node, Some("eu/db"), Some("eu/web")), None);
        assert_eq!(leaves(&node, None, Some("eu/web")), None);
    }
}
