//! Fuel's real library through the operator's command. It is imported, then two real clusters are resolved from
//! manifests. The placements and edges must equal those that Fuel computed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::{program, shared};

type FuelInstance = (String, String);
type FuelEdge = (FuelInstance, FuelInstance);

/// The node of stages. They are on no node, and Fuel writes `null`.
const STAGE_NODE: &str = "null";

fn import_release(dir: &Path) -> Result<Option<Value>> {
    let Some(library) = shared::path("data/fuel/fuel_library_tasks.json") else { return Ok(None) };
    let library = library.to_string_lossy().into_owned();
    let arguments = ["release", "import", "--fuel", &library, "--name", "fuel", "--version", "9", "-o", "manifest"];
    let manifest = program::succeed("stemma", arguments)?;
    let last = manifest.lines().last().unwrap_or_default();
    // 204 tasks, minus 11 groups, 6 stages and 4 of type skipped.
    assert!(last.starts_with("# ") && last.contains(" of 183 tasks can run"), "{last}");
    std::fs::write(dir.join("release.yaml"), &manifest)?;
    let arguments = ["release", "import", "--fuel", &library, "--name", "fuel", "--version", "9", "-o", "json"];
    Ok(Some(serde_json::from_str(&program::succeed("stemma", arguments)?)?))
}

/// Writes the cluster's nodes as an operator would, with the primaries that Fuel chose.
fn write_cluster(dir: &Path, expected: &Value) -> Result<()> {
    let nodes = expected["nodes"].as_array().context("nodes")?;
    let effective = expected["effective_tags"].as_object().context("effective_tags")?;
    let mut primaries = BTreeMap::new();
    for (node, tags) in effective {
        for tag in tags.as_array().into_iter().flatten().filter_map(Value::as_str) {
            primaries.extend(tag.strip_prefix("primary-").map(|tag| (tag, node)));
        }
    }
    let mut objects = vec![
        json!({"kind": "Cluster", "name": "c", "release": "fuel@9", "primaries": primaries}),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "all"}),
    ];
    objects.extend(
        nodes.iter().map(|node| json!({"kind": "Node", "name": node["id"], "nodegroup": "c/all", "roles": node["roles"]})),
    );
    Ok(std::fs::write(dir.join("cluster.json"), Value::Array(objects).to_string())?)
}

fn resolve_manifests(dir: &Path) -> Result<Value> {
    let dir = dir.to_string_lossy();
    Ok(serde_json::from_str(&program::succeed("stemma", ["resolve", "-f", &dir, "-o", "json"])?)?)
}

fn placed_instances(resolved: &Value) -> BTreeSet<FuelInstance> {
    let mut placed = BTreeSet::new();
    for (node, answer) in resolved["nodes"].as_object().into_iter().flatten() {
        let tasks = answer["tasks"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let skipped = answer["skipped"].as_object().into_iter().flatten().map(|(id, _)| id.as_str());
        placed.extend(tasks.chain(skipped).map(|task| (node.clone(), task.to_owned())));
    }
    let stages = resolved["stages"].as_array().into_iter().flatten().filter_map(Value::as_str);
    placed.extend(stages.map(|stage| (STAGE_NODE.to_owned(), stage.to_owned())));
    placed
}

fn resolved_edges(resolved: &Value) -> Result<BTreeSet<FuelEdge>> {
    let pairs: Vec<[(Option<String>, String); 2]> = serde_json::from_value(resolved["order"].clone())?;
    assert_eq!(pairs.iter().collect::<BTreeSet<_>>().len(), pairs.len(), "each pair once");
    let named = |(node, task): (Option<String>, String)| (node.unwrap_or(STAGE_NODE.to_owned()), task);
    Ok(pairs.into_iter().map(|[before, after]| (named(before), named(after))).collect())
}

fn expected_edges(expected: &Value) -> Result<BTreeSet<FuelEdge>> {
    let instances: Vec<FuelInstance> = serde_json::from_value(expected["instances"].clone())?;
    let edges: Vec<(usize, usize)> = serde_json::from_value(expected["edges"].clone())?;
    // An edge from an instance to itself orders nothing. Fuel's engine ignores it, and `order` does not contain it.
    let pairs = edges.into_iter().map(|(before, after)| (instances[before].clone(), instances[after].clone()));
    Ok(pairs.filter(|(before, after)| before != after).collect())
}

/// Returns the tasks whose dependencies across nodes use a YAQL expression, which is not evaluated.
fn yaql_tasks(release: &Value) -> BTreeSet<&str> {
    let mentions = |task: &&Value| {
        let fields = task["foreign"]["untranslated"].as_array();
        fields.into_iter().flatten().filter_map(Value::as_str).any(|field| field.starts_with("cross"))
    };
    release["tasks"].as_array().into_iter().flatten().filter(mentions).filter_map(|task| task["id"].as_str()).collect()
}

#[test]
fn resolve_places_and_orders_real_clusters_like_fuel() -> Result<()> {
    // The last two numbers are edges that use a YAQL expression and are not created, and additional edges of `policy:
    // any`. The expected edges omit the latter: each of the five nodes waits for the first node that has the task.
    for (file, nodes, instances, on_expressions, of_any) in
        [("expected_ha_ceph.json", 8, 631, 33, 5), ("expected_all_in_one.json", 1, 177, 2, 0)]
    {
        let dir = tempfile::tempdir()?;
        let Some(release) = import_release(dir.path())? else { return Ok(()) };
        let Some(path) = shared::path(&format!("data/fuel/{file}")) else { return Ok(()) };
        let expected: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        write_cluster(dir.path(), &expected)?;
        let resolved = resolve_manifests(dir.path())?;

        let wanted: BTreeSet<FuelInstance> = serde_json::from_value(expected["instances"].clone())?;
        assert_eq!(placed_instances(&resolved), wanted, "{file}");
        assert_eq!((expected["nodes"].as_array().map(Vec::len), wanted.len()), (Some(nodes), instances));
        for (node, tags) in expected["effective_tags"].as_object().context("effective_tags")? {
            assert_eq!(&resolved["nodes"][node]["tags"], tags, "{file}: the names that selectors match on {node}");
        }

        let (found, wanted) = (resolved_edges(&resolved)?, expected_edges(&expected)?);
        let yaql = yaql_tasks(&release);
        assert_eq!(yaql, BTreeSet::from(["cluster", "hiera_default_route", "netconfig"]), "listed apart");
        let missing: Vec<&FuelEdge> = wanted.difference(&found).collect();
        let rests = |edge: &&&FuelEdge| yaql.contains(edge.0.1.as_str()) || yaql.contains(edge.1.1.as_str());
        assert!(missing.iter().all(|edge| rests(&edge)), "{file}: missing {missing:?}");
        let any = expected["policy_any"]["task"].as_str().context("the task of policy any")?;
        let more: Vec<&FuelEdge> = found.difference(&wanted).collect();
        assert!(more.iter().all(|edge| edge.1.1 == any), "{file}: too many {more:?}");
        assert_eq!((missing.len(), more.len()), (on_expressions, of_any), "{file}: of {} edges", wanted.len());
    }
    Ok(())
}

#[test]
fn import_names_untranslated_parts() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let Some(release) = import_release(dir.path())? else { return Ok(()) };
    let count = |field: &str| release[field].as_object().map_or(0, serde_json::Map::len);
    assert_eq!((release["tasks"].as_array().map(Vec::len), count("roles"), count("tags")), (Some(204), 9, 13));
    assert_eq!(release["matching"], json!({"roles": "tags", "primary": "replaces"}));
    let task =
        |id: &str| release["tasks"].as_array().into_iter().flatten().find(|task| task["id"] == id).cloned().unwrap_or_default();
    // Checked manually in the library: a condition in YAQL, and a path that needs the cluster's number.
    assert_eq!(
        task("upload_cluster_configuration")["foreign"]["untranslated"],
        json!(["condition", "parameters.data", "parameters.path"])
    );
    assert_eq!(task("upload_cluster_configuration")["foreign"]["version"], "2.1.0");
    assert!(task("rsync_core_puppet")["foreign"]["untranslated"] == json!(["parameters.src"]));
    let validated = program::run("stemma", ["validate", "-f", &dir.path().to_string_lossy()])?;
    assert!(validated.status.success(), "{}", String::from_utf8_lossy(&validated.stderr));
    Ok(())
}

