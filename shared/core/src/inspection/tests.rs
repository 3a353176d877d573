//! What rules give, and what they cannot do.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use uuid::Uuid;

use super::limits::{MAX_DATA_DEPTH, MAX_PATTERN};
use super::*;
use crate::name::ObjectName;
use crate::object::{InspectionRule, Meta, RuleCondition, Timestamp};

/// A rule of this body, the nth that was made.
fn rule(nth: u64, mut body: Value) -> InspectionRule {
    let name =
        body.as_object_mut().unwrap().remove("name").map(|name| ObjectName::new(name.as_str().unwrap()).unwrap());
    let spec: InspectionRuleSpec = serde_json::from_value(body).unwrap();
    check_rule(&spec).unwrap();
    InspectionRule { meta: Meta::new(Uuid::from_u128(u128::from(nth)), name, Timestamp(nth)), spec }
}

fn set(bodies: impl IntoIterator<Item = Value>) -> RuleSet {
    let mut rules = RuleSet::default();
    for (nth, body) in (1..).zip(bodies) {
        rules.put(Arc::new(rule(nth, body)));
    }
    rules
}

fn inspected() -> Inspected {
    Inspected {
        node: json!({"name": "n1", "driver": null, "properties": {"own": "op", "list": ["op"], "capabilities": "boot_mode:bios"}}),
        inventory: json!({"cpu": {"count": 8, "model": "EPYC"}, "disks": {"sda": {}, "sdb": {}}, "vendor": "Dell Inc."}),
        plugin_data: json!({"traits": ["HW_CPU_X86_AVX2"], "labels": {}}),
    }
}

/// What rules give, in a line each.
fn given(bodies: impl IntoIterator<Item = Value>) -> Vec<String> {
    given_of(bodies, &inspected())
}

/// The same, of what was reported otherwise.
fn given_of(bodies: impl IntoIterator<Item = Value>, inspected: &Inspected) -> Vec<String> {
    let ruled = set(bodies).run(inspected);
    let traits = ruled
        .traits
        .iter()
        .map(|(name, rules)| format!("{name} by {}", rules.iter().map(AsRef::as_ref).collect::<Vec<_>>().join("+")));
    let labels = ruled
        .labels
        .iter()
        .flat_map(|one| one.labels.iter().map(move |(key, value)| format!("{key}={value} by {}", one.rule)));
    let properties = ruled.properties.iter().map(|(name, one)| format!("{name}: {} by {}", one.value, one.rule));
    let notes = ruled.notes.iter().map(|note| format!("{:?} {}: {}", note.kind, note.rule, note.message));
    traits.chain(labels).chain(properties).chain(notes).collect()
}

fn act(op: &str, args: Value) -> Value {
    let mut action = json!({ "op": op });
    action["args"] = args;
    action
}

