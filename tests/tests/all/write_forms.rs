//! Writes the same intent in every form: the requests and commands create the same object with the same owners, list
//! the same changes, and fail in the same way.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};
use stemma_core::field::{FieldDef, FieldType};
use stemma_core::manifest::{KindFields, kinds};
use stemma_tests::fleet::TempFleet;
use stemma_tests::operator::OperatorClient;
use stemma_tests::seed::{SeededRng, is_long};

/// The manager that created each object, and the manager that writes it now.
const FIRST_MANAGER: &str = "first";
const SECOND_MANAGER: &str = "second";

/// Fields that are not written. They name or place an object, refer to others, or are only read without a controller.
const EXCLUDED_FIELDS: [&str; 13] = [
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

/// Maps with an owner for each key.
const OWNED_MAPS: [&str; 3] = ["labels", "annotations", "parameters"];

/// A kind of objects to write: its path, and the fields that place an object in a manifest.
struct WritableKind {
    kind: &'static str,
    path: &'static str,
    name_fields: &'static [(&'static str, &'static str)],
}

const WRITABLE_KINDS: [WritableKind; 4] = [
    WritableKind { kind: "ClusterTemplate", path: "/v1/clustertemplates", name_fields: &[] },
    WritableKind { kind: "Cluster", path: "/v1/clusters", name_fields: &[] },
    WritableKind { kind: "NodeGroup", path: "/v1/clusters/c/nodegroups", name_fields: &[("cluster", "c")] },
    WritableKind { kind: "Node", path: "/v1/nodes", name_fields: &[] },
];

/// A form of a write to an existing object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteForm {
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

impl WriteForm {
    const ALL: [Self; 7] = [
        Self::MergePatch,
        Self::JsonPatch,
        Self::Apply,
        Self::ApplyPatch,
        Self::WholeMap,
        Self::ApplyCommand,
        Self::LabelCommand,
    ];

    /// Returns true for a command, which reports a refusal as text.
    fn is_command(self) -> bool {
        matches!(self, Self::ApplyCommand | Self::LabelCommand)
    }

    /// Returns the operation that owns the written fields: `apply` for a manifest, `update` for another command or call
    /// (`docs/manifests.md`).
    fn operation(self) -> &'static str {
        match self {
            Self::Apply | Self::ApplyPatch | Self::ApplyCommand => "apply",
            Self::MergePatch | Self::JsonPatch | Self::WholeMap | Self::LabelCommand => "update",
        }
    }

    /// Returns true if the form writes a single map.
    fn is_map_only(self) -> bool {
        matches!(self, Self::WholeMap | Self::LabelCommand)
    }

    /// Returns whether this form can set a field.
    fn supports(self, kind: &str, field: &str) -> bool {
        let is_map = OWNED_MAPS.contains(&field);
        match self {
            Self::Apply | Self::ApplyCommand => true,
            Self::LabelCommand => field == "labels",
            // Magnum's templates have no merge_labels.
            Self::MergePatch | Self::JsonPatch => kind != "ClusterTemplate" || field != "merge_labels",
            Self::ApplyPatch => is_map || (field == "merge_labels" && kind != "ClusterTemplate"),
            Self::WholeMap => is_map,
        }
    }
}

/// A form of creating an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CreateForm {
    Post,
    Apply,
    /// `stemma create`.
    Command,
}

impl CreateForm {
    const ALL: [Self; 3] = [Self::Post, Self::Apply, Self::Command];

    /// Returns the operation that owns the written fields.
    fn operation(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Post | Self::Command => "update",
        }
    }

    /// Returns whether this form can create an object with these fields.
    fn supports(self, kind: &str, intent: &Map<String, Value>) -> bool {
        let is_of_magnum = matches!(kind, "Cluster" | "NodeGroup");
        match self {
            Self::Apply => true,
            // Magnum's templates have no merge_labels. The labels of its other new objects do not merge unless the body
            // sets merge_labels.
            Self::Post if intent.contains_key("merge_labels") => kind != "ClusterTemplate",
            Self::Post => !(is_of_magnum && intent.contains_key("labels")),
            Self::Command => intent.keys().eq(["labels"]),
        }
    }
}

