//! Which values each field accepts and refuses, and which values of older versions may be written again.

use super::super::testing::AnyNameResolver;
use super::*;

#[test]
fn hold_accepts_end_time_or_no_end() {
    let read = |until: &str| {
        let mut read = None;
        let body = raw(&serde_json::json!({"until": until, "reason": "x"}).to_string());
        read_hold(&mut read, &body, &AnyNameResolver::default()).map(|()| read.and_then(|hold| hold.end_time()).map(|end| end.0))
    };
    for (until, end) in
        [("2001-09-09T01:46:40Z", Some(1_000_000_000_000)), ("2001-09-09T03:46:41+02:00", Some(1_000_000_001_000))]
    {
        assert_eq!(read(until).unwrap(), end, "{until}");
    }
    for until in ["", " "] {
        let refused = read(until).unwrap_err().to_string();
        assert_eq!(refused, "until: is empty: write a time as 2026-12-31T00:00:00Z, or leave it out");
    }
    for until in ["soon", "2026-12-31", "1969-12-31T00:00:00Z", "2026-12-31T00:00:00"] {
        let refused = read(until).unwrap_err().to_string();
        assert!(refused.contains("write one as 2026-12-31T00:00:00Z"), "{until}: {refused}");
    }
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

fn read_error<T: Default>(json: &str, read: impl Fn(&mut T, &RawValue, &dyn NameResolver) -> Result<(), BodyError>) -> String {
    read(&mut T::default(), &raw(json), &AnyNameResolver::default())
        .map_or_else(|error| error.to_string(), |()| "taken".to_owned())
}

#[test]
fn x06_rollout_rejects_empty_freeze_date() {
    for empty in [r#"{"freeze": ""}"#, r#"{"freeze": " "}"#, "{\"freeze\": \"\u{2800}\"}"] {
        let said = read_error(empty, read_rollout);
        assert!(said.starts_with("freeze: is empty: write a time"), "{empty}: {said}");
    }
    for taken in [r#"{"freeze": "2026-12-31T00:00:00Z"}"#, r#"{"freeze": null}"#, r#"{"max_groups": 1}"#, "null"] {
        assert_eq!(read_error(taken, read_rollout), "taken", "{taken}");
    }
}

#[test]
fn y04_every_time_field_rejects_nonexistent_time() {
    for text in ["2026-12-31T23:59:60Z", "2026-12-31T23:59:59+25:00", "2026-12-31T23:59:59Z[Europe/Berlin]", "soon"] {
        let until = read_error(&serde_json::json!({"until": text}).to_string(), read_hold);
        let freeze = read_error(&serde_json::json!({"freeze": text}).to_string(), read_rollout);
        assert!(until.starts_with(&format!("until: {text:?} is not a time")), "{until}");
        assert_eq!(freeze, until.replacen("until", "freeze", 1));
    }
    let last = "9999-12-31T23:59:59Z";
    assert_eq!(read_error(&serde_json::json!({"until": last}).to_string(), read_hold), "taken");
    assert_eq!(Hold { until: last.into(), ..Hold::default() }.end_time(), Some(Timestamp(253_402_300_799_000)));
    assert_eq!(read_error(r#"{"reason": ""}"#, read_hold), "reason: is empty: say why, or leave it out");
}

#[test]
fn y04_invalid_stored_time_is_accepted_when_unchanged() {
    let odd = "2026-12-31T23:59:60Z";
    let mut held = Some(Box::new(Hold { until: odd.into(), reason: "a".into() }));
    let body = |until: &str| raw(&serde_json::json!({"until": until, "reason": "a longer one"}).to_string());
    read_hold(&mut held, &body(odd), &AnyNameResolver::default()).unwrap();
    assert_eq!(held.as_ref().map(|hold| (&*hold.until, &*hold.reason)), Some((odd, "a longer one")));
    assert!(held.as_ref().is_some_and(|hold| hold.end_time().is_some()));
    read_hold(&mut held, &body("2026-12-31T22:59:60Z"), &AnyNameResolver::default()).unwrap_err();
    let windows = vec![serde_json::json!({"foo": 1})];
    let mut existing = Some(Strategy { windows, ..Strategy::default() });
    let body = raw(r#"{"windows": [{"foo": 1}], "max_failures": 7}"#);
    read_strategy(&mut existing, &body, &AnyNameResolver::default()).unwrap();
    assert_eq!(existing.and_then(|strategy| strategy.max_failures), Some(7));
}

#[test]
fn y04_window_requires_valid_days_start_duration_and_zone() {
    let of = |window: Value| read_error(&serde_json::json!({"windows": [window]}).to_string(), read_strategy);
    let whole = || serde_json::json!({"days": ["Mon"], "start": "22:00", "duration": "4h", "time_zone": "Europe/Berlin"});
    let with = |name: &str, value: Value| {
        let mut window = whole();
        window[name] = value;
        of(window)
    };
    assert_eq!(of(whole()), "taken");
    assert_eq!(of(serde_json::json!({"start": "00:00", "duration": "1w"})), "taken");
    for (said, begins) in [
        (with("days", serde_json::json!(["Mon", "Xyz"])), "windows[0].days[1]: \"Xyz\" is not a day"),
        (with("start", "25:99".into()), "windows[0].start: \"25:99\" is not a time of day"),
        (with("duration", "soon".into()), "windows[0].duration: \"soon\" is not a duration"),
        (with("duration", "8d".into()), "windows[0].duration: \"8d\" is longer than a week"),
        (with("time_zone", "Mars Olympus".into()), "windows[0].time_zone: \"Mars Olympus\" is not a time zone"),
        (with("time_zone", "Europe/Atlantis".into()), "windows[0].time_zone: \"Europe/Atlantis\" is not a time zone"),
        (
            with("time_zone", "europe/berlin".into()),
            "windows[0].time_zone: \"europe/berlin\" is not a time zone (did you mean \"Europe/Berlin\"?)",
        ),
        (with("foo", 1.into()), "windows[0].foo: "),
        (of(serde_json::json!({})), "windows[0].start: "),
        (of(serde_json::json!({"start": "22:00"})), "windows[0].duration: "),
    ] {
        assert!(said.starts_with(begins), "{begins}: {said}");
    }
}

#[test]
fn y04_namespace_member_names_reject_control_characters() {
    let property = |name: &str| serde_json::json!({"title": "A", "type": "string", "name": name});
    for odd in ["a\nb", "\u{7f}", " "] {
        let body = |of: Value| of.to_string();
        for (said, place) in [
            (read_error(&body(serde_json::json!([{"name": odd}])), read_definitions), "[0].name"),
            (read_error(&body(serde_json::json!([{"name": odd}])), read_members::<NamespaceTag>), "[0].name"),
            (read_error(&body(serde_json::json!([{"name": odd}])), read_associations), "[0].name"),
            (read_error(&body(serde_json::json!([{"name": "a", "prefix": odd}])), read_associations), "[0].prefix"),
            (read_error(&body(serde_json::json!({"a": property(odd)})), read_properties), "a.name"),
        ] {
            assert!(said.starts_with(&format!("{place}: ")), "{odd:?}: {said}");
        }
    }
    let empty = read_error(r#"[{"name": "a", "prefix": ""}]"#, read_associations);
    assert_eq!(empty, "[0].prefix: is empty: name something, or leave it out");
    // A stored key keeps its name, but no other invalid one is accepted for it.
    let of = |name: &str| raw(&serde_json::json!({"a": property(name)}).to_string());
    for (before, after, is_taken) in [("b", "a\nb", false), ("a\nb", "a\nb", true), ("a\nb", "a\nc", false)] {
        let mut existing: Properties = serde_json::from_str(of(before).get()).unwrap();
        let written = read_properties(&mut existing, &of(after), &AnyNameResolver::default());
        assert_eq!(written.is_ok(), is_taken, "{before:?} {after:?}");
    }
}

/// Clients remove these segments from a URL according to RFC 3986, section 5.2.4.
#[test]
fn y04_namespace_member_names_reject_path_steps() {
    let list = |name: &str| serde_json::json!([{"name": name}]).to_string();
    let map = |name: &str| serde_json::json!({name: {"title": "A", "type": "string"}}).to_string();
    let of_all = |name: &str| {
        [
            read_error(&list(name), read_definitions),
            read_error(&list(name), read_members::<NamespaceTag>),
            read_error(&list(name), read_associations),
            read_error(&map(name), read_properties),
        ]
    };
    for odd in [".", ".."] {
        let why =
            format!("{odd:?} has a special meaning in a path, so it could not be requested by this name: choose another name");
        let in_list = format!("[0].name: {why}");
        assert_eq!(of_all(odd), [in_list.clone(), in_list.clone(), in_list, why]);
        // A stored one of an older version is accepted again, but no further one.
        let other = if odd == "." { ".." } else { "." };
        let mut tags = vec![NamespaceTag { name: odd.into() }];
        let mut existing: Properties = serde_json::from_str(&map(odd)).unwrap();
        for (name, is_taken) in [(odd, true), (other, false)] {
            let written = read_members(&mut tags.clone(), &raw(&list(name)), &AnyNameResolver::default());
            assert_eq!(written.is_ok(), is_taken, "{odd} {name}");
            let written = read_properties(&mut existing, &raw(&map(name)), &AnyNameResolver::default());
            assert_eq!(written.is_ok(), is_taken, "{odd} {name}");
        }
        read_members(&mut tags, &raw(&list("a")), &AnyNameResolver::default()).unwrap();
    }
    for name in ["...", ".a", "a.", "..a", "a..b"] {
        assert_eq!(of_all(name), ["taken"; 4].map(str::to_owned), "{name}");
    }
}

/// A namespace with a misspelt type was stored, but bound no key.
#[test]
fn y09_resource_type_with_stemma_prefix_must_be_known() {
    let of = |name: &str| read_error(&serde_json::json!([{"name": name}]).to_string(), read_associations);
    let known = "the types are Stemma::Label, Stemma::Parameter, Stemma::Property, Stemma::Fact";
    for (name, meant) in [
        ("Stemma::Lable", "Label"),
        ("stemma::label", "Label"),
        ("STEMMA::FACT", "Fact"),
        ("Stemma::Parameters", "Parameter"),
        (" Stemma::Property", "Property"),
    ] {
        let why = format!("{name:?} is not a resource type of Stemma (did you mean \"Stemma::{meant}\"?): {known}");
        assert_eq!(of(name), format!("[0].name: {why}"));
    }
    assert_eq!(of("Stemma::Switch"), format!("[0].name: \"Stemma::Switch\" is not a resource type of Stemma: {known}"));
    for name in ["Stemma::Label", "Stemma::Parameter", "Stemma::Property", "Stemma::Fact", "OS::Glance::Image", "Stemma"] {
        assert_eq!(of(name), "taken", "{name}");
    }
    let mut existing = vec![Association { name: "Stemma::Lable".into(), prefix: None, properties_target: None }];
    let body = raw(r#"[{"name": "Stemma::Lable", "prefix": "x/"}, {"name": "Stemma::Label"}]"#);
    read_associations(&mut existing, &body, &AnyNameResolver::default()).unwrap();
    read_associations(&mut existing, &raw(r#"[{"name": "Stemma::Fcat"}]"#), &AnyNameResolver::default()).unwrap_err();
}

#[test]
fn y04_invalid_stored_names_are_accepted_when_unchanged() {
    fn read_twice<T: Clone>(
        mut existing: T,
        json: &str,
        read: impl Fn(&mut T, &RawValue, &dyn NameResolver) -> Result<(), BodyError>,
    ) {
        read(&mut existing, &raw(json), &AnyNameResolver::default()).expect(json);
    }
    let tags: BTreeMap<TagName, TagSpec> = serde_json::from_str(r#"{"Self": {}}"#).unwrap();
    read_twice(tags, r#"{"Self": {}, "a": {}}"#, read_tags);
    let roles: BTreeMap<Name, RoleSpec> = serde_json::from_str(r#"{"Null": {"tags": ["Primary-x"]}}"#).unwrap();
    read_twice(roles, r#"{"Null": {"tags": ["Primary-x"]}}"#, read_roles);
    read_twice(vec![NamespaceTag { name: "a\nb".into() }], r#"[{"name": "a\nb"}, {"name": "c"}]"#, read_members::<NamespaceTag>);
    read_twice(Some("a\nb".to_owned()), r#""a\nb""#, read_optional_name);
    for (said, begins) in [
        (read_error(r#"{"Self": {}}"#, read_tags), "Self: tag \"Self\" is reserved"),
        (read_error(r#"{"Null": {}}"#, read_roles), "Null: role \"Null\" is reserved"),
        (read_error(r#"{"a": {"tags": ["Primary-x"]}}"#, read_roles), "a.tags[0]: tag \"Primary-x\" is reserved"),
        (read_error(r#"{"a": {"add_tags": ["SELF"]}}"#, read_role_changes), "a.add_tags[0]: tag \"SELF\" is reserved"),
        (read_error(r#"[{"id": "MASTER", "type": "file"}]"#, read_tasks_field), "[0].id: task \"MASTER\" is reserved"),
    ] {
        assert!(said.starts_with(begins), "{begins}: {said}");
    }
}

/// These are the words that selectors give their own meaning.
#[test]
fn y04_roles_and_tags_reject_reserved_words() {
    for word in ["self", "Self", "MASTER", "null"] {
        let of = |body: Value| body.to_string();
        for (said, place) in [
            (read_error(&of(serde_json::json!(["web", word])), read_role_names), "[1]"),
            (read_error(&of(serde_json::json!({word: {}})), read_role_changes), word),
            (read_error(&of(serde_json::json!({"a": {"role": word}})), read_tags), "a.role"),
            (read_error(&of(serde_json::json!({"a": {"conflicts": ["b", word]}})), read_roles), "a.conflicts[1]"),
            (read_error(&of(serde_json::json!([{"roles": [word], "use": "p"}])), read_extensions), "[0].roles[0]"),
            (read_error(&of(serde_json::json!({word: "n"})), read_primaries), word),
            (read_error(&of(serde_json::json!({"a": {"remove_tags": ["b", word]}})), read_role_changes), "a.remove_tags[1]"),
        ] {
            let tells = said.starts_with(&format!("{place}: ")) && said.contains(&format!("{word:?} is reserved"));
            assert!(tells, "{place}: {said}");
        }
    }
    assert_eq!(read_error(r#"["primary-controller", "web", "web"]"#, read_role_names), "taken");
    let name = |text: &str| Name::new(text).unwrap();
    let mut existing = vec![name("Self")];
    read_role_names(&mut existing, &raw(r#"["web", "Self"]"#), &AnyNameResolver::default()).unwrap();
    assert_eq!(existing, [name("Self"), name("web")]);
    let mut existing: BTreeMap<TagName, String> = serde_json::from_str(r#"{"Self": "a"}"#).unwrap();
    read_primaries(&mut existing, &raw(r#"{"Self": "b"}"#), &AnyNameResolver::default()).unwrap();
    let existing = r#"{"a": {"remove_tags": ["Self", "Primary-x"]}}"#;
    let mut changes: BTreeMap<Name, RoleChange> = serde_json::from_str(existing).unwrap();
    read_role_changes(&mut changes, &raw(existing), &AnyNameResolver::default()).unwrap();
}

/// These are the words that selectors read. Another spelling named a role that cannot exist, and the task waited for
/// nothing.
#[test]
fn y04_selector_words_are_case_sensitive() {
    let task = |field: &str, value: &Value| serde_json::json!([{"id": "a", "type": "shell", field: value}]).to_string();
    let entries = |field: &str, words: &Value| serde_json::json!([{"name": "b", field: words}]);
    for (word, advice) in [
        ("SELF", "write self"),
        ("Self", "write self"),
        ("Master", "write master"),
        ("null", "write null without quotes"),
        ("Null", "write null without quotes"),
    ] {
        let words = serde_json::json!(["web", word]);
        for (said, place) in [
            (read_error(&task("roles", &words), read_tasks_field), "roles[1]"),
            (read_error(&task("tags", &words), read_tasks_field), "tags[1]"),
            (read_error(&task("cross_depends", &entries("role", &words)), read_tasks_field), "cross_depends[0].role[1]"),
            (
                read_error(&task("cross-depends", &entries("role", &Value::from(word))), read_tasks_field),
                "cross_depends[0].role[0]",
            ),
            (read_error(&task("cross_depended_by", &entries("tags", &words)), read_tasks_field), "cross_depended_by[0].tags[1]"),
        ] {
            let begins = format!("[0].{place}: {word:?} is reserved: {advice}");
            assert!(said.starts_with(&begins), "{begins}: {said}");
        }
    }
    let said = read_error(&task("tags", &serde_json::json!(["Primary-db"])), read_tasks_field);
    assert!(said.starts_with("[0].tags[0]: \"Primary-db\" is reserved: write primary-"), "{said}");
    for word in ["self", "master", "*", "primary-db", "selfish", "/SELF/"] {
        assert_eq!(read_error(&task("cross_depends", &entries("role", &Value::from(word))), read_tasks_field), "taken", "{word}");
        assert_eq!(read_error(&task("roles", &serde_json::json!([word])), read_tasks_field), "taken", "{word}");
        assert_eq!(read_error(&task("tags", &serde_json::json!([word])), read_tasks_field), "taken", "{word}");
    }
    assert_eq!(read_error(&task("cross_depends", &entries("role", &Value::Null)), read_tasks_field), "taken");
    let existing = task("roles", &serde_json::json!(["SELF"]));
    let mut read: Vec<Task> = serde_json::from_str(&existing).unwrap();
    read_tasks_field(&mut read, &raw(&existing), &AnyNameResolver::default()).unwrap();
}

#[test]
fn y04_references_reject_control_characters() {
    let of = |body: Value| body.to_string();
    for odd in ["a\nb", "a\u{85}b", "a\u{2028}b", "a\0"] {
        let task = |field: &str, value: Value| of(serde_json::json!([{"id": "a", "type": "shell", field: value}]));
        let entry = |field: &str| serde_json::json!([{"name": "b"}, {"name": "c", field: [odd]}]);
        for (said, place) in [
            (read_error(&of(serde_json::json!({"w": odd})), read_primaries), "w"),
            (read_error(&of(serde_json::json!({"order": ["g", odd]})), read_rollout), "order[1]"),
            (read_error(&task("tags", odd.into()), read_tasks_field), "[0].tags[0]"),
            (read_error(&task("roles", serde_json::json!(["b", odd])), read_tasks_field), "[0].roles[1]"),
            (read_error(&task("requires", odd.into()), read_tasks_field), "[0].requires[0]"),
            (read_error(&task("cross_depends", entry("role")), read_tasks_field), "[0].cross_depends[1].role[0]"),
            (read_error(&task("cross_depended_by", entry("tags")), read_tasks_field), "[0].cross_depended_by[1].tags[0]"),
            (read_error(&task("on_unassign", odd.into()), read_tasks_field), "[0].on_unassign"),
        ] {
            let begins = format!("{place}: {odd:?} has a control character");
            assert!(said.starts_with(&begins), "{place}: {said}");
        }
        let mut existing: Vec<Task> = serde_json::from_str(&task("tags", serde_json::json!([odd]))).unwrap();
        let again = raw(&serde_json::to_string(&existing).unwrap());
        read_tasks_field(&mut existing, &again, &AnyNameResolver::default()).unwrap();
        let mut existing = Some(Rollout { order: vec![odd.to_owned()], ..Rollout::default() });
        let again = raw(&of(serde_json::json!({"order": [odd], "max_groups": 1})));
        read_rollout(&mut existing, &again, &AnyNameResolver::default()).unwrap();
    }
}

#[test]
fn y04_requirement_rejects_blank_name() {
    for key in ["property:\u{200b}", "fact:\u{ad}"] {
        let body = serde_json::json!({key: "1"}).to_string();
        let said = read_error(&body, read_requirements);
        assert!(said.contains("needs a name of 1 to 255 bytes"), "{key:?}: {said}");
        let mut existing: Requirements = serde_json::from_str(&body).unwrap();
        let again = serde_json::json!({key: "2"}).to_string();
        read_requirements(&mut existing, &raw(&again), &AnyNameResolver::default()).unwrap();
    }
    assert_eq!(read_error(r#"{"property:a": "1"}"#, read_requirements), "taken");
}

#[test]
fn y04_invalid_stored_canary_is_accepted_when_unchanged() {
    let mut existing = Some(Strategy { canary: Some(serde_json::json!({"a": 1})), ..Strategy::default() });
    let body = raw(r#"{"canary": {"a": 1}, "max_failures": 7}"#);
    read_strategy(&mut existing, &body, &AnyNameResolver::default()).unwrap();
    read_strategy(&mut existing, &raw(r#"{"canary": {"a": 2}}"#), &AnyNameResolver::default()).unwrap_err();
    assert!(read_error(r#"{"canary": -1}"#, read_strategy).starts_with("canary: -1 is neither a number of hosts nor a selector"));
}

#[test]
fn rule_is_rejected_with_path_when_not_compilable() {
    for (json, begins) in [
        (r#"{"patterns": ["a", "["]}"#, "patterns[1]: \"[\" is not a regular expression of at most 256 bytes: "),
        (r#"{"annotations": ["("]}"#, "annotations[0]: \"(\" is not a regular expression"),
        (r#"{"prefixes": [""]}"#, "prefixes[0]: \"\" must be a lower-case DNS name"),
        (r#"{"accept": ["kubernetes.io/x"]}"#, "accept: kubernetes.io/x is restricted, no host may set it"),
        (r#"{"patterns": ["a", "()"]}"#, "patterns[1]: \"()\" matches no key: "),
        (r#"{"patterns": ["(?:)|^$"]}"#, "patterns[0]: \"(?:)|^$\" matches no key: "),
        (r#"{"annotations": ["()*"]}"#, "annotations[0]: \"()*\" matches no key: "),
        (r#"{"patterns": [".*", "tier|zone", "(a)?b"]}"#, "taken"),
        (r#"{"patterns": ["a"]}"#, "taken"),
        ("null", "taken"),
    ] {
        let said = read_error(json, read_host_labels);
        assert!(said.starts_with(begins), "{json}: {said}");
    }
}

#[test]
fn tags_reject_names_of_primaries() {
    let reserved = "tag \"primary-x\" is reserved: 'primary-' stands for the primary holder of a tag; \
         set has_primary instead";
    assert_eq!(read_error(r#"{"primary-x": {}}"#, read_tags), format!("primary-x: {reserved}"));
    assert_eq!(read_error(r#"{"db": {"tags": ["x", "primary-x"]}}"#, read_roles), format!("db.tags[1]: {reserved}"));
    assert_eq!(read_error(r#"{"db": {"add_tags": ["primary-x"]}}"#, read_role_changes), format!("db.add_tags[0]: {reserved}"));
    // Fuel's old releases have such roles, and removing such a tag has no effect.
    assert_eq!(read_error(r#"{"primary-controller": {}}"#, read_roles), "taken");
    assert_eq!(read_error(r#"{"db": {"remove_tags": ["primary-x"]}}"#, read_role_changes), "taken");
}

/// A limit that is not a number was accepted, and never compared.
#[test]
fn role_limit_accepts_whole_number_or_fuel_expression() {
    for (limits, said) in [
        (r#"{"min": 1, "max": null}"#, "taken"),
        (r#"{"max": "settings:storage.osds.value", "recommended": 3, "overrides": [{"max": 1}]}"#, "taken"),
        (r#"{"min": "lots"}"#, r#"db.limits.min: "lots" is not a whole number"#),
        (r#"{"max": -1}"#, "db.limits.max: -1 is not a whole number"),
        (r#"{"max": 1.5}"#, "db.limits.max: 1.5 is not a whole number"),
        (
            r#"{"mim": 1}"#,
            "db.limits.mim: there is no such limit (did you mean \"min\"?): the limits are min, max, recommended, condition, overrides",
        ),
    ] {
        assert_eq!(read_error(&format!(r#"{{"db": {{"limits": {limits}}}}}"#), read_roles), said);
    }
}

#[test]
fn catalog_texts_are_rejected_when_longer_than_schema_allows() {
    let (fits, long) = ("n".repeat(80), "n".repeat(81));
    let ends = "is longer than 80 characters";
    let property = |name: &str| format!(r#"{{"a": {{"title": "A", "type": "string", "name": "{name}"}}}}"#);
    let object = |name: &str| format!(r#"[{{"name": "o", "properties": {}}}]"#, property(name));
    let association = |field: &str, text: &str| format!(r#"[{{"name": "Stemma::Label", "{field}": "{text}"}}]"#);
    assert_eq!(read_error(&property(&fits), read_properties), "taken");
    assert_eq!(read_error(&object(&fits), read_definitions), "taken");
    for (said, begins) in [
        (read_error(&property(&long), read_properties), "a.name: "),
        (read_error(&object(&long), read_definitions), "[0].properties.a.name: "),
        (read_error(&association("prefix", &long), read_associations), "[0].prefix: "),
        (read_error(&association("properties_target", &long), read_associations), "[0].properties_target: "),
    ] {
        assert!(said.starts_with(begins) && said.ends_with(ends), "{said}");
    }
    assert_eq!(read_error(&association("prefix", &fits), read_associations), "taken");
}

#[test]
fn unknown_trait_is_rejected_in_every_field() {
    let of_group = |json| read_error(json, read_requirements);
    let suppressed = |json| read_error(json, read_suppressed_traits);
    for (said, begins) in [
        (of_group(r#"{"trait:TYPO_TRAIT": "required"}"#), "requirement: "),
        (of_group(r#"{"trait:CUSTOM_A": "required", "trait:HW_CPU_X86_AVX2": "forbidden"}"#), "taken"),
        (suppressed(r#"["NOPE"]"#), "\"NOPE\" is not a trait: "),
        (suppressed(r#"["HW_CPU_X86_AVX2"]"#), "taken"),
    ] {
        assert!(said.starts_with(begins), "{said}");
    }
}

/// The rules are those of the names: `NAME` or a uuid for a node, `NAME` for a group.
#[test]
fn y04_group_and_node_references_reject_impossible_names() {
    for odd in ["a b", "*", "a/b", "/a/", ".", "ä", "a,b"] {
        let primary = read_error(&serde_json::json!({"w": odd}).to_string(), read_primaries);
        assert!(primary.starts_with("w: no node is called so: "), "{odd}: {primary}");
        let group = read_error(&serde_json::json!({"order": ["g", odd]}).to_string(), read_rollout);
        assert!(group.starts_with("order[1]: no group is called so: "), "{odd}: {group}");
        let mut existing: BTreeMap<TagName, String> = [(TagName::new("w").unwrap(), odd.to_owned())].into();
        read_primaries(&mut existing, &raw(&serde_json::json!({"w": odd, "x": "a"}).to_string()), &AnyNameResolver::default())
            .unwrap();
        let mut existing = Some(Rollout { order: vec![odd.to_owned()], ..Rollout::default() });
        let again = raw(&serde_json::json!({"order": ["g", odd]}).to_string());
        read_rollout(&mut existing, &again, &AnyNameResolver::default()).unwrap();
    }
    let path = read_error(r#"{"w": "detail"}"#, read_primaries);
    assert!(path.starts_with("w: no node is called so: ") && path.contains("is a path below /v1/nodes/"), "{path}");
    for taken in ["db-1", "db_1.example.net", "-x", "0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6"] {
        assert_eq!(read_error(&serde_json::json!({"w": taken}).to_string(), read_primaries), "taken", "{taken}");
    }
    assert_eq!(read_error(r#"{"order": ["default-master", "g.1"]}"#, read_rollout), "taken");
}

/// Fuel's own releases have numbers from 0 and percentages.
#[test]
fn y05_fault_tolerance_accepts_number_or_percentage() {
    let role = |value: &Value| serde_json::json!({"web": {"fault_tolerance": value}}).to_string();
    for taken in ["0", "1", "4294967295", "\"0%\"", "\"2%\"", "\"100%\"", "null"] {
        assert_eq!(read_error(&role(&serde_json::from_str(taken).unwrap()), read_roles), "taken", "{taken}");
    }
    for odd in
        ["\"x\"", "\"-1\"", "\"101%\"", "\"\"", "{}", "[]", "true", "-1", "1.5", "4294967296", "\"5\"", "\"05%\"", "\" 5%\""]
    {
        let body = role(&serde_json::from_str(odd).unwrap());
        let said = read_error(&body, read_roles);
        assert!(said.starts_with("web.fault_tolerance: ") && said.contains("write one as 1 or \"10%\""), "{odd}: {said}");
        let mut existing: BTreeMap<Name, RoleSpec> = serde_json::from_str(&body).unwrap();
        read_roles(&mut existing, &raw(&body), &AnyNameResolver::default()).unwrap();
    }
}

/// These values were refused, although free JSON accepts them: a whole number is one in any notation (`docs/api.md`).
#[test]
fn y04_role_whole_numbers_are_normalized() {
    for (number, stored) in [("1e0", "1"), ("1.0", "1"), ("2e1", "20"), ("-0", "0"), ("-0.0", "0")] {
        let body = format!(
            r#"{{"web": {{"fault_tolerance": {number}, "limits": {{"min": {number}, "overrides": [{{"max": {number}}}]}}}}}}"#
        );
        let mut role = BTreeMap::new();
        read_roles(&mut role, &raw(&body), &AnyNameResolver::default()).unwrap();
        let expected = body.replace(number, stored);
        assert_eq!(role, serde_json::from_str::<BTreeMap<Name, RoleSpec>>(&expected).unwrap(), "{number}");
    }
    for odd in ["-1.0", "1.5", "-1e0", "4294967296.0"] {
        let body = format!(r#"{{"web": {{"fault_tolerance": {odd}}}}}"#);
        let said = read_error(&body, read_roles);
        assert!(said.starts_with("web.fault_tolerance: "), "{odd}: {said}");
        let mut existing: BTreeMap<Name, RoleSpec> = serde_json::from_str(&body).unwrap();
        read_roles(&mut existing, &raw(&body), &AnyNameResolver::default()).unwrap();
    }
}

/// The error said that a path names an object by its name or uuid, which is not true of an order.
#[test]
fn y05_rollout_order_accepts_only_group_names() {
    for uuid in ["0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6", "0d8e1f4a5b6c4d7e8f90a1b2c3d4e5f6"] {
        let said = read_error(&serde_json::json!({"order": ["g", uuid]}).to_string(), read_rollout);
        assert_eq!(
            said,
            format!(
                "order[1]: no group is called so: \"{uuid}\" looks like a uuid, but only the name of a group is accepted here"
            )
        );
    }
}

/// Glance accepts a longer one in the body of a namespace, but its database does not. `POST` and `PUT` of a property
/// refuse it, as Glance's do.
#[test]
fn y05_property_name_is_limited_like_api_path() {
    let (fits, long) = ("ä".repeat(80), "ä".repeat(81));
    let map = |name: &str| serde_json::json!({name: {"title": "A", "type": "string"}});
    let object = |name: &str| serde_json::json!([{"name": "o", "properties": map(name)}]).to_string();
    let list = |name: &str| serde_json::json!([{"name": name}]).to_string();
    for (name, ends) in [(&fits, "taken"), (&long, "is longer than 80 characters")] {
        for (said, place) in [
            (read_error(&map(name).to_string(), read_properties), "\""),
            (read_error(&object(name), read_definitions), "[0].properties: "),
            (read_error(&list(name), read_definitions), "[0].name: "),
            (read_error(&list(name), read_members::<NamespaceTag>), "[0].name: "),
            (read_error(&list(name), read_associations), "[0].name: "),
            (check_member_name(name).map_or_else(|error| error.to_string(), |()| "taken".to_owned()), "\""),
        ] {
            assert!(said.ends_with(ends) && (ends == "taken" || said.starts_with(place)), "{said}");
        }
    }
    // A stored one of an older version is accepted again, and its property may change.
    let changed = serde_json::json!({&long: {"title": "B", "type": "string"}});
    let mut existing: Properties = serde_json::from_value(map(&long)).unwrap();
    read_properties(&mut existing, &raw(&changed.to_string()), &AnyNameResolver::default()).unwrap();
    assert_eq!(existing[&long].title, "B");
    let longer = "ö".repeat(81);
    read_properties(&mut existing, &raw(&map(&longer).to_string()), &AnyNameResolver::default()).unwrap_err();
    let mut existing: Vec<Definition> = serde_json::from_str(&object(&long)).unwrap();
    read_definitions(&mut existing, &raw(&object(&long)), &AnyNameResolver::default()).unwrap();
    let mut existing = vec![NamespaceTag { name: long.clone() }];
    read_members(&mut existing, &raw(&list(&long)), &AnyNameResolver::default()).unwrap();
}

#[test]
fn y05_property_is_stored_without_redundant_name() {
    let of = |title: &str, name: Option<&str>| {
        let mut property = serde_json::json!({"title": title, "type": "string"});
        if let Some(name) = name {
            property["name"] = name.into();
        }
        serde_json::json!({"p": property})
    };
    let plain: Properties = serde_json::from_value(of("A", None)).unwrap();
    let named: Properties = serde_json::from_value(of("A", Some("p"))).unwrap();
    let other: Properties = serde_json::from_value(of("A", Some("q"))).unwrap();
    for (existing, sent, stored) in [
        (&Properties::new(), of("A", Some("p")), &plain),
        (&plain, of("A", Some("p")), &plain),
        (&plain, of("A", None), &plain),
        // A value that an older version stored stays if nothing else changes.
        (&named, of("A", Some("p")), &named),
        (&named, of("A", None), &named),
        (&plain, of("A", Some("q")), &other),
        (&named, of("A", Some("q")), &other),
    ] {
        let mut written = existing.clone();
        read_properties(&mut written, &raw(&sent.to_string()), &AnyNameResolver::default()).unwrap();
        assert_eq!(written, *stored, "{existing:?} {sent}");
    }
    let mut written = named;
    read_properties(&mut written, &raw(&of("B", Some("p")).to_string()), &AnyNameResolver::default()).unwrap();
    assert_eq!((written["p"].title.as_str(), &written["p"].name), ("B", &None));
}

/// The labels of a level accept the same keys and values.
#[test]
fn y05_object_label_follows_rules_of_level_labels() {
    let of = |key: &str, value: &str| serde_json::json!({key: value}).to_string();
    let long = "v".repeat(4_097);
    for (key, value, begins) in [
        ("k", "a\nb", "k: a label's value has no control characters"),
        ("k", "\0", "k: a label's value has no control characters"),
        ("k", &*long, "k: a label's value has at most 4096 bytes"),
        ("a b", "x", "key \"a b\" needs a name"),
        ("a/b/c", "x", "key \"a/b/c\" has more than one slash"),
        ("k", "", "taken"),
        ("example.net/k", "any text, = ä", "taken"),
    ] {
        let said = read_error(&of(key, value), read_labels);
        assert!(said.starts_with(begins), "{key:?} {value:?}: {said}");
    }
    assert_eq!(
        read_labels(&mut BTreeMap::new(), &raw(&of("k", "\t")), &AnyNameResolver::default()).unwrap_err().kind,
        BodyErrorKind::Label
    );
    // A stored one of an older version is accepted again, but no further invalid value.
    let existing = BTreeMap::from([("a b".to_owned(), "x\ny".to_owned())]);
    for (value, is_taken) in [("x\ny", true), ("x", true), ("x\nz", false)] {
        let written = read_labels(&mut existing.clone(), &raw(&of("a b", value)), &AnyNameResolver::default());
        assert_eq!(written.is_ok(), is_taken, "{value:?}");
    }
}
