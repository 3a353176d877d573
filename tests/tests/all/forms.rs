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
    /// `stemma apply`.
    ApplyCommand,
    /// `stemma label`.
    LabelCommand,
}

impl Told {
    const ALL: [Self; 7] = [
        Self::MergePatch,
        Self::JsonPatch,
        Self::Apply,
        Self::ApplyPatch,
        Self::WholeMap,
        Self::ApplyCommand,
        Self::LabelCommand,
    ];

    /// Whether it is a command, whose refusal is a text for people.
    fn is_command(self) -> bool {
        matches!(self, Self::ApplyCommand | Self::LabelCommand)
    }

    /// By what its writer owns what it writes (`docs/manifests.md`: by a manifest `apply`, by a command or call `update`).
    fn operation(self) -> &'static str {
        match self {
            Self::Apply | Self::ApplyPatch | Self::ApplyCommand => "apply",
            Self::MergePatch | Self::JsonPatch | Self::WholeMap | Self::LabelCommand => "update",
        }
    }

    /// Whether it tells one map alone.
    fn is_of_map(self) -> bool {
        matches!(self, Self::WholeMap | Self::LabelCommand)
    }

    /// Whether a field can be given a value in this form.
    fn tells(self, kind: &str, field: &str) -> bool {
        let is_map = MAPS.contains(&field);
        match self {
            Self::Apply | Self::ApplyCommand => true,
            Self::LabelCommand => field == "labels",
            // Magnum has no merge_labels of a template.
            Self::MergePatch | Self::JsonPatch => kind != "ClusterTemplate" || field != "merge_labels",
            Self::ApplyPatch => is_map || (field == "merge_labels" && kind != "ClusterTemplate"),
            Self::WholeMap => is_map,
        }
    }
}

/// How a new object is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum New {
    Post,
    Apply,
    /// `stemma create`.
    Command,
}

impl New {
    const ALL: [Self; 3] = [Self::Post, Self::Apply, Self::Command];

