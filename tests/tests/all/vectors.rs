//! The given vectors of names, traits, labels, requirements and the catalogue, through the real listener. What differs from them is listed
//! with its reason; a case that passes though it is listed fails.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};
use stemma_tests::fleet::Fleet;
use stemma_tests::operator::Operator;
use stemma_tests::shared;
use stemma_wire::endpoint::escape;

fn vectors(file: &str) -> Result<Option<Value>> {
    let Some(path) = shared::path(&format!("vectors/{file}.json")) else { return Ok(None) };
    Ok(Some(serde_json::from_str(&std::fs::read_to_string(path)?)?))
}

fn list(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().context("a list of cases")
}

/// The cases of a file that were compared, by their names.
#[derive(Default)]
struct Compared {
    differ: BTreeMap<String, String>,
    count: usize,
}

impl Compared {
    fn add(&mut self, name: &(impl ToString + ?Sized), is_alike: bool, answer: &Value) {
        self.count += 1;
        if !is_alike {
            self.differ.insert(name.to_string(), answer.to_string());
        }
    }

    /// Those that differ must be those that are listed, each with the reason.
    fn differ_only_where_listed(&self, listed: &[(&str, &str)]) -> Result<()> {
        ensure!(self.count > 0, "no case was compared");
        let new = self.differ.iter().filter(|(name, _)| listed.iter().all(|(known, _)| known != name));
        let gone = listed.iter().filter(|(known, _)| !self.differ.contains_key(*known));
        let lines = new.map(|(name, answer)| format!("differs: {name}: {answer}"));
        let lines: Vec<_> = lines.chain(gone.map(|(name, _)| format!("is listed and passes: {name}"))).collect();
        ensure!(lines.is_empty(), "{}", lines.join("\n"));
        Ok(())
    }
}

/// A controller, and who asks it.
struct Asked {
    operator: Operator,
    _fleet: Fleet,
}

impl Asked {
    fn start() -> Result<Self> {
        let fleet = Fleet::start()?;
        Ok(Self { operator: Operator::of(&fleet.data(), fleet.bound())?, _fleet: fleet })
    }

    fn call(&mut self, method: &str, path: &str, body: &Value) -> Result<(u16, Value)> {
        self.operator.call(method, path, "application/json", body)
    }

    /// A request that must be answered with this status.
    fn expect(&mut self, method: &str, path: &str, body: &Value, status: u16) -> Result<Value> {
        let (found, answer) = self.call(method, path, body)?;
        ensure!(found == status, "{method} {path} {body}: {found} {answer}");
        Ok(answer)
    }

    /// The names of the nodes that meet requirements; none where one of them is refused.
    fn meeting<'a>(&mut self, requirements: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<BTreeSet<String>> {
        let text = |(key, expression): (&str, &str)| format!("&requirement={}", escape(&format!("{key} {expression}")));
        let query: String = requirements.into_iter().map(text).collect();
        let (status, answer) = self.call("GET", &format!("/v1/nodes?fields=name{query}"), &Value::Null)?;
        ensure!(matches!(status, 200 | 400), "{query}: {status} {answer}");
        let nodes = answer["nodes"].as_array().into_iter().flatten();
        Ok(nodes.filter_map(|node| node["name"].as_str().map(str::to_owned)).collect())
    }
}

#[test]
fn labels_differ_from_their_parents_as_in_magnum() -> Result<()> {
    let Some(vectors) = vectors("labels/label_diff")? else { return Ok(()) };
    let (mut asked, mut compared) = (Asked::start()?, Compared::default());
    for (number, case) in list(&vectors["vectors"])?.iter().enumerate() {
        let template = json!({"name": format!("t{number}"), "labels": case["parent"]});
        asked.expect("POST", "/v1/clustertemplates", &template, 201)?;
        let cluster = json!({"name": format!("c{number}"), "cluster_template_id": format!("t{number}"), "labels": case["labels"], "merge_labels": false});
        asked.expect("POST", "/v1/clusters", &cluster, 202)?;
        let shown = asked.expect("GET", &format!("/v1/clusters/c{number}"), &Value::Null, 200)?;
        let is_alike =
            ["overridden", "added", "skipped"].iter().all(|set| shown[format!("labels_{set}")] == case[*set]);
        compared.add(case, is_alike, &shown);
    }
    compared.differ_only_where_listed(&[])
}

