//! The output of `get -o manifest` can be applied again unchanged. Objects of every kind are drawn at random, with the
//! fields in the tables of the parser. Applying their export changes no object and no owner in the same
//! controller, and creates the same objects in an empty controller.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};
use stemma_core::field::FieldType;
use stemma_core::manifest::{KindFields, PassthroughField, PassthroughType, SpecFields, kinds};
use stemma_core::object::{ClusterSpec, ClusterTemplateSpec, NodeGroupSpec, NodeSpec};
use stemma_tests::fleet::TempFleet;
use stemma_tests::operator::OperatorClient;
use stemma_tests::seed::{SeededRng, is_long};

/// The manager of all writes.
const MANAGER: &str = "git";
/// Fields that the random objects do not have. `include` and `imports` refer to other files and releases. `uuid` can be
/// set only once, and hosts set `reports`. The configuration of a controller declares `extensions`. A rule with
/// `sensitive` is not exported, and `protected` would block the write of the next round.
const EXCLUDED_FIELDS: [&str; 7] = ["include", "imports", "uuid", "reports", "extensions", "sensitive", "protected"];
/// Fields of other systems that only the controller sets. A manifest cannot contain them.
const COMPUTED_FIELDS: [&str; 6] = ["api_address", "boot_mode", "secure_boot", "stack_id", "status", "status_reason"];
/// Texts that some version of YAML reads as another type, or that have a special meaning there.
const AMBIGUOUS_TEXTS: [&str; 20] = [
    "yes",
    "~",
    "null",
    "0x1f",
    "1_000",
    "1:30",
    "2026-11-28",
    "1e3",
    "1.10",
    ".5",
    "a: b #c",
    "=",
    "<<",
    "- a",
    "%a",
    "@a",
    "\"q\"",
    " a",
    "a ",
    "😀",
];

/// Returns whether every drawn object of a kind has a field, because it is required or other fields refer to it.
fn is_always_drawn(kind: &str, field: &str) -> bool {
    ["name", "version", "cluster", "namespace"].contains(&field)
        || (kind == "Release" && ["roles", "tags", "tasks"].contains(&field))
        || (kind == "InspectionRule" && field == "actions")
}

/// Draws an object of a kind. Each optional field is included with a probability of `share_percent`, and each
/// passthrough field with 30 percent. A description, and labels, annotations and parameters of a level get random
/// values. Every other field gets the example of its documentation, or sometimes its empty value.
fn draw_object(rng: &mut SeededRng, kind: &KindFields, share_percent: usize) -> Result<Value> {
    let mut object = json!({"kind": kind.kind});
    let is_level = ["ClusterTemplate", "Cluster", "NodeGroup", "Node"].contains(&kind.kind);
    for field in kind.fields.iter().filter(|field| !EXCLUDED_FIELDS.contains(&field.name)) {
        if !is_always_drawn(kind.kind, field.name) && !rng.is_within_percent(share_percent) {
            continue;
        }
        object[field.name] = match field.name {
            "labels" | "annotations" if is_level => draw_map(rng, |rng| match rng.next_below(4) {
                0 => Value::Null,
                _ => (*rng.choose(&AMBIGUOUS_TEXTS)).into(),
            }),
            "parameters" if is_level => draw_map(rng, |rng| draw_value(rng, 0)),
            "description" => (*rng.choose(&AMBIGUOUS_TEXTS)).into(),
            // A field can also have its empty value. Another test covers the empty values of a namespace.
            name if kind.kind != "Namespace" && !is_always_drawn(kind.kind, name) && rng.is_within_percent(20) => {
                let empty_value = match field.field_type.plain() {
                    FieldType::Object(_) => Some(json!({})),
                    other => other.empty_value(),
                };
                empty_value.map_or_else(|| serde_json::from_str(field.help.example).context(field.name), Ok)?
            }
            _ => serde_json::from_str(field.help.example).context(field.name)?,
        };
    }
    for passthrough_field in passthrough_fields(kind.kind) {
        if rng.is_within_percent(30) {
            object[passthrough_field.name] = draw_passthrough(rng, passthrough_field.kind);
        }
    }
    Ok(object)
}