#[test]
fn what_rules_give_names_them() {
    let epyc = json!([{"op": "contains", "args": {"value": "{inventory[cpu][model]}", "regex": "EPYC"}}]);
    let add = |name: &str| act("add-trait", json!({"name": name}));
    for (bodies, expected) in [
        (vec![json!({"name": "a", "conditions": epyc, "actions": [add("CUSTOM_A")]})], vec!["CUSTOM_A by a"]),
        // Two rules give one trait; the greater priority goes first, whichever was made first.
        (
            vec![
                json!({"name": "a", "actions": [add("CUSTOM_A")]}),
                json!({"name": "b", "priority": 5, "actions": [add("CUSTOM_A")]}),
            ],
            vec!["CUSTOM_A by a+b"],
        ),
        (
            vec![
                json!({"name": "late", "actions": [act("remove-trait", json!({"name": "CUSTOM_A"}))]}),
                json!({"name": "soon", "priority": 5, "actions": [add("CUSTOM_A"), add("CUSTOM_B")]}),
            ],
            vec!["CUSTOM_B by soon"],
        ),
        // A rule without a name is named by its uuid.
        (vec![json!({"actions": [add("CUSTOM_A")]})], vec!["CUSTOM_A by 00000000-0000-0000-0000-000000000001"]),
        (
            vec![
                json!({"name": "a", "priority": 9, "actions": [act("set-attribute", json!({"path": "labels/example.net/cpus", "value": "{inventory[cpu][count]}"}))]}),
                json!({"name": "b", "actions": [act("set-attribute", json!({"path": "/labels/rack", "value": "r1"}))]}),
            ],
            vec!["example.net/cpus=8 by a", "rack=r1 by b"],
        ),
        // What operators hold stays theirs; a later rule reads what an earlier one gave.
        (
            vec![
                json!({"name": "a", "priority": 9, "actions": [
                    act("set-attribute", json!({"path": "properties/own", "value": "rule"})),
                    act("set-attribute", json!({"path": "properties/size", "value": 2})),
                    act("extend-attribute", json!({"path": "properties/list", "value": "rule"})),
                    act("extend-attribute", json!({"path": "properties/more", "value": "x", "unique": true})),
                    act("extend-attribute", json!({"path": "properties/more", "value": "x", "unique": true})),
                    act("del-attribute", json!({"path": "properties/own"})),
                ]}),
                json!({"name": "b", "actions": [
                    act("set-attribute", json!({"path": "properties/size", "value": 3})),
                    act("set-attribute", json!({"path": "properties/copy", "value": "{node.properties[size]} {node.properties[own]}"})),
                ]}),
            ],
            vec!["copy: \"2 op\" by b", "more: [\"x\"] by a", "size: 2 by a"],
        ),
        (
            vec![json!({"name": "a", "actions": [
                act("set-capability", json!({"name": "boot_mode", "value": "uefi"})),
                act("set-capability", json!({"name": "cpus", "value": "{inventory[cpu][count]}"})),
                act("set-capability", json!({"name": "gone", "value": "x"})),
                act("unset-capability", json!({"name": "gone"})),
            ]})],
            vec!["capabilities: \"boot_mode:bios,cpus:8\" by a"],
        ),
        // Data that rules hand on, and loops.
        (
            vec![
                json!({"name": "a", "priority": 9, "actions": [
                    act("set-plugin-data", json!({"path": "seen.by", "value": "{node.name}"})),
                    act("extend-plugin-data", json!({"path": "seen.list", "value": 1})),
                ]}),
                json!({"name": "b", "conditions": [{"op": "eq", "args": {"values": ["{plugin_data[seen][by]}", "n1"]}}],
                    "actions": [{"op": "add-trait", "args": {"name": "CUSTOM_{item[name]}"}, "loop": [{"name": "X"}, {"name": "Y"}]}]}),
            ],
            vec!["CUSTOM_X by b", "CUSTOM_Y by b"],
        ),
        (
            vec![
                json!({"name": "a", "actions": [act("log", json!({"msg": "{node.name} has {inventory[cpu][count]}"}))]}),
            ],
            vec!["Log a: n1 has 8"],
        ),
    ] {
        assert_eq!(given(bodies), expected);
    }
}

