//! Fuel's real library through the operator's command. The test imports the library, and resolves two real clusters
//! from manifests. The tasks of each node must equal the results of Fuel. Their order may differ only by dependencies
//! that are YAQL expressions or have `policy: any`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::{program, shared};

/// A task of a node: the name of the node (or [`STAGE_NODE`] for a stage), and the id of the task.
type FuelInstance = (String, String);
/// An order of two task instances: the first runs before the second.
type FuelEdge = (FuelInstance, FuelInstance);

/// The name in place of a node for a stage. A stage is on no node, and Fuel writes `null`.
const STAGE_NODE: &str = "null";

/// Imports Fuel's library, writes the manifest of the release to `dir`, and returns the release as JSON. Returns `None`
/// if the shared test material is missing.
fn import_release(dir: &Path) -> Result<Option<Value>> {
    let Some(library) = shared::path("data/fuel/fuel_library_tasks.json") else { return Ok(None) };
    let library = library.to_string_lossy().into_owned();
    let arguments = ["release", "import", "--fuel", &library, "--name", "fuel", "--version", "9", "-o", "manifest"];
    let manifest = program::succeed("stemma", arguments)?;
    let last_line = manifest.lines().last().unwrap_or_default();
    // The library has 204 tasks. Of these, 11 groups, 6 stages and 4 tasks of type `skipped` run nothing.
    assert!(last_line.starts_with("# ") && last_line.contains(" of 183 tasks can run"), "{last_line}");
    std::fs::write(dir.join("release.yaml"), &manifest)?;
    let arguments = ["release", "import", "--fuel", &library, "--name", "fuel", "--version", "9", "-o", "json"];
    Ok(Some(serde_json::from_str(&program::succeed("stemma", arguments)?)?))
}

/// Writes the manifests of a cluster to `dir`, with the nodes, roles and primaries in Fuel's result `expected`. Fuel
/// gives the tag `primary-TAG` to the primary of `TAG`.
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

/// Returns the output of `stemma resolve` for the manifests in a directory.
fn resolve_manifests(dir: &Path) -> Result<Value> {
    let dir = dir.to_string_lossy();
    Ok(serde_json::from_str(&program::succeed("stemma", ["resolve", "-f", &dir, "-o", "json"])?)?)
}

/// Returns the tasks of all nodes, and the stages, from the output of `stemma resolve`. The tasks include those whose
/// condition leaves them out, because Fuel's results treat every condition as true.
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

/// Returns the order of tasks from the output of `stemma resolve`: pairs of task instances. The node of a stage is null
/// there. Fails if a pair occurs twice.
fn resolved_edges(resolved: &Value) -> Result<BTreeSet<FuelEdge>> {
    let pairs: Vec<[(Option<String>, String); 2]> = serde_json::from_value(resolved["order"].clone())?;
    assert_eq!(pairs.iter().collect::<BTreeSet<_>>().len(), pairs.len(), "a pair occurs twice");
    let to_instance = |(node, task): (Option<String>, String)| (node.unwrap_or(STAGE_NODE.to_owned()), task);
    Ok(pairs.into_iter().map(|[before, after]| (to_instance(before), to_instance(after))).collect())
}

/// Returns the order of tasks that Fuel computed. Its result lists the task instances, and each edge as two indexes
/// into this list.
fn expected_edges(expected: &Value) -> Result<BTreeSet<FuelEdge>> {
    let instances: Vec<FuelInstance> = serde_json::from_value(expected["instances"].clone())?;
    let edges: Vec<(usize, usize)> = serde_json::from_value(expected["edges"].clone())?;
    // An edge from an instance to itself orders nothing. Fuel's engine ignores it, and `order` does not contain it.
    let pairs = edges.into_iter().map(|(before, after)| (instances[before].clone(), instances[after].clone()));
    Ok(pairs.filter(|(before, after)| before != after).collect())
}

/// Returns the ids of the tasks whose dependencies on other nodes are YAQL expressions. Stemma does not evaluate YAQL,
/// and the import lists these fields as `untranslated`.
fn yaql_tasks(release: &Value) -> BTreeSet<&str> {
    let has_yaql_dependency = |task: &&Value| {
        let fields = task["foreign"]["untranslated"].as_array();
        // The dependencies on other nodes are the fields `cross_depends` and `cross_depended_by`.
        fields.into_iter().flatten().filter_map(Value::as_str).any(|field| field.starts_with("cross"))
    };
    release["tasks"].as_array().into_iter().flatten().filter(has_yaql_dependency).filter_map(|task| task["id"].as_str()).collect()
}

