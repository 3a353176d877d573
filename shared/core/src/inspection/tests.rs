//! Tests of what rules set and of their limits.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use uuid::Uuid;

use super::limits::{MAX_DATA_DEPTH, MAX_PATTERN_BYTES};
use super::*;
use crate::name::ObjectName;
use crate::object::{InspectionRule, Meta, RuleCondition, Timestamp};

/// Returns a rule with this body and `nth` as its uuid and time of creation.
fn test_rule(nth: u64, mut body: Value) -> InspectionRule {
    let name = body.as_object_mut().unwrap().remove("name").map(|name| ObjectName::new(name.as_str().unwrap()).unwrap());
    let spec: InspectionRuleSpec = serde_json::from_value(body).unwrap();
    check_rule(&spec).unwrap();
    InspectionRule { meta: Meta::new(Uuid::from_u128(u128::from(nth)), name, Timestamp(nth)), spec }
}

fn rule_set(bodies: impl IntoIterator<Item = Value>) -> RuleSet {
    let mut rules = RuleSet::default();
    for (nth, body) in (1..).zip(bodies) {
        rules.insert(Arc::new(test_rule(nth, body)));
    }
    rules
}

fn inspected_node() -> InspectedNode {
    InspectedNode {
        node: json!({"name": "n1", "driver": null, "properties": {"own": "op", "list": ["op"], "capabilities": "boot_mode:bios"}}),
        inventory: json!({"cpu": {"count": 8, "model": "EPYC"}, "disks": {"sda": {}, "sdb": {}}, "vendor": "Dell Inc."}),
        plugin_data: json!({"traits": ["HW_CPU_X86_AVX2"], "labels": {}}),
    }
}

/// Returns the outcome of rules, one line for each effect.
fn outcome_lines(bodies: impl IntoIterator<Item = Value>) -> Vec<String> {
    outcome_lines_for(bodies, &inspected_node())
}

/// Returns the same for another report.
fn outcome_lines_for(bodies: impl IntoIterator<Item = Value>, inspected: &InspectedNode) -> Vec<String> {
    let ruled = rule_set(bodies).run(inspected);
    let traits = ruled
        .traits
        .iter()
        .map(|(name, rules)| format!("{name} by {}", rules.iter().map(AsRef::as_ref).collect::<Vec<_>>().join("+")));
    let labels =
        ruled.labels.iter().flat_map(|one| one.labels.iter().map(move |(key, value)| format!("{key}={value} by {}", one.rule)));
    let properties = ruled.properties.iter().map(|(name, one)| format!("{name}: {} by {}", one.value, one.rule));
    let notes = ruled.notes.iter().map(|note| format!("{:?} {}: {}", note.kind, note.rule, note.message));
    traits.chain(labels).chain(properties).chain(notes).collect()
}

fn action(op: &str, args: Value) -> Value {
    let mut action = json!({ "op": op });
    action["args"] = args;
    action
}

