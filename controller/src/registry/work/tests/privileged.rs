//! Writes that place privileged tasks on nodes, or start them there. Only an admin may make them.

use super::*;

/// Two writes by callers who are not admins place a privileged task only together. The later one is refused.
#[tokio::test]
async fn x04_check_privileged_refuses_second_write_when_placed_by_both() {
    let gives = |role: &'static str| -> WriteFn {
        Box::new(move |work| {
            let before = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
            let change = RoleChange { add_tags: vec![TagName::new("b").unwrap()], remove_tags: vec![] };
            let spec = ClusterSpec { roles: [(Name::new(role).unwrap(), change)].into(), ..before.spec.clone() };
            work.update(&before, before.meta.name.clone(), spec)?;
            Ok(())
        })
    };
    let has = |role: &'static str| -> WriteFn { Box::new(edit(1, move |spec| spec.roles = roles(role))) };
    // Columns two and three: the release of the group before the writes, and whether n1 exists.
    let cases: [(&str, &str, bool, WriteFn, WriteFn); 3] = [
        ("a role, and what it gives", "guarded", true, has("y"), gives("y")),
        ("a role, and the release", "site", true, has("b"), run_release("guarded")),
        ("the first node, and what its role gives", "guarded", false, Box::new(add(1, "z")), gives("z")),
    ];
    for (what, release_before, is_there, one, other) in cases {
        for (one, other) in [(&one, &other), (&other, &one)] {
            let mut site = WriteSite::new().await;
            let task = json!({"id": "p", "type": "shell", "tags": ["b"], "privileged": true, "parameters": {"script": "true"}});
            let guarded = ReleaseSpec { tasks: serde_json::from_value(json!([task])).unwrap(), ..release() };
            site.write(create_release(50, "guarded", guarded)).await.unwrap();
            site.write(run_release(release_before)).await.unwrap();
            if is_there {
                site.write(add(1, "z")).await.unwrap();
            }
            site.caller = operator();
            let (made, tried) = site.race(one, other).await;
            let refusal = made.expect_err(what);
            let says = "task p is privileged, and an admin alone places it on node n1; nothing was changed";
            assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::AuthForbidden, says), "{what}");
            assert_eq!(tried, 1, "{what}: it decided once, and was refused when it decided again");
        }
    }
}

/// Returns a release in which role z gives tag z, with or without a primary.
fn release_with_primary(has_primary: bool, tasks: serde_json::Value) -> ReleaseSpec {
    let tags = json!({"a": {}, "b": {}, "x": {}, "z": {"has_primary": has_primary}});
    ReleaseSpec { tags: serde_json::from_value(tags).unwrap(), tasks: serde_json::from_value(tasks).unwrap(), ..release() }
}

/// Names a node as the primary of tag z in the cluster.
fn name_primary(node: &'static str) -> WriteFn {
    Box::new(move |work| {
        let before = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
        let primaries = [(TagName::new("z").unwrap(), node.to_owned())].into();
        let spec = ClusterSpec { primaries, ..before.spec.clone() };
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    })
}

/// Neither write moves a primary, because the node does not exist yet. The later write is refused, whichever it is.
#[tokio::test]
async fn x07_named_primary_is_refused_when_release_changes_condition_concurrently() {
    let crown =
        json!([{"id": "crown", "type": "shell", "tags": ["primary-z"], "privileged": true, "parameters": {"script": "true"}}]);
    let (one, other) = (name_primary("ghost"), run_release("guarded"));
    for (one, other) in [(&one, &other), (&other, &one)] {
        let mut site = WriteSite::new().await;
        site.write(create_release(50, "plain", release_with_primary(true, json!([])))).await.unwrap();
        site.write(create_release(51, "guarded", release_with_primary(true, crown.clone()))).await.unwrap();
        site.write(run_release("plain")).await.unwrap();
        site.caller = operator();
        let (made, tried) = site.race(one, other).await;
        let refusal = made.expect_err("both together are an admin's");
        let says = "task crown is privileged and depends on the primary of tag z of cluster c, and only an admin may give the tag to node 'ghost' in \
                    its field primaries: there is no node of that name in the cluster; nothing was changed";
        assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::AuthForbidden, says));
        assert_eq!(tried, 1, "it decided once, and was refused when it decided again");
    }
}

