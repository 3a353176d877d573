//! The catalogue by the operator's command: imported when that is asked for, given back as it went in, and explained.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use stemma_tests::fleet::Fleet;
use stemma_tests::shared;

const SITE: &str = r#"{"namespace": "Site::Labels", "visibility": "public",
  "resource_type_associations": [{"name": "Stemma::Label", "prefix": "site/"}],
  "properties": {"tier": {"title": "Tier", "description": "How soon it is mended.", "type": "string",
    "enum": ["gold", "silver"], "operators": ["<or>"]}},
  "tags": [{"name": "a"}]}"#;

/// Runs the command, which ends with this status, and gives both outputs.
fn ends(fleet: &Fleet, arguments: &[&str], status: i32) -> Result<String> {
    let output = fleet.cli(arguments)?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.code() == Some(status), "{arguments:?}: {}\n{text}", output.status);
    Ok(text)
}

/// A property as Glance's model gives it back: a default is text, and a bound a whole number.
fn given_back(property: &Value) -> Value {
    let mut property = property.clone();
    if let Some(default) = property.get_mut("default").filter(|default| default.is_number()) {
        *default = default.to_string().into();
    }
    property
}

fn properties_given_back(within: &mut Map<String, Value>) {
    for property in within.get_mut("properties").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        *property = given_back(property);
    }
}

/// A stock file as the API gives it back.
fn expected(file: &Path) -> Result<Map<String, Value>> {
    let mut body: Map<String, Value> = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    properties_given_back(&mut body);
    for object in body.get_mut("objects").and_then(Value::as_array_mut).into_iter().flatten() {
        properties_given_back(object.as_object_mut().context("an object")?);
        object.as_object_mut().context("an object")?.entry("required").or_insert(json!([]));
    }
    // As Glance, which shows no list that is empty.
    body.retain(|_, value| *value != json!([]));
    body.entry("visibility").or_insert("private".into());
    body.entry("protected").or_insert(false.into());
    Ok(body)
}

#[test]
fn all_stock_files_are_imported_and_come_back_as_they_went_in() -> Result<()> {
    let Some(stock) = shared::path("data/metadefs") else { return Ok(()) };
    let fleet = Fleet::start()?;
    let stock_text = stock.to_string_lossy().into_owned();
    fleet.stemma(&["catalog", "import", &stock_text])?;
    let mut files: Vec<_> = std::fs::read_dir(&stock)?.collect::<std::io::Result<_>>()?;
    files.sort_by_key(std::fs::DirEntry::path);
    assert_eq!(files.len(), 33);
    for file in files {
        let expected = expected(&file.path())?;
        let name = expected["namespace"].as_str().context("a name")?;
        let found: Value = serde_json::from_str(&fleet.stemma(&["get", "namespace", name, "-o", "json"])?)?;
        let mut found: Map<String, Value> = found.as_object().context("a namespace")?.clone();
        stemma_core::catalog::without_read_only(&mut found);
        assert_eq!(found, expected, "{name}");
    }
    // Nothing differs, and importing them again changes nothing.
    ends(&fleet, &["catalog", "import", &stock_text, "--diff"], 0)?;
    let again = fleet.stemma(&["catalog", "import", &stock_text, "--overwrite", "-o", "json"])?;
    let again: Value = serde_json::from_str(&again)?;
    assert!(again["objects"].as_array().context("objects")?.iter().all(|one| one["action"] == "unchanged"), "{again}");
    Ok(())
}

