//! Releases that are rejected, with the messages, and releases that are accepted with a finding.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stemma_author::SyntaxReader;
use stemma_core::manifest::{assemble, read_document};
use stemma_core::name::ReleaseRef;
use stemma_core::object::ReleaseSpec;
use stemma_core::ownership::Manager;
use stemma_core::release::{check_changed_tasks, compile, compile_each, compile_set};

/// Returns a release with these tasks, role `web` and tag `nginx`, which the role gives a node and which has a primary.
fn release_spec(tasks: &Value) -> ReleaseSpec {
    let document = json!({
        "kind": "Release", "name": "site", "version": "1",
        "roles": {"web": {"tags": ["nginx"]}}, "tags": {"nginx": {"has_primary": true}},
        "tasks": tasks,
    });
    read_release(&document)
}

fn read_release(document: &Value) -> ReleaseSpec {
    let document = read_document(&document.to_string()).expect("a release of the test");
    let mut objects = assemble(&[document], &Manager::new("test").expect("a manager")).expect("one object");
    objects.releases.remove(0).spec
}

fn release_ref(text: &str) -> ReleaseRef {
    text.parse().expect("a release's name")
}

/// Returns a task for nodes with tag `nginx`, with these fields added or replaced.
fn task_manifest(id: &str, fields: &Value) -> Value {
    let mut task = json!({"id": id, "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"]});
    task.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    task
}

#[test]
fn compile_rejects_invalid_release_with_place_of_error() {
    for (tasks, expected) in [
        (
            json!([task_manifest("a", &json!({"requires": ["ghost"]}))]),
            "task a requires[0]: no task \"ghost\"; write the id of a task of this release or its imports",
        ),
        (
            json!([task_manifest("nginx-conf", &json!({})), task_manifest("b", &json!({"required_for": ["nginx_conf"]}))]),
            "task b required_for[0]: no task \"nginx_conf\" (did you mean \"nginx-conf\"?); write the id of a task of \
             this release or its imports",
        ),
        (
            json!([task_manifest("a", &json!({"cross_depends": [{"name": "ghost", "role": "*"}]}))]),
            "task a cross_depends[0].name: no task \"ghost\"; write the id of a task of this release or its imports",
        ),
        (
            json!([{"id": "g", "type": "group", "roles": ["web"], "tasks": ["h"]}, {"id": "h", "type": "group", "tasks": []}]),
            "task g tasks[0]: \"h\" is a group; a group lists tasks, not groups",
        ),
        (
            json!([task_manifest("a", &json!({"requires": ["a"]}))]),
            "tasks wait for each other: a -> a; remove one of these dependencies",
        ),
        (
            json!([
                task_manifest("a", &json!({"required_for": ["b"]})),
                task_manifest("b", &json!({"required_for": ["c"]})),
                task_manifest("c", &json!({"required_for": ["a"]})),
            ]),
            "tasks wait for each other: a -> b -> c -> a; remove one of these dependencies",
        ),
        (
            json!([task_manifest("a", &json!({"tags": ["/(/"]}))]),
            "task a tags: pattern /(/ is not a regular expression: found open group without closing ')'",
        ),
        (
            json!([task_manifest("a", &json!({})), task_manifest("a", &json!({}))]),
            "task \"a\" is defined twice, in site@1 and in site@1; rename one",
        ),
    ] {
        let errors = compile(&release_ref("site@1"), &release_spec(&tasks), &|_| None, &SyntaxReader).expect_err("a refusal");
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
    }
}

#[test]
fn compile_rejects_computed_label_key_with_position_in_template() {
    let file_task = |template: &str| json!([{"id": "a", "type": "file", "tags": ["nginx"], "parameters": {"path": "/a", "template": template}}]);
    let errors_of = |template| {
        compile(&release_ref("site@1"), &release_spec(&file_task(template)), &|_| None, &SyntaxReader).expect_err("a refusal")
    };
    let errors = errors_of("one\n{{ labels[node.name] }}");
    assert!(errors[0].to_string().starts_with("task a parameters.template: line 2, column "), "{}", errors[0]);
    assert_eq!(errors[0].field().as_deref(), Some("task a parameters.template"));
}

