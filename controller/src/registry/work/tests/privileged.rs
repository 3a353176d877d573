//! Writes by which privileged tasks come to stand on nodes, or begin to run there: an admin's alone.

use super::*;

/// Of two writes of who is no admin, of which neither places a privileged task, the later one is refused where both do it together.
#[tokio::test]
async fn x04_two_writes_that_place_a_privileged_task_only_together_are_not_both_made() {
    let gives = |role: &'static str| -> Write {
        Box::new(move |work| {
            let before = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
            let change = RoleChange { add_tags: vec![TagName::new("b").unwrap()], remove_tags: vec![] };
            let spec = ClusterSpec { roles: [(Name::new(role).unwrap(), change)].into(), ..before.spec.clone() };
            work.update(&before, before.meta.name.clone(), spec)?;
            Ok(())
        })
    };
    let has = |role: &'static str| -> Write { Box::new(edit(1, move |spec| spec.roles = roles(role))) };
    // The release of the group before, and whether n1 is there.
    let cases: [(&str, &str, bool, Write, Write); 3] = [
        ("a role, and what it gives", "guarded", true, has("y"), gives("y")),
        ("a role, and the release", "site", true, has("b"), runs("guarded")),
        ("the first node, and what its role gives", "guarded", false, Box::new(add(1, "z")), gives("z")),
    ];
    for (what, release_before, is_there, one, other) in cases {
        for (one, other) in [(&one, &other), (&other, &one)] {
            let mut site = Site::new().await;
            let task = json!({"id": "p", "type": "shell", "tags": ["b"], "privileged": true, "parameters": {"script": "true"}});
            let guarded = ReleaseSpec { tasks: serde_json::from_value(json!([task])).unwrap(), ..release() };
            site.write(make(50, "guarded", guarded)).await.unwrap();
            site.write(runs(release_before)).await.unwrap();
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

/// Role z gives tag z, which has a primary or none; of the tasks one may go by that.
fn seated(has_primary: bool, tasks: serde_json::Value) -> ReleaseSpec {
    let tags = json!({"a": {}, "b": {}, "x": {}, "z": {"has_primary": has_primary}});
    ReleaseSpec {
        tags: serde_json::from_value(tags).unwrap(),
        tasks: serde_json::from_value(tasks).unwrap(),
        ..release()
    }
}

/// Has the cluster give tag z to a node.
fn names(node: &'static str) -> Write {
    Box::new(move |work| {
        let before = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
        let primaries = [(TagName::new("z").unwrap(), node.to_owned())].into();
        let spec = ClusterSpec { primaries, ..before.spec.clone() };
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    })
}

/// Neither write moves a primary: the node is still to come. Whichever is the later one is refused.
#[tokio::test]
async fn x07_a_primary_that_is_still_to_come_is_not_named_beside_a_write_that_lets_a_privileged_task_go_by_it() {
    let crown = json!([{"id": "crown", "type": "shell", "tags": ["primary-z"], "privileged": true, "parameters": {"script": "true"}}]);
    let (one, other) = (names("ghost"), runs("guarded"));
    for (one, other) in [(&one, &other), (&other, &one)] {
        let mut site = Site::new().await;
        site.write(make(50, "plain", seated(true, json!([])))).await.unwrap();
        site.write(make(51, "guarded", seated(true, crown.clone()))).await.unwrap();
        site.write(runs("plain")).await.unwrap();
        site.caller = operator();
        let (made, tried) = site.race(one, other).await;
        let refusal = made.expect_err("both together are an admin's");
        let says = "task crown is privileged and goes by who holds tag z of cluster c as primary, and an admin alone gives that to node 'ghost' in \
                    its field primaries: there is no node of that name in the cluster; nothing was changed";
        assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::AuthForbidden, says));
        assert_eq!(tried, 1, "it decided once, and was refused when it decided again");
    }
}

