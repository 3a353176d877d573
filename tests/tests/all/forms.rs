//! One intent, told in every form in which it can be written: the requests and commands make the same object, with the same owners, list
//! the same changes, and refuse the same.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};
use stemma_core::field::{Form, Part};
use stemma_core::manifest::{KindFields, kinds};
use stemma_tests::chance::{Chance, is_long};
use stemma_tests::fleet::Fleet;
use stemma_tests::operator::Operator;

/// Who made each object before, and who writes it now.
const FIRST: &str = "first";
const SECOND: &str = "second";

/// What is drawn of each kind: all fields but what names an object, where it stands, what refers to others or is read without a controller.
const NOT_DRAWN: [&str; 13] = [
    "name",
    "cluster",
    "uuid",
    "reports",
    "release",
    "cluster_template",
    "nodegroup",
    "roles",
    "primaries",
    "traits",
    "tags",
    "suppressed_traits",
    "host_labels",
];

/// What is owned key by key.
const MAPS: [&str; 3] = ["labels", "annotations", "parameters"];

/// A kind of which objects are written, with the path of one and the form in which a manifest names it.
struct Written {
    kind: &'static str,
    path: &'static str,
    of: &'static [(&'static str, &'static str)],
}

const WRITTEN: [Written; 4] = [
    Written { kind: "ClusterTemplate", path: "/v1/clustertemplates", of: &[] },
    Written { kind: "Cluster", path: "/v1/clusters", of: &[] },
    Written { kind: "NodeGroup", path: "/v1/clusters/c/nodegroups", of: &[("cluster", "c")] },
    Written { kind: "Node", path: "/v1/nodes", of: &[] },
];

/// How an intent is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    MergePatch,
    JsonPatch,
    Apply,
    ApplyPatch,
    WholeMap,
}

impl Told {
    const ALL: [Self; 5] = [Self::MergePatch, Self::JsonPatch, Self::Apply, Self::ApplyPatch, Self::WholeMap];

    /// Whether a field can be given a value in this form.
    fn tells(self, kind: &str, field: &str) -> bool {
        let is_map = MAPS.contains(&field);
        match self {
            Self::Apply => true,
            Self::MergePatch => kind != "ClusterTemplate" || field != "merge_labels",
            // Magnum's refuses to add to a map that is there, and has no merge_labels of a template.
            Self::JsonPatch => !is_map && field != "merge_labels",
            Self::ApplyPatch => is_map || (field == "merge_labels" && kind != "ClusterTemplate"),
            Self::WholeMap => is_map,
        }
    }
}

/// What came of a write.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// The object as it stands, who owns what was written, and the changes that the answer lists.
    Made { object: Value, owners: BTreeMap<String, BTreeSet<String>>, changes: BTreeSet<String> },
    /// The status and the type of the refusal, and the field that it names.
    Refused { status: u16, kind: String, field: String },
}

/// A value that a field may hold, and another one where the form has several.
fn good(part: &Part, chance: &mut Chance) -> Result<Value> {
    let number = chance.below(1_000);
    Ok(match part.form.plain() {
        Form::Flag => chance.percent(50).into(),
        Form::Seconds(..) => (1 + number).into(),
        Form::Count if part.name.ends_with("seconds") || part.name.ends_with("timeout") => number.into(),
        Form::Text if part.name == "description" => format!("text {number}").into(),
        Form::OneOf(words) => (*chance.one(words)).into(),
        Form::Map if part.name == "labels" || part.name == "annotations" => {
            let value = [json!("1"), json!(1.50), json!(true)][number % 3].clone();
            json!({format!("k{}", number % 5): value})
        }
        Form::Map | Form::Parameters => {
            json!({format!("k{}", number % 5): {"a": number, format!("b{number}"): [1.5, null]}})
        }
        _ => serde_json::from_str(part.help.example).context(part.name)?,
    })
}

/// A value of another JSON type than any that the form takes.
fn bad(form: Form) -> Value {
    match form.plain() {
        Form::Flag | Form::Map | Form::MapOf(_) | Form::Parameters | Form::Object(_) | Form::MapOrList => {
            json!("perhaps")
        }
        Form::Seconds(..) | Form::Count | Form::Number | Form::Share | Form::OneOf(_) => json!("no such"),
        Form::Text | Form::Time | Form::TextOrList => json!({"a": 1}),
        Form::Names | Form::ListOf(_) | Form::Objects => json!(5),
        Form::Any | Form::UpTo(..) => json!([]),
    }
}