#[test]
fn nodes_are_filtered_by_requirements_as_nova_matches_extra_specs() -> Result<()> {
    let mut cases = Vec::new();
    for file in [
        "traits/extra_specs_ops",
        "traits/extra_specs_ops_grid",
        "traits/extra_specs_ops_listvalue",
        "labels/extra_specs_ops",
    ] {
        let Some(vectors) = vectors(file)? else { return Ok(()) };
        cases.extend(list(vectors.get("vectors").unwrap_or(&vectors))?.clone());
    }
    let (mut asked, mut compared) = (Asked::start()?, Compared::default());
    let values: BTreeSet<String> = cases.iter().map(|case| case["value"].to_string()).collect();
    let names: BTreeMap<&String, String> =
        values.iter().zip(0..).map(|(value, at)| (value, format!("v{at}"))).collect();
    for (value, name) in &names {
        let value: Value = serde_json::from_str(value)?;
        asked.expect("POST", "/v1/nodes", &json!({"name": name, "properties": {"v": value}}), 201)?;
    }
    let mut met: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for case in &cases {
        let required = case["req"].as_str().context("an expression")?;
        if !met.contains_key(required) {
            met.insert(required, asked.meeting([("property:v", required)])?);
        }
        let is_met = met[required].contains(&names[&case["value"].to_string()]);
        // Where Nova raises, nothing meets it.
        compared.add(&format!("{} {required}", case["value"]), is_met == (case["match"] == true), &is_met.into());
    }
    compared.differ_only_where_listed(&[])
}

/// The members of a host, with what stands in its `stats`, as the properties of a node; the one value of an aggregate is that.
fn properties(host: &Value) -> Map<String, Value> {
    let mut all = host.as_object().cloned().unwrap_or_default();
    if let Some(Value::Object(stats)) = all.remove("stats") {
        all.extend(stats);
    }
    for value in all.values_mut() {
        if let Value::Array(values) = value
            && values.len() == 1
        {
            *value = values.swap_remove(0);
        }
    }
    all
}

/// Cases of Nova's filters that are decided otherwise, by filter and number, each with the reason.
const FILTERED_OTHERWISE: &[(&str, &str)] = &[
    ("aggregate_instance_extra_specs 1", OF_A_LIST),
    (
        "aggregate_instance_extra_specs 6",
        "a list has all of its members: a node is one, and several aggregates are not",
    ),
    ("compute_capabilities 8", "a JSON value is asked for as JSON writes it: true, and not as Python does"),
    ("compute_capabilities 9", ONE_NAME),
    ("compute_capabilities 10", ONE_NAME),
    ("compute_capabilities 11", ONE_NAME),
    ("compute_capabilities 14", ONE_NAME),
    ("compute_capabilities 20", "the scope alone names nothing to Nova; here it is a name as any other"),
    ("compute_capabilities 23", "Nova asks its own state of the host there, which a node has not"),
];
const OF_A_LIST: &str = "a list is asked for its members with <in> and <all-in>";
const ONE_NAME: &str = "a property has one name: what stands within it is no property of the node";

