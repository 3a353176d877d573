//! Findings of a fleet: fields that nothing uses yet, unmet requirements, and reported data that is not accepted.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::finding::{Finding, Severity};
use stemma_core::fleet::FleetChange;
use stemma_core::host_labels::HostLabels;
use stemma_core::lifecycle::Lifecycle;
use stemma_core::object::{ClusterSpec, DroppedInput, NodeGroupSpec, Observation, RefusedTraits, RoleSpec, TagSpec};
use stemma_core::resolve::{resolve_fleet, resolve_node};
use stemma_core::task::{TASK_TYPES, Task};
use stemma_core::unimplemented::UnimplementedFields;

use crate::fleet_fixture::{FleetFixture, default_matching_site, site_manifests, task_manifests};

/// In the list of manifests, from 0, document 4 is the group `webs` and document 7 is its node web-1.
#[test]
fn y09_unmet_requirement_finding_shows_actual_value() {
    let mut documents = default_matching_site(&json!([]));
    documents[4]["requirements"] = json!({"property:memory_mb": ">= 1024", "trait:HW_CPU_X86_AVX2": "forbidden"});
    let fixture = FleetFixture::from_manifests(&documents);
    let unmet: Vec<_> = fixture.resolved_node("web-1").unmet_requirements().iter().map(ToString::to_string).collect();
    assert_eq!(unmet, ["requirement property:memory_mb >= 1024 is not met"]);
    // The reason why a node cannot be used is the message of the finding, with the node's value.
    let resolution = resolve_node(&fixture.fleet, &fixture.cache, fixture.node("web-1").id());
    let findings = resolution.findings(fixture.node("web-1"));
    let unmet_finding = findings.iter().find(|finding| finding.code == "requirement.unmet").expect("it is not met");
    assert_eq!(unmet_finding.message, "requirement property:memory_mb >= 1024 is not met: the node has none");
    assert_eq!(resolution.unusable_reason().as_deref(), Some(&*unmet_finding.message));
    documents[7]["properties"] = json!({"memory_mb": 2048});
    assert!(FleetFixture::from_manifests(&documents).resolved_node("web-1").unmet_requirements().is_empty());
}

/// In this test, the controller refused four reported traits of web-1: three unknown ones, of which it recorded one
/// name, and one above the maximum number.
#[test]
fn s38_rejected_traits_are_finding_of_node() {
    let mut fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &task_manifests()));
    let id = fixture.node("web-1").id();
    let refused = RefusedTraits { unknown: [Box::from("'NO_SUCH'")].into(), unknown_count: 3, surplus: 1 };
    let dropped = DroppedInput { traits: refused, ..DroppedInput::default() };
    let observation = Observation { not_taken: dropped.into_option_box(), ..Observation::default() };
    fixture.fleet.apply(FleetChange::Observation(id, Arc::new(observation)));
    assert_eq!(
        fixture.resolved_node("web-1").findings().iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "warning trait.refused node/web-1: its host reports traits that are refused: 'NO_SUCH' and 2 more (a standard name, or \
          CUSTOM_ and then capitals, digits and '_', at most 255 characters); 1 beyond the 50 that one source may give"
        ]
    );
    assert_eq!(fixture.resolved_node("web-1").traits().names().len(), 0);
}

/// In this test, the controller dropped two facts and one label from the report of web-1, which was too large.
#[test]
fn s39_oversized_report_is_finding_of_node() {
    let mut fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &task_manifests()));
    let id = fixture.node("web-1").id();
    let dropped = DroppedInput { facts: 2, labels: 1, ..DroppedInput::default() };
    let observation = Observation { not_taken: dropped.into_option_box(), ..Observation::default() };
    fixture.fleet.apply(FleetChange::Observation(id, Arc::new(observation)));
    assert_eq!(
        fixture.resolved_node("web-1").findings().iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "warning report.left_out node/web-1: its host reports more than is accepted; dropped: 2 facts (a path has at most 16 names \
          and 255 bytes, a value 16384 bytes, all together 262144); 1 labels (at most 256 are accepted; a value has at most 4096 \
          bytes, all together 65536)"
        ]
    );
}

