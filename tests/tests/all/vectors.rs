//! The given vectors of names, traits, labels, requirements and the catalogue, through the real listener. Differences
//! from them are listed with their reasons. A listed case that passes fails the test.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::operator::OperatorClient;
use stemma_tests::shared;
use stemma_wire::endpoint::escape;

/// Returns the vectors of a file (cases with results of Ironic and others), or `None` without the shared directory.
fn read_vectors(file: &str) -> Result<Option<Value>> {
    let Some(path) = shared::path(&format!("vectors/{file}.json")) else { return Ok(None) };
    Ok(Some(serde_json::from_str(&std::fs::read_to_string(path)?)?))
}

/// Returns the members of a list of cases.
fn array(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().context("a list of cases")
}

/// The compared cases of a file: their number, and the answers of those that differ from the vectors, by the name of
/// the case.
#[derive(Default)]
struct CaseComparison {
    differences: BTreeMap<String, String>,
    count: usize,
}

impl CaseComparison {
    /// Counts a case, and stores its answer if the case differs from the vectors (`is_alike` is false).
    fn compare(&mut self, name: &(impl ToString + ?Sized), is_alike: bool, answer: &Value) {
        self.count += 1;
        if !is_alike {
            self.differences.insert(name.to_string(), answer.to_string());
        }
    }

    /// Checks that exactly the listed cases differ from the vectors. The list has each case with its reason.
    fn check_differences(&self, listed: &[(&str, &str)]) -> Result<()> {
        ensure!(self.count > 0, "no case was compared");
        let unlisted = self.differences.iter().filter(|(name, _)| listed.iter().all(|(listed_name, _)| listed_name != name));
        let passing = listed.iter().filter(|(listed_name, _)| !self.differences.contains_key(*listed_name));
        let lines = unlisted.map(|(name, answer)| format!("differs: {name}: {answer}"));
        let lines: Vec<_> = lines.chain(passing.map(|(name, _)| format!("is listed and passes: {name}"))).collect();
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

    /// Sends a request with a JSON body. Returns the status and the answer.
    fn call(&mut self, method: &str, path: &str, body: &Value) -> Result<(u16, Value)> {
        self.operator.send_typed(method, path, "application/json", body)
    }

    /// Sends a request that must be answered with this status. Returns the answer.
    fn expect_status(&mut self, method: &str, path: &str, body: &Value, status: u16) -> Result<Value> {
        let (actual_status, answer) = self.call(method, path, body)?;
        ensure!(actual_status == status, "{method} {path} {body}: {actual_status} {answer}");
        Ok(answer)
    }

    /// Returns the names of the nodes that meet all requirements. The result is empty if the controller refuses a
    /// requirement.
    fn matching_nodes<'a>(&mut self, requirements: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<BTreeSet<String>> {
        let text = |(key, expression): (&str, &str)| format!("&requirement={}", escape(&format!("{key} {expression}")));
        let query: String = requirements.into_iter().map(text).collect();
        let (status, answer) = self.call("GET", &format!("/v1/nodes?fields=name{query}"), &Value::Null)?;
        ensure!(matches!(status, 200 | 400), "{query}: {status} {answer}");
        let nodes = answer["nodes"].as_array().into_iter().flatten();
        Ok(nodes.filter_map(|node| node["name"].as_str().map(str::to_owned)).collect())
    }
}

/// Creates a template and a cluster for each case. The cluster must list the same overridden, added and skipped labels
/// as in Magnum.
#[test]
fn labels_differ_from_parents_like_magnum() -> Result<()> {
    let Some(vectors) = read_vectors("labels/label_diff")? else { return Ok(()) };
    let (mut client, mut comparison) = (VectorClient::start()?, CaseComparison::default());
    for (number, case) in array(&vectors["vectors"])?.iter().enumerate() {
        let template = json!({"name": format!("t{number}"), "labels": case["parent"]});
        client.expect_status("POST", "/v1/clustertemplates", &template, 201)?;
        let cluster = json!({"name": format!("c{number}"), "cluster_template_id": format!("t{number}"), "labels": case["labels"], "merge_labels": false});
        client.expect_status("POST", "/v1/clusters", &cluster, 202)?;
        let answer = client.expect_status("GET", &format!("/v1/clusters/c{number}"), &Value::Null, 200)?;
        let is_alike = ["overridden", "added", "skipped"].iter().all(|set| answer[format!("labels_{set}")] == case[*set]);
        comparison.compare(case, is_alike, &answer);
    }
    comparison.check_differences(&[])
}

