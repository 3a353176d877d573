//! The rules of a fleet, and one run of them over a report.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use imbl::OrdMap;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::action::Action;
use super::budget::Budget;
use super::condition::Condition;
use super::gives::Gives;
use super::limits::{Failure, InvalidRule};
use super::ruled::{NoteKind, Ruled, State};
use crate::digest::sha256;
use crate::object::{InspectionRule, InspectionRuleSpec, Node, Observation, Timestamp};
use crate::traits::Trait;

/// What a rule asks and does, read once.
#[derive(Clone, Debug)]
pub(super) struct Body {
    conditions: Box<[Condition]>,
    actions: Box<[Action]>,
}

/// A rule, ready to be asked.
#[derive(Clone, Debug)]
struct Rule {
    object: Arc<InspectionRule>,
    name: Arc<str>,
    grants: bool,
    is_sensitive: bool,
    /// What it asks and does; why it cannot, where another program stored it by other rules.
    body: Result<Body, InvalidRule>,
    /// Of all that decides what it gives.
    hash: [u8; 32],
}

/// Fields of Ironic's in which passwords stand.
const SECRET: [&str; 2] = ["driver_info", "driver_internal_info"];

/// Steps for what rules gave so far, kept aside.
const COST_OF_COPY: usize = 64;

/// Where a rule stands among the others: the greater priority first, then the older rule.
type Place = (Reverse<u16>, Timestamp, Uuid);

/// All rules of a fleet, in the order in which they are asked. A clone is free.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    rules: OrdMap<Place, Arc<Rule>>,
    places: OrdMap<Uuid, Place>,
    /// Worked out when it is first asked for: many rules are put before anybody does.
    together: Arc<OnceLock<Together>>,
}

/// What follows from all rules together.
#[derive(Debug)]
struct Together {
    hash: [u8; 32],
    /// What they give a node of which none holds: one for all such nodes.
    nothing: Arc<Ruled>,
    gives: Gives,
}

/// What rules are asked of: a node's own fields, and what its host reported, in Ironic's shapes.
#[derive(Clone, Debug)]
pub struct Inspected {
    /// What a rule reads as `node`.
    pub node: Value,
    /// What a rule reads as `inventory`.
    pub inventory: Value,
    /// What a rule reads as `plugin_data`, before another wrote into it.
    pub plugin_data: Value,
}

impl Body {
    pub(super) fn new(spec: &InspectionRuleSpec) -> Result<Self, InvalidRule> {
        let conditions = spec.conditions.iter().enumerate();
        let conditions =
            conditions.map(|(at, one)| Condition::new(one).map_err(|e| e.within(&format!("conditions[{at}]"))));
        let actions = spec.actions.iter().enumerate();
        let actions =
            actions.map(|(at, one)| Action::new(one, spec.grants).map_err(|e| e.within(&format!("actions[{at}]"))));
        Ok(Self { conditions: conditions.collect::<Result<_, _>>()?, actions: actions.collect::<Result<_, _>>()? })
    }

    fn apply(&self, state: &mut State<'_>, budget: &mut Budget) -> Result<(), Failure> {
        for condition in &self.conditions {
            if !condition.holds(state.scope(None), budget)? {
                return Ok(());
            }
        }
        // One thing is done or not; of several, none is where one fails.
        let is_several = self.actions.len() > 1 || self.actions.iter().any(Action::is_several);
        if is_several {
            budget.take(COST_OF_COPY)?;
        }
        let before = is_several.then(|| state.clone());
        let done = self.actions.iter().try_for_each(|action| action.apply(state, budget));
        if let (Err(failure), Some(before)) = (&done, before)
            && !matches!(failure, Failure::Fail(_))
        {
            *state = before;
        }
        done
    }
}

impl Rule {
    fn new(object: Arc<InspectionRule>) -> Self {
        let spec = &object.spec;
        let name = object.display_name();
        let decides = (&name, spec.grants, spec.sensitive, &spec.conditions, &spec.actions);
        let text = serde_json::to_string(&decides).expect("a rule is JSON with texts as keys");
        Self {
            name: name.into(),
            grants: spec.grants,
            is_sensitive: spec.sensitive,
            body: Body::new(spec),
            hash: sha256(text.as_bytes()),
            object,
        }
    }
}

impl RuleSet {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// A rule.
    pub(crate) fn get(&self, uuid: Uuid) -> Option<&Arc<InspectionRule>> {
        Some(&self.rules.get(self.places.get(&uuid)?)?.object)
    }