/// Returns the passthrough fields that a manifest of a kind can set. Stemma stores the value of such a field for
/// clients of other systems, such as Magnum and Ironic.
fn passthrough_fields(kind: &str) -> impl Iterator<Item = &'static PassthroughField> {
    let fields = match kind {
        "ClusterTemplate" => ClusterTemplateSpec::PASSTHROUGH_FIELDS,
        "Cluster" => ClusterSpec::PASSTHROUGH_FIELDS,
        "NodeGroup" => NodeGroupSpec::PASSTHROUGH_FIELDS,
        "Node" => NodeSpec::PASSTHROUGH_FIELDS,
        _ => &[],
    };
    fields.iter().filter(|field| !COMPUTED_FIELDS.contains(&field.name) && !EXCLUDED_FIELDS.contains(&field.name))
}

/// Draws a value of this type for a passthrough field.
fn draw_passthrough(rng: &mut SeededRng, field_type: PassthroughType) -> Value {
    let text = *rng.choose(&AMBIGUOUS_TEXTS);
    match field_type {
        PassthroughType::Text(_) | PassthroughType::Name(_) | PassthroughType::NameOrNone(_) | PassthroughType::Any => {
            text.into()
        }
        PassthroughType::Uuid => "0193a2d1-7c00-7000-8000-0000000000a7".into(),
        PassthroughType::Number => rng.next_below(4).into(),
        PassthroughType::Flag => rng.is_within_percent(50).into(),
        PassthroughType::Object => json!({text: text}),
        PassthroughType::List => json!([text]),
    }
}

/// Draws a map with up to three keys. The closure `value` draws each value.
fn draw_map(rng: &mut SeededRng, value: impl Fn(&mut SeededRng) -> Value) -> Value {
    (0..rng.next_below(4)).map(|number| (format!("k{number}"), value(rng))).collect::<Map<_, _>>().into()
}

/// Draws the value of a parameter, with lists and maps nested up to a `depth` of 3. A key can be any text, also a text
/// so long that YAML writes the key after a question mark. `depth` is the number of lists and maps around the value.
fn draw_value(rng: &mut SeededRng, depth: usize) -> Value {
    let key = |rng: &mut SeededRng| {
        if rng.is_within_percent(5) { "x".repeat(1_100) } else { (*rng.choose(&AMBIGUOUS_TEXTS)).to_owned() }
    };
    match rng.next_below(if depth < 3 { 6 } else { 3 }) {
        0 => (*rng.choose(&AMBIGUOUS_TEXTS)).into(),
        1 => rng.choose(&[json!(0), json!(-1), json!(1.5), json!(1e21), json!(2.5e-7), json!(true), json!("")]).clone(),
        2 => key(rng).into(),
        3 => (0..rng.next_below(4)).map(|_| draw_value(rng, depth + 1)).collect(),
        _ => (0..rng.next_below(4)).map(|_| (key(rng), draw_value(rng, depth + 1))).collect::<Map<_, _>>().into(),
    }
}

/// Returns the manifests that `get -o manifest` prints for the objects of all kinds.
fn export_all(fleet: &TempFleet) -> Result<String> {
    let export_kind = |kind: KindFields| fleet.stemma(&["get", &kind.kind.to_ascii_lowercase(), "-o", "manifest"]);
    Ok(kinds().into_iter().map(export_kind).collect::<Result<Vec<_>>>()?.join("---\n"))
}

/// Applies a manifest file as [`MANAGER`]. Returns the answer.
fn apply_file(fleet: &TempFleet, file: &Path) -> Result<Value> {
    let file = file.to_string_lossy();
    let answer = fleet.stemma(&["--manager", MANAGER, "--yes", "apply", "-o", "json", "-f", &file])?;
    serde_json::from_str(&answer).context("an answer in JSON")
}

