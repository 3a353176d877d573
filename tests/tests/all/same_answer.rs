//! One answer, three times: by `stemma resolve` from manifests, by the controller, and on the host. Random fleets, real
//! programs, real agents with the traits and facts that they detected and the labels that their hosts report. Each run draws
//! other fleets; the seed of each is printed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};
use stemma_tests::chance::{Chance, is_long};
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::{eventually, run, succeed};

const TAGS: &[&str] = &["alpha", "beta", "gamma", "delta", "mysql:1"];
const KEYS: &[&str] = &["tier", "zone", "example.org/rack", "debug", "node-role.kubernetes.io/web"];
const TRAITS: &[&str] = &["HW_CPU_X86_AVX2", "HW_CPU_X86_SSE42", "CUSTOM_FAST", "COMPUTE_NODE"];
/// Keys that a host may be let report.
const REPORTED: &[&str] = &["tier", "zone", "example.org/rack", "slot"];
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
/// What three answers have in common (the host does not know its roles).
const COMPARED: [&str; 8] =
    ["labels", "annotations", "traits", "tags", "primary_tags", "tasks", "skipped", "task_digest"];

/// A fleet's manifests, the nodes' own apart.
struct Draw {
    shared: Vec<Value>,
    nodes: Vec<Value>,
    replaces: bool,
}

impl Draw {
    fn new(chance: &mut Chance) -> Self {
        let replaces = chance.percent(50);
        let accepted = chance.some(REPORTED, 60);
        let shared = vec![
            release(chance, replaces),
            level(chance, json!({"kind": "ClusterTemplate", "name": "base", "release": "drawn@1"})),
            level(
                chance,
                json!({"kind": "Cluster", "name": "c", "cluster_template": "base", "host_labels": {"accept": accepted}}),
            ),
            group(chance, GROUPS[0]),
            group(chance, GROUPS[1]),
            group(chance, GROUPS[2]),
        ];
        let nodes = NODES.map(|(name, group)| node(chance, name, group)).into();
        Self { shared, nodes, replaces }
    }
}

fn release(chance: &mut Chance, replaces: bool) -> Value {
    let mut tags = Map::new();
    for tag in TAGS {
        tags.insert((*tag).to_owned(), json!({"has_primary": chance.percent(40)}));
    }
    let mut roles = json!({"plain": {}});
    for role in ["one", "two", "three"] {
        roles[role] = json!({"tags": chance.some(TAGS, 50)});
    }
    let mut tasks = vec![
        json!({"id": "t0", "type": "shell", "roles": "*", "parameters": {"command": ["true"], "creates": "/etc"}}),
    ];
    for at in 1..4 + chance.below(8) {
        let task = task(chance, at);
        tasks.push(task);
    }
    let matching =
        json!({"roles": if replaces { "tags" } else { "own" }, "primary": if replaces { "replaces" } else { "adds" }});
    json!({"kind": "Release", "name": "drawn", "version": "1", "roles": roles, "tags": tags, "tasks": tasks, "matching": matching})
}