/// The filter `format` uses its input as the pattern. A label or parameter as the pattern is an error, except in a task
/// that is unchanged in a stored release. Regression: such a task was accepted.
#[test]
fn y03_new_release_rejects_value_used_as_pattern() {
    let release = |template: &str, script: &str| {
        release_spec(&json!([
            {"id": "a", "type": "file", "tags": ["nginx"], "parameters": {"path": "/a", "template": template}},
            {"id": "b", "type": "shell", "tags": ["nginx"], "parameters": {"script": script}},
        ]))
    };
    let error_texts = |spec: &ReleaseSpec, stored_spec: Option<&ReleaseSpec>| -> Vec<String> {
        check_changed_tasks(spec, stored_spec, &SyntaxReader).iter().map(ToString::to_string).collect()
    };
    let bad_release = release("one\n{{ labels.pct|format('X') }}", "run {{ params.p|format(1) }}");
    let errors = error_texts(&bad_release, None);
    assert_eq!(errors.len(), 2, "{errors:?}");
    for (error, place) in
        errors.iter().zip(["task a parameters.template: line 2, column 4: ", "task b parameters.script: line 1, column 8: "])
    {
        assert!(error.starts_with(place) && error.contains("as its pattern"), "{error}");
    }
    assert_eq!(error_texts(&bad_release, Some(&bad_release)), [""; 0]);
    assert!(compile(&release_ref("site@1"), &bad_release, &|_| None, &SyntaxReader).is_ok());
    assert_eq!(error_texts(&release("{{ '%s'|format(labels.pct) }}", "run {{ '%03d'|format(params.p) }}"), None), [""; 0]);
}

#[test]
fn compile_reports_all_errors_together() {
    let tasks = json!([task_manifest("a", &json!({"requires": ["x"], "subscribes": ["y"], "on_unassign": "z"}))]);
    let errors = compile(&release_ref("site@1"), &release_spec(&tasks), &|_| None, &SyntaxReader).expect_err("refusals");
    let fields: Vec<_> = errors.iter().filter_map(stemma_core::release::ReleaseError::field).collect();
    assert_eq!(fields, ["task a on_unassign", "task a subscribes[0]", "task a requires[0]"]);
}

/// Task a requires b, and b subscribes to a. So the two tasks wait for each other.
#[test]
fn w02_subscribes_orders_tasks_like_requires() {
    let tasks = json!([task_manifest("a", &json!({"requires": ["b"]})), task_manifest("b", &json!({"subscribes": ["a"]}))]);
    let errors = compile(&release_ref("site@1"), &release_spec(&tasks), &|_| None, &SyntaxReader).expect_err("a circle");
    // The path ends with its first task, so the path of two tasks has three entries.
    assert!(matches!(&errors[0], stemma_core::release::ReleaseError::Cycle { path } if path.len() == 3), "{errors:?}");
}

/// The tasks name tags, roles and tasks that do not exist. Type `teapot` is unknown.
#[test]
fn compile_reports_suspicious_tasks_as_findings() {
    let tasks = json!([
        task_manifest("a", &json!({"requires": ["/nothing/"], "tags": ["redis"]})),
        task_manifest("b", &json!({"type": "teapot", "roles": ["db"], "tags": []})),
        task_manifest("c", &json!({"cross_depends": [{"name": "a", "role": ["ghost"]}]})),
    ]);
    let release = compile(&release_ref("site@1"), &release_spec(&tasks), &|_| None, &SyntaxReader).expect("a valid release");
    let codes_and_objects: Vec<_> =
        release.findings.iter().map(|finding| (finding.code.as_str(), finding.object.as_str())).collect();
    assert_eq!(
        codes_and_objects,
        [
            ("selector.tag", "release/site@1 task a tags"),
            ("task.pattern", "release/site@1 task a requires[0]"),
            ("task.type", "release/site@1 task b"),
            ("selector.role", "release/site@1 task b roles"),
            ("selector.role", "release/site@1 task c cross_depends[0]"),
        ]
    );
}