#[test]
fn y07_export_changes_no_object_or_owner_when_applied() -> Result<()> {
    let mut rng = SeededRng::from_env()?;
    let (fleet, empty_fleet) = (TempFleet::start()?, TempFleet::start()?);
    let (drawn_file, exported_file) = (fleet.dir().join("drawn.json"), fleet.dir().join("exported.yaml"));
    let [release, ..] = kinds();
    // The examples of other kinds refer to this release.
    // It contains each field (a share of 100 percent).
    let example_release = draw_object(&mut rng, &release, 100)?;
    for round in 0..if is_long() { 60 } else { 6 } {
        let mut objects = vec![example_release.clone()];
        for kind in kinds() {
            let mut object = draw_object(&mut rng, &kind, 60)?;
            if kind.kind == release.kind {
                // A version of a release cannot be changed, so each round has its own.
                object["version"] = format!("drawn-{round}").into();
            }
            objects.push(object);
        }
        std::fs::write(&drawn_file, json!(objects).to_string())?;
        apply_file(&fleet, &drawn_file)?;
        let text = export_all(&fleet)?;
        std::fs::write(&exported_file, &text)?;
        let second_answer = apply_file(&fleet, &exported_file).with_context(|| text.clone())?;
        for result in second_answer["objects"].as_array().context("objects")? {
            assert_eq!(result["action"], "unchanged", "{result}\n{text}");
        }
        assert_eq!(export_all(&fleet)?, text);
        apply_file(&empty_fleet, &exported_file)?;
        assert_eq!(export_all(&empty_fleet)?, text);
    }
    Ok(())
}

/// A manifest sets fields of a namespace to their default, so its manager owns them. An export contains these fields,
/// and applying it changes no owner. Answers to Glance's clients omit the owners, but the export requests them.
#[test]
fn y07_export_keeps_namespace_fields_at_default() -> Result<()> {
    let fleet = TempFleet::start()?;
    let (drawn_file, exported_file) = (fleet.dir().join("namespace.json"), fleet.dir().join("namespace.yaml"));
    let namespace = json!({"kind": "Namespace", "namespace": "Site", "visibility": "private", "labels": {}, "description": "x"});
    std::fs::write(&drawn_file, namespace.to_string())?;
    apply_file(&fleet, &drawn_file)?;
    let owners = || -> Result<Value> {
        let answer: Value = serde_json::from_str(&fleet.stemma(&["get", "namespace", "Site", "-o", "json"])?)?;
        Ok(answer["field_owners"].clone())
    };
    let manifest_owner = json!(["git:apply"]);
    assert_eq!(owners()?, json!({"description": manifest_owner, "labels": manifest_owner, "visibility": manifest_owner}));
    let text = fleet.stemma(&["get", "namespaces", "-o", "manifest"])?;
    std::fs::write(&exported_file, &text)?;
    let second_answer = apply_file(&fleet, &exported_file)?;
    assert_eq!(second_answer["objects"][0]["action"], "unchanged", "{second_answer}\n{text}");
    assert_eq!(
        owners()?,
        json!({"description": manifest_owner, "labels": manifest_owner, "visibility": manifest_owner}),
        "{text}"
    );
    Ok(())
}

