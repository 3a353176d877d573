//! Tests of the catalogue with the `stemma` command: an import on request, the unchanged namespaces, and `explain`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::shared;

/// A namespace of the catalogue, which declares the label `site/tier`.
const SITE: &str = r#"{"namespace": "Site::Labels", "visibility": "public",
  "resource_type_associations": [{"name": "Stemma::Label", "prefix": "site/"}],
  "properties": {"tier": {"title": "Tier", "description": "How soon it is mended.", "type": "string",
    "enum": ["gold", "silver"], "operators": ["<or>"]}},
  "tags": [{"name": "a"}]}"#;

/// Runs `stemma`, which must end with this exit status. Returns standard output, followed by standard error.
fn run_with_status(fleet: &TempFleet, arguments: &[&str], status: i32) -> Result<String> {
    let output = fleet.cli(arguments)?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.code() == Some(status), "{arguments:?}: {}\n{text}", output.status);
    Ok(text)
}

/// Returns a copy of a property, converted as Glance's model converts it: a default that is a number becomes text.
fn glance_property(property: &Value) -> Value {
    let mut property = property.clone();
    if let Some(default) = property.get_mut("default").filter(|default| default.is_number()) {
        *default = default.to_string().into();
    }
    property
}

/// Converts each property of a namespace, or of one of its objects, in place ([`glance_property`]).
fn convert_properties(parent: &mut Map<String, Value>) {
    for property in parent.get_mut("properties").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        *property = glance_property(property);
    }
}

/// Returns the namespace in a file of Glance's stock catalogue, as the API returns it, without the read-only members.
fn expected_namespace(file: &Path) -> Result<Map<String, Value>> {
    let mut body: Map<String, Value> = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    convert_properties(&mut body);
    for object in body.get_mut("objects").and_then(Value::as_array_mut).into_iter().flatten() {
        convert_properties(object.as_object_mut().context("an object")?);
        object.as_object_mut().context("an object")?.entry("required").or_insert(json!([]));
    }
    // Glance omits empty lists.
    body.retain(|_, value| *value != json!([]));
    body.entry("visibility").or_insert("private".into());
    body.entry("protected").or_insert(false.into());
    Ok(body)
}

#[test]
fn stock_files_are_imported_and_returned_unchanged() -> Result<()> {
    let Some(stock) = shared::path("data/metadefs") else { return Ok(()) };
    let fleet = TempFleet::start()?;
    let stock_text = stock.to_string_lossy().into_owned();
    fleet.stemma(&["catalog", "import", &stock_text])?;
    let mut files: Vec<_> = std::fs::read_dir(&stock)?.collect::<std::io::Result<_>>()?;
    files.sort_by_key(std::fs::DirEntry::path);
    // Glance's stock catalogue has 33 files.
    assert_eq!(files.len(), 33);
    for file in files {
        let expected = expected_namespace(&file.path())?;
        let name = expected["namespace"].as_str().context("a name")?;
        let found: Value = serde_json::from_str(&fleet.stemma(&["get", "namespace", name, "-o", "json"])?)?;
        let mut found: Map<String, Value> = found.as_object().context("a namespace")?.clone();
        stemma_core::catalog::remove_read_only_members(&mut found);
        assert_eq!(found, expected, "{name}");
    }
    // There is no difference, and a second import changes nothing.
    run_with_status(&fleet, &["catalog", "import", &stock_text, "--diff"], 0)?;
    let again = fleet.stemma(&["catalog", "import", &stock_text, "--overwrite", "-o", "json"])?;
    let again: Value = serde_json::from_str(&again)?;
    assert!(again["objects"].as_array().context("objects")?.iter().all(|object| object["action"] == "unchanged"), "{again}");
    Ok(())
}

