//! Tests of the values that each field accepts and refuses. Most fields accept a stored invalid value again.

use super::super::testing::AnyNameResolver;
use super::*;

#[test]
fn hold_accepts_only_valid_end_time() {
    let read_end_ms = |until: &str| {
        let mut hold = None;
        let body = raw(&serde_json::json!({"until": until, "reason": "x"}).to_string());
        read_hold(&mut hold, &body, &AnyNameResolver::default()).map(|()| hold.and_then(|hold| hold.end_time()).map(|end| end.0))
    };
    for (until, end) in
        [("2001-09-09T01:46:40Z", Some(1_000_000_000_000)), ("2001-09-09T03:46:41+02:00", Some(1_000_000_001_000))]
    {
        assert_eq!(read_end_ms(until).unwrap(), end, "{until}");
    }
    for until in ["", " "] {
        let error = read_end_ms(until).unwrap_err().to_string();
        assert_eq!(error, "until: is empty: write a time as 2026-12-31T00:00:00Z, or leave it out");
    }
    for until in ["soon", "2026-12-31", "1969-12-31T00:00:00Z", "2026-12-31T00:00:00"] {
        let error = read_end_ms(until).unwrap_err().to_string();
        assert!(error.contains("write one as 2026-12-31T00:00:00Z"), "{until}: {error}");
    }
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

/// Reads the JSON of a field that has no value yet. Returns the error, or `valid` if the value is accepted.
fn read_error<T: Default>(json: &str, read: impl Fn(&mut T, &RawValue, &dyn NameResolver) -> Result<(), BodyError>) -> String {
    read(&mut T::default(), &raw(json), &AnyNameResolver::default())
        .map_or_else(|error| error.to_string(), |()| "valid".to_owned())
}

#[test]
fn x06_rollout_rejects_empty_freeze_date() {
    for empty_date in [r#"{"freeze": ""}"#, r#"{"freeze": " "}"#, "{\"freeze\": \"\u{2800}\"}"] {
        let error = read_error(empty_date, read_rollout);
        assert!(error.starts_with("freeze: is empty: write a time"), "{empty_date}: {error}");
    }
    for valid in [r#"{"freeze": "2026-12-31T00:00:00Z"}"#, r#"{"freeze": null}"#, r#"{"max_groups": 1}"#, "null"] {
        assert_eq!(read_error(valid, read_rollout), "valid", "{valid}");
    }
}

/// An invalid end of a hold and an invalid end of a freeze give the same message, except for the name of the field. An
/// example is a leap second. A hold may end at the last second that can be represented.
#[test]
fn y04_hold_and_rollout_reject_nonexistent_time() {
    for text in ["2026-12-31T23:59:60Z", "2026-12-31T23:59:59+25:00", "2026-12-31T23:59:59Z[Europe/Berlin]", "soon"] {
        let until = read_error(&serde_json::json!({"until": text}).to_string(), read_hold);
        let freeze = read_error(&serde_json::json!({"freeze": text}).to_string(), read_rollout);
        assert!(until.starts_with(&format!("until: {text:?} is not a time")), "{until}");
        assert_eq!(freeze, until.replacen("until", "freeze", 1));
    }
    let last = "9999-12-31T23:59:59Z";
    assert_eq!(read_error(&serde_json::json!({"until": last}).to_string(), read_hold), "valid");
    assert_eq!(Hold { until: last.into(), ..Hold::default() }.end_time(), Some(Timestamp(253_402_300_799_000)));
    assert_eq!(read_error(r#"{"reason": ""}"#, read_hold), "reason: is empty: write a reason, or leave it out");
}

/// An older version may have stored an invalid end of a hold, or an invalid window of a rollout strategy. A write that
/// changes another field is accepted.
#[test]
fn y04_invalid_stored_time_or_window_is_accepted_when_unchanged() {
    let invalid_time = "2026-12-31T23:59:60Z";
    let mut stored_hold = Some(Box::new(Hold { until: invalid_time.into(), reason: "a".into() }));
    let body = |until: &str| raw(&serde_json::json!({"until": until, "reason": "a longer one"}).to_string());
    read_hold(&mut stored_hold, &body(invalid_time), &AnyNameResolver::default()).unwrap();
    assert_eq!(stored_hold.as_ref().map(|hold| (&*hold.until, &*hold.reason)), Some((invalid_time, "a longer one")));
    assert!(stored_hold.as_ref().is_some_and(|hold| hold.end_time().is_some()));
    read_hold(&mut stored_hold, &body("2026-12-31T22:59:60Z"), &AnyNameResolver::default()).unwrap_err();
    let windows = vec![serde_json::json!({"foo": 1})];
    let mut stored_strategy = Some(Strategy { windows, ..Strategy::default() });
    let body = raw(r#"{"windows": [{"foo": 1}], "max_failures": 7}"#);
    read_strategy(&mut stored_strategy, &body, &AnyNameResolver::default()).unwrap();
    assert_eq!(stored_strategy.and_then(|strategy| strategy.max_failures), Some(7));
}

#[test]
fn y04_window_requires_valid_days_start_duration_and_zone() {
    let error_of = |window: Value| read_error(&serde_json::json!({"windows": [window]}).to_string(), read_strategy);
    let valid_window = || serde_json::json!({"days": ["Mon"], "start": "22:00", "duration": "4h", "time_zone": "Europe/Berlin"});
    let error_with = |name: &str, value: Value| {
        let mut window = valid_window();
        window[name] = value;
        error_of(window)
    };
    assert_eq!(error_of(valid_window()), "valid");
    assert_eq!(error_of(serde_json::json!({"start": "00:00", "duration": "1w"})), "valid");
    for (error, expected_start) in [
        (error_with("days", serde_json::json!(["Mon", "Xyz"])), "windows[0].days[1]: \"Xyz\" is not a day"),
        (error_with("start", "25:99".into()), "windows[0].start: \"25:99\" is not a time of day"),
        (error_with("duration", "soon".into()), "windows[0].duration: \"soon\" is not a duration"),
        (error_with("duration", "8d".into()), "windows[0].duration: \"8d\" is longer than a week"),
        (error_with("time_zone", "Mars Olympus".into()), "windows[0].time_zone: \"Mars Olympus\" is not a time zone"),
        (error_with("time_zone", "Europe/Atlantis".into()), "windows[0].time_zone: \"Europe/Atlantis\" is not a time zone"),
        (
            error_with("time_zone", "europe/berlin".into()),
            "windows[0].time_zone: \"europe/berlin\" is not a time zone (did you mean \"Europe/Berlin\"?)",
        ),
        (error_with("foo", 1.into()), "windows[0].foo: "),
        (error_of(serde_json::json!({})), "windows[0].start: "),
        (error_of(serde_json::json!({"start": "22:00"})), "windows[0].duration: "),
    ] {
        assert!(error.starts_with(expected_start), "{expected_start}: {error}");
    }
}

#[test]
fn y04_namespace_member_names_reject_control_characters() {
    let property = |name: &str| serde_json::json!({"title": "A", "type": "string", "name": name});
    for invalid_name in ["a\nb", "\u{7f}", " "] {
        let text = |value: Value| value.to_string();
        for (error, field) in [
            (read_error(&text(serde_json::json!([{"name": invalid_name}])), read_definitions), "[0].name"),
            (read_error(&text(serde_json::json!([{"name": invalid_name}])), read_members::<NamespaceTag>), "[0].name"),
            (read_error(&text(serde_json::json!([{"name": invalid_name}])), read_associations), "[0].name"),
            (read_error(&text(serde_json::json!([{"name": "a", "prefix": invalid_name}])), read_associations), "[0].prefix"),
            (read_error(&text(serde_json::json!({"a": property(invalid_name)})), read_properties), "a.name"),
        ] {
            assert!(error.starts_with(&format!("{field}: ")), "{invalid_name:?}: {error}");
        }
    }
    let empty = read_error(r#"[{"name": "a", "prefix": ""}]"#, read_associations);
    assert_eq!(empty, "[0].prefix: is empty: name something, or leave it out");
    // A stored property may be written again with its invalid name, but not with another invalid name.
    let property_map = |name: &str| raw(&serde_json::json!({"a": property(name)}).to_string());
    for (stored_name, sent_name, is_accepted) in [("b", "a\nb", false), ("a\nb", "a\nb", true), ("a\nb", "a\nc", false)] {
        let mut properties: Properties = serde_json::from_str(property_map(stored_name).get()).unwrap();
        let result = read_properties(&mut properties, &property_map(sent_name), &AnyNameResolver::default());
        assert_eq!(result.is_ok(), is_accepted, "{stored_name:?} {sent_name:?}");
    }
}

/// Clients remove the segments `.` and `..` from a URL (RFC 3986, section 5.2.4), so neither can be a name.
#[test]
fn y04_namespace_member_names_reject_path_steps() {
    let list = |name: &str| serde_json::json!([{"name": name}]).to_string();
    let map = |name: &str| serde_json::json!({name: {"title": "A", "type": "string"}}).to_string();
    let errors_of_all = |name: &str| {
        [
            read_error(&list(name), read_definitions),
            read_error(&list(name), read_members::<NamespaceTag>),
            read_error(&list(name), read_associations),
            read_error(&map(name), read_properties),
        ]
    };
    for segment in [".", ".."] {
        let reason = format!(
            "{segment:?} has a special meaning in a path, so it could not be requested by this name: choose another name"
        );
        let in_list = format!("[0].name: {reason}");
        assert_eq!(errors_of_all(segment), [in_list.clone(), in_list.clone(), in_list, reason]);
        // A name that an older version stored is accepted again, but a new name of this form is not.
        let other = if segment == "." { ".." } else { "." };
        let mut tags = vec![NamespaceTag { name: segment.into() }];
        let mut properties: Properties = serde_json::from_str(&map(segment)).unwrap();
        for (name, is_accepted) in [(segment, true), (other, false)] {
            let result = read_members(&mut tags.clone(), &raw(&list(name)), &AnyNameResolver::default());
            assert_eq!(result.is_ok(), is_accepted, "{segment} {name}");
            let result = read_properties(&mut properties, &raw(&map(name)), &AnyNameResolver::default());
            assert_eq!(result.is_ok(), is_accepted, "{segment} {name}");
        }
        read_members(&mut tags, &raw(&list("a")), &AnyNameResolver::default()).unwrap();
    }
    for name in ["...", ".a", "a.", "..a", "a..b"] {
        assert_eq!(errors_of_all(name), ["valid"; 4].map(str::to_owned), "{name}");
    }
}

/// Regression: a namespace with a misspelt resource type was stored, but it applied to no key.
#[test]
fn y09_resource_type_with_stemma_prefix_must_be_known() {
    let error_of = |name: &str| read_error(&serde_json::json!([{"name": name}]).to_string(), read_associations);
    let known_types = "the types are Stemma::Label, Stemma::Parameter, Stemma::Property, Stemma::Fact";
    for (name, suggestion) in [
        ("Stemma::Lable", "Label"),
        ("stemma::label", "Label"),
        ("STEMMA::FACT", "Fact"),
        ("Stemma::Parameters", "Parameter"),
        (" Stemma::Property", "Property"),
    ] {
        let reason = format!("{name:?} is not a resource type of Stemma (did you mean \"Stemma::{suggestion}\"?): {known_types}");
        assert_eq!(error_of(name), format!("[0].name: {reason}"));
    }
    assert_eq!(
        error_of("Stemma::Switch"),
        format!("[0].name: \"Stemma::Switch\" is not a resource type of Stemma: {known_types}")
    );
    for name in ["Stemma::Label", "Stemma::Parameter", "Stemma::Property", "Stemma::Fact", "OS::Glance::Image", "Stemma"] {
        assert_eq!(error_of(name), "valid", "{name}");
    }
    // A misspelt type that an older version stored is accepted again, but a new one is not.
    let mut associations = vec![Association { name: "Stemma::Lable".into(), prefix: None, properties_target: None }];
    let body = raw(r#"[{"name": "Stemma::Lable", "prefix": "x/"}, {"name": "Stemma::Label"}]"#);
    read_associations(&mut associations, &body, &AnyNameResolver::default()).unwrap();
    read_associations(&mut associations, &raw(r#"[{"name": "Stemma::Fcat"}]"#), &AnyNameResolver::default()).unwrap_err();
}

/// An older version may have stored names that a new object cannot have. They are accepted again, and new ones are not.
#[test]
fn y04_invalid_stored_names_are_accepted_when_unchanged() {
    fn assert_rewrite_accepted<T: Clone>(
        mut stored: T,
        json: &str,
        read: impl Fn(&mut T, &RawValue, &dyn NameResolver) -> Result<(), BodyError>,
    ) {
        read(&mut stored, &raw(json), &AnyNameResolver::default()).expect(json);
    }
    let tags: BTreeMap<TagName, TagSpec> = serde_json::from_str(r#"{"Self": {}}"#).unwrap();
    assert_rewrite_accepted(tags, r#"{"Self": {}, "a": {}}"#, read_tags);
    let roles: BTreeMap<Name, RoleSpec> = serde_json::from_str(r#"{"Null": {"tags": ["Primary-x"]}}"#).unwrap();
    assert_rewrite_accepted(roles, r#"{"Null": {"tags": ["Primary-x"]}}"#, read_roles);
    assert_rewrite_accepted(
        vec![NamespaceTag { name: "a\nb".into() }],
        r#"[{"name": "a\nb"}, {"name": "c"}]"#,
        read_members::<NamespaceTag>,
    );
    assert_rewrite_accepted(Some("a\nb".to_owned()), r#""a\nb""#, read_optional_name);
    for (error, expected_start) in [
        (read_error(r#"{"Self": {}}"#, read_tags), "Self: tag \"Self\" is reserved"),
        (read_error(r#"{"Null": {}}"#, read_roles), "Null: role \"Null\" is reserved"),
        (read_error(r#"{"a": {"tags": ["Primary-x"]}}"#, read_roles), "a.tags[0]: tag \"Primary-x\" is reserved"),
        (read_error(r#"{"a": {"add_tags": ["SELF"]}}"#, read_role_changes), "a.add_tags[0]: tag \"SELF\" is reserved"),
        (read_error(r#"[{"id": "MASTER", "type": "file"}]"#, read_tasks_field), "[0].id: task \"MASTER\" is reserved"),
    ] {
        assert!(error.starts_with(expected_start), "{expected_start}: {error}");
    }
}

/// Selectors give the words `self`, `master` and `null` a special meaning, so a new role or tag cannot have such a
/// name, whatever the case of its letters.
#[test]
fn y04_roles_and_tags_reject_reserved_words() {
    for word in ["self", "Self", "MASTER", "null"] {
        let text = |body: Value| body.to_string();
        for (error, field) in [
            (read_error(&text(serde_json::json!(["web", word])), read_role_names), "[1]"),
            (read_error(&text(serde_json::json!({word: {}})), read_role_changes), word),
            (read_error(&text(serde_json::json!({"a": {"role": word}})), read_tags), "a.role"),
            (read_error(&text(serde_json::json!({"a": {"conflicts": ["b", word]}})), read_roles), "a.conflicts[1]"),
            (read_error(&text(serde_json::json!([{"roles": [word], "use": "p"}])), read_extensions), "[0].roles[0]"),
            (read_error(&text(serde_json::json!({word: "n"})), read_primaries), word),
            (read_error(&text(serde_json::json!({"a": {"remove_tags": ["b", word]}})), read_role_changes), "a.remove_tags[1]"),
        ] {
            let is_expected = error.starts_with(&format!("{field}: ")) && error.contains(&format!("{word:?} is reserved"));
            assert!(is_expected, "{field}: {error}");
        }
    }
    assert_eq!(read_error(r#"["primary-controller", "web", "web"]"#, read_role_names), "valid");
    // Names that an older version stored are accepted again.
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

/// Selectors know the words `self` and `master` in this spelling only, and `null` only as the JSON value. Regression:
/// another spelling selected a role that cannot exist, so the task waited for nothing.
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
        for (error, field) in [
            (read_error(&task("roles", &words), read_tasks_field), "roles[1]"),
            (read_error(&task("tags", &words), read_tasks_field), "tags[1]"),
            (read_error(&task("cross_depends", &entries("role", &words)), read_tasks_field), "cross_depends[0].role[1]"),
            (
                read_error(&task("cross-depends", &entries("role", &Value::from(word))), read_tasks_field),
                "cross_depends[0].role[0]",
            ),
            (read_error(&task("cross_depended_by", &entries("tags", &words)), read_tasks_field), "cross_depended_by[0].tags[1]"),
        ] {
            let expected_start = format!("[0].{field}: {word:?} is reserved: {advice}");
            assert!(error.starts_with(&expected_start), "{expected_start}: {error}");
        }
    }
    let error = read_error(&task("tags", &serde_json::json!(["Primary-db"])), read_tasks_field);
    assert!(error.starts_with("[0].tags[0]: \"Primary-db\" is reserved: write primary-"), "{error}");
    for word in ["self", "master", "*", "primary-db", "selfish", "/SELF/"] {
        assert_eq!(read_error(&task("cross_depends", &entries("role", &Value::from(word))), read_tasks_field), "valid", "{word}");
        assert_eq!(read_error(&task("roles", &serde_json::json!([word])), read_tasks_field), "valid", "{word}");
        assert_eq!(read_error(&task("tags", &serde_json::json!([word])), read_tasks_field), "valid", "{word}");
    }
    assert_eq!(read_error(&task("cross_depends", &entries("role", &Value::Null)), read_tasks_field), "valid");
    // A task that an older version stored is accepted again.
    let existing = task("roles", &serde_json::json!(["SELF"]));
    let mut tasks: Vec<Task> = serde_json::from_str(&existing).unwrap();
    read_tasks_field(&mut tasks, &raw(&existing), &AnyNameResolver::default()).unwrap();
}

#[test]
fn y04_references_reject_control_characters() {
    let text = |body: Value| body.to_string();
    for invalid_name in ["a\nb", "a\u{85}b", "a\u{2028}b", "a\0"] {
        let task = |field: &str, value: Value| text(serde_json::json!([{"id": "a", "type": "shell", field: value}]));
        let entry = |field: &str| serde_json::json!([{"name": "b"}, {"name": "c", field: [invalid_name]}]);
        for (error, path) in [
            (read_error(&text(serde_json::json!({"w": invalid_name})), read_primaries), "w"),
            (read_error(&text(serde_json::json!({"order": ["g", invalid_name]})), read_rollout), "order[1]"),
            (read_error(&task("tags", invalid_name.into()), read_tasks_field), "[0].tags[0]"),
            (read_error(&task("roles", serde_json::json!(["b", invalid_name])), read_tasks_field), "[0].roles[1]"),
            (read_error(&task("requires", invalid_name.into()), read_tasks_field), "[0].requires[0]"),
            (read_error(&task("cross_depends", entry("role")), read_tasks_field), "[0].cross_depends[1].role[0]"),
            (read_error(&task("cross_depended_by", entry("tags")), read_tasks_field), "[0].cross_depended_by[1].tags[0]"),
            (read_error(&task("on_unassign", invalid_name.into()), read_tasks_field), "[0].on_unassign"),
        ] {
            let expected_start = format!("{path}: {invalid_name:?} has a control character");
            assert!(error.starts_with(&expected_start), "{path}: {error}");
        }
        // Names that an older version stored are accepted again.
        let mut existing: Vec<Task> = serde_json::from_str(&task("tags", serde_json::json!([invalid_name]))).unwrap();
        let same_body = raw(&serde_json::to_string(&existing).unwrap());
        read_tasks_field(&mut existing, &same_body, &AnyNameResolver::default()).unwrap();
        let mut existing = Some(Rollout { order: vec![invalid_name.to_owned()], ..Rollout::default() });
        let same_body = raw(&text(serde_json::json!({"order": [invalid_name], "max_groups": 1})));
        read_rollout(&mut existing, &same_body, &AnyNameResolver::default()).unwrap();
    }
}

#[test]
fn y04_requirement_rejects_blank_name() {
    for key in ["property:\u{200b}", "fact:\u{ad}"] {
        let body = serde_json::json!({key: "1"}).to_string();
        let error = read_error(&body, read_requirements);
        assert!(error.contains("needs a name of 1 to 255 bytes"), "{key:?}: {error}");
        // A requirement with a blank name that an older version stored may get another value.
        let mut requirements: Requirements = serde_json::from_str(&body).unwrap();
        let changed_body = serde_json::json!({key: "2"}).to_string();
        read_requirements(&mut requirements, &raw(&changed_body), &AnyNameResolver::default()).unwrap();
    }
    assert_eq!(read_error(r#"{"property:a": "1"}"#, read_requirements), "valid");
}

#[test]
fn y04_invalid_stored_canary_is_accepted_when_unchanged() {
    let mut stored_strategy = Some(Strategy { canary: Some(serde_json::json!({"a": 1})), ..Strategy::default() });
    let body = raw(r#"{"canary": {"a": 1}, "max_failures": 7}"#);
    read_strategy(&mut stored_strategy, &body, &AnyNameResolver::default()).unwrap();
    read_strategy(&mut stored_strategy, &raw(r#"{"canary": {"a": 2}}"#), &AnyNameResolver::default()).unwrap_err();
    assert!(read_error(r#"{"canary": -1}"#, read_strategy).starts_with("canary: -1 is neither a number of hosts nor a selector"));
}

#[test]
fn host_label_rule_is_rejected_with_path_when_invalid() {
    for (json, expected_start) in [
        (r#"{"patterns": ["a", "["]}"#, "patterns[1]: \"[\" is not a regular expression of at most 256 bytes: "),
        (r#"{"annotations": ["("]}"#, "annotations[0]: \"(\" is not a regular expression"),
        (r#"{"prefixes": [""]}"#, "prefixes[0]: \"\" must be a lower-case DNS name"),
        (r#"{"accept": ["kubernetes.io/x"]}"#, "accept: kubernetes.io/x is restricted, no host may set it"),
        (r#"{"patterns": ["a", "()"]}"#, "patterns[1]: \"()\" matches no key: "),
        (r#"{"patterns": ["(?:)|^$"]}"#, "patterns[0]: \"(?:)|^$\" matches no key: "),
        (r#"{"annotations": ["()*"]}"#, "annotations[0]: \"()*\" matches no key: "),
        (r#"{"patterns": [".*", "tier|zone", "(a)?b"]}"#, "valid"),
        (r#"{"patterns": ["a"]}"#, "valid"),
        ("null", "valid"),
    ] {
        let error = read_error(json, read_host_labels);
        assert!(error.starts_with(expected_start), "{json}: {error}");
    }
}

#[test]
fn tags_reject_names_of_primaries() {
    let reserved = "tag \"primary-x\" is reserved: 'primary-' stands for the primary holder of a tag; \
         set has_primary instead";
    assert_eq!(read_error(r#"{"primary-x": {}}"#, read_tags), format!("primary-x: {reserved}"));
    assert_eq!(read_error(r#"{"db": {"tags": ["x", "primary-x"]}}"#, read_roles), format!("db.tags[1]: {reserved}"));
    assert_eq!(read_error(r#"{"db": {"add_tags": ["primary-x"]}}"#, read_role_changes), format!("db.add_tags[0]: {reserved}"));
    // Such a role is accepted, because Fuel's old releases have such roles. The removal of such a tag from a role is
    // accepted, because it has no effect.
    assert_eq!(read_error(r#"{"primary-controller": {}}"#, read_roles), "valid");
    assert_eq!(read_error(r#"{"db": {"remove_tags": ["primary-x"]}}"#, read_role_changes), "valid");
}

/// Regression: a limit that is not a number was accepted, but never compared with the number of nodes.
#[test]
fn role_limit_accepts_whole_number_or_fuel_expression() {
    for (limits, expected) in [
        (r#"{"min": 1, "max": null}"#, "valid"),
        (r#"{"max": "settings:storage.osds.value", "recommended": 3, "overrides": [{"max": 1}]}"#, "valid"),
        (r#"{"min": "lots"}"#, r#"db.limits.min: "lots" is not a whole number"#),
        (r#"{"max": -1}"#, "db.limits.max: -1 is not a whole number"),
        (r#"{"max": 1.5}"#, "db.limits.max: 1.5 is not a whole number"),
        (
            r#"{"mim": 1}"#,
            "db.limits.mim: there is no such limit (did you mean \"min\"?): the limits are min, max, recommended, condition, overrides",
        ),
    ] {
        assert_eq!(read_error(&format!(r#"{{"db": {{"limits": {limits}}}}}"#), read_roles), expected);
    }
}

/// The limit for names, prefixes and targets in a namespace is that of Glance's schema.
#[test]
fn catalog_texts_have_at_most_80_characters() {
    let (longest, too_long) = ("n".repeat(80), "n".repeat(81));
    let expected_end = "is longer than 80 characters";
    let property = |name: &str| format!(r#"{{"a": {{"title": "A", "type": "string", "name": "{name}"}}}}"#);
    let object = |name: &str| format!(r#"[{{"name": "o", "properties": {}}}]"#, property(name));
    let association = |field: &str, text: &str| format!(r#"[{{"name": "Stemma::Label", "{field}": "{text}"}}]"#);
    assert_eq!(read_error(&property(&longest), read_properties), "valid");
    assert_eq!(read_error(&object(&longest), read_definitions), "valid");
    for (error, expected_start) in [
        (read_error(&property(&too_long), read_properties), "a.name: "),
        (read_error(&object(&too_long), read_definitions), "[0].properties.a.name: "),
        (read_error(&association("prefix", &too_long), read_associations), "[0].prefix: "),
        (read_error(&association("properties_target", &too_long), read_associations), "[0].properties_target: "),
    ] {
        assert!(error.starts_with(expected_start) && error.ends_with(expected_end), "{error}");
    }
    assert_eq!(read_error(&association("prefix", &longest), read_associations), "valid");
}

#[test]
fn requirements_and_suppressed_traits_reject_unknown_trait() {
    let requirement_error = |json| read_error(json, read_requirements);
    let suppression_error = |json| read_error(json, read_suppressed_traits);
    for (error, expected_start) in [
        (requirement_error(r#"{"trait:TYPO_TRAIT": "required"}"#), "requirement: "),
        (requirement_error(r#"{"trait:CUSTOM_A": "required", "trait:HW_CPU_X86_AVX2": "forbidden"}"#), "valid"),
        (suppression_error(r#"["NOPE"]"#), "\"NOPE\" is not a trait: "),
        (suppression_error(r#"["HW_CPU_X86_AVX2"]"#), "valid"),
    ] {
        assert!(error.starts_with(expected_start), "{error}");
    }
}

/// A node is referred to by a valid name or a uuid, and a group by a valid name.
#[test]
fn y04_group_and_node_references_reject_impossible_names() {
    for invalid_name in ["a b", "*", "a/b", "/a/", ".", "ä", "a,b"] {
        let node_error = read_error(&serde_json::json!({"w": invalid_name}).to_string(), read_primaries);
        assert!(node_error.starts_with("w: no node can have this name: "), "{invalid_name}: {node_error}");
        let group_error = read_error(&serde_json::json!({"order": ["g", invalid_name]}).to_string(), read_rollout);
        assert!(group_error.starts_with("order[1]: no group can have this name: "), "{invalid_name}: {group_error}");
        // A reference that an older version stored is accepted again.
        let mut existing: BTreeMap<TagName, String> = [(TagName::new("w").unwrap(), invalid_name.to_owned())].into();
        read_primaries(
            &mut existing,
            &raw(&serde_json::json!({"w": invalid_name, "x": "a"}).to_string()),
            &AnyNameResolver::default(),
        )
        .unwrap();
        let mut existing = Some(Rollout { order: vec![invalid_name.to_owned()], ..Rollout::default() });
        let same_body = raw(&serde_json::json!({"order": ["g", invalid_name]}).to_string());
        read_rollout(&mut existing, &same_body, &AnyNameResolver::default()).unwrap();
    }
    let path_error = read_error(r#"{"w": "detail"}"#, read_primaries);
    assert!(
        path_error.starts_with("w: no node can have this name: ") && path_error.contains("is a path below /v1/nodes/"),
        "{path_error}"
    );
    for valid in ["db-1", "db_1.example.net", "-x", "0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6"] {
        assert_eq!(read_error(&serde_json::json!({"w": valid}).to_string(), read_primaries), "valid", "{valid}");
    }
    assert_eq!(read_error(r#"{"order": ["default-master", "g.1"]}"#, read_rollout), "valid");
}

/// In Fuel's releases, the `fault_tolerance` of a role is a whole number from 0, or a percentage.
#[test]
fn y05_fault_tolerance_accepts_number_or_percentage() {
    let role = |value: &Value| serde_json::json!({"web": {"fault_tolerance": value}}).to_string();
    for valid in ["0", "1", "4294967295", "\"0%\"", "\"2%\"", "\"100%\"", "null"] {
        assert_eq!(read_error(&role(&serde_json::from_str(valid).unwrap()), read_roles), "valid", "{valid}");
    }
    for invalid in
        ["\"x\"", "\"-1\"", "\"101%\"", "\"\"", "{}", "[]", "true", "-1", "1.5", "4294967296", "\"5\"", "\"05%\"", "\" 5%\""]
    {
        let body = role(&serde_json::from_str(invalid).unwrap());
        let error = read_error(&body, read_roles);
        assert!(error.starts_with("web.fault_tolerance: ") && error.contains("write one as 1 or \"10%\""), "{invalid}: {error}");
        // If the role already has this invalid value, stored by an older version, the same value is accepted.
        let mut roles: BTreeMap<Name, RoleSpec> = serde_json::from_str(&body).unwrap();
        read_roles(&mut roles, &raw(&body), &AnyNameResolver::default()).unwrap();
    }
}

/// Regression: a whole number such as `1.0` was refused in a role. Any notation is valid (`docs/api.md`).
#[test]
fn y04_role_whole_numbers_are_normalized() {
    for (number, normalized) in [("1e0", "1"), ("1.0", "1"), ("2e1", "20"), ("-0", "0"), ("-0.0", "0")] {
        let body = format!(
            r#"{{"web": {{"fault_tolerance": {number}, "limits": {{"min": {number}, "overrides": [{{"max": {number}}}]}}}}}}"#
        );
        let mut roles = BTreeMap::new();
        read_roles(&mut roles, &raw(&body), &AnyNameResolver::default()).unwrap();
        let expected = body.replace(number, normalized);
        assert_eq!(roles, serde_json::from_str::<BTreeMap<Name, RoleSpec>>(&expected).unwrap(), "{number}");
    }
    for invalid in ["-1.0", "1.5", "-1e0", "4294967296.0"] {
        let body = format!(r#"{{"web": {{"fault_tolerance": {invalid}}}}}"#);
        let error = read_error(&body, read_roles);
        assert!(error.starts_with("web.fault_tolerance: "), "{invalid}: {error}");
        // If the role already has this invalid value, stored by an older version, the same value is accepted.
        let mut stored_roles: BTreeMap<Name, RoleSpec> = serde_json::from_str(&body).unwrap();
        read_roles(&mut stored_roles, &raw(&body), &AnyNameResolver::default()).unwrap();
    }
}

/// Regression: the error stated that a name or a uuid is accepted. The order of groups accepts only names.
#[test]
fn y05_rollout_order_accepts_only_group_names() {
    for uuid in ["0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6", "0d8e1f4a5b6c4d7e8f90a1b2c3d4e5f6"] {
        let error = read_error(&serde_json::json!({"order": ["g", uuid]}).to_string(), read_rollout);
        assert_eq!(
            error,
            format!(
                "order[1]: no group can have this name: \"{uuid}\" looks like a uuid, but only the name of a group is accepted here"
            )
        );
    }
}

/// Each kind of name in a namespace has at most 80 characters, as in the API's paths of single properties. A longer
/// name that an older version stored is accepted again.
#[test]
fn y05_property_name_is_limited_like_api_path() {
    let (longest, too_long) = ("ä".repeat(80), "ä".repeat(81));
    let map = |name: &str| serde_json::json!({name: {"title": "A", "type": "string"}});
    let object = |name: &str| serde_json::json!([{"name": "o", "properties": map(name)}]).to_string();
    let list = |name: &str| serde_json::json!([{"name": name}]).to_string();
    for (name, expected_end) in [(&longest, "valid"), (&too_long, "is longer than 80 characters")] {
        for (error, expected_start) in [
            (read_error(&map(name).to_string(), read_properties), "\""),
            (read_error(&object(name), read_definitions), "[0].properties: "),
            (read_error(&list(name), read_definitions), "[0].name: "),
            (read_error(&list(name), read_members::<NamespaceTag>), "[0].name: "),
            (read_error(&list(name), read_associations), "[0].name: "),
            (check_member_name(name).map_or_else(|error| error.to_string(), |()| "valid".to_owned()), "\""),
        ] {
            assert!(error.ends_with(expected_end) && (expected_end == "valid" || error.starts_with(expected_start)), "{error}");
        }
    }
    // A name that an older version stored is accepted again, and the property of this name may change.
    let changed = serde_json::json!({&too_long: {"title": "B", "type": "string"}});
    let mut existing: Properties = serde_json::from_value(map(&too_long)).unwrap();
    read_properties(&mut existing, &raw(&changed.to_string()), &AnyNameResolver::default()).unwrap();
    assert_eq!(existing[&too_long].title, "B");
    let longer = "ö".repeat(81);
    read_properties(&mut existing, &raw(&map(&longer).to_string()), &AnyNameResolver::default()).unwrap_err();
    let mut existing: Vec<Definition> = serde_json::from_str(&object(&too_long)).unwrap();
    read_definitions(&mut existing, &raw(&object(&too_long)), &AnyNameResolver::default()).unwrap();
    let mut existing = vec![NamespaceTag { name: too_long.clone() }];
    read_members(&mut existing, &raw(&list(&too_long)), &AnyNameResolver::default()).unwrap();
}

/// The field `name` of a property is redundant if it equals the key, which is `p` here.
#[test]
fn y05_property_is_stored_without_redundant_name() {
    let property_map = |title: &str, name: Option<&str>| {
        let mut property = serde_json::json!({"title": title, "type": "string"});
        if let Some(name) = name {
            property["name"] = name.into();
        }
        serde_json::json!({"p": property})
    };
    let without_name: Properties = serde_json::from_value(property_map("A", None)).unwrap();
    let with_name: Properties = serde_json::from_value(property_map("A", Some("p"))).unwrap();
    let with_other_name: Properties = serde_json::from_value(property_map("A", Some("q"))).unwrap();
    for (existing, sent, expected) in [
        (&Properties::new(), property_map("A", Some("p")), &without_name),
        (&without_name, property_map("A", Some("p")), &without_name),
        (&without_name, property_map("A", None), &without_name),
        // A redundant name that an older version stored is not changed by a write that changes nothing else.
        (&with_name, property_map("A", Some("p")), &with_name),
        (&with_name, property_map("A", None), &with_name),
        (&without_name, property_map("A", Some("q")), &with_other_name),
        (&with_name, property_map("A", Some("q")), &with_other_name),
    ] {
        let mut properties = existing.clone();
        read_properties(&mut properties, &raw(&sent.to_string()), &AnyNameResolver::default()).unwrap();
        assert_eq!(properties, *expected, "{existing:?} {sent}");
    }
    let mut properties = with_name;
    read_properties(&mut properties, &raw(&property_map("B", Some("p")).to_string()), &AnyNameResolver::default()).unwrap();
    assert_eq!((properties["p"].title.as_str(), &properties["p"].name), ("B", &None));
}

/// The labels of a release, namespace or inspection rule accept the same keys and values as the labels of a level.
#[test]
fn y05_object_label_follows_rules_of_level_labels() {
    let label_map = |key: &str, value: &str| serde_json::json!({key: value}).to_string();
    let too_long = "v".repeat(4_097);
    for (key, value, expected_start) in [
        ("k", "a\nb", "k: a label's value has no control characters"),
        ("k", "\0", "k: a label's value has no control characters"),
        ("k", &*too_long, "k: a label's value has at most 4096 bytes"),
        ("a b", "x", "key \"a b\" needs a name"),
        ("a/b/c", "x", "key \"a/b/c\" has more than one slash"),
        ("k", "", "valid"),
        ("example.net/k", "any text, = ä", "valid"),
    ] {
        let error = read_error(&label_map(key, value), read_labels);
        assert!(error.starts_with(expected_start), "{key:?} {value:?}: {error}");
    }
    assert_eq!(
        read_labels(&mut BTreeMap::new(), &raw(&label_map("k", "\t")), &AnyNameResolver::default()).unwrap_err().kind,
        BodyErrorKind::Label
    );
    // A label that an older version stored is accepted again, but not with another invalid value.
    let stored_labels = BTreeMap::from([("a b".to_owned(), "x\ny".to_owned())]);
    for (value, is_accepted) in [("x\ny", true), ("x", true), ("x\nz", false)] {
        let result = read_labels(&mut stored_labels.clone(), &raw(&label_map("a b", value)), &AnyNameResolver::default());
        assert_eq!(result.is_ok(), is_accepted, "{value:?}");
    }
}
