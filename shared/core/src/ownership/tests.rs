//! Tests of tombstones, single keys and transfers of ownership, which the shared scenarios do not contain. The expected
//! values are written by hand.

use super::*;

type Map = OwnedMap<String, u8>;

fn manager(text: &str) -> Manager {
    Manager::new(text).unwrap()
}

fn intent(pairs: &[(&str, Option<u8>)]) -> Intent<String, u8> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), ProvidedValue::from(*value))).collect()
}

/// Returns the map after a manager has applied these keys without force. A key without a value is a tombstone.
fn after_apply(map: &Map, manager_name: &str, pairs: &[(&str, Option<u8>)]) -> Map {
    map.apply(&manager(manager_name), &intent(pairs), false).unwrap()
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
    for (text, is_accepted) in [
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
        assert_eq!(Manager::new_visible(text).is_ok(), is_accepted, "{text:?}");
    }
    // The length is valid, so the error names the actual problem.
    for blank in [" ", "\u{200b}", "\u{3000} "] {
        let error = Manager::new_visible(blank).unwrap_err().to_string();
        assert_eq!(error, format!("manager {blank:?} is blank: use a name with visible characters"));
    }
    let error = Manager::new_visible("").unwrap_err().to_string();
    assert_eq!(error, "manager \"\" must have 1 to 128 bytes and no control characters");
    // An older version accepted the manager `a:apply`, so its owner text is still read.
    assert_eq!("a:apply:update".parse::<Owner>().map(|owner| owner.to_string()), Ok("a:apply:update".to_owned()));
}

/// In this test, two managers apply a tombstone of key `x`, and a third manager forces a value. An apply of manager `a`
/// without keys then removes `y`, the only key that `a` still owns.
#[test]
fn tombstone_is_shared_and_conflicts_like_value() {
    let map = after_apply(&Map::default(), "a", &[("x", None), ("y", Some(1))]);
    let map = after_apply(&map, "b", &[("x", None)]);
    assert_eq!(map_text(&map), "x=- a:apply b:apply; y=1 a:apply");
    assert!(!map.is_empty() && Map::default().is_empty());
    let conflicts = map.apply(&manager("c"), &intent(&[("x", Some(1)), ("y", None)]), false).unwrap_err();
    assert_eq!(
        conflicts.to_string(),
        "2 keys are owned by others with other values: x (a:apply), x (b:apply), y (a:apply); nothing was changed. \
         Leave them out, agree with the owner, or force"
    );
    assert_eq!(conflicts.0[0].value, ProvidedValue::Tombstone);
    let map = map.apply(&manager("c"), &intent(&[("x", Some(1))]), true).unwrap();
    assert_eq!(map_text(&map), "x=1 c:apply; y=1 a:apply");
    assert_eq!(map_text(&after_apply(&map, "a", &[])), "x=1 c:apply");
}

#[test]
fn conflicts_lists_at_most_ten_keys() {
    let keys: Vec<_> = ('a'..='k').map(String::from).collect();
    let intent_of = |count: usize, value| -> Intent<String, u8> {
        keys[..count].iter().map(|key| (key.clone(), ProvidedValue::Value(value))).collect()
    };
    for (count, expected) in [(10, "j (a:apply); nothing"), (11, "j (a:apply), …; nothing")] {
        let map = Map::default().apply(&manager("a"), &intent_of(count, 1), false).unwrap();
        let error = map.apply(&manager("b"), &intent_of(count, 2), false).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("k (a:apply)"), "{error}");
    }
}

#[test]
fn entry_owner_is_manager_with_operation() {
    let map = after_apply(&Map::default(), "a", &[("x", Some(1))]);
    let entry = map.get("x").unwrap();
    for (owner, is_owner) in [("a:apply", true), ("a:update", false), ("b:apply", false)] {
        assert_eq!(entry.is_owned_by(&owner.parse().unwrap()), is_owner, "{owner}");
    }
}