/// The result of a write.
#[derive(Debug, PartialEq)]
enum WriteResult {
    /// The object after the write, the owners of its fields, and the changes in the response.
    Made { object: Value, owners: BTreeMap<String, BTreeSet<String>>, changes: BTreeSet<String> },
    /// The status and type of the error, and the field that it names.
    Refused { status: u16, kind: String, field: String },
}

/// Returns a random valid value for a field, from several if its form allows that.
fn valid_value(part: &FieldDef, chance: &mut SeededRng) -> Result<Value> {
    let number = chance.next_below(1_000);
    Ok(match part.field_type.plain() {
        FieldType::Flag => chance.is_within_percent(50).into(),
        FieldType::Seconds(..) => (1 + number).into(),
        FieldType::Count if part.name.ends_with("seconds") || part.name.ends_with("timeout") => number.into(),
        FieldType::Text if part.name == "description" && number < 250 => "".into(),
        FieldType::Text if part.name == "description" => format!("text {number}").into(),
        FieldType::OneOf(words) => (*chance.choose(words)).into(),
        FieldType::Map if part.name == "labels" || part.name == "annotations" => {
            let value = [json!("1"), json!(1.50), json!(true)][number % 3].clone();
            json!({format!("k{}", number % 5): value})
        }
        FieldType::Map | FieldType::Parameters => {
            json!({format!("k{}", number % 5): {"a": number, format!("b{number}"): [1.5, null]}})
        }
        _ => serde_json::from_str(part.help.example).context(part.name)?,
    })
}

/// Returns a value whose JSON type is invalid for the form.
fn wrong_type_value(form: FieldType) -> Value {
    match form.plain() {
        FieldType::Flag
        | FieldType::Map
        | FieldType::MapOf(_)
        | FieldType::Parameters
        | FieldType::Object(_)
        | FieldType::MapOrList => {
            json!("perhaps")
        }
        FieldType::Seconds(..) | FieldType::Count | FieldType::Number | FieldType::Share | FieldType::OneOf(_) => {
            json!("no such")
        }
        FieldType::Text | FieldType::Time | FieldType::TextOrList => json!({"a": 1}),
        FieldType::Names | FieldType::ListOf(_) | FieldType::Objects => json!(5),
        FieldType::Any | FieldType::UpTo(..) => json!([]),
    }
}

/// Returns an invalid value for a field: of a wrong type, or a map with an invalid entry.
fn invalid_value(part: &FieldDef, chance: &mut SeededRng) -> Value {
    let entry = match part.name {
        "labels" | "annotations" => json!({"k0": ["x"]}),
        // The first integer that canonical JSON cannot represent exactly (RFC 8785).
        "parameters" => json!({"k0": {"a": 9_007_199_254_740_993_u64}}),
        _ => return wrong_type_value(part.field_type),
    };
    if chance.is_within_percent(50) { entry } else { wrong_type_value(part.field_type) }
}

/// Merges the members of an object at every depth. Any other value replaces the previous one.
fn merge_members(before: Option<&Value>, more: &Value) -> Value {
    let (Some(Value::Object(before)), Value::Object(more)) = (before, more) else { return more.clone() };
    let mut after = before.clone();
    for (name, value) in more {
        after.insert(name.clone(), merge_members(before.get(name), value));
    }
    after.into()
}

/// One round: an object that the first manager created, and the intent that the second one writes.
struct WriteRound<'a> {
    fleet: &'a TempFleet,
    kind: &'a WritableKind,
    name: String,
    before: Map<String, Value>,
    intent: Map<String, Value>,
}

