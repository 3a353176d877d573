//! What `get -o manifest` prints goes back in as it came out. Objects of every kind are drawn with fields of the tables by which they are read;
//! what is printed of them changes nothing where it came from, no owner either, and makes the same objects in a controller without any.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};
use stemma_core::field::Form;
use stemma_core::manifest::{Fields, Kept, KeptForm, KindFields, kinds};
use stemma_core::object::{ClusterSpec, ClusterTemplateSpec, NodeGroupSpec, NodeSpec};
use stemma_tests::chance::{Chance, is_long};
use stemma_tests::fleet::Fleet;
use stemma_tests::operator::Operator;

/// The manager of all writes.
const MANAGER: &str = "git";
/// Fields that are not drawn: what stands beside a manifest, an identity that is given once, what hosts report, what a controller's configuration
/// declares, what no answer shows, and what keeps the next draw from its write.
const NOT_DRAWN: [&str; 7] = ["include", "imports", "uuid", "reports", "extensions", "sensitive", "protected"];
/// Fields of other systems that the controller alone says, and no manifest.
const COMPUTED: [&str; 6] = ["api_address", "boot_mode", "secure_boot", "stack_id", "status", "status_reason"];
/// Texts that some YAML has another type or meaning for.
const TEXTS: [&str; 20] = [
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

/// What a part of a kind is always drawn with: what names it, and what others of its fields refer to.
fn is_needed(kind: &str, field: &str) -> bool {
    ["name", "version", "cluster", "namespace"].contains(&field)
        || (kind == "Release" && ["roles", "tags", "tasks"].contains(&field))
        || (kind == "InspectionRule" && field == "actions")
}

/// An object of a kind with the examples of its fields, or texts and values that are drawn where it may hold any.
fn object(chance: &mut Chance, kind: &KindFields, share: usize) -> Result<Value> {
    let mut object = json!({"kind": kind.kind});
    let is_level = ["ClusterTemplate", "Cluster", "NodeGroup", "Node"].contains(&kind.kind);
    for part in kind.parts.iter().filter(|part| !NOT_DRAWN.contains(&part.name)) {
        if !is_needed(kind.kind, part.name) && !chance.percent(share) {
            continue;
        }
        object[part.name] = match part.name {
            "labels" | "annotations" if is_level => map(chance, |chance| match chance.below(4) {
                0 => Value::Null,
                _ => (*chance.one(&TEXTS)).into(),
            }),
            "parameters" if is_level => map(chance, |chance| any(chance, 0)),
            "description" => (*chance.one(&TEXTS)).into(),
            // What a namespace says at a default is drawn apart.
            name if kind.kind != "Namespace" && !is_needed(kind.kind, name) && chance.percent(20) => {
                let empty = match part.form.plain() {
                    Form::Object(_) => Some(json!({})),
                    other => other.empty(),
                };
                empty.map_or_else(|| serde_json::from_str(part.help.example).context(part.name), Ok)?
            }
            _ => serde_json::from_str(part.help.example).context(part.name)?,
        };
    }
    for kept in kept(kind.kind) {
        if chance.percent(30) {
            object[kept.name] = kept_value(chance, kept.form);
        }
    }
    Ok(object)
}

/// The fields of other systems that a manifest of a kind may set. An answer counts some of them, and has others of the levels above.
fn kept(kind: &str) -> impl Iterator<Item = &'static Kept> {
    let all = match kind {
        "ClusterTemplate" => ClusterTemplateSpec::EXTRA,
        "Cluster" => ClusterSpec::EXTRA,
        "NodeGroup" => NodeGroupSpec::EXTRA,
        "Node" => NodeSpec::EXTRA,
        _ => &[],
    };
    all.iter().filter(|kept| !COMPUTED.contains(&kept.name) && !NOT_DRAWN.contains(&kept.name))
}