/// An admin may give the group any release. A concurrent write by an operator who names the node must see that release.
#[tokio::test]
async fn x07_operator_names_no_primary_when_admin_writes_release_concurrently() {
    let crown =
        json!([{"id": "crown", "type": "shell", "tags": ["primary-z"], "privileged": true, "parameters": {"script": "true"}}]);
    let site = WriteSite::new().await;
    site.write(create_release(50, "plain", release_with_primary(true, json!([])))).await.unwrap();
    site.write(create_release(51, "guarded", release_with_primary(true, crown))).await.unwrap();
    site.write(run_release("plain")).await.unwrap();
    let (made, tried) = site.race_as((&name_primary("ghost"), &operator()), (&run_release("guarded"), &site.caller)).await;
    let refusal = made.expect_err("both together are an admin's");
    assert_eq!((refusal.kind, tried), (ErrorType::AuthForbidden, 1), "{}", refusal.message);
}

/// With the release it was checked against, naming a missing node is a warning. With the stored release, it is an
/// error.
#[tokio::test]
async fn x07_named_primary_is_refused_when_tag_loses_holder_concurrently() {
    let site = WriteSite::new().await;
    site.write(create_release(50, "plain", release_with_primary(true, json!([])))).await.unwrap();
    site.write(run_release("plain")).await.unwrap();
    let (made, tried) = site.race(&name_primary("ghost"), &update_release(50, release_with_primary(false, json!([])))).await;
    let refusal = made.expect_err("the tag has no primary");
    let says = "cluster c cannot give tag z to node 'ghost' in its field primaries: tag z has no primary there (its has_primary is false); \
                nothing was changed";
    assert_eq!((refusal.kind, refusal.message.as_str(), tried), (ErrorType::FieldInvalid, says, 1));
}

/// Gives group z another release.
fn run_release(name: &'static str) -> WriteFn {
    Box::new(move |work| {
        let before = Arc::clone(work.model.groups.get(group("z").0).unwrap());
        let release = Some(ReleaseRef::new(name).unwrap());
        let spec = NodeGroupSpec { release, ..before.spec.clone() };
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    })
}

/// Returns a caller with the role operator in the whole fleet.
fn operator() -> Caller {
    let rights = Rights { role: PrincipalRole::Operator, cluster: None };
    Caller { requester: Requester { rights, ..Requester::from_listener("test") }, ..caller() }
}

/// Builds a site with node n1 in group z and n2 in group b. The privileged task `p` is placed on n1, with a condition.
/// The caller is an operator.
async fn site_with_condition(condition: &str) -> WriteSite {
    let mut site = WriteSite::new().await;
    let task = json!({"id": "p", "type": "shell", "tags": ["z"], "privileged": true, "condition": condition, "parameters": {"script": "true"}});
    let guarded = ReleaseSpec { tasks: serde_json::from_value(json!([task])).unwrap(), ..release() };
    site.write(create_release(50, "guarded", guarded)).await.unwrap();
    site.write(run_release("guarded")).await.unwrap();
    site.write(add(1, "z")).await.unwrap();
    site.write(add(2, "b")).await.unwrap();
    site.caller = operator();
    site
}

/// Returns the labels of a level: this one, or none.
fn labels_with(key: Option<&str>) -> OwnedMap<LabelKey, LabelValue> {
    let said = |key| (LabelKey::new(key).unwrap(), ProvidedValue::Value(LabelValue::new("yes").unwrap()));
    OwnedMap::default().update(&caller().manager, &key.map(said).into_iter().collect())
}

fn label_node(n: u128, key: Option<&'static str>) -> WriteFn {
    Box::new(edit(n, move |spec| spec.inherited.labels.provided = Some(labels_with(key))))
}

fn label_group(at: &'static str, key: &'static str) -> WriteFn {
    Box::new(move |work| {
        let before = Arc::clone(work.model.groups.get(group(at).0).unwrap());
        let mut spec = before.spec.clone();
        spec.inherited.labels.provided = Some(labels_with(Some(key)));
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    })
}

fn label_cluster(key: &'static str) -> WriteFn {
    Box::new(move |work| {
        let before = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
        let mut spec = before.spec.clone();
        spec.inherited.labels.provided = Some(labels_with(Some(key)));
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    })
}

fn add_trait(name: &'static str) -> WriteFn {
    Box::new(edit(1, move |spec| {
        let said = [(Trait::new(name).unwrap(), Some(ProvidedValue::Value(())))].into();
        spec.traits = OwnedSet::default().patch(&caller().manager, &said);
    }))
}

