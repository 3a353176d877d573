//! Three programs give the same answer: `stemma resolve` from manifests, the controller, and the host. Fleets are
//! random, programs are real, and the agents have the traits and facts that they detected and the labels that their
//! hosts report. Each run draws other fleets, and prints the seed of each.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{eventually, run, succeed};
use stemma_tests::seed::{SeededRng, is_long};

const TAGS: &[&str] = &["alpha", "beta", "gamma", "delta", "mysql:1"];
const KEYS: &[&str] = &["tier", "zone", "example.org/rack", "debug", "node-role.kubernetes.io/web"];
const TRAITS: &[&str] = &["HW_CPU_X86_AVX2", "HW_CPU_X86_SSE42", "CUSTOM_FAST", "COMPUTE_NODE"];
/// Label keys that a host may be allowed to report.
const REPORTED_KEYS: &[&str] = &["tier", "zone", "example.org/rack", "slot"];
const GROUPS: [&str; 3] = ["left", "middle", "right"];
const NODES: [(&str, &str); 8] = [
    ("n-2", "left"),
    ("n-10", "left"),
    ("n-1", "right"),
    ("n-3", "middle"),
    ("n-20", "right"),
    ("a", "middle"),
    ("n-11", "left"),
    ("z", "right"),
];
/// The fields that all three answers have: those of the controller, of `stemma resolve` and of the host. (The host does
/// not know its roles.)
const COMPARED_FIELDS: [&str; 8] = ["labels", "annotations", "traits", "tags", "primary_tags", "tasks", "skipped", "task_digest"];

/// The manifests of a random fleet.
struct DrawnFleet {
    /// The manifests of the release, the cluster template, the cluster and the groups, in this order.
    shared: Vec<Value>,
    /// The manifests of the nodes, which are applied in full after the hosts have joined.
    nodes: Vec<Value>,
    /// True if selectors match the primary of a tag only by the name `primary-TAG`, and not also by `TAG`. Selectors of
    /// roles then match tags instead of roles.
    has_strict_matching: bool,
}

impl DrawnFleet {
    /// Draws the manifests of the nodes in [`NODES`] and of everything that they refer to.
    fn new(rng: &mut SeededRng) -> Self {
        let has_strict_matching = rng.is_within_percent(50);
        let accepted_keys = rng.sample(REPORTED_KEYS, 60);
        let shared = vec![
            draw_release(rng, has_strict_matching),
            draw_level(rng, json!({"kind": "ClusterTemplate", "name": "base", "release": "drawn@1"})),
            draw_level(
                rng,
                json!({"kind": "Cluster", "name": "c", "cluster_template": "base", "host_labels": {"accept": accepted_keys}}),
            ),
            draw_group(rng, GROUPS[0]),
            draw_group(rng, GROUPS[1]),
            draw_group(rng, GROUPS[2]),
        ];
        let nodes = NODES.map(|(name, group)| draw_node(rng, name, group)).into();
        Self { shared, nodes, has_strict_matching }
    }

    /// Returns the nodes with only their group and roles, to be applied before the hosts join.
    ///
    /// A role without tags can bring tasks that are all left out. The task digest does not cover left-out tasks, so the
    /// controller sends no new task set when a host gets such a role later. The host would not list these tasks.
    fn nodes_with_roles(&self) -> Vec<Value> {
        let with_roles =
            |node: &Value| json!({"kind": "Node", "name": node["name"], "nodegroup": node["nodegroup"], "roles": node["roles"]});
        self.nodes.iter().map(with_roles).collect()
    }
}