/// Look-ups reject the reserved words and the patterns that the fields `roles` and `tags` of a task reject. Templates
/// and conditions also reject a key that no label, parameter or property can have, such as one that is a space.
/// Regression: look-ups accepted such names. A task that is unchanged in a stored release is not checked.
#[test]
fn y04_lookup_follows_name_rules_of_roles_and_tags() {
    let file = |template: &str| json!([{"id": "a", "type": "file", "tags": ["nginx"], "parameters": {"path": "/a", "template": template}}]);
    let conditional = |condition: &str| json!([task_manifest("a", &json!({"condition": condition}))]);
    let error_texts = |tasks: &Value, stored_spec: Option<&ReleaseSpec>| -> Vec<String> {
        check_changed_tasks(&release_spec(tasks), stored_spec, &SyntaxReader).iter().map(ToString::to_string).collect()
    };
    let reserved = |name: &str, kind: &str| format!("{name:?} is reserved; no {kind} can have this name: write an existing one");
    let primary = "\"Primary-w\" is reserved; write primary-, in small letters, for the primary holder of a tag".to_owned();
    let matches_all = |pattern: &str, kind: &str| {
        format!(
            "{pattern:?} matches the empty text, and so may mean every name; correct the pattern, or write '/.+/' for every {kind}"
        )
    };
    let invalid_conditions = [
        ("size(nodes(tag='Self')) > 0", "`nodes(tag='Self'", reserved("Self", "tag")),
        ("size(nodes(role='SELF')) > 0", "`nodes(role='SELF'", reserved("SELF", "role")),
        ("size(nodes(role='null')) > 0", "`nodes(role='null'", reserved("null", "role")),
        ("size(nodes(tag='a', or_role=['b', 'Master'])) > 0", "`nodes(tag='a'", reserved("Master", "role")),
        ("size(nodes(tag=['a', 'Primary-w'])) > 0", "`nodes(tag=", primary.clone()),
        ("'Primary-w' in tags", "`'Primary-w'", primary),
        ("'Self' in tags", "`'Self'", reserved("Self", "tag")),
        ("has(primary('Self').name)", "`primary('Self'", reserved("Self", "tag")),
        ("size(nodes(tag='//')) > 0", "`nodes(tag='//'", matches_all("//", "tag")),
        ("size(nodes(tag='/.*/')) > 0", "`nodes(tag='/.*/'", matches_all("/.*/", "tag")),
        ("size(nodes(role='/()/')) > 0", "`nodes(role='/()/'", matches_all("/()/", "role")),
        ("size(nodes(tag='/(?:a{1000}){60}/')) > 0", "`nodes(", "is not a regular expression".to_owned()),
        ("size(nodes(tag='/a\\u2028b/')) > 0", "`nodes(", "has a control character, which no name has".to_owned()),
        ("params['x'][' '] == 1", "`params", "the key is empty; write a valid name".to_owned()),
        ("params[' '] == 1", "`params", "key \" \" needs a name of 1 to 63 letters".to_owned()),
        ("node.properties[' '] == 'x'", "`node", "the key is empty".to_owned()),
        ("size(labels_with_prefix(' ')) > 0", "`labels_with_prefix", "the key is empty".to_owned()),
        ("nodes(tag='a').exists(n, n.labels[' '] == 'x')", "`n.labels", "key \" \" needs a name of 1 to 63 letters".to_owned()),
    ];
    for (condition, quoted, reason) in invalid_conditions {
        let tasks = conditional(condition);
        let errors = error_texts(&tasks, None);
        let expected_start = "task a condition: line 1, column ";
        let is_reported = matches!(errors.as_slice(), [error] if error.starts_with(expected_start) && error.contains(quoted) && error.contains(&reason));
        assert!(is_reported, "{condition}: {reason}: {errors:?}");
        // A task that is unchanged in a stored release is not checked again, and the release still compiles.
        assert_eq!(error_texts(&tasks, Some(&release_spec(&tasks))), [""; 0], "{condition}");
        assert!(compile(&release_ref("site@1"), &release_spec(&tasks), &|_| None, &SyntaxReader).is_ok(), "{condition}");
    }
    for (template, place, reason) in [
        ("one\n{{ nodes(tag='Self')|length }}", "line 2, column 4: `nodes(", reserved("Self", "tag")),
        ("{{ primary('Self') is defined }}", "line 1, column 4: `primary(", reserved("Self", "tag")),
        ("{{ nodes(role='/.*/')|length }}", "line 1, column 4: `nodes(", matches_all("/.*/", "role")),
        ("{{ params[' ']|default('') }}", "line 1, column 4: `params", "key \" \" needs a name".to_owned()),
        (
            "{% for n in nodes(tag='a') %}{{ n.labels[' '] }}{% endfor %}",
            "line 1, column 33: ",
            "key \" \" needs a name".to_owned(),
        ),
    ] {
        let tasks = file(template);
        let errors = error_texts(&tasks, None);
        let expected_start = format!("task a parameters.template: {place}");
        let is_reported = matches!(errors.as_slice(), [error] if error.starts_with(&expected_start) && error.contains(&reason));
        assert!(is_reported, "{template}: {errors:?}");
        assert_eq!(error_texts(&tasks, Some(&release_spec(&tasks))), [""; 0], "{template}");
    }
    for valid_condition in [
        "size(nodes(tag=['nginx', 'primary-nginx', '/ng.+/'])) > 0",
        "size(nodes(role=['web', 'Primary-web', 'self', 'selfish'])) > 0",
        "'primary-nginx' in tags && params.x['a b'] == 1",
        "size(labels_with_prefix('example.org/')) > 0",
    ] {
        assert_eq!(error_texts(&conditional(valid_condition), None), [""; 0], "{valid_condition}");
    }
}

