//! Tests of the effects of inspection rules, and of their limits.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use uuid::Uuid;

use super::limits::{MAX_DATA_DEPTH, MAX_PATTERN_BYTES};
use super::*;
use crate::name::ObjectName;
use crate::object::{InspectionRule, Meta, RuleCondition, Timestamp};

/// Returns a rule with this body, which must be valid. `nth` is the rule's uuid and its time of creation.
fn test_rule(nth: u64, mut body: Value) -> InspectionRule {
    let name = body.as_object_mut().unwrap().remove("name").map(|name| ObjectName::new(name.as_str().unwrap()).unwrap());
    let spec: InspectionRuleSpec = serde_json::from_value(body).unwrap();
    check_rule(&spec).unwrap();
    InspectionRule { meta: Meta::new(Uuid::from_u128(u128::from(nth)), name, Timestamp(nth)), spec }
}

/// Returns rules with these bodies, created in this order.
fn rule_set(bodies: impl IntoIterator<Item = Value>) -> RuleSet {
    let mut rules = RuleSet::default();
    for (nth, body) in (1..).zip(bodies) {
        rules.insert(Arc::new(test_rule(nth, body)));
    }
    rules
}

/// Returns a node with properties that operators set (`own`, `list`, `capabilities`), the inventory of its host, and
/// plugin data with one trait.
fn inspected_node() -> InspectedNode {
    InspectedNode {
        node: json!({"name": "n1", "driver": null, "properties": {"own": "op", "list": ["op"], "capabilities": "boot_mode:bios"}}),
        inventory: json!({"cpu": {"count": 8, "model": "EPYC"}, "disks": {"sda": {}, "sdb": {}}, "vendor": "Dell Inc."}),
        plugin_data: json!({"traits": ["HW_CPU_X86_AVX2"], "labels": {}}),
    }
}

/// Runs rules on [`inspected_node`]. Returns a line for each effect.
fn outcome_lines(bodies: impl IntoIterator<Item = Value>) -> Vec<String> {
    outcome_lines_for(bodies, &inspected_node())
}

/// Runs rules on this node. Returns a line for each trait, label, property and note that the rules cause.
fn outcome_lines_for(bodies: impl IntoIterator<Item = Value>, inspected: &InspectedNode) -> Vec<String> {
    let outcome = rule_set(bodies).run(inspected);
    let traits = outcome
        .traits
        .iter()
        .map(|(name, rules)| format!("{name} by {}", rules.iter().map(AsRef::as_ref).collect::<Vec<_>>().join("+")));
    let labels = outcome
        .labels
        .iter()
        .flat_map(|entry| entry.labels.iter().map(move |(key, value)| format!("{key}={value} by {}", entry.rule)));
    let properties = outcome.properties.iter().map(|(name, entry)| format!("{name}: {} by {}", entry.value, entry.rule));
    let notes = outcome.notes.iter().map(|note| format!("{:?} {}: {}", note.kind, note.rule, note.message));
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
        // Values that operators set are unchanged. A later rule reads the values that an earlier rule set.
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
        // An earlier rule passes plugin data to a later rule, which has a loop.
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
    let set_data =
        |path: &str, items: Value| json!({"op": "set-plugin-data", "args": {"path": path, "value": "yes"}, "loop": items});
    let rack = "{plugin_data[labels][rack]}";
    for (path, items, expected) in [
        ("nics.{item}", json!([rack]), "{'a.b': 'yes'}"),
        ("nics.{item}.c", json!([rack]), "{'a.b': {'c': 'yes'}}"),
        ("nics.x{item}y.{item}", json!([rack]), "{'xa.by': {'a.b': 'yes'}}"),
        ("nics.{plugin_data[labels][rack]}.c", json!([1]), "{'a.b': {'c': 'yes'}}"),
        ("nics.{item}", json!(["{plugin_data[labels][end]}"]), "{'.': 'yes'}"),
        ("nics.{item}", json!(["{plugin_data[labels][braces]}"]), "{'{node.name}': 'yes'}"),
        ("nics.{item[name]}", json!([{"name": rack, "at": "x.y"}]), "{'a.b': 'yes'}"),
        ("nics.{item}", json!(["{node.name}.c"]), "{'n1': {'c': 'yes'}}"),
        ("nics.{item}", json!(["p.{plugin_data[labels][rack]}.q"]), "{'p': {'a.b': {'q': 'yes'}}}"),
        // A dot that the author wrote into a loop item separates two steps of the path.
        ("nics.{item}", json!(["a.b"]), "{'a': {'b': 'yes'}}"),
        ("nics.{item[0][name]}", json!([[{"name": "a.b"}]]), "{'a': {'b': 'yes'}}"),
    ] {
        let log = action("log", json!({"msg": "{plugin_data[nics]}"}));
        let outcome = outcome_lines_for([json!({"name": "r", "actions": [set_data(path, items), log]})], &inspected);
        assert_eq!(outcome, [format!("Log r: {expected}")], "{path}");
    }
    let unset = json!({"op": "unset-plugin-data", "args": {"path": "nics.{item}"}, "loop": [rack]});
    let log = action("log", json!({"msg": "{plugin_data[nics]}"}));
    let actions = json!([set_data("nics.{item}", json!(["a.b", rack])), unset, log]);
    assert_eq!(outcome_lines_for([json!({"name": "r", "actions": actions})], &inspected), ["Log r: {'a': {'b': 'yes'}}"]);
    let run_set_attribute = |path: &str, items: Value| {
        let action = json!({"op": "set-attribute", "args": {"path": path, "value": "v"}, "loop": items});
        outcome_lines_for([json!({"name": "r", "actions": [action]})], &inspected).join("\n")
    };
    let zone = "{plugin_data[labels][zone]}";
    for (path, item, expected) in [
        ("labels/{item}", rack, "a.b=v by r"),
        ("labels/example.net/{item}", rack, "example.net/a.b=v by r"),
        ("labels/{item}", "example.net/rack", "example.net/rack=v by r"),
        ("properties/{item}", rack, "a.b: \"v\" by r"),
        ("{item}", "properties/size", "size: \"v\" by r"),
    ] {
        assert_eq!(run_set_attribute(path, json!([item])), expected, "{path}");
    }
    for (path, item, expected) in [
        ("labels/{item}", zone, "label \"x/y\" would get its domain from a value"),
        ("labels/{item}", "{plugin_data[labels][zone]}z", "would get its domain from a value"),
        ("properties/{item}", zone, "is not an attribute that rules set"),
        ("{item}", "{plugin_data[labels][all]}", "\"labels/x\" is not an attribute that rules set"),
    ] {
        let outcome = run_set_attribute(path, json!([item]));
        assert!(outcome.starts_with("Failed r: ") && outcome.contains(expected), "{path} {item}: {outcome}");
    }
}