impl WriteRound<'_> {
    fn path(&self) -> String {
        format!("{}/{}", self.kind.path, self.name)
    }

    fn manifest(&self, fields: Map<String, Value>) -> Value {
        let mut object = json!({"kind": self.kind.kind, "name": self.name});
        let of = self.kind.name_fields.iter().map(|(field, value)| ((*field).to_owned(), Value::from(*value)));
        object.as_object_mut().expect("an object").extend(of.chain(fields));
        json!({"objects": [object]})
    }

    /// Returns the fields of the intent, with their values after the write.
    fn expected_fields(&self) -> Map<String, Value> {
        let after = |(name, value): (&String, &Value)| (name.clone(), merge_members(self.before.get(name), value));
        self.intent.iter().map(after).collect()
    }

    /// Returns the same without existing keys of the owned maps, because an apply would share their ownership.
    fn applied_fields(&self) -> Map<String, Value> {
        let mut after = self.expected_fields();
        for (name, value) in after.iter_mut().filter(|(name, _)| OWNED_MAPS.contains(&name.as_str())) {
            let meant = self.intent.get(name).and_then(Value::as_object);
            if let (Some(value), Some(meant)) = (value.as_object_mut(), meant) {
                value.retain(|key, _| meant.contains_key(key));
            }
        }
        after
    }

    /// Runs the operator's command. Returns the response that it prints.
    fn run_command(&self, words: &[&str]) -> Result<(u16, Value)> {
        let printed = self.fleet.stemma(&[&["--manager", SECOND_MANAGER, "--yes", "-o", "json"][..], words].concat())?;
        let answer = serde_json::from_str(&printed).with_context(|| printed.clone())?;
        Ok((200, answer))
    }

    /// Returns the labels of the intent as arguments of a command.
    fn label_words(&self) -> Vec<String> {
        let labels = self.intent.get("labels").and_then(Value::as_object).into_iter().flatten();
        let word = |(key, value): (&String, &Value)| match value {
            Value::String(text) => format!("{key}={text}"),
            other => format!("{key}={other}"),
        };
        labels.map(word).collect()
    }

    fn create(&self, new: CreateForm, operator: &mut OperatorClient) -> Result<(u16, Value)> {
        match new {
            CreateForm::Post => {
                let mut body = self.intent.clone();
                body.insert("name".to_owned(), self.name.as_str().into());
                operator.send_typed("POST", &format!("{}?manager={SECOND_MANAGER}", self.kind.path), JSON_TYPE, &json!(body))
            }
            CreateForm::Apply => {
                let path = format!("/v1/apply?manager={SECOND_MANAGER}");
                operator.send_typed("POST", &path, JSON_TYPE, &self.manifest(self.intent.clone()))
            }
            CreateForm::Command => {
                let (kind, labels) = (self.kind.kind.to_ascii_lowercase(), self.label_words());
                let mut words = vec!["create", kind.as_str()];
                words.extend(self.kind.name_fields.iter().map(|(_, value)| *value));
                words.push(&self.name);
                words.extend(labels.iter().flat_map(|label| ["--labels", label.as_str()]));
                self.run_command(&words)
            }
        }
    }

    fn create_object(&self, operator: &mut OperatorClient) -> Result<()> {
        let body = self.manifest(self.before.clone());
        let (status, answer) = operator.send_typed("POST", &format!("/v1/apply?manager={FIRST_MANAGER}"), JSON_TYPE, &body)?;
        ensure!(status == 200, "{status} {answer} {body}");
        Ok(())
    }

    fn write_intent(&self, told: WriteForm, operator: &mut OperatorClient) -> Result<(u16, Value)> {
        let at = |below: &str, more: &str| format!("{}{below}?manager={SECOND_MANAGER}{more}", self.path());
        match told {
            WriteForm::MergePatch => {
                operator.send_typed("PATCH", &at("", ""), "application/merge-patch+json", &json!(self.intent))
            }
            WriteForm::JsonPatch => {
                let operation = |(name, value): (String, Value)| {
                    let verb = if self.before.contains_key(&name) { "replace" } else { "add" };
                    json!({"op": verb, "path": format!("/{name}"), "value": value})
                };
                let operations: Vec<Value> = self.expected_fields().into_iter().map(operation).collect();
                operator.send_typed("PATCH", &at("", ""), "application/json-patch+json", &json!(operations))
            }
            WriteForm::Apply => {
                let path = format!("/v1/apply?manager={SECOND_MANAGER}&force=true");
                operator.send_typed("POST", &path, JSON_TYPE, &self.manifest(self.applied_fields()))
            }
            WriteForm::ApplyPatch => operator.send_typed(
                "PATCH",
                &at("", "&force=true"),
                "application/apply-patch+json",
                &json!(self.applied_fields()),
            ),
            WriteForm::WholeMap => {
                let (name, map) = self.expected_fields().into_iter().next().context("a map")?;
                operator.send_typed("PUT", &at(&format!("/{name}"), ""), JSON_TYPE, &json!({name: map}))
            }
            WriteForm::ApplyCommand => {
                let file = self.fleet.dir().join("intent.json");
                std::fs::write(&file, self.manifest(self.applied_fields())["objects"].to_string())?;
                self.run_command(&["apply", "--force", "-f", &file.to_string_lossy()])
            }
            WriteForm::LabelCommand => {
                let of: String = self.kind.name_fields.iter().map(|(_, value)| format!("{value}/")).collect();
                let (subject, labels) =
                    (format!("{}/{of}{}", self.kind.kind.to_ascii_lowercase(), self.name), self.label_words());
                let words: Vec<&str> = labels.iter().map(String::as_str).collect();
                self.run_command(&[&["label", subject.as_str(), "--overwrite"][..], &words[..]].concat())
            }
        }
    }

    /// Returns the result of a write with this operation and response.
    fn outcome(&self, operation: &str, (status, answer): (u16, Value), operator: &mut OperatorClient) -> Result<WriteResult> {
        if status >= 400 {
            let text = |field: &str| answer["error"][field].as_str().unwrap_or_default().to_owned();
            let field = text("field").trim_start_matches("objects[0].").to_owned();
            return Ok(WriteResult::Refused { status, kind: text("type"), field });
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
        Ok(WriteResult::Made { object: names.into_iter().map(shown).collect::<Map<_, _>>().into(), owners, changes })
    }
}