/// An export contains the values of the manifests. `node_count` is not the number of existing nodes, and a cluster does
/// not repeat the values of its template.
#[test]
fn y07_export_omits_computed_and_inherited_values() -> Result<()> {
    let fleet = TempFleet::start()?;
    let (drawn_file, exported_file) = (fleet.dir().join("drawn.json"), fleet.dir().join("exported.yaml"));
    let objects = json!([
        {"kind": "ClusterTemplate", "name": "t", "image_id": "i1", "docker_volume_size": 5, "flavor_id": "f1"},
        {"kind": "Cluster", "name": "c", "cluster_template": "t", "node_count": 3, "master_count": 2},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "node_count": 2, "is_default": true},
        {"kind": "Node", "name": "n", "nodegroup": "c/g"},
    ]);
    std::fs::write(&drawn_file, objects.to_string())?;
    apply_file(&fleet, &drawn_file)?;
    // This cluster also has Magnum's default groups, whose fields have no owner.
    fleet.stemma(&["create", "cluster", "posted", "--cluster-template", "t"])?;
    let text = export_all(&fleet)?;
    for (kind, name, expected_fields) in [
        ("cluster", "c", &["node_count: 3", "master_count: 2"][..]),
        ("nodegroup", "c/g", &["node_count: 2", "is_default: true"]),
        ("nodegroup", "posted/default-master", &["role: master", "is_default: true"]),
    ] {
        let text = fleet.stemma(&["get", kind, name, "-o", "manifest"])?;
        for field in expected_fields {
            assert!(text.contains(field), "{field}: {text}");
        }
        for field in ["flavor_id", "image_id", "docker_volume_size"] {
            assert!(!text.contains(field), "{field}: {text}");
        }
    }
    std::fs::write(&exported_file, &text)?;
    let answer = apply_file(&fleet, &exported_file)?;
    for result in answer["objects"].as_array().context("objects")? {
        let name = result["name"].as_str().context("a name")?;
        assert!(result["action"] == "unchanged" || name.starts_with("posted"), "{result}\n{text}");
    }
    // The apply has changed the owners of the posted objects, as the comments of the export announced. So the comments
    // are not compared.
    assert_eq!(without_comments(&export_all(&fleet)?), without_comments(&text));
    Ok(())
}

/// Returns the text without the lines that are comments.
fn without_comments(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("# ")).map(|line| format!("{line}\n")).collect()
}

