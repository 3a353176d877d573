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
/// The fields that all three answers have. (The host does not know its roles.)
const COMPARED_FIELDS: [&str; 8] = ["labels", "annotations", "traits", "tags", "primary_tags", "tasks", "skipped", "task_digest"];

/// The manifests of a fleet, with the nodes separate.
struct DrawnFleet {
    shared: Vec<Value>,
    nodes: Vec<Value>,
    should_replace: bool,
}

impl DrawnFleet {
    fn new(chance: &mut SeededRng) -> Self {
        let replaces = chance.is_within_percent(50);
        let accepted = chance.sample(REPORTED_KEYS, 60);
        let shared = vec![
            draw_release(chance, replaces),
            draw_level(chance, json!({"kind": "ClusterTemplate", "name": "base", "release": "drawn@1"})),
            draw_level(
                chance,
                json!({"kind": "Cluster", "name": "c", "cluster_template": "base", "host_labels": {"accept": accepted}}),
            ),
            draw_group(chance, GROUPS[0]),
            draw_group(chance, GROUPS[1]),
            draw_group(chance, GROUPS[2]),
        ];
        let nodes = NODES.map(|(name, group)| draw_node(chance, name, group)).into();
        Self { shared, nodes, should_replace: replaces }
    }
}

fn draw_release(chance: &mut SeededRng, replaces: bool) -> Value {
    let mut tags = Map::new();
    for tag in TAGS {
        tags.insert((*tag).to_owned(), json!({"has_primary": chance.is_within_percent(40)}));
    }
    let mut roles = json!({"plain": {}});
    for role in ["one", "two", "three"] {
        roles[role] = json!({"tags": chance.sample(TAGS, 50)});
    }
    let mut tasks =
        vec![json!({"id": "t0", "type": "shell", "roles": "*", "parameters": {"command": ["true"], "creates": "/etc"}})];
    for at in 1..4 + chance.next_below(8) {
        let task = draw_task(chance, at);
        tasks.push(task);
    }
    let matching = json!({"roles": if replaces { "tags" } else { "own" }, "primary": if replaces { "replaces" } else { "adds" }});
    json!({"kind": "Release", "name": "drawn", "version": "1", "roles": roles, "tags": tags, "tasks": tasks, "matching": matching})
}

fn draw_task(chance: &mut SeededRng, at: usize) -> Value {
    let before: Vec<String> = (0..at).map(|before| format!("t{before}")).collect();
    let mut task = json!({"id": format!("t{at}"), "type": "file", "requires": chance.sample(&before, 25)});
    match chance.next_below(4) {
        0 => task["roles"] = json!(chance.choose(&["one", "/t.*/", "*", "plain"])),
        1 => task["tags"] = json!([chance.choose(&["/primary-.*/", "/.*a/", "/mysql(:.*)?/"])]),
        2 => task["type"] = json!("skipped"),
        _ => task["tags"] = json!(chance.sample(TAGS, 40)),
    }
    if task["type"] == "skipped" {
        task["tags"] = json!([chance.choose(TAGS)]);
        return task;
    }
    if chance.is_within_percent(50) {
        task["condition"] = json!(chance.choose(&[
            "has(labels.tier) && labels.tier == 'gold'",
            "labels.zone == 'a'",
            "'HW_CPU_X86_AVX2' in traits || 'alpha' in tags",
            "'CUSTOM_FAST' in traits",
            "size(nodes(tag='beta')) > 1",
            "facts.cpu.count > 0",
            "params.limits.high > 3",
        ]));
    }
    let template = chance.choose(&[
        "{{ labels.tier|default('none') }}",
        "{{ node.name }} {{ facts.hostname }} {{ facts.cpu.count }}",
        "{% for n in nodes(tag='alpha') %}{{ n.name }} {{ n.labels.zone|default('') }};{% endfor %}",
        "{% if primary('beta') is defined %}{{ primary('beta').name }}{% endif %}",
        "{{ params.limits.high|default(0) }} {% for k, v in labels_with_prefix('example.org/')|items %}{{ k }}{{ v }}{% endfor %}",
        "{{ 'HW_CPU_X86_SSE42' in traits }} {{ 'gamma' in tags }}",
    ]);
    task["parameters"] = json!({"path": format!("/etc/drawn/{at}"), "template": template});
    task
}