/// Members added to an object, at every depth; anything else in the place of what was there.
fn with_members(before: Option<&Value>, more: &Value) -> Value {
    let (Some(Value::Object(before)), Value::Object(more)) = (before, more) else { return more.clone() };
    let mut after = before.clone();
    for (name, value) in more {
        after.insert(name.clone(), with_members(before.get(name), value));
    }
    after.into()
}

/// One round: an object that the first manager has made, and what the second one writes.
struct Round<'a> {
    written: &'a Written,
    name: String,
    before: Map<String, Value>,
    intent: Map<String, Value>,
}

impl Round<'_> {
    fn path(&self) -> String {
        format!("{}/{}", self.written.path, self.name)
    }

    fn manifest(&self, fields: Map<String, Value>) -> Value {
        let mut object = json!({"kind": self.written.kind, "name": self.name});
        let of = self.written.of.iter().map(|(field, value)| ((*field).to_owned(), Value::from(*value)));
        object.as_object_mut().expect("an object").extend(of.chain(fields));
        json!({"objects": [object]})
    }

    /// The fields of the intent, each as it is to be afterwards.
    fn after(&self) -> Map<String, Value> {
        let after = |(name, value): (&String, &Value)| (name.clone(), with_members(self.before.get(name), value));
        self.intent.iter().map(after).collect()
    }

    /// The same, without what stands beside it in a map that is owned key by key: an apply would share that.
    fn applied(&self) -> Map<String, Value> {
        let mut after = self.after();
        for (name, value) in after.iter_mut().filter(|(name, _)| MAPS.contains(&name.as_str())) {
            let meant = self.intent.get(name).and_then(Value::as_object);
            if let (Some(value), Some(meant)) = (value.as_object_mut(), meant) {
                value.retain(|key, _| meant.contains_key(key));
            }
        }
        after
    }

    fn make(&self, operator: &mut Operator) -> Result<()> {
        let body = self.manifest(self.before.clone());
        let (status, answer) = operator.call("POST", &format!("/v1/apply?manager={FIRST}"), JSON, &body)?;
        ensure!(status == 200, "{status} {answer} {body}");
        Ok(())
    }

    fn tell(&self, told: Told, operator: &mut Operator) -> Result<(u16, Value)> {
        let at = |below: &str, more: &str| format!("{}{below}?manager={SECOND}{more}", self.path());
        match told {
            Told::MergePatch => {
                operator.call("PATCH", &at("", ""), "application/merge-patch+json", &json!(self.intent))
            }
            Told::JsonPatch => {
                let operation = |(name, value): (String, Value)| {
                    let verb = if self.before.contains_key(&name) { "replace" } else { "add" };
                    json!({"op": verb, "path": format!("/{name}"), "value": value})
                };
                let operations: Vec<Value> = self.after().into_iter().map(operation).collect();
                operator.call("PATCH", &at("", ""), "application/json-patch+json", &json!(operations))
            }
            Told::Apply => {
                let path = format!("/v1/apply?manager={SECOND}&force=true");
                operator.call("POST", &path, JSON, &self.manifest(self.applied()))
            }
            Told::ApplyPatch => {
                operator.call("PATCH", &at("", "&force=true"), "application/apply-patch+json", &json!(self.applied()))
            }
            Told::WholeMap => {
                let (name, map) = self.after().into_iter().next().context("a map")?;
                operator.call("PUT", &at(&format!("/{name}"), ""), JSON, &json!({name: map}))
            }
        }
    }

    fn outcome(&self, told: Told, operator: &mut Operator) -> Result<Outcome> {
        self.make(operator)?;
        let (status, answer) = self.tell(told, operator)?;
        if status >= 400 {
            let text = |field: &str| answer["error"][field].as_str().unwrap_or_default().to_owned();
            let field = text("field").trim_start_matches("objects[0].").to_owned();
            return Ok(Outcome::Refused { status, kind: text("type"), field });
        }
        let changes = answer.pointer("/objects/0/changes").or(answer.get("changes")).cloned().unwrap_or_default();
        let changes = changes.as_array().into_iter().flatten().map(Value::to_string).collect();
        let (_, object) = operator.get(&self.path())?;
        let owners = owners(&object);
        let shown = |name: &String| {
            let provided = object.get(format!("provided_{name}")).unwrap_or(&object[name]);
            (name.clone(), provided.clone())
        };
        let names: BTreeSet<&String> = self.before.keys().chain(self.intent.keys()).collect();
        Ok(Outcome::Made { object: names.into_iter().map(shown).collect::<Map<_, _>>().into(), owners, changes })
    }
}