/// Draws a release with random tags, roles and tasks, and the matching of [`DrawnFleet::has_strict_matching`].
fn draw_release(rng: &mut SeededRng, has_strict_matching: bool) -> Value {
    let mut tags = Map::new();
    for tag in TAGS {
        tags.insert((*tag).to_owned(), json!({"has_primary": rng.is_within_percent(40)}));
    }
    let mut roles = json!({"plain": {}});
    for role in ["one", "two", "three"] {
        roles[role] = json!({"tags": rng.sample(TAGS, 50)});
    }
    let mut tasks =
        vec![json!({"id": "t0", "type": "shell", "roles": "*", "parameters": {"command": ["true"], "creates": "/etc"}})];
    for number in 1..4 + rng.next_below(8) {
        let task = draw_task(rng, number);
        tasks.push(task);
    }
    let matching = json!({"roles": if has_strict_matching { "tags" } else { "own" }, "primary": if has_strict_matching { "replaces" } else { "adds" }});
    json!({"kind": "Release", "name": "drawn", "version": "1", "roles": roles, "tags": tags, "tasks": tasks, "matching": matching})
}

/// Draws the task `t{number}`. It can require any task with a lower number.
fn draw_task(rng: &mut SeededRng, number: usize) -> Value {
    let earlier_tasks: Vec<String> = (0..number).map(|earlier| format!("t{earlier}")).collect();
    let mut task = json!({"id": format!("t{number}"), "type": "file", "requires": rng.sample(&earlier_tasks, 25)});
    match rng.next_below(4) {
        0 => task["roles"] = json!(rng.choose(&["one", "/t.*/", "*", "plain"])),
        1 => task["tags"] = json!([rng.choose(&["/primary-.*/", "/.*a/", "/mysql(:.*)?/"])]),
        2 => task["type"] = json!("skipped"),
        _ => task["tags"] = json!(rng.sample(TAGS, 40)),
    }
    if task["type"] == "skipped" {
        task["tags"] = json!([rng.choose(TAGS)]);
        return task;
    }
    if rng.is_within_percent(50) {
        task["condition"] = json!(rng.choose(&[
            "has(labels.tier) && labels.tier == 'gold'",
            "labels.zone == 'a'",
            "'HW_CPU_X86_AVX2' in traits || 'alpha' in tags",
            "'CUSTOM_FAST' in traits",
            "size(nodes(tag='beta')) > 1",
            "facts.cpu.count > 0",
            "params.limits.high > 3",
        ]));
    }
    let template = rng.choose(&[
        "{{ labels.tier|default('none') }}",
        "{{ node.name }} {{ facts.hostname }} {{ facts.cpu.count }}",
        "{% for n in nodes(tag='alpha') %}{{ n.name }} {{ n.labels.zone|default('') }};{% endfor %}",
        "{% if primary('beta') is defined %}{{ primary('beta').name }}{% endif %}",
        "{{ params.limits.high|default(0) }} {% for k, v in labels_with_prefix('example.org/')|items %}{{ k }}{{ v }}{% endfor %}",
        "{{ 'HW_CPU_X86_SSE42' in traits }} {{ 'gamma' in tags }}",
    ]);
    task["parameters"] = json!({"path": format!("/etc/drawn/{number}"), "template": template});
    task
}

/// Adds random labels, annotations and parameters to the manifest of one level, and returns the manifest.
fn draw_level(rng: &mut SeededRng, mut object: Value) -> Value {
    let is_merging = rng.is_within_percent(70);
    if rng.is_within_percent(80) {
        let value = |rng: &mut SeededRng| match rng.next_below(5) {
            // A tombstone is possible only on a level that merges its labels.
            0 if is_merging => Value::Null,
            1 => json!(7),
            2 => json!(true),
            _ => json!(rng.choose(&["gold", "a", "b", "with space", ""])),
        };
        let keys = rng.sample(KEYS, 50);
        object["labels"] = keys.into_iter().map(|key| (key.to_owned(), value(rng))).collect::<Map<_, _>>().into();
        object["merge_labels"] = is_merging.into();
    }
    if rng.is_within_percent(40) {
        object["annotations"] = json!({"note": rng.choose(&[json!("x\ny"), Value::Null]), "Owner.example/Team": "ops"});
    }
    if rng.is_within_percent(50) {
        object["parameters"] =
            json!({"limits": rng.choose(&[json!({"high": 5}), json!({"high": 2.5}), Value::Null]), "list": [1, "2", null]});
    }
    object
}

