//! Writes that place privileged tasks on nodes, or start them there. Only an admin may make them.

use super::*;

/// Two writes by callers who are not admins place a privileged task only together. The later one is refused.
#[tokio::test]
async fn x04_check_privileged_refuses_second_write_when_placed_by_both() {
    let add_tag_b_to = |role: &'static str| -> WriteFn {
        Box::new(move |work| {
            let old_cluster = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
            let change = RoleChange { add_tags: vec![TagName::new("b").unwrap()], remove_tags: vec![] };
            let spec = ClusterSpec { roles: [(Name::new(role).unwrap(), change)].into(), ..old_cluster.spec.clone() };
            work.update(&old_cluster, old_cluster.meta.name.clone(), spec)?;
            Ok(())
        })
    };
    let give_n1 = |role: &'static str| -> WriteFn { Box::new(edit_node(1, move |spec| spec.roles = roles(role))) };
    // Second column: the release of the group before the writes. Third column: true if n1 exists before the writes.
    let cases: [(&str, &str, bool, WriteFn, WriteFn); 3] = [
        ("a role of the node, and a tag that the role gets", "guarded", true, give_n1("y"), add_tag_b_to("y")),
        ("a role of the node, and the release of its group", "site", true, give_n1("b"), run_release("guarded")),
        ("the first node, and a tag that its role gets", "guarded", false, Box::new(add_node(1, "z")), add_tag_b_to("z")),
    ];
    for (case, initial_release, has_node, first, second) in cases {
        for (first, second) in [(&first, &second), (&second, &first)] {
            let mut site = WriteSite::new().await;
            let task = json!({"id": "p", "type": "shell", "tags": ["b"], "privileged": true, "parameters": {"script": "true"}});
            let guarded_release = ReleaseSpec { tasks: serde_json::from_value(json!([task])).unwrap(), ..release() };
            site.write(create_release(50, "guarded", guarded_release)).await.unwrap();
            site.write(run_release(initial_release)).await.unwrap();
            if has_node {
                site.write(add_node(1, "z")).await.unwrap();
            }
            site.caller = operator();
            let (result, attempts) = site.race(first, second).await;
            let refusal = result.expect_err(case);
            let expected = "task p is privileged, and only an admin places it on node n1; nothing was changed";
            assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::AuthForbidden, expected), "{case}");
            assert_eq!(attempts, 1, "{case}: the first decision succeeded, and the second one refused the write");
        }
    }
}

/// Returns a release with these tasks, in which role z gives tag z. `has_primary` is the field of this name of tag z.
fn release_with_primary(has_primary: bool, tasks: serde_json::Value) -> ReleaseSpec {
    let tags = json!({"a": {}, "b": {}, "x": {}, "z": {"has_primary": has_primary}});
    ReleaseSpec { tags: serde_json::from_value(tags).unwrap(), tasks: serde_json::from_value(tasks).unwrap(), ..release() }
}

/// Returns a write that names a node as the primary of tag z in the cluster.
fn name_primary(node: &'static str) -> WriteFn {
    Box::new(move |work| {
        let old_cluster = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
        let primaries = [(TagName::new("z").unwrap(), node.to_owned())].into();
        let spec = ClusterSpec { primaries, ..old_cluster.spec.clone() };
        work.update(&old_cluster, old_cluster.meta.name.clone(), spec)?;
        Ok(())
    })
}

/// One write of an operator names a node that does not exist yet as the primary. Another write gives the group a
/// release with a privileged task for the primary. In both orders, the write that commits later is refused.
#[tokio::test]
async fn x07_second_write_is_refused_when_primary_gets_privileged_task() {
    let privileged_tasks =
        json!([{"id": "crown", "type": "shell", "tags": ["primary-z"], "privileged": true, "parameters": {"script": "true"}}]);
    let (first, second) = (name_primary("ghost"), run_release("guarded"));
    for (first, second) in [(&first, &second), (&second, &first)] {
        let mut site = WriteSite::new().await;
        site.write(create_release(50, "plain", release_with_primary(true, json!([])))).await.unwrap();
        site.write(create_release(51, "guarded", release_with_primary(true, privileged_tasks.clone()))).await.unwrap();
        site.write(run_release("plain")).await.unwrap();
        site.caller = operator();
        let (result, attempts) = site.race(first, second).await;
        let refusal = result.expect_err("only an admin may make both changes");
        let expected = "task crown is privileged and depends on the primary of tag z of cluster c, and only an admin may give the tag to node 'ghost' in \
                    its field primaries: there is no node of that name in the cluster; nothing was changed";
        assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::AuthForbidden, expected));
        assert_eq!(attempts, 1, "the first decision succeeded, and the second one refused the write");
    }
}