/// A host that reported `a.b` as its rack wrote beside the name that was meant.
#[test]
fn y03_a_value_in_a_path_is_one_step() {
    let mut inspected = inspected();
    inspected.plugin_data =
        json!({"labels": {"rack": "a.b", "zone": "x/y", "all": "labels/x", "end": ".", "braces": "{node.name}"}});
    let data = |path: &str, items: Value| json!({"op": "set-plugin-data", "args": {"path": path, "value": "yes"}, "loop": items});
    let rack = "{plugin_data[labels][rack]}";
    for (path, items, made) in [
        ("nics.{item}", json!([rack]), "{'a.b': 'yes'}"),
        ("nics.{item}.c", json!([rack]), "{'a.b': {'c': 'yes'}}"),
        ("nics.x{item}y.{item}", json!([rack]), "{'xa.by': {'a.b': 'yes'}}"),
        ("nics.{plugin_data[labels][rack]}.c", json!([1]), "{'a.b': {'c': 'yes'}}"),
        ("nics.{item}", json!(["{plugin_data[labels][end]}"]), "{'.': 'yes'}"),
        ("nics.{item}", json!(["{plugin_data[labels][braces]}"]), "{'{node.name}': 'yes'}"),
        ("nics.{item[name]}", json!([{"name": rack, "at": "x.y"}]), "{'a.b': 'yes'}"),
        ("nics.{item}", json!(["{node.name}.c"]), "{'n1': {'c': 'yes'}}"),
        ("nics.{item}", json!(["p.{plugin_data[labels][rack]}.q"]), "{'p': {'a.b': {'q': 'yes'}}}"),
        // What the author wrote into the loop is his path.
        ("nics.{item}", json!(["a.b"]), "{'a': {'b': 'yes'}}"),
        ("nics.{item[0][name]}", json!([[{"name": "a.b"}]]), "{'a': {'b': 'yes'}}"),
    ] {
        let log = act("log", json!({"msg": "{plugin_data[nics]}"}));
        let told = given_of([json!({"name": "r", "actions": [data(path, items), log]})], &inspected);
        assert_eq!(told, [format!("Log r: {made}")], "{path}");
    }
    let unset = json!({"op": "unset-plugin-data", "args": {"path": "nics.{item}"}, "loop": [rack]});
    let log = act("log", json!({"msg": "{plugin_data[nics]}"}));
    let actions = json!([data("nics.{item}", json!(["a.b", rack])), unset, log]);
    assert_eq!(given_of([json!({"name": "r", "actions": actions})], &inspected), ["Log r: {'a': {'b': 'yes'}}"]);
    let attribute = |path: &str, items: Value| {
        let action = json!({"op": "set-attribute", "args": {"path": path, "value": "v"}, "loop": items});
        given_of([json!({"name": "r", "actions": [action]})], &inspected).join("\n")
    };
    let zone = "{plugin_data[labels][zone]}";
    for (path, item, made) in [
        ("labels/{item}", rack, "a.b=v by r"),
        ("labels/example.net/{item}", rack, "example.net/a.b=v by r"),
        ("labels/{item}", "example.net/rack", "example.net/rack=v by r"),
        ("properties/{item}", rack, "a.b: \"v\" by r"),
        ("{item}", "properties/size", "size: \"v\" by r"),
    ] {
        assert_eq!(attribute(path, json!([item])), made, "{path}");
    }
    for (path, item, says) in [
        ("labels/{item}", zone, "label \"x/y\" would have its domain from a value"),
        ("labels/{item}", "{plugin_data[labels][zone]}z", "would have its domain from a value"),
        ("properties/{item}", zone, "is no attribute that a rule gives"),
        ("{item}", "{plugin_data[labels][all]}", "\"labels/x\" is no attribute that a rule gives"),
    ] {
        let told = attribute(path, json!([item]));
        assert!(told.starts_with("Failed r: ") && told.contains(says), "{path} {item}: {told}");
    }
}

/// A host whose label was a blank gave its node a property of that name.
#[test]
fn y04_a_name_that_a_hosts_value_makes_can_be_seen() {
    let mut inspected = inspected();
    inspected.plugin_data = json!({"labels": {"blank": " ", "line": "a\nb", "good": "a b"}});
    let told = |op: &str, at: &str, name: &str, label: &str| {
        let item = format!("{{plugin_data[labels][{label}]}}");
        let action = json!({"op": op, "args": {at: name, "value": 1.0}, "loop": [item]});
        given_of([json!({"name": "r", "actions": [action]})], &inspected).join("\n")
    };
    for (op, at, name, of) in [
        ("set-attribute", "path", "properties/{item}", "a property"),
        ("extend-attribute", "path", "properties/{item}", "a property"),
        ("set-capability", "name", "{item}", "a capability"),
        ("set-plugin-data", "path", "nics.{item}", "a part of plugin data"),
        ("extend-plugin-data", "path", "{item}", "a part of plugin data"),
    ] {
        let blank = format!("Failed r: \" \" is no name of {of}: it has nothing that can be seen");
        assert_eq!(told(op, at, name, "blank"), blank, "{op}");
        let line = format!("Failed r: \"a\\nb\" is no name of {of}: it has a control character");
        assert_eq!(told(op, at, name, "line"), line, "{op}");
    }
    assert_eq!(told("set-attribute", "path", "properties/{item}", "good"), "a b: 1 by r");
    // What the author of a stored rule wrote goes on.
    let stored = act("set-attribute", json!({"path": "properties/ ", "value": "v"}));
    assert_eq!(given([json!({"name": "r", "actions": [stored]})]), [" : \"v\" by r"]);
}

