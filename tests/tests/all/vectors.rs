//! The given vectors of names, traits, labels, requirements and the catalogue, through the real listener. Differences
//! from them are listed with their reasons. A listed case that passes fails the test.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::operator::OperatorClient;
use stemma_tests::shared;
use stemma_wire::endpoint::escape;

fn read_vectors(file: &str) -> Result<Option<Value>> {
    let Some(path) = shared::path(&format!("vectors/{file}.json")) else { return Ok(None) };
    Ok(Some(serde_json::from_str(&std::fs::read_to_string(path)?)?))
}

fn array(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().context("a list of cases")
}

/// The compared cases of a file: their number, and the answers of those that differ, by name.
#[derive(Default)]
struct CaseComparison {
    differences: BTreeMap<String, String>,
    count: usize,
}

impl CaseComparison {
    fn compare(&mut self, name: &(impl ToString + ?Sized), is_alike: bool, answer: &Value) {
        self.count += 1;
        if !is_alike {
            self.differences.insert(name.to_string(), answer.to_string());
        }
    }

    /// Checks that exactly the listed cases differ. Each is listed with its reason.
    fn check_differences(&self, listed: &[(&str, &str)]) -> Result<()> {
        ensure!(self.count > 0, "no case was compared");
        let new = self.differences.iter().filter(|(name, _)| listed.iter().all(|(known, _)| known != name));
        let gone = listed.iter().filter(|(known, _)| !self.differences.contains_key(*known));
        let lines = new.map(|(name, answer)| format!("differs: {name}: {answer}"));
        let lines: Vec<_> = lines.chain(gone.map(|(name, _)| format!("is listed and passes: {name}"))).collect();
        ensure!(lines.is_empty(), "{}", lines.join("\n"));
        Ok(())
    }
}

/// A controller, and the operator that sends requests to it.
struct VectorClient {
    operator: OperatorClient,
    _fleet: TempFleet,
}

impl VectorClient {
    fn start() -> Result<Self> {
        let fleet = TempFleet::start()?;
        Ok(Self { operator: OperatorClient::from_data(&fleet.data(), fleet.addresses())?, _fleet: fleet })
    }

    fn call(&mut self, method: &str, path: &str, body: &Value) -> Result<(u16, Value)> {
        self.operator.send_typed(method, path, "application/json", body)
    }

    /// Sends a request that must be answered with this status.
    fn expect_status(&mut self, method: &str, path: &str, body: &Value, status: u16) -> Result<Value> {
        let (found, answer) = self.call(method, path, body)?;
        ensure!(found == status, "{method} {path} {body}: {found} {answer}");
        Ok(answer)
    }

    /// Returns the names of the nodes that meet the requirements. Returns none if one of the requirements is refused.
    fn matching_nodes<'a>(&mut self, requirements: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<BTreeSet<String>> {
        let text = |(key, expression): (&str, &str)| format!("&requirement={}", escape(&format!("{key} {expression}")));
        let query: String = requirements.into_iter().map(text).collect();
        let (status, answer) = self.call("GET", &format!("/v1/nodes?fields=name{query}"), &Value::Null)?;
        ensure!(matches!(status, 200 | 400), "{query}: {status} {answer}");
        let nodes = answer["nodes"].as_array().into_iter().flatten();
        Ok(nodes.filter_map(|node| node["name"].as_str().map(str::to_owned)).collect())
    }
}

#[test]
fn labels_differ_from_parents_like_magnum() -> Result<()> {
    let Some(vectors) = read_vectors("labels/label_diff")? else { return Ok(()) };
    let (mut asked, mut compared) = (VectorClient::start()?, CaseComparison::default());
    for (number, case) in array(&vectors["vectors"])?.iter().enumerate() {
        let template = json!({"name": format!("t{number}"), "labels": case["parent"]});
        asked.expect_status("POST", "/v1/clustertemplates", &template, 201)?;
        let cluster = json!({"name": format!("c{number}"), "cluster_template_id": format!("t{number}"), "labels": case["labels"], "merge_labels": false});
        asked.expect_status("POST", "/v1/clusters", &cluster, 202)?;
        let shown = asked.expect_status("GET", &format!("/v1/clusters/c{number}"), &Value::Null, 200)?;
        let is_alike = ["overridden", "added", "skipped"].iter().all(|set| shown[format!("labels_{set}")] == case[*set]);
        compared.compare(case, is_alike, &shown);
    }
    compared.check_differences(&[])
}