/// Regression test: a host with a blank label gave its node a property with a blank name.
#[test]
fn y04_rule_rejects_filled_name_when_not_printable() {
    let mut inspected = inspected_node();
    inspected.plugin_data = json!({"labels": {"blank": " ", "line": "a\nb", "good": "a b"}});
    let run_with_label = |op: &str, argument: &str, name: &str, label: &str| {
        let item = format!("{{plugin_data[labels][{label}]}}");
        let action = json!({"op": op, "args": {argument: name, "value": 1.0}, "loop": [item]});
        outcome_lines_for([json!({"name": "r", "actions": [action]})], &inspected).join("\n")
    };
    for (op, argument, name, kind) in [
        ("set-attribute", "path", "properties/{item}", "a property"),
        ("extend-attribute", "path", "properties/{item}", "a property"),
        ("set-capability", "name", "{item}", "a capability"),
        ("set-plugin-data", "path", "nics.{item}", "a part of plugin data"),
        ("extend-plugin-data", "path", "{item}", "a part of plugin data"),
    ] {
        let blank = format!("Failed r: \" \" is not a name of {kind}: it has no visible character");
        assert_eq!(run_with_label(op, argument, name, "blank"), blank, "{op}");
        let line = format!("Failed r: \"a\\nb\" is not a name of {kind}: it has a control character");
        assert_eq!(run_with_label(op, argument, name, "line"), line, "{op}");
    }
    // The number 1.0 is stored as 1.
    assert_eq!(run_with_label("set-attribute", "path", "properties/{item}", "good"), "a b: 1 by r");
    // A blank name is refused only if a value fills it. A stored rule with a blank name in its own text still works.
    let blank_action = action("set-attribute", json!({"path": "properties/ ", "value": "v"}));
    assert_eq!(outcome_lines([json!({"name": "r", "actions": [blank_action]})]), [" : \"v\" by r"]);
}

