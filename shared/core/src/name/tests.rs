//! Tests of which texts are valid names of each kind.

use super::*;

#[test]
fn name_accepts_letters_digits_and_three_signs() {
    let longest = "a".repeat(63);
    for good in ["a", "0", "web-1", "a.b_c-d", "Primary", "primary-mysql", "master", longest.as_str()] {
        assert_eq!(Name::new(good).map(|name| name.to_string()), Ok(good.to_owned()));
    }
    for bad in ["", "-a", ".a", "_a", "a b", "a/b", "a:b", "é", "*", "a\n", "a".repeat(64).as_str()] {
        assert!(Name::new(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn tag_name_includes_value() {
    let tag = TagName::new("mysql:1").unwrap();
    assert_ne!(tag, TagName::new("mysql").unwrap());
    for bad in ["mysql:", ":1", "a:b:c", "a: b", "a:\u{e9}"] {
        assert!(TagName::new(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn declared_name_rejects_reserved_word() {
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
        let answer = Name::for_declaration(text, kind);
        assert_eq!(matches!(answer, Err(InvalidName::Reserved { .. })), refused, "{text} as {kind:?}");
    }
    assert!(TagName::for_declaration("self:1").is_err() && TagName::for_declaration("mysql:1").is_ok());
    assert_eq!(
        TagName::for_declaration("primary-db").unwrap_err().to_string(),
        "tag \"primary-db\" is reserved: 'primary-' stands for the primary holder of a tag; set has_primary instead"
    );
}

#[test]
fn y04_new_declared_name_rejects_reserved_word_in_any_case() {
    for (text, kind, refused) in [
        ("Self", NameKind::Task, true),
        ("MASTER", NameKind::Role, true),
        ("Null", NameKind::Tag, true),
        ("self", NameKind::Role, true),
        ("Primary-mysql", NameKind::Tag, true),
        ("Primary-mysql", NameKind::Role, false),
        ("Masters", NameKind::Role, false),
        ("MySQL", NameKind::Tag, false),
    ] {
        let answer = Name::for_new_declaration(text, kind);
        assert_eq!(matches!(answer, Err(InvalidName::Reserved { .. })), refused, "{text} as {kind:?}");
    }
    let refused = TagName::for_new_declaration("PRIMARY-db").unwrap_err().to_string();
    assert!(refused.starts_with("tag \"PRIMARY-db\" is reserved: 'primary-' stands for"), "{refused}");
    assert!(
        TagName::for_new_declaration("Self:1").is_err()
            && TagName::for_new_declaration("MySQL:A").is_ok_and(|tag| &*tag == "MySQL:A")
    );
    // Older versions accepted these names.
    assert!(Name::for_declaration("Self", NameKind::Task).is_ok() && TagName::for_declaration("Primary-x").is_ok());
}

#[test]
fn y04_check_host_name_rejects_names_unusable_in_commands_and_paths() {
    for (text, says) in [
        ("--help", "for an option"),
        ("-x", "for an option"),
        ("x.", "leave the dot out"),
        ("localhost", "join --name"),
        ("LocalHost", "join --name"),
        ("localhost.localdomain", "join --name"),
        ("Localhost.LocalDomain", "join --name"),
        ("localhost6.localdomain6", "join --name"),
        ("ip6-localhost", "join --name"),
        ("Detail", "it is a path below /v1/nodes/"),
        ("LABELS", "it is a path below /v1/nodes/"),
    ] {
        // A store may contain such a name.
        let refused = NodeName::new(text).unwrap().check_host_name().unwrap_err().to_string();
        assert!(refused.starts_with(&format!("node {text:?} is reserved: ")) && refused.contains(says), "{refused}");
    }
    for good in ["web-1", "WEB-1", "localhost.example.net", "_a", "~", "x-"] {
        assert_eq!(NodeName::new(good).unwrap().check_host_name(), Ok(()), "{good}");
    }
    for (text, taken) in [("detail", false), ("Detail", false), ("-c", false), ("details", true), ("c", true)] {
        assert_eq!(ObjectName::new(text).unwrap().check_new(&["detail"]).is_ok(), taken, "{text}");
    }
}

#[test]
fn y04_name_rejects_control_characters() {
    for (text, has) in [
        ("a\nb", true),
        ("a\0", true),
        ("\u{7f}", true),
        ("a\u{85}b", true),
        ("a\u{2028}b", true),
        ("a\u{2029}", true),
        ("a b", false),
        ("\u{fc}", false),
        ("", false),
    ] {
        assert_eq!(has_control(text), has, "{text:?}");
    }
}

#[test]
fn node_name_rejects_path_and_uuid() {
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
fn release_ref_accepts_name_with_or_without_version() {
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
fn name_is_checked_when_deserialized() {
    assert!(serde_json::from_str::<Name>("\"a b\"").is_err());
    assert_eq!(serde_json::from_str::<TagName>("\"mysql:1\"").unwrap().as_str(), "mysql:1");
}

#[test]
fn name_error_is_bounded_when_input_is_long() {
    let Err(InvalidName::Malformed { name, .. }) = Name::new(&"x".repeat(10_000)) else { panic!("taken") };
    assert_eq!(name, format!("\"{}…\" (10000 characters)", "x".repeat(64)));
}

/// The message for a name that was too long showed only its first 64 characters, unmarked, and did not say what was
/// wrong.
#[test]
fn y09_name_error_gives_length_when_text_is_cut() {
    let shown = "a".repeat(64);
    let said = NodeName::new(&"a".repeat(256)).unwrap_err().to_string();
    assert!(said.starts_with(&format!("node \"{shown}…\" (256 characters) is not well formed: 1 to 255 ")), "{said}");
    let said = Name::new(&"a".repeat(65)).unwrap_err().to_string();
    assert!(said.starts_with(&format!("name \"{shown}…\" (65 characters) is not well formed: ")), "{said}");
    let said = Name::new(&"\u{e9}".repeat(64)).unwrap_err().to_string();
    assert!(said.starts_with(&format!("name \"{}\" is not well formed: ", "\u{e9}".repeat(64))), "{said}");
}

#[test]
fn y08_is_run_parts_name_agrees_with_run_parts() {
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
