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

/// An inspection rule with its conditions and actions parsed.
#[derive(Clone, Debug)]
pub(super) struct ParsedRule {
    conditions: Box<[ParsedCondition]>,
    actions: Box<[ParsedAction]>,
}

/// A stored inspection rule, with the data that is needed to run it.
#[derive(Clone, Debug)]
struct CompiledRule {
    object: Arc<InspectionRule>,
    /// The name of the rule, or its uuid if the rule has no name.
    name: Arc<str>,
    /// True if the rule may set labels with restricted keys. These are keys that a host may not set for itself.
    may_set_restricted: bool,
    /// True if the notes about the rule, which findings show, must hide the messages of its actions and failures.
    is_sensitive: bool,
    /// The parsed rule, or an error if an older version stored a rule that is invalid now.
    parsed: Result<ParsedRule, InvalidRule>,
    /// The hash of everything that determines the rule's effects, except the place of the rule in the order.
    hash: [u8; 32],
}

/// The fields of a node in Ironic that contain passwords. Rules cannot read them.
const SECRET_FIELDS: [&str; 2] = ["driver_info", "driver_internal_info"];

/// The cost of copying the state of the evaluation before the actions of a rule run, in steps of the rules' budget. The
/// copy is needed to undo the effects of a rule that fails. A rule with a single action that runs once needs no copy.
const STATE_COPY_STEPS: usize = 64;

/// The sort key of a rule: its priority, its time of creation and its uuid. A rule with a greater priority is first. Of
/// rules with equal priorities, the older rule is first.
type RuleOrderKey = (Reverse<u16>, Timestamp, Uuid);

/// All rules of a fleet, in the order in which they run. A clone is cheap.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// The rules by their sort keys.
    rules: OrdMap<RuleOrderKey, Arc<CompiledRule>>,
    /// The sort keys of the rules by uuid.
    order_keys: OrdMap<Uuid, RuleOrderKey>,
    /// Data that is derived from all rules. It is computed at the first use, and not at each insertion of a rule.
    cache: Arc<OnceLock<RuleSetCache>>,
}

/// Data that is derived from all rules together.
#[derive(Debug)]
struct RuleSetCache {
    /// The hash of everything that determines the effects of the rules.
    hash: [u8; 32],
    /// The outcome for a node on which no rule has an effect. All of these nodes share the outcome.
    empty_outcome: Arc<RuleOutcome>,
    /// The traits, labels and properties that rules may set.
    possible_effects: PossibleEffects,
}

/// The input of rules, in Ironic's form: a node's own fields, and the facts, traits and labels that its host reported.
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
    /// Parses a rule. An error names the invalid field, such as `conditions[0].args.regex`.
    pub(super) fn new(spec: &InspectionRuleSpec) -> Result<Self, InvalidRule> {
        let conditions = spec.conditions.iter().enumerate();
        let conditions = conditions
            .map(|(index, clause)| ParsedCondition::new(clause).map_err(|e| e.prefixed(&format!("conditions[{index}]"))));
        let actions = spec.actions.iter().enumerate();
        let actions = actions
            .map(|(index, clause)| ParsedAction::new(clause, spec.grants).map_err(|e| e.prefixed(&format!("actions[{index}]"))));
        Ok(Self { conditions: conditions.collect::<Result<_, _>>()?, actions: actions.collect::<Result<_, _>>()? })
    }

    /// Runs the actions if all conditions hold. If an action fails, the effects of the rule are undone. A `fail`
    /// action, which ends the evaluation of all rules, undoes nothing.
    fn apply(&self, state: &mut RuleState<'_>, budget: &mut RuleBudget) -> Result<(), Failure> {
        for condition in &self.conditions {
            if !condition.holds(state.scope(None), budget)? {
                return Ok(());
            }
        }
        // A single action that fails has no effect. If one of several actions fails, the effects of the earlier ones
        // must be undone, so the state is copied first.
        let needs_rollback = self.actions.len() > 1 || self.actions.iter().any(ParsedAction::has_loop);
        if needs_rollback {
            budget.consume(STATE_COPY_STEPS)?;
        }
        let old_state = needs_rollback.then(|| state.clone());
        let result = self.actions.iter().try_for_each(|action| action.apply(state, budget));
        if let (Err(failure), Some(old_state)) = (&result, old_state)
            && !matches!(failure, Failure::Fail(_))
        {
            *state = old_state;
        }
        result
    }
}