#[test]
fn hosts_pass_novas_filters_as_nodes_meet_requirements() -> Result<()> {
    let Some(vectors) = vectors("traits/extra_specs_filters")? else { return Ok(()) };
    let (mut asked, mut compared) = (Asked::start()?, Compared::default());
    for (filter, scope, of) in [
        ("compute_capabilities", "capabilities", "host"),
        ("aggregate_instance_extra_specs", "aggregate_instance_extra_specs", "aggregate_metadata"),
    ] {
        for (number, case) in list(&vectors[filter])?.iter().enumerate() {
            let name = format!("{}{number}", &filter[..1]);
            asked.expect("POST", "/v1/nodes", &json!({"name": name, "properties": properties(&case[of])}), 201)?;
            let specs = case["extra_specs"].as_object().context("specs")?.iter();
            // What has another scope is not looked at.
            let of_scope = specs.filter_map(|(key, expression)| {
                let name = match key.split_once(':') {
                    Some((own, rest)) => (own == scope).then_some(rest)?,
                    None => key,
                };
                Some((format!("property:{name}"), expression.as_str()?))
            });
            let required: Vec<(String, &str)> = of_scope.collect();
            let met = asked.meeting(required.iter().map(|(key, expression)| (key.as_str(), *expression)))?;
            let passes = met.contains(&name);
            compared.add(
                &format!("{filter} {number}"),
                case["passes"] == passes,
                &json!({"asked": required, "passes": passes}),
            );
        }
    }
    compared.differ_only_where_listed(FILTERED_OTHERWISE)
}

#[test]
fn nodes_have_the_names_that_ironic_takes() -> Result<()> {
    const OTHERWISE: &[(&str, &str)] =
        &[("\"..\"", "a path with it leads elsewhere, so nobody could ask for the node")];
    let Some(vectors) = vectors("traits/node_names")? else { return Ok(()) };
    let (mut asked, mut compared) = (Asked::start()?, Compared::default());
    for case in list(&vectors)? {
        let (status, answer) = asked.call("POST", "/v1/nodes", &json!({"name": case["name"], "driver": "fake"}))?;
        let valid = case.get("recommended_valid").unwrap_or(&case["valid"]);
        compared.add(&case["name"], status == if *valid == true { 201 } else { 400 }, &answer);
        if status == 201 {
            let name = escape(case["name"].as_str().context("a name")?);
            let found = asked.expect("GET", &format!("/v1/nodes/{name}"), &Value::Null, 200)?;
            assert_eq!(found["uuid"], answer["uuid"], "{case}");
            asked.expect("DELETE", &format!("/v1/nodes/{name}"), &Value::Null, 204)?;
        }
    }
    compared.differ_only_where_listed(OTHERWISE)
}

#[test]
fn names_of_anything_become_traits_that_are_taken() -> Result<()> {
    let Some(vectors) = vectors("traits/os_traits_normalize")? else { return Ok(()) };
    let (mut asked, mut compared) = (Asked::start()?, Compared::default());
    asked.expect("POST", "/v1/nodes", &json!({"name": "n"}), 201)?;
    for case in list(&vectors)? {
        let (status, answer) = asked.call("PUT", "/v1/nodes/n/traits", &json!({"traits": [case["normalized"]]}))?;
        compared.add(case, status == if case["is_valid_trait"] == true { 200 } else { 400 }, &answer);
        // As in Ironic, the name itself is none: whoever sends it normalizes it.
        asked.expect("PUT", "/v1/nodes/n/traits", &json!({"traits": [case["name"]]}), 400)?;
    }
    compared.differ_only_where_listed(&[])
}

