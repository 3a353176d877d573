//! What follows where all conditions hold: Ironic's actions, as far as they mean something here.
//!
//! An action changes nothing of what operators or the host said. What it gives is kept beside that, and is gone with the rule.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::arguments::{Argument, Given, Loop, Signature};
use super::budget::Budget;
use super::gives::Gives;
use super::limits::{Failure, InvalidRule, MAX_DATA, MAX_DATA_DEPTH};
use super::path::Path;
use super::ruled::{CAPABILITIES, State, extended};
use super::text::{Scope, Text, python_text};
use crate::json::{inexact, is_within_depth};
use crate::key::{LabelKey, LabelValue, is_restricted};
use crate::name::{cut, has_control, is_blank, near, suggest};
use crate::object::RuleAction;
use crate::traits::Trait;

/// An action, read.
#[derive(Clone, Debug)]
pub(super) struct Action {
    verb: Verb,
    /// What it is done to: a path or a name. It is filled in where the action has a loop, as Ironic has it.
    at: Option<Text>,
    /// The value or message that it takes.
    value: Option<Argument>,
    unique: bool,
    items: Option<Loop>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Fail,
    Log,
    Set,
    Extend,
    Delete,
    SetCapability,
    UnsetCapability,
    AddTrait,
    RemoveTrait,
    SetData,
    ExtendData,
    UnsetData,
}

/// What an attribute's path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Label(LabelKey),
    Property(String),
}

/// Every action, with its arguments.
const ACTIONS: &[(&str, Verb, Signature)] = &[
    ("fail", Verb::Fail, (&["msg"], &[])),
    ("log", Verb::Log, (&["msg"], &["level"])),
    ("set-attribute", Verb::Set, (&["path", "value"], &[])),
    ("extend-attribute", Verb::Extend, (&["path", "value"], &["unique"])),
    ("del-attribute", Verb::Delete, (&["path"], &[])),
    ("set-capability", Verb::SetCapability, (&["name", "value"], &[])),
    ("unset-capability", Verb::UnsetCapability, (&["name"], &[])),
    ("add-trait", Verb::AddTrait, (&["name"], &[])),
    ("remove-trait", Verb::RemoveTrait, (&["name"], &[])),
    ("set-plugin-data", Verb::SetData, (&["path", "value"], &[])),
    ("extend-plugin-data", Verb::ExtendData, (&["path", "value"], &["unique"])),
    ("unset-plugin-data", Verb::UnsetData, (&["path"], &[])),
];

/// Ironic's others, each with why it means nothing here.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("set-port-attribute", "a node has no ports here"),
    ("extend-port-attribute", "a node has no ports here"),
    ("del-port-attribute", "a node has no ports here"),
    ("api-call", "a rule is worked out from a report alone, and again whenever something is asked: it calls nobody"),
];

/// Steps for a list that is copied with one more item.
const COST_OF_LIST: usize = 256;

const LEVELS: &[&str] = &["debug", "info", "warning", "error", "critical"];

