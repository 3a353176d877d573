//! The actions of a rule, which run if all of its conditions hold. These are Ironic's actions, except those that have
//! no meaning here.
//!
//! An action changes no value that operators or the host provided. Its effects are stored separately, and end with the
//! rule.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::arguments::{ArgumentMap, ArgumentSpec, LoopItems, RuleArgument};
use super::budget::RuleBudget;
use super::limits::{Failure, InvalidRule, MAX_DATA_BYTES, MAX_DATA_DEPTH};
use super::outcome::{CAPABILITIES_PROPERTY, RuleState, list_with_item};
use super::path::FilledPath;
use super::possible_effects::PossibleEffects;
use super::text::{TextScope, TextTemplate, python_text};
use crate::json::{find_inexact, is_within_depth};
use crate::key::{LabelKey, LabelValue, is_restricted};
use crate::name::{closest_match, did_you_mean, has_control, is_blank, truncated};
use crate::object::RuleAction;
use crate::traits::Trait;

/// A parsed action.
#[derive(Clone, Debug)]
pub(super) struct ParsedAction {
    kind: ActionKind,
    /// The path or name that the action changes. Values are filled into it only if the action has a loop, as in Ironic.
    target: Option<TextTemplate>,
    /// The value or message of the action.
    value: Option<RuleArgument>,
    is_unique: bool,
    items: Option<LoopItems>,
}

/// What an action does, by its name in Ironic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ActionKind {
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

/// The attribute that a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AttributeTarget {
    Label(LabelKey),
    Property(String),
}

/// All actions, each with its required and optional arguments.
const ACTION_DEFS: &[(&str, ActionKind, ArgumentSpec)] = &[
    ("fail", ActionKind::Fail, (&["msg"], &[])),
    ("log", ActionKind::Log, (&["msg"], &["level"])),
    ("set-attribute", ActionKind::Set, (&["path", "value"], &[])),
    ("extend-attribute", ActionKind::Extend, (&["path", "value"], &["unique"])),
    ("del-attribute", ActionKind::Delete, (&["path"], &[])),
    ("set-capability", ActionKind::SetCapability, (&["name", "value"], &[])),
    ("unset-capability", ActionKind::UnsetCapability, (&["name"], &[])),
    ("add-trait", ActionKind::AddTrait, (&["name"], &[])),
    ("remove-trait", ActionKind::RemoveTrait, (&["name"], &[])),
    ("set-plugin-data", ActionKind::SetData, (&["path", "value"], &[])),
    ("extend-plugin-data", ActionKind::ExtendData, (&["path", "value"], &["unique"])),
    ("unset-plugin-data", ActionKind::UnsetData, (&["path"], &[])),
];

/// Ironic's other actions, each with the reason why it has no meaning here.
const UNSUPPORTED_ACTIONS: &[(&str, &str)] = &[
    ("set-port-attribute", "a node has no ports here"),
    ("extend-port-attribute", "a node has no ports here"),
    ("del-port-attribute", "a node has no ports here"),
    ("api-call", "a rule is evaluated from a report alone, and any number of times, so it cannot call an API"),
];

/// The number of steps to copy a list with one more item.
const LIST_COPY_STEPS: usize = 256;

const LOG_LEVELS: &[&str] = &["debug", "info", "warning", "error", "critical"];