#[test]
fn requirements_match_nodes_like_nova_extra_specs() -> Result<()> {
    let mut cases = Vec::new();
    for file in
        ["traits/extra_specs_ops", "traits/extra_specs_ops_grid", "traits/extra_specs_ops_listvalue", "labels/extra_specs_ops"]
    {
        let Some(vectors) = read_vectors(file)? else { return Ok(()) };
        cases.extend(array(vectors.get("vectors").unwrap_or(&vectors))?.clone());
    }
    let (mut asked, mut compared) = (VectorClient::start()?, CaseComparison::default());
    let values: BTreeSet<String> = cases.iter().map(|case| case["value"].to_string()).collect();
    let names: BTreeMap<&String, String> = values.iter().zip(0..).map(|(value, at)| (value, format!("v{at}"))).collect();
    for (value, name) in &names {
        let value: Value = serde_json::from_str(value)?;
        asked.expect_status("POST", "/v1/nodes", &json!({"name": name, "properties": {"v": value}}), 201)?;
    }
    let mut met: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for case in &cases {
        let required = case["req"].as_str().context("an expression")?;
        if !met.contains_key(required) {
            met.insert(required, asked.matching_nodes([("property:v", required)])?);
        }
        let is_met = met[required].contains(&names[&case["value"].to_string()]);
        // If Nova raises an error, no node meets the requirement.
        compared.compare(&format!("{} {required}", case["value"]), is_met == (case["match"] == true), &is_met.into());
    }
    compared.check_differences(&[])
}