/// Draws a node group with random mode, roles and labels.
fn draw_group(rng: &mut SeededRng, name: &str) -> Value {
    let (mode, roles) = (rng.choose(&["apply", "noop", "observe"]), rng.sample(&["one", "two", "plain"], 50));
    draw_level(rng, json!({"kind": "NodeGroup", "cluster": "c", "name": name, "roles": roles, "mode": mode}))
}

/// Draws a node with random roles, traits and labels. Some tags are assigned to the node, and others are unassigned.
fn draw_node(rng: &mut SeededRng, name: &str, group: &str) -> Value {
    let tags = rng.sample(TAGS, 60);
    let (assigned, unassigned) = tags.split_at(tags.len() / 2);
    let object = json!({"kind": "Node", "name": name, "nodegroup": format!("c/{group}"), "roles": rng.sample(&["two", "three"], 40),
        "tags": {"assigned": assigned, "unassigned": unassigned}, "traits": rng.sample(TRAITS, 30),
        "suppressed_traits": rng.sample(&TRAITS[..2], 30)});
    draw_level(rng, object)
}

/// Applies manifests as one JSON file.
fn apply_objects(fleet: &TempFleet, objects: &[Value]) -> Result<()> {
    let file = fleet.dir().join("apply.json");
    std::fs::write(&file, json!(objects).to_string())?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()]).map(drop)
}

/// Returns the JSON answer of the controller to a `GET` of this path.
fn get_raw(fleet: &TempFleet, path: &str) -> Result<Value> {
    Ok(serde_json::from_str(&fleet.stemma(&["get", "--raw", path])?)?)
}

/// Returns the output of `stemma resolve` for the manifests. Each node gets the facts, traits and labels that its host
/// reported. The cluster gets the primaries in `answers`, the controller's answers, because manifests do not contain a
/// choice of the controller.
fn resolve_manifests(fleet: &TempFleet, drawn_fleet: &DrawnFleet, answers: &BTreeMap<&str, Value>) -> Result<Value> {
    let mut objects = drawn_fleet.shared.clone();
    let mut primaries = Map::new();
    for (name, answer) in answers {
        let primary_tags = answer["primary_tags"].as_array().into_iter().flatten().filter_map(Value::as_str);
        primaries.extend(primary_tags.map(|tag| (tag.to_owned(), json!(name))));
    }
    // The third manifest is the cluster.
    objects[2]["primaries"] = primaries.into();
    for node in &drawn_fleet.nodes {
        let name = node["name"].as_str().context("a name")?;
        let observation = get_raw(fleet, &format!("/v1/nodes/{name}/report"))?["observation"].clone();
        observation["facts"].as_object().context("the host has reported no facts")?;
        let mut node = node.clone();
        node["uuid"] = get_raw(fleet, &format!("/v1/nodes/{name}"))?["uuid"].clone();
        node["reports"] =
            json!({"facts": observation["facts"], "traits": observation["traits"], "labels": observation["labels"]});
        objects.push(node);
    }
    let file = fleet.dir().join("resolve.json");
    std::fs::write(&file, Value::from(objects).to_string())?;
    Ok(serde_json::from_str(&succeed("stemma", ["resolve", "-f", &file.to_string_lossy(), "-o", "json"])?)?)
}

