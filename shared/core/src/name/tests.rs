//! Tests of which texts are valid names of each kind.

use super::*;

#[test]
fn name_accepts_letters_digits_and_three_signs() {
    let longest = "a".repeat(63);
    for valid in ["a", "0", "web-1", "a.b_c-d", "Primary", "primary-mysql", "master", longest.as_str()] {
        assert_eq!(Name::new(valid).map(|name| name.to_string()), Ok(valid.to_owned()));
    }
    for invalid in ["", "-a", ".a", "_a", "a b", "a/b", "a:b", "é", "*", "a\n", "a".repeat(64).as_str()] {
        assert!(Name::new(invalid).is_err(), "{invalid:?}");
    }
}

/// A tag is a name, optionally followed by a colon and a value. `mysql:1` and `mysql` are two tags.
#[test]
fn tag_name_includes_value() {
    let tag = TagName::new("mysql:1").unwrap();
    assert_ne!(tag, TagName::new("mysql").unwrap());
    for invalid in ["mysql:", ":1", "a:b:c", "a: b", "a:\u{e9}"] {
        assert!(TagName::new(invalid).is_err(), "{invalid:?}");
    }
}

/// Words of selectors are reserved for the names of roles, tags and tasks, and the prefix `primary-` for tags only.
#[test]
fn declared_name_rejects_reserved_word() {
    for (text, kind, is_reserved) in [
        ("self", NameKind::Task, true),
        ("master", NameKind::Role, true),
        ("null", NameKind::Tag, true),
        ("*", NameKind::Role, true),
        ("primary-mysql", NameKind::Tag, true),
        ("primary-mysql", NameKind::Role, false),
        ("primary-openstack-controller", NameKind::Task, false),
        ("masters", NameKind::Role, false),
    ] {
        let result = Name::for_declaration(text, kind);
        assert_eq!(matches!(result, Err(InvalidName::Reserved { .. })), is_reserved, "{text} as {kind:?}");
    }
    assert!(TagName::for_declaration("self:1").is_err() && TagName::for_declaration("mysql:1").is_ok());
    assert_eq!(
        TagName::for_declaration("primary-db").unwrap_err().to_string(),
        "tag \"primary-db\" is reserved: 'primary-' stands for the primary holder of a tag; set has_primary instead"
    );
}

/// A write checks the names that it adds with `for_new_declaration`, which also refuses a reserved word in another
/// letter case, such as `Self`. Names that are already stored are checked with `for_declaration`, which accepts `Self`.
#[test]
fn y04_new_declared_name_rejects_reserved_word_in_any_case() {
    for (text, kind, is_reserved) in [
        ("Self", NameKind::Task, true),
        ("MASTER", NameKind::Role, true),
        ("Null", NameKind::Tag, true),
        ("self", NameKind::Role, true),
        ("Primary-mysql", NameKind::Tag, true),
        ("Primary-mysql", NameKind::Role, false),
        ("Masters", NameKind::Role, false),
        ("MySQL", NameKind::Tag, false),
    ] {
        let result = Name::for_new_declaration(text, kind);
        assert_eq!(matches!(result, Err(InvalidName::Reserved { .. })), is_reserved, "{text} as {kind:?}");
    }
    let error = TagName::for_new_declaration("PRIMARY-db").unwrap_err().to_string();
    assert!(error.starts_with("tag \"PRIMARY-db\" is reserved: 'primary-' stands for"), "{error}");
    assert!(
        TagName::for_new_declaration("Self:1").is_err()
            && TagName::for_new_declaration("MySQL:A").is_ok_and(|tag| &*tag == "MySQL:A")
    );
    // Older versions accepted these names, so a store may contain them.
    assert!(Name::for_declaration("Self", NameKind::Task).is_ok() && TagName::for_declaration("Primary-x").is_ok());
}

/// `check_host_name` checks the name with which a host joins, and `check_new` the names of most other new objects.
#[test]
fn y04_check_host_name_rejects_names_unusable_in_commands_and_paths() {
    for (text, expected) in [
        ("--help", "as an option"),
        ("-x", "as an option"),
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
        // A store may contain such a name, so `NodeName::new` accepts it.
        let error = NodeName::new(text).unwrap().check_host_name().unwrap_err().to_string();
        assert!(error.starts_with(&format!("node {text:?} is reserved: ")) && error.contains(expected), "{error}");
    }
    for valid in ["web-1", "WEB-1", "localhost.example.net", "_a", "~", "x-"] {
        assert_eq!(NodeName::new(valid).unwrap().check_host_name(), Ok(()), "{valid}");
    }
    // `detail` is a path of the API here, so a new object must not have this name.
    for (text, is_accepted) in [("detail", false), ("Detail", false), ("-c", false), ("details", true), ("c", true)] {
        assert_eq!(ObjectName::new(text).unwrap().check_new(&["detail"]).is_ok(), is_accepted, "{text}");
    }
}

#[test]
fn y04_has_control_finds_control_characters_and_line_separators() {
    for (text, expected) in [
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
        assert_eq!(has_control(text), expected, "{text:?}");
    }
}

/// A node must not have the name of a path below `/v1/nodes/`, and no name that looks like a uuid. `is_uuid_like`
/// accepts a uuid with any hyphens and in any case.
#[test]
fn node_name_rejects_path_and_uuid() {
    for invalid in ["detail", "traits", "states", "12345678-1234-4234-8234-123456789abc", "..", ".", "a/b", ""] {
        assert!(NodeName::new(invalid).is_err(), "{invalid:?}");
    }
    for valid in ["web-1", "Detail", "node_1.example.net", "_a", "12345678"] {
        assert!(NodeName::new(valid).is_ok(), "{valid:?}");
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
    for invalid in ["", "@1", "site@", "si te", "a@b@c"] {
        assert!(ReleaseRef::new(invalid).is_err(), "{invalid:?}");
    }
}

#[test]
fn name_is_checked_when_deserialized() {
    assert!(serde_json::from_str::<Name>("\"a b\"").is_err());
    assert_eq!(serde_json::from_str::<TagName>("\"mysql:1\"").unwrap().as_str(), "mysql:1");
}

#[test]
fn name_error_is_bounded_when_input_is_long() {
    let Err(InvalidName::Malformed { name, .. }) = Name::new(&"x".repeat(10_000)) else { panic!("the name was accepted") };
    assert_eq!(name, format!("\"{}…\" (10000 characters)", "x".repeat(64)));
}

/// Regression: the error about a name that was too long showed the first 64 characters without a mark, and did not name
/// the problem.
#[test]
fn y09_name_error_gives_length_when_text_is_cut() {
    let first_part = "a".repeat(64);
    let error = NodeName::new(&"a".repeat(256)).unwrap_err().to_string();
    assert!(error.starts_with(&format!("node \"{first_part}…\" (256 characters) is not well formed: 1 to 255 ")), "{error}");
    let error = Name::new(&"a".repeat(65)).unwrap_err().to_string();
    assert!(error.starts_with(&format!("name \"{first_part}…\" (65 characters) is not well formed: ")), "{error}");
    let error = Name::new(&"\u{e9}".repeat(64)).unwrap_err().to_string();
    assert!(error.starts_with(&format!("name \"{}\" is not well formed: ", "\u{e9}".repeat(64))), "{error}");
}

/// `run-parts` of Debian runs only files whose names consist of ASCII letters, digits, `_` and `-`. So it ignores
/// backup copies of editors and of package managers.
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
