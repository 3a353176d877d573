//! What a field takes, what it refuses, and what of an older program may be written again.

use super::super::testing::Anybody;
use super::*;

#[test]
fn a_hold_ends_at_a_time_or_when_it_is_taken_back() {
    let read = |until: &str| {
        let mut read = None;
        let body = raw(&serde_json::json!({"until": until, "reason": "x"}).to_string());
        hold(&mut read, &body, &Anybody::default()).map(|()| read.and_then(|hold| hold.end()).map(|end| end.0))
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

fn says<T: Default>(json: &str, read: impl Fn(&mut T, &RawValue, &dyn Names) -> Result<(), BodyError>) -> String {
    read(&mut T::default(), &raw(json), &Anybody::default())
        .map_or_else(|error| error.to_string(), |()| "taken".to_owned())
}

#[test]
fn x06_an_empty_date_of_a_rollout_is_refused() {
    for empty in [r#"{"freeze": ""}"#, r#"{"freeze": " "}"#, "{\"freeze\": \"\u{2800}\"}"] {
        let said = says(empty, rollout);
        assert!(said.starts_with("freeze: is empty: write a time"), "{empty}: {said}");
    }
    for taken in [r#"{"freeze": "2026-12-31T00:00:00Z"}"#, r#"{"freeze": null}"#, r#"{"max_groups": 1}"#, "null"] {
        assert_eq!(says(taken, rollout), "taken", "{taken}");
    }
}

#[test]
fn y04_a_time_that_there_is_not_is_refused_in_every_field() {
    for text in ["2026-12-31T23:59:60Z", "2026-12-31T23:59:59+25:00", "2026-12-31T23:59:59Z[Europe/Berlin]", "soon"] {
        let until = says(&serde_json::json!({"until": text}).to_string(), hold);
        let freeze = says(&serde_json::json!({"freeze": text}).to_string(), rollout);
        assert!(until.starts_with(&format!("until: {text:?} is no time")), "{until}");
        assert_eq!(freeze, until.replacen("until", "freeze", 1));
    }
    let last = "9999-12-31T23:59:59Z";
    assert_eq!(says(&serde_json::json!({"until": last}).to_string(), hold), "taken");
    assert_eq!(Hold { until: last.into(), ..Hold::default() }.end(), Some(Timestamp(253_402_300_799_000)));
    assert_eq!(says(r#"{"reason": ""}"#, hold), "reason: is empty: say why, or leave it out");
}

#[test]
fn y04_a_time_of_an_older_program_is_written_again_and_no_other_is() {
    let odd = "2026-12-31T23:59:60Z";
    let mut held = Some(Box::new(Hold { until: odd.into(), reason: "a".into() }));
    let body = |until: &str| raw(&serde_json::json!({"until": until, "reason": "a longer one"}).to_string());
    hold(&mut held, &body(odd), &Anybody::default()).unwrap();
    assert_eq!(held.as_ref().map(|hold| (&*hold.until, &*hold.reason)), Some((odd, "a longer one")));
    assert!(held.as_ref().is_some_and(|hold| hold.end().is_some()));
    hold(&mut held, &body("2026-12-31T22:59:60Z"), &Anybody::default()).unwrap_err();
    let windows = vec![serde_json::json!({"foo": 1})];
    let mut stood = Some(Strategy { windows, ..Strategy::default() });
    let body = raw(r#"{"windows": [{"foo": 1}], "max_failures": 7}"#);
    strategy(&mut stood, &body, &Anybody::default()).unwrap();
    assert_eq!(stood.and_then(|strategy| strategy.max_failures), Some(7));
}

#[test]
fn y04_a_window_has_days_a_start_a_duration_and_a_zone() {
    let of = |window: Value| says(&serde_json::json!({"windows": [window]}).to_string(), strategy);
    let whole =
        || serde_json::json!({"days": ["Mon"], "start": "22:00", "duration": "4h", "time_zone": "Europe/Berlin"});
    let with = |name: &str, value: Value| {
        let mut window = whole();
        window[name] = value;
        of(window)
    };
    assert_eq!(of(whole()), "taken");
    assert_eq!(of(serde_json::json!({"start": "00:00", "duration": "1w"})), "taken");
    for (said, begins) in [
        (with("days", serde_json::json!(["Mon", "Xyz"])), "windows[0].days[1]: \"Xyz\" is no day"),
        (with("start", "25:99".into()), "windows[0].start: \"25:99\" is no time of a day"),
        (with("duration", "soon".into()), "windows[0].duration: \"soon\" is no length of time"),
        (with("duration", "8d".into()), "windows[0].duration: \"8d\" is longer than a week"),
        (with("time_zone", "Mars Olympus".into()), "windows[0].time_zone: \"Mars Olympus\" is no name of a time zone"),
        (
            with("time_zone", "Europe/Atlantis".into()),
            "windows[0].time_zone: \"Europe/Atlantis\" is no name of a time zone",
        ),
        (
            with("time_zone", "europe/berlin".into()),
            "windows[0].time_zone: \"europe/berlin\" is no name of a time zone (did you mean \"Europe/Berlin\"?)",
        ),
        (with("foo", 1.into()), "windows[0].foo: "),
        (of(serde_json::json!({})), "windows[0].start: "),
        (of(serde_json::json!({"start": "22:00"})), "windows[0].duration: "),
    ] {
        assert!(said.starts_with(begins), "{begins}: {said}");
    }
}

#[test]
fn y04_what_stands_in_a_namespace_has_a_name_without_control_characters() {
    let property = |name: &str| serde_json::json!({"title": "A", "type": "string", "name": name});
    for odd in ["a\nb", "\u{7f}", " "] {
        let body = |of: Value| of.to_string();
        for (said, place) in [
            (says(&body(serde_json::json!([{"name": odd}])), definitions), "[0].name"),
            (says(&body(serde_json::json!([{"name": odd}])), members::<NamespaceTag>), "[0].name"),
            (says(&body(serde_json::json!([{"name": odd}])), associations), "[0].name"),
            (says(&body(serde_json::json!([{"name": "a", "prefix": odd}])), associations), "[0].prefix"),
            (says(&body(serde_json::json!({"a": property(odd)})), properties), "a.name"),
        ] {
            assert!(said.starts_with(&format!("{place}: ")), "{odd:?}: {said}");
        }
    }
    let empty = says(r#"[{"name": "a", "prefix": ""}]"#, associations);
    assert_eq!(empty, "[0].prefix: is empty: name something, or leave it out");
    // A key that is there keeps its name, and gets no other such one.
    let of = |name: &str| raw(&serde_json::json!({"a": property(name)}).to_string());
    for (before, after, is_taken) in [("b", "a\nb", false), ("a\nb", "a\nb", true), ("a\nb", "a\nc", false)] {
        let mut stood: Properties = serde_json::from_str(of(before).get()).unwrap();
        let written = properties(&mut stood, &of(after), &Anybody::default());
        assert_eq!(written.is_ok(), is_taken, "{before:?} {after:?}");
    }
}

/// What clients take out of an address is that of RFC 3986, section 5.2.4.
#[test]
fn y04_nothing_in_a_namespace_is_called_as_a_step_of_paths() {
    let list = |name: &str| serde_json::json!([{"name": name}]).to_string();
    let map = |name: &str| serde_json::json!({name: {"title": "A", "type": "string"}}).to_string();
    let of_all = |name: &str| {
        [
            says(&list(name), definitions),
            says(&list(name), members::<NamespaceTag>),
            says(&list(name), associations),
            says(&map(name), properties),
        ]
    };
    for odd in [".", ".."] {
        let why = format!("{odd:?} is a step of a path and no name, so nothing could ask for it: choose another name");
        let in_list = format!("[0].name: {why}");
        assert_eq!(of_all(odd), [in_list.clone(), in_list.clone(), in_list, why]);
        // One that an older program took is written again, and no other beside it.
        let other = if odd == "." { ".." } else { "." };
        let mut tags = vec![NamespaceTag { name: odd.into() }];
        let mut stood: Properties = serde_json::from_str(&map(odd)).unwrap();
        for (name, is_taken) in [(odd, true), (other, false)] {
            let written = members(&mut tags.clone(), &raw(&list(name)), &Anybody::default());
            assert_eq!(written.is_ok(), is_taken, "{odd} {name}");
            let written = properties(&mut stood, &raw(&map(name)), &Anybody::default());
            assert_eq!(written.is_ok(), is_taken, "{odd} {name}");
        }
        members(&mut tags, &raw(&list("a")), &Anybody::default()).unwrap();
    }
    for name in ["...", ".a", "a.", "..a", "a..b"] {
        assert_eq!(of_all(name), ["taken"; 4].map(str::to_owned), "{name}");
    }
}

/// A namespace with a misspelt type was stored, and bound no key.
#[test]
fn y09_a_resource_type_that_begins_as_ours_is_one_of_ours() {
    let of = |name: &str| says(&serde_json::json!([{"name": name}]).to_string(), associations);
    let known = "they are Stemma::Label, Stemma::Parameter, Stemma::Property, Stemma::Fact";
    for (name, meant) in [
        ("Stemma::Lable", "Label"),
        ("stemma::label", "Label"),
        ("STEMMA::FACT", "Fact"),
        ("Stemma::Parameters", "Parameter"),
        (" Stemma::Property", "Property"),
    ] {
        let why = format!("{name:?} is no resource type of Stemma (did you mean \"Stemma::{meant}\"?): {known}");
        assert_eq!(of(name), format!("[0].name: {why}"));
    }
    assert_eq!(of("Stemma::Switch"), format!("[0].name: \"Stemma::Switch\" is no resource type of Stemma: {known}"));
    for name in
        ["Stemma::Label", "Stemma::Parameter", "Stemma::Property", "Stemma::Fact", "OS::Glance::Image", "Stemma"]
    {
        assert_eq!(of(name), "taken", "{name}");
    }
    let mut stood = vec![Association { name: "Stemma::Lable".into(), prefix: None, properties_target: None }];
    let body = raw(r#"[{"name": "Stemma::Lable", "prefix": "x/"}, {"name": "Stemma::Label"}]"#);
    associations(&mut stood, &body, &Anybody::default()).unwrap();
    associations(&mut stood, &raw(r#"[{"name": "Stemma::Fcat"}]"#), &Anybody::default()).unwrap_err();
}

#[test]
fn y04_names_of_an_older_program_are_written_again_and_no_new_ones_are() {
    fn again<T: Clone>(
        mut stood: T,
        json: &str,
        read: impl Fn(&mut T, &RawValue, &dyn Names) -> Result<(), BodyError>,
    ) {
        read(&mut stood, &raw(json), &Anybody::default()).expect(json);
    }
    let tags: BTreeMap<TagName, TagSpec> = serde_json::from_str(r#"{"Self": {}}"#).unwrap();
    again(tags, r#"{"Self": {}, "a": {}}"#, super::tags);
    let roles: BTreeMap<Name, RoleSpec> = serde_json::from_str(r#"{"Null": {"tags": ["Primary-x"]}}"#).unwrap();
    again(roles, r#"{"Null": {"tags": ["Primary-x"]}}"#, super::roles);
    again(vec![NamespaceTag { name: "a\nb".into() }], r#"[{"name": "a\nb"}, {"name": "c"}]"#, members::<NamespaceTag>);
    again(Some("a\nb".to_owned()), r#""a\nb""#, naming);
    for (said, begins) in [
        (says(r#"{"Self": {}}"#, super::tags), "Self: tag \"Self\" is reserved"),
        (says(r#"{"Null": {}}"#, super::roles), "Null: role \"Null\" is reserved"),
        (says(r#"{"a": {"tags": ["Primary-x"]}}"#, super::roles), "a.tags[0]: tag \"Primary-x\" is reserved"),
        (says(r#"{"a": {"add_tags": ["SELF"]}}"#, role_changes), "a.add_tags[0]: tag \"SELF\" is reserved"),
        (says(r#"[{"id": "MASTER", "type": "file"}]"#, tasks), "[0].id: task \"MASTER\" is reserved"),
    ] {
        assert!(said.starts_with(begins), "{begins}: {said}");
    }
}

/// The words are those that selectors give a meaning of their own.
#[test]
fn y04_a_reserved_word_names_no_role_and_no_tag_anywhere() {
    for word in ["self", "Self", "MASTER", "null"] {
        let of = |body: Value| body.to_string();
        for (said, place) in [
            (says(&of(serde_json::json!(["web", word])), role_names), "[1]"),
            (says(&of(serde_json::json!({word: {}})), role_changes), word),
            (says(&of(serde_json::json!({"a": {"role": word}})), tags), "a.role"),
            (says(&of(serde_json::json!({"a": {"conflicts": ["b", word]}})), roles), "a.conflicts[1]"),
            (says(&of(serde_json::json!([{"roles": [word], "use": "p"}])), extensions), "[0].roles[0]"),
            (says(&of(serde_json::json!({word: "n"})), primaries), word),
            (says(&of(serde_json::json!({"a": {"remove_tags": ["b", word]}})), role_changes), "a.remove_tags[1]"),
        ] {
            let tells = said.starts_with(&format!("{place}: ")) && said.contains(&format!("{word:?} is reserved"));
            assert!(tells, "{place}: {said}");
        }
    }
    assert_eq!(says(r#"["primary-controller", "web", "web"]"#, role_names), "taken");
    let name = |text: &str| Name::new(text).unwrap();
    let mut stood = vec![name("Self")];
    role_names(&mut stood, &raw(r#"["web", "Self"]"#), &Anybody::default()).unwrap();
    assert_eq!(stood, [name("Self"), name("web")]);
    let mut stood: BTreeMap<TagName, String> = serde_json::from_str(r#"{"Self": "a"}"#).unwrap();
    primaries(&mut stood, &raw(r#"{"Self": "b"}"#), &Anybody::default()).unwrap();
    let stood = r#"{"a": {"remove_tags": ["Self", "Primary-x"]}}"#;
    let mut changes: BTreeMap<Name, RoleChange> = serde_json::from_str(stood).unwrap();
    role_changes(&mut changes, &raw(stood), &Anybody::default()).unwrap();
}

/// The words are those that selectors read: another spelling named a role that there can't be, and the task waited for nobody.
#[test]
fn y04_a_word_of_selectors_is_read_as_it_is_written_and_in_no_other_letters() {
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
            (says(&task("roles", &words), tasks), "roles[1]"),
            (says(&task("tags", &words), tasks), "tags[1]"),
            (says(&task("cross_depends", &entries("role", &words)), tasks), "cross_depends[0].role[1]"),
            (says(&task("cross-depends", &entries("role", &Value::from(word))), tasks), "cross_depends[0].role[0]"),
            (says(&task("cross_depended_by", &entries("tags", &words)), tasks), "cross_depended_by[0].tags[1]"),
        ] {
            let begins = format!("[0].{place}: {word:?} is reserved: {advice}");
            assert!(said.starts_with(&begins), "{begins}: {said}");
        }
    }
    let said = says(&task("tags", &serde_json::json!(["Primary-db"])), tasks);
    assert!(said.starts_with("[0].tags[0]: \"Primary-db\" is reserved: write primary-"), "{said}");
    for word in ["self", "master", "*", "primary-db", "selfish", "/SELF/"] {
        assert_eq!(says(&task("cross_depends", &entries("role", &Value::from(word))), tasks), "taken", "{word}");
        assert_eq!(says(&task("roles", &serde_json::json!([word])), tasks), "taken", "{word}");
        assert_eq!(says(&task("tags", &serde_json::json!([word])), tasks), "taken", "{word}");
    }
    assert_eq!(says(&task("cross_depends", &entries("role", &Value::Null)), tasks), "taken");
    let stood = task("roles", &serde_json::json!(["SELF"]));
    let mut read: Vec<Task> = serde_json::from_str(&stood).unwrap();
    tasks(&mut read, &raw(&stood), &Anybody::default()).unwrap();
}

#[test]
fn y04_a_name_that_means_another_has_no_control_character() {
    let of = |body: Value| body.to_string();
    for odd in ["a\nb", "a\u{85}b", "a\u{2028}b", "a\0"] {
        let task = |field: &str, value: Value| of(serde_json::json!([{"id": "a", "type": "shell", field: value}]));
        let entry = |field: &str| serde_json::json!([{"name": "b"}, {"name": "c", field: [odd]}]);
        for (said, place) in [
            (says(&of(serde_json::json!({"w": odd})), primaries), "w"),
            (says(&of(serde_json::json!({"order": ["g", odd]})), rollout), "order[1]"),
            (says(&task("tags", odd.into()), tasks), "[0].tags[0]"),
            (says(&task("roles", serde_json::json!(["b", odd])), tasks), "[0].roles[1]"),
            (says(&task("requires", odd.into()), tasks), "[0].requires[0]"),
            (says(&task("cross_depends", entry("role")), tasks), "[0].cross_depends[1].role[0]"),
            (says(&task("cross_depended_by", entry("tags")), tasks), "[0].cross_depended_by[1].tags[0]"),
            (says(&task("on_unassign", odd.into()), tasks), "[0].on_unassign"),
        ] {
            let begins = format!("{place}: {odd:?} has a control character");
            assert!(said.starts_with(&begins), "{place}: {said}");
        }
        let mut stood: Vec<Task> = serde_json::from_str(&task("tags", serde_json::json!([odd]))).unwrap();
        let again = raw(&serde_json::to_string(&stood).unwrap());
        tasks(&mut stood, &again, &Anybody::default()).unwrap();
        let mut stood = Some(Rollout { order: vec![odd.to_owned()], ..Rollout::default() });
        let again = raw(&of(serde_json::json!({"order": [odd], "max_groups": 1})));
        rollout(&mut stood, &again, &Anybody::default()).unwrap();
    }
}

#[test]
fn y04_a_requirement_names_what_can_be_seen() {
    for key in ["property:\u{200b}", "fact:\u{ad}"] {
        let body = serde_json::json!({key: "1"}).to_string();
        let said = says(&body, requirements);
        assert!(said.contains("needs a name of 1 to 255 bytes"), "{key:?}: {said}");
        let mut stood: Requirements = serde_json::from_str(&body).unwrap();
        let again = serde_json::json!({key: "2"}).to_string();
        requirements(&mut stood, &raw(&again), &Anybody::default()).unwrap();
    }
    assert_eq!(says(r#"{"property:a": "1"}"#, requirements), "taken");
}

#[test]
fn y04_a_canary_of_an_older_program_is_written_again_and_no_other_is() {
    let mut stood = Some(Strategy { canary: Some(serde_json::json!({"a": 1})), ..Strategy::default() });
    let body = raw(r#"{"canary": {"a": 1}, "max_failures": 7}"#);
    strategy(&mut stood, &body, &Anybody::default()).unwrap();
    strategy(&mut stood, &raw(r#"{"canary": {"a": 2}}"#), &Anybody::default()).unwrap_err();
    assert!(says(r#"{"canary": -1}"#, strategy).starts_with("canary: -1 is neither a number of hosts nor a selector"));
}

#[test]
fn a_rule_that_does_not_compile_is_refused_with_its_place() {
    for (json, begins) in [
        (r#"{"patterns": ["a", "["]}"#, "patterns[1]: \"[\" is no regular expression of at most 256 bytes: "),
        (r#"{"annotations": ["("]}"#, "annotations[0]: \"(\" is no regular expression"),
        (r#"{"prefixes": [""]}"#, "prefixes[0]: \"\" must be a lower-case DNS name"),
        (r#"{"accept": ["kubernetes.io/x"]}"#, "accept: kubernetes.io/x is restricted, no host may set it"),
        (r#"{"patterns": ["a", "()"]}"#, "patterns[1]: \"()\" matches no key: "),
        (r#"{"patterns": ["(?:)|^$"]}"#, "patterns[0]: \"(?:)|^$\" matches no key: "),
        (r#"{"annotations": ["()*"]}"#, "annotations[0]: \"()*\" matches no key: "),
        (r#"{"patterns": [".*", "tier|zone", "(a)?b"]}"#, "taken"),
        (r#"{"patterns": ["a"]}"#, "taken"),
        ("null", "taken"),
    ] {
        let said = says(json, host_labels);
        assert!(said.starts_with(begins), "{json}: {said}");
    }
}

#[test]
fn no_tag_comes_to_be_that_stands_for_a_primary() {
    let reserved = "tag \"primary-x\" is reserved: 'primary-' stands for the primary holder of a tag; \
         set has_primary instead";
    assert_eq!(says(r#"{"primary-x": {}}"#, tags), format!("primary-x: {reserved}"));
    assert_eq!(says(r#"{"db": {"tags": ["x", "primary-x"]}}"#, roles), format!("db.tags[1]: {reserved}"));
    assert_eq!(says(r#"{"db": {"add_tags": ["primary-x"]}}"#, role_changes), format!("db.add_tags[0]: {reserved}"));
    // Fuel's old releases have such roles, and to take one away does no harm.
    assert_eq!(says(r#"{"primary-controller": {}}"#, roles), "taken");
    assert_eq!(says(r#"{"db": {"remove_tags": ["primary-x"]}}"#, role_changes), "taken");
}

/// A limit that is no number was taken and never compared.
#[test]
fn a_limit_of_a_role_is_a_whole_number_or_an_expression_of_fuels() {
    for (limits, said) in [
        (r#"{"min": 1, "max": null}"#, "taken"),
        (r#"{"max": "settings:storage.osds.value", "recommended": 3, "overrides": [{"max": 1}]}"#, "taken"),
        (r#"{"min": "lots"}"#, r#"db.limits.min: "lots" is no whole number"#),
        (r#"{"max": -1}"#, "db.limits.max: -1 is no whole number"),
        (r#"{"max": 1.5}"#, "db.limits.max: 1.5 is no whole number"),
        (
            r#"{"mim": 1}"#,
            "db.limits.mim: there is no such limit (did you mean \"min\"?): they are min, max, recommended, condition, overrides",
        ),
    ] {
        assert_eq!(says(&format!(r#"{{"db": {{"limits": {limits}}}}}"#), roles), said);
    }
}

#[test]
fn a_text_of_the_catalogue_that_its_schema_bounds_is_refused_when_it_is_longer() {
    let (fits, long) = ("n".repeat(80), "n".repeat(81));
    let ends = "is longer than 80 characters";
    let property = |name: &str| format!(r#"{{"a": {{"title": "A", "type": "string", "name": "{name}"}}}}"#);
    let object = |name: &str| format!(r#"[{{"name": "o", "properties": {}}}]"#, property(name));
    let association = |field: &str, text: &str| format!(r#"[{{"name": "Stemma::Label", "{field}": "{text}"}}]"#);
    assert_eq!(says(&property(&fits), properties), "taken");
    assert_eq!(says(&object(&fits), definitions), "taken");
    for (said, begins) in [
        (says(&property(&long), properties), "a.name: "),
        (says(&object(&long), definitions), "[0].properties.a.name: "),
        (says(&association("prefix", &long), associations), "[0].prefix: "),
        (says(&association("properties_target", &long), associations), "[0].properties_target: "),
    ] {
        assert!(said.starts_with(begins) && said.ends_with(ends), "{said}");
    }
    assert_eq!(says(&association("prefix", &fits), associations), "taken");
}

#[test]
fn a_trait_that_does_not_exist_is_refused_wherever_it_is_named() {
    let of_group = |json| says(json, requirements);
    let suppressed = |json| says(json, suppressed_traits);
    for (said, begins) in [
        (of_group(r#"{"trait:TYPO_TRAIT": "required"}"#), "requirement: "),
        (of_group(r#"{"trait:CUSTOM_A": "required", "trait:HW_CPU_X86_AVX2": "forbidden"}"#), "taken"),
        (suppressed(r#"["NOPE"]"#), "\"NOPE\" is no trait: "),
        (suppressed(r#"["HW_CPU_X86_AVX2"]"#), "taken"),
    ] {
        assert!(said.starts_with(begins), "{said}");
    }
}

/// The rules are those of the names: of a node `NAME` or a uuid, of a group `NAME`.
#[test]
fn y04_what_means_a_node_or_a_group_is_a_name_that_one_can_have() {
    for odd in ["a b", "*", "a/b", "/a/", ".", "ä", "a,b"] {
        let primary = says(&serde_json::json!({"w": odd}).to_string(), primaries);
        assert!(primary.starts_with("w: no node is called so: "), "{odd}: {primary}");
        let group = says(&serde_json::json!({"order": ["g", odd]}).to_string(), rollout);
        assert!(group.starts_with("order[1]: no group is called so: "), "{odd}: {group}");
        let mut stood: BTreeMap<TagName, String> = [(TagName::new("w").unwrap(), odd.to_owned())].into();
        primaries(&mut stood, &raw(&serde_json::json!({"w": odd, "x": "a"}).to_string()), &Anybody::default()).unwrap();
        let mut stood = Some(Rollout { order: vec![odd.to_owned()], ..Rollout::default() });
        let again = raw(&serde_json::json!({"order": ["g", odd]}).to_string());
        rollout(&mut stood, &again, &Anybody::default()).unwrap();
    }
    let path = says(r#"{"w": "detail"}"#, primaries);
    assert!(path.starts_with("w: no node is called so: ") && path.contains("is a path below /v1/nodes/"), "{path}");
    for taken in ["db-1", "db_1.example.net", "-x", "0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6"] {
        assert_eq!(says(&serde_json::json!({"w": taken}).to_string(), primaries), "taken", "{taken}");
    }
    assert_eq!(says(r#"{"order": ["default-master", "g.1"]}"#, rollout), "taken");
}

/// Fuel's own releases have numbers from 0 and percentages.
#[test]
fn y05_how_many_nodes_of_a_role_may_fail_is_a_number_or_a_percentage() {
    let role = |value: &Value| serde_json::json!({"web": {"fault_tolerance": value}}).to_string();
    for taken in ["0", "1", "4294967295", "\"0%\"", "\"2%\"", "\"100%\"", "null"] {
        assert_eq!(says(&role(&serde_json::from_str(taken).unwrap()), roles), "taken", "{taken}");
    }
    for odd in [
        "\"x\"",
        "\"-1\"",
        "\"101%\"",
        "\"\"",
        "{}",
        "[]",
        "true",
        "-1",
        "1.5",
        "4294967296",
        "\"5\"",
        "\"05%\"",
        "\" 5%\"",
    ] {
        let body = role(&serde_json::from_str(odd).unwrap());
        let said = says(&body, roles);
        assert!(
            said.starts_with("web.fault_tolerance: ") && said.contains("write one as 1 or \"10%\""),
            "{odd}: {said}"
        );
        let mut stood: BTreeMap<Name, RoleSpec> = serde_json::from_str(&body).unwrap();
        roles(&mut stood, &raw(&body), &Anybody::default()).unwrap();
    }
}

/// They were refused where free JSON takes them: a whole number is one however it is written (`docs/api.md`).
#[test]
fn y04_a_whole_number_of_a_role_is_one_however_it_is_written() {
    for (number, stored) in [("1e0", "1"), ("1.0", "1"), ("2e1", "20"), ("-0", "0"), ("-0.0", "0")] {
        let body = format!(
            r#"{{"web": {{"fault_tolerance": {number}, "limits": {{"min": {number}, "overrides": [{{"max": {number}}}]}}}}}}"#
        );
        let mut role = BTreeMap::new();
        roles(&mut role, &raw(&body), &Anybody::default()).unwrap();
        let expected = body.replace(number, stored);
        assert_eq!(role, serde_json::from_str::<BTreeMap<Name, RoleSpec>>(&expected).unwrap(), "{number}");
    }
    for odd in ["-1.0", "1.5", "-1e0", "4294967296.0"] {
        let body = format!(r#"{{"web": {{"fault_tolerance": {odd}}}}}"#);
        let said = says(&body, roles);
        assert!(said.starts_with("web.fault_tolerance: "), "{odd}: {said}");
        let mut stood: BTreeMap<Name, RoleSpec> = serde_json::from_str(&body).unwrap();
        roles(&mut stood, &raw(&body), &Anybody::default()).unwrap();
    }
}

/// The refusal said that a path names an object by its name or its uuid, which an order does not.
#[test]
fn y05_a_group_stands_in_an_order_by_its_name_alone() {
    for uuid in ["0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6", "0d8e1f4a5b6c4d7e8f90a1b2c3d4e5f6"] {
        let said = says(&serde_json::json!({"order": ["g", uuid]}).to_string(), rollout);
        assert_eq!(
            said,
            format!(
                "order[1]: no group is called so: \"{uuid}\" looks like a uuid, and a group stands here by its name alone: write that"
            )
        );
    }
}

/// Glance takes a longer one within the body of a namespace, and its database none. `POST` and `PUT` of a property refuse it, as Glance's do.
#[test]
fn y05_a_property_has_no_longer_name_than_the_call_of_one_takes() {
    let (fits, long) = ("ä".repeat(80), "ä".repeat(81));
    let map = |name: &str| serde_json::json!({name: {"title": "A", "type": "string"}});
    let object = |name: &str| serde_json::json!([{"name": "o", "properties": map(name)}]).to_string();
    let list = |name: &str| serde_json::json!([{"name": name}]).to_string();
    for (name, ends) in [(&fits, "taken"), (&long, "is longer than 80 characters")] {
        for (said, place) in [
            (says(&map(name).to_string(), properties), "\""),
            (says(&object(name), definitions), "[0].properties: "),
            (says(&list(name), definitions), "[0].name: "),
            (says(&list(name), members::<NamespaceTag>), "[0].name: "),
            (says(&list(name), associations), "[0].name: "),
            (check_member_name(name).map_or_else(|error| error.to_string(), |()| "taken".to_owned()), "\""),
        ] {
            assert!(said.ends_with(ends) && (ends == "taken" || said.starts_with(place)), "{said}");
        }
    }
    // One that an older program took is written again, and its property may become another.
    let changed = serde_json::json!({&long: {"title": "B", "type": "string"}});
    let mut stood: Properties = serde_json::from_value(map(&long)).unwrap();
    properties(&mut stood, &raw(&changed.to_string()), &Anybody::default()).unwrap();
    assert_eq!(stood[&long].title, "B");
    let longer = "ö".repeat(81);
    properties(&mut stood, &raw(&map(&longer).to_string()), &Anybody::default()).unwrap_err();
    let mut stood: Vec<Definition> = serde_json::from_str(&object(&long)).unwrap();
    definitions(&mut stood, &raw(&object(&long)), &Anybody::default()).unwrap();
    let mut stood = vec![NamespaceTag { name: long.clone() }];
    members(&mut stood, &raw(&list(&long)), &Anybody::default()).unwrap();
}

#[test]
fn y05_a_property_is_stored_by_its_name_and_not_with_it_too() {
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
    for (stood, sent, stored) in [
        (&Properties::new(), of("A", Some("p")), &plain),
        (&plain, of("A", Some("p")), &plain),
        (&plain, of("A", None), &plain),
        // What an older program stored stays as it is where nothing else is changed.
        (&named, of("A", Some("p")), &named),
        (&named, of("A", None), &named),
        (&plain, of("A", Some("q")), &other),
        (&named, of("A", Some("q")), &other),
    ] {
        let mut written = stood.clone();
        properties(&mut written, &raw(&sent.to_string()), &Anybody::default()).unwrap();
        assert_eq!(written, *stored, "{stood:?} {sent}");
    }
    let mut written = named;
    properties(&mut written, &raw(&of("B", Some("p")).to_string()), &Anybody::default()).unwrap();
    assert_eq!((written["p"].title.as_str(), &written["p"].name), ("B", &None));
}

/// The labels of a level are read by the same keys and values.
#[test]
fn y05_a_label_of_an_object_itself_is_one_that_a_level_may_have() {
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
        let said = says(&of(key, value), labels);
        assert!(said.starts_with(begins), "{key:?} {value:?}: {said}");
    }
    assert_eq!(
        labels(&mut BTreeMap::new(), &raw(&of("k", "\t")), &Anybody::default()).unwrap_err().kind,
        BodyErrorKind::Label
    );
    // What an older program took is written again, and gets no other such value.
    let stood = BTreeMap::from([("a b".to_owned(), "x\ny".to_owned())]);
    for (value, is_taken) in [("x\ny", true), ("x", true), ("x\nz", false)] {
        let written = labels(&mut stood.clone(), &raw(&of("a b", value)), &Anybody::default());
        assert_eq!(written.is_ok(), is_taken, "{value:?}");
    }
}