#[test]
fn controller_stores_real_fuel_library() -> Result<()> {
    let Some(library) = shared::path("data/fuel/fuel_library_tasks.json") else { return Ok(()) };
    let fleet = TempFleet::start()?;
    let library = library.to_string_lossy();
    let printed = fleet.stemma(&["release", "import", "--fuel", &library, "--name", "fuel", "--version", "9"])?;
    let last = printed.lines().last().unwrap_or_default();
    assert!(last.contains(" of 183 tasks can run"), "{last}");
    let release: Value = serde_json::from_str(&fleet.stemma(&["get", "release", "fuel@9", "-o", "json"])?)?;
    assert_eq!(release["tasks"].as_array().map(Vec::len), Some(204));
    let other =
        fleet.cli(&["release", "import", "--fuel", &library, "--name", "fuel", "--version", "9", "--manager", "other"])?;
    assert!(other.status.success(), "the same content again is no change: {}", String::from_utf8_lossy(&other.stderr));
    Ok(())
}

/// Previously, the translation was printed with status 0, even if a controller would refuse it.
#[test]
fn y04_import_is_refused_equally_when_printed_or_stored() -> Result<()> {
    let fleet = TempFleet::start()?;
    let library = fleet.dir().join("library");
    std::fs::create_dir(&library)?;
    let import = |role: &str, more: &[&str]| -> Result<(String, String, i32)> {
        let task = json!({"id": "t1", "type": "shell", "version": "2.0.0", "role": [role], "requires": [],
            "parameters": {"cmd": "true", "timeout": 60}});
        std::fs::write(library.join("tasks.yaml"), json!([task]).to_string())?;
        let path = library.to_string_lossy();
        fleet.run_cli(&[&["release", "import", "--fuel", &path, "--name", "fuel", "--version", "1"][..], more].concat())
    };
    for role in ["Self", "NULL", "", " ", "a\nb"] {
        for more in [&["--dry-run"][..], &["-o", "manifest"], &["-o", "json"], &[]] {
            let (out, told, status) = import(role, more)?;
            assert!(status == 1 && told.contains("tasks[0].roles[0]"), "{role:?} {more:?}: {status} {told}");
            assert_eq!(out.contains("Release"), more.contains(&"-o"), "{role:?} {more:?}: {out}");
        }
    }
    let (out, told, status) = import("web", &["--dry-run"])?;
    assert!(status == 0 && out.contains("kind: Release") && out.contains("1 of 1 tasks can run"), "{out}{told}");
    let decided = "release fuel@1 would be created\n";
    let reach = "dry run: nothing was written; this would reach 0 hosts";
    assert!(told.contains(decided) && told.contains(reach), "{told}");
    assert_eq!(fleet.run_cli(&["get", "release", "fuel@1"])?.2, 3, "nothing is stored");
    let (out, told, status) = import("web", &["-o", "manifest"])?;
    assert!(status == 0 && out.contains("kind: Release") && !told.contains("dry run"), "{out}{told}");
    Ok(())
}