fn kept_value(chance: &mut Chance, form: KeptForm) -> Value {
    let text = *chance.one(&TEXTS);
    match form {
        KeptForm::Text(_) | KeptForm::Name(_) | KeptForm::NameOrNone(_) | KeptForm::Any => text.into(),
        KeptForm::Uuid => "0193a2d1-7c00-7000-8000-0000000000a7".into(),
        KeptForm::Number => chance.below(4).into(),
        KeptForm::Flag => chance.percent(50).into(),
        KeptForm::Object => json!({text: text}),
        KeptForm::List => json!([text]),
    }
}

fn map(chance: &mut Chance, value: impl Fn(&mut Chance) -> Value) -> Value {
    (0..chance.below(4)).map(|at| (format!("k{at}"), value(chance))).collect::<Map<_, _>>().into()
}

/// A parameter's value. Its keys may be any text, also one that YAML writes behind a question mark.
fn any(chance: &mut Chance, depth: usize) -> Value {
    let key =
        |chance: &mut Chance| if chance.percent(5) { "x".repeat(1_100) } else { (*chance.one(&TEXTS)).to_owned() };
    match chance.below(if depth < 3 { 6 } else { 3 }) {
        0 => (*chance.one(&TEXTS)).into(),
        1 => chance.one(&[json!(0), json!(-1), json!(1.5), json!(1e21), json!(2.5e-7), json!(true), json!("")]).clone(),
        2 => key(chance).into(),
        3 => (0..chance.below(4)).map(|_| any(chance, depth + 1)).collect(),
        _ => (0..chance.below(4)).map(|_| (key(chance), any(chance, depth + 1))).collect::<Map<_, _>>().into(),
    }
}

fn export(fleet: &Fleet) -> Result<String> {
    let of_kind = |kind: KindFields| fleet.stemma(&["get", &kind.kind.to_ascii_lowercase(), "-o", "manifest"]);
    Ok(kinds().into_iter().map(of_kind).collect::<Result<Vec<_>>>()?.join("---\n"))
}

fn apply(fleet: &Fleet, file: &Path) -> Result<Value> {
    let file = file.to_string_lossy();
    let answer = fleet.stemma(&["--manager", MANAGER, "--yes", "apply", "-o", "json", "-f", &file])?;
    serde_json::from_str(&answer).context("an answer in JSON")
}

#[test]
fn y07_what_is_exported_is_imported_without_a_change_of_object_or_owner() -> Result<()> {
    let mut chance = Chance::seeded()?;
    let (fleet, other) = (Fleet::start()?, Fleet::start()?);
    let (drawn, exported) = (fleet.dir().join("drawn.json"), fleet.dir().join("exported.yaml"));
    let [release, ..] = kinds();
    // The one that the examples of other kinds name.
    let named = object(&mut chance, &release, 100)?;
    for round in 0..if is_long() { 60 } else { 6 } {
        let mut objects = vec![named.clone()];
        for kind in kinds() {
            let mut object = object(&mut chance, &kind, 60)?;
            if kind.kind == release.kind {
                // What is released stays as it is.
                object["version"] = format!("drawn-{round}").into();
            }
            objects.push(object);
        }
        std::fs::write(&drawn, json!(objects).to_string())?;
        apply(&fleet, &drawn)?;
        let text = export(&fleet)?;
        std::fs::write(&exported, &text)?;
        let again = apply(&fleet, &exported).with_context(|| text.clone())?;
        for one in again["objects"].as_array().context("objects")? {
            assert_eq!(one["action"], "unchanged", "{one}\n{text}");
        }
        assert_eq!(export(&fleet)?, text);
        apply(&other, &exported)?;
        assert_eq!(export(&other)?, text);
    }
    Ok(())
}