#[test]
fn an_import_changes_what_is_stored_when_it_is_asked_to() -> Result<()> {
    let fleet = Fleet::start()?;
    let file = fleet.dir().join("site.json");
    let path = file.to_string_lossy().into_owned();
    std::fs::write(&file, SITE)?;
    fleet.stemma(&["catalog", "import", &path])?;
    let stored = |fleet: &Fleet| -> Result<Value> {
        Ok(serde_json::from_str(&fleet.stemma(&["get", "namespace", "Site::Labels", "-o", "json"])?)?)
    };
    let mut next: Value = serde_json::from_str(SITE)?;
    next["properties"]["tier"]["title"] = "Other".into();
    next["properties"]["zone"] = json!({"title": "Zone", "type": "string"});
    next["tags"] = json!([{"name": "b"}]);
    std::fs::write(&file, next.to_string())?;

    let kept = ends(&fleet, &["catalog", "import", &path], 0)?;
    assert!(kept.contains("namespace Site::Labels is stored already and stays as it is"), "{kept}");
    let differs = ends(&fleet, &["catalog", "import", &path, "--diff"], 6)?;
    for part in ["properties.tier.title  Tier -> Other", "1 of 1 namespaces are not stored as they are imported"] {
        assert!(differs.contains(part), "{part} in {differs}");
    }
    assert_eq!(stored(&fleet)?["properties"]["tier"]["title"], "Tier", "a comparison writes nothing");

    fleet.stemma(&["catalog", "import", &path, "--merge"])?;
    let merged = stored(&fleet)?;
    assert_eq!(merged["properties"]["tier"]["title"], "Tier");
    assert_eq!(merged["properties"]["zone"]["title"], "Zone");
    let tags = |namespace: &Value| -> Vec<String> {
        let tags = namespace["tags"].as_array().into_iter().flatten();
        tags.filter_map(|tag| tag["name"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(tags(&merged).len(), 2, "{merged}");

    fleet.stemma(&["catalog", "import", &path, "--overwrite"])?;
    let replaced = stored(&fleet)?;
    assert_eq!(
        (replaced["properties"]["tier"]["title"].as_str(), tags(&replaced)),
        (Some("Other"), vec!["b".to_owned()])
    );
    ends(&fleet, &["catalog", "import", &path, "--diff"], 0)?;

    std::fs::write(&file, r#"{"namespace": "X", "properties": {"a": {"type": "string"}}}"#)?;
    let wrong = ends(&fleet, &["catalog", "import", &path], 1)?;
    assert!(wrong.contains("site.json: properties.a") && wrong.contains("nothing was changed"), "{wrong}");
    Ok(())
}

/// The names of a namespace's tags, as Glance shows them: the last one first.
fn tags(fleet: &Fleet) -> Result<Vec<String>> {
    let namespace: Value = serde_json::from_str(&fleet.stemma(&["get", "namespace", "Site::Labels", "-o", "json"])?)?;
    let tags = namespace["tags"].as_array().into_iter().flatten();
    Ok(tags.filter_map(|tag| tag["name"].as_str().map(str::to_owned)).collect())
}

#[test]
fn a_merge_and_a_manifest_keep_the_order_of_tags() -> Result<()> {
    let fleet = Fleet::start()?;
    let file = fleet.dir().join("site.json");
    let path = file.to_string_lossy().into_owned();
    let with = |tags: &[&str]| -> Result<Value> {
        let mut namespace: Value = serde_json::from_str(SITE)?;
        namespace["tags"] = tags.iter().map(|name| json!({"name": name})).collect();
        Ok(namespace)
    };
    std::fs::write(&file, with(&["a", "b", "c"])?.to_string())?;
    fleet.stemma(&["catalog", "import", &path])?;
    assert_eq!(tags(&fleet)?, ["c", "b", "a"]);
    std::fs::write(&file, with(&["b", "d"])?.to_string())?;
    fleet.stemma(&["catalog", "import", &path, "--merge"])?;
    assert_eq!(tags(&fleet)?, ["d", "c", "b", "a"]);
    let again = fleet.stemma(&["catalog", "import", &path, "--merge"])?;
    assert!(again.contains("unchanged"), "nothing is missing any more: {again}");
    let manifest = fleet.dir().join("site.yaml");
    std::fs::write(&manifest, fleet.stemma(&["get", "namespace", "Site::Labels", "-o", "manifest"])?)?;
    fleet.stemma(&["apply", "-f", &manifest.to_string_lossy(), "--force"])?;
    assert_eq!(tags(&fleet)?, ["d", "c", "b", "a"]);
    Ok(())
}

/// The words are those of bug reports of Glance (Launchpad 1483049) and of the command's own help.
#[test]
fn y09_an_error_of_an_import_names_the_file() -> Result<()> {
    let fleet = Fleet::start()?;
    let utf_16: Vec<u8> = SITE.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let directory = |name: &str| -> Result<std::path::PathBuf> {
        let directory = fleet.dir().join(name);
        std::fs::create_dir(&directory)?;
        std::fs::write(directory.join("a.json"), SITE)?;
        Ok(directory)
    };
    let cases = [
        ("utf-16", [&[0xff, 0xfe], &utf_16[..]].concat(), "it is a text in UTF-16: save it in UTF-8"),
        ("twice", SITE.into(), "a.json too: keep one of them"),
    ];
    for (name, bytes, part) in cases {
        let directory = directory(name)?;
        std::fs::write(directory.join("b.json"), bytes)?;
        let said = ends(&fleet, &["catalog", "import", &directory.to_string_lossy()], 1)?;
        assert!(said.contains("b.json: ") && said.contains(part) && said.contains("nothing was changed"), "{said}");
    }
    let directory = directory("directory")?;
    std::fs::create_dir(directory.join("b.json"))?;
    let said = ends(&fleet, &["catalog", "import", &directory.to_string_lossy()], 1)?;
    assert!(said.contains("b.json: it is a directory, and a file is meant"), "{said}");
    Ok(())
}

#[test]
fn y09_a_merge_that_adds_nothing_changes_nothing_and_takes_nothing() -> Result<()> {
    let fleet = Fleet::start()?;
    let file = |name: &str, text: &str| -> Result<String> {
        let path = fleet.dir().join(name);
        std::fs::write(&path, text)?;
        Ok(path.to_string_lossy().into_owned())
    };
    let site = file("site.json", &SITE.replace(r#""visibility""#, r#""protected": false, "visibility""#))?;
    fleet.stemma(&["catalog", "import", &site])?;
    for _ in 0..2 {
        let merged = ends(&fleet, &["catalog", "import", &site, "--merge"], 0)?;
        assert!(merged.contains("unchanged") && !merged.contains("updated"), "{merged}");
        ends(&fleet, &["catalog", "import", &site, "--diff"], 0)?;
    }
    let by_ci = |description: &str| -> Result<String> {
        let text = format!("kind: Namespace\nnamespace: Site::Labels\ndescription: {description}\n");
        let path = file("ci.yaml", &text)?;
        ends(&fleet, &["--manager", "ci", "apply", "-f", &path], 0)
    };
    by_ci("one")?;
    let more = file("more.json", r#"{"namespace": "Site::Labels", "tags": [{"name": "b"}]}"#)?;
    fleet.stemma(&["catalog", "import", &more, "--merge"])?;
    assert_eq!(tags(&fleet)?, ["b", "a"], "nothing that the import gave before is taken back");
    by_ci("two")?;
    Ok(())
}

/// Of imports at the same time each that ended well is there: none was put over by another that had read before it.
#[test]
fn merges_at_the_same_time_lose_nothing() -> Result<()> {
    let fleet = Fleet::start()?;
    let file = |name: &str| fleet.dir().join(format!("{name}.json")).to_string_lossy().into_owned();
    std::fs::write(file("site"), SITE)?;
    fleet.stemma(&["catalog", "import", &file("site")])?;
    for round in 0..4 {
        let names: Vec<String> = (0..4).map(|number| format!("p{round}-{number}")).collect();
        for name in &names {
            let properties = json!({name: {"title": "P", "type": "string"}});
            std::fs::write(file(name), json!({"namespace": "Site::Labels", "properties": properties}).to_string())?;
        }
        let imports: Vec<_> = names
            .iter()
            .map(|name| fleet.begin(&["catalog", "import", &file(name), "--merge"]))
            .collect::<Result<_>>()?;
        let mut ended = Vec::new();
        for import in imports {
            ended.push(import.ended_with()?);
        }
        let stored: Value =
            serde_json::from_str(&fleet.stemma(&["get", "namespace", "Site::Labels", "-o", "json"])?)?;
        for (name, (is_well, said)) in names.iter().zip(ended) {
            assert_eq!(!stored["properties"][name].is_null(), is_well, "{name}: {said}");
            assert!(is_well || said.contains("nothing was changed"), "{said}");
        }
    }
    Ok(())
}

#[test]
fn what_comes_with_the_program_is_stored_when_it_is_asked_for_and_explained() -> Result<()> {
    let fleet = Fleet::start()?;
    assert_eq!(fleet.stemma(&["get", "namespaces", "-o", "name"])?, "", "no start of a controller stores any");
    fleet.stemma(&["catalog", "import", "--builtin"])?;
    assert_eq!(
        fleet.stemma(&["get", "namespaces", "-o", "name"])?,
        "namespace/Stemma::Machine\nnamespace/Stemma::Facts\n"
    );
    let explained = fleet.stemma(&["explain", "fact", "cpu.count"])?;
    for line in
        ["fact cpu.count", "title        logical processors", "type         integer", "namespace    Stemma::Facts"]
    {
        assert!(explained.contains(line), "{line} in {explained}");
    }
    let file = fleet.dir().join("site.json");
    std::fs::write(&file, SITE)?;
    fleet.stemma(&["catalog", "import", &file.to_string_lossy()])?;
    let explained = fleet.stemma(&["explain", "label", "site/tier"])?;
    let lines: BTreeMap<&str, &str> =
        explained.lines().skip(1).filter_map(|line| line.trim().split_once("  ")).collect();
    let of = |name: &str| lines.get(name).map(|value| value.trim());
    assert_eq!(
        (of("title"), of("description"), of("values"), of("operators")),
        (Some("Tier"), Some("How soon it is mended."), Some("gold,silver"), Some("<or>")),
        "{explained}"
    );
    let near = ends(&fleet, &["explain", "label", "site/teir"], 3)?;
    assert!(near.contains("label 'site/teir' is not in the catalogue (did you mean \"site/tier\"?)"), "{near}");
    Ok(())
}

#[test]
fn a_namespace_is_a_manifest_and_holds_the_labels_of_the_same_manifests() -> Result<()> {
    let fleet = Fleet::start()?;
    let file = fleet.dir().join("site.yaml");
    let path = file.to_string_lossy().into_owned();
    let text = |tier: &str| {
        format!(
            "kind: Namespace\nnamespace: Site::Labels\nresource_type_associations: [{{name: Stemma::Label}}]\n\
             properties: {{tier: {{title: Tier, type: string, enum: [gold, silver]}}}}\n---\n\
             kind: Cluster\nname: prod\nlabels: {{tier: {tier}}}\n"
        )
    };
    std::fs::write(&file, text("iron"))?;
    let refused = ends(&fleet, &["apply", "-f", &path], 1)?;
    assert!(refused.contains("label tier: \"iron\" is none of gold, silver"), "{refused}");
    let found = ends(&fleet, &["validate", "-f", &path, "--strict"], 1)?;
    assert!(found.contains("catalog.value") && found.contains("site.yaml:8"), "{found}");
    std::fs::write(&file, text("gold"))?;
    ends(&fleet, &["apply", "-f", &path], 0)?;
    let manifest = fleet.stemma(&["get", "namespace", "Site::Labels", "-o", "manifest"])?;
    std::fs::write(&file, &manifest)?;
    let again = fleet.stemma(&["apply", "-f", &path, "--force"])?;
    assert!(again.contains("Site::Labels  unchanged"), "{manifest}\n{again}");
    fleet.stemma(&["delete", "namespace", "Site::Labels", "--yes"])?;
    Ok(())
}