/// Returns the owners of each field and key of an object. The second manager is listed without `operation`, so that
/// forms with different operations can be compared. Ownership by the other operation would show up as a difference.
fn owners(object: &Value, operation: &str) -> BTreeMap<String, BTreeSet<String>> {
    let own = format!("{SECOND_MANAGER}:{operation}");
    let mut owners = BTreeMap::new();
    for map in ["field_owners", "label_owners", "annotation_owners", "parameter_owners"] {
        for (name, all) in object[map].as_object().into_iter().flatten() {
            let told = |owner: &str| if owner == own { SECOND_MANAGER.to_owned() } else { owner.to_owned() };
            let all = all.as_array().into_iter().flatten().filter_map(Value::as_str).map(told).collect();
            owners.insert(format!("{map} {name}"), all);
        }
    }
    owners
}

const JSON_TYPE: &str = "application/json";

/// Returns some fields of a kind with valid values, or one field with an invalid one.
fn draw_fields(
    chance: &mut SeededRng,
    parts: &[FieldDef],
    before: &Map<String, Value>,
    is_bad: bool,
) -> Result<Map<String, Value>> {
    let mut intent = Map::new();
    for _ in 0..if is_bad { 1 } else { 1 + chance.next_below(3) } {
        let part = chance.choose(parts);
        let value = if is_bad { invalid_value(part, chance) } else { valid_value(part, chance)? };
        let after = merge_members(before.get(part.name), &value);
        // An existing value is shared by an apply but left alone by a plain write. The same holds for a default that
        // nobody set.
        let is_default =
            [json!(false), json!(0), json!(""), json!({}), json!([])].contains(&value) && !before.contains_key(part.name);
        // An apply of labels implies merge_labels.
        let implied = (part.name == "merge_labels" && before.contains_key("labels")).then_some(Value::Bool(true));
        if before.get(part.name).cloned().or(implied) != Some(after) && !is_default {
            intent.insert(part.name.to_owned(), value);
        }
    }
    Ok(intent)
}