/// An operator set a label, and the privileged task that an admin had placed started on the host.
#[tokio::test]
async fn x04_check_privileged_requires_admin_when_task_begins_to_run() {
    let go = "has(labels.go)";
    let cases: [(&str, &str, WriteFn); 7] = [
        ("a label of the node", go, label_node(1, Some("go"))),
        ("one of its group", go, label_group("z", "go")),
        ("one of its cluster", go, label_cluster("go")),
        ("a trait", "'CUSTOM_GO' in traits", add_trait("CUSTOM_GO")),
        ("a role, by a tag that does not place the task", "'b' in tags", Box::new(edit(1, |spec| spec.roles = roles("b")))),
        ("a label of another node", "nodes(role='b').exists(n, has(n.labels.go))", label_node(2, Some("go"))),
        ("another node that comes", "size(nodes(role='b')) > 1", Box::new(add(3, "b"))),
    ];
    for (what, condition, write) in cases {
        let mut site = site_with_condition(condition).await;
        let refusal = site.write(&write).await.expect_err(what);
        let says = "task p is privileged, and an admin alone lets it run on node n1, where this write meets its condition; nothing was changed";
        assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::AuthForbidden, says), "{what}");
        site.caller = caller();
        site.write(&write).await.expect(what);
    }
}

#[tokio::test]
async fn x04_check_privileged_allows_write_when_task_already_runs_or_stops() {
    let mut site = site_with_condition("has(labels.go) || has(labels.also)").await;
    site.write(label_node(1, Some("other"))).await.expect("the condition is false as before");
    site.write(label_node(2, Some("go"))).await.expect("the task does not stand there");
    site.caller = caller();
    site.write(label_node(1, Some("go"))).await.unwrap();
    site.caller = operator();
    site.write(label_group("z", "also")).await.expect("the task runs already");
    site.write(label_node(1, None)).await.expect("the task goes on");
    site.write(label_group("z", "other")).await.expect("the task is taken away");
    let refusal = site.write(label_node(1, Some("go"))).await.expect_err("an admin brings it back");
    assert_eq!(refusal.kind, ErrorType::AuthForbidden, "{}", refusal.message);
}

/// Two writes by callers who are not admins meet a condition only together. The later one is refused.
#[tokio::test]
async fn x04_check_privileged_refuses_second_write_when_condition_met_by_both() {
    let cases: [(&str, &str, WriteFn, WriteFn); 2] = [
        (
            "a label of the node and one of its group",
            "has(labels.a) && has(labels.b)",
            label_node(1, Some("a")),
            label_group("z", "b"),
        ),
        (
            "labels of another node and of that one's group",
            "nodes(role='b').exists(n, has(n.labels.a) && has(n.labels.b))",
            label_node(2, Some("a")),
            label_group("b", "b"),
        ),
    ];
    for (what, condition, one, other) in cases {
        for (one, other) in [(&one, &other), (&other, &one)] {
            let site = site_with_condition(condition).await;
            let (made, tried) = site.race(one, other).await;
            let refusal = made.expect_err(what);
            assert_eq!((refusal.kind, tried), (ErrorType::AuthForbidden, 1), "{what}: {}", refusal.message);
        }
    }
}

/// Lets group z or b accept labels with these keys from hosts.
fn accept_labels(at: &'static str, keys: &'static [&'static str]) -> WriteFn {
    Box::new(move |work| {
        let before = Arc::clone(work.model.groups.get(group(at).0).unwrap());
        let accept = keys.iter().map(|key| LabelKey::new(key).unwrap()).collect();
        let mut spec = before.spec.clone();
        spec.host_labels = Some(HostLabels { accept, ..HostLabels::default() });
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    })
}

/// An operator first let a label be accepted, and then the host reported it. A report is not a write, so no rights were
/// checked.
#[tokio::test]
async fn x04_check_privileged_requires_admin_when_read_label_becomes_reportable() {
    let mut site = site_with_condition("has(labels.go)").await;
    assert_opens_go(&site, &accept_labels("z", &["go"]), "a label that the condition reads").await;
    site.write(accept_labels("z", &["rack"])).await.expect("the condition reads another one");
    site.write(accept_labels("b", &["go"])).await.expect("the task does not stand there");
    // A tombstone at the node stops reports of the label, until another write removes it.
    site.caller = caller();
    site.write(tombstone_label(Some("go"))).await.unwrap();
    site.caller = operator();
    site.write(accept_labels("z", &["go"])).await.expect("the level stops it");
    assert_opens_go(&site, &tombstone_label(None), "the level stops it no more").await;
    site.caller = caller();
    site.write(tombstone_label(None)).await.expect("an admin may");
    site.caller = operator();
    site.write(accept_labels("z", &["go", "rack"])).await.expect("it was accepted before");
}

/// Checks that a write is refused because hosts could then report label `go`.
async fn assert_opens_go(site: &WriteSite, write: &WriteFn, what: &str) {
    let refusal = site.write(write).await.expect_err(what);
    let says = "task p is privileged, and an admin alone lets it run on node n1, where after this write the host may meet its condition by reporting label go; nothing was changed";
    assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::AuthForbidden, says), "{what}");
}