impl CompiledRule {
    /// Parses a rule and computes its hash. The error of an invalid rule is stored, and reported when the rules run.
    fn new(object: Arc<InspectionRule>) -> Self {
        let spec = &object.spec;
        let name = object.display_name();
        let hashed_fields = (&name, spec.grants, spec.sensitive, &spec.conditions, &spec.actions);
        let text = serde_json::to_string(&hashed_fields).expect("a rule is JSON with texts as keys");
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

    /// Returns the rule with this uuid.
    pub(crate) fn get(&self, uuid: Uuid) -> Option<&Arc<InspectionRule>> {
        Some(&self.rules.get(self.order_keys.get(&uuid)?)?.object)
    }

    /// Inserts a rule, or replaces the rule with the same uuid.
    pub(crate) fn insert(&mut self, object: Arc<InspectionRule>) {
        self.remove(object.meta.uuid);
        let order_key = (Reverse(object.spec.priority), object.meta.created_at, object.meta.uuid);
        self.order_keys.insert(object.meta.uuid, order_key);
        self.rules.insert(order_key, Arc::new(CompiledRule::new(object)));
    }

    /// Removes the rule with this uuid, if there is one.
    pub(crate) fn remove(&mut self, uuid: Uuid) {
        if let Some(order_key) = self.order_keys.remove(&uuid) {
            self.rules.remove(&order_key);
        }
        self.cache = Arc::default();
    }

    /// Returns the data that is derived from all rules. It is computed at the first use after a change of the rules.
    fn cached(&self) -> &RuleSetCache {
        self.cache.get_or_init(|| {
            let hashes: Vec<u8> = self.rules.values().flat_map(|rule| rule.hash).collect();
            let hash = sha256(&hashes);
            let mut possible_effects = PossibleEffects::default();
            for parsed_rule in self.rules.values().filter_map(|rule| rule.parsed.as_ref().ok()) {
                parsed_rule.actions.iter().for_each(|action| action.collect_effects(&mut possible_effects));
            }
            RuleSetCache {
                hash,
                empty_outcome: Arc::new(RuleOutcome { rules_hash: hash, ..RuleOutcome::default() }),
                possible_effects,
            }
        })
    }

    /// Returns the hash of everything that determines the effects of the rules. If the hash changes, the outcomes of
    /// all nodes are computed again.
    pub(crate) fn hash(&self) -> &[u8; 32] {
        &self.cached().hash
    }

    /// Returns whether another set of rules has the same hash, and so the same effects on every node.
    pub(crate) fn has_same_effects(&self, other: &Self) -> bool {
        self.hash() == other.hash()
    }

    /// Returns the traits, labels and properties that the rules may set on any node.
    pub(crate) fn possible_effects(&self) -> &PossibleEffects {
        &self.cached().possible_effects
    }

    /// Returns the outcome for a node on which no rule has an effect.
    pub(crate) fn empty_outcome(&self) -> &Arc<RuleOutcome> {
        &self.cached().empty_outcome
    }

    /// Runs the rules over a report, in their order. A rule with a `fail` action that runs ends the evaluation, and so
    /// does a rule that exceeds the budget. After any other failure, the next rule runs.
    pub fn run(&self, inspected: &InspectedNode) -> Arc<RuleOutcome> {
        let empty = Map::new();
        let properties = inspected.node.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let mut state = RuleState::new(inspected.node.clone(), &inspected.inventory, inspected.plugin_data.clone(), properties);
        let mut budget = RuleBudget::for_report();
        for rule in self.rules.values() {
            state.begin_rule(&rule.name, rule.may_set_restricted, rule.is_sensitive);
            let result = match &rule.parsed {
                Ok(parsed_rule) => parsed_rule.apply(&mut state, &mut budget),
                Err(error) => Err(Failure::Argument(format!("the stored rule is not valid any more: {error}"))),
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
    /// Builds the input of rules from a node and the last report of its host.
    pub fn new(node: &Node, report: &Observation) -> Self {
        let mut fields = Map::new();
        // Fields that may contain a password are left out.
        for (name, value) in node.spec.extra.iter().filter(|(name, _)| !SECRET_FIELDS.contains(&name.as_str())) {
            fields.insert(name.clone(), value.clone());
        }
        // Ironic's nodes always have these fields, so a rule can read them even if they are not set.
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

/// Returns the facts of a report as a tree. Some facts have another name in Ironic's inventory. They are added a second
/// time under Ironic's name (the memory also in MiB), unless the tree has a fact with that name.
fn inventory_json(report: &Observation) -> Value {
    let mut tree = report.facts.tree();
    let fact = |pointer: &str| report.facts.text(pointer).and_then(|text| serde_json::from_str::<Value>(text).ok());
    let mut add_field = |map: &str, name: &str, value: Option<Value>| {
        let Some(value) = value else { return };
        let fields = tree.entry(map).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(fields) = fields {
            fields.entry(name).or_insert(value);
        }
    };
    add_field("cpu", "architecture", fact("architecture"));
    add_field("cpu", "model_name", fact("cpu.model"));
    let bytes = fact("memory.total_bytes").and_then(|bytes| bytes.as_u64());
    add_field("memory", "total", bytes.map(Value::from));
    add_field("memory", "physical_mb", bytes.map(|bytes| (bytes / (1024 * 1024)).into()));
    add_field("system_vendor", "manufacturer", fact("dmi.vendor"));
    add_field("system_vendor", "product_name", fact("dmi.product"));
    add_field("system_vendor", "serial_number", fact("dmi.serial"));
    Value::Object(tree)
}