    /// By what its writer owns what it writes.
    fn operation(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Post | Self::Command => "update",
        }
    }

    /// Whether an object of these fields can be made in this form.
    fn tells(self, kind: &str, intent: &Map<String, Value>) -> bool {
        let is_of_magnum = matches!(kind, "Cluster" | "NodeGroup");
        match self {
            Self::Apply => true,
            // Magnum has no merge_labels of a template, and labels that do not merge where a new body of the others leaves it open.
            Self::Post if intent.contains_key("merge_labels") => kind != "ClusterTemplate",
            Self::Post => !(is_of_magnum && intent.contains_key("labels")),
            Self::Command => intent.keys().eq(["labels"]),
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
        Form::Text if part.name == "description" && number < 250 => "".into(),
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

/// A value that the field does not take: of another type, or of a map also one whose entry is none.
fn bad_of(part: &Part, chance: &mut Chance) -> Value {
    let entry = match part.name {
        "labels" | "annotations" => json!({"k0": ["x"]}),
        // One past what canonical JSON keeps (RFC 8785).
        "parameters" => json!({"k0": {"a": 9_007_199_254_740_993_u64}}),
        _ => return bad(part.form),
    };
    if chance.percent(50) { entry } else { bad(part.form) }
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
    fleet: &'a Fleet,
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

    /// Runs the operator's command, and gives the answer that it prints.
    fn command(&self, words: &[&str]) -> Result<(u16, Value)> {
        let printed = self.fleet.stemma(&[&["--manager", SECOND, "--yes", "-o", "json"][..], words].concat())?;
        let answer = serde_json::from_str(&printed).with_context(|| printed.clone())?;
        Ok((200, answer))
    }

    /// The labels of the intent as words of a command.
    fn label_words(&self) -> Vec<String> {
        let labels = self.intent.get("labels").and_then(Value::as_object).into_iter().flatten();
        let word = |(key, value): (&String, &Value)| match value {
            Value::String(text) => format!("{key}={text}"),
            other => format!("{key}={other}"),
        };
        labels.map(word).collect()
    }

    fn create(&self, new: New, operator: &mut Operator) -> Result<(u16, Value)> {
        match new {
            New::Post => {
                let mut body = self.intent.clone();
                body.insert("name".to_owned(), self.name.as_str().into());
                operator.call("POST", &format!("{}?manager={SECOND}", self.written.path), JSON, &json!(body))
            }
            New::Apply => {
                let path = format!("/v1/apply?manager={SECOND}");
                operator.call("POST", &path, JSON, &self.manifest(self.intent.clone()))
            }
            New::Command => {
                let (kind, labels) = (self.written.kind.to_ascii_lowercase(), self.label_words());
                let mut words = vec!["create", kind.as_str()];
                words.extend(self.written.of.iter().map(|(_, value)| *value));
                words.push(&self.name);
                words.extend(labels.iter().flat_map(|label| ["--labels", label.as_str()]));
                self.command(&words)
            }
        }
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
            Told::ApplyCommand => {
                let file = self.fleet.dir().join("intent.json");
                std::fs::write(&file, self.manifest(self.applied())["objects"].to_string())?;
                self.command(&["apply", "--force", "-f", &file.to_string_lossy()])
            }
            Told::LabelCommand => {
                let of: String = self.written.of.iter().map(|(_, value)| format!("{value}/")).collect();
                let (subject, labels) =
                    (format!("{}/{of}{}", self.written.kind.to_ascii_lowercase(), self.name), self.label_words());
                let words: Vec<&str> = labels.iter().map(String::as_str).collect();
                self.command(&[&["label", subject.as_str(), "--overwrite"][..], &words[..]].concat())
            }
        }
    }

    /// What came of a write by this operation that was answered so.
    fn outcome(&self, operation: &str, (status, answer): (u16, Value), operator: &mut Operator) -> Result<Outcome> {
        if status >= 400 {
            let text = |field: &str| answer["error"][field].as_str().unwrap_or_default().to_owned();
            let field = text("field").trim_start_matches("objects[0].").to_owned();
            return Ok(Outcome::Refused { status, kind: text("type"), field });
        }
        let changes = answer.pointer("/objects/0/changes").or(answer.get("changes")).cloned().unwrap_or_default();
        let changes = changes.as_array().into_iter().flatten().map(Value::to_string).collect();
        let (_, object) = operator.get(&self.path())?;
        let owners = owners(&object, operation);
        let shown = |name: &String| {
            let provided = object.get(format!("provided_{name}")).unwrap_or(&object[name]);
            (name.clone(), provided.clone())
        };
        let names: BTreeSet<&String> = self.before.keys().chain(self.intent.keys()).collect();
        Ok(Outcome::Made { object: names.into_iter().map(shown).collect::<Map<_, _>>().into(), owners, changes })
    }
}

/// The owners of each field and key of an object. What the second manager owns by this operation is told without it, so that forms of either
/// operation are compared; by the other one it owns nothing.
fn owners(object: &Value, operation: &str) -> BTreeMap<String, BTreeSet<String>> {
    let own = format!("{SECOND}:{operation}");
    let mut owners = BTreeMap::new();
    for map in ["field_owners", "label_owners", "annotation_owners", "parameter_owners"] {
        for (name, all) in object[map].as_object().into_iter().flatten() {
            let told = |owner: &str| if owner == own { SECOND.to_owned() } else { owner.to_owned() };
            let all = all.as_array().into_iter().flatten().filter_map(Value::as_str).map(told).collect();
            owners.insert(format!("{map} {name}"), all);
        }
    }
    owners
}

const JSON: &str = "application/json";

/// Some fields of a kind with good values, or one with a bad one.
fn draw(chance: &mut Chance, parts: &[Part], before: &Map<String, Value>, is_bad: bool) -> Result<Map<String, Value>> {
    let mut intent = Map::new();
    for _ in 0..if is_bad { 1 } else { 1 + chance.below(3) } {
        let part = chance.one(parts);
        let value = if is_bad { bad_of(part, chance) } else { good(part, chance)? };
        let after = with_members(before.get(part.name), &value);
        // What stands already is shared by an apply and left alone by a plain write, as a default is that nobody gave.
        let is_default = [json!(false), json!(0), json!(""), json!({}), json!([])].contains(&value)
            && !before.contains_key(part.name);
        // Who applies labels says so that they merge.
        let implied = (part.name == "merge_labels" && before.contains_key("labels")).then_some(Value::Bool(true));
        if before.get(part.name).cloned().or(implied) != Some(after) && !is_default {
            intent.insert(part.name.to_owned(), value);
        }
    }
    Ok(intent)
}

/// What is drawn of a kind.
fn drawn_of(written: &Written) -> Result<Vec<Part>> {
    let kind = kinds().into_iter().find(|kind| kind.kind == written.kind).context(written.kind)?;
    let KindFields { parts, .. } = kind;
    Ok(parts.into_iter().filter(|part| !NOT_DRAWN.contains(&part.name)).collect())
}

/// Which fields a round writes, and whether it writes one with a bad value. Each third round is one of labels, which commands tell too; of
/// the others each fourth is bad.
fn turn(at: usize, mut parts: Vec<Part>) -> (Vec<Part>, bool) {
    let is_of_labels = at.is_multiple_of(3);
    if is_of_labels {
        parts.retain(|part| part.name == "labels");
    }
    (parts, at % 4 == 1 && !is_of_labels)
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
        let parts = drawn_of(written)?;
        let mut before = Map::new();
        for part in &parts {
            if chance.percent(30) {
                before.insert(part.name.to_owned(), good(part, &mut chance)?);
            }
        }
        let (parts, is_bad) = turn(at, parts);
        let intent = draw(&mut chance, &parts, &before, is_bad)?;
        let forms = Told::ALL.into_iter().filter(|told| intent.keys().all(|field| told.tells(written.kind, field)));
        let forms = forms.filter(|told| !told.is_of_map() || intent.len() == 1);
        let forms =
            forms.filter(|told| !told.is_command() || (!is_bad && (at.is_multiple_of(3) || at.is_multiple_of(5))));
        let mut first: Option<(Told, Outcome)> = None;
        for (nth, told) in forms.enumerate().filter(|_| !intent.is_empty()) {
            let name = format!("o{at}-{nth}");
            let round = Round { fleet: &fleet, written, name, before: before.clone(), intent: intent.clone() };
            round.make(&mut operator)?;
            let answer = round.tell(told, &mut operator)?;
            let outcome = round.outcome(told.operation(), answer, &mut operator)?;
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

#[test]
fn y05_a_new_object_is_the_same_in_each_form_that_makes_it() -> Result<()> {
    let (mut chance, fleet) = (Chance::seeded()?, Fleet::start()?);
    let mut operator = Operator::of(&fleet.data(), fleet.bound())?.without_versions();
    let cluster = json!({"objects": [{"kind": "Cluster", "name": "c"}]});
    ensure!(operator.call("POST", "/v1/apply", JSON, &cluster)?.0 == 200, "a cluster");
    let (mut compared, mut by_command) = (0, 0);
    for at in 0..if is_long() { 600 } else { 60 } {
        let written = chance.one(&WRITTEN);
        let (parts, is_bad) = turn(at, drawn_of(written)?);
        let intent = draw(&mut chance, &parts, &Map::new(), is_bad)?;
        let forms = New::ALL.into_iter().filter(|new| new.tells(written.kind, &intent));
        let mut first: Option<(New, Outcome)> = None;
        for (nth, new) in forms.filter(|new| *new != New::Command || !is_bad).enumerate() {
            let name = format!("n{at}-{nth}");
            let round = Round { fleet: &fleet, written, name, before: Map::new(), intent: intent.clone() };
            let answer = round.create(new, &mut operator)?;
            let outcome = round.outcome(new.operation(), answer, &mut operator)?;
            by_command += usize::from(new == New::Command);
            let Some((other, expected)) = &first else {
                first = Some((new, outcome));
                continue;
            };
            assert_eq!(outcome, *expected, "{new:?} and {other:?} of {}: {intent:?}", written.kind);
            compared += 1;
        }
    }
    ensure!(compared > 20 && by_command > 5, "{compared} compared, {by_command} of them made by the command");
    Ok(())
}

/// What is given to a node below its own path, and is in a manifest of it: by the calls, by the manifest and by the command.
#[test]
fn y05_traits_and_roles_are_given_alike_by_calls_manifests_and_commands() -> Result<()> {
    let fleet = Fleet::start()?;
    let mut operator = Operator::of(&fleet.data(), fleet.bound())?.without_versions();
    let nodes = [("call", "update"), ("manifest", "apply"), ("command", "update")];
    let objects = nodes.map(|(name, _)| json!({"kind": "Node", "name": name}));
    ensure!(operator.call("POST", "/v1/apply", JSON, &json!({"objects": objects}))?.0 == 200, "the nodes");
    let by = |path: &str| format!("{path}?manager={SECOND}");
    let node = json!({"kind": "Node", "name": "manifest", "traits": ["CUSTOM_A"], "roles": ["web"]});
    for (method, path, body) in [
        ("PUT", "/v1/nodes/call/traits", json!({"traits": ["CUSTOM_A"]})),
        ("POST", "/v1/nodes/call/roles", json!({"roles": ["web"]})),
        ("POST", "/v1/apply", json!({"objects": [node]})),
    ] {
        let (status, answer) = operator.call(method, &by(path), JSON, &body)?;
        ensure!(status == 200, "{path}: {status} {answer}");
    }
    for words in [["trait", "add", "command", "CUSTOM_A"], ["role", "add", "command", "web"]] {
        fleet.stemma(&[&["--manager", SECOND][..], &words[..]].concat())?;
    }
    let mut shown = Vec::new();
    for (name, operation) in nodes {
        let (_, object) = operator.get(&format!("/v1/nodes/{name}"))?;
        shown.push((object["traits"].clone(), object["roles"].clone(), owners(&object, operation)));
    }
    assert_eq!((&shown[0].0, &shown[0].1), (&json!(["CUSTOM_A"]), &json!(["web"])));
    assert_eq!((&shown[1], &shown[2]), (&shown[0], &shown[0]));
    Ok(())
}

/// Why a node is parked is stored with it, whoever says it how: it was in the audit alone where the command said it.
#[test]
fn y05_a_node_is_parked_with_its_reason_alike_by_call_manifest_and_command() -> Result<()> {
    let fleet = Fleet::start()?;
    let mut operator = Operator::of(&fleet.data(), fleet.bound())?.without_versions();
    let nodes = [("call", "update"), ("manifest", "apply"), ("command", "update")];
    let objects = nodes.map(|(name, _)| json!({"kind": "Node", "name": name}));
    ensure!(operator.call("POST", "/v1/apply", JSON, &json!({"objects": objects}))?.0 == 200, "the nodes");
    let node = json!({"kind": "Node", "name": "manifest", "parked": true, "maintenance_reason": "disk"});
    for (method, path, body, expected) in [
        ("PUT", "/v1/nodes/call/maintenance", json!({"reason": "disk"}), 202),
        ("POST", "/v1/apply", json!({"objects": [node]}), 200),
    ] {
        let (status, answer) = operator.call(method, &format!("{path}?manager={SECOND}"), JSON, &body)?;
        ensure!(status == expected, "{path}: {status} {answer}");
    }
    let by_command = |words: &[&str]| fleet.stemma(&[&["--manager", SECOND][..], words].concat());
    by_command(&["--reason", "disk", "node", "park", "command"])?;
    let mut shown = Vec::new();
    for (name, operation) in nodes {
        let (_, object) = operator.get(&format!("/v1/nodes/{name}"))?;
        shown.push((object["parked"].clone(), object["maintenance_reason"].clone(), owners(&object, operation)));
    }
    assert_eq!((&shown[0].0, &shown[0].1), (&json!(true), &json!("disk")));
    assert_eq!((&shown[1], &shown[2]), (&shown[0], &shown[0]));
    // A node that is parked already gets another reason, and keeps its own where the command says none.
    for (words, said) in [
        (&["--reason", "fan", "node", "park", "command"][..], "is parked\n"),
        (&["--reason", "fan", "node", "park", "command"], "is parked already\n"),
        (&["node", "park", "command"], "is parked already\n"),
    ] {
        let told = by_command(words)?;
        ensure!(told.ends_with(said), "{words:?}: {told}");
        assert_eq!(operator.get("/v1/nodes/command")?.1["maintenance_reason"], "fan", "{words:?}");
    }
    let described = fleet.stemma(&["describe", "node", "command"])?;
    let is_told = described.lines().any(|line| line.split_whitespace().eq(["maintenance_reason", "fan"]));
    ensure!(is_told, "{described}");
    by_command(&["node", "unpark", "command"])?;
    assert_eq!(operator.get("/v1/nodes/command")?.1["maintenance_reason"], Value::Null);
    Ok(())
}