/// Two managers and a person write the same objects. Applying the export of one manager changes no owner. The export
/// for all managers names the owners.
#[test]
fn y07_export_of_manager_changes_no_owner_when_applied() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("part.yaml");
    let path = file.to_string_lossy().into_owned();
    let apply_as = |manager: &str| -> Result<Value> {
        let arguments = ["--manager", manager, "--yes", "apply", "-o", "json", "-f", &path];
        serde_json::from_str(&fleet.stemma(&arguments)?).context("an answer in JSON")
    };
    for (manager, objects) in [
        (
            "m",
            json!([{"kind": "ClusterTemplate", "name": "t", "labels": {"a": "1"}, "annotations": {}},
                {"kind": "Cluster", "name": "c", "cluster_template": "t"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"},
                {"kind": "Node", "name": "n", "nodegroup": "c/g", "traits": ["CUSTOM_A"], "tags": {"unassigned": ["z"]}},
                {"kind": "Namespace", "namespace": "Site", "description": "d"}]),
        ),
        (
            "x",
            json!([{"kind": "ClusterTemplate", "name": "t", "labels": {"b": null}, "node_drain_timeout": 5, "parameters": {"p": [1]}},
                {"kind": "Node", "name": "n", "traits": ["CUSTOM_A", "CUSTOM_B"], "description": "x"},
                {"kind": "Namespace", "namespace": "Site", "labels": {"team": "x"}}]),
        ),
    ] {
        std::fs::write(&file, objects.to_string())?;
        apply_as(manager)?;
    }
    fleet.stemma(&["--yes", "label", "node", "n", "by=hand"])?;
    fleet.stemma(&["--yes", "trait", "add", "n", "CUSTOM_C"])?;
    let fields =
        ["generation", "field_owners", "label_owners", "annotation_owners", "parameter_owners", "provided_labels", "stored"];
    let read_owners = || -> Result<Vec<Value>> {
        let mut values = Vec::new();
        for path in [
            "/v1/clustertemplates/t?stored=true",
            "/v1/clusters/c?stored=true",
            "/v1/clusters/c/nodegroups/g?stored=true",
            "/v1/nodes/n?stored=true",
            "/v2/metadefs/namespaces/Site?owners=true",
        ] {
            let object: Value = serde_json::from_str(&fleet.stemma(&["get", "--raw", path])?)?;
            values.extend(fields.map(|field| object[field].clone()));
        }
        Ok(values)
    };
    let owners_before = read_owners()?;
    let person_fields = ["CUSTOM_C", "by:"];
    for (manager, kind, name, expected, omitted) in [
        (
            "m",
            "clustertemplate",
            "t",
            &["a: \"1\"", "merge_labels: true"][..],
            &["b:", "node_drain", "parameters", "annotations"][..],
        ),
        ("x", "clustertemplate", "t", &["b: null", "node_drain_timeout: 5", "parameters:"], &["a: ", "merge_labels"]),
        ("m", "cluster", "c", &["cluster_template: t"], &[]),
        ("m", "node", "n", &["nodegroup: c/g", "CUSTOM_A", "unassigned:"], &["CUSTOM_B", "description", "labels"]),
        ("x", "node", "n", &["CUSTOM_A", "CUSTOM_B", "description: x"], &["nodegroup", "unassigned", "labels"]),
        ("m", "namespace", "Site", &["description: d"], &["team"]),
        ("x", "namespace", "Site", &["team: x"], &["description"]),
    ] {
        let manager_export = fleet.stemma(&["--manager", manager, "get", kind, name, "-o", "manifest"])?;
        assert!(!manager_export.contains('#'), "{manager_export}");
        for text in expected {
            assert!(manager_export.contains(text), "{manager} {kind}: {text}: {manager_export}");
        }
        for text in omitted.iter().chain(&person_fields) {
            assert!(!manager_export.contains(text), "{manager} {kind}: {text}: {manager_export}");
        }
        std::fs::write(&file, &manager_export)?;
        let answer = apply_as(manager)?;
        assert_eq!(answer["objects"][0]["action"], "unchanged", "{answer}\n{manager_export}");
        assert_eq!(read_owners()?, owners_before, "{manager_export}");
    }
    for (kind, name, expected) in [
        (
            "clustertemplate",
            "t",
            "# Owned: labels.a, merge_labels by m:apply; labels.b, node_drain_timeout, parameters.p by x:apply. A manager that applies",
        ),
        ("node", "n", "; traits.CUSTOM_A by m:apply and x:apply; "),
    ] {
        let full_export = fleet.stemma(&["get", kind, name, "-o", "manifest"])?;
        assert!(full_export.starts_with("# Owned: ") && full_export.contains(expected), "{full_export}");
    }
    assert!(
        fleet.stemma(&["get", "cluster", "c", "-o", "manifest"])?.starts_with("cluster_template: t\n"),
        "the export of an object with one manager lists no owners"
    );
    // If the manager applies nothing of an object, no manifest is printed for the object, and a message gives the
    // reason.
    let reason = "cluster/c: x applies nothing there";
    let (stdout, stderr, _) = fleet.run_cli(&["--manager", "x", "get", "clusters", "-o", "manifest"])?;
    assert!(stdout.starts_with(&format!("# Left out: {reason}")) && stderr.contains(reason), "{stdout}{stderr}");
    let (stdout, stderr, status) = fleet.run_cli(&["--manager", "x", "get", "cluster", "c", "-o", "manifest"])?;
    assert!(status != 0 && stdout.is_empty() && stderr.contains(reason), "{status} {stdout}{stderr}");
    let (_, stderr, status) = fleet.run_cli(&["--manager", "x:apply", "get", "cluster", "c", "-o", "manifest"])?;
    assert!(status == 2 && stderr.contains("must not end in ':apply'"), "{status} {stderr}");
    Ok(())
}

