//! Which texts are names of each kind, and which are not.

use super::*;

#[test]
fn names_are_letters_digits_and_three_signs() {
    let longest = "a".repeat(63);
    for good in ["a", "0", "web-1", "a.b_c-d", "Primary", "primary-mysql", "master", longest.as_str()] {
        assert_eq!(Name::new(good).map(|name| name.to_string()), Ok(good.to_owned()));
    }
    for bad in ["", "-a", ".a", "_a", "a b", "a/b", "a:b", "é", "*", "a\n", "a".repeat(64).as_str()] {
        assert!(Name::new(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_tag_with_a_value_is_another_tag() {
    let tag = TagName::new("mysql:1").unwrap();
    assert_ne!(tag, TagName::new("mysql").unwrap());
    for bad in ["mysql:", ":1", "a:b:c", "a: b", "a:\u{e9}"] {
        assert!(TagName::new(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn reserved_words_are_refused_where_something_is_declared() {
    for (text, kind, refused) in [
        ("self", NameKind::Task, true),
        ("master", NameKind::Role, true),
        ("null", NameKind::Tag, true),
        ("*", NameKind::Role, true),
        ("primary-mysql", NameKind::Tag, true),
        ("primary-mysql", NameKind::Role, false),
        ("primary-openstack-controller", NameKind::Task, false),
        ("masters", NameKind::Role, false),
    ] {
        let answer = Name::declare(text, kind);
        assert_eq!(matches!(answer, Err(InvalidName::Reserved { .. })), refused, "{text} as {kind:?}");
    }
    assert!(TagName::declare("self:1").is_err() && TagName::declare("mysql:1").is_ok());
    assert_eq!(
        TagName::declare("primary-db").unwrap_err().to_string(),
        "tag \"primary-db\" is reserved: 'primary-' stands for the primary holder of a tag; set has_primary instead"
    );
}

#[test]
fn a_node_is_not_called_like_a_path_or_a_uuid() {
    for bad in ["detail", "traits", "states", "12345678-1234-4234-8234-123456789abc", "..", ".", "a/b", ""] {
        assert!(NodeName::new(bad).is_err(), "{bad:?}");
    }
    for good in ["web-1", "Detail", "node_1.example.net", "_a", "12345678"] {
        assert!(NodeName::new(good).is_ok(), "{good:?}");
    }
    for uuid in ["12345678123442348234123456789ABC", "1234-56781234-4234-8234-123456789abc"] {
        assert!(is_uuid_like(uuid), "{uuid}");
    }
}

#[test]
fn a_release_is_named_with_or_without_its_version() {
    for text in ["site", "site@2026.11", "os-base@4"] {
        let parsed = ReleaseRef::new(text).unwrap();
        assert_eq!(parsed.to_string(), text);
        assert_eq!(serde_json::to_string(&parsed).unwrap(), format!("\"{text}\""));
    }
    for bad in ["", "@1", "site@", "si te", "a@b@c"] {
        assert!(ReleaseRef::new(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn what_is_read_back_is_checked_again() {
    assert!(serde_json::from_str::<Name>("\"a b\"").is_err());
    assert_eq!(serde_json::from_str::<TagName>("\"mysql:1\"").unwrap().as_str(), "mysql:1");
}

#[test]
fn an_error_does_not_grow_with_what_was_sent() {
    let Err(InvalidName::Malformed { name, .. }) = Name::new(&"x".repeat(10_000)) else { panic!("taken") };
    assert_eq!(name.len(), 64);
}

#[test]
fn y08_a_run_parts_name_is_one_that_run_parts_takes() {
    for name in ["50-reload", "reload", "RELOAD_2", "_x", "-", "0"] {
        assert!(is_run_parts_name(name), "{name}");
    }
    for name in [
        "",
        "50-reload~",
        "50-reload.dpkg-old",
        "50-reload.dpkg-dist",
        "50-reload.dpkg-new",
        "50-reload.dpkg-tmp",
        "50-reload.rpmsave",
        "50-reload.rpmnew",
        "50-reload.rpmorig",
        "50-reload.ucf-old",
        "50-reload.ucf-dist",
        "50-reload.bak",
        "50-reload.orig",
        "50-reload.swp",
        ".50-reload.swp",
        "#50-reload#",
        ".#50-reload",
        ".hidden",
        "50-reload.sh",
        "50 reload",
        "50-reload,v",
        "réload",
        "a\nb",
        "a/b",
    ] {
        assert!(!is_run_parts_name(name), "{name}");
    }
}