/// Glance's clients are shown no owners: who asks for them is, and so is an export's reader.
#[test]
fn y07_a_namespace_is_exported_with_what_its_manager_says_at_defaults() -> Result<()> {
    let fleet = Fleet::start()?;
    let (drawn, exported) = (fleet.dir().join("namespace.json"), fleet.dir().join("namespace.yaml"));
    let namespace =
        json!({"kind": "Namespace", "namespace": "Site", "visibility": "private", "labels": {}, "description": "x"});
    std::fs::write(&drawn, namespace.to_string())?;
    apply(&fleet, &drawn)?;
    let owners = || -> Result<Value> {
        let shown: Value = serde_json::from_str(&fleet.stemma(&["get", "namespace", "Site", "-o", "json"])?)?;
        Ok(shown["field_owners"].clone())
    };
    let said = json!(["git:apply"]);
    assert_eq!(owners()?, json!({"description": said, "labels": said, "visibility": said}));
    let text = fleet.stemma(&["get", "namespaces", "-o", "manifest"])?;
    std::fs::write(&exported, &text)?;
    let again = apply(&fleet, &exported)?;
    assert_eq!(again["objects"][0]["action"], "unchanged", "{again}\n{text}");
    assert_eq!(owners()?, json!({"description": said, "labels": said, "visibility": said}), "{text}");
    Ok(())
}

/// The values are those of the manifests: the count is not the one node that is there, and what the template has is the template's.
#[test]
fn y07_what_an_answer_counts_and_takes_over_is_exported_as_its_author_said_it() -> Result<()> {
    let fleet = Fleet::start()?;
    let (drawn, exported) = (fleet.dir().join("drawn.json"), fleet.dir().join("exported.yaml"));
    let objects = json!([
        {"kind": "ClusterTemplate", "name": "t", "image_id": "i1", "docker_volume_size": 5, "flavor_id": "f1"},
        {"kind": "Cluster", "name": "c", "cluster_template": "t", "node_count": 3, "master_count": 2},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "node_count": 2, "is_default": true},
        {"kind": "Node", "name": "n", "nodegroup": "c/g"},
    ]);
    std::fs::write(&drawn, objects.to_string())?;
    apply(&fleet, &drawn)?;
    // With the cluster's groups of Magnum's, whose fields belong to nobody.
    fleet.stemma(&["create", "cluster", "posted", "--cluster-template", "t"])?;
    let text = export(&fleet)?;
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
    let again = apply(&fleet, &exported)?;
    for one in again["objects"].as_array().context("objects")? {
        let name = one["name"].as_str().context("a name")?;
        assert!(one["action"] == "unchanged" || name.starts_with("posted"), "{one}\n{text}");
    }
    // Who owns what was posted has changed, as the comments above it told.
    assert_eq!(without_comments(&export(&fleet)?), without_comments(&text));
    Ok(())
}

fn without_comments(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("# ")).map(|line| format!("{line}\n")).collect()
}

/// Two managers and a person: each manager's part changes no owner where it applies that, and what is printed of all of them says whose it is.
#[test]
fn y07_a_managers_part_is_exported_alone_and_changes_no_owner_where_it_is_applied() -> Result<()> {
    let fleet = Fleet::start()?;
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
    let fields = [
        "generation",
        "field_owners",
        "label_owners",
        "annotation_owners",
        "parameter_owners",
        "provided_labels",
        "stored",
    ];
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
            "# Owned: labels.a, merge_labels by m:apply; labels.b, node_drain_timeout, parameters.p by x:apply. Who",
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
    // Of what it applies nothing of, no manifest is printed, and that is said.
    let none = "cluster/c: x applies nothing there";
    let (printed, said, _) = fleet.ran(&["--manager", "x", "get", "clusters", "-o", "manifest"])?;
    assert!(printed.starts_with(&format!("# Left out: {none}")) && said.contains(none), "{printed}{said}");
    let (printed, said, status) = fleet.ran(&["--manager", "x", "get", "cluster", "c", "-o", "manifest"])?;
    assert!(status != 0 && printed.is_empty() && said.contains(none), "{status} {printed}{said}");
    let (_, said, status) = fleet.ran(&["--manager", "x:apply", "get", "cluster", "c", "-o", "manifest"])?;
    assert!(status == 2 && said.contains("leave ':apply'"), "{status} {said}");
    Ok(())
}