#[test]
fn rule_set_outcome_names_each_rule() {
    let epyc = json!([{"op": "contains", "args": {"value": "{inventory[cpu][model]}", "regex": "EPYC"}}]);
    let add = |name: &str| action("add-trait", json!({"name": name}));
    for (bodies, expected) in [
        (vec![json!({"name": "a", "conditions": epyc, "actions": [add("CUSTOM_A")]})], vec!["CUSTOM_A by a"]),
        // Two rules add one trait. The greater priority runs first, whichever rule was created first.
        (
            vec![
                json!({"name": "a", "actions": [add("CUSTOM_A")]}),
                json!({"name": "b", "priority": 5, "actions": [add("CUSTOM_A")]}),
            ],
            vec!["CUSTOM_A by a+b"],
        ),
        (
            vec![
                json!({"name": "late", "actions": [action("remove-trait", json!({"name": "CUSTOM_A"}))]}),
                json!({"name": "soon", "priority": 5, "actions": [add("CUSTOM_A"), add("CUSTOM_B")]}),
            ],
            vec!["CUSTOM_B by soon"],
        ),
        // A rule without a name is named by its uuid.
        (vec![json!({"actions": [add("CUSTOM_A")]})], vec!["CUSTOM_A by 00000000-0000-0000-0000-000000000001"]),
        (
            vec![
                json!({"name": "a", "priority": 9, "actions": [action("set-attribute", json!({"path": "labels/example.net/cpus", "value": "{inventory[cpu][count]}"}))]}),
                json!({"name": "b", "actions": [action("set-attribute", json!({"path": "/labels/rack", "value": "r1"}))]}),
            ],
            vec!["example.net/cpus=8 by a", "rack=r1 by b"],
        ),
        // Values of operators are unchanged. A later rule reads what an earlier one set.
        (
            vec![
                json!({"name": "a", "priority": 9, "actions": [
                    action("set-attribute", json!({"path": "properties/own", "value": "rule"})),
                    action("set-attribute", json!({"path": "properties/size", "value": 2})),
                    action("extend-attribute", json!({"path": "properties/list", "value": "rule"})),
                    action("extend-attribute", json!({"path": "properties/more", "value": "x", "unique": true})),
                    action("extend-attribute", json!({"path": "properties/more", "value": "x", "unique": true})),
                    action("del-attribute", json!({"path": "properties/own"})),
                ]}),
                json!({"name": "b", "actions": [
                    action("set-attribute", json!({"path": "properties/size", "value": 3})),
                    action("set-attribute", json!({"path": "properties/copy", "value": "{node.properties[size]} {node.properties[own]}"})),
                ]}),
            ],
            vec!["copy: \"2 op\" by b", "more: [\"x\"] by a", "size: 2 by a"],
        ),
        (
            vec![json!({"name": "a", "actions": [
                action("set-capability", json!({"name": "boot_mode", "value": "uefi"})),
                action("set-capability", json!({"name": "cpus", "value": "{inventory[cpu][count]}"})),
                action("set-capability", json!({"name": "gone", "value": "x"})),
                action("unset-capability", json!({"name": "gone"})),
            ]})],
            vec!["capabilities: \"boot_mode:bios,cpus:8\" by a"],
        ),
        // Plugin data that is passed to later rules, and loops.
        (
            vec![
                json!({"name": "a", "priority": 9, "actions": [
                    action("set-plugin-data", json!({"path": "seen.by", "value": "{node.name}"})),
                    action("extend-plugin-data", json!({"path": "seen.list", "value": 1})),
                ]}),
                json!({"name": "b", "conditions": [{"op": "eq", "args": {"values": ["{plugin_data[seen][by]}", "n1"]}}],
                    "actions": [{"op": "add-trait", "args": {"name": "CUSTOM_{item[name]}"}, "loop": [{"name": "X"}, {"name": "Y"}]}]}),
            ],
            vec!["CUSTOM_X by b", "CUSTOM_Y by b"],
        ),
        (
            vec![json!({"name": "a", "actions": [action("log", json!({"msg": "{node.name} has {inventory[cpu][count]}"}))]})],
            vec!["Log a: n1 has 8"],
        ),
    ] {
        assert_eq!(outcome_lines(bodies), expected);
    }
}

/// Regression test: a host that reported `a.b` as its rack wrote to another path than the rule's author intended.
#[test]
fn y03_path_treats_filled_value_as_one_step() {
    let mut inspected = inspected_node();
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
        // The text that the author wrote into the loop is part of the path.
        ("nics.{item}", json!(["a.b"]), "{'a': {'b': 'yes'}}"),
        ("nics.{item[0][name]}", json!([[{"name": "a.b"}]]), "{'a': {'b': 'yes'}}"),
    ] {
        let log = action("log", json!({"msg": "{plugin_data[nics]}"}));
        let told = outcome_lines_for([json!({"name": "r", "actions": [data(path, items), log]})], &inspected);
        assert_eq!(told, [format!("Log r: {made}")], "{path}");
    }
    let unset = json!({"op": "unset-plugin-data", "args": {"path": "nics.{item}"}, "loop": [rack]});
    let log = action("log", json!({"msg": "{plugin_data[nics]}"}));
    let actions = json!([data("nics.{item}", json!(["a.b", rack])), unset, log]);
    assert_eq!(outcome_lines_for([json!({"name": "r", "actions": actions})], &inspected), ["Log r: {'a': {'b': 'yes'}}"]);
    let attribute = |path: &str, items: Value| {
        let action = json!({"op": "set-attribute", "args": {"path": path, "value": "v"}, "loop": items});
        outcome_lines_for([json!({"name": "r", "actions": [action]})], &inspected).join("\n")
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
        ("labels/{item}", zone, "label \"x/y\" would get its domain from a value"),
        ("labels/{item}", "{plugin_data[labels][zone]}z", "would get its domain from a value"),
        ("properties/{item}", zone, "is not an attribute that rules set"),
        ("{item}", "{plugin_data[labels][all]}", "\"labels/x\" is not an attribute that rules set"),
    ] {
        let told = attribute(path, json!([item]));
        assert!(told.starts_with("Failed r: ") && told.contains(says), "{path} {item}: {told}");
    }
}