/// An admin may give the group any release. An operator who names the node at the same moment sees it.
#[tokio::test]
async fn x07_a_primary_that_is_still_to_come_is_not_named_by_an_operator_beside_the_release_that_an_admin_gives() {
    let crown = json!([{"id": "crown", "type": "shell", "tags": ["primary-z"], "privileged": true, "parameters": {"script": "true"}}]);
    let site = Site::new().await;
    site.write(make(50, "plain", seated(true, json!([])))).await.unwrap();
    site.write(make(51, "guarded", seated(true, crown))).await.unwrap();
    site.write(runs("plain")).await.unwrap();
    let (made, tried) = site.race_of((&names("ghost"), &operator()), (&runs("guarded"), &site.caller)).await;
    let refusal = made.expect_err("both together are an admin's");
    assert_eq!((refusal.kind, tried), (ErrorType::AuthForbidden, 1), "{}", refusal.message);
}

/// By the release that it was judged by, the name of a node that is still to come is a warning; by the one that is stored, it is refused.
#[tokio::test]
async fn x07_a_primary_that_is_still_to_come_is_not_named_beside_an_edit_by_which_its_tag_has_none() {
    let site = Site::new().await;
    site.write(make(50, "plain", seated(true, json!([])))).await.unwrap();
    site.write(runs("plain")).await.unwrap();
    let (made, tried) = site.race(&names("ghost"), &set(50, seated(false, json!([])))).await;
    let refusal = made.expect_err("the tag has no primary");
    let says = "cluster c cannot give tag z to node 'ghost' in its field primaries: tag z has no primary there (its has_primary is false); \
                nothing was changed";
    assert_eq!((refusal.kind, refusal.message.as_str(), tried), (ErrorType::FieldInvalid, says, 1));
}

/// Has group z run another release.
fn runs(name: &'static str) -> Write {
    Box::new(move |work| {
        let before = Arc::clone(work.model.groups.get(group("z").0).unwrap());
        let release = Some(ReleaseRef::new(name).unwrap());
        let spec = NodeGroupSpec { release, ..before.spec.clone() };
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    })
}

fn operator() -> Caller {
    let rights = Rights { role: PrincipalRole::Operator, within: None };
    Caller { who: Who { rights, ..Who::by_way("test") }, ..caller() }
}

/// Nodes n1 in group z and n2 in group b. The privileged task `p` stands on n1, under a condition; whoever writes is an operator.
async fn site_under(condition: &str) -> Site {
    let mut site = Site::new().await;
    let task = json!({"id": "p", "type": "shell", "tags": ["z"], "privileged": true, "condition": condition, "parameters": {"script": "true"}});
    let guarded = ReleaseSpec { tasks: serde_json::from_value(json!([task])).unwrap(), ..release() };
    site.write(make(50, "guarded", guarded)).await.unwrap();
    site.write(runs("guarded")).await.unwrap();
    site.write(add(1, "z")).await.unwrap();
    site.write(add(2, "b")).await.unwrap();
    site.caller = operator();
    site
}

/// What a level says of labels: this one alone, or nothing.
fn saying(key: Option<&str>) -> OwnedMap<LabelKey, LabelValue> {
    let said = |key| (LabelKey::new(key).unwrap(), Said::Value(LabelValue::new("yes").unwrap()));
    OwnedMap::default().update(&caller().manager, &key.map(said).into_iter().collect())
}

fn label_node(n: u128, key: Option<&'static str>) -> Write {
    Box::new(edit(n, move |spec| spec.inherited.labels.provided = Some(saying(key))))
}

fn label_group(at: &'static str, key: &'static str) -> Write {
    Box::new(move |work| {
        let before = Arc::clone(work.model.groups.get(group(at).0).unwrap());
        let mut spec = before.spec.clone();
        spec.inherited.labels.provided = Some(saying(Some(key)));
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    })
}

fn label_cluster(key: &'static str) -> Write {
    Box::new(move |work| {
        let before = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
        let mut spec = before.spec.clone();
        spec.inherited.labels.provided = Some(saying(Some(key)));
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    })
}

fn with_trait(name: &'static str) -> Write {
    Box::new(edit(1, move |spec| {
        let said = [(Trait::new(name).unwrap(), Some(Said::Value(())))].into();
        spec.traits = OwnedSet::default().patch(&caller().manager, &said);
    }))
}