/// What is printed for `apply` is read by it, or nothing is printed and a sentence says why.
#[test]
fn y07_what_no_apply_reads_is_printed_as_no_manifest() -> Result<()> {
    let fleet = Fleet::start()?;
    let (printed, said, status) = fleet.ran(&["get", "nodes", "-o", "manifest"])?;
    assert_eq!((printed.as_str(), status), ("", 0));
    assert_eq!(said, "no node is listed, so no manifest is printed\n");
    let (_, said, _) = fleet.ran(&["apply", "-f", "-"])?;
    assert!(said.contains("no object here: standard input holds none"), "{said}");
    let manifest = fleet.dir().join("manifest.yaml");
    std::fs::write(&manifest, "kind: Release\nname: r\nversion: \"1\"\n---\nkind: Node\nname: n\n")?;
    apply(&fleet, &manifest)?;
    for (arguments, told) in [
        (&["get", "tokens"][..], "apply makes no token"),
        (&["get", "allocations"], "apply makes no allocation"),
        (&["tag", "list", "--release", "r@1"], "a tag has no manifest of its own"),
        (&["get", "tasks"], "a task has no manifest of its own"),
    ] {
        let (printed, said, status) = fleet.ran(&[arguments, &["-o", "manifest"]].concat())?;
        assert!(status != 0 && printed.is_empty() && said.contains(told), "{arguments:?}: {said}");
    }
    let driven = json!({"driver": "fake"});
    let (status, made) =
        Operator::of(&fleet.data(), fleet.bound())?.call("POST", "/v1/nodes", "application/json", &driven)?;
    assert_eq!((status, &made["name"]), (201, &Value::Null), "{made}");
    let text = fleet.stemma(&["get", "nodes", "-o", "manifest"])?;
    let nameless = format!("# Left out: node/{} has no name", made["uuid"].as_str().context("a uuid")?);
    assert!(text.starts_with(&nameless) && text.matches("kind: Node").count() == 1, "{text}");
    std::fs::write(&manifest, &text)?;
    assert_eq!(apply(&fleet, &manifest)?["objects"][0]["action"], "unchanged", "{text}");
    std::fs::write(&manifest, fleet.stemma(&["get", "node", "n", "-o", "yaml"])?)?;
    let (_, said, status) = fleet.ran(&["apply", "-f", &manifest.to_string_lossy()])?;
    assert!(status != 0 && said.contains("stemma get -o manifest"), "{said}");
    Ok(())
}

/// A tag beside a release is no part of the release, and no kind of manifest is a tag.
#[test]
fn y07_tags_beside_a_release_are_named_where_its_export_lacks_them() -> Result<()> {
    let fleet = Fleet::start()?;
    let manifest = fleet.dir().join("manifest.yaml");
    let release = |version: &str| format!("kind: Release\nname: r\nversion: \"{version}\"\ntags: {{own: {{}}}}\n");
    std::fs::write(&manifest, [release("1"), release("2")].join("---\n"))?;
    apply(&fleet, &manifest)?;
    fleet.stemma(&["tag", "create", "canary", "--release", "r@1"])?;
    let (printed, said, _) = fleet.ran(&["get", "releases", "-o", "manifest"])?;
    let beside = "left out: the tags beside release/r@";
    assert!(said.matches(beside).count() == 1 && said.contains("whatever its version: canary; "), "{said}");
    assert!(printed.starts_with("# Left out: the tags beside release/r@"), "{printed}");
    std::fs::write(&manifest, &printed)?;
    let again = apply(&fleet, &manifest)?;
    for one in again["objects"].as_array().context("objects")? {
        assert_eq!(one["action"], "unchanged", "{one}\n{printed}");
    }
    Ok(())
}