/// A reserved word such as `self` is not the name of a role or tag. Regression: the finding claimed that a cluster may
/// add a role of this name.
#[test]
fn y04_stored_lookup_with_reserved_word_has_accurate_finding() {
    let tasks = json!([task_manifest(
        "a",
        &json!({
            "condition": "size(nodes(role=['SELF', 'ghost'])) > 0 && size(nodes(tag=['Self', 'primary-ghost'])) > 0",
        })
    )]);
    let release = compile(&release_ref("site@1"), &release_spec(&tasks), &|_| None, &SyntaxReader).expect("a valid release");
    let selector_findings = release.findings.iter().filter(|finding| finding.code.starts_with("selector."));
    assert_eq!(
        selector_findings.map(|finding| finding.message.as_str()).collect::<Vec<_>>(),
        [
            "it looks up nodes: tag \"Self\" is reserved: it has a meaning in selectors; nothing can have this name, so nothing matches it",
            "it looks up nodes: no tag \"primary-ghost\" is declared or produced here: only a user-defined one can match",
            "it looks up nodes: role \"SELF\" is reserved: it has a meaning in selectors; nothing can have this name, so nothing matches it",
            "it looks up nodes: no role \"ghost\" is declared here: only one that a cluster adds can match",
        ]
    );
}