/// Regression test: a host with a blank label gave its node a property with a blank name.
#[test]
fn y04_rule_rejects_filled_name_when_not_printable() {
    let mut inspected = inspected_node();
    inspected.plugin_data = json!({"labels": {"blank": " ", "line": "a\nb", "good": "a b"}});
    let told = |op: &str, at: &str, name: &str, label: &str| {
        let item = format!("{{plugin_data[labels][{label}]}}");
        let action = json!({"op": op, "args": {at: name, "value": 1.0}, "loop": [item]});
        outcome_lines_for([json!({"name": "r", "actions": [action]})], &inspected).join("\n")
    };
    for (op, at, name, of) in [
        ("set-attribute", "path", "properties/{item}", "a property"),
        ("extend-attribute", "path", "properties/{item}", "a property"),
        ("set-capability", "name", "{item}", "a capability"),
        ("set-plugin-data", "path", "nics.{item}", "a part of plugin data"),
        ("extend-plugin-data", "path", "{item}", "a part of plugin data"),
    ] {
        let blank = format!("Failed r: \" \" is not a name of {of}: it has nothing that can be seen");
        assert_eq!(told(op, at, name, "blank"), blank, "{op}");
        let line = format!("Failed r: \"a\\nb\" is not a name of {of}: it has a control character");
        assert_eq!(told(op, at, name, "line"), line, "{op}");
    }
    assert_eq!(told("set-attribute", "path", "properties/{item}", "good"), "a b: 1 by r");
    // A stored name that the rule's author wrote still works.
    let stored = action("set-attribute", json!({"path": "properties/ ", "value": "v"}));
    assert_eq!(outcome_lines([json!({"name": "r", "actions": [stored]})]), [" : \"v\" by r"]);
}

#[test]
fn rule_run_skips_failed_rule_and_ends_at_refusal() {
    let add = |name: &str| action("add-trait", json!({"name": name}));
    let failing = json!({"name": "failing", "priority": 9, "actions": [
        add("CUSTOM_HALF"),
        action("set-attribute", json!({"path": "properties/half", "value": 1})),
        action("set-plugin-data", json!({"path": "traits.x", "value": 1})),
    ]});
    let after = json!({"name": "after", "actions": [add("CUSTOM_AFTER")]});
    let wrong = "plugin data has a value that is not a map on the path \"traits.x\"";
    assert_eq!(outcome_lines([failing, after.clone()]), ["CUSTOM_AFTER by after".to_owned(), format!("Failed failing: {wrong}")]);
    let refusing = json!({"name": "no", "priority": 5, "actions": [action("fail", json!({"msg": "{node.name} is too old"}))]});
    let before = json!({"name": "before", "priority": 9, "actions": [add("CUSTOM_BEFORE")]});
    assert_eq!(outcome_lines([refusing, after, before]), ["CUSTOM_BEFORE by before", "Refused no: n1 is too old"]);
    let sensitive = json!({"name": "s", "sensitive": true, "actions": [action("log", json!({"msg": "secret"}))]});
    assert_eq!(outcome_lines([sensitive]), ["Log s: the rule is sensitive, so its message is not shown"]);
}