fn task(chance: &mut Chance, at: usize) -> Value {
    let before: Vec<String> = (0..at).map(|before| format!("t{before}")).collect();
    let mut task = json!({"id": format!("t{at}"), "type": "file", "requires": chance.some(&before, 25)});
    match chance.below(4) {
        0 => task["roles"] = json!(chance.one(&["one", "/t.*/", "*", "plain"])),
        1 => task["tags"] = json!([chance.one(&["/primary-.*/", "/.*a/", "/mysql(:.*)?/"])]),
        2 => task["type"] = json!("skipped"),
        _ => task["tags"] = json!(chance.some(TAGS, 40)),
    }
    if task["type"] == "skipped" {
        task["tags"] = json!([chance.one(TAGS)]);
        return task;
    }
    if chance.percent(50) {
        task["condition"] = json!(chance.one(&[
            "has(labels.tier) && labels.tier == 'gold'",
            "labels.zone == 'a'",
            "'HW_CPU_X86_AVX2' in traits || 'alpha' in tags",
            "'CUSTOM_FAST' in traits",
            "size(nodes(tag='beta')) > 1",
            "facts.cpu.count > 0",
            "params.limits.high > 3",
        ]));
    }
    let template = chance.one(&[
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

/// Labels, annotations and parameters as some author might have them at one level.
fn level(chance: &mut Chance, mut object: Value) -> Value {
    let merges = chance.percent(70);
    if chance.percent(80) {
        let value = |chance: &mut Chance| match chance.below(5) {
            0 if merges => Value::Null,
            1 => json!(7),
            2 => json!(true),
            _ => json!(chance.one(&["gold", "a", "b", "with space", ""])),
        };
        let keys = chance.some(KEYS, 50);
        object["labels"] = keys.into_iter().map(|key| (key.to_owned(), value(chance))).collect::<Map<_, _>>().into();
        object["merge_labels"] = merges.into();
    }
    if chance.percent(40) {
        object["annotations"] = json!({"note": chance.one(&[json!("x\ny"), Value::Null]), "Owner.example/Team": "ops"});
    }
    if chance.percent(50) {
        object["parameters"] = json!({"limits": chance.one(&[json!({"high": 5}), json!({"high": 2.5}), Value::Null]), "list": [1, "2", null]});
    }
    object
}

fn group(chance: &mut Chance, name: &str) -> Value {
    let (mode, roles) = (chance.one(&["apply", "noop", "observe"]), chance.some(&["one", "two", "plain"], 50));
    level(chance, json!({"kind": "NodeGroup", "cluster": "c", "name": name, "roles": roles, "mode": mode}))
}

fn node(chance: &mut Chance, name: &str, group: &str) -> Value {
    let tags = chance.some(TAGS, 60);
    let (assigned, unassigned) = tags.split_at(tags.len() / 2);
    let object = json!({"kind": "Node", "name": name, "nodegroup": format!("c/{group}"), "roles": chance.some(&["two", "three"], 40),
        "tags": {"assigned": assigned, "unassigned": unassigned}, "traits": chance.some(TRAITS, 30),
        "suppressed_traits": chance.some(&TRAITS[..2], 30)});
    level(chance, object)
}

fn apply(fleet: &Fleet, objects: &[Value]) -> Result<()> {
    let file = fleet.dir().join("apply.json");
    std::fs::write(&file, json!(objects).to_string())?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()]).map(drop)
}

fn raw(fleet: &Fleet, path: &str) -> Result<Value> {
    Ok(serde_json::from_str(&fleet.stemma(&["get", "--raw", path])?)?)
}

/// The manifests with what the hosts reported, and the primaries that the controller had chosen.
fn resolve(fleet: &Fleet, draw: &Draw, answers: &BTreeMap<&str, Value>) -> Result<Value> {
    let mut objects = draw.shared.clone();
    let mut primaries = Map::new();
    for (name, answer) in answers {
        let held = answer["primary_tags"].as_array().into_iter().flatten().filter_map(Value::as_str);
        primaries.extend(held.map(|tag| (tag.to_owned(), json!(name))));
    }
    objects[2]["primaries"] = primaries.into();
    for node in &draw.nodes {
        let name = node["name"].as_str().context("a name")?;
        let seen = raw(fleet, &format!("/v1/nodes/{name}/report"))?["observation"].clone();
        seen["facts"].as_object().context("what the host said")?;
        let mut node = node.clone();
        node["uuid"] = raw(fleet, &format!("/v1/nodes/{name}"))?["uuid"].clone();
        node["reports"] = json!({"facts": seen["facts"], "traits": seen["traits"], "labels": seen["labels"]});
        objects.push(node);
    }
    let file = fleet.dir().join("resolve.json");
    std::fs::write(&file, Value::from(objects).to_string())?;
    Ok(serde_json::from_str(&succeed("stemma", ["resolve", "-f", &file.to_string_lossy(), "-o", "json"])?)?)
}

/// What the host holds, with its tags by the names that selectors match.
fn on_host(agent: &Agent, replaces: bool) -> Result<Value> {
    let root = agent.path("");
    // It ends with a status of its own where a task has failed, and prints all the same.
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

fn compared(answer: &Value) -> Value {
    COMPARED.iter().map(|field| ((*field).to_owned(), answer[field].clone())).collect::<Map<_, _>>().into()
}

/// The same, without why a task is left out: other words release nothing, so a host may hold those of an earlier answer.
fn compared_on_host(answer: &Value) -> Value {
    let mut compared = compared(answer);
    for why in compared["skipped"].as_object_mut().into_iter().flat_map(Map::values_mut) {
        *why = Value::Null;
    }
    compared
}

/// What the host itself says of its labels, before its agent is there: some of it is accepted, and the rest is not.
fn report_labels(chance: &mut Chance, root: &Path) -> Result<()> {
    let directory = root.join("etc/stemma/labels.d");
    std::fs::create_dir_all(&directory)?;
    let lines = chance
        .some(REPORTED, 60)
        .into_iter()
        .map(|key| format!("{key}={}\n", chance.one(&["gold", "a", "of-the-host"])));
    std::fs::write(directory.join("10-host"), lines.collect::<String>())?;
    Ok(())
}

fn same(who: &str, found: &Value, expected: &Value) -> Result<()> {
    ensure!(found == expected, "{who} says\n{found:#}\nand the controller\n{expected:#}");
    Ok(())
}

fn one_fleet(seed: u64) -> Result<()> {
    let mut chance = Chance::new(seed);
    let draw = Draw::new(&mut chance);
    let fleet = Fleet::start()?;
    apply(&fleet, &draw.shared)?;
    let mut agents = Vec::new();
    for (name, group) in NODES {
        report_labels(&mut chance, &fleet.dir().join(name))?;
        agents.push((name, fleet.join(name, &format!("c/{group}"))?));
    }
    apply(&fleet, &draw.nodes)?;
    eventually(&format!("the same answer thrice (seed {seed})"), || {
        let answers = NODES.iter().map(|(name, _)| Ok((*name, raw(&fleet, &format!("/v1/nodes/{name}/resolved"))?)));
        let answers = answers.collect::<Result<BTreeMap<_, _>>>()?;
        let resolved = resolve(&fleet, &draw, &answers)?;
        for (name, agent) in &agents {
            let (controllers, ours, hosts) = (&answers[name], &resolved["nodes"][name], on_host(agent, draw.replaces)?);
            ensure!(
                ours["roles"] == controllers["roles"],
                "{name}: roles {} and {}",
                ours["roles"],
                controllers["roles"]
            );
            same(&format!("{name}: stemma resolve"), &compared(ours), &compared(controllers))?;
            same(&format!("{name}: the host"), &compared_on_host(&hosts), &compared_on_host(controllers))?;
        }
        Ok(())
    })
}

#[test]
fn manifests_controller_and_host_give_the_same_answer() -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    let first = match std::env::var("STEMMA_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => u64::try_from(now)?,
    };
    for seed in first..first + if is_long() { 40 } else { 4 } {
        println!("seed {seed} (STEMMA_SEED={seed} gives it again)");
        one_fleet(seed)?;
    }
    Ok(())
}