/// A field that nothing uses yet has a finding of severity info wherever the field is set.
#[test]
fn w02_every_unimplemented_field_is_finding() {
    let shell = |more: Value| {
        let mut task = json!({"id": "conf", "type": "shell", "tags": ["nginx"], "parameters": {"script": "true"}});
        task.as_object_mut().expect("a task").extend(more.as_object().expect("fields").clone());
        task
    };
    let idle = json!({"id": "conf", "on_unassign": "undo", "disruptive": true, "max_nodes": 1, "privileged": true,
        "timeout_seconds": 9, "on_interrupt": "again", "tasks": ["undo"]});
    let file = json!({"id": "file", "type": "file", "tags": ["nginx"], "timeout_seconds": 9, "on_interrupt": "again",
        "parameters": {"path": "/f", "content": "", "timeout": 5}});
    let tasks = json!([shell(idle), shell(json!({"id": "undo", "phase": "cleanup"})), file,
        {"id": "all", "type": "group", "tags": ["nginx"], "tasks": ["undo"], "requires": ["conf"]},
        {"id": "point", "type": "stage", "required_for": ["conf"], "condition": "true"},
        {"id": "void", "type": "skipped", "tags": ["nginx"], "requires": ["conf"], "retries": 1, "sensitive": true, "mode": "noop",
            "fail_on_error": false, "on_drift": "report", "subscribes": ["conf"], "parameters": {"foo": "bar"}}]);
    let mut documents = site_manifests(&json!({}), &tasks);
    let given = [
        json!({"node_deletion_timeout": 5, "host_labels": {"annotations": ["a/.*"]}}),
        json!({}),
        json!({"rollout": {"max_groups": 1}, "min_ready_seconds": 5, "host_labels": {"annotations": ["a/.*"]},
            "tags": {"extra": {"ready": [{"tcp": 80}]}}}),
        json!({"strategy": {"max_unavailable": 1}, "mend_offline": true, "host_labels": {"annotations": ["a/.*"]}}),
        json!({"node_volume_detach_timeout": 5}),
        json!({"node_drain_timeout": 5}),
    ];
    for (document, given) in documents.iter_mut().zip(given) {
        document.as_object_mut().expect("a document").extend(given.as_object().expect("fields").clone());
    }
    // A template that no cluster uses.
    documents.push(json!({"kind": "ClusterTemplate", "name": "spare", "host_labels": {"annotations": ["a/.*"]}}));
    documents[1]["roles"]["web"]["fault_tolerance"] = json!(1);
    documents[1]["roles"]["web"]["limits"] = json!({"min": 1, "recommended": 2, "max": "settings:a.b"});
    documents[1]["tags"]["nginx"]["ready"] = json!([{"tcp": 80}]);
    let fixture = FleetFixture::from_manifests(&documents);
    let findings = resolve_fleet(&fixture.fleet, &fixture.cache).expect("it resolves").findings;
    let idle: Vec<_> = findings.into_iter().filter(|finding| finding.code == "field.idle").collect();
    assert!(idle.iter().all(|finding| finding.severity == Severity::Info));
    let objects: Vec<_> = idle.iter().map(|finding| finding.object.as_str()).collect();
    check_unused_fields_are_found::<ClusterSpec>(&objects);
    check_unused_fields_are_found::<NodeGroupSpec>(&objects);
    check_unused_fields_are_found::<Lifecycle>(&objects);
    check_unused_fields_are_found::<HostLabels>(&objects);
    check_unused_fields_are_found::<RoleSpec>(&objects);
    check_unused_fields_are_found::<TagSpec>(&objects);
    check_unused_fields_are_found::<Task>(&objects);
    assert_eq!(
        objects,
        [
            "cluster/prod host_labels.annotations",
            "cluster/prod min_ready_seconds",
            "cluster/prod rollout",
            "cluster/prod tags.extra.ready",
            "clustertemplate/base host_labels.annotations",
            "clustertemplate/base node_deletion_timeout",
            "clustertemplate/spare host_labels.annotations",
            "node/db-2 node_drain_timeout",
            "nodegroup/prod/dbs host_labels.annotations",
            "nodegroup/prod/dbs mend_offline",
            "nodegroup/prod/dbs strategy",
            "nodegroup/prod/webs node_volume_detach_timeout",
            "release/site@1 roles.web.fault_tolerance",
            "release/site@1 roles.web.limits.max",
            "release/site@1 roles.web.limits.recommended",
            "release/site@1 tags.nginx.ready",
            "release/site@1 task all requires",
            "release/site@1 task conf disruptive",
            "release/site@1 task conf max_nodes",
            "release/site@1 task conf tasks",
            "release/site@1 task file on_interrupt",
            "release/site@1 task file parameters.timeout",
            "release/site@1 task file timeout_seconds",
            "release/site@1 task point condition",
            "release/site@1 task undo phase",
            "release/site@1 task void fail_on_error",
            "release/site@1 task void mode",
            "release/site@1 task void on_drift",
            "release/site@1 task void parameters",
            "release/site@1 task void retries",
            "release/site@1 task void sensitive",
            "release/site@1 task void subscribes",
        ]
    );
    let fixture = FleetFixture::from_manifests(&site_manifests(
        &json!({}),
        &json!([shell(json!({"timeout_seconds": 9, "on_interrupt": "again"}))]),
    ));
    let findings = resolve_fleet(&fixture.fleet, &fixture.cache).expect("it resolves").findings;
    assert!(findings.iter().all(|finding| finding.code != "field.idle"), "{findings:?}");
}