/// Creates one node for each value of the vectors. The value is the node's property `v`. Compares the nodes that meet
/// each requirement with Nova's results.
#[test]
fn requirements_match_nodes_like_nova_extra_specs() -> Result<()> {
    let mut cases = Vec::new();
    for file in
        ["traits/extra_specs_ops", "traits/extra_specs_ops_grid", "traits/extra_specs_ops_listvalue", "labels/extra_specs_ops"]
    {
        let Some(vectors) = read_vectors(file)? else { return Ok(()) };
        cases.extend(array(vectors.get("vectors").unwrap_or(&vectors))?.clone());
    }
    let (mut client, mut comparison) = (VectorClient::start()?, CaseComparison::default());
    let values: BTreeSet<String> = cases.iter().map(|case| case["value"].to_string()).collect();
    let names: BTreeMap<&String, String> = values.iter().zip(0..).map(|(value, number)| (value, format!("v{number}"))).collect();
    for (value, name) in &names {
        let value: Value = serde_json::from_str(value)?;
        client.expect_status("POST", "/v1/nodes", &json!({"name": name, "properties": {"v": value}}), 201)?;
    }
    let mut nodes_by_requirement: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for case in &cases {
        let requirement = case["req"].as_str().context("an expression")?;
        if !nodes_by_requirement.contains_key(requirement) {
            nodes_by_requirement.insert(requirement, client.matching_nodes([("property:v", requirement)])?);
        }
        let is_met = nodes_by_requirement[requirement].contains(&names[&case["value"].to_string()]);
        // If Nova raises an error, no node meets the requirement.
        comparison.compare(&format!("{} {requirement}", case["value"]), is_met == (case["match"] == true), &is_met.into());
    }
    comparison.check_differences(&[])
}

/// Returns the members of a host in the vectors, and of its `stats`, as properties of a node. A list with one value, as
/// in aggregates, becomes this value.
fn node_properties(host: &Value) -> Map<String, Value> {
    let mut properties = host.as_object().cloned().unwrap_or_default();
    if let Some(Value::Object(stats)) = properties.remove("stats") {
        properties.extend(stats);
    }
    for value in properties.values_mut() {
        if let Value::Array(values) = value
            && values.len() == 1
        {
            *value = values.swap_remove(0);
        }
    }
    properties
}

/// Cases of Nova's filters in which Stemma's result differs, by filter and number, each with the reason.
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

/// Creates a node for each host of the vectors. The node must meet the requirements exactly if the host passes Nova's
/// filter, except in listed cases.
#[test]
fn requirements_match_hosts_like_nova_filters() -> Result<()> {
    let Some(vectors) = read_vectors("traits/extra_specs_filters")? else { return Ok(()) };
    let (mut client, mut comparison) = (VectorClient::start()?, CaseComparison::default());
    for (filter, scope, host_field) in [
        ("compute_capabilities", "capabilities", "host"),
        ("aggregate_instance_extra_specs", "aggregate_instance_extra_specs", "aggregate_metadata"),
    ] {
        for (number, case) in array(&vectors[filter])?.iter().enumerate() {
            // The node is named by the first letter of the filter and the number of the case.
            let name = format!("{}{number}", &filter[..1]);
            client.expect_status(
                "POST",
                "/v1/nodes",
                &json!({"name": name, "properties": node_properties(&case[host_field])}),
                201,
            )?;
            let specs = case["extra_specs"].as_object().context("specs")?.iter();
            // Keys of another scope are ignored.
            let requirements = specs.filter_map(|(key, expression)| {
                let name = match key.split_once(':') {
                    Some((key_scope, property)) => (key_scope == scope).then_some(property)?,
                    None => key,
                };
                Some((format!("property:{name}"), expression.as_str()?))
            });
            let requirement_list: Vec<(String, &str)> = requirements.collect();
            let matching_names =
                client.matching_nodes(requirement_list.iter().map(|(key, expression)| (key.as_str(), *expression)))?;
            let passes = matching_names.contains(&name);
            comparison.compare(
                &format!("{filter} {number}"),
                case["passes"] == passes,
                &json!({"asked": requirement_list, "passes": passes}),
            );
        }
    }
    comparison.check_differences(FILTER_DIFFERENCES)
}

/// Stemma must accept the name of a node exactly if Ironic does (`valid`), except in listed cases. If a case has
/// `recommended_valid`, Stemma must follow that instead.
#[test]
fn node_names_are_accepted_like_ironic() -> Result<()> {
    const NAME_DIFFERENCES: &[(&str, &str)] =
        &[("\"..\"", "a path with this name leads elsewhere, so no request could name the node")];
    let Some(vectors) = read_vectors("traits/node_names")? else { return Ok(()) };
    let (mut client, mut comparison) = (VectorClient::start()?, CaseComparison::default());
    for case in array(&vectors)? {
        let (status, answer) = client.call("POST", "/v1/nodes", &json!({"name": case["name"], "driver": "fake"}))?;
        let is_valid = case.get("recommended_valid").unwrap_or(&case["valid"]);
        comparison.compare(&case["name"], status == if *is_valid == true { 201 } else { 400 }, &answer);
        if status == 201 {
            let name = escape(case["name"].as_str().context("a name")?);
            let node = client.expect_status("GET", &format!("/v1/nodes/{name}"), &Value::Null, 200)?;
            assert_eq!(node["uuid"], answer["uuid"], "{case}");
            client.expect_status("DELETE", &format!("/v1/nodes/{name}"), &Value::Null, 204)?;
        }
    }
    comparison.check_differences(NAME_DIFFERENCES)
}