/// An operator names a node that does not exist yet as the primary of tag z. At the same time, an admin gives the group
/// a release with a privileged task for that primary. The write of the operator commits later, so it is refused.
#[tokio::test]
async fn x07_operator_names_no_primary_when_admin_writes_release_concurrently() {
    let privileged_tasks =
        json!([{"id": "crown", "type": "shell", "tags": ["primary-z"], "privileged": true, "parameters": {"script": "true"}}]);
    let site = WriteSite::new().await;
    site.write(create_release(50, "plain", release_with_primary(true, json!([])))).await.unwrap();
    site.write(create_release(51, "guarded", release_with_primary(true, privileged_tasks))).await.unwrap();
    site.write(run_release("plain")).await.unwrap();
    let (result, attempts) = site.race_as((&name_primary("ghost"), &operator()), (&run_release("guarded"), &site.caller)).await;
    let refusal = result.expect_err("only an admin may make both changes");
    assert_eq!((refusal.kind, attempts), (ErrorType::AuthForbidden, 1), "{}", refusal.message);
}

/// The write names a node that does not exist as the primary of tag z. With the release that its first decision read,
/// that is only a warning. The rival write sets `has_primary` of the tag to false, so the write is then refused.
#[tokio::test]
async fn x07_named_primary_is_refused_when_has_primary_is_removed_concurrently() {
    let site = WriteSite::new().await;
    site.write(create_release(50, "plain", release_with_primary(true, json!([])))).await.unwrap();
    site.write(run_release("plain")).await.unwrap();
    let (result, attempts) = site.race(&name_primary("ghost"), &update_release(50, release_with_primary(false, json!([])))).await;
    let refusal = result.expect_err("the tag has no primary");
    let expected = "cluster c cannot give tag z to node 'ghost' in its field primaries: tag z has no primary there (its has_primary is false); \
                nothing was changed";
    assert_eq!((refusal.kind, refusal.message.as_str(), attempts), (ErrorType::FieldInvalid, expected, 1));
}

/// Returns a write that gives group z another release.
fn run_release(name: &'static str) -> WriteFn {
    Box::new(move |work| {
        let old_group = Arc::clone(work.model.groups.get(group("z").0).unwrap());
        let release = Some(ReleaseRef::new(name).unwrap());
        let spec = NodeGroupSpec { release, ..old_group.spec.clone() };
        work.update(&old_group, old_group.meta.name.clone(), spec)?;
        Ok(())
    })
}

/// Returns a caller with the role operator in the whole fleet.
fn operator() -> Caller {
    let rights = Rights { role: PrincipalRole::Operator, cluster: None };
    Caller { requester: Requester { rights, ..Requester::from_listener("test") }, ..caller() }
}

/// Builds a site with node n1 in group z and node n2 in group b. The privileged task `p` with this condition is placed
/// on n1. The caller is an operator.
async fn site_with_condition(condition: &str) -> WriteSite {
    let mut site = WriteSite::new().await;
    let task = json!({"id": "p", "type": "shell", "tags": ["z"], "privileged": true, "condition": condition, "parameters": {"script": "true"}});
    let guarded_release = ReleaseSpec { tasks: serde_json::from_value(json!([task])).unwrap(), ..release() };
    site.write(create_release(50, "guarded", guarded_release)).await.unwrap();
    site.write(run_release("guarded")).await.unwrap();
    site.write(add_node(1, "z")).await.unwrap();
    site.write(add_node(2, "b")).await.unwrap();
    site.caller = operator();
    site
}

