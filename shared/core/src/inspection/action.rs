//! The actions of an inspection rule, which run if all conditions of the rule hold. These are Ironic's actions, except
//! those that have no meaning here.
//!
//! An action changes no value that operators or the host provided. The effects of an action are kept in memory, apart
//! from these values. They end when the rule is changed or deleted.

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

/// A parsed action of an inspection rule. Inspection rules derive traits, labels and properties of a node from the last
/// report of its host. They have the form of the rules of Ironic, the `OpenStack` service for bare-metal hosts.
#[derive(Clone, Debug)]
pub(super) struct ParsedAction {
    /// The kind of the action, such as to set an attribute or to add a trait.
    kind: ActionKind,
    /// The path or name that the action changes, if it changes one. Its placeholders are filled in only if the action
    /// has a loop, as in Ironic.
    target: Option<TextTemplate>,
    /// The value that the action sets or appends, or the message of `fail` or `log`.
    value: Option<RuleArgument>,
    /// True if an item that a list already contains is not appended again.
    is_unique: bool,
    /// The items of the action's loop, if it has a loop. The action runs once for each item.
    items: Option<LoopItems>,
}

/// The kind of an action of an inspection rule. [`ACTION_DEFS`] lists the name by which a rule calls each kind. The
/// names are those of Ironic.
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

/// The attribute of a node that the path of an action leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AttributeTarget {
    Label(LabelKey),
    Property(String),
}

/// All actions, each with its name in an inspection rule, its kind, and its required and optional arguments.
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

/// Ironic's actions that Stemma does not support, each with the reason.
const UNSUPPORTED_ACTIONS: &[(&str, &str)] = &[
    ("set-port-attribute", "a node has no ports here"),
    ("extend-port-attribute", "a node has no ports here"),
    ("del-port-attribute", "a node has no ports here"),
    ("api-call", "a rule is evaluated from a report alone, and any number of times, so it cannot call an API"),
];

/// The additional cost of `extend-attribute`, which copies a list, in steps of the rules' budget.
const LIST_COPY_STEPS: usize = 256;

/// The levels of a log message that Ironic accepts.
const LOG_LEVELS: &[&str] = &["debug", "info", "warning", "error", "critical"];

