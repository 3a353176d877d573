//! What the given scenarios do not have: tombstones, single keys, hand-over. Values by hand.

use super::*;

type Map = OwnedMap<String, u8>;

fn manager(text: &str) -> Manager {
    Manager::new(text).unwrap()
}

fn intent(pairs: &[(&str, Option<u8>)]) -> Intent<String, u8> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), Said::from(*value))).collect()
}

fn applied(map: &Map, who: &str, pairs: &[(&str, Option<u8>)]) -> Map {
    map.apply(&manager(who), &intent(pairs), false).unwrap()
}

/// `key=value owner owner; …`, a tombstone as `-`.
fn shown(map: &Map) -> String {
    let entry = |(key, entry): (&String, &Entry<u8>)| {
        let value = entry.said.value().map_or("-".to_owned(), u8::to_string);
        let owners: Vec<_> = entry.owners.iter().map(ToString::to_string).collect();
        format!("{key}={value} {}", owners.join(" "))
    };
    map.iter().map(entry).collect::<Vec<_>>().join("; ")
}

#[test]
fn y04_a_manager_is_called_as_no_owner_is() {
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
        assert_eq!(Manager::of_new(text).is_ok(), taken, "{text:?}");
    }
    // Their length is allowed, so the refusal says what is wrong instead.
    for blank in [" ", "\u{200b}", "\u{3000} "] {
        let refused = Manager::of_new(blank).unwrap_err().to_string();
        assert_eq!(refused, format!("manager {blank:?} is of blanks alone: give it a name that can be seen"));
    }
    let refused = Manager::of_new("").unwrap_err().to_string();
    assert_eq!(refused, "manager \"\" must have 1 to 128 bytes and no control characters");
    // As an older program took it.
    assert_eq!("a:apply:update".parse::<Owner>().map(|owner| owner.to_string()), Ok("a:apply:update".to_owned()));
}

#[test]
fn a_tombstone_is_owned_shared_and_in_conflict_like_a_value() {
    let map = applied(&Map::default(), "a", &[("x", None), ("y", Some(1))]);
    let map = applied(&map, "b", &[("x", None)]);
    assert_eq!(shown(&map), "x=- a:apply b:apply; y=1 a:apply");
    assert!(!map.is_empty() && Map::default().is_empty());
    let refused = map.apply(&manager("c"), &intent(&[("x", Some(1)), ("y", None)]), false).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "2 keys are owned by others with other values: x (a:apply), x (b:apply), y (a:apply); nothing was changed. \
         Leave them out, agree with the owner, or force"
    );
    assert_eq!(refused.0[0].said, Said::Tombstone);
    let map = map.apply(&manager("c"), &intent(&[("x", Some(1))]), true).unwrap();
    assert_eq!(shown(&map), "x=1 c:apply; y=1 a:apply");
    assert_eq!(shown(&applied(&map, "a", &[])), "x=1 c:apply");
}

#[test]
fn ten_conflicts_are_listed_and_further_ones_hinted_at() {
    let keys: Vec<_> = ('a'..='k').map(String::from).collect();
    let of = |count: usize, value| -> Intent<String, u8> {
        keys[..count].iter().map(|key| (key.clone(), Said::Value(value))).collect()
    };
    for (count, ends) in [(10, "j (a:apply); nothing"), (11, "j (a:apply), …; nothing")] {
        let map = Map::default().apply(&manager("a"), &of(count, 1), false).unwrap();
        let refused = map.apply(&manager("b"), &of(count, 2), false).unwrap_err().to_string();
        assert!(refused.contains(ends) && !refused.contains("k (a:apply)"), "{refused}");
    }
}

#[test]
fn an_entry_is_owned_by_who_set_it_in_that_way() {
    let map = applied(&Map::default(), "a", &[("x", Some(1))]);
    let entry = map.get("x").unwrap();
    for (owner, is) in [("a:apply", true), ("a:update", false), ("b:apply", false)] {
        assert_eq!(entry.is_owned_by(&owner.parse().unwrap()), is, "{owner}");
    }
}