/// `apply` accepts every manifest that an export prints. For a kind that `apply` cannot create, the export prints
/// nothing, and a message gives the reason. An export omits a node without a name. The output of `-o yaml` is no
/// manifest, so `apply` refuses it.
#[test]
fn y07_export_refuses_kinds_without_apply() -> Result<()> {
    let fleet = TempFleet::start()?;
    let (stdout, stderr, status) = fleet.run_cli(&["get", "nodes", "-o", "manifest"])?;
    assert_eq!((stdout.as_str(), status), ("", 0));
    assert_eq!(stderr, "no node is listed, so no manifest is printed\n");
    let (_, stderr, _) = fleet.run_cli(&["apply", "-f", "-"])?;
    assert!(stderr.contains("no object here: standard input contains none"), "{stderr}");
    let manifest = fleet.dir().join("manifest.yaml");
    std::fs::write(&manifest, "kind: Release\nname: r\nversion: \"1\"\n---\nkind: Node\nname: n\n")?;
    apply_file(&fleet, &manifest)?;
    for (arguments, reason) in [
        (&["get", "tokens"][..], "apply can't create this kind (token)"),
        (&["get", "allocations"], "apply can't create this kind (allocation)"),
        (&["tag", "list", "--release", "r@1"], "a tag has no manifest of its own"),
        (&["get", "tasks"], "a task has no manifest of its own"),
    ] {
        let (stdout, stderr, status) = fleet.run_cli(&[arguments, &["-o", "manifest"]].concat())?;
        assert!(status != 0 && stdout.is_empty() && stderr.contains(reason), "{arguments:?}: {stderr}");
    }
    let body = json!({"driver": "fake"});
    let (status, node) = OperatorClient::from_data(&fleet.data(), fleet.addresses())?.send_typed(
        "POST",
        "/v1/nodes",
        "application/json",
        &body,
    )?;
    assert_eq!((status, &node["name"]), (201, &Value::Null), "{node}");
    let text = fleet.stemma(&["get", "nodes", "-o", "manifest"])?;
    let left_out_comment = format!("# Left out: node/{} has no name", node["uuid"].as_str().context("a uuid")?);
    assert!(text.starts_with(&left_out_comment) && text.matches("kind: Node").count() == 1, "{text}");
    std::fs::write(&manifest, &text)?;
    assert_eq!(apply_file(&fleet, &manifest)?["objects"][0]["action"], "unchanged", "{text}");
    std::fs::write(&manifest, fleet.stemma(&["get", "node", "n", "-o", "yaml"])?)?;
    let (_, stderr, status) = fleet.run_cli(&["apply", "-f", &manifest.to_string_lossy()])?;
    assert!(status != 0 && stderr.contains("stemma get -o manifest"), "{stderr}");
    Ok(())
}

/// A tag that was created for a release is not part of the release's manifest, and a tag has no manifest of its own. So
/// the export names the tags that it omits.
#[test]
fn y07_export_names_omitted_tags_of_release() -> Result<()> {
    let fleet = TempFleet::start()?;
    let manifest = fleet.dir().join("manifest.yaml");
    let release = |version: &str| format!("kind: Release\nname: r\nversion: \"{version}\"\ntags: {{own: {{}}}}\n");
    std::fs::write(&manifest, [release("1"), release("2")].join("---\n"))?;
    apply_file(&fleet, &manifest)?;
    fleet.stemma(&["tag", "create", "canary", "--release", "r@1"])?;
    let (stdout, stderr, _) = fleet.run_cli(&["get", "releases", "-o", "manifest"])?;
    let notice = "left out: the tags created for release/r@";
    assert!(stderr.matches(notice).count() == 1 && stderr.contains("in any version: canary; "), "{stderr}");
    assert!(stdout.starts_with("# Left out: the tags created for release/r@"), "{stdout}");
    std::fs::write(&manifest, &stdout)?;
    let answer = apply_file(&fleet, &manifest)?;
    for result in answer["objects"].as_array().context("objects")? {
        assert_eq!(result["action"], "unchanged", "{result}\n{stdout}");
    }
    Ok(())
}