/// Compares the task instances, the tags and the order of tasks with Fuel's results for two clusters.
#[test]
fn resolve_places_and_orders_real_clusters_like_fuel() -> Result<()> {
    // The last two numbers are the missing and the additional edges. Missing edges depend on a YAQL expression.
    // Additional edges are those of `policy: any`, which Fuel's result omits: five nodes wait for the first node that
    // has the task.
    for (file, nodes, instances, missing_count, additional_count) in
        [("expected_ha_ceph.json", 8, 631, 33, 5), ("expected_all_in_one.json", 1, 177, 2, 0)]
    {
        let dir = tempfile::tempdir()?;
        let Some(release) = import_release(dir.path())? else { return Ok(()) };
        let Some(path) = shared::path(&format!("data/fuel/{file}")) else { return Ok(()) };
        let expected: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        write_cluster(dir.path(), &expected)?;
        let resolved = resolve_manifests(dir.path())?;

        let expected_instances: BTreeSet<FuelInstance> = serde_json::from_value(expected["instances"].clone())?;
        assert_eq!(placed_instances(&resolved), expected_instances, "{file}");
        assert_eq!((expected["nodes"].as_array().map(Vec::len), expected_instances.len()), (Some(nodes), instances));
        for (node, tags) in expected["effective_tags"].as_object().context("effective_tags")? {
            assert_eq!(&resolved["nodes"][node]["tags"], tags, "{file}: the names that selectors match on {node}");
        }

        let (found_edges, expected_edges) = (resolved_edges(&resolved)?, expected_edges(&expected)?);
        let yaql_task_ids = yaql_tasks(&release);
        assert_eq!(
            yaql_task_ids,
            BTreeSet::from(["cluster", "hiera_default_route", "netconfig"]),
            "the tasks with YAQL dependencies"
        );
        let missing: Vec<&FuelEdge> = expected_edges.difference(&found_edges).collect();
        // `edge.0.1` and `edge.1.1` are the ids of the two tasks of an edge.
        let depends_on_yaql =
            |edge: &&&FuelEdge| yaql_task_ids.contains(edge.0.1.as_str()) || yaql_task_ids.contains(edge.1.1.as_str());
        assert!(missing.iter().all(|edge| depends_on_yaql(&edge)), "{file}: missing {missing:?}");
        let any_task = expected["policy_any"]["task"].as_str().context("the task of policy any")?;
        let additional: Vec<&FuelEdge> = found_edges.difference(&expected_edges).collect();
        assert!(additional.iter().all(|edge| edge.1.1 == any_task), "{file}: too many {additional:?}");
        assert_eq!(
            (missing.len(), additional.len()),
            (missing_count, additional_count),
            "{file}: of {} edges",
            expected_edges.len()
        );
    }
    Ok(())
}

/// Checks the imported release: its numbers of tasks, roles and tags, and the fields that the import could not
/// translate. The manifest of the release must be valid.
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
    let output =
        fleet.cli(&["release", "import", "--fuel", &library, "--name", "fuel", "--version", "9", "--manager", "other"])?;
    assert!(output.status.success(), "a second import of the same content succeeds: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Regression: the import printed its translation and ended with 0, although a controller would refuse the translation.
/// The refused names are invalid names of roles.
#[test]
fn y04_import_is_refused_equally_when_printed_or_stored() -> Result<()> {
    let fleet = TempFleet::start()?;
    let library = fleet.dir().join("library");
    std::fs::create_dir(&library)?;
    let import = |role: &str, options: &[&str]| -> Result<(String, String, i32)> {
        let task = json!({"id": "t1", "type": "shell", "version": "2.0.0", "role": [role], "requires": [],
            "parameters": {"cmd": "true", "timeout": 60}});
        std::fs::write(library.join("tasks.yaml"), json!([task]).to_string())?;
        let path = library.to_string_lossy();
        fleet.run_cli(&[&["release", "import", "--fuel", &path, "--name", "fuel", "--version", "1"][..], options].concat())
    };
    for role in ["Self", "NULL", "", " ", "a\nb"] {
        for options in [&["--dry-run"][..], &["-o", "manifest"], &["-o", "json"], &[]] {
            let (stdout, stderr, status) = import(role, options)?;
            assert!(status == 1 && stderr.contains("tasks[0].roles[0]"), "{role:?} {options:?}: {status} {stderr}");
            assert_eq!(stdout.contains("Release"), options.contains(&"-o"), "{role:?} {options:?}: {stdout}");
        }
    }
    let (stdout, stderr, status) = import("web", &["--dry-run"])?;
    assert!(status == 0 && stdout.contains("kind: Release") && stdout.contains("1 of 1 tasks can run"), "{stdout}{stderr}");
    let result_message = "release fuel@1 would be created\n";
    let reach_message = "dry run: nothing was written; this would reach 0 hosts";
    assert!(stderr.contains(result_message) && stderr.contains(reach_message), "{stderr}");
    // Exit status 3: the release does not exist.
    assert_eq!(fleet.run_cli(&["get", "release", "fuel@1"])?.2, 3, "nothing is stored");
    let (stdout, stderr, status) = import("web", &["-o", "manifest"])?;
    assert!(status == 0 && stdout.contains("kind: Release") && !stderr.contains("dry run"), "{stdout}{stderr}");
    Ok(())
}
