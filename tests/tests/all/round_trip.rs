//! The output of `get -o manifest` can be applied again unchanged. Objects of every kind are drawn at random, with the
//! fields of the tables that the parser uses. Applying their export changes no object and no owner in the same
//! controller, and creates the same objects in an empty one.

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
/// Fields that are not drawn: fields next to a manifest, an identity that is set only once, what hosts report, what a
/// controller's configuration declares, what no answer shows, and what would block the write of the next draw.
const EXCLUDED_FIELDS: [&str; 7] = ["include", "imports", "uuid", "reports", "extensions", "sensitive", "protected"];
/// Fields of other systems that only the controller sets, and no manifest.
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

/// Returns whether a field is always drawn: it names the object, or other fields refer to it.
fn is_always_drawn(kind: &str, field: &str) -> bool {
    ["name", "version", "cluster", "namespace"].contains(&field)
        || (kind == "Release" && ["roles", "tags", "tasks"].contains(&field))
        || (kind == "InspectionRule" && field == "actions")
}

/// Draws an object of a kind. Its fields have their examples as values, or random texts and values where any are
/// allowed.
fn draw_object(chance: &mut SeededRng, kind: &KindFields, share: usize) -> Result<Value> {
    let mut object = json!({"kind": kind.kind});
    let is_level = ["ClusterTemplate", "Cluster", "NodeGroup", "Node"].contains(&kind.kind);
    for part in kind.fields.iter().filter(|part| !EXCLUDED_FIELDS.contains(&part.name)) {
        if !is_always_drawn(kind.kind, part.name) && !chance.is_within_percent(share) {
            continue;
        }
        object[part.name] = match part.name {
            "labels" | "annotations" if is_level => draw_map(chance, |chance| match chance.next_below(4) {
                0 => Value::Null,
                _ => (*chance.choose(&AMBIGUOUS_TEXTS)).into(),
            }),
            "parameters" if is_level => draw_map(chance, |chance| draw_value(chance, 0)),
            "description" => (*chance.choose(&AMBIGUOUS_TEXTS)).into(),
            // Fields of a namespace at their default values have a test of their own.
            name if kind.kind != "Namespace" && !is_always_drawn(kind.kind, name) && chance.is_within_percent(20) => {
                let empty = match part.field_type.plain() {
                    FieldType::Object(_) => Some(json!({})),
                    other => other.empty_value(),
                };
                empty.map_or_else(|| serde_json::from_str(part.help.example).context(part.name), Ok)?
            }
            _ => serde_json::from_str(part.help.example).context(part.name)?,
        };
    }
    for kept in passthrough_fields(kind.kind) {
        if chance.is_within_percent(30) {
            object[kept.name] = draw_passthrough(chance, kept.kind);
        }
    }
    Ok(object)
}

/// Returns the fields of other systems that a manifest of a kind may set. An answer counts some of them, and inherits
/// others from the levels above.
fn passthrough_fields(kind: &str) -> impl Iterator<Item = &'static PassthroughField> {
    let all = match kind {
        "ClusterTemplate" => ClusterTemplateSpec::PASSTHROUGH_FIELDS,
        "Cluster" => ClusterSpec::PASSTHROUGH_FIELDS,
        "NodeGroup" => NodeGroupSpec::PASSTHROUGH_FIELDS,
        "Node" => NodeSpec::PASSTHROUGH_FIELDS,
        _ => &[],
    };
    all.iter().filter(|kept| !COMPUTED_FIELDS.contains(&kept.name) && !EXCLUDED_FIELDS.contains(&kept.name))
}

fn draw_passthrough(chance: &mut SeededRng, form: PassthroughType) -> Value {
    let text = *chance.choose(&AMBIGUOUS_TEXTS);
    match form {
        PassthroughType::Text(_) | PassthroughType::Name(_) | PassthroughType::NameOrNone(_) | PassthroughType::Any => {
            text.into()
        }
        PassthroughType::Uuid => "0193a2d1-7c00-7000-8000-0000000000a7".into(),
        PassthroughType::Number => chance.next_below(4).into(),
        PassthroughType::Flag => chance.is_within_percent(50).into(),
        PassthroughType::Object => json!({text: text}),
        PassthroughType::List => json!([text]),
    }
}

fn draw_map(chance: &mut SeededRng, value: impl Fn(&mut SeededRng) -> Value) -> Value {
    (0..chance.next_below(4)).map(|at| (format!("k{at}"), value(chance))).collect::<Map<_, _>>().into()
}