#[test]
fn a_patch_touches_its_keys_alone() {
    let map = applied(&Map::default(), "a", &[("x", Some(1)), ("y", Some(1)), ("z", None)]);
    let changes = BTreeMap::from([
        ("w".to_owned(), Some(Said::Tombstone)),
        ("x".to_owned(), Some(Said::Value(1))),
        ("y".to_owned(), Some(Said::Value(2))),
        ("z".to_owned(), None),
        ("absent".to_owned(), None),
    ]);
    assert_eq!(shown(&map.patch(&manager("u"), &changes)), "w=- u:update; x=1 a:apply; y=2 u:update");
}

#[test]
fn ownership_is_handed_over_by_name() {
    let map = applied(&Map::default(), "a", &[("x", Some(1)), ("y", Some(1))]);
    let map = map.patch(&manager("a"), &BTreeMap::from([("z".to_owned(), Some(Said::Value(1)))]));
    let map = applied(&map, "b", &[("x", Some(1))]);
    let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
    let party = |text: &str| text.parse::<Party>().unwrap();
    for (from, to, names, after) in [
        ("a", "c", &["x", "y", "z"][..], "x=1 b:apply c:apply; y=1 c:apply; z=1 c:update"),
        ("a", "b", &["x"], "x=1 b:apply; y=1 a:apply; z=1 a:update"),
        ("a", "c:apply", &["z"], "x=1 a:apply b:apply; y=1 a:apply; z=1 c:apply"),
        ("a:update", "a:apply", &["z"], "x=1 a:apply b:apply; y=1 a:apply; z=1 a:apply"),
    ] {
        let given = map.hand_over(&party(from), &party(to), &keys(names)).unwrap();
        assert_eq!(shown(&given), after, "{from} {to} {names:?}");
    }
    let refused = map.hand_over(&party("b"), &party("c"), &keys(&["x", "y", "q"])).unwrap_err();
    assert_eq!(refused.to_string(), "b does not own y, q; nothing was changed");
    for (from, after) in [
        ("a", "x=1 a:apply b:apply; y=1 c:apply; z=1 c:apply"),
        // As a conflict names an owner.
        ("a:update", "x=1 a:apply b:apply; y=1 a:apply; z=1 c:apply"),
        ("a:apply", "x=1 a:apply b:apply; y=1 c:apply; z=1 a:update"),
    ] {
        let adopted = map.adopt(&party(from), &manager("c"), &keys(&["y", "z", "q"]));
        assert_eq!(shown(&adopted), after, "{from}");
    }
}

#[test]
fn a_stamp_marks_what_was_said_since_the_last_one() {
    let mut map = applied(&Map::default(), "a", &[("x", Some(1)), ("y", Some(1))]);
    map.stamp(10);
    let mut map = applied(&map, "a", &[("x", Some(1)), ("y", Some(2)), ("z", Some(1))]);
    map.stamp(20);
    let since: Vec<_> = map.iter().map(|(key, entry)| (key.as_str(), entry.since_ms.unwrap())).collect();
    assert_eq!(since, [("x", 10), ("y", 20), ("z", 20)]);
}

#[test]
fn what_is_stored_reads_back() {
    let map = applied(&Map::default(), "a", &[("x", Some(1)), ("y", None)]);
    let stored = r#"{"x":{"said":{"value":1},"owners":["a:apply"],"since_ms":null},"y":{"said":"tombstone","owners":["a:apply"],"since_ms":null}}"#;
    assert_eq!(serde_json::to_string(&map).unwrap(), stored);
    assert_eq!(serde_json::from_str::<Map>(stored).unwrap(), map);
    let set = OwnedSet::default().update(&manager("a"), &Intent::from([("m".to_owned(), Said::Value(()))]));
    let stored = serde_json::to_string(&set).unwrap();
    assert_eq!(serde_json::from_str::<OwnedSet<String>>(&stored).unwrap().members().count(), 1);
}

#[test]
fn owners_are_read_as_they_are_written() {
    for text in ["a:apply", "a:b:update", "ops team:apply"] {
        assert_eq!(text.parse::<Owner>().unwrap().to_string(), text);
    }
    assert_eq!("a".parse::<Owner>().unwrap_err().to_string(), "owner \"a\" must end in ':apply' or ':update'");
    assert!(":apply".parse::<Owner>().is_err());
    assert!(Manager::new(&"m".repeat(129)).is_err() && Manager::new("a\nb").is_err());
}