#[test]
fn check_rule_rejects_impossible_conditions_and_actions() {
    let ok = || vec![action("add-trait", json!({"name": "CUSTOM_A"}))];
    for (conditions, actions, field) in [
        (json!([]), vec![], "actions"),
        (json!([{"op": "ne", "args": {"values": []}}]), ok(), "conditions[0].op"),
        (json!([{"op": "eq", "args": {}}]), ok(), "conditions[0].args"),
        (json!([{"op": "eq", "args": {"values": [], "more": 1}}]), ok(), "conditions[0].args"),
        (json!([{"op": "eq", "args": {"values": "x"}}]), ok(), "conditions[0].args.values"),
        (json!([{"op": "matches", "args": {"value": "x", "regex": "("}}]), ok(), "conditions[0].args.regex"),
        (json!([{"op": "matches", "args": {"value": "x", "regex": "a{1000}{1000}"}}]), ok(), "conditions[0].args.regex"),
        (
            json!([{"op": "matches", "args": {"value": "x", "regex": "a".repeat(MAX_PATTERN_BYTES + 1)}}]),
            ok(),
            "conditions[0].args.regex",
        ),
        (json!([{"op": "is-none", "args": {"value": 1}, "loop": "abc"}]), ok(), "conditions[0].loop"),
        (json!([{"op": "is-none", "args": {"value": 1}, "loop": vec![1; MAX_LOOP_ITEMS + 1]}]), ok(), "conditions[0].loop"),
        (json!([]), vec![action("api-call", json!({"url": "http://x"}))], "actions[0].op"),
        (json!([]), vec![action("set-port-attribute", json!({"port_id": "x", "path": "extra/a", "value": 1}))], "actions[0].op"),
        (json!([]), vec![action("set-attribute", json!({"path": "driver", "value": "x"}))], "actions[0].args.path"),
        (json!([]), vec![action("del-attribute", json!({"path": "uuid"}))], "actions[0].args.path"),
        (
            json!([]),
            vec![action("set-attribute", json!({"path": "labels/node.stemma.io/x", "value": "x"}))],
            "actions[0].args.path",
        ),
        (json!([]), vec![action("add-trait", json!({"name": "not one"}))], "actions[0].args.name"),
        (json!([]), vec![action("log", json!({"msg": "x", "level": "loud"}))], "actions[0].args.level"),
        (json!([]), vec![action("fail", json!({"msg": "v".repeat(MAX_RULE_BYTES)}))], "actions"),
    ] {
        let spec = InspectionRuleSpec {
            conditions: serde_json::from_value::<Vec<RuleCondition>>(conditions.clone()).unwrap(),
            actions: serde_json::from_value(json!(actions)).unwrap(),
            ..InspectionRuleSpec::default()
        };
        assert_eq!(check_rule(&spec).map_err(|wrong| wrong.field), Err(field.to_owned()), "{conditions} {actions:?}");
    }
    let unsupported = |spec: Value| check_rule(&serde_json::from_value(spec).unwrap()).unwrap_err().is_unsupported;
    assert!(unsupported(json!({"actions": [action("api-call", json!({"url": "http://x"}))]})));
    assert!(unsupported(json!({"actions": [action("set-attribute", json!({"path": "extra/a", "value": "x"}))]})));
    assert!(!unsupported(json!({"actions": [action("add", json!({}))]})));
    let grants =
        json!({"grants": true, "actions": [action("set-attribute", json!({"path": "labels/node.stemma.io/x", "value": "x"}))]});
    assert_eq!(check_rule(&serde_json::from_value(grants).unwrap()), Ok(()));
}