#[test]
fn a_rule_that_fails_does_nothing_and_one_that_refuses_ends_the_run() {
    let add = |name: &str| act("add-trait", json!({"name": name}));
    let failing = json!({"name": "failing", "priority": 9, "actions": [
        add("CUSTOM_HALF"),
        act("set-attribute", json!({"path": "properties/half", "value": 1})),
        act("set-plugin-data", json!({"path": "traits.x", "value": 1})),
    ]});
    let after = json!({"name": "after", "actions": [add("CUSTOM_AFTER")]});
    let wrong = "plugin data has no map on the way of \"traits.x\"";
    assert_eq!(
        given([failing, after.clone()]),
        ["CUSTOM_AFTER by after".to_owned(), format!("Failed failing: {wrong}")]
    );
    let refusing =
        json!({"name": "no", "priority": 5, "actions": [act("fail", json!({"msg": "{node.name} is too old"}))]});
    let before = json!({"name": "before", "priority": 9, "actions": [add("CUSTOM_BEFORE")]});
    assert_eq!(given([refusing, after, before]), ["CUSTOM_BEFORE by before", "Refused no: n1 is too old"]);
    let sensitive = json!({"name": "s", "sensitive": true, "actions": [act("log", json!({"msg": "secret"}))]});
    assert_eq!(given([sensitive]), ["Log s: it is sensitive: what it says is not shown"]);
}

#[test]
fn what_cannot_be_is_refused_where_it_is_written() {
    let ok = || vec![act("add-trait", json!({"name": "CUSTOM_A"}))];
    for (conditions, actions, field) in [
        (json!([]), vec![], "actions"),
        (json!([{"op": "ne", "args": {"values": []}}]), ok(), "conditions[0].op"),
        (json!([{"op": "eq", "args": {}}]), ok(), "conditions[0].args"),
        (json!([{"op": "eq", "args": {"values": [], "more": 1}}]), ok(), "conditions[0].args"),
        (json!([{"op": "eq", "args": {"values": "x"}}]), ok(), "conditions[0].args.values"),
        (json!([{"op": "matches", "args": {"value": "x", "regex": "("}}]), ok(), "conditions[0].args.regex"),
        (
            json!([{"op": "matches", "args": {"value": "x", "regex": "a{1000}{1000}"}}]),
            ok(),
            "conditions[0].args.regex",
        ),
        (
            json!([{"op": "matches", "args": {"value": "x", "regex": "a".repeat(MAX_PATTERN + 1)}}]),
            ok(),
            "conditions[0].args.regex",
        ),
        (json!([{"op": "is-none", "args": {"value": 1}, "loop": "abc"}]), ok(), "conditions[0].loop"),
        (json!([{"op": "is-none", "args": {"value": 1}, "loop": vec![1; MAX_ITEMS + 1]}]), ok(), "conditions[0].loop"),
        (json!([]), vec![act("api-call", json!({"url": "http://x"}))], "actions[0].op"),
        (
            json!([]),
            vec![act("set-port-attribute", json!({"port_id": "x", "path": "extra/a", "value": 1}))],
            "actions[0].op",
        ),
        (json!([]), vec![act("set-attribute", json!({"path": "driver", "value": "x"}))], "actions[0].args.path"),
        (json!([]), vec![act("del-attribute", json!({"path": "uuid"}))], "actions[0].args.path"),
        (
            json!([]),
            vec![act("set-attribute", json!({"path": "labels/node.stemma.io/x", "value": "x"}))],
            "actions[0].args.path",
        ),
        (json!([]), vec![act("add-trait", json!({"name": "not one"}))], "actions[0].args.name"),
        (json!([]), vec![act("log", json!({"msg": "x", "level": "loud"}))], "actions[0].args.level"),
        (json!([]), vec![act("fail", json!({"msg": "v".repeat(MAX_RULE)}))], "actions"),
    ] {
        let spec = InspectionRuleSpec {
            conditions: serde_json::from_value::<Vec<RuleCondition>>(conditions.clone()).unwrap(),
            actions: serde_json::from_value(json!(actions)).unwrap(),
            ..InspectionRuleSpec::default()
        };
        assert_eq!(check_rule(&spec).map_err(|wrong| wrong.field), Err(field.to_owned()), "{conditions} {actions:?}");
    }
    let unsupported = |spec: Value| check_rule(&serde_json::from_value(spec).unwrap()).unwrap_err().is_unsupported;
    assert!(unsupported(json!({"actions": [act("api-call", json!({"url": "http://x"}))]})));
    assert!(unsupported(json!({"actions": [act("set-attribute", json!({"path": "extra/a", "value": "x"}))]})));
    assert!(!unsupported(json!({"actions": [act("add", json!({}))]})));
    let grants = json!({"grants": true, "actions": [act("set-attribute", json!({"path": "labels/node.stemma.io/x", "value": "x"}))]});
    assert_eq!(check_rule(&serde_json::from_value(grants).unwrap()), Ok(()));
}