/// Returns the members of a host and of its `stats` as properties of a node. A list with one value, as in aggregates,
/// becomes this value.
fn node_properties(host: &Value) -> Map<String, Value> {
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

/// Cases of Nova's filters that Stemma decides otherwise, by filter and number, each with the reason.
const FILTER_DIFFERENCES: &[(&str, &str)] = &[
    ("aggregate_instance_extra_specs 1", LIST_REASON),
    ("aggregate_instance_extra_specs 6", "a list has all of its members: a node is one, and several aggregates are not"),
    ("compute_capabilities 8", "a JSON value is compared in its JSON form: true, and not True as in Python"),
    ("compute_capabilities 9", PROPERTY_REASON),
    ("compute_capabilities 10", PROPERTY_REASON),
    ("compute_capabilities 11", PROPERTY_REASON),
    ("compute_capabilities 14", PROPERTY_REASON),
    ("compute_capabilities 20", "the scope alone is not a name for Nova; here it is a name like any other"),
    ("compute_capabilities 23", "Nova reads its own state of the host there, which a node does not have"),
];
const LIST_REASON: &str = "the members of a list are matched with <in> and <all-in>";
const PROPERTY_REASON: &str = "a property has one name: a value inside it is not a property of the node";

#[test]
fn requirements_match_hosts_like_nova_filters() -> Result<()> {
    let Some(vectors) = read_vectors("traits/extra_specs_filters")? else { return Ok(()) };
    let (mut asked, mut compared) = (VectorClient::start()?, CaseComparison::default());
    for (filter, scope, of) in [
        ("compute_capabilities", "capabilities", "host"),
        ("aggregate_instance_extra_specs", "aggregate_instance_extra_specs", "aggregate_metadata"),
    ] {
        for (number, case) in array(&vectors[filter])?.iter().enumerate() {
            let name = format!("{}{number}", &filter[..1]);
            asked.expect_status("POST", "/v1/nodes", &json!({"name": name, "properties": node_properties(&case[of])}), 201)?;
            let specs = case["extra_specs"].as_object().context("specs")?.iter();
            // Keys of another scope are ignored.
            let of_scope = specs.filter_map(|(key, expression)| {
                let name = match key.split_once(':') {
                    Some((own, rest)) => (own == scope).then_some(rest)?,
                    None => key,
                };
                Some((format!("property:{name}"), expression.as_str()?))
            });
            let required: Vec<(String, &str)> = of_scope.collect();
            let met = asked.matching_nodes(required.iter().map(|(key, expression)| (key.as_str(), *expression)))?;
            let passes = met.contains(&name);
            compared.compare(
                &format!("{filter} {number}"),
                case["passes"] == passes,
                &json!({"asked": required, "passes": passes}),
            );
        }
    }
    compared.check_differences(FILTER_DIFFERENCES)
}

#[test]
fn node_names_are_accepted_like_ironic() -> Result<()> {
    const NAME_DIFFERENCES: &[(&str, &str)] =
        &[("\"..\"", "a path with this name leads elsewhere, so no request could name the node")];
    let Some(vectors) = read_vectors("traits/node_names")? else { return Ok(()) };
    let (mut asked, mut compared) = (VectorClient::start()?, CaseComparison::default());
    for case in array(&vectors)? {
        let (status, answer) = asked.call("POST", "/v1/nodes", &json!({"name": case["name"], "driver": "fake"}))?;
        let valid = case.get("recommended_valid").unwrap_or(&case["valid"]);
        compared.compare(&case["name"], status == if *valid == true { 201 } else { 400 }, &answer);
        if status == 201 {
            let name = escape(case["name"].as_str().context("a name")?);
            let found = asked.expect_status("GET", &format!("/v1/nodes/{name}"), &Value::Null, 200)?;
            assert_eq!(found["uuid"], answer["uuid"], "{case}");
            asked.expect_status("DELETE", &format!("/v1/nodes/{name}"), &Value::Null, 204)?;
        }
    }
    compared.check_differences(NAME_DIFFERENCES)
}

#[test]
fn generated_trait_names_are_accepted() -> Result<()> {
    let Some(vectors) = read_vectors("traits/os_traits_normalize")? else { return Ok(()) };
    let (mut asked, mut compared) = (VectorClient::start()?, CaseComparison::default());
    asked.expect_status("POST", "/v1/nodes", &json!({"name": "n"}), 201)?;
    for case in array(&vectors)? {
        let (status, answer) = asked.call("PUT", "/v1/nodes/n/traits", &json!({"traits": [case["normalized"]]}))?;
        compared.compare(case, status == if case["is_valid_trait"] == true { 200 } else { 400 }, &answer);
        // As in Ironic, the original name is not a trait. The client has to normalize it.
        asked.expect_status("PUT", "/v1/nodes/n/traits", &json!({"traits": [case["name"]]}), 400)?;
    }
    compared.check_differences(&[])
}

/// Whether a condition holds is compared in core, by the same vectors, where rules are applied to what a host reported.
#[test]
fn inspection_rules_are_accepted_like_ironic() -> Result<()> {
    const RULE_DIFFERENCES: &[(&str, &str)] = &[
        (
            r#"{"actions":[{"args":{"name":"CUSTOM_A"},"op":"add-trait"}],"conditions":[],"uuid":"not-a-uuid"}"#,
            "a uuid must be valid: Ironic stores any text, but no path finds such a rule",
        ),
        (
            r#"{"actions":[{"args":{"name":"CUSTOM_A"},"op":"add-trait"}],"conditions":[{"args":{"regex":"(","value":"x"},"op":"matches"}]}"#,
            "an invalid pattern is refused when it is written, and not at the next report",
        ),
    ];
    let Some(vectors) = read_vectors("traits/inspection_rules")? else { return Ok(()) };
    let (mut asked, mut compared) = (VectorClient::start()?, CaseComparison::default());
    for case in array(&vectors["rule_validation"])? {
        let (status, answer) = asked.call("POST", "/v1/inspection_rules", &case["rule"])?;
        let taken = case["response"].as_object().into_iter().flatten();
        let is_shown = taken.filter(|_| status == 201).all(|(field, value)| answer[field] == *value);
        // Ironic fails if arguments are missing or unknown. Here, the rule is refused.
        let refused = if case["status"] == 500 { 400.into() } else { case["status"].clone() };
        compared.compare(&case["rule"], refused == status && is_shown, &answer);
    }
    for case in array(&vectors["conditions"])?.iter().filter(|case| case["result"].is_boolean()) {
        let actions = json!([{"op": "add-trait", "args": {"name": "CUSTOM_A"}}]);
        let rule = json!({"conditions": [case["condition"]], "actions": actions});
        let (status, answer) = asked.call("POST", "/v1/inspection_rules", &rule)?;
        compared.compare(&case["condition"], status == 201 && answer["conditions"] == rule["conditions"], &answer);
    }
    compared.check_differences(RULE_DIFFERENCES)
}

#[test]
fn stock_catalogue_has_operators_of_glance_files() -> Result<()> {
    let (Some(vectors), Some(stock)) = (read_vectors("labels/metadef_operators")?, shared::path("data/metadefs")) else {
        return Ok(());
    };
    let (mut asked, mut compared) = (VectorClient::start()?, CaseComparison::default());
    let mut stored: BTreeMap<String, Value> = BTreeMap::new();
    for file in std::fs::read_dir(stock)? {
        let body: Value = serde_json::from_str(&std::fs::read_to_string(file?.path())?)?;
        let name = body["namespace"].as_str().context("a name")?;
        asked.expect_status("POST", "/v2/metadefs/namespaces", &body, 201)?;
        let path = format!("/v2/metadefs/namespaces/{}", escape(name));
        stored.insert(name.to_owned(), asked.expect_status("GET", &path, &Value::Null, 200)?);
    }
    for case in array(&vectors["files"])? {
        let shown = &stored[case["namespace"].as_str().context("a name")?];
        let objects = shown["objects"].as_array().map_or(&[][..], Vec::as_slice);
        let properties = || {
            let owners = std::iter::once(shown).chain(objects);
            owners.filter_map(|of| of["properties"].as_object()).flatten()
        };
        let types = shown["resource_type_associations"].as_array().into_iter().flatten();
        let types: Vec<Value> = types.map(|one| json!([one["name"], one["prefix"], one["properties_target"]])).collect();
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
        compared.compare(&case["file"], found == expected, &found);
    }
    for case in array(&vectors["operators"])? {
        let namespace = &stored[case["namespace"].as_str().context("a name")?];
        let objects = namespace["objects"].as_array().into_iter().flatten();
        let of = objects.into_iter().find(|one| one["name"] == case["object"]).unwrap_or(namespace);
        let property = &of["properties"][case["property"].as_str().context("a property")?];
        let is_alike = property["operators"] == case["operators"] && property["type"] == case["type"];
        compared.compare(&format!("{} {}", case["namespace"], case["property"]), is_alike, property);
    }
    compared.check_differences(&[])
}