/// Draws the value of a parameter. Its keys can be any text, also one so long that YAML writes it after a question
/// mark.
fn draw_value(chance: &mut SeededRng, depth: usize) -> Value {
    let key = |chance: &mut SeededRng| {
        if chance.is_within_percent(5) { "x".repeat(1_100) } else { (*chance.choose(&AMBIGUOUS_TEXTS)).to_owned() }
    };
    match chance.next_below(if depth < 3 { 6 } else { 3 }) {
        0 => (*chance.choose(&AMBIGUOUS_TEXTS)).into(),
        1 => chance.choose(&[json!(0), json!(-1), json!(1.5), json!(1e21), json!(2.5e-7), json!(true), json!("")]).clone(),
        2 => key(chance).into(),
        3 => (0..chance.next_below(4)).map(|_| draw_value(chance, depth + 1)).collect(),
        _ => (0..chance.next_below(4)).map(|_| (key(chance), draw_value(chance, depth + 1))).collect::<Map<_, _>>().into(),
    }
}

fn export_all(fleet: &TempFleet) -> Result<String> {
    let of_kind = |kind: KindFields| fleet.stemma(&["get", &kind.kind.to_ascii_lowercase(), "-o", "manifest"]);
    Ok(kinds().into_iter().map(of_kind).collect::<Result<Vec<_>>>()?.join("---\n"))
}

fn apply_file(fleet: &TempFleet, file: &Path) -> Result<Value> {
    let file = file.to_string_lossy();
    let answer = fleet.stemma(&["--manager", MANAGER, "--yes", "apply", "-o", "json", "-f", &file])?;
    serde_json::from_str(&answer).context("an answer in JSON")
}

#[test]
fn y07_export_changes_no_object_or_owner_when_applied() -> Result<()> {
    let mut chance = SeededRng::from_env()?;
    let (fleet, other) = (TempFleet::start()?, TempFleet::start()?);
    let (drawn, exported) = (fleet.dir().join("drawn.json"), fleet.dir().join("exported.yaml"));
    let [release, ..] = kinds();
    // The release that the examples of other kinds name.
    let named = draw_object(&mut chance, &release, 100)?;
    for round in 0..if is_long() { 60 } else { 6 } {
        let mut objects = vec![named.clone()];
        for kind in kinds() {
            let mut object = draw_object(&mut chance, &kind, 60)?;
            if kind.kind == release.kind {
                // A version of a release cannot be changed, so each round has its own.
                object["version"] = format!("drawn-{round}").into();
            }
            objects.push(object);
        }
        std::fs::write(&drawn, json!(objects).to_string())?;
        apply_file(&fleet, &drawn)?;
        let text = export_all(&fleet)?;
        std::fs::write(&exported, &text)?;
        let again = apply_file(&fleet, &exported).with_context(|| text.clone())?;
        for one in again["objects"].as_array().context("objects")? {
            assert_eq!(one["action"], "unchanged", "{one}\n{text}");
        }
        assert_eq!(export_all(&fleet)?, text);
        apply_file(&other, &exported)?;
        assert_eq!(export_all(&other)?, text);
    }
    Ok(())
}

/// Glance's clients are not shown owners. A caller that requests them is, and so is the reader of an export.
#[test]
fn y07_export_keeps_namespace_fields_at_default() -> Result<()> {
    let fleet = TempFleet::start()?;
    let (drawn, exported) = (fleet.dir().join("namespace.json"), fleet.dir().join("namespace.yaml"));
    let namespace = json!({"kind": "Namespace", "namespace": "Site", "visibility": "private", "labels": {}, "description": "x"});
    std::fs::write(&drawn, namespace.to_string())?;
    apply_file(&fleet, &drawn)?;
    let owners = || -> Result<Value> {
        let shown: Value = serde_json::from_str(&fleet.stemma(&["get", "namespace", "Site", "-o", "json"])?)?;
        Ok(shown["field_owners"].clone())
    };
    let said = json!(["git:apply"]);
    assert_eq!(owners()?, json!({"description": said, "labels": said, "visibility": said}));
    let text = fleet.stemma(&["get", "namespaces", "-o", "manifest"])?;
    std::fs::write(&exported, &text)?;
    let again = apply_file(&fleet, &exported)?;
    assert_eq!(again["objects"][0]["action"], "unchanged", "{again}\n{text}");
    assert_eq!(owners()?, json!({"description": said, "labels": said, "visibility": said}), "{text}");
    Ok(())
}