/// Such a rule took no trait away, and nobody was told.
#[test]
fn x06_a_trait_that_is_none_is_taken_away_by_no_rule() {
    for op in ["add-trait", "remove-trait"] {
        let says = |name: &str, items: Value| {
            let mut action = act(op, json!({"name": name}));
            if !items.is_null() {
                action["loop"] = items;
            }
            let rule: InspectionRuleSpec = serde_json::from_value(json!({"actions": [action]})).unwrap();
            check_rule(&rule).and_then(|()| check_named_traits(&rule.actions, &TraitNames::default()))
        };
        for name in ["", " ", "\u{200b}", "CUSTOM_", "not one"] {
            assert!(says(name, Value::Null).is_err(), "{op} {name:?}");
        }
        assert_eq!(says("CUSTOM_A", Value::Null), Ok(()), "{op}");
        assert_eq!(says("CUSTOM_{item}", json!(["A"])), Ok(()), "{op}");
    }
}

#[test]
fn what_rules_give_and_take_has_an_end() {
    let numbers: Vec<usize> = (0..MAX_ITEMS).collect();
    let each = |op: &str, args: Value| json!({"name": "r", "actions": [{"op": op, "args": args, "loop": numbers}]});
    let says = |body: Value| given([body]).join("\n");
    assert!(says(each("add-trait", json!({"name": "CUSTOM_{item}"}))).contains("is one more than the 50"));
    assert!(says(each("set-attribute", json!({"path": "labels/l{item}", "value": "x"}))).contains("at most 64 labels"));
    assert!(
        says(each("set-attribute", json!({"path": "properties/p{item}", "value": "x"})))
            .contains("at most 64 properties")
    );
    let long = "v".repeat(4000);
    assert!(
        says(each("set-plugin-data", json!({"path": "p{item}", "value": long}))).contains("plugin data has at most")
    );
    // Across rules, and in bytes: each writes what one may.
    let writes = |n: usize| json!({"name": format!("w{n}"), "actions": [{"op": "extend-plugin-data", "args": {"path": "all", "value": long}, "loop": vec![1; 20]}]});
    let all = given((0..8).map(writes)).join("\n");
    assert!(all.contains("plugin data has at most"), "{all}");
    let deep = vec!["d"; MAX_DATA_DEPTH].join(".");
    assert!(
        says(json!({"name": "r", "actions": [act("set-plugin-data", json!({"path": deep, "value": 1}))]}))
            .contains("fewer than 16 names")
    );
    let steps: Vec<Value> = (0..MAX_PARTS)
        .map(|_| json!({"op": "is-none", "args": {"value": "x"}, "loop": numbers, "multiple": "all"}))
        .collect();
    let inverted: Vec<Value> = steps
        .into_iter()
        .map(|mut one| {
            one["op"] = "!is-none".into();
            one
        })
        .collect();
    let costly = |n: usize| json!({"name": format!("c{n:03}"), "conditions": inverted, "actions": [act("log", json!({"msg": "x"}))]});
    let spent = given((0..100).map(costly)).join("\n");
    assert!(spent.contains("all rules together take more than they may for one report"), "{spent}");
}