/// Adds labels, annotations and parameters as an author might provide them at one level.
fn draw_level(chance: &mut SeededRng, mut object: Value) -> Value {
    let merges = chance.is_within_percent(70);
    if chance.is_within_percent(80) {
        let value = |chance: &mut SeededRng| match chance.next_below(5) {
            0 if merges => Value::Null,
            1 => json!(7),
            2 => json!(true),
            _ => json!(chance.choose(&["gold", "a", "b", "with space", ""])),
        };
        let keys = chance.sample(KEYS, 50);
        object["labels"] = keys.into_iter().map(|key| (key.to_owned(), value(chance))).collect::<Map<_, _>>().into();
        object["merge_labels"] = merges.into();
    }
    if chance.is_within_percent(40) {
        object["annotations"] = json!({"note": chance.choose(&[json!("x\ny"), Value::Null]), "Owner.example/Team": "ops"});
    }
    if chance.is_within_percent(50) {
        object["parameters"] =
            json!({"limits": chance.choose(&[json!({"high": 5}), json!({"high": 2.5}), Value::Null]), "list": [1, "2", null]});
    }
    object
}

fn draw_group(chance: &mut SeededRng, name: &str) -> Value {
    let (mode, roles) = (chance.choose(&["apply", "noop", "observe"]), chance.sample(&["one", "two", "plain"], 50));
    draw_level(chance, json!({"kind": "NodeGroup", "cluster": "c", "name": name, "roles": roles, "mode": mode}))
}

fn draw_node(chance: &mut SeededRng, name: &str, group: &str) -> Value {
    let tags = chance.sample(TAGS, 60);
    let (assigned, unassigned) = tags.split_at(tags.len() / 2);
    let object = json!({"kind": "Node", "name": name, "nodegroup": format!("c/{group}"), "roles": chance.sample(&["two", "three"], 40),
        "tags": {"assigned": assigned, "unassigned": unassigned}, "traits": chance.sample(TRAITS, 30),
        "suppressed_traits": chance.sample(&TRAITS[..2], 30)});
    draw_level(chance, object)
}

fn apply_objects(fleet: &TempFleet, objects: &[Value]) -> Result<()> {
    let file = fleet.dir().join("apply.json");
    std::fs::write(&file, json!(objects).to_string())?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()]).map(drop)
}

fn get_raw(fleet: &TempFleet, path: &str) -> Result<Value> {
    Ok(serde_json::from_str(&fleet.stemma(&["get", "--raw", path])?)?)
}

/// Resolves the manifests with what the hosts reported, and with the primaries that the controller chose.
fn resolve_manifests(fleet: &TempFleet, draw: &DrawnFleet, answers: &BTreeMap<&str, Value>) -> Result<Value> {
    let mut objects = draw.shared.clone();
    let mut primaries = Map::new();
    for (name, answer) in answers {
        let held = answer["primary_tags"].as_array().into_iter().flatten().filter_map(Value::as_str);
        primaries.extend(held.map(|tag| (tag.to_owned(), json!(name))));
    }
    objects[2]["primaries"] = primaries.into();
    for node in &draw.nodes {
        let name = node["name"].as_str().context("a name")?;
        let seen = get_raw(fleet, &format!("/v1/nodes/{name}/report"))?["observation"].clone();
        seen["facts"].as_object().context("what the host said")?;
        let mut node = node.clone();
        node["uuid"] = get_raw(fleet, &format!("/v1/nodes/{name}"))?["uuid"].clone();
        node["reports"] = json!({"facts": seen["facts"], "traits": seen["traits"], "labels": seen["labels"]});
        objects.push(node);
    }
    let file = fleet.dir().join("resolve.json");
    std::fs::write(&file, Value::from(objects).to_string())?;
    Ok(serde_json::from_str(&succeed("stemma", ["resolve", "-f", &file.to_string_lossy(), "-o", "json"])?)?)
}

