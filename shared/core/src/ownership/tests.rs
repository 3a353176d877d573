//! Cases that the given scenarios lack: tombstones, single keys, transfers. The expected values are written by hand.

use super::*;

type Map = OwnedMap<String, u8>;

fn manager(text: &str) -> Manager {
    Manager::new(text).unwrap()
}

fn intent(pairs: &[(&str, Option<u8>)]) -> Intent<String, u8> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), ProvidedValue::from(*value))).collect()
}

fn applied(map: &Map, who: &str, pairs: &[(&str, Option<u8>)]) -> Map {
    map.apply(&manager(who), &intent(pairs), false).unwrap()
}

/// Returns the map as `key=value owner owner; …`. A tombstone is `-`.
fn map_text(map: &Map) -> String {
    let entry = |(key, entry): (&String, &OwnedEntry<u8>)| {
        let value = entry.value.value().map_or("-".to_owned(), u8::to_string);
        let owners: Vec<_> = entry.owners.iter().map(ToString::to_string).collect();
        format!("{key}={value} {}", owners.join(" "))
    };
    map.iter().map(entry).collect::<Vec<_>>().join("; ")
}

#[test]
fn y04_manager_rejects_name_when_blank_or_owner_text() {
    for (text, taken) in [
        ("ci", true),
        ("ci:prod", true),
        ("admin:update", false),
        ("a:apply", false),
        (":update", false),
        ("x:APPLY", false),
        ("x:Update", false),
        ("x:applied", true),
        ("", false),
        (" ", false),
        ("a\nb", false),
        ("a\u{2028}b", false),
    ] {
        assert_eq!(Manager::new_visible(text).is_ok(), taken, "{text:?}");
    }
    // The length is valid, so the error names the actual problem.
    for blank in [" ", "\u{200b}", "\u{3000} "] {
        let refused = Manager::new_visible(blank).unwrap_err().to_string();
        assert_eq!(refused, format!("manager {blank:?} is blank: use a name with visible characters"));
    }
    let refused = Manager::new_visible("").unwrap_err().to_string();
    assert_eq!(refused, "manager \"\" must have 1 to 128 bytes and no control characters");
    // An older version accepted this name.
    assert_eq!("a:apply:update".parse::<Owner>().map(|owner| owner.to_string()), Ok("a:apply:update".to_owned()));
}

#[test]
fn tombstone_is_shared_and_conflicts_like_value() {
    let map = applied(&Map::default(), "a", &[("x", None), ("y", Some(1))]);
    let map = applied(&map, "b", &[("x", None)]);
    assert_eq!(map_text(&map), "x=- a:apply b:apply; y=1 a:apply");
    assert!(!map.is_empty() && Map::default().is_empty());
    let refused = map.apply(&manager("c"), &intent(&[("x", Some(1)), ("y", None)]), false).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "2 keys are owned by others with other values: x (a:apply), x (b:apply), y (a:apply); nothing was changed. \
         Leave them out, agree with the owner, or force"
    );
    assert_eq!(refused.0[0].value, ProvidedValue::Tombstone);
    let map = map.apply(&manager("c"), &intent(&[("x", Some(1))]), true).unwrap();
    assert_eq!(map_text(&map), "x=1 c:apply; y=1 a:apply");
    assert_eq!(map_text(&applied(&map, "a", &[])), "x=1 c:apply");
}

#[test]
fn conflicts_lists_ten_keys_and_counts_others() {
    let keys: Vec<_> = ('a'..='k').map(String::from).collect();
    let of = |count: usize, value| -> Intent<String, u8> {
        keys[..count].iter().map(|key| (key.clone(), ProvidedValue::Value(value))).collect()
    };
    for (count, ends) in [(10, "j (a:apply); nothing"), (11, "j (a:apply), …; nothing")] {
        let map = Map::default().apply(&manager("a"), &of(count, 1), false).unwrap();
        let refused = map.apply(&manager("b"), &of(count, 2), false).unwrap_err().to_string();
        assert!(refused.contains(ends) && !refused.contains("k (a:apply)"), "{refused}");
    }
}

#[test]
fn entry_owner_is_manager_with_operation() {
    let map = applied(&Map::default(), "a", &[("x", Some(1))]);
    let entry = map.get("x").unwrap();
    for (owner, is) in [("a:apply", true), ("a:update", false), ("b:apply", false)] {
        assert_eq!(entry.is_owned_by(&owner.parse().unwrap()), is, "{owner}");
    }
}

