//! The rules of a fleet, and one run of them over a report.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use imbl::OrdMap;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::action::ParsedAction;
use super::budget::RuleBudget;
use super::condition::ParsedCondition;
use super::limits::{Failure, InvalidRule};
use super::outcome::{NoteKind, RuleOutcome, RuleState};
use super::possible_effects::PossibleEffects;
use crate::digest::sha256;
use crate::object::{InspectionRule, InspectionRuleSpec, Node, Observation, Timestamp};
use crate::traits::Trait;

/// The conditions and actions of a rule, parsed.
#[derive(Clone, Debug)]
pub(super) struct ParsedRule {
    conditions: Box<[ParsedCondition]>,
    actions: Box<[ParsedAction]>,
}

/// A rule of the fleet, with everything that is needed to run it.
#[derive(Clone, Debug)]
struct CompiledRule {
    object: Arc<InspectionRule>,
    name: Arc<str>,
    may_set_restricted: bool,
    is_sensitive: bool,
    /// The parsed rule, or an error if an older version stored a rule that is invalid now.
    parsed: Result<ParsedRule, InvalidRule>,
    /// The hash of everything that determines the rule's effects.
    hash: [u8; 32],
}

/// Ironic's fields that contain passwords.
const SECRET_FIELDS: [&str; 2] = ["driver_info", "driver_internal_info"];

/// The number of steps to copy the state before a rule runs.
const STATE_COPY_STEPS: usize = 64;

/// The position of a rule: the greater priority first, then the older rule.
type RuleOrderKey = (Reverse<u16>, Timestamp, Uuid);

/// All rules of a fleet, in the order in which they run. A clone is cheap.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    rules: OrdMap<RuleOrderKey, Arc<CompiledRule>>,
    order_keys: OrdMap<Uuid, RuleOrderKey>,
    /// Computed at the first use, because many rules are inserted before that.
    cache: Arc<OnceLock<RuleSetCache>>,
}

/// Data that is derived from all rules together.
#[derive(Debug)]
struct RuleSetCache {
    hash: [u8; 32],
    /// The outcome for a node on which no rule has an effect. All such nodes share it.
    empty_outcome: Arc<RuleOutcome>,
    possible_effects: PossibleEffects,
}

/// The input of rules: a node's own fields and its host's report, in Ironic's form.
#[derive(Clone, Debug)]
pub struct InspectedNode {
    /// The value that rules read as `node`.
    pub node: Value,
    /// The value that rules read as `inventory`.
    pub inventory: Value,
    /// The value that rules read as `plugin_data`, before any rule has written to it.
    pub plugin_data: Value,
}

impl ParsedRule {
    pub(super) fn new(spec: &InspectionRuleSpec) -> Result<Self, InvalidRule> {
        let conditions = spec.conditions.iter().enumerate();
        let conditions =
            conditions.map(|(at, one)| ParsedCondition::new(one).map_err(|e| e.prefixed(&format!("conditions[{at}]"))));
        let actions = spec.actions.iter().enumerate();
        let actions =
            actions.map(|(at, one)| ParsedAction::new(one, spec.grants).map_err(|e| e.prefixed(&format!("actions[{at}]"))));
        Ok(Self { conditions: conditions.collect::<Result<_, _>>()?, actions: actions.collect::<Result<_, _>>()? })
    }

    /// Runs the actions if all conditions hold. If an action fails, the effects of the rule are undone.
    fn apply(&self, state: &mut RuleState<'_>, budget: &mut RuleBudget) -> Result<(), Failure> {
        for condition in &self.conditions {
            if !condition.holds(state.scope(None), budget)? {
                return Ok(());
            }
        }
        // A single change is made or not. If one of several fails, none must be made, so the state is copied.
        let is_several = self.actions.len() > 1 || self.actions.iter().any(ParsedAction::has_loop);
        if is_several {
            budget.consume(STATE_COPY_STEPS)?;
        }
        let before = is_several.then(|| state.clone());
        let result = self.actions.iter().try_for_each(|action| action.apply(state, budget));
        if let (Err(failure), Some(before)) = (&result, before)
            && !matches!(failure, Failure::Fail(_))
        {
            *state = before;
        }
        result
    }
}

impl CompiledRule {
    /// Parses a rule and computes its hash. A rule that is invalid is kept with its error, which is reported when it
    /// runs.
    fn new(object: Arc<InspectionRule>) -> Self {
        let spec = &object.spec;
        let name = object.display_name();
        let hashed = (&name, spec.grants, spec.sensitive, &spec.conditions, &spec.actions);
        let text = serde_json::to_string(&hashed).expect("a rule is JSON with texts as keys");
        Self {
            name: name.into(),
            may_set_restricted: spec.grants,
            is_sensitive: spec.sensitive,
            parsed: ParsedRule::new(spec),
            hash: sha256(text.as_bytes()),
            object,
        }
    }
}

impl RuleSet {
    /// Returns whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns a rule.
    pub(crate) fn get(&self, uuid: Uuid) -> Option<&Arc<InspectionRule>> {
        Some(&self.rules.get(self.order_keys.get(&uuid)?)?.object)
    }

    /// Inserts a rule, or replaces it.
    pub(crate) fn insert(&mut self, object: Arc<InspectionRule>) {
        self.remove(object.meta.uuid);
        let place = (Reverse(object.spec.priority), object.meta.created_at, object.meta.uuid);
        self.order_keys.insert(object.meta.uuid, place);
        self.rules.insert(place, Arc::new(CompiledRule::new(object)));
    }