/// A rule of which one action fails has no effect, and the next rule runs. A `fail` action ends the evaluation. The
/// effects of earlier rules then remain, and later rules do not run. The message of a sensitive rule is hidden.
#[test]
fn rule_run_skips_failed_rule_and_ends_at_refusal() {
    let add = |name: &str| action("add-trait", json!({"name": name}));
    // The last action fails, because `traits` in the plugin data is a list.
    let failing = json!({"name": "failing", "priority": 9, "actions": [
        add("CUSTOM_HALF"),
        action("set-attribute", json!({"path": "properties/half", "value": 1})),
        action("set-plugin-data", json!({"path": "traits.x", "value": 1})),
    ]});
    let last_rule = json!({"name": "after", "actions": [add("CUSTOM_AFTER")]});
    let error = "plugin data has a value that is not a map on the path \"traits.x\"";
    assert_eq!(
        outcome_lines([failing, last_rule.clone()]),
        ["CUSTOM_AFTER by after".to_owned(), format!("Failed failing: {error}")]
    );
    let refusing = json!({"name": "no", "priority": 5, "actions": [action("fail", json!({"msg": "{node.name} is too old"}))]});
    let first_rule = json!({"name": "before", "priority": 9, "actions": [add("CUSTOM_BEFORE")]});
    assert_eq!(outcome_lines([refusing, last_rule, first_rule]), ["CUSTOM_BEFORE by before", "Refused no: n1 is too old"]);
    let sensitive = json!({"name": "s", "sensitive": true, "actions": [action("log", json!({"msg": "secret"}))]});
    assert_eq!(outcome_lines([sensitive]), ["Log s: the rule is sensitive, so its message is not shown"]);
}

#[test]
fn check_rule_rejects_impossible_conditions_and_actions() {
    let valid_actions = || vec![action("add-trait", json!({"name": "CUSTOM_A"}))];
    for (conditions, actions, field) in [
        (json!([]), vec![], "actions"),
        (json!([{"op": "ne", "args": {"values": []}}]), valid_actions(), "conditions[0].op"),
        (json!([{"op": "eq", "args": {}}]), valid_actions(), "conditions[0].args"),
        (json!([{"op": "eq", "args": {"values": [], "more": 1}}]), valid_actions(), "conditions[0].args"),
        (json!([{"op": "eq", "args": {"values": "x"}}]), valid_actions(), "conditions[0].args.values"),
        (json!([{"op": "matches", "args": {"value": "x", "regex": "("}}]), valid_actions(), "conditions[0].args.regex"),
        (
            json!([{"op": "matches", "args": {"value": "x", "regex": "a{1000}{1000}"}}]),
            valid_actions(),
            "conditions[0].args.regex",
        ),
        (
            json!([{"op": "matches", "args": {"value": "x", "regex": "a".repeat(MAX_PATTERN_BYTES + 1)}}]),
            valid_actions(),
            "conditions[0].args.regex",
        ),
        (json!([{"op": "is-none", "args": {"value": 1}, "loop": "abc"}]), valid_actions(), "conditions[0].loop"),
        (
            json!([{"op": "is-none", "args": {"value": 1}, "loop": vec![1; MAX_LOOP_ITEMS + 1]}]),
            valid_actions(),
            "conditions[0].loop",
        ),
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
        assert_eq!(check_rule(&spec).map_err(|error| error.field), Err(field.to_owned()), "{conditions} {actions:?}");
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
        let check = |name: &str, items: Value| {
            let mut action = action(op, json!({"name": name}));
            if !items.is_null() {
                action["loop"] = items;
            }
            let rule: InspectionRuleSpec = serde_json::from_value(json!({"actions": [action]})).unwrap();
            check_rule(&rule).and_then(|()| check_named_traits(&rule.actions, &TraitNames::default()))
        };
        for name in ["", " ", "\u{200b}", "CUSTOM_", "not one"] {
            assert!(check(name, Value::Null).is_err(), "{op} {name:?}");
        }
        assert_eq!(check("CUSTOM_A", Value::Null), Ok(()), "{op}");
        assert_eq!(check("CUSTOM_{item}", json!(["A"])), Ok(()), "{op}");
    }
}