impl ParsedAction {
    /// Parses an action. If `grants` is set, the rule may set restricted labels.
    pub(super) fn new(written: &RuleAction, grants: bool) -> Result<Self, InvalidRule> {
        let op = written.op.as_str();
        if let Some((_, why)) = UNSUPPORTED_ACTIONS.iter().find(|(name, _)| *name == op) {
            return Err(InvalidRule::unsupported("op", format!("{op} is not done by Stemma: {why}")));
        }
        let (_, verb, signature) = ACTION_DEFS.iter().find(|(name, ..)| *name == op).ok_or_else(|| {
            let names = ACTION_DEFS.iter().map(|(name, ..)| *name);
            let hint = did_you_mean(closest_match(op, names.clone()));
            let reason = format!("{op:?} is not an action{hint}: it is one of {}", names.collect::<Vec<_>>().join(", "));
            InvalidRule::new("op", reason)
        })?;
        let args = ArgumentMap::parse(*signature, &written.args)?;
        let items = LoopItems::parse(written.items.as_ref())?;
        let within = |e: InvalidRule| e.prefixed("args");
        check_log_level(args.get("level")).map_err(within)?;
        let required = |names: [&'static str; 2]| names.into_iter().find(|name| signature.0.contains(name));
        let target = required(["path", "name"]).map(|name| args.text(name)).transpose().map_err(within)?;
        let value = required(["value", "msg"]).map(|name| args.required(name)).transpose().map_err(within)?;
        let unique = args.boolean("unique").map_err(within)?;
        let read = Self { kind: *verb, target, value, is_unique: unique, items };
        read.check_static(grants).map_err(within)?;
        Ok(read)
    }

    /// Checks an action that is not stored yet by stricter rules: exact numbers and valid names. An action that does
    /// not parse is accepted here, because the check of the whole rule reports it.
    pub(super) fn check_new(written: &RuleAction) -> Result<(), InvalidRule> {
        let Ok(action) = Self::new(written, true) else { return Ok(()) };
        let result = action.check_exact_numbers(&written.args).and_then(|()| action.check_effects());
        result.map_err(|wrong| wrong.prefixed("args"))
    }

    /// Checks the numbers in a property's value. A label's value is text.
    fn check_exact_numbers(&self, args: &Value) -> Result<(), InvalidRule> {
        let is_label = self.target.as_ref().is_some_and(|at| FilledPath::literal(at.source()).split_first().0 == "labels");
        if is_label || !matches!(self.kind, ActionKind::Set | ActionKind::Extend) {
            return Ok(());
        }
        let value = match args {
            Value::Array(in_order) => in_order.get(1),
            by_name => by_name.get("value"),
        };
        match value.and_then(find_inexact) {
            Some((place, why)) => Err(InvalidRule::new(&format!("value{place}"), why.to_string())),
            None => Ok(()),
        }
    }

    /// Checks the names, labels and traits that the action sets, as far as they are known without a report. With a
    /// loop, each item is checked. A label or trait is checked only if its author wrote it in full.
    fn check_effects(&self) -> Result<(), InvalidRule> {
        let Some(target) = &self.target else { return Ok(()) };
        let field = if self.kind == ActionKind::SetCapability { "name" } else { "path" };
        let check_name = |path: &FilledPath| self.check_attribute_name(path).map_err(|why| InvalidRule::new(field, why));
        let mut budget = RuleBudget::for_report();
        let Some(items) = &self.items else {
            let path = FilledPath::literal(target.source());
            check_name(&path)?;
            return self.check_effect_at(&path, None, &mut budget);
        };
        for argument in items.items() {
            // An item that is too large is reported when the rule runs.
            let Ok(item) = argument.fill(TextScope::EMPTY, &mut budget) else { continue };
            let item = Some((argument, &item));
            let Some(path) = fill_without_report(target, item, &mut budget) else { continue };
            check_name(&path)?;
            if argument.is_literal() && is_independent_of_report(&path, target) {
                self.check_effect_at(&path, item, &mut budget)?;
            }
        }
        Ok(())
    }

    /// Checks the label or trait that the action sets at a path, for an item of its loop if it has one.
    fn check_effect_at(
        &self,
        path: &FilledPath,
        item: Option<(&RuleArgument, &Value)>,
        budget: &mut RuleBudget,
    ) -> Result<(), InvalidRule> {
        if self.kind == ActionKind::AddTrait {
            return Trait::new(path.text()).map(drop).map_err(|why| InvalidRule::new("name", why.to_string()));
        }
        if self.kind != ActionKind::Set || path.split_first().0 != "labels" {
            return Ok(());
        }
        parse_target(path).map_err(|why| InvalidRule::new("path", why))?;
        let Some(RuleArgument::Text(value)) = &self.value else { return Ok(()) };
        let known = fill_without_report(value, item, budget).filter(|filled| is_independent_of_report(filled, value));
        let value = known.map(|value| LabelValue::new(value.text()));
        value.transpose().map(drop).map_err(|why| InvalidRule::new("value", why.to_string()))
    }

    /// Checks the name of a property, a capability or a part of plugin data that the action sets. Labels and traits
    /// have their own checks. An action that removes something is accepted, because an older version may have set the
    /// name.
    fn check_attribute_name(&self, path: &FilledPath) -> Result<(), String> {
        match self.kind {
            ActionKind::Set | ActionKind::Extend => match path.split_first() {
                ("properties", name) => check_printable_name("a property", name),
                _ => Ok(()),
            },
            ActionKind::SetCapability => check_printable_name("a capability", path.text()),
            ActionKind::SetData | ActionKind::ExtendData => {
                path.segments().into_iter().try_for_each(|name| check_printable_name("a part of plugin data", name))
            }
            ActionKind::Fail
            | ActionKind::Log
            | ActionKind::Delete
            | ActionKind::UnsetCapability
            | ActionKind::AddTrait
            | ActionKind::RemoveTrait
            | ActionKind::UnsetData => Ok(()),
        }
    }

    /// Checks the attribute or trait that the action changes, if its name is known without a report.
    fn check_static(&self, grants: bool) -> Result<(), InvalidRule> {
        let Some(at) = self.static_target() else { return Ok(()) };
        match self.kind {
            ActionKind::Set | ActionKind::Extend | ActionKind::Delete => {
                match parse_target(&FilledPath::literal(at)).map_err(|why| InvalidRule::unsupported("path", why))? {
                    AttributeTarget::Label(_) if self.kind == ActionKind::Extend => {
                        Err(InvalidRule::new("path", "a label is a text, not a list, and cannot be extended"))
                    }
                    AttributeTarget::Label(key) if !grants && is_restricted(&key) => {
                        let reason = format!("label {key} is restricted: only a rule with grants: true may set it");
                        Err(InvalidRule::new("path", reason))
                    }
                    AttributeTarget::Label(_) | AttributeTarget::Property(_) => Ok(()),
                }
            }
            ActionKind::AddTrait => Trait::new(at).map(drop).map_err(|why| InvalidRule::new("name", why.to_string())),
            _ => Ok(()),
        }
    }

    /// Returns the path or name that the action changes if it is known without a report, because nothing is filled into
    /// it.
    fn static_target(&self) -> Option<&str> {
        let text = self.target.as_ref()?;
        (self.items.is_none() || text.is_literal()).then(|| text.source())
    }

    /// Returns the trait that the action adds or removes, if its name is written in full.
    pub(super) fn static_trait(&self) -> Option<&str> {
        self.static_target().filter(|_| matches!(self.kind, ActionKind::AddTrait | ActionKind::RemoveTrait))
    }

    /// Adds the traits, labels and properties that the action may set to `gives`.
    pub(super) fn collect_effects(&self, gives: &mut PossibleEffects) {
        match (self.kind, self.static_target()) {
            (ActionKind::AddTrait, Some(name)) => drop(gives.traits.insert(name.into())),
            (ActionKind::AddTrait, None) => gives.has_any_trait = true,
            (ActionKind::Set | ActionKind::Extend, at) => match at.map(|at| parse_target(&FilledPath::literal(at))) {
                Some(Ok(AttributeTarget::Label(key))) => drop(gives.labels.insert(key)),
                Some(Ok(AttributeTarget::Property(name))) => drop(gives.properties.insert(name)),
                Some(Err(_)) | None => gives.has_any_attribute = true,
            },
            (ActionKind::SetCapability, _) => drop(gives.properties.insert(CAPABILITIES_PROPERTY.to_owned())),
            _ => {}
        }
    }

    /// Returns whether the action may run several times, because its loop has several items.
    pub(super) fn has_loop(&self) -> bool {
        self.items.as_ref().is_some_and(|items| items.items().len() > 1)
    }

    /// Runs the action, once for each item of its loop.
    pub(super) fn apply(&self, state: &mut RuleState<'_>, budget: &mut RuleBudget) -> Result<(), Failure> {
        let Some(items) = &self.items else { return self.apply_once(state, None, budget) };
        for argument in items.items() {
            let item = argument.fill(state.scope(None), budget)?;
            self.apply_once(state, Some((argument, &item)), budget)?;
        }
        Ok(())
    }

    /// Runs the action once. `item` is the loop's item, as written and as filled in, if there is a loop.
    fn apply_once(
        &self,
        state: &mut RuleState<'_>,
        item: Option<(&RuleArgument, &Value)>,
        budget: &mut RuleBudget,
    ) -> Result<(), Failure> {
        budget.consume(if self.kind == ActionKind::Extend { 1 + LIST_COPY_STEPS } else { 1 })?;
        let path = match (&self.target, item) {
            (Some(at), Some((written, item))) => FilledPath::fill(at, Some(written), state.scope(Some(item)), budget)?,
            (Some(at), None) => FilledPath::literal(at.source()),
            (None, _) => FilledPath::literal(""),
        };
        // A name that the author wrote in full was checked when the rule was written.
        if path.has_value() {
            self.check_attribute_name(&path).map_err(Failure::Argument)?;
        }
        let item = item.map(|(_, item)| item);
        let value = self.value.as_ref().map(|value| value.fill(state.scope(item), budget)).transpose()?;
        let value = value.unwrap_or_default();
        match self.kind {
            ActionKind::Fail => return Err(Failure::Fail(python_text(&value)?)),
            ActionKind::Log => state.add_log_note(&python_text(&value)?),
            ActionKind::Set => return set_attribute(state, &path, value),
            ActionKind::Extend => return extend_attribute(state, &path, value, self.is_unique),
            ActionKind::Delete => match parse_target(&path).map_err(Failure::Argument)? {
                AttributeTarget::Label(key) => state.delete_label(&key),
                AttributeTarget::Property(property) => state.delete_property(&property),
            },
            ActionKind::SetCapability => return state.set_capability(path.text(), &python_text(&value)?),
            ActionKind::UnsetCapability => state.unset_capability(path.text()),
            ActionKind::AddTrait => {
                if self.static_target().is_none() {
                    RuleState::check_known_trait(path.text())?;
                }
                return state.add_trait(path.text());
            }
            ActionKind::RemoveTrait => state.remove_trait(path.text()),
            ActionKind::SetData => return write_plugin_data(state, &path, budget, |_| Ok(value)),
            ActionKind::ExtendData => {
                return write_plugin_data(state, &path, budget, |present| list_with_item(present, value, self.is_unique));
            }
            ActionKind::UnsetData => unset_plugin_data(Arc::make_mut(&mut state.plugin_data), &path),
        }
        Ok(())
    }
}

/// Fills in a text as far as possible without a report: from a loop's item, if there is one. Returns `None` if the
/// result is too large.
fn fill_without_report(
    text: &TextTemplate,
    item: Option<(&RuleArgument, &Value)>,
    budget: &mut RuleBudget,
) -> Option<FilledPath> {
    let scope = TextScope { item: item.map(|(_, value)| value), ..TextScope::EMPTY };
    FilledPath::fill(text, item.map(|(written, _)| written), scope, budget).ok()
}

/// Returns whether a text that [`fill_without_report`] returned is the same with any report. If a placeholder could not
/// be filled in, the text equals its source.
fn is_independent_of_report(filled: &FilledPath, text: &TextTemplate) -> bool {
    !filled.has_value() && (text.is_literal() || filled.text() != text.source())
}

/// Fails if a name has no visible character, or has a control character.
fn check_printable_name(what: &str, name: &str) -> Result<(), String> {
    if is_blank(name) {
        return Err(format!("{:?} is not a name of {what}: it has nothing that can be seen", truncated(name)));
    }
    if has_control(name) {
        return Err(format!("{:?} is not a name of {what}: it has a control character", truncated(name)));
    }
    Ok(())
}

fn check_log_level(level: Option<&Value>) -> Result<(), InvalidRule> {
    let level = level.map_or(Some("info"), Value::as_str).unwrap_or_default();
    if LOG_LEVELS.contains(&&*level.to_lowercase()) {
        return Ok(());
    }
    Err(InvalidRule::new("level", format!("it is one of {}", LOG_LEVELS.join(", "))))
}

/// Sets a label, or a property if no operator and no earlier rule set it.
fn set_attribute(state: &mut RuleState<'_>, path: &FilledPath, value: Value) -> Result<(), Failure> {
    match parse_target(path).map_err(Failure::Argument)? {
        AttributeTarget::Label(key) => state.set_label(key, &python_text(&value)?),
        AttributeTarget::Property(property) => state.set_property(property, value),
    }
}

fn extend_attribute(state: &mut RuleState<'_>, path: &FilledPath, value: Value, unique: bool) -> Result<(), Failure> {
    match parse_target(path).map_err(Failure::Argument)? {
        AttributeTarget::Label(key) => Err(Failure::Argument(format!("label {key} is not a list"))),
        AttributeTarget::Property(property) => state.extend_property(property, value, unique),
    }
}

/// Parses the path of an attribute. Ironic separates its parts by slashes or dots. A label's key contains both.
fn parse_target(path: &FilledPath) -> Result<AttributeTarget, String> {
    match path.split_first() {
        ("labels", key) if path.has_slash_in_value() => Err(format!(
            "label {:?} would get its domain from a value: a value in a path must not contain a slash",
            truncated(key)
        )),
        ("labels", key) => LabelKey::new(key).map(AttributeTarget::Label).map_err(|why| why.to_string()),
        ("properties", CAPABILITIES_PROPERTY) => Err("capabilities are set with set-capability, one by one".to_owned()),
        ("properties", name) if !name.is_empty() && !name.contains('/') => Ok(AttributeTarget::Property(name.to_owned())),
        _ => Err(format!(
            "{:?} is not an attribute that rules set: use labels/KEY or properties/NAME, or add-trait for traits",
            truncated(path.text().trim_start_matches('/'))
        )),
    }
}

/// Writes a value into the plugin data, at a path of names separated by dots. The total size is limited.
fn write_plugin_data(
    state: &mut RuleState<'_>,
    path: &FilledPath,
    budget: &mut RuleBudget,
    make: impl FnOnce(Option<Value>) -> Result<Value, Failure>,
) -> Result<(), Failure> {
    let keys = path.segments();
    if keys.len() >= MAX_DATA_DEPTH {
        return Err(Failure::Argument(format!("a path of plugin data has fewer than {MAX_DATA_DEPTH} names")));
    }
    let mut updated = Value::clone(&state.plugin_data);
    let (last, parents) = keys.split_last().expect("a path has a first name");
    let mut current = &mut updated;
    for key in parents {
        let Value::Object(map) = current else { return Err(not_a_map(path)) };
        current = map.entry(*key).or_insert_with(|| Value::Object(Map::new()));
    }
    let Value::Object(map) = current else { return Err(not_a_map(path)) };
    let value = make(map.get(*last).cloned())?;
    map.insert((*last).to_owned(), value);
    let bytes = updated.to_string().len();
    budget.consume(bytes / 64)?;
    if bytes > MAX_DATA_BYTES || !is_within_depth(&updated, MAX_DATA_DEPTH) {
        let message = format!("plugin data has at most {MAX_DATA_BYTES} bytes, {MAX_DATA_DEPTH} deep, for all rules together");
        return Err(Failure::Argument(message));
    }
    state.plugin_data = Arc::new(updated);
    Ok(())
}

fn not_a_map(path: &FilledPath) -> Failure {
    Failure::Argument(format!("plugin data has a value that is not a map on the path {:?}", truncated(path.text())))
}

/// Removes a value from the plugin data, and the map around it if that is then empty.
fn unset_plugin_data(data: &mut Value, path: &FilledPath) {
    let keys = path.segments();
    let (last, parents) = keys.split_last().expect("a path has a first name");
    let mut value = data;
    let mut emptied = None;
    if let Some((name, above)) = parents.split_last() {
        for key in above {
            let Some(inner) = value.get_mut(*key) else { return };
            value = inner;
        }
        if value.get(*name).and_then(Value::as_object).is_some_and(|map| map.len() == 1 && map.contains_key(*last)) {
            emptied = Some(*name);
        } else {
            let Some(inner) = value.get_mut(*name) else { return };
            value = inner;
        }
    }
    if let Value::Object(map) = value {
        map.remove(emptied.unwrap_or(*last));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parse_target_returns_label_or_property() {
        let label = |key: &str| Ok(AttributeTarget::Label(LabelKey::new(key).unwrap()));
        let property = |name: &str| Ok(AttributeTarget::Property(name.to_owned()));
        for (path, expected) in [
            ("labels/rack", label("rack")),
            ("/labels/example.net/rack", label("example.net/rack")),
            ("labels.rack", label("rack")),
            ("properties/memory_mb", property("memory_mb")),
            ("properties.memory_mb", property("memory_mb")),
        ] {
            assert_eq!(parse_target(&FilledPath::literal(path)), expected, "{path}");
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
            assert!(parse_target(&FilledPath::literal(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn unset_plugin_data_removes_emptied_maps() {
        for (path, left) in [
            ("a.b.c", json!({"a": {"d": 1}, "e": 2})),
            ("a.d", json!({"a": {"b": {"c": 1}}, "e": 2})),
            ("e", json!({"a": {"b": {"c": 1}, "d": 1}})),
            ("a", json!({"e": 2})),
            ("a.x.y", json!({"a": {"b": {"c": 1}, "d": 1}, "e": 2})),
            ("e.f.g", json!({"a": {"b": {"c": 1}, "d": 1}, "e": 2})),
        ] {
            let mut data = json!({"a": {"b": {"c": 1}, "d": 1}, "e": 2});
            unset_plugin_data(&mut data, &FilledPath::literal(path));
            assert_eq!(data, left, "{path}");
        }
    }
}