/// Returns the fields of a kind that are written.
fn drawn_fields(written: &WritableKind) -> Result<Vec<FieldDef>> {
    let kind = kinds().into_iter().find(|kind| kind.kind == written.kind).context(written.kind)?;
    let KindFields { fields: parts, .. } = kind;
    Ok(parts.into_iter().filter(|part| !EXCLUDED_FIELDS.contains(&part.name)).collect())
}

/// Selects the fields of a round, and whether its value is invalid. Every third round writes labels, which commands can
/// write too. Of the other rounds, every fourth is invalid.
fn round_fields(at: usize, mut parts: Vec<FieldDef>) -> (Vec<FieldDef>, bool) {
    let is_of_labels = at.is_multiple_of(3);
    if is_of_labels {
        parts.retain(|part| part.name == "labels");
    }
    (parts, at % 4 == 1 && !is_of_labels)
}

#[test]
fn y05_write_forms_produce_same_object_for_same_intent() -> Result<()> {
    let (mut chance, fleet) = (SeededRng::from_env()?, TempFleet::start()?);
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?.without_versions();
    let cluster = json!({"objects": [{"kind": "Cluster", "name": "c"}]});
    ensure!(operator.send_typed("POST", "/v1/apply", JSON_TYPE, &cluster)?.0 == 200, "a cluster");
    let (mut compared, mut refused) = (0, 0);
    for at in 0..if is_long() { 2_000 } else { 120 } {
        let written = chance.choose(&WRITABLE_KINDS);
        let parts = drawn_fields(written)?;
        let mut before = Map::new();
        for part in &parts {
            if chance.is_within_percent(30) {
                before.insert(part.name.to_owned(), valid_value(part, &mut chance)?);
            }
        }
        let (parts, is_bad) = round_fields(at, parts);
        let intent = draw_fields(&mut chance, &parts, &before, is_bad)?;
        let forms = WriteForm::ALL.into_iter().filter(|told| intent.keys().all(|field| told.supports(written.kind, field)));
        let forms = forms.filter(|told| !told.is_map_only() || intent.len() == 1);
        let forms = forms.filter(|told| !told.is_command() || (!is_bad && (at.is_multiple_of(3) || at.is_multiple_of(5))));
        let mut first: Option<(WriteForm, WriteResult)> = None;
        for (nth, told) in forms.enumerate().filter(|_| !intent.is_empty()) {
            let name = format!("o{at}-{nth}");
            let round = WriteRound { fleet: &fleet, kind: written, name, before: before.clone(), intent: intent.clone() };
            round.create_object(&mut operator)?;
            let answer = round.write_intent(told, &mut operator)?;
            let outcome = round.outcome(told.operation(), answer, &mut operator)?;
            let Some((other, expected)) = &first else {
                first = Some((told, outcome));
                continue;
            };
            assert_eq!(outcome, *expected, "{told:?} and {other:?} of {} {before:?}: {intent:?}", written.kind);
            compared += 1;
            refused += usize::from(matches!(outcome, WriteResult::Refused { .. }));
        }
    }
    ensure!(compared > 100 && refused > 10, "{compared} compared, {refused} of them refused");
    Ok(())
}