/// Returns the provided labels of a level: `key` with the value `yes`, or no label if `key` is `None`.
fn labels_with(key: Option<&str>) -> OwnedMap<LabelKey, LabelValue> {
    let entry = |key| (LabelKey::new(key).unwrap(), ProvidedValue::Value(LabelValue::new("yes").unwrap()));
    OwnedMap::default().update(&caller().manager, &key.map(entry).into_iter().collect())
}

/// Returns a write that replaces the labels of the node with this number by [`labels_with`] of this key.
fn label_node(number: u128, key: Option<&'static str>) -> WriteFn {
    Box::new(edit_node(number, move |spec| spec.inherited.labels.provided = Some(labels_with(key))))
}

/// Returns a write that replaces the labels of the group of a role by label `key`.
fn label_group(role: &'static str, key: &'static str) -> WriteFn {
    Box::new(move |work| {
        let old_group = Arc::clone(work.model.groups.get(group(role).0).unwrap());
        let mut spec = old_group.spec.clone();
        spec.inherited.labels.provided = Some(labels_with(Some(key)));
        work.update(&old_group, old_group.meta.name.clone(), spec)?;
        Ok(())
    })
}

/// Returns a write that replaces the labels of the cluster by label `key`.
fn label_cluster(key: &'static str) -> WriteFn {
    Box::new(move |work| {
        let old_cluster = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
        let mut spec = old_cluster.spec.clone();
        spec.inherited.labels.provided = Some(labels_with(Some(key)));
        work.update(&old_cluster, old_cluster.meta.name.clone(), spec)?;
        Ok(())
    })
}

/// Returns a write that gives n1 this trait.
fn add_trait(name: &'static str) -> WriteFn {
    Box::new(edit_node(1, move |spec| {
        let entries = [(Trait::new(name).unwrap(), Some(ProvidedValue::Value(())))].into();
        spec.traits = OwnedSet::default().patch(&caller().manager, &entries);
    }))
}

/// Regression: an operator set a label that the condition reads. So the privileged task, which an admin had placed,
/// started on the host.
#[tokio::test]
async fn x04_check_privileged_requires_admin_when_task_begins_to_run() {
    let reads_go = "has(labels.go)";
    let cases: [(&str, &str, WriteFn); 7] = [
        ("a label of the node", reads_go, label_node(1, Some("go"))),
        ("a label of its group", reads_go, label_group("z", "go")),
        ("a label of its cluster", reads_go, label_cluster("go")),
        ("a trait", "'CUSTOM_GO' in traits", add_trait("CUSTOM_GO")),
        ("a role, by a tag that does not place the task", "'b' in tags", Box::new(edit_node(1, |spec| spec.roles = roles("b")))),
        ("a label of another node", "nodes(role='b').exists(n, has(n.labels.go))", label_node(2, Some("go"))),
        ("a further node", "size(nodes(role='b')) > 1", Box::new(add_node(3, "b"))),
    ];
    for (case, condition, write) in cases {
        let mut site = site_with_condition(condition).await;
        let refusal = site.write(&write).await.expect_err(case);
        let expected = "task p is privileged, and only an admin lets it run on node n1, where this write meets its condition; nothing was changed";
        assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::AuthForbidden, expected), "{case}");
        site.caller = caller();
        site.write(&write).await.expect(case);
    }
}

/// In this test, the privileged task runs on n1 if n1 has the label `go` or `also`. The writes of an operator are
/// accepted as long as they do not start the task. The last write would start the task again, and is refused.
#[tokio::test]
async fn x04_check_privileged_allows_write_when_task_already_runs_or_stops() {
    let mut site = site_with_condition("has(labels.go) || has(labels.also)").await;
    site.write(label_node(1, Some("other"))).await.expect("the condition is false as before");
    site.write(label_node(2, Some("go"))).await.expect("the task is not placed on n2");
    site.caller = caller();
    site.write(label_node(1, Some("go"))).await.unwrap();
    site.caller = operator();
    site.write(label_group("z", "also")).await.expect("the task runs already");
    site.write(label_node(1, None)).await.expect("the condition is still met by the group");
    site.write(label_group("z", "other")).await.expect("the condition is no longer met");
    let refusal = site.write(label_node(1, Some("go"))).await.expect_err("only an admin may start the task again");
    assert_eq!(refusal.kind, ErrorType::AuthForbidden, "{}", refusal.message);
}

