//! The audit through the operator's command: who changed what.

use anyhow::Result;
use serde_json::Value;
use stemma_tests::fleet::TempFleet;

#[test]
fn audit_finds_entries_of_deleted_object() -> Result<()> {
    let fleet = TempFleet::start()?;
    fleet.stemma(&["create", "cluster", "prod"])?;
    fleet.stemma(&["create", "node", "web-1"])?;
    fleet.stemma(&["label", "node", "web-1", "a=b", "--manager", "ops", "--reason", "ticket 7"])?;
    fleet.stemma(&["delete", "node", "web-1"])?;
    let table = fleet.stemma(&["audit", "node/web-1"])?;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.len() == 6 && lines[0].starts_with("REVISION"), "{table}");
    let rows = [lines[1], lines[2], lines[5]];
    for (line, entry) in rows.iter().zip(["deleted node/web-1", "updated node/web-1", "created node/web-1"]) {
        assert!(line.contains(entry) && line.contains("admin"), "the newest entry is the first: {table}");
    }
    let changes = [lines[3].trim(), lines[4].trim()];
    assert_eq!(changes, ["labels.a: (unset) -> \"b\"", "merge_labels: (unset) -> true"], "the changes are listed: {table}");
    assert!(lines[2].contains("ticket 7") && !lines[1].contains("ticket 7"), "{table}");
    let newest: Value = serde_json::from_str(&fleet.stemma(&["audit", "--limit", "1", "-o", "json"])?)?;
    assert_eq!((&newest[0]["objects"][0]["action"], &newest[1]), (&Value::from("deleted"), &Value::Null));
    for (arguments, count) in [
        // The count includes the first admin, which `init` stores.
        (&["--since", "1h"][..], 5),
        (&["--until", "1h"], 0),
        (&["--since", "2000-01-01T00:00:00Z", "--principal", "admin"], 4),
        (&["--principal", "nobody"], 0),
        (&["--refused"], 0),
    ] {
        let entries: Value = serde_json::from_str(&fleet.stemma(&[&["audit", "-o", "json"], arguments].concat())?)?;
        assert_eq!(entries.as_array().map(Vec::len), Some(count), "{arguments:?}: {entries}");
    }
    for (arguments, expected) in [(&["audit", "web-1"][..], "it is KIND/NAME"), (&["audit", "--since", "soon"], "nor a duration")]
    {
        let output = fleet.cli(arguments)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    Ok(())
}

/// Regression: the list did not show the changed values, and ended after 50 rows without a note. It listed the events
/// before a rename only under the old name.
#[test]
fn y09_audit_has_values_and_follows_renamed_node() -> Result<()> {
    let fleet = TempFleet::start()?;
    fleet.stemma(&["create", "node", "h3"])?;
    fleet.stemma(&["label", "node", "h3", "rack=a"])?;
    fleet.stemma(&["label", "node", "h3", "rack=b"])?;
    fleet.stemma(&["node", "rename", "h3", "h3b"])?;
    for name in ["node/h3b", "node/h3"] {
        let table = fleet.stemma(&["audit", name])?;
        for part in [
            "created node/h3 ",
            "updated node/h3b ",
            "labels.rack: (unset) -> \"a\"",
            "labels.rack: \"a\" -> \"b\"",
            "name: \"h3\" -> \"h3b\"",
        ] {
            assert!(table.contains(part), "{name}: {part} in {table}");
        }
        let list: Value = serde_json::from_str(&fleet.stemma(&["audit", name, "-o", "json"])?)?;
        assert_eq!(list.as_array().map(Vec::len), Some(4), "{name}: {list}");
        let expected = serde_json::json!([{"field": "labels.rack", "before": "a", "after": "b"}]);
        assert_eq!(list[1]["objects"][0]["changes"], expected, "{name}");
    }
    for (limit, expected) in [
        ("1", "1 row is shown, and there are older ones: --limit N\n"),
        ("3", "3 rows are shown, and there are older ones: --limit N\n"),
        ("4", ""),
        ("50", ""),
    ] {
        for output_format in ["table", "json"] {
            let output = fleet.cli(&["audit", "node/h3", "--limit", limit, "-o", output_format])?;
            assert_eq!(String::from_utf8_lossy(&output.stderr), expected, "--limit {limit} -o {output_format}");
        }
    }
    Ok(())
}
