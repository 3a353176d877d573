//! Tests with tables of conditions: the references that each reads, its result for given inputs, and the error of each
//! refused condition.

use serde_json::json;
use stemma_core::condition::{Condition, MAX_CONDITION_STEPS};

use super::*;

/// Returns inputs with these values. The references in `absent` are known to be absent.
fn inputs(pairs: &[(&str, serde_json::Value)], absent: &[&str]) -> Inputs {
    let mut inputs = Inputs::new();
    for (text, value) in pairs {
        inputs.insert(text.parse().unwrap(), Input::Value(value.clone())).unwrap();
    }
    for text in absent {
        inputs.insert(text.parse().unwrap(), Input::Absent).unwrap();
    }
    inputs
}

/// Evaluates a condition. Fails if its number of steps for these inputs exceeds the limit.
fn check_and_evaluate(condition: &dyn Condition, inputs: &Inputs) -> Result<bool, ConditionError> {
    condition.cost(inputs, MAX_CONDITION_STEPS).and_then(|_| condition.evaluate(inputs))
}

/// Parses a condition, which must be accepted.
fn condition(text: &str) -> Arc<dyn Condition> {
    read(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn condition_lists_references() {
    for (text, expected) in [
        ("true", &[][..]),
        ("labels.tier == 'gold'", &["labels.tier"]),
        ("labels['a.b/c'] == 'x' && has(labels.d)", &["labels.d", "labels['a.b/c']"]),
        ("'a.b/c' in labels", &["labels['a.b/c']"]),
        ("params.x.y > 3 || params['z'].w[0] == 1", &["params.x.y", "params.z.w"]),
        ("params.x == params.x.y", &["params.x"]),
        ("has(params.x.y)", &["params.x.y"]),
        ("'HW_CPU_X86_AVX2' in traits && !('mysql:1' in tags)", &["'HW_CPU_X86_AVX2' in traits", "'mysql:1' in tags"]),
        ("facts.cpu.count >= 4 && facts.os.id == 'debian'", &["facts.cpu.count", "facts.os.id"]),
        ("node.name != cluster.name", &["cluster.name", "node.name"]),
        ("size(nodes(tag='mysql')) > 2", &["nodes(tag='mysql')"]),
        ("nodes(tag=['b', 'a'], or_role='/w.*/').size() == 0", &["nodes(tag=['a', 'b'], or_role='/w.*/')"]),
        ("nodes(role='a').exists(n, n.name == node.name)", &["node.name", "nodes(role='a'){name}"]),
        ("nodes(role='a').filter(n, n.labels.zone == 'x').size() > 1", &["nodes(role='a'){labels.zone}"]),
        ("nodes(role='a').filter(n, n.labels['x/y'] == 'x')[0].address == ''", &["nodes(role='a'){address, labels['x/y']}"]),
        ("nodes(tag='a').all(node, node.name != 'x') && node.name == 'y'", &["node.name", "nodes(tag='a'){name}"]),
        ("has(primary('mysql').name)", &["primary('mysql'){name}"]),
        ("primary('mysql').name == node.name", &["node.name", "primary('mysql'){name}"]),
        ("size(labels_with_prefix('x/')) > 0", &["labels_with_prefix('x/')"]),
        ("params.list.exists(x, x == labels.a)", &["labels.a", "params.list"]),
        ("params.list.exists_one(x, x.on)", &["params.list"]),
        ("params.map[labels.key] == 1", &["labels.key", "params.map"]),
        ("labels.a in ['x', labels.b]", &["labels.a", "labels.b"]),
        ("labels.a.matches('^x[0-9]+$') ? labels.b == '1' : false", &["labels.a", "labels.b"]),
    ] {
        let references: Vec<_> = condition(text).references().iter().map(ToString::to_string).collect();
        assert_eq!(references, expected, "{text}");
    }
}

/// Returns the inputs of a node's conditions. A label, a parameter and the primary of tag `db` are absent.
fn node_inputs() -> Inputs {
    let nodes = json!([
        {"name": "web-1", "labels": {"zone": "a"}},
        {"name": "web-2", "labels": {}},
    ]);
    inputs(
        &[
            ("labels.tier", json!("gold")),
            ("labels['a/b']", json!("x")),
            ("params.n", json!(4)),
            ("params.f", json!(1.5)),
            ("params.m", json!({"k": [1, 2], "u": 18_446_744_073_709_551_615_u64, "z": null})),
            ("params.on", json!(true)),
            ("facts.cpu.count", json!(8)),
            ("'CUSTOM_A' in traits", json!(true)),
            ("'db' in tags", json!(false)),
            ("nodes(tag='web'){labels.zone, name}", nodes),
            ("nodes(tag='none')", json!([])),
            ("primary('web'){name}", json!({"name": "web-1"})),
            ("labels_with_prefix('x/')", json!({"x/a": "1"})),
        ],
        &["labels.gone", "params.gone", "primary('db'){name}"],
    )
}

#[test]
fn condition_evaluates_to_boolean_of_inputs() {
    let inputs = node_inputs();
    for (text, expected) in [
        ("labels.tier == 'gold'", true),
        ("labels.tier == 'silver'", false),
        ("labels['a/b'] == 'x' && 'a/b' in labels && !('gone' in labels)", true),
        ("has(labels.tier) && !has(labels.gone)", true),
        ("has(labels.gone) && labels.gone == 'x'", false),
        ("!has(labels.gone) || labels.gone == 'x'", true),
        ("labels.gone == 'x' || labels.tier == 'gold'", true),
        ("labels.gone == 'x' && labels.tier == 'silver'", false),
        ("has(params.m.k) && !has(params.m.q) && !has(params.gone.x)", true),
        ("params.m.z == null && has(params.m.z)", true),
        ("params.n * 2 == facts.cpu.count && params.f < 2.0 && params.n > 3", true),
        ("params.m.k[1] == 2 && params.m.u > 9u && size(params.m.k) == 2", true),
        ("params.on", true),
        ("'CUSTOM_A' in traits && !('db' in tags)", true),
        ("size(nodes(tag='web')) == 2 && nodes(tag='none').size() == 0", true),
        ("nodes(tag='web').exists(n, n.name == 'web-2')", true),
        ("nodes(tag='web').all(n, has(n.labels.zone))", false),
        ("nodes(tag='web').filter(n, has(n.labels.zone)).size() == 1", true),
        ("nodes(tag='web').filter(n, n.name != 'web-1')[0].name == 'web-2'", true),
        ("nodes(tag='web').exists_one(n, n.name.startsWith('web-1'))", true),
        ("nodes(tag='web').exists(a, nodes(tag='web').exists(b, a.name != b.name))", true),
        ("has(primary('web').name) && primary('web').name == 'web-1'", true),
        ("has(primary('db').name)", false),
        ("!has(primary('db').name) || primary('db').name == 'x'", true),
        ("labels_with_prefix('x/')['x/a'] == '1' && 'x/a' in labels_with_prefix('x/')", true),
        ("labels.tier.matches('^g') && matches(labels.tier, 'ol')", true),
        ("labels.tier in ['gold', 'silver'] ? true : false", true),
        ("params.m.k.exists(x, x == 2) && !params.m.k.all(x, x == 2)", true),
        ("int('4') == params.n && string(params.n) == '4' && double(params.n) == 4.0", true),
    ] {
        assert_eq!(check_and_evaluate(&*condition(text), &inputs), Ok(expected), "{text}");
    }
}

#[test]
fn evaluate_explains_failure_when_value_is_missing() {
    let inputs = node_inputs();
    for (text, expected) in [
        ("labels.gone == 'x'", "reads `labels.gone`, which is absent; check it with `has(…)` first"),
        ("labels.gone == 'x' || labels.tier == 'silver'", "reads `labels.gone`, which is absent; check it with `has(…)` first"),
        ("primary('db').name == 'x'", "reads `primary('db').name`, which is absent; check it with `has(…)` first"),
        ("params.n", "returns a number, not a boolean"),
        ("labels.tier", "returns text, not a boolean"),
        ("params.n / 0 == 1", "it divides by zero"),
        ("params.n > labels.tier", "`>` does not compare a whole number with text"),
        ("nodes(tag='web')[5].name == 'x'", "out of bounds"),
        ("labels.other == 'x'", "`labels.other` is not among the inputs"),
    ] {
        let error = check_and_evaluate(&*condition(text), &inputs).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// The interpreter's own messages show its types, as in `Unsupported binary operator 'div': Float(1.5), Int(4)`. So the
/// errors have their own text.
#[test]
fn y03_evaluate_explains_type_error_in_plain_words() {
    const SAME_TYPE: &str = "; convert both to one type, with `int(…)`, `double(…)` or `string(…)`";
    let inputs = node_inputs();
    for (text, problem, advice) in [
        ("params.f / 4 == 1.0", "`/` does not take a number with a point and a whole number", SAME_TYPE),
        ("params.n * 1.5 > 1.0", "`*` does not take a whole number and a number with a point", SAME_TYPE),
        ("params.n + labels.tier == 'x'", "`+` does not take a whole number and text", SAME_TYPE),
        ("labels.tier + params.n == 'x'", "`+` does not take text and a whole number", SAME_TYPE),
        ("params.n - 1u == 3", "`-` does not take a whole number and an unsigned number", SAME_TYPE),
        ("labels.tier - labels.tier == 'x'", "`-` does not take text and text", ""),
        ("params.m + params.m == 1", "`+` does not take a map and a map", ""),
        ("-labels.tier == 'x'", "`-` does not take text", ""),
        ("params.n < labels.tier", "`<` does not compare a whole number with text", SAME_TYPE),
        ("params.m.z >= 1", "`>=` does not compare null with a whole number", SAME_TYPE),
        ("params.m.k > params.m.k", "`>` does not compare a list with a list", ""),
        ("double('NaN') < 1.0", "`<` compares numbers, and one of the two is not a number (NaN)", ""),
        ("labels.tier && true", "`&&` takes booleans, and not text", "; compare the value with something"),
        ("false || params.n", "`||` takes booleans, and not a whole number", "; compare the value with something"),
        ("!labels.tier", "`!` takes booleans, and not text", "; compare the value with something"),
        ("labels.tier ? true : false", "text is used where a boolean is needed", "; compare it with something"),
        ("params.n in labels.tier", "`in` needs a list or a map, and not text", ""),
        ("[1] in params.m", "a list cannot be a map key", "; a key is text, a number or a boolean"),
        ("[1, 2]['a'] == 1", "text is not an index of a list", "; name an item by a whole number, the first as `x[0]`"),
        (
            "params.m.k[0.5] == 1",
            "a number with a point is not an index of a list",
            "; name an item by a whole number, the first as `x[0]`",
        ),
        ("params.m.k[2] == 1", "the index 2 is out of bounds", "; check the `size` of the list first"),
        ("params.m[labels.tier] == 1", "there is no key \"gold\"", "; check first, with `has(…)` or `in`"),
        ("params.m.k.exists(x, x.on)", "a whole number has no fields", ""),
        ("labels.tier.all(x, x == 'g')", "a loop runs over a list or a map, and not over text", ""),
        ("params.n % 0 == 1", "it divides by zero", "; check first whether the divisor is 0"),
        ("9223372036854775807 + params.n > 0", "the result of `+` does not fit into 64 bits", "; use `double(…)`"),
        ("int(labels.tier) == 1", "`int(…)` makes no whole number of its value", "; check first what the value is"),
        ("bool(labels.tier)", "`bool(…)` makes no boolean of its value", "; check first what the value is"),
        ("size(params.n) == 1", "`size` does not take a whole number", ""),
        ("labels.tier.contains(params.n)", "`contains` does not take text and a whole number", SAME_TYPE),
        ("params.n.matches('4')", "`matches` takes text, and is given another value", "; write `string(…)` around it"),
    ] {
        let message = check_and_evaluate(&*condition(text), &inputs).expect_err(text).to_string();
        assert_eq!(message, format!("failed: {problem}{advice}"), "{text}");
    }
}

/// Asserts that each condition is refused at this line and column, with an error that contains this text.
fn assert_refused(cases: &[(&str, (u32, u32), &str)]) {
    let mut failures = Vec::new();
    for (text, position, expected) in cases {
        match read(text) {
            Ok(condition) => failures.push(format!("{text}: {:?}", condition.references())),
            Err(error) if !error.to_string().contains(expected) => failures.push(format!("{text}: {error}")),
            Err(error) if (error.line, error.column) != *position => {
                failures.push(format!("{text} not {position:?}: {error}"));
            }
            Err(_) => {}
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn condition_rejects_unsupported_syntax_with_position() {
    assert_refused(&[
        ("labels == params", (1, 1), "it is read as a whole"),
        ("true &&\n  labels[params.k] == 'x'", (2, 3), "the key is computed"),
        ("labels['a' + 'b'] == 'x'", (1, 1), "the key is computed"),
        ("labels.a.b == 'x'", (1, 1), "write `labels['a.b']`"),
        ("labels.exists(l, l == 'x')", (1, 1), "it is read as a whole"),
        ("size(labels) > 2", (1, 6), "it is read as a whole"),
        ("labels.k in traits", (1, 1), "the name is computed"),
        ("traits.exists(t, t == 'x')", (1, 1), "check for one"),
        ("has(traits.X)", (1, 1), "traits have no fields"),
        ("facts.uptime > 3", (1, 1), "`facts.uptime` is not a stable fact"),
        ("has(facts.uptime)", (1, 1), "`facts.uptime` is not a stable fact"),
        ("node.nam == 'x'", (1, 1), "`node.nam` does not exist"),
        ("uptime > 3", (1, 1), "there is no variable `uptime` here"),
        ("nodes(tag=labels.t).size() > 0", (1, 11), "the name is computed"),
        ("nodes('a').size() > 0", (1, 1), "it takes named arguments"),
        ("nodes(tag='a', role='b').size() > 0", (1, 1), "cannot be combined"),
        ("nodes(tag='/(/').size() > 0", (1, 11), "is not a regex"),
        ("nodes(tag='a').name == 'x'", (1, 1), "a list of nodes has no fields"),
        ("nodes(tag='a') == []", (1, 1), "a list of nodes is not a value"),
        ("nodes(tag='a')[0] == 'x'", (1, 1), "a node is not a value"),
        ("nodes(tag='a').exists(n, n == 'x')", (1, 26), "a node is not a value"),
        ("nodes(tag='a').exists(n, n.facts.cpu.model == 'x')", (1, 26), "of another host cannot be read"),
        ("nodes(tag='a').map(n, n.name) == ['x']", (1, 1), "`map` is not available"),
        ("nodes(tag='a').map(n, n.name == 'y', n.name) == ['x']", (1, 1), "`map` is not available"),
        ("secret('x') == 'y'", (1, 1), "a condition does not see secrets"),
        ("labels.a.matches(labels.b)", (1, 18), "the pattern is computed"),
        ("labels.a.matches('(')", (1, 18), "unclosed group"),
        ("now() > 3", (1, 1), "there is no function `now` here"),
        ("type(labels.a) == string", (1, 1), "there is no function `type` here"),
        ("labels.a == ", (1, 13), "it is incomplete; write the rest"),
        ("labels.a = 'x'", (1, 10), "`=` is not a comparison; write `==`"),
        ("Foo{a: 1} == 2", (1, 4), "there are no messages here"),
    ]);
}

/// The parser's message for a syntax error lists tokens of the grammar. So the author gets another text.
#[test]
fn y09_condition_explains_syntax_error_in_plain_words() {
    assert_refused(&[
        ("labels.a and labels.b", (1, 10), "`and` is not allowed here; write `&&`"),
        ("labels.a & labels.b", (1, 10), "`&` means nothing here; write `&&`"),
        ("labels.a | labels.b", (1, 10), "`|` means nothing here; write `||`"),
        ("labels.a # b", (1, 10), "`#` means nothing here; see docs/templates.md"),
        ("labels.a == 'x", (1, 13), "a text in quotes has no end; close it"),
        ("(labels.a == 'x'", (1, 17), "`)` is missing; write it where it belongs"),
        ("labels.a in [1", (1, 15), "it is incomplete; write the rest"),
        ("labels.a ? 'x'", (1, 1), "it is incomplete; write the rest"),
        ("labels.a ==)", (1, 12), "`)` is not allowed here; see docs/templates.md"),
        ("labels..a", (1, 8), "`..` is not allowed here; see docs/templates.md"),
    ]);
}

/// The conditions would be deep, large or slow if they were parsed or run. Their errors are short all the same.
#[test]
fn s52_condition_rejects_cel_bombs() {
    for text in [
        format!("{}1 == 1{}", "(".repeat(1_000), ")".repeat(1_000)),
        format!("{}true", "!".repeat(3_000)),
        format!("{}1 == 1", "-".repeat(3_000)),
        format!("{}{} == []", "[".repeat(200), "]".repeat(200)),
        format!("params{} == 1", ".a".repeat(1_500)),
        format!("1{} == 1", "+1".repeat(1_500)),
        format!("true{}", " ? true : false".repeat(200)),
        format!("true{}", "||true".repeat(600)),
        format!("labels.a == '{}'", "x".repeat(5_000)),
        "labels.a.matches('(a{1000}){1000}')".to_owned(),
        "labels.a.matches('((((((((((a{9}){9}){9}){9}){9}){9}){9}){9}){9}){9}')".to_owned(),
        format!("labels.a.matches('{}a{}')", "(".repeat(100), ")".repeat(100)),
        "[1].all(a, [1].all(b, [1].all(c, true)))".to_owned(),
        "params.x.exists(a, a + a == a)".to_owned(),
        "params.x.exists(a, [[a, a]].exists(b, true))".to_owned(),
        "params.x.exists(a, {'x': a} == a)".to_owned(),
        (0..9).map(|_| "[1].all(a, true)").collect::<Vec<_>>().join("&&"),
    ] {
        let error = read(&text).map(|condition| condition.references().len()).expect_err(&text[..20]);
        assert!(error.to_string().len() < 700, "{error}");
    }
}

/// Over 5,000 nodes, a single loop is evaluated, and a nested loop exceeds the limit of steps. A regex with a pattern
/// that is difficult for other engines is evaluated over 100,000 bytes.
#[test]
fn s52_evaluate_refuses_to_start_when_inputs_are_large() {
    let list: Vec<_> = (0..5_000).map(|n| json!({"name": format!("web-{n}")})).collect();
    let inputs = inputs(&[("nodes(tag='a'){name}", json!(list)), ("params.big", json!("a".repeat(100_000)))], &[]);
    let single_loop = condition("nodes(tag='a').exists(n, n.name == 'web-4999')");
    assert_eq!(check_and_evaluate(&*single_loop, &inputs), Ok(true));
    let nested_loop = condition("nodes(tag='a').all(a, nodes(tag='a').all(b, a.name != b.name))");
    assert_eq!(check_and_evaluate(&*nested_loop, &inputs), Err(ConditionError::TooLong { limit: MAX_CONDITION_STEPS }));
    let scan = condition("params.big.matches('(a|a)*b')");
    assert_eq!(check_and_evaluate(&*scan, &inputs), Ok(false));
}

#[test]
fn w10_05_condition_counts_one_step_per_256_bytes() {
    let count_steps = |text: &str, bytes: usize| {
        let inputs = inputs(&[("params.big", json!("a".repeat(bytes))), ("params.l", json!([1, 2, 3]))], &[]);
        condition(text).cost(&inputs, MAX_CONDITION_STEPS).expect(text)
    };
    // Four parts of the condition are counted: the operator, the root, its key, and the other operand.
    for (text, bytes, steps) in [
        ("params.big != ''", 255, 0),
        ("params.big != ''", 256, 4),
        ("params.big != ''", 2_560, 40),
        ("has(params.big)", 25_600, 0),
    ] {
        assert_eq!(count_steps(text, bytes), steps, "{text} over {bytes} bytes");
    }
    let (small, large) = ("params.l.exists(x, x == 3)", "params.l.exists(x, params.big != '')");
    assert!(
        count_steps(large, 25_600) > 100 * count_steps(small, 25_600),
        "a loop counts the value that it reads in each iteration"
    );
}

#[test]
fn w10_05_nested_loop_counts_items_and_no_whole_lists() {
    let items = |count: usize| json!((0..count).map(|n| format!("item-{n:03}")).collect::<Vec<_>>());
    let count_steps = |text: &str, count: usize| {
        let inputs =
            inputs(&[("params.a", items(count)), ("params.b", items(count)), ("params.big", json!("x".repeat(8_000)))], &[]);
        condition(text).cost(&inputs, MAX_CONDITION_STEPS)
    };
    // Both lists have 500 items of eight bytes each, so there are 250,000 iterations. Each iteration has nine parts.
    let nested = "params.a.exists(x, params.b.exists(y, x == y))";
    assert!(
        count_steps(nested, 500).is_ok_and(|steps| (250_000..MAX_CONDITION_STEPS).contains(&steps)),
        "{:?}",
        count_steps(nested, 500)
    );
    assert_eq!(count_steps(nested, 2_000), Err(ConditionError::TooLong { limit: MAX_CONDITION_STEPS }));
    // A value that an iteration reads as a whole is counted in each iteration. A list is such a value if it is
    // compared, if `in` searches it, or if it is the result of a filter.
    for text in [
        "params.a.exists(x, params.b.exists(y, x == y && params.big != x))",
        "params.a.exists(x, params.b.exists(y, x in params.a))",
        "params.a.exists(x, params.b.filter(y, y == x) == params.b)",
    ] {
        assert_eq!(count_steps(text, 500), Err(ConditionError::TooLong { limit: MAX_CONDITION_STEPS }), "{text}");
    }
    // The sum of lists is as long as the lists together.
    let (plain, sum) = ("params.a.exists(x, x == '')", "(params.a + params.a + params.a).exists(x, x == '')");
    assert!(count_steps(sum, 500).unwrap() >= 3 * count_steps(plain, 500).unwrap());
}

#[test]
fn condition_is_send_and_sync() {
    fn assert_send_and_sync(_: &(impl Send + Sync + ?Sized)) {}
    assert_send_and_sync(&*condition("labels.a == 'x'"));
}