/// Regression test: a rule that removed an unknown trait had no effect and was not reported.
#[test]
fn x06_check_rule_rejects_removal_of_unknown_trait() {
    for op in ["add-trait", "remove-trait"] {
        let says = |name: &str, items: Value| {
            let mut action = action(op, json!({"name": name}));
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
fn rule_effects_are_bounded() {
    let numbers: Vec<usize> = (0..MAX_LOOP_ITEMS).collect();
    let each = |op: &str, args: Value| json!({"name": "r", "actions": [{"op": op, "args": args, "loop": numbers}]});
    let says = |body: Value| outcome_lines([body]).join("\n");
    assert!(says(each("add-trait", json!({"name": "CUSTOM_{item}"}))).contains("is one more than the 50"));
    assert!(says(each("set-attribute", json!({"path": "labels/l{item}", "value": "x"}))).contains("at most 64 labels"));
    assert!(says(each("set-attribute", json!({"path": "properties/p{item}", "value": "x"}))).contains("at most 64 properties"));
    let long = "v".repeat(4000);
    assert!(says(each("set-plugin-data", json!({"path": "p{item}", "value": long}))).contains("plugin data has at most"));
    // The limit holds across rules, in bytes. Each rule alone is below it.
    let writes = |n: usize| json!({"name": format!("w{n}"), "actions": [{"op": "extend-plugin-data", "args": {"path": "all", "value": long}, "loop": vec![1; 20]}]});
    let all = outcome_lines((0..8).map(writes)).join("\n");
    assert!(all.contains("plugin data has at most"), "{all}");
    let deep = vec!["d"; MAX_DATA_DEPTH].join(".");
    assert!(
        says(json!({"name": "r", "actions": [action("set-plugin-data", json!({"path": deep, "value": 1}))]}))
            .contains("fewer than 16 names")
    );
    let steps: Vec<Value> =
        (0..MAX_CLAUSES).map(|_| json!({"op": "is-none", "args": {"value": "x"}, "loop": numbers, "multiple": "all"})).collect();
    let inverted: Vec<Value> = steps
        .into_iter()
        .map(|mut one| {
            one["op"] = "!is-none".into();
            one
        })
        .collect();
    let costly =
        |n: usize| json!({"name": format!("c{n:03}"), "conditions": inverted, "actions": [action("log", json!({"msg": "x"}))]});
    let spent = outcome_lines((0..100).map(costly)).join("\n");
    assert!(spent.contains("all rules together exceed the number of steps for one report"), "{spent}");
}

/// A value that is replaced or deleted no longer counts.
#[test]
fn w07_quota_counts_only_final_effects() {
    let long = "v".repeat(190);
    let values: Vec<String> = (0..100).map(|n| format!("{long}{n:010}")).collect();
    for (kind, shown) in [("labels", ""), ("properties", "\"")] {
        let each = |op: &str, args: Value| json!({"op": op, "args": args, "loop": values});
        let set = each("set-attribute", json!({"path": format!("{kind}/one"), "value": "{item}"}));
        let by = if kind == "labels" { "=" } else { ": " };
        let expected = format!("one{by}{shown}{long}0000000099{shown} by r");
        assert_eq!(outcome_lines([json!({"name": "r", "actions": [set]})]), [expected], "{kind}");
        let rules = (0..MAX_CLAUSES).map(|n| {
            json!({"name": format!("r{n:02}"), "actions": [
                {"op": "set-attribute", "args": {"path": format!("{kind}/one"), "value": values[n]}, "loop": values},
                {"op": "del-attribute", "args": {"path": format!("{kind}/one")}},
            ]})
        });
        assert_eq!(outcome_lines(rules), Vec::<String>::new(), "{kind}");
    }
}

#[test]
fn rule_set_has_same_effects_when_only_descriptions_change() {
    let mut rules = rule_set([json!({"name": "a", "actions": [action("add-trait", json!({"name": "CUSTOM_A"}))]})]);
    let body = |more: Value| {
        let mut body = json!({"name": "a", "actions": [action("add-trait", json!({"name": "CUSTOM_A"}))]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        test_rule(1, body)
    };
    for (more, decides) in [
        (json!({"description": "x"}), false),
        (json!({"labels": BTreeMap::from([("a", "b")])}), false),
        (json!({"name": "b"}), true),
        (json!({"name": "b", "grants": true}), true),
        (json!({"name": "b", "grants": true, "conditions": [{"op": "is-none", "args": {"value": null}}]}), true),
    ] {
        let before = rules.clone();
        rules.insert(Arc::new(body(more.clone())));
        assert_eq!(!rules.has_same_effects(&before), decides, "{more}");
    }
    let before = rules.clone();
    rules.remove(Uuid::from_u128(1));
    assert!(!rules.has_same_effects(&before));
    assert!(rules.is_empty());
}

#[test]
fn x06_check_rule_rejects_condition_comparing_nothing() {
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