#[test]
fn patch_changes_only_named_keys() {
    let map = applied(&Map::default(), "a", &[("x", Some(1)), ("y", Some(1)), ("z", None)]);
    let changes = BTreeMap::from([
        ("w".to_owned(), Some(ProvidedValue::Tombstone)),
        ("x".to_owned(), Some(ProvidedValue::Value(1))),
        ("y".to_owned(), Some(ProvidedValue::Value(2))),
        ("z".to_owned(), None),
        ("absent".to_owned(), None),
    ]);
    assert_eq!(map_text(&map.patch(&manager("u"), &changes)), "w=- u:update; x=1 a:apply; y=2 u:update");
}

#[test]
fn transfer_moves_keys_when_owner_matches() {
    let map = applied(&Map::default(), "a", &[("x", Some(1)), ("y", Some(1))]);
    let map = map.patch(&manager("a"), &BTreeMap::from([("z".to_owned(), Some(ProvidedValue::Value(1)))]));
    let map = applied(&map, "b", &[("x", Some(1))]);
    let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
    let party = |text: &str| text.parse::<OwnerMatch>().unwrap();
    for (from, to, names, after) in [
        ("a", "c", &["x", "y", "z"][..], "x=1 b:apply c:apply; y=1 c:apply; z=1 c:update"),
        ("a", "b", &["x"], "x=1 b:apply; y=1 a:apply; z=1 a:update"),
        ("a", "c:apply", &["z"], "x=1 a:apply b:apply; y=1 a:apply; z=1 c:apply"),
        ("a:update", "a:apply", &["z"], "x=1 a:apply b:apply; y=1 a:apply; z=1 a:apply"),
    ] {
        let given = map.transfer(&party(from), &party(to), &keys(names)).unwrap();
        assert_eq!(map_text(&given), after, "{from} {to} {names:?}");
    }
    let refused = map.transfer(&party("b"), &party("c"), &keys(&["x", "y", "q"])).unwrap_err();
    assert_eq!(refused.to_string(), "b does not own y, q; nothing was changed");
    for (from, after) in [
        ("a", "x=1 a:apply b:apply; y=1 c:apply; z=1 c:apply"),
        // The form in which a conflict names an owner.
        ("a:update", "x=1 a:apply b:apply; y=1 a:apply; z=1 c:apply"),
        ("a:apply", "x=1 a:apply b:apply; y=1 c:apply; z=1 a:update"),
    ] {
        let adopted = map.adopt(&party(from), &manager("c"), &keys(&["y", "z", "q"]));
        assert_eq!(map_text(&adopted), after, "{from}");
    }
}

#[test]
fn set_missing_times_marks_only_new_entries() {
    let mut map = applied(&Map::default(), "a", &[("x", Some(1)), ("y", Some(1))]);
    map.set_missing_times(10);
    let mut map = applied(&map, "a", &[("x", Some(1)), ("y", Some(2)), ("z", Some(1))]);
    map.set_missing_times(20);
    let since: Vec<_> = map.iter().map(|(key, entry)| (key.as_str(), entry.since_ms.unwrap())).collect();
    assert_eq!(since, [("x", 10), ("y", 20), ("z", 20)]);
}

#[test]
fn owned_map_is_equal_when_stored_and_read() {
    let map = applied(&Map::default(), "a", &[("x", Some(1)), ("y", None)]);
    let stored = r#"{"x":{"said":{"value":1},"owners":["a:apply"],"since_ms":null},"y":{"said":"tombstone","owners":["a:apply"],"since_ms":null}}"#;
    assert_eq!(serde_json::to_string(&map).unwrap(), stored);
    assert_eq!(serde_json::from_str::<Map>(stored).unwrap(), map);
    let set = OwnedSet::default().update(&manager("a"), &Intent::from([("m".to_owned(), ProvidedValue::Value(()))]));
    let stored = serde_json::to_string(&set).unwrap();
    assert_eq!(serde_json::from_str::<OwnedSet<String>>(&stored).unwrap().members().count(), 1);
}

#[test]
fn owner_text_is_parsed_when_formatted() {
    for text in ["a:apply", "a:b:update", "ops team:apply"] {
        assert_eq!(text.parse::<Owner>().unwrap().to_string(), text);
    }
    assert_eq!("a".parse::<Owner>().unwrap_err().to_string(), "owner \"a\" must end in ':apply' or ':update'");
    assert!(":apply".parse::<Owner>().is_err());
    assert!(Manager::new(&"m".repeat(129)).is_err() && Manager::new("a\nb").is_err());
}