/// Regression: for a name that no tag can have, the finding claimed that a user-defined tag can match. It also did not
/// quote the name.
#[test]
fn y04_unmatchable_selector_is_finding() {
    let tasks = json!([
        task_manifest("a", &json!({"tags": ["nginx "]})),
        task_manifest("b", &json!({"tags": ["n x"]})),
        task_manifest("c", &json!({"tags": ["nginx\u{200b}"]})),
        task_manifest("d", &json!({"tags": ["NGINX", "redis", "tier:gold"]})),
        json!({"id": "e", "type": "shell", "parameters": {"script": "true"}, "roles": ["web ", "Web", "db"]}),
        task_manifest("f", &json!({"cross_depends": [{"name": "a", "role": ["we b"]}, {"name": "a", "tags": ["nginx "]}]})),
    ]);
    let release = compile(&release_ref("site@1"), &release_spec(&tasks), &|_| None, &SyntaxReader).expect("a valid release");
    let invalid_tag = "is not well formed: a name, and if it has a value a colon and up to 63 letters, digits, '_', '.' or '-'";
    let invalid_role = "is not well formed: a letter or digit, then up to 62 letters, digits, '_', '.' or '-'";
    let no_match = "nothing can have this name, so nothing matches it";
    let expected = [
        ("task a tags", format!("tag \"nginx \" {invalid_tag}; {no_match} (did you mean \"nginx\"?)")),
        ("task b tags", format!("tag \"n x\" {invalid_tag}; {no_match}")),
        ("task c tags", format!("tag \"nginx\\u{{200b}}\" {invalid_tag}; {no_match} (did you mean \"nginx\"?)")),
        (
            "task d tags",
            "no tag \"NGINX\" is declared or produced here (did you mean \"nginx\"?): only a user-defined one can match"
                .to_owned(),
        ),
        ("task d tags", "no tag \"redis\" is declared or produced here: only a user-defined one can match".to_owned()),
        ("task d tags", "no tag \"tier:gold\" is declared or produced here: only a user-defined one can match".to_owned()),
        ("task e roles", format!("role \"web \" {invalid_role}; {no_match} (did you mean \"web\"?)")),
        (
            "task e roles",
            "no role \"Web\" is declared here (did you mean \"web\"?): only one that a cluster adds can match".to_owned(),
        ),
        ("task e roles", "no role \"db\" is declared here: only one that a cluster adds can match".to_owned()),
        ("task f cross_depends[0]", format!("role \"we b\" {invalid_role}; {no_match} (did you mean \"web\"?)")),
        ("task f cross_depends[1]", format!("tag \"nginx \" {invalid_tag}; {no_match} (did you mean \"nginx\"?)")),
    ];
    let objects_and_messages: Vec<(&str, &str)> = release
        .findings
        .iter()
        .filter(|finding| finding.code.starts_with("selector."))
        .map(|finding| (finding.object.trim_start_matches("release/site@1 "), finding.message.as_str()))
        .collect();
    assert_eq!(objects_and_messages, expected.each_ref().map(|(object, message)| (*object, message.as_str())));
}

/// A node may lack the tasks that a pattern matches, so a cycle through patterns is found only when tasks are placed.
#[test]
fn compile_accepts_cycle_through_patterns() {
    let tasks = json!([task_manifest("a", &json!({"requires": ["/b/"]})), task_manifest("b", &json!({"requires": ["/a/"]}))]);
    assert!(compile(&release_ref("site@1"), &release_spec(&tasks), &|_| None, &SyntaxReader).is_ok());
}

/// Returns the name and the spec of version 1 of a release with these imports and tasks.
fn library_release(name: &str, imports: &Value, tasks: &Value) -> (ReleaseRef, ReleaseSpec) {
    let document = json!({"kind": "Release", "name": name, "version": "1", "imports": imports, "tasks": tasks});
    (format!("{name}@1").parse().expect("a name"), read_release(&document))
}

/// `left` and `right` both import `base`, and `top` imports `left` and `right`.
#[test]
fn task_appears_once_when_imported_twice() {
    let base = library_release("base", &json!([]), &json!([task_manifest("motd", &json!({}))]));
    let left_release = library_release("left", &json!(["base@1"]), &json!([]));
    let right_release = library_release("right", &json!(["base@1"]), &json!([]));
    let top_release =
        library_release("top", &json!(["left@1", "right@1"]), &json!([task_manifest("own", &json!({"requires": ["motd"]}))]));
    let compiled =
        compile_set(&BTreeMap::from([base, left_release, right_release, top_release]), &SyntaxReader).expect("they compile");
    let top_release = &compiled[&release_ref("top@1")];
    assert_eq!(top_release.tasks.iter().map(|task| task.task.id.as_str()).collect::<Vec<_>>(), ["motd", "own"]);
    assert_ne!(top_release.hash, compiled[&release_ref("left@1")].hash);
}