#[test]
fn import_changes_stored_namespace_when_flag_is_given() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("site.json");
    let path = file.to_string_lossy().into_owned();
    std::fs::write(&file, SITE)?;
    fleet.stemma(&["catalog", "import", &path])?;
    let stored_namespace = |fleet: &TempFleet| -> Result<Value> {
        Ok(serde_json::from_str(&fleet.stemma(&["get", "namespace", "Site::Labels", "-o", "json"])?)?)
    };
    let mut next: Value = serde_json::from_str(SITE)?;
    next["properties"]["tier"]["title"] = "Other".into();
    next["properties"]["zone"] = json!({"title": "Zone", "type": "string"});
    next["tags"] = json!([{"name": "b"}]);
    std::fs::write(&file, next.to_string())?;

    let import_output = run_with_status(&fleet, &["catalog", "import", &path], 0)?;
    assert!(import_output.contains("namespace Site::Labels is stored already and stays unchanged"), "{import_output}");
    let diff_output = run_with_status(&fleet, &["catalog", "import", &path, "--diff"], 6)?;
    for part in ["properties.tier.title  Tier -> Other", "1 of 1 namespaces differ from the stored ones"] {
        assert!(diff_output.contains(part), "{part} in {diff_output}");
    }
    assert_eq!(stored_namespace(&fleet)?["properties"]["tier"]["title"], "Tier", "a comparison writes nothing");

    fleet.stemma(&["catalog", "import", &path, "--merge"])?;
    let merged_namespace = stored_namespace(&fleet)?;
    assert_eq!(merged_namespace["properties"]["tier"]["title"], "Tier");
    assert_eq!(merged_namespace["properties"]["zone"]["title"], "Zone");
    let tags = |namespace: &Value| -> Vec<String> {
        let tags = namespace["tags"].as_array().into_iter().flatten();
        tags.filter_map(|tag| tag["name"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(tags(&merged_namespace).len(), 2, "{merged_namespace}");

    fleet.stemma(&["catalog", "import", &path, "--overwrite"])?;
    let replaced_namespace = stored_namespace(&fleet)?;
    assert_eq!(
        (replaced_namespace["properties"]["tier"]["title"].as_str(), tags(&replaced_namespace)),
        (Some("Other"), vec!["b".to_owned()])
    );
    run_with_status(&fleet, &["catalog", "import", &path, "--diff"], 0)?;

    std::fs::write(&file, r#"{"namespace": "X", "properties": {"a": {"type": "string"}}}"#)?;
    let error_output = run_with_status(&fleet, &["catalog", "import", &path], 1)?;
    assert!(error_output.contains("site.json: properties.a") && error_output.contains("nothing was changed"), "{error_output}");
    Ok(())
}

/// Returns the names of the tags of the namespace `Site::Labels` in Glance's order: the newest tag first.
fn tag_names(fleet: &TempFleet) -> Result<Vec<String>> {
    let namespace: Value = serde_json::from_str(&fleet.stemma(&["get", "namespace", "Site::Labels", "-o", "json"])?)?;
    let tags = namespace["tags"].as_array().into_iter().flatten();
    Ok(tags.filter_map(|tag| tag["name"].as_str().map(str::to_owned)).collect())
}

#[test]
fn merge_and_manifest_keep_order_of_tags() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("site.json");
    let path = file.to_string_lossy().into_owned();
    let site_with_tags = |tags: &[&str]| -> Result<Value> {
        let mut namespace: Value = serde_json::from_str(SITE)?;
        namespace["tags"] = tags.iter().map(|name| json!({"name": name})).collect();
        Ok(namespace)
    };
    std::fs::write(&file, site_with_tags(&["a", "b", "c"])?.to_string())?;
    fleet.stemma(&["catalog", "import", &path])?;
    assert_eq!(tag_names(&fleet)?, ["c", "b", "a"]);
    std::fs::write(&file, site_with_tags(&["b", "d"])?.to_string())?;
    fleet.stemma(&["catalog", "import", &path, "--merge"])?;
    assert_eq!(tag_names(&fleet)?, ["d", "c", "b", "a"]);
    let again = fleet.stemma(&["catalog", "import", &path, "--merge"])?;
    assert!(again.contains("unchanged"), "nothing is missing any more: {again}");
    let manifest = fleet.dir().join("site.yaml");
    std::fs::write(&manifest, fleet.stemma(&["get", "namespace", "Site::Labels", "-o", "manifest"])?)?;
    fleet.stemma(&["apply", "-f", &manifest.to_string_lossy(), "--force"])?;
    assert_eq!(tag_names(&fleet)?, ["d", "c", "b", "a"]);
    Ok(())
}

/// The first case, a file in UTF-16, is from a bug report of Glance (Launchpad 1483049).
#[test]
fn y09_import_error_names_file() -> Result<()> {
    let fleet = TempFleet::start()?;
    let utf_16: Vec<u8> = SITE.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let create_dir = |name: &str| -> Result<std::path::PathBuf> {
        let directory = fleet.dir().join(name);
        std::fs::create_dir(&directory)?;
        std::fs::write(directory.join("a.json"), SITE)?;
        Ok(directory)
    };
    let cases = [
        ("utf-16", [&[0xff, 0xfe], &utf_16[..]].concat(), "it is a text in UTF-16: save it in UTF-8"),
        ("twice", SITE.into(), "a.json too: keep one of them"),
    ];
    for (name, bytes, expected) in cases {
        let directory = create_dir(name)?;
        std::fs::write(directory.join("b.json"), bytes)?;
        let text = run_with_status(&fleet, &["catalog", "import", &directory.to_string_lossy()], 1)?;
        assert!(text.contains("b.json: ") && text.contains(expected) && text.contains("nothing was changed"), "{text}");
    }
    let directory = create_dir("directory")?;
    std::fs::create_dir(directory.join("b.json"))?;
    let text = run_with_status(&fleet, &["catalog", "import", &directory.to_string_lossy()], 1)?;
    assert!(text.contains("b.json: it is a directory, and a file is meant"), "{text}");
    Ok(())
}

#[test]
fn y09_merge_takes_no_ownership_of_unchanged_fields() -> Result<()> {
    let fleet = TempFleet::start()?;
    let write_file = |name: &str, text: &str| -> Result<String> {
        let path = fleet.dir().join(name);
        std::fs::write(&path, text)?;
        Ok(path.to_string_lossy().into_owned())
    };
    let site_file = write_file("site.json", &SITE.replace(r#""visibility""#, r#""protected": false, "visibility""#))?;
    fleet.stemma(&["catalog", "import", &site_file])?;
    for _ in 0..2 {
        let import_output = run_with_status(&fleet, &["catalog", "import", &site_file, "--merge"], 0)?;
        assert!(import_output.contains("unchanged") && !import_output.contains("updated"), "{import_output}");
        run_with_status(&fleet, &["catalog", "import", &site_file, "--diff"], 0)?;
    }
    let apply_by_ci = |description: &str| -> Result<String> {
        let text = format!("kind: Namespace\nnamespace: Site::Labels\ndescription: {description}\n");
        let path = write_file("ci.yaml", &text)?;
        run_with_status(&fleet, &["--manager", "ci", "apply", "-f", &path], 0)
    };
    // Each apply of `ci` would fail with a conflict if an import were an owner of `description`.
    apply_by_ci("one")?;
    let tags_file = write_file("more.json", r#"{"namespace": "Site::Labels", "tags": [{"name": "b"}]}"#)?;
    fleet.stemma(&["catalog", "import", &tags_file, "--merge"])?;
    assert_eq!(tag_names(&fleet)?, ["b", "a"], "the second import removes nothing that the first import wrote");
    apply_by_ci("two")?;
    Ok(())
}

/// Each of several concurrent imports is either stored or fails. No import overwrites the content of another import.
#[test]
fn concurrent_merges_lose_nothing() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file_path = |name: &str| fleet.dir().join(format!("{name}.json")).to_string_lossy().into_owned();
    std::fs::write(file_path("site"), SITE)?;
    fleet.stemma(&["catalog", "import", &file_path("site")])?;
    for round in 0..4 {
        let names: Vec<String> = (0..4).map(|number| format!("p{round}-{number}")).collect();
        for name in &names {
            let properties = json!({name: {"title": "P", "type": "string"}});
            std::fs::write(file_path(name), json!({"namespace": "Site::Labels", "properties": properties}).to_string())?;
        }
        let imports: Vec<_> = names
            .iter()
            .map(|name| fleet.spawn_cli(&["catalog", "import", &file_path(name), "--merge"]))
            .collect::<Result<_>>()?;
        let mut results = Vec::new();
        for import in imports {
            results.push(import.wait_with_log()?);
        }
        let stored: Value = serde_json::from_str(&fleet.stemma(&["get", "namespace", "Site::Labels", "-o", "json"])?)?;
        for (name, (is_success, log)) in names.iter().zip(results) {
            assert_eq!(!stored["properties"][name].is_null(), is_success, "{name}: {log}");
            assert!(is_success || log.contains("nothing was changed"), "{log}");
        }
    }
    Ok(())
}

/// `explain` describes a fact of the built-in catalogue and a label of an imported one. For an unknown label, it
/// proposes a similar name.
#[test]
fn builtin_catalogue_is_stored_and_explained_when_requested() -> Result<()> {
    let fleet = TempFleet::start()?;
    assert_eq!(fleet.stemma(&["get", "namespaces", "-o", "name"])?, "", "a controller stores no namespace when it starts");
    fleet.stemma(&["catalog", "import", "--builtin"])?;
    assert_eq!(fleet.stemma(&["get", "namespaces", "-o", "name"])?, "namespace/Stemma::Machine\nnamespace/Stemma::Facts\n");
    let explained = fleet.stemma(&["explain", "fact", "cpu.count"])?;
    for line in ["fact cpu.count", "title        logical processors", "type         integer", "namespace    Stemma::Facts"] {
        assert!(explained.contains(line), "{line} in {explained}");
    }
    let file = fleet.dir().join("site.json");
    std::fs::write(&file, SITE)?;
    fleet.stemma(&["catalog", "import", &file.to_string_lossy()])?;
    let explained = fleet.stemma(&["explain", "label", "site/tier"])?;
    let lines: BTreeMap<&str, &str> = explained.lines().skip(1).filter_map(|line| line.trim().split_once("  ")).collect();
    let field = |name: &str| lines.get(name).map(|value| value.trim());
    assert_eq!(
        (field("title"), field("description"), field("values"), field("operators")),
        (Some("Tier"), Some("How soon it is mended."), Some("gold,silver"), Some("<or>")),
        "{explained}"
    );
    let error_output = run_with_status(&fleet, &["explain", "label", "site/teir"], 3)?;
    assert!(error_output.contains("label 'site/teir' is not in the catalogue (did you mean \"site/tier\"?)"), "{error_output}");
    Ok(())
}

#[test]
fn namespace_manifest_defines_labels_of_same_apply() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("site.yaml");
    let path = file.to_string_lossy().into_owned();
    let manifest_text = |tier: &str| {
        format!(
            "kind: Namespace\nnamespace: Site::Labels\nresource_type_associations: [{{name: Stemma::Label}}]\n\
             properties: {{tier: {{title: Tier, type: string, enum: [gold, silver]}}}}\n---\n\
             kind: Cluster\nname: prod\nlabels: {{tier: {tier}}}\n"
        )
    };
    std::fs::write(&file, manifest_text("iron"))?;
    let apply_error = run_with_status(&fleet, &["apply", "-f", &path], 1)?;
    assert!(apply_error.contains("label tier: \"iron\" is not one of gold, silver"), "{apply_error}");
    let validate_error = run_with_status(&fleet, &["validate", "-f", &path, "--strict"], 1)?;
    assert!(validate_error.contains("catalog.value") && validate_error.contains("site.yaml:8"), "{validate_error}");
    std::fs::write(&file, manifest_text("gold"))?;
    run_with_status(&fleet, &["apply", "-f", &path], 0)?;
    let manifest = fleet.stemma(&["get", "namespace", "Site::Labels", "-o", "manifest"])?;
    std::fs::write(&file, &manifest)?;
    let apply_output = fleet.stemma(&["apply", "-f", &path, "--force"])?;
    assert!(apply_output.contains("Site::Labels  unchanged"), "{manifest}\n{apply_output}");
    fleet.stemma(&["delete", "namespace", "Site::Labels", "--yes"])?;
    Ok(())
}