/// A task that already runs is not started by a write.
#[tokio::test]
async fn x04_reportable_label_is_removable_without_admin_when_condition_was_met() {
    let mut site = site_with_condition("has(labels.go)").await;
    site.caller = caller();
    site.write(accept_labels("z", &["go"])).await.unwrap();
    site.write(label_node(1, Some("go"))).await.unwrap();
    site.caller = operator();
    site.write(label_node(1, None)).await.expect("the task ran, and stops");
}

/// Sets a tombstone for a label on n1, or removes all labels there.
fn tombstone_label(key: Option<&'static str>) -> WriteFn {
    Box::new(edit(1, move |spec| {
        let stopped = key.map(|key| (LabelKey::new(key).unwrap(), ProvidedValue::Tombstone));
        let said = OwnedMap::default().update(&caller().manager, &stopped.into_iter().collect());
        spec.inherited.labels.provided = Some(said);
    }))
}

/// An operator met one half of a condition, and then the host reported the other half. Only the order of the two made
/// it possible.
#[tokio::test]
async fn x04_check_privileged_requires_admin_when_report_completes_condition() {
    let half = "has(labels.go) && 'HW_ARCH_X86_64' in traits";
    let cases: [(&str, &str, &str, WriteFn); 5] = [
        ("a label of the node", half, "trait HW_ARCH_X86_64", label_node(1, Some("go"))),
        ("one of its group", half, "trait HW_ARCH_X86_64", label_group("z", "go")),
        ("one of its cluster", half, "trait HW_ARCH_X86_64", label_cluster("go")),
        ("a role", "'b' in tags && facts.cpu.count > 0", "facts.cpu.count", Box::new(edit(1, |spec| spec.roles = roles("b")))),
        (
            "a property",
            "has(node.properties.go) && 'HW_ARCH_X86_64' in traits",
            "trait HW_ARCH_X86_64",
            Box::new(edit(1, |spec| drop(spec.properties.insert("go".to_owned(), json!(1))))),
        ),
    ];
    for (what, condition, with, write) in cases {
        let mut site = site_with_condition(condition).await;
        site.write(label_node(1, Some("other"))).await.expect("the condition does not read it");
        site.write(label_node(1, None)).await.expect("nor this");
        let refusal = site.write(&write).await.expect_err(what);
        assert_eq!((refusal.kind, refusal.message), (ErrorType::AuthForbidden, may_meet_text(with)), "{what}");
        site.caller = caller();
        site.write(&write).await.expect(what);
    }
}

/// Returns the message for a write after which a report may meet the condition of task p.
fn may_meet_text(with: &str) -> String {
    format!(
        "task p is privileged, and an admin alone lets it run on node n1, where after this write the host may meet its condition by reporting {with}; nothing was changed"
    )
}

#[tokio::test]
async fn x04_check_privileged_requires_admin_when_accepted_label_completes_condition() {
    let mut site = site_with_condition("has(labels.go) && has(labels.rack)").await;
    site.caller = caller();
    site.write(accept_labels("z", &["rack"])).await.unwrap();
    site.caller = operator();
    let refusal = site.write(label_node(1, Some("go"))).await.expect_err("the host may report the other");
    assert_eq!((refusal.kind, refusal.message), (ErrorType::AuthForbidden, may_meet_text("label rack")));
}

/// An operator stopped suppressing a trait before the host reported it, and the task ran.
#[tokio::test]
async fn x04_check_privileged_requires_admin_when_suppressed_trait_is_restored() {
    let suppress = |names: &'static [&'static str]| -> WriteFn {
        Box::new(edit(1, move |spec| {
            spec.suppressed_traits = names.iter().map(|name| Trait::new(name).unwrap()).collect();
        }))
    };
    let mut site = site_with_condition("'HW_CPU_X86_SSE' in traits").await;
    site.write(suppress(&["HW_CPU_X86_SSE", "HW_CPU_X86_AVX"])).await.expect("who suppresses it lets nothing run");
    site.write(suppress(&["HW_CPU_X86_SSE"])).await.expect("the condition does not read the other");
    let refusal = site.write(suppress(&[])).await.expect_err("the host may report it then");
    assert_eq!((refusal.kind, refusal.message), (ErrorType::AuthForbidden, may_meet_text("trait HW_CPU_X86_SSE")));
    site.caller = caller();
    site.write(suppress(&[])).await.expect("an admin may");
}
