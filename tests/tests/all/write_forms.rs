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

/// The manager that creates an object before the second manager writes the object.
const FIRST_MANAGER: &str = "first";
/// The manager of the writes and creations that are compared.
const SECOND_MANAGER: &str = "second";

/// Fields that the tests with random fields do not write. Most of them name or place an object, refer to other objects,
/// or are only for commands without a controller. A separate test writes `traits` and `roles`.
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

/// Fields that are maps with an owner for each key.
const OWNED_MAPS: [&str; 3] = ["labels", "annotations", "parameters"];

/// A kind of objects that the tests write: its path, and the fields of a manifest that place an object.
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

/// A way to write an existing object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteForm {
    /// `PATCH` with a JSON merge patch.
    MergePatch,
    /// `PATCH` with a JSON patch.
    JsonPatch,
    /// `POST /v1/apply` with a manifest.
    Apply,
    /// `PATCH` of the object with a manifest of its fields.
    ApplyPatch,
    /// `PUT` of one map of the object.
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

    /// Returns whether the form is a command. A command prints a refusal as text, so refusals are not compared.
    fn is_command(self) -> bool {
        matches!(self, Self::ApplyCommand | Self::LabelCommand)
    }

    /// Returns the operation in the owner of a written field, such as `second:apply`. It is `apply` for a manifest, and
    /// `update` for any other command or call (`docs/manifests.md`).
    fn operation(self) -> &'static str {
        match self {
            Self::Apply | Self::ApplyPatch | Self::ApplyCommand => "apply",
            Self::MergePatch | Self::JsonPatch | Self::WholeMap | Self::LabelCommand => "update",
        }
    }

    /// Returns whether the form writes only a single map.
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

/// A way to create an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CreateForm {
    Post,
    Apply,
    /// `stemma create`.
    Command,
}

impl CreateForm {
    const ALL: [Self; 3] = [Self::Post, Self::Apply, Self::Command];

    /// Returns the operation in the owner of a written field, such as `second:apply`.
    fn operation(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Post | Self::Command => "update",
        }
    }

    /// Returns whether this form can create the same object as an apply of the fields of `intent`.
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
    Accepted { object: Value, owners: BTreeMap<String, BTreeSet<String>>, changes: BTreeSet<String> },
    /// The status and type of the error, and the field that it names.
    Refused { status: u16, kind: String, field: String },
}

/// Returns a valid value for a field. The value is random for a description, flags, durations, fields that accept one
/// of several texts, maps and parameters. For any other field, it is the example of the documentation.
fn valid_value(field: &FieldDef, rng: &mut SeededRng) -> Result<Value> {
    let number = rng.next_below(1_000);
    Ok(match field.field_type.plain() {
        FieldType::Flag => rng.is_within_percent(50).into(),
        FieldType::Seconds(..) => (1 + number).into(),
        FieldType::Count if field.name.ends_with("seconds") || field.name.ends_with("timeout") => number.into(),
        FieldType::Text if field.name == "description" && number < 250 => "".into(),
        FieldType::Text if field.name == "description" => format!("text {number}").into(),
        FieldType::OneOf(words) => (*rng.choose(words)).into(),
        FieldType::Map if field.name == "labels" || field.name == "annotations" => {
            let value = [json!("1"), json!(1.50), json!(true)][number % 3].clone();
            json!({format!("k{}", number % 5): value})
        }
        FieldType::Map | FieldType::Parameters => {
            json!({format!("k{}", number % 5): {"a": number, format!("b{number}"): [1.5, null]}})
        }
        _ => serde_json::from_str(field.help.example).context(field.name)?,
    })
}