/// Which conditions hold is compared where rules are run on what a host reported: in core, by the same vectors.
#[test]
fn inspection_rules_are_taken_that_ironic_takes() -> Result<()> {
    const OTHERWISE: &[(&str, &str)] = &[
        (
            r#"{"actions":[{"args":{"name":"CUSTOM_A"},"op":"add-trait"}],"conditions":[],"uuid":"not-a-uuid"}"#,
            "a uuid is one: Ironic stores any text, under which no path finds the rule",
        ),
        (
            r#"{"actions":[{"args":{"name":"CUSTOM_A"},"op":"add-trait"}],"conditions":[{"args":{"regex":"(","value":"x"},"op":"matches"}]}"#,
            "a pattern that is none is refused where it is written, and not at the next report",
        ),
    ];
    let Some(vectors) = vectors("traits/inspection_rules")? else { return Ok(()) };
    let (mut asked, mut compared) = (Asked::start()?, Compared::default());
    for case in list(&vectors["rule_validation"])? {
        let (status, answer) = asked.call("POST", "/v1/inspection_rules", &case["rule"])?;
        let taken = case["response"].as_object().into_iter().flatten();
        let is_shown = taken.filter(|_| status == 201).all(|(field, value)| answer[field] == *value);
        // Ironic fails where arguments are missing or unknown; here the rule is refused.
        let refused = if case["status"] == 500 { 400.into() } else { case["status"].clone() };
        compared.add(&case["rule"], refused == status && is_shown, &answer);
    }
    for case in list(&vectors["conditions"])?.iter().filter(|case| case["result"].is_boolean()) {
        let actions = json!([{"op": "add-trait", "args": {"name": "CUSTOM_A"}}]);
        let rule = json!({"conditions": [case["condition"]], "actions": actions});
        let (status, answer) = asked.call("POST", "/v1/inspection_rules", &rule)?;
        compared.add(&case["condition"], status == 201 && answer["conditions"] == rule["conditions"], &answer);
    }
    compared.differ_only_where_listed(OTHERWISE)
}

#[test]
fn the_stock_catalogue_has_the_operators_that_glances_files_have() -> Result<()> {
    let (Some(vectors), Some(stock)) = (vectors("labels/metadef_operators")?, shared::path("data/metadefs")) else {
        return Ok(());
    };
    let (mut asked, mut compared) = (Asked::start()?, Compared::default());
    let mut stored: BTreeMap<String, Value> = BTreeMap::new();
    for file in std::fs::read_dir(stock)? {
        let body: Value = serde_json::from_str(&std::fs::read_to_string(file?.path())?)?;
        let name = body["namespace"].as_str().context("a name")?;
        asked.expect("POST", "/v2/metadefs/namespaces", &body, 201)?;
        let path = format!("/v2/metadefs/namespaces/{}", escape(name));
        stored.insert(name.to_owned(), asked.expect("GET", &path, &Value::Null, 200)?);
    }
    for case in list(&vectors["files"])? {
        let shown = &stored[case["namespace"].as_str().context("a name")?];
        let objects = shown["objects"].as_array().map_or(&[][..], Vec::as_slice);
        let properties = || {
            let owners = std::iter::once(shown).chain(objects);
            owners.filter_map(|of| of["properties"].as_object()).flatten()
        };
        let types = shown["resource_type_associations"].as_array().into_iter().flatten();
        let types: Vec<Value> =
            types.map(|one| json!([one["name"], one["prefix"], one["properties_target"]])).collect();
        let found = json!({
            "file": case["file"], "namespace": case["namespace"], "visibility": shown["visibility"], "protected": shown["protected"],
            "properties": properties().count(), "objects": objects.len(), "resource_types": types,
            "with_operators": properties().filter(|(_, property)| property.get("operators").is_some()).count(),
        });
        let mut expected = case.clone();
        for (field, default) in [("visibility", json!("private")), ("protected", json!(false))] {
            if expected[field].is_null() {
                expected[field] = default;
            }
        }
        compared.add(&case["file"], found == expected, &found);
    }
    for case in list(&vectors["operators"])? {
        let namespace = &stored[case["namespace"].as_str().context("a name")?];
        let objects = namespace["objects"].as_array().into_iter().flatten();
        let of = objects.into_iter().find(|one| one["name"] == case["object"]).unwrap_or(namespace);
        let property = &of["properties"][case["property"].as_str().context("a property")?];
        let is_alike = property["operators"] == case["operators"] && property["type"] == case["type"];
        compared.add(&format!("{} {}", case["namespace"], case["property"]), is_alike, property);
    }
    compared.differ_only_where_listed(&[])
}