#[test]
fn y05_create_forms_produce_same_object() -> Result<()> {
    let (mut chance, fleet) = (SeededRng::from_env()?, TempFleet::start()?);
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?.without_versions();
    let cluster = json!({"objects": [{"kind": "Cluster", "name": "c"}]});
    ensure!(operator.send_typed("POST", "/v1/apply", JSON_TYPE, &cluster)?.0 == 200, "a cluster");
    let (mut compared, mut by_command) = (0, 0);
    for at in 0..if is_long() { 600 } else { 60 } {
        let written = chance.choose(&WRITABLE_KINDS);
        let (parts, is_bad) = round_fields(at, drawn_fields(written)?);
        let intent = draw_fields(&mut chance, &parts, &Map::new(), is_bad)?;
        let forms = CreateForm::ALL.into_iter().filter(|new| new.supports(written.kind, &intent));
        let mut first: Option<(CreateForm, WriteResult)> = None;
        for (nth, new) in forms.filter(|new| *new != CreateForm::Command || !is_bad).enumerate() {
            let name = format!("n{at}-{nth}");
            let round = WriteRound { fleet: &fleet, kind: written, name, before: Map::new(), intent: intent.clone() };
            let answer = round.create(new, &mut operator)?;
            let outcome = round.outcome(new.operation(), answer, &mut operator)?;
            by_command += usize::from(new == CreateForm::Command);
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

/// Traits and roles can be set on the node's sub-paths and in its manifest: by calls, the manifest and the command.
#[test]
fn y05_traits_and_roles_are_equal_in_each_write_form() -> Result<()> {
    let fleet = TempFleet::start()?;
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?.without_versions();
    let nodes = [("call", "update"), ("manifest", "apply"), ("command", "update")];
    let objects = nodes.map(|(name, _)| json!({"kind": "Node", "name": name}));
    ensure!(operator.send_typed("POST", "/v1/apply", JSON_TYPE, &json!({"objects": objects}))?.0 == 200, "the nodes");
    let by = |path: &str| format!("{path}?manager={SECOND_MANAGER}");
    let node = json!({"kind": "Node", "name": "manifest", "traits": ["CUSTOM_A"], "roles": ["web"]});
    for (method, path, body) in [
        ("PUT", "/v1/nodes/call/traits", json!({"traits": ["CUSTOM_A"]})),
        ("POST", "/v1/nodes/call/roles", json!({"roles": ["web"]})),
        ("POST", "/v1/apply", json!({"objects": [node]})),
    ] {
        let (status, answer) = operator.send_typed(method, &by(path), JSON_TYPE, &body)?;
        ensure!(status == 200, "{path}: {status} {answer}");
    }
    for words in [["trait", "add", "command", "CUSTOM_A"], ["role", "add", "command", "web"]] {
        fleet.stemma(&[&["--manager", SECOND_MANAGER][..], &words[..]].concat())?;
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

/// The reason for parking is stored with the node in every form. Previously, the command wrote it to the audit only.
#[test]
fn y05_park_keeps_reason_in_each_write_form() -> Result<()> {
    let fleet = TempFleet::start()?;
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?.without_versions();
    let nodes = [("call", "update"), ("manifest", "apply"), ("command", "update")];
    let objects = nodes.map(|(name, _)| json!({"kind": "Node", "name": name}));
    ensure!(operator.send_typed("POST", "/v1/apply", JSON_TYPE, &json!({"objects": objects}))?.0 == 200, "the nodes");
    let node = json!({"kind": "Node", "name": "manifest", "parked": true, "maintenance_reason": "disk"});
    for (method, path, body, expected) in [
        ("PUT", "/v1/nodes/call/maintenance", json!({"reason": "disk"}), 202),
        ("POST", "/v1/apply", json!({"objects": [node]}), 200),
    ] {
        let (status, answer) = operator.send_typed(method, &format!("{path}?manager={SECOND_MANAGER}"), JSON_TYPE, &body)?;
        ensure!(status == expected, "{path}: {status} {answer}");
    }
    let by_command = |words: &[&str]| fleet.stemma(&[&["--manager", SECOND_MANAGER][..], words].concat());
    by_command(&["--reason", "disk", "node", "park", "command"])?;
    let mut shown = Vec::new();
    for (name, operation) in nodes {
        let (_, object) = operator.get(&format!("/v1/nodes/{name}"))?;
        shown.push((object["parked"].clone(), object["maintenance_reason"].clone(), owners(&object, operation)));
    }
    assert_eq!((&shown[0].0, &shown[0].1), (&json!(true), &json!("disk")));
    assert_eq!((&shown[1], &shown[2]), (&shown[0], &shown[0]));
    // A node that is already parked gets the new reason, and retains its reason if the command has none.
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