/// Returns a value that is invalid for a field of this type. If the type accepts any JSON value, the result is valid.
fn wrong_type_value(field_type: FieldType) -> Value {
    match field_type.plain() {
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
fn invalid_value(field: &FieldDef, rng: &mut SeededRng) -> Value {
    let entry = match field.name {
        "labels" | "annotations" => json!({"k0": ["x"]}),
        // The first integer that canonical JSON cannot represent exactly (RFC 8785).
        "parameters" => json!({"k0": {"a": 9_007_199_254_740_993_u64}}),
        _ => return wrong_type_value(field.field_type),
    };
    if rng.is_within_percent(50) { entry } else { wrong_type_value(field.field_type) }
}

/// Returns `earlier` with the members of `addition`, merged at every depth. A value that is not an object replaces the
/// earlier value.
fn merge_members(earlier: Option<&Value>, addition: &Value) -> Value {
    let (Some(Value::Object(earlier)), Value::Object(addition)) = (earlier, addition) else { return addition.clone() };
    let mut merged = earlier.clone();
    for (name, value) in addition {
        merged.insert(name.clone(), merge_members(earlier.get(name), value));
    }
    merged.into()
}

/// One write of a test: an object, the fields with which it was created, and the fields that the second manager writes.
struct WriteRound<'a> {
    fleet: &'a TempFleet,
    kind: &'a WritableKind,
    name: String,
    /// The fields with which the first manager created the object. Empty if the second manager creates it.
    created_fields: Map<String, Value>,
    /// The fields that the second manager writes.
    intent: Map<String, Value>,
}

impl WriteRound<'_> {
    /// Returns the path of the object.
    fn path(&self) -> String {
        format!("{}/{}", self.kind.path, self.name)
    }

    /// Returns the body of an apply of the object with these fields.
    fn manifest(&self, fields: Map<String, Value>) -> Value {
        let mut object = json!({"kind": self.kind.kind, "name": self.name});
        let name_fields = self.kind.name_fields.iter().map(|(field, value)| ((*field).to_owned(), Value::from(*value)));
        object.as_object_mut().expect("an object").extend(name_fields.chain(fields));
        json!({"objects": [object]})
    }

    /// Returns the fields of the intent, each with the value that it must have after the write.
    fn expected_fields(&self) -> Map<String, Value> {
        let merged_field = |(name, value): (&String, &Value)| (name.clone(), merge_members(self.created_fields.get(name), value));
        self.intent.iter().map(merged_field).collect()
    }

    /// Returns the fields that a manifest of the intent must contain. They are the expected fields, but the maps with
    /// owners have only the keys of the intent: an apply of the other keys would share their ownership.
    fn applied_fields(&self) -> Map<String, Value> {
        let mut fields = self.expected_fields();
        for (name, value) in fields.iter_mut().filter(|(name, _)| OWNED_MAPS.contains(&name.as_str())) {
            let intended = self.intent.get(name).and_then(Value::as_object);
            if let (Some(value), Some(intended)) = (value.as_object_mut(), intended) {
                value.retain(|key, _| intended.contains_key(key));
            }
        }
        fields
    }

    /// Runs `stemma` as the second manager. Returns status 200 and the response that the command prints.
    fn run_command(&self, words: &[&str]) -> Result<(u16, Value)> {
        let output = self.fleet.stemma(&[&["--manager", SECOND_MANAGER, "--yes", "-o", "json"][..], words].concat())?;
        let answer = serde_json::from_str(&output).with_context(|| output.clone())?;
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

    /// Creates the object with the intent in this form, as the second manager. Returns the status and the answer.
    fn create_with_intent(&self, form: CreateForm, operator: &mut OperatorClient) -> Result<(u16, Value)> {
        match form {
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

    /// Creates the object as the first manager.
    fn create_as_first_manager(&self, operator: &mut OperatorClient) -> Result<()> {
        let body = self.manifest(self.created_fields.clone());
        let (status, answer) = operator.send_typed("POST", &format!("/v1/apply?manager={FIRST_MANAGER}"), JSON_TYPE, &body)?;
        ensure!(status == 200, "{status} {answer} {body}");
        Ok(())
    }

    /// Writes the intent to the existing object in this form, as the second manager. Returns the status and the answer.
    fn write_intent(&self, form: WriteForm, operator: &mut OperatorClient) -> Result<(u16, Value)> {
        let url = |suffix: &str, options: &str| format!("{}{suffix}?manager={SECOND_MANAGER}{options}", self.path());
        match form {
            WriteForm::MergePatch => {
                operator.send_typed("PATCH", &url("", ""), "application/merge-patch+json", &json!(self.intent))
            }
            WriteForm::JsonPatch => {
                let operation = |(name, value): (String, Value)| {
                    let verb = if self.created_fields.contains_key(&name) { "replace" } else { "add" };
                    json!({"op": verb, "path": format!("/{name}"), "value": value})
                };
                let operations: Vec<Value> = self.expected_fields().into_iter().map(operation).collect();
                operator.send_typed("PATCH", &url("", ""), "application/json-patch+json", &json!(operations))
            }
            WriteForm::Apply => {
                let path = format!("/v1/apply?manager={SECOND_MANAGER}&force=true");
                operator.send_typed("POST", &path, JSON_TYPE, &self.manifest(self.applied_fields()))
            }
            WriteForm::ApplyPatch => operator.send_typed(
                "PATCH",
                &url("", "&force=true"),
                "application/apply-patch+json",
                &json!(self.applied_fields()),
            ),
            WriteForm::WholeMap => {
                let (name, map) = self.expected_fields().into_iter().next().context("a map")?;
                operator.send_typed("PUT", &url(&format!("/{name}"), ""), JSON_TYPE, &json!({name: map}))
            }
            WriteForm::ApplyCommand => {
                let file = self.fleet.dir().join("intent.json");
                std::fs::write(&file, self.manifest(self.applied_fields())["objects"].to_string())?;
                self.run_command(&["apply", "--force", "-f", &file.to_string_lossy()])
            }
            WriteForm::LabelCommand => {
                let place: String = self.kind.name_fields.iter().map(|(_, value)| format!("{value}/")).collect();
                let (subject, labels) =
                    (format!("{}/{place}{}", self.kind.kind.to_ascii_lowercase(), self.name), self.label_words());
                let words: Vec<&str> = labels.iter().map(String::as_str).collect();
                self.run_command(&[&["label", subject.as_str(), "--overwrite"][..], &words[..]].concat())
            }
        }
    }

    /// Returns the result of a write from its response, and from the object that the controller has now. `operation` is
    /// the operation in the owner of a written field: `apply` or `update`.
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
        let provided_field = |name: &String| {
            let provided = object.get(format!("provided_{name}")).unwrap_or(&object[name]);
            (name.clone(), provided.clone())
        };
        let names: BTreeSet<&String> = self.created_fields.keys().chain(self.intent.keys()).collect();
        Ok(WriteResult::Accepted { object: names.into_iter().map(provided_field).collect::<Map<_, _>>().into(), owners, changes })
    }
}

/// Returns the owners of each field and key of an object. The second manager is listed without `operation`, so that
/// forms with different operations can be compared. Ownership by the other operation would show up as a difference.
fn owners(object: &Value, operation: &str) -> BTreeMap<String, BTreeSet<String>> {
    let second_owner = format!("{SECOND_MANAGER}:{operation}");
    let mut owners = BTreeMap::new();
    for map in ["field_owners", "label_owners", "annotation_owners", "parameter_owners"] {
        for (name, managers) in object[map].as_object().into_iter().flatten() {
            let without_operation =
                |owner: &str| if owner == second_owner { SECOND_MANAGER.to_owned() } else { owner.to_owned() };
            let managers = managers.as_array().into_iter().flatten().filter_map(Value::as_str).map(without_operation).collect();
            owners.insert(format!("{map} {name}"), managers);
        }
    }
    owners
}

const JSON_TYPE: &str = "application/json";

/// Draws an intent: up to three fields with valid values, or one field with an invalid value if `is_invalid` is true. A
/// value that would change nothing is omitted, because the forms differ in its ownership.
fn draw_fields(
    rng: &mut SeededRng,
    fields: &[FieldDef],
    existing: &Map<String, Value>,
    is_invalid: bool,
) -> Result<Map<String, Value>> {
    let mut intent = Map::new();
    for _ in 0..if is_invalid { 1 } else { 1 + rng.next_below(3) } {
        let field = rng.choose(fields);
        let value = if is_invalid { invalid_value(field, rng) } else { valid_value(field, rng)? };
        let merged = merge_members(existing.get(field.name), &value);
        // An apply of an existing value shares its ownership, and another write of the value does not. The same applies
        // to a default value that no manager has set.
        let is_default =
            [json!(false), json!(0), json!(""), json!({}), json!([])].contains(&value) && !existing.contains_key(field.name);
        // If labels were applied, merge_labels is true without having been written.
        let implied_value = (field.name == "merge_labels" && existing.contains_key("labels")).then_some(Value::Bool(true));
        if existing.get(field.name).cloned().or(implied_value) != Some(merged) && !is_default {
            intent.insert(field.name.to_owned(), value);
        }
    }
    Ok(intent)
}

/// Returns the fields of a kind that the tests write.
fn writable_fields(writable: &WritableKind) -> Result<Vec<FieldDef>> {
    let kind = kinds().into_iter().find(|kind| kind.kind == writable.kind).context(writable.kind)?;
    let KindFields { fields: field_defs, .. } = kind;
    Ok(field_defs.into_iter().filter(|field| !EXCLUDED_FIELDS.contains(&field.name)).collect())
}

/// Returns the fields from which a round draws, and whether the round writes an invalid value. Every third round writes
/// only labels, because commands can write them too. Of the other rounds, about every fourth is invalid.
fn round_fields(round: usize, mut fields: Vec<FieldDef>) -> (Vec<FieldDef>, bool) {
    let is_label_round = round.is_multiple_of(3);
    if is_label_round {
        fields.retain(|field| field.name == "labels");
    }
    (fields, round % 4 == 1 && !is_label_round)
}

#[test]
fn y05_write_forms_produce_same_object_for_same_intent() -> Result<()> {
    let (mut rng, fleet) = (SeededRng::from_env()?, TempFleet::start()?);
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?.without_versions();
    let cluster = json!({"objects": [{"kind": "Cluster", "name": "c"}]});
    ensure!(operator.send_typed("POST", "/v1/apply", JSON_TYPE, &cluster)?.0 == 200, "a cluster");
    let (mut compared_count, mut refused_count) = (0, 0);
    for round_number in 0..if is_long() { 2_000 } else { 120 } {
        let writable = rng.choose(&WRITABLE_KINDS);
        let fields = writable_fields(writable)?;
        let mut created_fields = Map::new();
        for field_def in &fields {
            if rng.is_within_percent(30) {
                created_fields.insert(field_def.name.to_owned(), valid_value(field_def, &mut rng)?);
            }
        }
        let (fields, is_invalid) = round_fields(round_number, fields);
        let intent = draw_fields(&mut rng, &fields, &created_fields, is_invalid)?;
        let forms = WriteForm::ALL.into_iter().filter(|form| intent.keys().all(|field| form.supports(writable.kind, field)));
        let forms = forms.filter(|form| !form.is_map_only() || intent.len() == 1);
        let forms = forms.filter(|form| {
            !form.is_command() || (!is_invalid && (round_number.is_multiple_of(3) || round_number.is_multiple_of(5)))
        });
        let mut first_result: Option<(WriteForm, WriteResult)> = None;
        for (form_number, form) in forms.enumerate().filter(|_| !intent.is_empty()) {
            let name = format!("o{round_number}-{form_number}");
            let round = WriteRound {
                fleet: &fleet,
                kind: writable,
                name,
                created_fields: created_fields.clone(),
                intent: intent.clone(),
            };
            round.create_as_first_manager(&mut operator)?;
            let answer = round.write_intent(form, &mut operator)?;
            let outcome = round.outcome(form.operation(), answer, &mut operator)?;
            let Some((first_form, expected)) = &first_result else {
                first_result = Some((form, outcome));
                continue;
            };
            assert_eq!(outcome, *expected, "{form:?} and {first_form:?} of {} {created_fields:?}: {intent:?}", writable.kind);
            compared_count += 1;
            refused_count += usize::from(matches!(outcome, WriteResult::Refused { .. }));
        }
    }
    ensure!(compared_count > 100 && refused_count > 10, "{compared_count} compared, {refused_count} of them refused");
    Ok(())
}

/// Creates objects with the same random fields in each form. The stored objects, their owners, the changes in the
/// responses and the refusals must be equal.
#[test]
fn y05_create_forms_produce_same_object() -> Result<()> {
    let (mut rng, fleet) = (SeededRng::from_env()?, TempFleet::start()?);
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?.without_versions();
    let cluster = json!({"objects": [{"kind": "Cluster", "name": "c"}]});
    ensure!(operator.send_typed("POST", "/v1/apply", JSON_TYPE, &cluster)?.0 == 200, "a cluster");
    let (mut compared_count, mut command_count) = (0, 0);
    for round_number in 0..if is_long() { 600 } else { 60 } {
        let writable = rng.choose(&WRITABLE_KINDS);
        let (fields, is_invalid) = round_fields(round_number, writable_fields(writable)?);
        let intent = draw_fields(&mut rng, &fields, &Map::new(), is_invalid)?;
        let forms = CreateForm::ALL.into_iter().filter(|form| form.supports(writable.kind, &intent));
        let mut first_result: Option<(CreateForm, WriteResult)> = None;
        for (form_number, form) in forms.filter(|form| *form != CreateForm::Command || !is_invalid).enumerate() {
            let name = format!("n{round_number}-{form_number}");
            let round = WriteRound { fleet: &fleet, kind: writable, name, created_fields: Map::new(), intent: intent.clone() };
            let answer = round.create_with_intent(form, &mut operator)?;
            let outcome = round.outcome(form.operation(), answer, &mut operator)?;
            command_count += usize::from(form == CreateForm::Command);
            let Some((first_form, expected)) = &first_result else {
                first_result = Some((form, outcome));
                continue;
            };
            assert_eq!(outcome, *expected, "{form:?} and {first_form:?} of {}: {intent:?}", writable.kind);
            compared_count += 1;
        }
    }
    ensure!(compared_count > 20 && command_count > 5, "{compared_count} compared, {command_count} created by the command");
    Ok(())
}

/// In this test, three nodes get the same trait and role: the first by calls of `/traits` and `/roles` below its path,
/// the second by its manifest, and the third by commands. The stored traits, roles and owners must be equal.
#[test]
fn y05_traits_and_roles_are_equal_in_each_write_form() -> Result<()> {
    let fleet = TempFleet::start()?;
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?.without_versions();
    let nodes = [("call", "update"), ("manifest", "apply"), ("command", "update")];
    let objects = nodes.map(|(name, _)| json!({"kind": "Node", "name": name}));
    ensure!(operator.send_typed("POST", "/v1/apply", JSON_TYPE, &json!({"objects": objects}))?.0 == 200, "the nodes");
    let as_second_manager = |path: &str| format!("{path}?manager={SECOND_MANAGER}");
    let node = json!({"kind": "Node", "name": "manifest", "traits": ["CUSTOM_A"], "roles": ["web"]});
    for (method, path, body) in [
        ("PUT", "/v1/nodes/call/traits", json!({"traits": ["CUSTOM_A"]})),
        ("POST", "/v1/nodes/call/roles", json!({"roles": ["web"]})),
        ("POST", "/v1/apply", json!({"objects": [node]})),
    ] {
        let (status, answer) = operator.send_typed(method, &as_second_manager(path), JSON_TYPE, &body)?;
        ensure!(status == 200, "{path}: {status} {answer}");
    }
    for words in [["trait", "add", "command", "CUSTOM_A"], ["role", "add", "command", "web"]] {
        fleet.stemma(&[&["--manager", SECOND_MANAGER][..], &words[..]].concat())?;
    }
    let mut results = Vec::new();
    for (name, operation) in nodes {
        let (_, object) = operator.get(&format!("/v1/nodes/{name}"))?;
        results.push((object["traits"].clone(), object["roles"].clone(), owners(&object, operation)));
    }
    assert_eq!((&results[0].0, &results[0].1), (&json!(["CUSTOM_A"]), &json!(["web"])));
    assert_eq!((&results[1], &results[2]), (&results[0], &results[0]));
    Ok(())
}

/// Every form of parking a node stores the reason with the node. Regression: the command wrote the reason only to the
/// audit. If a command parks a parked node again, only a new reason replaces the old one.
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
    let run_as_second_manager = |words: &[&str]| fleet.stemma(&[&["--manager", SECOND_MANAGER][..], words].concat());
    run_as_second_manager(&["--reason", "disk", "node", "park", "command"])?;
    let mut results = Vec::new();
    for (name, operation) in nodes {
        let (_, object) = operator.get(&format!("/v1/nodes/{name}"))?;
        results.push((object["parked"].clone(), object["maintenance_reason"].clone(), owners(&object, operation)));
    }
    assert_eq!((&results[0].0, &results[0].1), (&json!(true), &json!("disk")));
    assert_eq!((&results[1], &results[2]), (&results[0], &results[0]));
    // A node that is already parked gets the new reason, and retains its reason if the command has none.
    for (words, output_end) in [
        (&["--reason", "fan", "node", "park", "command"][..], "is parked\n"),
        (&["--reason", "fan", "node", "park", "command"], "is parked already\n"),
        (&["node", "park", "command"], "is parked already\n"),
    ] {
        let output = run_as_second_manager(words)?;
        ensure!(output.ends_with(output_end), "{words:?}: {output}");
        assert_eq!(operator.get("/v1/nodes/command")?.1["maintenance_reason"], "fan", "{words:?}");
    }
    let description = fleet.stemma(&["describe", "node", "command"])?;
    let has_reason = description.lines().any(|line| line.split_whitespace().eq(["maintenance_reason", "fan"]));
    ensure!(has_reason, "{description}");
    run_as_second_manager(&["node", "unpark", "command"])?;
    assert_eq!(operator.get("/v1/nodes/command")?.1["maintenance_reason"], Value::Null);
    Ok(())
}