/// Two writes by callers who are not admins meet a condition only together. The later one is refused.
#[tokio::test]
async fn x04_check_privileged_refuses_second_write_when_condition_met_by_both() {
    let cases: [(&str, &str, WriteFn, WriteFn); 2] = [
        (
            "a label of the node and a label of its group",
            "has(labels.a) && has(labels.b)",
            label_node(1, Some("a")),
            label_group("z", "b"),
        ),
        (
            "a label of another node and a label of its group",
            "nodes(role='b').exists(n, has(n.labels.a) && has(n.labels.b))",
            label_node(2, Some("a")),
            label_group("b", "b"),
        ),
    ];
    for (case, condition, first, second) in cases {
        for (first, second) in [(&first, &second), (&second, &first)] {
            let site = site_with_condition(condition).await;
            let (result, attempts) = site.race(first, second).await;
            let refusal = result.expect_err(case);
            assert_eq!((refusal.kind, attempts), (ErrorType::AuthForbidden, 1), "{case}: {}", refusal.message);
        }
    }
}

/// Returns a write that lets the group of a role accept labels with these keys from its hosts.
fn accept_labels(role: &'static str, keys: &'static [&'static str]) -> WriteFn {
    Box::new(move |work| {
        let old_group = Arc::clone(work.model.groups.get(group(role).0).unwrap());
        let accept = keys.iter().map(|key| LabelKey::new(key).unwrap()).collect();
        let mut spec = old_group.spec.clone();
        spec.host_labels = Some(HostLabels { accept, ..HostLabels::default() });
        work.update(&old_group, old_group.meta.name.clone(), spec)?;
        Ok(())
    })
}

/// Regression: an operator let a group accept a label that the condition reads, and then the host reported the label. A
/// report is not a write, so no rights were checked.
#[tokio::test]
async fn x04_check_privileged_requires_admin_when_read_label_becomes_reportable() {
    let mut site = site_with_condition("has(labels.go)").await;
    assert_refused_as_go_is_reportable(&site, &accept_labels("z", &["go"]), "a label that the condition reads").await;
    site.write(accept_labels("z", &["rack"])).await.expect("the condition does not read label rack");
    site.write(accept_labels("b", &["go"])).await.expect("the task is not placed on nodes of group b");
    // A tombstone at the node stops reports of the label, until another write removes it.
    site.caller = caller();
    site.write(tombstone_label(Some("go"))).await.unwrap();
    site.caller = operator();
    site.write(accept_labels("z", &["go"])).await.expect("the tombstone stops the reports");
    assert_refused_as_go_is_reportable(&site, &tombstone_label(None), "the tombstone no longer stops the reports").await;
    site.caller = caller();
    site.write(tombstone_label(None)).await.expect("an admin may");
    site.caller = operator();
    site.write(accept_labels("z", &["go", "rack"])).await.expect("the group accepted label go before the write");
}

/// Asserts that a write is refused because the host of n1 could then report label `go`, which meets the condition.
async fn assert_refused_as_go_is_reportable(site: &WriteSite, write: &WriteFn, case: &str) {
    let refusal = site.write(write).await.expect_err(case);
    let expected = "task p is privileged, and only an admin lets it run on node n1, where after this write the host may meet its condition by reporting label go; nothing was changed";
    assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::AuthForbidden, expected), "{case}");
}

/// The host may report the label after it is removed, and so start the task again. The operator may remove the label
/// nevertheless, because the task ran before the write.
#[tokio::test]
async fn x04_reportable_label_is_removable_without_admin_when_condition_was_met() {
    let mut site = site_with_condition("has(labels.go)").await;
    site.caller = caller();
    site.write(accept_labels("z", &["go"])).await.unwrap();
    site.write(label_node(1, Some("go"))).await.unwrap();
    site.caller = operator();
    site.write(label_node(1, None)).await.expect("the task ran before the write");
}