#[test]
fn compile_each_fails_only_invalid_release_and_importers() {
    let set = [
        library_release("bad", &json!([]), &json!([task_manifest("x", &json!({"requires": ["ghost"]}))])),
        library_release("over", &json!(["bad@1"]), &json!([])),
        library_release("good", &json!([]), &json!([task_manifest("y", &json!({}))])),
    ];
    let (compiled, failed) = compile_each(&BTreeMap::from(set), &SyntaxReader);
    assert_eq!(compiled.keys().collect::<Vec<_>>(), [&release_ref("good@1")]);
    assert_eq!(failed.keys().collect::<Vec<_>>(), [&release_ref("bad@1"), &release_ref("over@1")]);
}

#[test]
fn compile_set_rejects_invalid_imports() {
    let import_cycle = [library_release("a", &json!(["b@1"]), &json!([])), library_release("b", &json!(["a@1"]), &json!([]))];
    let errors = compile_set(&BTreeMap::from(import_cycle), &SyntaxReader).expect_err("a circle");
    assert_eq!(errors[&release_ref("a@1")][0].to_string(), "imports form a cycle: a@1 -> b@1 -> a@1");

    let missing_import = [library_release("a", &json!(["ghost@1"]), &json!([]))];
    let errors = compile_set(&BTreeMap::from(missing_import), &SyntaxReader).expect_err("nothing to import");
    assert_eq!(
        errors[&release_ref("a@1")][0].to_string(),
        "imports ghost@1, which is not stored; store it first, or correct the name"
    );

    let duplicate_task = [
        library_release("a", &json!([]), &json!([task_manifest("x", &json!({}))])),
        library_release("b", &json!(["a@1"]), &json!([task_manifest("x", &json!({}))])),
    ];
    let errors = compile_set(&BTreeMap::from(duplicate_task), &SyntaxReader).expect_err("one id twice");
    assert_eq!(errors[&release_ref("b@1")][0].to_string(), "task \"x\" is defined twice, in a@1 and in b@1; rename one");
}

/// A task can wait for a stage that waits for the task. The compiled release ignores that dependency of the stage, so
/// that hosts with a stored release do not wait for themselves. A finding reports the stage.
#[test]
fn y06_stage_dependency_has_finding_when_cyclic() {
    for (stage_fields, task_fields, has_finding) in [
        (json!({"requires": ["a"]}), json!({"requires": ["st"]}), true),
        (json!({"requires": ["/a/"]}), json!({"requires": ["st"]}), true),
        (json!({"required_for": ["a"]}), json!({"required_for": ["st"]}), true),
        (json!({"requires": ["a"]}), json!({"cross_depends": [{"name": "st", "role": null}]}), true),
        (json!({"required_for": ["a"]}), json!({"cross_depended_by": [{"name": "st", "role": null}]}), true),
        (json!({"requires": ["a"]}), json!({}), false),
        (json!({"required_for": ["a"]}), json!({"requires": ["st"]}), false),
    ] {
        let mut stage_task = json!({"id": "st", "type": "stage"});
        stage_task.as_object_mut().expect("an object").extend(stage_fields.as_object().expect("an object").clone());
        let tasks = json!([stage_task, task_manifest("a", &task_fields)]);
        let compiled = compile(&release_ref("site@1"), &release_spec(&tasks), &|_| None, &SyntaxReader).expect("it compiles");
        let objects: Vec<&str> = compiled
            .findings
            .iter()
            .filter(|finding| finding.code == "stage.circle")
            .map(|finding| finding.object.as_str())
            .collect();
        let expected: &[&str] = if has_finding { &["release/site@1 task st"] } else { &[] };
        assert_eq!(objects, expected, "{tasks}");
    }
}