/// An operator set a label, and the privileged task that an admin had placed began to run on the host.
#[tokio::test]
async fn x04_a_privileged_task_begins_to_run_by_a_write_of_an_admin_alone_whichever_it_is() {
    let go = "has(labels.go)";
    let cases: [(&str, &str, Write); 7] = [
        ("a label of the node", go, label_node(1, Some("go"))),
        ("one of its group", go, label_group("z", "go")),
        ("one of its cluster", go, label_cluster("go")),
        ("a trait", "'CUSTOM_GO' in traits", with_trait("CUSTOM_GO")),
        (
            "a role, by a tag that does not place the task",
            "'b' in tags",
            Box::new(edit(1, |spec| spec.roles = roles("b"))),
        ),
        ("a label of another node", "nodes(role='b').exists(n, has(n.labels.go))", label_node(2, Some("go"))),
        ("another node that comes", "size(nodes(role='b')) > 1", Box::new(add(3, "b"))),
    ];
    for (what, condition, write) in cases {
        let mut site = site_under(condition).await;
        let refusal = site.write(&write).await.expect_err(what);
        let says = "task p is privileged, and an admin alone lets it run on node n1, where this write meets its condition; nothing was changed";
        assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::AuthForbidden, says), "{what}");
        site.caller = caller();
        site.write(&write).await.expect(what);
    }
}

#[tokio::test]
async fn x04_what_lets_a_privileged_task_run_already_or_takes_it_away_is_free() {
    let mut site = site_under("has(labels.go) || has(labels.also)").await;
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

/// Of two writes of who is no admin, of which neither meets the condition, the later one is refused where both do it together.
#[tokio::test]
async fn x04_two_writes_that_meet_a_condition_only_together_are_not_both_made() {
    let cases: [(&str, &str, Write, Write); 2] = [
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
            let site = site_under(condition).await;
            let (made, tried) = site.race(one, other).await;
            let refusal = made.expect_err(what);
            assert_eq!((refusal.kind, tried), (ErrorType::AuthForbidden, 1), "{what}: {}", refusal.message);
        }
    }
}