/// The exported values are those of the manifests. The count is not the number of existing nodes, and the template's
/// values stay in the template.
#[test]
fn y07_export_omits_computed_and_inherited_values() -> Result<()> {
    let fleet = TempFleet::start()?;
    let (drawn, exported) = (fleet.dir().join("drawn.json"), fleet.dir().join("exported.yaml"));
    let objects = json!([
        {"kind": "ClusterTemplate", "name": "t", "image_id": "i1", "docker_volume_size": 5, "flavor_id": "f1"},
        {"kind": "Cluster", "name": "c", "cluster_template": "t", "node_count": 3, "master_count": 2},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "node_count": 2, "is_default": true},
        {"kind": "Node", "name": "n", "nodegroup": "c/g"},
    ]);
    std::fs::write(&drawn, objects.to_string())?;
    apply_file(&fleet, &drawn)?;
    // This cluster also has Magnum's default groups, whose fields have no owner.
    fleet.stemma(&["create", "cluster", "posted", "--cluster-template", "t"])?;
    let text = export_all(&fleet)?;
    for (kind, name, said) in [
        ("cluster", "c", &["node_count: 3", "master_count: 2"][..]),
        ("nodegroup", "c/g", &["node_count: 2", "is_default: true"]),
        ("nodegroup", "posted/default-master", &["role: master", "is_default: true"]),
    ] {
        let text = fleet.stemma(&["get", kind, name, "-o", "manifest"])?;
        for field in said {
            assert!(text.contains(field), "{field}: {text}");
        }
        for field in ["flavor_id", "image_id", "docker_volume_size"] {
            assert!(!text.contains(field), "{field}: {text}");
        }
    }
    std::fs::write(&exported, &text)?;
    let again = apply_file(&fleet, &exported)?;
    for one in again["objects"].as_array().context("objects")? {
        let name = one["name"].as_str().context("a name")?;
        assert!(one["action"] == "unchanged" || name.starts_with("posted"), "{one}\n{text}");
    }
    // The owners of the posted objects have changed, as the comments above them announced.
    assert_eq!(without_comments(&export_all(&fleet)?), without_comments(&text));
    Ok(())
}

fn without_comments(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("# ")).map(|line| format!("{line}\n")).collect()
}

/// Two managers and a person. Applying the part of one manager changes no owner. The export of all parts names the
/// owners.
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
    let shown = || -> Result<Vec<Value>> {
        let mut all = Vec::new();
        for path in [
            "/v1/clustertemplates/t?stored=true",
            "/v1/clusters/c?stored=true",
            "/v1/clusters/c/nodegroups/g?stored=true",
            "/v1/nodes/n?stored=true",
            "/v2/metadefs/namespaces/Site?owners=true",
        ] {
            let whole: Value = serde_json::from_str(&fleet.stemma(&["get", "--raw", path])?)?;
            all.extend(fields.map(|field| whole[field].clone()));
        }
        Ok(all)
    };
    let before = shown()?;
    let others = ["CUSTOM_C", "by:"];
    for (manager, kind, name, said, left_out) in [
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
        let part = fleet.stemma(&["--manager", manager, "get", kind, name, "-o", "manifest"])?;
        assert!(!part.contains('#'), "{part}");
        for text in said {
            assert!(part.contains(text), "{manager} {kind}: {text}: {part}");
        }
        for text in left_out.iter().chain(&others) {
            assert!(!part.contains(text), "{manager} {kind}: {text}: {part}");
        }
        std::fs::write(&file, &part)?;
        let again = apply_as(manager)?;
        assert_eq!(again["objects"][0]["action"], "unchanged", "{again}\n{part}");
        assert_eq!(shown()?, before, "{part}");
    }
    for (kind, name, said) in [
        (
            "clustertemplate",
            "t",
            "# Owned: labels.a, merge_labels by m:apply; labels.b, node_drain_timeout, parameters.p by x:apply. A manager that applies",
        ),
        ("node", "n", "; traits.CUSTOM_A by m:apply and x:apply; "),
    ] {
        let all = fleet.stemma(&["get", kind, name, "-o", "manifest"])?;
        assert!(all.starts_with("# Owned: ") && all.contains(said), "{all}");
    }
    assert!(
        fleet.stemma(&["get", "cluster", "c", "-o", "manifest"])?.starts_with("cluster_template: t\n"),
        "one manager's alone"
    );
    // For an object of which the manager applies nothing, no manifest is printed, and a message says so.
    let none = "cluster/c: x applies nothing there";
    let (printed, said, _) = fleet.run_cli(&["--manager", "x", "get", "clusters", "-o", "manifest"])?;
    assert!(printed.starts_with(&format!("# Left out: {none}")) && said.contains(none), "{printed}{said}");
    let (printed, said, status) = fleet.run_cli(&["--manager", "x", "get", "cluster", "c", "-o", "manifest"])?;
    assert!(status != 0 && printed.is_empty() && said.contains(none), "{status} {printed}{said}");
    let (_, said, status) = fleet.run_cli(&["--manager", "x:apply", "get", "cluster", "c", "-o", "manifest"])?;
    assert!(status == 2 && said.contains("must not end in ':apply'"), "{status} {said}");
    Ok(())
}