    /// Removes a rule.
    pub(crate) fn remove(&mut self, uuid: Uuid) {
        if let Some(place) = self.order_keys.remove(&uuid) {
            self.rules.remove(&place);
        }
        self.cache = Arc::default();
    }

    /// Returns the data that is derived from all rules, computed at the first use.
    fn cached(&self) -> &RuleSetCache {
        self.cache.get_or_init(|| {
            let hashes: Vec<u8> = self.rules.values().flat_map(|rule| rule.hash).collect();
            let hash = sha256(&hashes);
            let mut possible_effects = PossibleEffects::default();
            for body in self.rules.values().filter_map(|rule| rule.parsed.as_ref().ok()) {
                body.actions.iter().for_each(|action| action.collect_effects(&mut possible_effects));
            }
            RuleSetCache {
                hash,
                empty_outcome: Arc::new(RuleOutcome { rules_hash: hash, ..RuleOutcome::default() }),
                possible_effects,
            }
        })
    }

    /// Returns the hash of everything that determines the effects of the rules. If it changes, outcomes are computed
    /// again.
    pub(crate) fn hash(&self) -> &[u8; 32] {
        &self.cached().hash
    }

    /// Returns whether another set of rules has the same effects.
    pub(crate) fn has_same_effects(&self, other: &Self) -> bool {
        self.hash() == other.hash()
    }

    /// Returns what the rules may set on any node.
    pub(crate) fn possible_effects(&self) -> &PossibleEffects {
        &self.cached().possible_effects
    }

    /// Returns the outcome for a node on which no rule has an effect.
    pub(crate) fn empty_outcome(&self) -> &Arc<RuleOutcome> {
        &self.cached().empty_outcome
    }

    /// Runs the rules over a report, in their order, until one fails with `fail` or the budget is exceeded.
    pub fn run(&self, inspected: &InspectedNode) -> Arc<RuleOutcome> {
        let empty = Map::new();
        let own = inspected.node.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let mut state = RuleState::new(inspected.node.clone(), &inspected.inventory, inspected.plugin_data.clone(), own);
        let mut budget = RuleBudget::for_report();
        for rule in self.rules.values() {
            state.begin_rule(&rule.name, rule.may_set_restricted, rule.is_sensitive);
            let result = match &rule.parsed {
                Ok(body) => body.apply(&mut state, &mut budget),
                Err(why) => Err(Failure::Argument(format!("the stored rule is not valid any more: {why}"))),
            };
            match result {
                Ok(()) => {}
                Err(Failure::Fail(message)) => {
                    state.add_note(NoteKind::Refused, &message);
                    break;
                }
                Err(failure) => {
                    state.add_note(NoteKind::Failed, &failure.to_string());
                    if failure == Failure::BudgetExceeded {
                        break;
                    }
                }
            }
        }
        if state.outcome.is_empty() {
            Arc::clone(self.empty_outcome())
        } else {
            Arc::new(RuleOutcome { rules_hash: *self.hash(), ..state.outcome })
        }
    }
}

impl InspectedNode {
    /// Builds the input of rules from a node and what its host reported.
    pub fn new(node: &Node, report: &Observation) -> Self {
        let mut fields = Map::new();
        // Fields that may contain a password are left out.
        for (name, value) in node.spec.extra.iter().filter(|(name, _)| !SECRET_FIELDS.contains(&name.as_str())) {
            fields.insert(name.clone(), value.clone());
        }
        for name in ["driver", "resource_class", "owner", "lessee", "instance_uuid"] {
            fields.entry(name).or_insert(Value::Null);
        }
        fields.entry("extra").or_insert_with(|| json!({}));
        fields.insert("uuid".into(), node.meta.uuid.to_string().into());
        fields.insert("name".into(), node.meta.name.as_ref().map(ToString::to_string).into());
        fields.insert("description".into(), json!(node.spec.description));
        fields.insert("properties".into(), Value::Object(node.spec.properties.clone()));
        fields.insert("instance_info".into(), json!(node.spec.instance_info));
        fields.insert("provision_state".into(), node.provision_state().into());
        let traits: Vec<&str> = report.traits.iter().map(Trait::as_str).collect();
        let labels: BTreeMap<&str, &str> = report.labels.iter().map(|label| (&*label.key, &*label.value)).collect();
        let plugin_data = json!({"traits": traits, "labels": labels});
        Self { node: Value::Object(fields), inventory: inventory_json(report), plugin_data }
    }
}

/// Returns the facts as a tree, with additional fields that have another name in Ironic's inventory.
fn inventory_json(report: &Observation) -> Value {
    let mut tree = report.facts.tree();
    let fact = |pointer: &str| report.facts.text(pointer).and_then(|text| serde_json::from_str::<Value>(text).ok());
    let mut put = |map: &str, name: &str, value: Option<Value>| {
        let Some(value) = value else { return };
        let inner = tree.entry(map).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(inner) = inner {
            inner.entry(name).or_insert(value);
        }
    };
    put("cpu", "architecture", fact("architecture"));
    put("cpu", "model_name", fact("cpu.model"));
    let bytes = fact("memory.total_bytes").and_then(|bytes| bytes.as_u64());
    put("memory", "total", bytes.map(Value::from));
    put("memory", "physical_mb", bytes.map(|bytes| (bytes / (1024 * 1024)).into()));
    put("system_vendor", "manufacturer", fact("dmi.vendor"));
    put("system_vendor", "product_name", fact("dmi.product"));
    put("system_vendor", "serial_number", fact("dmi.serial"));
    Value::Object(tree)
}