/// Has group z or b accept labels of these keys from hosts.
fn accepting(at: &'static str, keys: &'static [&'static str]) -> Write {
    Box::new(move |work| {
        let before = Arc::clone(work.model.groups.get(group(at).0).unwrap());
        let accept = keys.iter().map(|key| LabelKey::new(key).unwrap()).collect();
        let mut spec = before.spec.clone();
        spec.host_labels = Some(HostLabels { accept, ..HostLabels::default() });
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    })
}

/// An operator had a label accepted first, and the host reported it then: a report is no write, so nobody was asked.
#[tokio::test]
async fn x04_who_opens_a_label_to_reports_that_a_privileged_task_reads_is_an_admin() {
    let mut site = site_under("has(labels.go)").await;
    opens_go(&site, &accepting("z", &["go"]), "a label that the condition reads").await;
    site.write(accepting("z", &["rack"])).await.expect("the condition reads another one");
    site.write(accepting("b", &["go"])).await.expect("the task does not stand there");
    // A level speaks for it, until another write takes that away.
    site.caller = caller();
    site.write(saying_no(Some("go"))).await.unwrap();
    site.caller = operator();
    site.write(accepting("z", &["go"])).await.expect("the level stops it");
    opens_go(&site, &saying_no(None), "the level stops it no more").await;
    site.caller = caller();
    site.write(saying_no(None)).await.expect("an admin may");
    site.caller = operator();
    site.write(accepting("z", &["go", "rack"])).await.expect("it was accepted before");
}

/// Checks that a write is refused because it opens label `go` to reports.
async fn opens_go(site: &Site, write: &Write, what: &str) {
    let refusal = site.write(write).await.expect_err(what);
    let says = "task p is privileged, and an admin alone lets it run on node n1, where by this write the host may meet its condition with label go; nothing was changed";
    assert_eq!((refusal.kind, refusal.message.as_str()), (ErrorType::AuthForbidden, says), "{what}");
}

/// What runs already is brought by nobody.
#[tokio::test]
async fn x04_a_label_that_met_the_condition_is_taken_away_by_who_may_write_it_though_hosts_may_report_it() {
    let mut site = site_under("has(labels.go)").await;
    site.caller = caller();
    site.write(accepting("z", &["go"])).await.unwrap();
    site.write(label_node(1, Some("go"))).await.unwrap();
    site.caller = operator();
    site.write(label_node(1, None)).await.expect("the task ran, and stops");
}

/// What stops a label at node 1, or nothing.
fn saying_no(key: Option<&'static str>) -> Write {
    Box::new(edit(1, move |spec| {
        let stopped = key.map(|key| (LabelKey::new(key).unwrap(), Said::Tombstone));
        let said = OwnedMap::default().update(&caller().manager, &stopped.into_iter().collect());
        spec.inherited.labels.provided = Some(said);
    }))
}

/// An operator met the half of a condition first, and the host reported the other half then: only the order decided.
#[tokio::test]
async fn x04_who_meets_half_of_a_condition_before_a_report_may_meet_the_other_half_is_an_admin() {
    let half = "has(labels.go) && 'HW_ARCH_X86_64' in traits";
    let cases: [(&str, &str, &str, Write); 5] = [
        ("a label of the node", half, "trait HW_ARCH_X86_64", label_node(1, Some("go"))),
        ("one of its group", half, "trait HW_ARCH_X86_64", label_group("z", "go")),
        ("one of its cluster", half, "trait HW_ARCH_X86_64", label_cluster("go")),
        (
            "a role",
            "'b' in tags && facts.cpu.count > 0",
            "facts.cpu.count",
            Box::new(edit(1, |spec| spec.roles = roles("b"))),
        ),
        (
            "a property",
            "has(node.properties.go) && 'HW_ARCH_X86_64' in traits",
            "trait HW_ARCH_X86_64",
            Box::new(edit(1, |spec| drop(spec.properties.insert("go".to_owned(), json!(1))))),
        ),
    ];
    for (what, condition, with, write) in cases {
        let mut site = site_under(condition).await;
        site.write(label_node(1, Some("other"))).await.expect("the condition does not read it");
        site.write(label_node(1, None)).await.expect("nor this");
        let refusal = site.write(&write).await.expect_err(what);
        assert_eq!((refusal.kind, refusal.message), (ErrorType::AuthForbidden, may_meet(with)), "{what}");
        site.caller = caller();
        site.write(&write).await.expect(what);
    }
}

/// What is said where a report may meet the condition of task p by a write.
fn may_meet(with: &str) -> String {
    format!(
        "task p is privileged, and an admin alone lets it run on node n1, where by this write the host may meet its condition with {with}; nothing was changed"
    )
}

#[tokio::test]
async fn x04_who_meets_the_half_of_a_condition_whose_other_half_is_an_accepted_label_is_an_admin() {
    let mut site = site_under("has(labels.go) && has(labels.rack)").await;
    site.caller = caller();
    site.write(accepting("z", &["rack"])).await.unwrap();
    site.caller = operator();
    let refusal = site.write(label_node(1, Some("go"))).await.expect_err("the host may report the other");
    assert_eq!((refusal.kind, refusal.message), (ErrorType::AuthForbidden, may_meet("label rack")));
}

/// An operator lifted the suppression of a trait before the host reported it, and the task ran.
#[tokio::test]
async fn x04_who_lifts_the_suppression_of_a_trait_that_a_privileged_task_reads_is_an_admin() {
    let suppress = |names: &'static [&'static str]| -> Write {
        Box::new(edit(1, move |spec| {
            spec.suppressed_traits = names.iter().map(|name| Trait::new(name).unwrap()).collect();
        }))
    };
    let mut site = site_under("'HW_CPU_X86_SSE' in traits").await;
    site.write(suppress(&["HW_CPU_X86_SSE", "HW_CPU_X86_AVX"])).await.expect("who suppresses it lets nothing run");
    site.write(suppress(&["HW_CPU_X86_SSE"])).await.expect("the condition does not read the other");
    let refusal = site.write(suppress(&[])).await.expect_err("the host may report it then");
    assert_eq!((refusal.kind, refusal.message), (ErrorType::AuthForbidden, may_meet("trait HW_CPU_X86_SSE")));
    site.caller = caller();
    site.write(suppress(&[])).await.expect("an admin may");
}
