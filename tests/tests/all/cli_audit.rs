//! Who did what, as an operator asks for it with the command.

use anyhow::Result;
use serde_json::Value;
use stemma_tests::fleet::Fleet;

#[test]
fn who_did_what_to_an_object_is_found_when_it_is_gone() -> Result<()> {
    let fleet = Fleet::start()?;
    fleet.stemma(&["create", "cluster", "prod"])?;
    fleet.stemma(&["create", "node", "web-1"])?;
    fleet.stemma(&["label", "node", "web-1", "a=b", "--manager", "ops", "--reason", "ticket 7"])?;
    fleet.stemma(&["delete", "node", "web-1"])?;
    let table = fleet.stemma(&["audit", "node/web-1"])?;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.len() == 4 && lines[0].starts_with("REVISION"), "{table}");
    for (line, said) in lines[1..].iter().zip(["deleted node/web-1", "updated node/web-1", "created node/web-1"]) {
        assert!(line.contains(said) && line.contains("admin"), "the last comes first: {table}");
    }
    assert!(lines[2].contains("ticket 7") && !lines[1].contains("ticket 7"), "{table}");
    let last: Value = serde_json::from_str(&fleet.stemma(&["audit", "--limit", "1", "-o", "json"])?)?;
    assert_eq!((&last[0]["objects"][0]["action"], &last[1]), (&Value::from("deleted"), &Value::Null));
    for (arguments, count) in [
        // With the first admin, which `init` stores.
        (&["--since", "1h"][..], 5),
        (&["--until", "1h"], 0),
        (&["--since", "2000-01-01T00:00:00Z", "--principal", "admin"], 4),
        (&["--principal", "nobody"], 0),
        (&["--refused"], 0),
    ] {
        let found: Value = serde_json::from_str(&fleet.stemma(&[&["audit", "-o", "json"], arguments].concat())?)?;
        assert_eq!(found.as_array().map(Vec::len), Some(count), "{arguments:?}: {found}");
    }
    for (arguments, told) in
        [(&["audit", "web-1"][..], "it is KIND/NAME"), (&["audit", "--since", "soon"], "nor a duration")]
    {
        let output = fleet.cli(arguments)?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(told), "{arguments:?}: {said}");
    }
    Ok(())
}