/// The managers of each field and key of an object, whatever the operation by which they own it.
fn owners(object: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let mut owners = BTreeMap::new();
    for map in ["field_owners", "label_owners", "annotation_owners", "parameter_owners"] {
        for (name, all) in object[map].as_object().into_iter().flatten() {
            let manager = |owner: &Value| owner.as_str().and_then(|owner| owner.split(':').next()).map(str::to_owned);
            let all = all.as_array().into_iter().flatten().filter_map(manager).collect();
            owners.insert(format!("{map} {name}"), all);
        }
    }
    owners
}

const JSON: &str = "application/json";

/// Some fields of a kind with good values, or one with a bad one.
fn draw(chance: &mut Chance, parts: &[Part], before: &Map<String, Value>) -> Result<Map<String, Value>> {
    let is_bad = chance.percent(25);
    let mut intent = Map::new();
    for _ in 0..if is_bad { 1 } else { 1 + chance.below(3) } {
        let part = chance.one(parts);
        let value = if is_bad { bad(part.form) } else { good(part, chance)? };
        let after = with_members(before.get(part.name), &value);
        // What stands already is shared by an apply and left alone by a plain write.
        let is_default = [json!(false), json!(0), json!(""), json!({}), json!([])].contains(&value);
        // Who applies labels says so that they merge.
        let implied = (part.name == "merge_labels" && before.contains_key("labels")).then_some(Value::Bool(true));
        if before.get(part.name).cloned().or(implied) != Some(after) && !is_default {
            intent.insert(part.name.to_owned(), value);
        }
    }
    Ok(intent)
}

#[test]
fn y05_one_intent_makes_the_same_in_each_form_of_a_write() -> Result<()> {
    let (mut chance, fleet) = (Chance::seeded()?, Fleet::start()?);
    let mut operator = Operator::of(&fleet.data(), fleet.bound())?.without_versions();
    let cluster = json!({"objects": [{"kind": "Cluster", "name": "c"}]});
    ensure!(operator.call("POST", "/v1/apply", JSON, &cluster)?.0 == 200, "a cluster");
    let (mut compared, mut refused) = (0, 0);
    for at in 0..if is_long() { 2_000 } else { 120 } {
        let written = chance.one(&WRITTEN);
        let kind = kinds().into_iter().find(|kind| kind.kind == written.kind).context(written.kind)?;
        let KindFields { parts, .. } = kind;
        let parts: Vec<Part> = parts.into_iter().filter(|part| !NOT_DRAWN.contains(&part.name)).collect();
        let mut before = Map::new();
        for part in &parts {
            if chance.percent(30) {
                before.insert(part.name.to_owned(), good(part, &mut chance)?);
            }
        }
        let intent = draw(&mut chance, &parts, &before)?;
        let forms: Vec<Told> =
            Told::ALL.into_iter().filter(|told| intent.keys().all(|field| told.tells(written.kind, field))).collect();
        let forms: Vec<Told> = forms.into_iter().filter(|told| *told != Told::WholeMap || intent.len() == 1).collect();
        let mut first: Option<(Told, Outcome)> = None;
        for (nth, told) in forms.into_iter().enumerate().filter(|_| !intent.is_empty()) {
            let round = Round { written, name: format!("o{at}-{nth}"), before: before.clone(), intent: intent.clone() };
            let outcome = round.outcome(told, &mut operator)?;
            let Some((other, expected)) = &first else {
                first = Some((told, outcome));
                continue;
            };
            assert_eq!(outcome, *expected, "{told:?} and {other:?} of {} {before:?}: {intent:?}", written.kind);
            compared += 1;
            refused += usize::from(matches!(outcome, Outcome::Refused { .. }));
        }
    }
    ensure!(compared > 100 && refused > 10, "{compared} compared, {refused} of them refused");
    Ok(())
}