/// A rule fails with a message if it exceeds a limit: too many traits, labels or properties, or too deep plugin data. A
/// rule also fails if it and the rules before it together have too much plugin data or too many steps.
#[test]
fn rule_effects_are_bounded() {
    let numbers: Vec<usize> = (0..MAX_LOOP_ITEMS).collect();
    let looping_rule = |op: &str, args: Value| json!({"name": "r", "actions": [{"op": op, "args": args, "loop": numbers}]});
    let outcome_of = |body: Value| outcome_lines([body]).join("\n");
    assert!(outcome_of(looping_rule("add-trait", json!({"name": "CUSTOM_{item}"}))).contains("is one more than the 50"));
    assert!(
        outcome_of(looping_rule("set-attribute", json!({"path": "labels/l{item}", "value": "x"}))).contains("at most 64 labels")
    );
    assert!(
        outcome_of(looping_rule("set-attribute", json!({"path": "properties/p{item}", "value": "x"})))
            .contains("at most 64 properties")
    );
    let long_value = "v".repeat(4000);
    assert!(
        outcome_of(looping_rule("set-plugin-data", json!({"path": "p{item}", "value": long_value})))
            .contains("plugin data has at most")
    );
    // The limit is the size of the plugin data of all rules together, in bytes. Each rule alone is below the limit.
    let writes = |n: usize| json!({"name": format!("w{n}"), "actions": [{"op": "extend-plugin-data", "args": {"path": "all", "value": long_value}, "loop": vec![1; 20]}]});
    let lines = outcome_lines((0..8).map(writes)).join("\n");
    assert!(lines.contains("plugin data has at most"), "{lines}");
    let deep_path = vec!["d"; MAX_DATA_DEPTH].join(".");
    assert!(
        outcome_of(json!({"name": "r", "actions": [action("set-plugin-data", json!({"path": deep_path, "value": 1}))]}))
            .contains("fewer than 16 names")
    );
    // The conditions hold for all items, because the text is not none. So each condition costs a step for every item.
    let steps: Vec<Value> =
        (0..MAX_CLAUSES).map(|_| json!({"op": "is-none", "args": {"value": "x"}, "loop": numbers, "multiple": "all"})).collect();
    let inverted: Vec<Value> = steps
        .into_iter()
        .map(|mut condition| {
            condition["op"] = "!is-none".into();
            condition
        })
        .collect();
    let costly =
        |n: usize| json!({"name": format!("c{n:03}"), "conditions": inverted, "actions": [action("log", json!({"msg": "x"}))]});
    let outcome = outcome_lines((0..100).map(costly)).join("\n");
    assert!(outcome.contains("all rules together exceed the number of steps for one report"), "{outcome}");
}

/// A value that a later action replaces or deletes does not count towards the limits. Each loop sets 100 values of 200
/// bytes one after another, which is more than the limit of 16 KiB.
#[test]
fn w07_quota_counts_only_final_effects() {
    let long = "v".repeat(190);
    let values: Vec<String> = (0..100).map(|n| format!("{long}{n:010}")).collect();
    for (kind, quote) in [("labels", ""), ("properties", "\"")] {
        let looping_action = |op: &str, args: Value| json!({"op": op, "args": args, "loop": values});
        let set = looping_action("set-attribute", json!({"path": format!("{kind}/one"), "value": "{item}"}));
        let separator = if kind == "labels" { "=" } else { ": " };
        let expected = format!("one{separator}{quote}{long}0000000099{quote} by r");
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

/// A change of a rule's description or labels leaves the effects of the rules the same. A change of its name, `grants`
/// or conditions does not. Each changed rule is compared with the rule before it.
#[test]
fn has_same_effects_ignores_descriptions_and_labels() {
    let mut rules = rule_set([json!({"name": "a", "actions": [action("add-trait", json!({"name": "CUSTOM_A"}))]})]);
    let body = |extra_fields: Value| {
        let mut body = json!({"name": "a", "actions": [action("add-trait", json!({"name": "CUSTOM_A"}))]});
        body.as_object_mut().unwrap().extend(extra_fields.as_object().unwrap().clone());
        test_rule(1, body)
    };
    for (extra_fields, changes_effects) in [
        (json!({"description": "x"}), false),
        (json!({"labels": BTreeMap::from([("a", "b")])}), false),
        (json!({"name": "b"}), true),
        (json!({"name": "b", "grants": true}), true),
        (json!({"name": "b", "grants": true, "conditions": [{"op": "is-none", "args": {"value": null}}]}), true),
    ] {
        let rules_before = rules.clone();
        rules.insert(Arc::new(body(extra_fields.clone())));
        assert_eq!(!rules.has_same_effects(&rules_before), changes_effects, "{extra_fields}");
    }
    let rules_before = rules.clone();
    rules.remove(Uuid::from_u128(1));
    assert!(!rules.has_same_effects(&rules_before));
    assert!(rules.is_empty());
}

/// A condition is rejected, with the name of the argument, if its pattern matches no specific character or its values
/// are all blank. The operators `is-empty` and `one-of` may have blank values.
#[test]
fn x06_check_rule_rejects_condition_with_only_blank_values() {
    let check = |op: &str, args: &Value| {
        let action_body = json!({"op": "set-attribute", "args": {"path": "properties/a", "value": "x"}});
        let rule = json!({"conditions": [{"op": op, "args": args}], "actions": [action_body]});
        check_rule(&serde_json::from_value(rule).unwrap()).map_err(|error| error.to_string())
    };
    for (op, args, argument) in [
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
        let message = check(op, &args).unwrap_err();
        assert!(message.starts_with(&format!("conditions[0].args.{argument}: ")), "{op} {args}: {message}");
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
        assert_eq!(check(op, &args), Ok(()), "{op} {args}");
    }
}