/// A `service` task reloads its unit only after a change of a task that it subscribes to.
#[test]
fn reload_is_finding_when_service_subscribes_to_nothing() {
    let conf = json!({"id": "conf", "type": "file", "tags": ["nginx"], "parameters": {"path": "/f", "content": ""}});
    for (subscribes, reload, expected) in [(json!([]), true, 1), (json!(["conf"]), true, 0), (json!([]), false, 0)] {
        let parameters = json!({"unit": "nginx", "state": "running", "reload": reload});
        let web = json!({"id": "web", "type": "service", "tags": ["nginx"], "subscribes": subscribes, "parameters": parameters});
        let fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &json!([conf, web])));
        let findings = resolve_fleet(&fixture.fleet, &fixture.cache).expect("it resolves").findings;
        let idle: Vec<_> = findings.iter().filter(|finding| finding.code == "field.idle").collect();
        assert_eq!(idle.len(), expected, "{subscribes} {reload}: {idle:?}");
        assert!(idle.iter().all(|finding| finding.object == "release/site@1 task web parameters.reload"), "{idle:?}");
    }
}

/// The agent limits the time of tasks of the types that have a parameter `timeout` in seconds. Regression: all types
/// but `shell` had a finding, and `timeout` of a copy had none.
#[test]
fn timeout_is_finding_when_type_has_no_time_limit() {
    let idle_of = |kind: &str, parameters: Value| {
        let task = json!({"id": "t", "type": kind, "tags": ["nginx"], "timeout_seconds": 9, "parameters": parameters});
        let fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &json!([task])));
        let findings = resolve_fleet(&fixture.fleet, &fixture.cache).expect("it resolves").findings;
        let idle = findings.into_iter().filter(|finding| finding.code == "field.idle");
        let pair = |finding: Finding| (finding.object.replace("release/site@1 task t ", ""), finding.message);
        idle.map(pair).unzip::<_, _, Vec<_>, Vec<_>>()
    };
    for (kind, parameters, expected) in [
        ("shell", json!({"script": "true", "timeout": 9}), &[][..]),
        ("service", json!({"unit": "cron", "enabled": true, "timeout": 9}), &[]),
        ("package", json!({"name": "chrony", "timeout": 9}), &[]),
        ("puppet", json!({"manifest": "notice('x')", "timeout": 9}), &[]),
        ("reboot", json!({"timeout": 9}), &[]),
        ("directory", json!({"path": "/srv/a"}), &["timeout_seconds"]),
        ("user", json!({"name": "app"}), &["timeout_seconds"]),
        ("copy_files", json!({"files": [{"src": "/a", "dst": "/b"}], "timeout": 9}), &["parameters.timeout", "timeout_seconds"]),
        ("sync", json!({"src": "/a", "dst": "/b", "timeout": null}), &["timeout_seconds"]),
    ] {
        assert_eq!(idle_of(kind, parameters).0, expected, "{kind}");
    }
    // The message names exactly the types with a limit.
    let message = idle_of("user", json!({})).1.remove(0);
    for entry in TASK_TYPES.iter().filter(|entry| !entry.is_marker) {
        let is_named = message.split([' ', ',']).any(|word| word == entry.name);
        assert_eq!(is_named, idle_of(entry.name, json!({})).0.is_empty(), "{}: {message}", entry.name);
    }
}