impl ParsedAction {
    /// Parses an action. Fails if its name or its arguments are invalid. `grants` is true if the rule may set
    /// restricted labels, which no host may set.
    pub(super) fn new(spec: &RuleAction, grants: bool) -> Result<Self, InvalidRule> {
        let op = spec.op.as_str();
        if let Some((_, problem)) = UNSUPPORTED_ACTIONS.iter().find(|(name, _)| *name == op) {
            return Err(InvalidRule::unsupported("op", format!("{op} is not supported by Stemma: {problem}")));
        }
        let (_, kind, argument_spec) = ACTION_DEFS.iter().find(|(name, ..)| *name == op).ok_or_else(|| {
            let names = ACTION_DEFS.iter().map(|(name, ..)| *name);
            let hint = did_you_mean(closest_match(op, names.clone()));
            let reason = format!("{op:?} is not an action{hint}: it is one of {}", names.collect::<Vec<_>>().join(", "));
            InvalidRule::new("op", reason)
        })?;
        let args = ArgumentMap::parse(*argument_spec, &spec.args)?;
        let items = LoopItems::parse(spec.items.as_ref())?;
        let in_args = |e: InvalidRule| e.prefixed("args");
        check_log_level(args.get("level")).map_err(in_args)?;
        // An action requires at most one argument of each pair. `argument_spec.0` lists the required arguments.
        let required = |names: [&'static str; 2]| names.into_iter().find(|name| argument_spec.0.contains(name));
        let target = required(["path", "name"]).map(|name| args.text(name)).transpose().map_err(in_args)?;
        let value = required(["value", "msg"]).map(|name| args.required(name)).transpose().map_err(in_args)?;
        let unique = args.boolean("unique").map_err(in_args)?;
        let action = Self { kind: *kind, target, value, is_unique: unique, items };
        action.check_static(grants).map_err(in_args)?;
        Ok(action)
    }

    /// Checks the numbers, names, labels and traits of an action that is not stored yet. A stored action is not checked
    /// in this way, because an older version may have accepted it. An action that cannot be parsed is accepted here,
    /// because the check of the whole rule reports that error.
    pub(super) fn check_new(spec: &RuleAction) -> Result<(), InvalidRule> {
        // With `grants`, labels are not refused because they are restricted: the check of the whole rule does this.
        let Ok(action) = Self::new(spec, true) else { return Ok(()) };
        let result = action.check_exact_numbers(&spec.args).and_then(|()| action.check_effects());
        result.map_err(|error| error.prefixed("args"))
    }

    /// Fails if the value of a property contains a number that hosts would receive as another number. A label's value
    /// is text, so its numbers are not checked. `args` are the arguments: a list of path and value, or a map by name.
    fn check_exact_numbers(&self, args: &Value) -> Result<(), InvalidRule> {
        let is_label = self.target.as_ref().is_some_and(|field| FilledPath::literal(field.source()).split_first().0 == "labels");
        if is_label || !matches!(self.kind, ActionKind::Set | ActionKind::Extend) {
            return Ok(());
        }
        let value = match args {
            Value::Array(list) => list.get(1),
            map => map.get("value"),
        };
        match value.and_then(find_inexact) {
            Some((path, error)) => Err(InvalidRule::new(&format!("value{path}"), error.to_string())),
            None => Ok(()),
        }
    }

    /// Checks the names, labels and traits that the action sets, as far as they are known before a host reports. In a
    /// loop, each item is checked. The name of a property, a capability or a part of plugin data is checked in any
    /// case: a placeholder without a value remains as text. A label or trait is checked only if neither the item nor
    /// the path contains a value of a report.
    fn check_effects(&self) -> Result<(), InvalidRule> {
        let Some(target) = &self.target else { return Ok(()) };
        let field = if self.kind == ActionKind::SetCapability { "name" } else { "path" };
        let check_name = |path: &FilledPath| self.check_attribute_name(path).map_err(|reason| InvalidRule::new(field, reason));
        let mut budget = RuleBudget::for_report();
        let Some(items) = &self.items else {
            // Without a loop, nothing is filled into the path.
            let path = FilledPath::literal(target.source());
            check_name(&path)?;
            return self.check_effect_at(&path, None, &mut budget);
        };
        for argument in items.items() {
            // An item that is too large is reported when the rule runs.
            let Ok(item) = argument.fill(TextScope::EMPTY, &mut budget) else { continue };
            let item = Some((argument, &item));
            // The same is true of a path that is too long after the item is filled in.
            let Some(path) = fill_without_report(target, item, &mut budget) else { continue };
            check_name(&path)?;
            if argument.is_literal() && is_independent_of_report(&path, target) {
                self.check_effect_at(&path, item, &mut budget)?;
            }
        }
        Ok(())
    }

    /// Checks the label or trait that the action sets. `path` is the path of the label, or the name of the trait.
    /// `item` is the item of the action's loop, as written and with its values filled in, or `None` without a loop. A
    /// value that depends on a report is not checked. Other actions are accepted.
    fn check_effect_at(
        &self,
        path: &FilledPath,
        item: Option<(&RuleArgument, &Value)>,
        budget: &mut RuleBudget,
    ) -> Result<(), InvalidRule> {
        if self.kind == ActionKind::AddTrait {
            return Trait::new(path.text()).map(drop).map_err(|error| InvalidRule::new("name", error.to_string()));
        }
        if self.kind != ActionKind::Set || path.split_first().0 != "labels" {
            return Ok(());
        }
        parse_target(path).map_err(|error| InvalidRule::new("path", error))?;
        let Some(RuleArgument::Text(value)) = &self.value else { return Ok(()) };
        let literal = fill_without_report(value, item, budget).filter(|text| is_independent_of_report(text, value));
        let value = literal.map(|value| LabelValue::new(value.text()));
        value.transpose().map(drop).map_err(|error| InvalidRule::new("value", error.to_string()))
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

    /// Checks the attribute that the action changes or the trait that it adds, if no values are filled into its path or
    /// name. `grants` is true if the rule may set restricted labels. Other actions are accepted.
    fn check_static(&self, grants: bool) -> Result<(), InvalidRule> {
        let Some(target) = self.static_target() else { return Ok(()) };
        match self.kind {
            ActionKind::Set | ActionKind::Extend | ActionKind::Delete => {
                // An invalid path counts as unsupported, because it may be the path of another attribute of Ironic.
                match parse_target(&FilledPath::literal(target)).map_err(|error| InvalidRule::unsupported("path", error))? {
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
            ActionKind::AddTrait => Trait::new(target).map(drop).map_err(|error| InvalidRule::new("name", error.to_string())),
            _ => Ok(()),
        }
    }

    /// Returns the path or name that the action changes. Returns `None` if the action has neither, or if values are
    /// filled into the path or name, which happens only in an action with a loop.
    fn static_target(&self) -> Option<&str> {
        let text = self.target.as_ref()?;
        (self.items.is_none() || text.is_literal()).then(|| text.source())
    }

    /// Returns the trait that the action adds or removes, if no values are filled into the name of the trait.
    pub(super) fn static_trait(&self) -> Option<&str> {
        self.static_target().filter(|_| matches!(self.kind, ActionKind::AddTrait | ActionKind::RemoveTrait))
    }

    /// Adds the traits, labels and properties that the action may set to `effects`.
    pub(super) fn collect_effects(&self, effects: &mut PossibleEffects) {
        match (self.kind, self.static_target()) {
            (ActionKind::AddTrait, Some(name)) => drop(effects.traits.insert(name.into())),
            (ActionKind::AddTrait, None) => effects.has_any_trait = true,
            (ActionKind::Set | ActionKind::Extend, path) => match path.map(|path| parse_target(&FilledPath::literal(path))) {
                Some(Ok(AttributeTarget::Label(key))) => drop(effects.labels.insert(key)),
                Some(Ok(AttributeTarget::Property(name))) => drop(effects.properties.insert(name)),
                // A path with placeholders may lead to any attribute. An invalid path is treated in the same way.
                Some(Err(_)) | None => effects.has_any_attribute = true,
            },
            (ActionKind::SetCapability, _) => drop(effects.properties.insert(CAPABILITIES_PROPERTY.to_owned())),
            _ => {}
        }
    }

    /// Returns whether the action may run several times, because its loop has several items.
    pub(super) fn has_loop(&self) -> bool {
        self.items.as_ref().is_some_and(|items| items.items().len() > 1)
    }

    /// Runs the action once, or once for each item of its loop. Fails at the first item for which the action fails.
    pub(super) fn apply(&self, state: &mut RuleState<'_>, budget: &mut RuleBudget) -> Result<(), Failure> {
        let Some(items) = &self.items else { return self.apply_once(state, None, budget) };
        for argument in items.items() {
            let item = argument.fill(state.scope(None), budget)?;
            self.apply_once(state, Some((argument, &item)), budget)?;
        }
        Ok(())
    }

    /// Runs the action once. `item` is the item of the action's loop, as written and with its values filled in, or
    /// `None` without a loop. Fails if an argument is invalid, a limit is exceeded, or the action is `fail`.
    fn apply_once(
        &self,
        state: &mut RuleState<'_>,
        item: Option<(&RuleArgument, &Value)>,
        budget: &mut RuleBudget,
    ) -> Result<(), Failure> {
        budget.consume(if self.kind == ActionKind::Extend { 1 + LIST_COPY_STEPS } else { 1 })?;
        let path = match (&self.target, item) {
            (Some(target), Some((source, item))) => FilledPath::fill(target, Some(source), state.scope(Some(item)), budget)?,
            // Without a loop, nothing is filled into the path.
            (Some(target), None) => FilledPath::literal(target.source()),
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
                // A name with placeholders was not compared with the known traits when the rule was written.
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

/// Fills the item of a loop into a text, before any host has reported. `item` is the item as written and with its
/// values filled in. If a placeholder has no value, the text is unchanged. Returns `None` if a limit is exceeded.
fn fill_without_report(
    text: &TextTemplate,
    item: Option<(&RuleArgument, &Value)>,
    budget: &mut RuleBudget,
) -> Option<FilledPath> {
    let scope = TextScope { item: item.map(|(_, value)| value), ..TextScope::EMPTY };
    FilledPath::fill(text, item.map(|(item_source, _)| item_source), scope, budget).ok()
}

/// Returns whether a text that [`fill_without_report`] returned would be the same with any report. If a placeholder has
/// no value without a report, the result of [`fill_without_report`] equals the source of the text.
fn is_independent_of_report(filled: &FilledPath, text: &TextTemplate) -> bool {
    !filled.has_value() && (text.is_literal() || filled.text() != text.source())
}

/// Fails if a name has no visible character, or has a control character. `subject` describes the named thing in
/// messages, such as `a property`.
fn check_printable_name(subject: &str, name: &str) -> Result<(), String> {
    if is_blank(name) {
        return Err(format!("{:?} is not a name of {subject}: it has no visible character", truncated(name)));
    }
    if has_control(name) {
        return Err(format!("{:?} is not a name of {subject}: it has a control character", truncated(name)));
    }
    Ok(())
}

/// Fails if the level of a `log` action is not one of [`LOG_LEVELS`]. A missing level means `info`. The case of letters
/// does not matter. A level that is not a text is treated as an empty text, and is invalid.
fn check_log_level(level: Option<&Value>) -> Result<(), InvalidRule> {
    let level = level.map_or(Some("info"), Value::as_str).unwrap_or_default();
    if LOG_LEVELS.contains(&&*level.to_lowercase()) {
        return Ok(());
    }
    Err(InvalidRule::new("level", format!("it is one of {}", LOG_LEVELS.join(", "))))
}

/// Sets the label or property at a path. A property that an operator or an earlier rule has set is unchanged. Fails if
/// the path or the value is invalid.
fn set_attribute(state: &mut RuleState<'_>, path: &FilledPath, value: Value) -> Result<(), Failure> {
    match parse_target(path).map_err(Failure::Argument)? {
        AttributeTarget::Label(key) => state.set_label(key, &python_text(&value)?),
        AttributeTarget::Property(property) => state.set_property(property, value),
    }
}

/// Appends a value to the list in the property at a path. A property that operators set is unchanged. Fails if the path
/// is invalid or that of a label, if the property is not a list, or if a limit is exceeded.
fn extend_attribute(state: &mut RuleState<'_>, path: &FilledPath, value: Value, is_unique: bool) -> Result<(), Failure> {
    match parse_target(path).map_err(Failure::Argument)? {
        AttributeTarget::Label(key) => Err(Failure::Argument(format!("label {key} is not a list"))),
        AttributeTarget::Property(property) => state.extend_property(property, value, is_unique),
    }
}

/// Parses the path of an attribute: `labels/KEY` or `properties/NAME`. As in Ironic, a dot can replace the slash. Only
/// the first separator divides the path, because the key of a label contains dots and a slash. Returns the reason if
/// the path is invalid.
fn parse_target(path: &FilledPath) -> Result<AttributeTarget, String> {
    match path.split_first() {
        ("labels", key) if path.has_slash_in_value() => Err(format!(
            "label {:?} would get its domain from a value: a value in a path must not contain a slash",
            truncated(key)
        )),
        ("labels", key) => LabelKey::new(key).map(AttributeTarget::Label).map_err(|error| error.to_string()),
        ("properties", CAPABILITIES_PROPERTY) => Err("capabilities are set with set-capability, one by one".to_owned()),
        ("properties", name) if !name.is_empty() && !name.contains('/') => Ok(AttributeTarget::Property(name.to_owned())),
        _ => Err(format!(
            "{:?} is not an attribute that rules set: use labels/KEY or properties/NAME, or add-trait for traits",
            truncated(path.text().trim_start_matches('/'))
        )),
    }
}

/// Writes a value into the plugin data: the JSON map that all rules can read and change during the evaluation of a
/// report. The path has names separated by dots. `make` returns the new value, given the present value at the path.
/// Missing maps on the path are created. Fails if the plugin data becomes too large or too deep, or if the path leads
/// through a value that is not a map. Each 64 bytes of plugin data cost a step of the budget.
fn write_plugin_data(
    state: &mut RuleState<'_>,
    path: &FilledPath,
    budget: &mut RuleBudget,
    make: impl FnOnce(Option<Value>) -> Result<Value, Failure>,
) -> Result<(), Failure> {
    let keys = path.segments();
    // The value at the path has a depth too, so the path must have fewer names than the maximum depth.
    if keys.len() >= MAX_DATA_DEPTH {
        return Err(Failure::Argument(format!("a path of plugin data has fewer than {MAX_DATA_DEPTH} names")));
    }
    let mut updated = Value::clone(&state.plugin_data);
    let (last_key, parents) = keys.split_last().expect("a path has a first name");
    let mut current = &mut updated;
    for key in parents {
        let Value::Object(map) = current else { return Err(not_a_map(path)) };
        current = map.entry(*key).or_insert_with(|| Value::Object(Map::new()));
    }
    let Value::Object(map) = current else { return Err(not_a_map(path)) };
    let value = make(map.get(*last_key).cloned())?;
    map.insert((*last_key).to_owned(), value);
    let bytes = updated.to_string().len();
    budget.consume(bytes / 64)?;
    if bytes > MAX_DATA_BYTES || !is_within_depth(&updated, MAX_DATA_DEPTH) {
        let message = format!("plugin data has at most {MAX_DATA_BYTES} bytes, {MAX_DATA_DEPTH} deep, for all rules together");
        return Err(Failure::Argument(message));
    }
    state.plugin_data = Arc::new(updated);
    Ok(())
}

/// Returns the error for a path that leads through a value that is not a map.
fn not_a_map(path: &FilledPath) -> Failure {
    Failure::Argument(format!("plugin data has a value that is not a map on the path {:?}", truncated(path.text())))
}

/// Removes the value at a path from `data`, the plugin data of rules. If the map that contains the value has no other
/// value, this map is removed instead. Does nothing if the path leads to no value.
fn unset_plugin_data(data: &mut Value, path: &FilledPath) {
    let keys = path.segments();
    let (last_key, parents) = keys.split_last().expect("a path has a first name");
    let mut value = data;
    let mut emptied_map_key = None;
    if let Some((map_key, outer_keys)) = parents.split_last() {
        for key in outer_keys {
            let Some(inner) = value.get_mut(*key) else { return };
            value = inner;
        }
        if value.get(*map_key).and_then(Value::as_object).is_some_and(|map| map.len() == 1 && map.contains_key(*last_key)) {
            emptied_map_key = Some(*map_key);
        } else {
            let Some(inner) = value.get_mut(*map_key) else { return };
            value = inner;
        }
    }
    if let Value::Object(map) = value {
        map.remove(emptied_map_key.unwrap_or(*last_key));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The path of a label or property is parsed. The path of any other attribute of Ironic is refused, and so is a
    /// path with an invalid name.
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

    /// A value is removed, together with the map that would be empty without the value. A path that leads to no value
    /// changes nothing.
    #[test]
    fn unset_plugin_data_removes_value_and_emptied_map() {
        for (path, expected) in [
            ("a.b.c", json!({"a": {"d": 1}, "e": 2})),
            ("a.d", json!({"a": {"b": {"c": 1}}, "e": 2})),
            ("e", json!({"a": {"b": {"c": 1}, "d": 1}})),
            ("a", json!({"e": 2})),
            ("a.x.y", json!({"a": {"b": {"c": 1}, "d": 1}, "e": 2})),
            ("e.f.g", json!({"a": {"b": {"c": 1}, "d": 1}, "e": 2})),
        ] {
            let mut data = json!({"a": {"b": {"c": 1}, "d": 1}, "e": 2});
            unset_plugin_data(&mut data, &FilledPath::literal(path));
            assert_eq!(data, expected, "{path}");
        }
    }
}