/// What is printed for `apply` can be applied. Otherwise nothing is printed, and a message gives the reason.
#[test]
fn y07_export_refuses_kinds_without_apply() -> Result<()> {
    let fleet = TempFleet::start()?;
    let (printed, said, status) = fleet.run_cli(&["get", "nodes", "-o", "manifest"])?;
    assert_eq!((printed.as_str(), status), ("", 0));
    assert_eq!(said, "no node is listed, so no manifest is printed\n");
    let (_, said, _) = fleet.run_cli(&["apply", "-f", "-"])?;
    assert!(said.contains("no object here: standard input contains none"), "{said}");
    let manifest = fleet.dir().join("manifest.yaml");
    std::fs::write(&manifest, "kind: Release\nname: r\nversion: \"1\"\n---\nkind: Node\nname: n\n")?;
    apply_file(&fleet, &manifest)?;
    for (arguments, told) in [
        (&["get", "tokens"][..], "apply can't create this kind (token)"),
        (&["get", "allocations"], "apply can't create this kind (allocation)"),
        (&["tag", "list", "--release", "r@1"], "a tag has no manifest of its own"),
        (&["get", "tasks"], "a task has no manifest of its own"),
    ] {
        let (printed, said, status) = fleet.run_cli(&[arguments, &["-o", "manifest"]].concat())?;
        assert!(status != 0 && printed.is_empty() && said.contains(told), "{arguments:?}: {said}");
    }
    let driven = json!({"driver": "fake"});
    let (status, made) = OperatorClient::from_data(&fleet.data(), fleet.addresses())?.send_typed(
        "POST",
        "/v1/nodes",
        "application/json",
        &driven,
    )?;
    assert_eq!((status, &made["name"]), (201, &Value::Null), "{made}");
    let text = fleet.stemma(&["get", "nodes", "-o", "manifest"])?;
    let nameless = format!("# Left out: node/{} has no name", made["uuid"].as_str().context("a uuid")?);
    assert!(text.starts_with(&nameless) && text.matches("kind: Node").count() == 1, "{text}");
    std::fs::write(&manifest, &text)?;
    assert_eq!(apply_file(&fleet, &manifest)?["objects"][0]["action"], "unchanged", "{text}");
    std::fs::write(&manifest, fleet.stemma(&["get", "node", "n", "-o", "yaml"])?)?;
    let (_, said, status) = fleet.run_cli(&["apply", "-f", &manifest.to_string_lossy()])?;
    assert!(status != 0 && said.contains("stemma get -o manifest"), "{said}");
    Ok(())
}

/// A tag next to a release is not part of the release, and no kind of manifest describes a tag.
#[test]
fn y07_export_names_omitted_tags_of_release() -> Result<()> {
    let fleet = TempFleet::start()?;
    let manifest = fleet.dir().join("manifest.yaml");
    let release = |version: &str| format!("kind: Release\nname: r\nversion: \"{version}\"\ntags: {{own: {{}}}}\n");
    std::fs::write(&manifest, [release("1"), release("2")].join("---\n"))?;
    apply_file(&fleet, &manifest)?;
    fleet.stemma(&["tag", "create", "canary", "--release", "r@1"])?;
    let (printed, said, _) = fleet.run_cli(&["get", "releases", "-o", "manifest"])?;
    let beside = "left out: the tags created for release/r@";
    assert!(said.matches(beside).count() == 1 && said.contains("in any version: canary; "), "{said}");
    assert!(printed.starts_with("# Left out: the tags created for release/r@"), "{printed}");
    std::fs::write(&manifest, &printed)?;
    let again = apply_file(&fleet, &manifest)?;
    for one in again["objects"].as_array().context("objects")? {
        assert_eq!(one["action"], "unchanged", "{one}\n{printed}");
    }
    Ok(())
}