impl Action {
    /// Reads an action of a rule that has grants, or has none.
    pub(super) fn new(written: &RuleAction, grants: bool) -> Result<Self, InvalidRule> {
        let op = written.op.as_str();
        if let Some((_, why)) = UNSUPPORTED.iter().find(|(name, _)| *name == op) {
            return Err(InvalidRule::unsupported("op", format!("{op} is not done by Stemma: {why}")));
        }
        let (_, verb, signature) = ACTIONS.iter().find(|(name, ..)| *name == op).ok_or_else(|| {
            let names = ACTIONS.iter().map(|(name, ..)| *name);
            let meant = suggest(near(op, names.clone()));
            let reason = format!("{op:?} is no action{meant}: it is one of {}", names.collect::<Vec<_>>().join(", "));
            InvalidRule::new("op", reason)
        })?;
        let given = Given::read(*signature, &written.args)?;
        let items = Loop::read(written.items.as_ref())?;
        let within = |e: InvalidRule| e.within("args");
        check_level(given.get("level")).map_err(within)?;
        let takes = |names: [&'static str; 2]| names.into_iter().find(|name| signature.0.contains(name));
        let at = takes(["path", "name"]).map(|name| given.text(name)).transpose().map_err(within)?;
        let value = takes(["value", "msg"]).map(|name| given.needed(name)).transpose().map_err(within)?;
        let unique = given.flag("unique").map_err(within)?;
        let read = Self { verb: *verb, at, value, unique, items };
        read.check(grants).map_err(within)?;
        Ok(read)
    }

    /// Checks what is asked of an action that is new. What else may be wrong with it is told of the whole rule.
    pub(super) fn check_new(written: &RuleAction) -> Result<(), InvalidRule> {
        let Ok(action) = Self::new(written, true) else { return Ok(()) };
        let checked = action.check_number(&written.args).and_then(|()| action.check_given());
        checked.map_err(|wrong| wrong.within("args"))
    }

    /// Checks the numbers in what a property is given. A label is given a text.
    fn check_number(&self, args: &Value) -> Result<(), InvalidRule> {
        let is_label = self.at.as_ref().is_some_and(|at| Path::written(at.source()).first().0 == "labels");
        if is_label || !matches!(self.verb, Verb::Set | Verb::Extend) {
            return Ok(());
        }
        let value = match args {
            Value::Array(in_order) => in_order.get(1),
            by_name => by_name.get("value"),
        };
        match value.and_then(inexact) {
            Some((place, why)) => Err(InvalidRule::new(&format!("value{place}"), why.to_string())),
            None => Ok(()),
        }
    }

    /// Checks the names, labels and traits that it gives, as far as they are known before any report has come: of a loop, for each item. A label
    /// or trait is checked where its author wrote it out.
    fn check_given(&self) -> Result<(), InvalidRule> {
        let Some(at) = &self.at else { return Ok(()) };
        let field = if self.verb == Verb::SetCapability { "name" } else { "path" };
        let check_name = |path: &Path| self.check_name(path).map_err(|why| InvalidRule::new(field, why));
        let mut budget = Budget::of_report();
        let Some(items) = &self.items else {
            let path = Path::written(at.source());
            check_name(&path)?;
            return self.check_one(&path, None, &mut budget);
        };
        for written in items.items() {
            // What takes too much is told at the report.
            let Ok(item) = written.fill(Scope::NOTHING, &mut budget) else { continue };
            let item = Some((written, &item));
            let Some(path) = fill_without_report(at, item, &mut budget) else { continue };
            check_name(&path)?;
            if written.is_plain() && is_known(&path, at) {
                self.check_one(&path, item, &mut budget)?;
            }
        }
        Ok(())
    }

    /// Checks the label or trait that it gives at a path, for an item of its loop if it has one.
    fn check_one(
        &self,
        path: &Path,
        item: Option<(&Argument, &Value)>,
        budget: &mut Budget,
    ) -> Result<(), InvalidRule> {
        if self.verb == Verb::AddTrait {
            return Trait::new(path.text()).map(drop).map_err(|why| InvalidRule::new("name", why.to_string()));
        }
        if self.verb != Verb::Set || path.first().0 != "labels" {
            return Ok(());
        }
        target(path).map_err(|why| InvalidRule::new("path", why))?;
        let Some(Argument::Text(value)) = &self.value else { return Ok(()) };
        let known = fill_without_report(value, item, budget).filter(|filled| is_known(filled, value));
        let value = known.map(|value| LabelValue::new(value.text()));
        value.transpose().map(drop).map_err(|why| InvalidRule::new("value", why.to_string()))
    }

    /// Checks the name of what it gives: a property, a capability, or a part of plugin data. A label and a trait have their own rules, and
    /// what takes away may name what an older program gave.
    fn check_name(&self, path: &Path) -> Result<(), String> {
        match self.verb {
            Verb::Set | Verb::Extend => match path.first() {
                ("properties", name) => check_visible("a property", name),
                _ => Ok(()),
            },
            Verb::SetCapability => check_visible("a capability", path.text()),
            Verb::SetData | Verb::ExtendData => {
                path.names().into_iter().try_for_each(|name| check_visible("a part of plugin data", name))
            }
            Verb::Fail
            | Verb::Log
            | Verb::Delete
            | Verb::UnsetCapability
            | Verb::AddTrait
            | Verb::RemoveTrait
            | Verb::UnsetData => Ok(()),
        }
    }

    /// Checks what is known before any report has come.
    fn check(&self, grants: bool) -> Result<(), InvalidRule> {
        let Some(at) = self.known_at() else { return Ok(()) };
        match self.verb {
            Verb::Set | Verb::Extend | Verb::Delete => {
                match target(&Path::written(at)).map_err(|why| InvalidRule::unsupported("path", why))? {
                    Target::Label(_) if self.verb == Verb::Extend => {
                        Err(InvalidRule::new("path", "a label is a text, and no list that can be extended"))
                    }
                    Target::Label(key) if !grants && is_restricted(&key) => {
                        let reason = format!("label {key} is restricted: only a rule with grants: true gives it");
                        Err(InvalidRule::new("path", reason))
                    }
                    Target::Label(_) | Target::Property(_) => Ok(()),
                }
            }
            Verb::AddTrait => Trait::new(at).map(drop).map_err(|why| InvalidRule::new("name", why.to_string())),
            _ => Ok(()),
        }
    }

    /// What it is done to, where that is known before any report has come: nothing is filled into it.
    fn known_at(&self) -> Option<&str> {
        let at = self.at.as_ref()?;
        (self.items.is_none() || at.is_plain()).then(|| at.source())
    }

    /// The trait that it adds or takes away, where its name is written out.
    pub(super) fn named_trait(&self) -> Option<&str> {
        self.known_at().filter(|_| matches!(self.verb, Verb::AddTrait | Verb::RemoveTrait))
    }

    /// Notes what it may give.
    pub(super) fn note_given(&self, gives: &mut Gives) {
        match (self.verb, self.known_at()) {
            (Verb::AddTrait, Some(name)) => drop(gives.traits.insert(name.into())),
            (Verb::AddTrait, None) => gives.any_trait = true,
            (Verb::Set | Verb::Extend, at) => match at.map(|at| target(&Path::written(at))) {
                Some(Ok(Target::Label(key))) => drop(gives.labels.insert(key)),
                Some(Ok(Target::Property(name))) => drop(gives.properties.insert(name)),
                Some(Err(_)) | None => gives.any_attribute = true,
            },
            (Verb::SetCapability, _) => drop(gives.properties.insert(CAPABILITIES.to_owned())),
            _ => {}
        }
    }

    /// Whether more than one thing is done.
    pub(super) fn is_several(&self) -> bool {
        self.items.as_ref().is_some_and(|items| items.items().len() > 1)
    }

    /// Does it.
    pub(super) fn apply(&self, state: &mut State<'_>, budget: &mut Budget) -> Result<(), Failure> {
        let Some(items) = &self.items else { return self.apply_to(state, None, budget) };
        for written in items.items() {
            let item = written.fill(state.scope(None), budget)?;
            self.apply_to(state, Some((written, &item)), budget)?;
        }
        Ok(())
    }

    /// Does it once, for an item of its loop as that is written and as it is filled in, if it has a loop.
    fn apply_to(
        &self,
        state: &mut State<'_>,
        item: Option<(&Argument, &Value)>,
        budget: &mut Budget,
    ) -> Result<(), Failure> {
        budget.take(if self.verb == Verb::Extend { 1 + COST_OF_LIST } else { 1 })?;
        let at = match (&self.at, item) {
            (Some(at), Some((written, item))) => Path::fill(at, Some(written), state.scope(Some(item)), budget)?,
            (Some(at), None) => Path::written(at.source()),
            (None, _) => Path::written(""),
        };
        // What its author wrote was checked where it was written.
        if at.has_value() {
            self.check_name(&at).map_err(Failure::Argument)?;
        }
        let item = item.map(|(_, item)| item);
        let value = self.value.as_ref().map(|value| value.fill(state.scope(item), budget)).transpose()?;
        let value = value.unwrap_or_default();
        match self.verb {
            Verb::Fail => return Err(Failure::Fail(python_text(&value)?)),
            Verb::Log => state.note_log(&python_text(&value)?),
            Verb::Set => return set(state, &at, value),
            Verb::Extend => return extend(state, &at, value, self.unique),
            Verb::Delete => match target(&at).map_err(Failure::Argument)? {
                Target::Label(key) => state.delete_label(&key),
                Target::Property(property) => state.delete_property(&property),
            },
            Verb::SetCapability => return state.set_capability(at.text(), &python_text(&value)?),
            Verb::UnsetCapability => state.unset_capability(at.text()),
            Verb::AddTrait => {
                if self.known_at().is_none() {
                    State::check_trait(at.text())?;
                }
                return state.add_trait(at.text());
            }
            Verb::RemoveTrait => state.remove_trait(at.text()),
            Verb::SetData => return write_data(state, &at, budget, |_| Ok(value)),
            Verb::ExtendData => return write_data(state, &at, budget, |present| extended(present, value, self.unique)),
            Verb::UnsetData => unset_data(Arc::make_mut(&mut state.plugin_data), &at),
        }
        Ok(())
    }
}

/// A text with what can be filled in before any report has come: an item of a loop, if there is one. Nothing where that takes too much.
fn fill_without_report(text: &Text, item: Option<(&Argument, &Value)>, budget: &mut Budget) -> Option<Path> {
    let scope = Scope { item: item.map(|(_, value)| value), ..Scope::NOTHING };
    Path::fill(text, item.map(|(written, _)| written), scope, budget).ok()
}

/// Whether a text that was filled in so is the same with any report. Where a place leads nowhere, it is as it is written.
fn is_known(filled: &Path, text: &Text) -> bool {
    !filled.has_value() && (text.is_plain() || filled.text() != text.source())
}

/// Refuses a name that shows nothing, or that has what controls a terminal or ends a line.
fn check_visible(what: &str, name: &str) -> Result<(), String> {
    if is_blank(name) {
        return Err(format!("{:?} is no name of {what}: it has nothing that can be seen", cut(name)));
    }
    if has_control(name) {
        return Err(format!("{:?} is no name of {what}: it has a control character", cut(name)));
    }
    Ok(())
}

fn check_level(level: Option<&Value>) -> Result<(), InvalidRule> {
    let level = level.map_or(Some("info"), Value::as_str).unwrap_or_default();
    if LEVELS.contains(&&*level.to_lowercase()) {
        return Ok(());
    }
    Err(InvalidRule::new("level", format!("it is one of {}", LEVELS.join(", "))))
}

fn set(state: &mut State<'_>, path: &Path, value: Value) -> Result<(), Failure> {
    match target(path).map_err(Failure::Argument)? {
        Target::Label(key) => state.set_label(key, &python_text(&value)?),
        Target::Property(property) => state.set_property(property, value),
    }
}

fn extend(state: &mut State<'_>, path: &Path, value: Value, unique: bool) -> Result<(), Failure> {
    match target(path).map_err(Failure::Argument)? {
        Target::Label(key) => Err(Failure::Argument(format!("label {key} is no list"))),
        Target::Property(property) => state.extend_property(property, value, unique),
    }
}

/// What an attribute's path leads to. Ironic separates its parts by slashes or dots; a label's key has both.
fn target(path: &Path) -> Result<Target, String> {
    match path.first() {
        ("labels", key) if path.has_slash_in_value() => Err(format!(
            "label {:?} would have its domain from a value: what is filled into a path has no slash",
            cut(key)
        )),
        ("labels", key) => LabelKey::new(key).map(Target::Label).map_err(|why| why.to_string()),
        ("properties", CAPABILITIES) => Err("capabilities are set with set-capability, one by one".to_owned()),
        ("properties", name) if !name.is_empty() && !name.contains('/') => Ok(Target::Property(name.to_owned())),
        _ => Err(format!(
            "{:?} is no attribute that a rule gives: it gives labels/KEY and properties/NAME, and traits with add-trait",
            cut(path.text().trim_start_matches('/'))
        )),
    }
}

/// Writes a value into the data that rules hand on, at a path of names between dots. What all of them wrote has an end.
fn write_data(
    state: &mut State<'_>,
    path: &Path,
    budget: &mut Budget,
    make: impl FnOnce(Option<Value>) -> Result<Value, Failure>,
) -> Result<(), Failure> {
    let keys = path.names();
    if keys.len() >= MAX_DATA_DEPTH {
        return Err(Failure::Argument(format!("a path of plugin data has fewer than {MAX_DATA_DEPTH} names")));
    }
    let mut next = Value::clone(&state.plugin_data);
    let (last, way) = keys.split_last().expect("a path has a first name");
    let mut here = &mut next;
    for key in way {
        let Value::Object(map) = here else { return Err(no_map(path)) };
        here = map.entry(*key).or_insert_with(|| Value::Object(Map::new()));
    }
    let Value::Object(map) = here else { return Err(no_map(path)) };
    let value = make(map.get(*last).cloned())?;
    map.insert((*last).to_owned(), value);
    let bytes = next.to_string().len();
    budget.take(bytes / 64)?;
    if bytes > MAX_DATA || !is_within_depth(&next, MAX_DATA_DEPTH) {
        let message =
            format!("plugin data has at most {MAX_DATA} bytes, {MAX_DATA_DEPTH} deep, whichever rules write it");
        return Err(Failure::Argument(message));
    }
    state.plugin_data = Arc::new(next);
    Ok(())
}

fn no_map(path: &Path) -> Failure {
    Failure::Argument(format!("plugin data has no map on the way of {:?}", cut(path.text())))
}

/// Takes a value out, and the map that it leaves empty.
fn unset_data(data: &mut Value, path: &Path) {
    let keys = path.names();
    let (last, way) = keys.split_last().expect("a path has a first name");
    let mut here = data;
    let mut emptied = None;
    if let Some((name, above)) = way.split_last() {
        for key in above {
            let Some(inner) = here.get_mut(*key) else { return };
            here = inner;
        }
        if here.get(*name).and_then(Value::as_object).is_some_and(|map| map.len() == 1 && map.contains_key(*last)) {
            emptied = Some(*name);
        } else {
            let Some(inner) = here.get_mut(*name) else { return };
            here = inner;
        }
    }
    if let Value::Object(map) = here {
        map.remove(emptied.unwrap_or(*last));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_leads_to_a_label_or_a_property() {
        let label = |key: &str| Ok(Target::Label(LabelKey::new(key).unwrap()));
        let property = |name: &str| Ok(Target::Property(name.to_owned()));
        for (path, expected) in [
            ("labels/rack", label("rack")),
            ("/labels/example.net/rack", label("example.net/rack")),
            ("labels.rack", label("rack")),
            ("properties/memory_mb", property("memory_mb")),
            ("properties.memory_mb", property("memory_mb")),
        ] {
            assert_eq!(target(&Path::written(path)), expected, "{path}");
        }
        for path in [
            "driver",
            "extra/a",
            "driver_info/ipmi_address",
            "properties",
            "properties/a/b",
            "labels",
            "labels/-",
            "properties/capabilities",
            "",
        ] {
            assert!(target(&Path::written(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn what_is_taken_out_takes_the_map_with_it_that_it_leaves_empty() {
        for (path, left) in [
            ("a.b.c", json!({"a": {"d": 1}, "e": 2})),
            ("a.d", json!({"a": {"b": {"c": 1}}, "e": 2})),
            ("e", json!({"a": {"b": {"c": 1}, "d": 1}})),
            ("a", json!({"e": 2})),
            ("a.x.y", json!({"a": {"b": {"c": 1}, "d": 1}, "e": 2})),
            ("e.f.g", json!({"a": {"b": {"c": 1}, "d": 1}, "e": 2})),
        ] {
            let mut data = json!({"a": {"b": {"c": 1}, "d": 1}, "e": 2});
            unset_data(&mut data, &Path::written(path));
            assert_eq!(data, left, "{path}");
        }
    }
}