/// Returns what the host holds, with its tags under the names that selectors match.
fn host_output(agent: &TestAgent, replaces: bool) -> Result<Value> {
    let root = agent.path("");
    // If a task has failed, the command ends with its own exit status, but prints its output anyway.
    let output = run("stemma-agent", ["--root", &root.to_string_lossy(), "status", "-o", "json"])?;
    let mut status: Value = serde_json::from_slice(&output.stdout).context("status")?;
    let names = |value: &Value| {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let held = names(&status["primary_tags"]);
    let mut tags = names(&status["tags"]);
    tags.retain(|tag| !replaces || !held.contains(tag));
    tags.extend(held.iter().map(|tag| format!("primary-{tag}")));
    status["tags"] = json!(tags);
    status["tasks"] = status["tasks"].as_array().into_iter().flatten().map(|task| task["id"].clone()).collect();
    Ok(status)
}

fn compared_fields(answer: &Value) -> Value {
    COMPARED_FIELDS.iter().map(|field| ((*field).to_owned(), answer[field].clone())).collect::<Map<_, _>>().into()
}

/// Returns the compared fields without the reasons for skipped tasks. A changed reason releases nothing, so a host may
/// hold one of an earlier answer.
fn compared_host_fields(answer: &Value) -> Value {
    let mut compared = compared_fields(answer);
    for why in compared["skipped"].as_object_mut().into_iter().flat_map(Map::values_mut) {
        *why = Value::Null;
    }
    compared
}

/// Writes the labels that the host itself reports, before its agent starts. Only some of them are accepted.
fn write_label_files(chance: &mut SeededRng, root: &Path) -> Result<()> {
    let directory = root.join("etc/stemma/labels.d");
    std::fs::create_dir_all(&directory)?;
    let lines = chance
        .sample(REPORTED_KEYS, 60)
        .into_iter()
        .map(|key| format!("{key}={}\n", chance.choose(&["gold", "a", "of-the-host"])));
    std::fs::write(directory.join("10-host"), lines.collect::<String>())?;
    Ok(())
}

fn check_equal(who: &str, found: &Value, expected: &Value) -> Result<()> {
    ensure!(found == expected, "{who} says\n{found:#}\nand the controller\n{expected:#}");
    Ok(())
}

fn check_fleet(seed: u64) -> Result<()> {
    let mut chance = SeededRng::new(seed);
    let draw = DrawnFleet::new(&mut chance);
    let fleet = TempFleet::start()?;
    apply_objects(&fleet, &draw.shared)?;
    let mut agents = Vec::new();
    for (name, group) in NODES {
        write_label_files(&mut chance, &fleet.dir().join(name))?;
        agents.push((name, fleet.join(name, &format!("c/{group}"))?));
    }
    apply_objects(&fleet, &draw.nodes)?;
    eventually(&format!("the same answer thrice (seed {seed})"), || {
        let answers = NODES.iter().map(|(name, _)| Ok((*name, get_raw(&fleet, &format!("/v1/nodes/{name}/resolved"))?)));
        let answers = answers.collect::<Result<BTreeMap<_, _>>>()?;
        let resolved = resolve_manifests(&fleet, &draw, &answers)?;
        for (name, agent) in &agents {
            let (controllers, ours, hosts) = (&answers[name], &resolved["nodes"][name], host_output(agent, draw.should_replace)?);
            ensure!(ours["roles"] == controllers["roles"], "{name}: roles {} and {}", ours["roles"], controllers["roles"]);
            check_equal(&format!("{name}: stemma resolve"), &compared_fields(ours), &compared_fields(controllers))?;
            check_equal(&format!("{name}: the host"), &compared_host_fields(&hosts), &compared_host_fields(controllers))?;
        }
        Ok(())
    })
}

#[test]
fn resolve_is_equal_from_manifests_controller_and_host() -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    let first = match std::env::var("STEMMA_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => u64::try_from(now)?,
    };
    for seed in first..first + if is_long() { 40 } else { 4 } {
        println!("seed {seed} (STEMMA_SEED={seed} gives it again)");
        check_fleet(seed)?;
    }
    Ok(())
}