/// Each case has a text, the trait name that the library `os-traits` generates from it, and whether that name is valid.
#[test]
fn generated_trait_names_are_accepted_when_valid() -> Result<()> {
    let Some(vectors) = read_vectors("traits/os_traits_normalize")? else { return Ok(()) };
    let (mut client, mut comparison) = (VectorClient::start()?, CaseComparison::default());
    client.expect_status("POST", "/v1/nodes", &json!({"name": "n"}), 201)?;
    for case in array(&vectors)? {
        let (status, answer) = client.call("PUT", "/v1/nodes/n/traits", &json!({"traits": [case["normalized"]]}))?;
        comparison.compare(case, status == if case["is_valid_trait"] == true { 200 } else { 400 }, &answer);
        // As in Ironic, the original name is not a trait. The client has to normalize it.
        client.expect_status("PUT", "/v1/nodes/n/traits", &json!({"traits": [case["name"]]}), 400)?;
    }
    comparison.check_differences(&[])
}

/// This test compares which rules are accepted, and the fields in the answer to an accepted rule. A test of
/// `stemma-core` applies the rules of the same vectors to observations.
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
    let (mut client, mut comparison) = (VectorClient::start()?, CaseComparison::default());
    for case in array(&vectors["rule_validation"])? {
        let (status, answer) = client.call("POST", "/v1/inspection_rules", &case["rule"])?;
        let expected_fields = case["response"].as_object().into_iter().flatten();
        let is_shown = expected_fields.filter(|_| status == 201).all(|(field, value)| answer[field] == *value);
        // Ironic fails if arguments are missing or unknown. Here, the rule is refused.
        let expected_status = if case["status"] == 500 { 400.into() } else { case["status"].clone() };
        comparison.compare(&case["rule"], expected_status == status && is_shown, &answer);
    }
    // Ironic evaluates these conditions without an error, so a rule with such a condition is valid.
    for case in array(&vectors["conditions"])?.iter().filter(|case| case["result"].is_boolean()) {
        let actions = json!([{"op": "add-trait", "args": {"name": "CUSTOM_A"}}]);
        let rule = json!({"conditions": [case["condition"]], "actions": actions});
        let (status, answer) = client.call("POST", "/v1/inspection_rules", &rule)?;
        comparison.compare(&case["condition"], status == 201 && answer["conditions"] == rule["conditions"], &answer);
    }
    comparison.check_differences(RULE_DIFFERENCES)
}

/// Stores Glance's stock files of metadata definitions. Compares the stored namespaces and the operators of their
/// properties with the vectors.
#[test]
fn stock_catalogue_has_operators_of_glance_files() -> Result<()> {
    let (Some(vectors), Some(stock_dir)) = (read_vectors("labels/metadef_operators")?, shared::path("data/metadefs")) else {
        return Ok(());
    };
    let (mut client, mut comparison) = (VectorClient::start()?, CaseComparison::default());
    let mut answers: BTreeMap<String, Value> = BTreeMap::new();
    for file in std::fs::read_dir(stock_dir)? {
        let body: Value = serde_json::from_str(&std::fs::read_to_string(file?.path())?)?;
        let name = body["namespace"].as_str().context("a name")?;
        client.expect_status("POST", "/v2/metadefs/namespaces", &body, 201)?;
        let path = format!("/v2/metadefs/namespaces/{}", escape(name));
        answers.insert(name.to_owned(), client.expect_status("GET", &path, &Value::Null, 200)?);
    }
    for case in array(&vectors["files"])? {
        let answer = &answers[case["namespace"].as_str().context("a name")?];
        let objects = answer["objects"].as_array().map_or(&[][..], Vec::as_slice);
        let properties = || {
            let owners = std::iter::once(answer).chain(objects);
            owners.filter_map(|owner| owner["properties"].as_object()).flatten()
        };
        let types = answer["resource_type_associations"].as_array().into_iter().flatten();
        let types: Vec<Value> = types.map(|entry| json!([entry["name"], entry["prefix"], entry["properties_target"]])).collect();
        let summary = json!({
            "file": case["file"], "namespace": case["namespace"], "visibility": answer["visibility"], "protected": answer["protected"],
            "properties": properties().count(), "objects": objects.len(), "resource_types": types,
            "with_operators": properties().filter(|(_, property)| property.get("operators").is_some()).count(),
        });
        let mut expected = case.clone();
        for (field, default) in [("visibility", json!("private")), ("protected", json!(false))] {
            if expected[field].is_null() {
                expected[field] = default;
            }
        }
        comparison.compare(&case["file"], summary == expected, &summary);
    }
    for case in array(&vectors["operators"])? {
        let namespace = &answers[case["namespace"].as_str().context("a name")?];
        let objects = namespace["objects"].as_array().into_iter().flatten();
        let owner = objects.into_iter().find(|entry| entry["name"] == case["object"]).unwrap_or(namespace);
        let property = &owner["properties"][case["property"].as_str().context("a property")?];
        let is_alike = property["operators"] == case["operators"] && property["type"] == case["type"];
        comparison.compare(&format!("{} {}", case["namespace"], case["property"]), is_alike, property);
    }
    comparison.check_differences(&[])
}