/// What is set again, or deleted, takes no room any more.
#[test]
fn w07_what_rules_give_is_counted_as_it_is_in_the_end() {
    let long = "v".repeat(190);
    let values: Vec<String> = (0..100).map(|n| format!("{long}{n:010}")).collect();
    for (kind, shown) in [("labels", ""), ("properties", "\"")] {
        let each = |op: &str, args: Value| json!({"op": op, "args": args, "loop": values});
        let set = each("set-attribute", json!({"path": format!("{kind}/one"), "value": "{item}"}));
        let by = if kind == "labels" { "=" } else { ": " };
        let expected = format!("one{by}{shown}{long}0000000099{shown} by r");
        assert_eq!(given([json!({"name": "r", "actions": [set]})]), [expected], "{kind}");
        let rules = (0..MAX_PARTS).map(|n| {
            json!({"name": format!("r{n:02}"), "actions": [
                {"op": "set-attribute", "args": {"path": format!("{kind}/one"), "value": values[n]}, "loop": values},
                {"op": "del-attribute", "args": {"path": format!("{kind}/one")}},
            ]})
        });
        assert_eq!(given(rules), Vec::<String>::new(), "{kind}");
    }
}

#[test]
fn rules_decide_the_same_while_only_their_words_for_people_change() {
    let mut rules = set([json!({"name": "a", "actions": [act("add-trait", json!({"name": "CUSTOM_A"}))]})]);
    let body = |more: Value| {
        let mut body = json!({"name": "a", "actions": [act("add-trait", json!({"name": "CUSTOM_A"}))]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        rule(1, body)
    };
    for (more, decides) in [
        (json!({"description": "x"}), false),
        (json!({"labels": BTreeMap::from([("a", "b")])}), false),
        (json!({"name": "b"}), true),
        (json!({"name": "b", "grants": true}), true),
        (json!({"name": "b", "grants": true, "conditions": [{"op": "is-none", "args": {"value": null}}]}), true),
    ] {
        let before = rules.clone();
        rules.put(Arc::new(body(more.clone())));
        assert_eq!(!rules.decides_like(&before), decides, "{more}");
    }
    let before = rules.clone();
    rules.remove(Uuid::from_u128(1));
    assert!(!rules.decides_like(&before));
    assert!(rules.is_empty());
}

#[test]
fn x06_a_condition_that_compares_nothing_is_refused() {
    let says = |op: &str, args: &Value| {
        let act = json!({"op": "set-attribute", "args": {"path": "properties/a", "value": "x"}});
        let rule = json!({"conditions": [{"op": op, "args": args}], "actions": [act]});
        check_rule(&serde_json::from_value(rule).unwrap()).map_err(|wrong| wrong.to_string())
    };
    for (op, args, place) in [
        ("eq", json!({"values": ["", ""]}), "values"),
        ("!eq", json!([["", " "]]), "values"),
        ("! lt", json!([["", "\u{200b}"]]), "values"),
        ("lt", json!(["", "\u{200b}"]), "values"),
        ("gt", json!({"values": [""]}), "values"),
        ("matches", json!({"value": "{inventory[cpu][vendor]}", "regex": ""}), "regex"),
        ("contains", json!(["{inventory[cpu][vendor]}", ""]), "regex"),
        ("contains", json!(["{inventory[cpu][vendor]}", "()"]), "regex"),
        ("matches", json!(["{inventory[cpu][vendor]}", "(?:)*|()"]), "regex"),
    ] {
        let refused = says(op, &args).unwrap_err();
        assert!(refused.starts_with(&format!("conditions[0].args.{place}: ")), "{op} {args}: {refused}");
    }
    for (op, args) in [
        ("eq", json!({"values": ["{inventory[cpu][vendor]}", ""]})),
        ("eq", json!([["a", "a"]])),
        ("is-empty", json!({"value": ""})),
        ("one-of", json!({"value": "{inventory[cpu][vendor]}", "values": [""]})),
        ("matches", json!(["{inventory[cpu][vendor]}", "^$"])),
        ("contains", json!(["{inventory[bmc_address]}", ":"])),
        ("contains", json!(["{inventory[bmc_address]}", "(:)"])),
    ] {
        assert_eq!(says(op, &args), Ok(()), "{op} {args}");
    }
}