/// No task waits for a task of type `group`. Regression: a dependency on a group had no effect and no finding.
#[test]
fn y05_dependency_on_group_is_finding_naming_tasks() {
    let group = json!({"id": "grp", "type": "group", "tags": ["nginx"], "tasks": ["conf", "then"]});
    let tasks = |fields: Value| {
        let mut task = json!({"id": "last", "type": "shell", "tags": ["nginx"], "parameters": {"script": "true"}});
        task.as_object_mut().expect("a task").extend(fields.as_object().expect("fields").clone());
        let plain = |id: &str| json!({"id": id, "type": "shell", "parameters": {"script": "true"}});
        json!([plain("conf"), plain("then"), group, task])
    };
    let message = "nothing acts on it yet: grp is a group, and nothing waits for a group; name its tasks instead: conf, then";
    for (dependency, field) in [
        (json!({"requires": ["grp"]}), Some("requires[0]")),
        (json!({"requires": ["conf", "grp"]}), Some("requires[1]")),
        (json!({"required_for": ["grp"]}), Some("required_for[0]")),
        (json!({"subscribes": ["grp"]}), Some("subscribes[0]")),
        (json!({"cross_depends": [{"name": "grp", "role": "self"}]}), Some("cross_depends[0].name")),
        (json!({"cross_depended_by": [{"name": "grp", "role": "self"}]}), Some("cross_depended_by[0].name")),
        (json!({"requires": ["conf", "then"]}), None),
        (json!({"requires": ["/[cg].+/"]}), None),
    ] {
        let fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &tasks(dependency)));
        let findings = resolve_fleet(&fixture.fleet, &fixture.cache).expect("it resolves").findings;
        let idle: Vec<_> = findings.into_iter().filter(|finding| finding.code == "field.idle").collect();
        let objects_and_messages: Vec<_> =
            idle.iter().map(|finding| (finding.object.as_str(), finding.message.as_str())).collect();
        let object = field.map(|field| format!("release/site@1 task last {field}"));
        assert_eq!(objects_and_messages, object.iter().map(|object| (object.as_str(), message)).collect::<Vec<_>>());
    }
}

/// Checks that each field of `S` that has no effect yet is the last word of an object among the findings.
fn check_unused_fields_are_found<S: UnimplementedFields>(objects: &[&str]) {
    for (field, _) in S::FIELDS.iter().filter(|(_, missing_effect)| missing_effect.is_some()) {
        let is_found = objects.iter().any(|object| object.rsplit([' ', '.']).next() == Some(*field));
        assert!(is_found, "{field} has no effect, and this test does not set it");
    }
}

/// A conflict with a role that the release does not declare has no effect. Document 1 is the release.
#[test]
fn w02_conflict_with_undeclared_role_is_finding() {
    let mut documents = site_manifests(&json!({}), &json!([]));
    documents[1]["roles"]["web"]["conflicts"] = json!(["db", "nosuch"]);
    let fixture = FleetFixture::from_manifests(&documents);
    let findings = resolve_fleet(&fixture.fleet, &fixture.cache).expect("it resolves").findings;
    let role_findings: Vec<_> = findings.iter().filter(|finding| finding.code == "role.unknown").collect();
    assert_eq!(role_findings.len(), 1, "{role_findings:?}");
    assert_eq!(role_findings[0].object, "release/site@1 roles.web.conflicts");
    assert_eq!(role_findings[0].message, "names role nosuch, which the release does not declare");
}