#[test]
fn patch_changes_only_named_keys() {
    let map = after_apply(&Map::default(), "a", &[("x", Some(1)), ("y", Some(1)), ("z", None)]);
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
fn transfer_and_adopt_replace_matching_owner() {
    let map = after_apply(&Map::default(), "a", &[("x", Some(1)), ("y", Some(1))]);
    let map = map.patch(&manager("a"), &BTreeMap::from([("z".to_owned(), Some(ProvidedValue::Value(1)))]));
    let map = after_apply(&map, "b", &[("x", Some(1))]);
    let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
    let owner_match = |text: &str| text.parse::<OwnerMatch>().unwrap();
    for (from, to, names, expected) in [
        ("a", "c", &["x", "y", "z"][..], "x=1 b:apply c:apply; y=1 c:apply; z=1 c:update"),
        ("a", "b", &["x"], "x=1 b:apply; y=1 a:apply; z=1 a:update"),
        ("a", "c:apply", &["z"], "x=1 a:apply b:apply; y=1 a:apply; z=1 c:apply"),
        ("a:update", "a:apply", &["z"], "x=1 a:apply b:apply; y=1 a:apply; z=1 a:apply"),
    ] {
        let transferred = map.transfer(&owner_match(from), &owner_match(to), &keys(names)).unwrap();
        assert_eq!(map_text(&transferred), expected, "{from} {to} {names:?}");
    }
    let error = map.transfer(&owner_match("b"), &owner_match("c"), &keys(&["x", "y", "q"])).unwrap_err();
    assert_eq!(error.to_string(), "b does not own y, q; nothing was changed");
    for (from, expected) in [
        ("a", "x=1 a:apply b:apply; y=1 c:apply; z=1 c:apply"),
        // A conflict names an owner in this form: the manager and the operation.
        ("a:update", "x=1 a:apply b:apply; y=1 a:apply; z=1 c:apply"),
        ("a:apply", "x=1 a:apply b:apply; y=1 c:apply; z=1 a:update"),
    ] {
        let adopted_map = map.adopt(&owner_match(from), &manager("c"), &keys(&["y", "z", "q"]));
        assert_eq!(map_text(&adopted_map), expected, "{from}");
    }
}

#[test]
fn set_missing_times_dates_new_and_changed_entries() {
    let mut map = after_apply(&Map::default(), "a", &[("x", Some(1)), ("y", Some(1))]);
    map.set_missing_times(10);
    let mut map = after_apply(&map, "a", &[("x", Some(1)), ("y", Some(2)), ("z", Some(1))]);
    map.set_missing_times(20);
    let since: Vec<_> = map.iter().map(|(key, entry)| (key.as_str(), entry.since_ms.unwrap())).collect();
    assert_eq!(since, [("x", 10), ("y", 20), ("z", 20)]);
}

#[test]
fn owned_map_is_equal_when_stored_and_read() {
    let map = after_apply(&Map::default(), "a", &[("x", Some(1)), ("y", None)]);
    // The store names the field `value` of an entry `said`.
    let stored = r#"{"x":{"said":{"value":1},"owners":["a:apply"],"since_ms":null},"y":{"said":"tombstone","owners":["a:apply"],"since_ms":null}}"#;
    assert_eq!(serde_json::to_string(&map).unwrap(), stored);
    assert_eq!(serde_json::from_str::<Map>(stored).unwrap(), map);
    let set = OwnedSet::default().update(&manager("a"), &Intent::from([("m".to_owned(), ProvidedValue::Value(()))]));
    let stored = serde_json::to_string(&set).unwrap();
    assert_eq!(serde_json::from_str::<OwnedSet<String>>(&stored).unwrap().members().count(), 1);
}

#[test]
fn owner_round_trips_and_invalid_text_is_rejected() {
    for text in ["a:apply", "a:b:update", "ops team:apply"] {
        assert_eq!(text.parse::<Owner>().unwrap().to_string(), text);
    }
    assert_eq!("a".parse::<Owner>().unwrap_err().to_string(), "owner \"a\" must end in ':apply' or ':update'");
    assert!(":apply".parse::<Owner>().is_err());
    assert!(Manager::new(&"m".repeat(129)).is_err() && Manager::new("a\nb").is_err());
}