    /// Puts a rule among them, in the place of what it was.
    pub(crate) fn put(&mut self, object: Arc<InspectionRule>) {
        self.remove(object.meta.uuid);
        let place = (Reverse(object.spec.priority), object.meta.created_at, object.meta.uuid);
        self.places.insert(object.meta.uuid, place);
        self.rules.insert(place, Arc::new(Rule::new(object)));
    }

    /// Takes a rule away.
    pub(crate) fn remove(&mut self, uuid: Uuid) {
        if let Some(place) = self.places.remove(&uuid) {
            self.rules.remove(&place);
        }
        self.together = Arc::default();
    }

    fn together(&self) -> &Together {
        self.together.get_or_init(|| {
            let all: Vec<u8> = self.rules.values().flat_map(|rule| rule.hash).collect();
            let hash = sha256(&all);
            let mut gives = Gives::default();
            for body in self.rules.values().filter_map(|rule| rule.body.as_ref().ok()) {
                body.actions.iter().for_each(|action| action.note_given(&mut gives));
            }
            Together { hash, nothing: Arc::new(Ruled { by: hash, ..Ruled::default() }), gives }
        })
    }

    /// Of all that decides what they give: what one gives is worked out again where it is another.
    pub(crate) fn hash(&self) -> &[u8; 32] {
        &self.together().hash
    }

    /// Whether others decide the same.
    pub(crate) fn decides_like(&self, other: &Self) -> bool {
        self.hash() == other.hash()
    }

    /// What they may give at all.
    pub(crate) fn gives(&self) -> &Gives {
        &self.together().gives
    }

    /// What they give a node of which none holds.
    pub(crate) fn nothing(&self) -> &Arc<Ruled> {
        &self.together().nothing
    }

    /// What they give by a report.
    pub fn run(&self, inspected: &Inspected) -> Arc<Ruled> {
        let none = Map::new();
        let own = inspected.node.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let mut state = State::new(inspected.node.clone(), &inspected.inventory, inspected.plugin_data.clone(), own);
        let mut budget = Budget::of_report();
        for rule in self.rules.values() {
            state.begin(&rule.name, rule.grants, rule.is_sensitive);
            let done = match &rule.body {
                Ok(body) => body.apply(&mut state, &mut budget),
                Err(why) => Err(Failure::Argument(format!("it is stored and cannot be asked: {why}"))),
            };
            match done {
                Ok(()) => {}
                Err(Failure::Fail(message)) => {
                    state.note(NoteKind::Refused, &message);
                    break;
                }
                Err(failure) => {
                    state.note(NoteKind::Failed, &failure.to_string());
                    if failure == Failure::Spent {
                        break;
                    }
                }
            }
        }
        if state.ruled.is_nothing() {
            Arc::clone(self.nothing())
        } else {
            Arc::new(Ruled { by: *self.hash(), ..state.ruled })
        }
    }
}

impl Inspected {
    /// A node and what its host reported.
    pub fn of(node: &Node, seen: &Observation) -> Self {
        let mut fields = Map::new();
        // What may hold a password is no part of it.
        for (name, value) in node.spec.extra.iter().filter(|(name, _)| !SECRET.contains(&name.as_str())) {
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
        let traits: Vec<&str> = seen.traits.iter().map(Trait::as_str).collect();
        let labels: BTreeMap<&str, &str> = seen.labels.iter().map(|one| (&*one.key, &*one.value)).collect();
        let plugin_data = json!({"traits": traits, "labels": labels});
        Self { node: Value::Object(fields), inventory: inventory(seen), plugin_data }
    }
}

/// The facts as a tree, and beside them what Ironic's inventory calls otherwise.
fn inventory(seen: &Observation) -> Value {
    let mut tree = seen.facts.tree();
    let at = |pointer: &str| seen.facts.text(pointer).and_then(|text| serde_json::from_str::<Value>(text).ok());
    let mut put = |map: &str, name: &str, value: Option<Value>| {
        let Some(value) = value else { return };
        let inner = tree.entry(map).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(inner) = inner {
            inner.entry(name).or_insert(value);
        }
    };
    put("cpu", "architecture", at("architecture"));
    put("cpu", "model_name", at("cpu.model"));
    let bytes = at("memory.total_bytes").and_then(|bytes| bytes.as_u64());
    put("memory", "total", bytes.map(Value::from));
    put("memory", "physical_mb", bytes.map(|bytes| (bytes / (1024 * 1024)).into()));
    put("system_vendor", "manufacturer", at("dmi.vendor"));
    put("system_vendor", "product_name", at("dmi.product"));
    put("system_vendor", "serial_number", at("dmi.serial"));
    Value::Object(tree)
}