/// Returns a write that sets a tombstone for label `key` at n1, or removes all labels of n1 if `key` is `None`.
fn tombstone_label(key: Option<&'static str>) -> WriteFn {
    Box::new(edit_node(1, move |spec| {
        let tombstone = key.map(|key| (LabelKey::new(key).unwrap(), ProvidedValue::Tombstone));
        let labels = OwnedMap::default().update(&caller().manager, &tombstone.into_iter().collect());
        spec.inherited.labels.provided = Some(labels);
    }))
}

/// Regression: an operator met one half of a condition, and then the host reported the other half, so the task ran. If
/// the host reported its half first, the operator's write was refused.
#[tokio::test]
async fn x04_check_privileged_requires_admin_when_report_completes_condition() {
    let condition_with_trait = "has(labels.go) && 'HW_ARCH_X86_64' in traits";
    let cases: [(&str, &str, &str, WriteFn); 5] = [
        ("a label of the node", condition_with_trait, "trait HW_ARCH_X86_64", label_node(1, Some("go"))),
        ("a label of its group", condition_with_trait, "trait HW_ARCH_X86_64", label_group("z", "go")),
        ("a label of its cluster", condition_with_trait, "trait HW_ARCH_X86_64", label_cluster("go")),
        (
            "a role",
            "'b' in tags && facts.cpu.count > 0",
            "facts.cpu.count",
            Box::new(edit_node(1, |spec| spec.roles = roles("b"))),
        ),
        (
            "a property",
            "has(node.properties.go) && 'HW_ARCH_X86_64' in traits",
            "trait HW_ARCH_X86_64",
            Box::new(edit_node(1, |spec| drop(spec.properties.insert("go".to_owned(), json!(1))))),
        ),
    ];
    for (case, condition, reported, write) in cases {
        let mut site = site_with_condition(condition).await;
        site.write(label_node(1, Some("other"))).await.expect("the condition does not read label other");
        site.write(label_node(1, None)).await.expect("a removed label meets no condition");
        let refusal = site.write(&write).await.expect_err(case);
        assert_eq!((refusal.kind, refusal.message), (ErrorType::AuthForbidden, may_meet_text(reported)), "{case}");
        site.caller = caller();
        site.write(&write).await.expect(case);
    }
}

/// Returns the message for a write after which a report may meet the condition of task p.
fn may_meet_text(reported: &str) -> String {
    format!(
        "task p is privileged, and only an admin lets it run on node n1, where after this write the host may meet its condition by reporting {reported}; nothing was changed"
    )
}

/// The condition needs two labels. The host of n1 may report one of them, and the operator sets the other one.
#[tokio::test]
async fn x04_check_privileged_requires_admin_when_accepted_label_completes_condition() {
    let mut site = site_with_condition("has(labels.go) && has(labels.rack)").await;
    site.caller = caller();
    site.write(accept_labels("z", &["rack"])).await.unwrap();
    site.caller = operator();
    let refusal = site.write(label_node(1, Some("go"))).await.expect_err("the host may report label rack");
    assert_eq!((refusal.kind, refusal.message), (ErrorType::AuthForbidden, may_meet_text("label rack")));
}

/// Regression: an operator ended the suppression of a trait. Then the host reported the trait, and the task ran.
#[tokio::test]
async fn x04_check_privileged_requires_admin_when_suppressed_trait_is_restored() {
    let suppress = |names: &'static [&'static str]| -> WriteFn {
        Box::new(edit_node(1, move |spec| {
            spec.suppressed_traits = names.iter().map(|name| Trait::new(name).unwrap()).collect();
        }))
    };
    let mut site = site_with_condition("'HW_CPU_X86_SSE' in traits").await;
    site.write(suppress(&["HW_CPU_X86_SSE", "HW_CPU_X86_AVX"])).await.expect("a suppression starts no task");
    site.write(suppress(&["HW_CPU_X86_SSE"])).await.expect("the condition does not read HW_CPU_X86_AVX");
    let refusal = site.write(suppress(&[])).await.expect_err("the host may then report the trait");
    assert_eq!((refusal.kind, refusal.message), (ErrorType::AuthForbidden, may_meet_text("trait HW_CPU_X86_SSE")));
    site.caller = caller();
    site.write(suppress(&[])).await.expect("an admin may");
}