/// Returns the JSON status that the host's agent prints. But `tasks` has only ids, and in `tags`, a tag whose primary
/// is this host has the name `primary-TAG`, and also `TAG` unless `has_strict_matching` is true.
fn host_output(agent: &TestAgent, has_strict_matching: bool) -> Result<Value> {
    let root = agent.path("");
    // If a task has failed, the command ends with its own exit status, but prints its output anyway.
    let output = run("stemma-agent", ["--root", &root.to_string_lossy(), "status", "-o", "json"])?;
    let mut status: Value = serde_json::from_slice(&output.stdout).context("status")?;
    let names = |value: &Value| {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let primary_tags = names(&status["primary_tags"]);
    let mut tags = names(&status["tags"]);
    tags.retain(|tag| !has_strict_matching || !primary_tags.contains(tag));
    tags.extend(primary_tags.iter().map(|tag| format!("primary-{tag}")));
    status["tags"] = json!(tags);
    status["tasks"] = status["tasks"].as_array().into_iter().flatten().map(|task| task["id"].clone()).collect();
    Ok(status)
}

/// Returns only those fields of an answer that all three programs give.
fn compared_fields(answer: &Value) -> Value {
    COMPARED_FIELDS.iter().map(|field| ((*field).to_owned(), answer[field].clone())).collect::<Map<_, _>>().into()
}

/// Returns the compared fields without the reasons for skipped tasks. The controller sends no new task set when only a
/// reason changes, so the host may still have an earlier reason.
fn compared_host_fields(answer: &Value) -> Value {
    let mut compared = compared_fields(answer);
    for reason in compared["skipped"].as_object_mut().into_iter().flat_map(Map::values_mut) {
        *reason = Value::Null;
    }
    compared
}

/// Writes random labels into a file that the host's agent reads and reports. The cluster accepts only some of these
/// keys from hosts.
fn write_label_files(rng: &mut SeededRng, root: &Path) -> Result<()> {
    let directory = root.join("etc/stemma/labels.d");
    std::fs::create_dir_all(&directory)?;
    let lines =
        rng.sample(REPORTED_KEYS, 60).into_iter().map(|key| format!("{key}={}\n", rng.choose(&["gold", "a", "of-the-host"])));
    std::fs::write(directory.join("10-host"), lines.collect::<String>())?;
    Ok(())
}

/// Fails if an answer differs from the controller's answer. `program` names the source of the answer.
fn check_equal(program: &str, answer: &Value, expected: &Value) -> Result<()> {
    ensure!(answer == expected, "{program} has\n{answer:#}\nand the controller has\n{expected:#}");
    Ok(())
}

/// Draws a fleet from the seed, starts its hosts, and waits until all three programs give the same answer for each
/// node.
fn check_fleet(seed: u64) -> Result<()> {
    let mut rng = SeededRng::new(seed);
    let drawn_fleet = DrawnFleet::new(&mut rng);
    let fleet = TempFleet::start()?;
    apply_objects(&fleet, &drawn_fleet.shared)?;
    apply_objects(&fleet, &drawn_fleet.nodes_with_roles())?;
    let mut agents = Vec::new();
    for (name, group) in NODES {
        write_label_files(&mut rng, &fleet.dir().join(name))?;
        agents.push((name, fleet.join(name, &format!("c/{group}"))?));
    }
    apply_objects(&fleet, &drawn_fleet.nodes)?;
    eventually(&format!("the same answer from all three programs (seed {seed})"), || {
        let answers = NODES.iter().map(|(name, _)| Ok((*name, get_raw(&fleet, &format!("/v1/nodes/{name}/resolved"))?)));
        let answers = answers.collect::<Result<BTreeMap<_, _>>>()?;
        let resolved = resolve_manifests(&fleet, &drawn_fleet, &answers)?;
        for (name, agent) in &agents {
            let (controller_answer, resolve_answer, host_answer) =
                (&answers[name], &resolved["nodes"][name], host_output(agent, drawn_fleet.has_strict_matching)?);
            ensure!(
                resolve_answer["roles"] == controller_answer["roles"],
                "{name}: roles {} and {}",
                resolve_answer["roles"],
                controller_answer["roles"]
            );
            check_equal(
                &format!("{name}: stemma resolve"),
                &compared_fields(resolve_answer),
                &compared_fields(controller_answer),
            )?;
            check_equal(
                &format!("{name}: the host"),
                &compared_host_fields(&host_answer),
                &compared_host_fields(controller_answer),
            )?;
        }
        Ok(())
    })
}

#[test]
fn resolve_is_equal_from_manifests_controller_and_host() -> Result<()> {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    let first_seed = match std::env::var("STEMMA_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => u64::try_from(now_ms)?,
    };
    for seed in first_seed..first_seed + if is_long() { 40 } else { 4 } {
        println!("seed {seed} (STEMMA_SEED={seed} repeats this run)");
        check_fleet(seed)?;
    }
    Ok(())
}
