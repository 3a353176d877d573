//! Compares the inputs that `stemma-author` finds in random templates with those that rendering reads.
//!
//! The renderer records which inputs it reads, so the test needs no second analysis of a template.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Value, json};
use stemma_author::SyntaxReader;
use stemma_core::condition::{TemplateParser, TemplateReads};
use stemma_core::input::{Input, Inputs, Read, Reference, RequiredReference};
use stemma_render::{Cause, NoSecrets, RenderLimits, Renderer};

/// References that random templates may read, and similar ones.
const READ_EXPRESSIONS: &[&str] = &[
    "labels.a",
    "labels.b",
    "labels['c/d']",
    "labels.v",
    "labels.node",
    "params.p",
    "params.q",
    "params.q.r",
    "params.list",
    "facts.cpu.count",
    "facts.os.id",
    "node.name",
    "node.uuid",
    "cluster.name",
    "'CUSTOM_A' in traits",
    "'db' in tags",
    "labels_with_prefix('x/')",
    "nodes(tag='db'){address, labels.zone, name, uuid}",
    "nodes(role=['r', 's']){address, labels.zone, name, uuid}",
    "primary('db'){name}",
];

fn variable_name() -> impl Strategy<Value = String> {
    prop_oneof![3 => Just("v"), 3 => Just("w"), 1 => Just("labels"), 1 => Just("node"), 1 => Just("nodes")].prop_map(String::from)
}

fn nodes_call() -> impl Strategy<Value = String> {
    let plain = prop_oneof![Just("nodes(tag='db')"), Just("nodes(role=['s', 'r'])"), Just("v"), Just("w"), Just("nodes")];
    let kept = prop_oneof![
        Just(""),
        Just("|list"),
        Just("|reverse"),
        Just("|sort(attribute='name')"),
        Just("|selectattr('name', 'ne', 'x')"),
        Just("[1:]"),
    ];
    (plain, kept).prop_map(|(nodes, kept)| format!("({nodes}{kept})"))
}

fn leaf_expression() -> BoxedStrategy<String> {
    prop_oneof![
        Just("1"),
        Just("'t'"),
        Just("labels.a"),
        Just("labels['b']"),
        Just("labels['c/d']"),
        Just("params.p"),
        Just("params.q.r"),
        Just("params['list'][0]"),
        Just("facts.cpu.count"),
        Just("facts.os"),
        Just("node.name"),
        Just("node['uuid']"),
        Just("cluster.name"),
        Just("'CUSTOM_A' in traits"),
        Just("'db' not in tags"),
        Just("labels_with_prefix('x/')"),
        Just("primary('db').name"),
        Just("primary('db') is defined"),
        Just("v"),
        Just("w.name"),
        Just("v.address"),
        Just("w.labels.zone"),
        Just("loop.index"),
    ]
    .prop_map(String::from)
    .boxed()
}

fn expression() -> impl Strategy<Value = String> {
    leaf_expression().prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} ~ {b})")),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("({a} if {b} is defined else {c})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} == {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} or {b})")),
            inner.clone().prop_map(|a| format!("({a})|default('d')")),
            inner.clone().prop_map(|a| format!("({a})|upper")),
            inner.clone().prop_map(|a| format!("(not {a})")),
            inner.prop_map(|a| format!("params.q[{a}]")),
            nodes_call().prop_map(|n| format!("{n}|length")),
            nodes_call().prop_map(|n| format!("{n}|map(attribute='address')|join")),
            nodes_call().prop_map(|n| format!("({n}|first).name")),
            nodes_call().prop_map(|n| format!("{n}[0].labels.zone")),
        ]
    })
}

fn template() -> impl Strategy<Value = String> {
    let emit = expression().prop_map(|e| format!("{{{{ {e} }}}}")).boxed();
    let set = (variable_name(), prop_oneof![expression().boxed(), nodes_call().boxed()])
        .prop_map(|(v, e)| format!("{{% set {v} = {e} %}}"))
        .boxed();
    let flat = prop_oneof![3 => emit, 2 => set, 1 => Just("text".to_owned())].boxed();
    flat.prop_recursive(3, 24, 4, |inner| {
        let body = vec(inner, 1..4).prop_map(|parts| parts.concat());
        prop_oneof![
            body.clone(),
            (expression(), body.clone(), body.clone())
                .prop_map(|(e, a, b)| format!("{{% if {e} %}}{a}{{% else %}}{b}{{% endif %}}")),
            (variable_name(), nodes_call(), body.clone())
                .prop_map(|(v, n, b)| format!("{{% for {v} in {n} %}}{b}{{% endfor %}}")),
            (variable_name(), nodes_call(), expression(), body.clone(), body.clone())
                .prop_map(|(v, n, e, a, b)| format!("{{% for {v} in {n} if {e} %}}{a}{{% else %}}{b}{{% endfor %}}")),
            (variable_name(), body.clone()).prop_map(|(v, b)| format!("{{% for {v} in params.list %}}{b}{{% endfor %}}")),
            (variable_name(), prop_oneof![expression().boxed(), nodes_call().boxed()], body.clone())
                .prop_map(|(v, e, b)| format!("{{% with {v} = {e} %}}{b}{{% endwith %}}")),
            (variable_name(), body.clone()).prop_map(|(v, b)| format!("{{% set {v} %}}{b}{{% endset %}}")),
            (variable_name(), expression(), body.clone())
                .prop_map(|(v, e, b)| format!("{{% macro m({v}) %}}{b}{{% endmacro %}}{{{{ m({e}) }}}}")),
        ]
    })
}

/// Returns a value of the type that the controller would send. `variant` chooses among several, also an absent input.
fn value(reference: &Reference, variant: u8) -> Input {
    let node = |name: &str| {
        let fields = reference.read().fields().expect("a look-up has fields");
        fields.project(|field| (!variant.is_multiple_of(3) || field.first() == "name").then(|| json!(format!("{name}-{field}"))))
    };
    let absent = variant.is_multiple_of(4);
    match reference.read() {
        Read::Trait(_) | Read::Tag(_) => Input::Value(json!(variant.is_multiple_of(2))),
        Read::LabelsWithPrefix(_) => Input::Value(json!({"x/a": "1"})),
        Read::Nodes { .. } if absent => Input::Value(json!([])),
        Read::Nodes { .. } => Input::Value(Value::Array(vec![node("a"), node("b")])),
        _ if absent => Input::Absent,
        Read::Primary { .. } => Input::Value(node("p")),
        Read::Parameter(path) if path.first() == "list" => Input::Value(json!(["one", 2])),
        Read::Parameter(path) if path.keys().len() == 1 => Input::Value(json!({"r": "s", "t": 1})),
        Read::Fact(_) => Input::Value(json!(variant)),
        _ => Input::Value(json!("text")),
    }
}

fn inputs(references: &[Reference], variants: &[u8]) -> Inputs {
    let mut inputs = Inputs::new();
    for (n, reference) in references.iter().enumerate() {
        inputs.insert(reference.clone(), value(reference, variants[n % variants.len()])).expect("small");
    }
    inputs
}

fn render_template(template: &str, inputs: &Inputs) -> (Option<Cause>, Vec<Reference>, Option<String>) {
    let renderer = Renderer::new(inputs, &NoSecrets, RenderLimits::default());
    match renderer.text(template) {
        Ok(text) => (None, renderer.references_read(), Some(text)),
        Err(error) => (Some(error.cause), renderer.references_read(), None),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases * 2, max_global_rejects: ProptestConfig::default().cases * 200, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn renderer_reads_only_references_found_by_author(template in template(), variants in vec(0_u8..12, 1..6)) {
        let Ok(TemplateReads { references: found, needs, .. }) = SyntaxReader.parse_template(&template) else {
            return Err(TestCaseError::reject("not of the grammar"));
        };
        let sent = inputs(&found, &variants);
        let (cause, read, text) = render_template(&template, &sent);
        prop_assert!(!matches!(cause, Some(Cause::NotAnInput { .. })), "{template}\nfound {found:?}\n{cause:?}");

        // Additional inputs change nothing and are not read.
        let mut extended = sent.clone();
        for other in READ_EXPRESSIONS.iter().map(|text| text.parse::<Reference>().expect("a reference")) {
            if sent.find(&other).is_none() && !found.iter().any(|one| references_overlap(one, &other)) {
                extended.insert(other.clone(), value(&other, 1)).expect("small");
            }
        }
        let (_, read_of_more, text_of_more) = render_template(&template, &extended);
        prop_assert_eq!(&read_of_more, &read, "{}", template);
        prop_assert_eq!(text_of_more, text, "{}", template);

        // Rendering fails if an input that it requires is absent.
        let required = needs.iter().filter(|need| need.is_unconditional).map(|need| &need.reference);
        for need in required.filter(|need| found.contains(need)) {
            let mut without = sent.clone();
            without.insert(need.clone(), Input::Absent).expect("less than before");
            let (cause, ..) = render_template(&template, &without);
            prop_assert!(cause.is_some(), "{template}\nwithout {need}");
        }

        // Rendering also fails if the template takes one node from a look-up that finds none.
        let takes_one_node = |need: &&RequiredReference| matches!(need.reference.read(), Read::Nodes { fields, .. } if fields.is_empty());
        for need in needs.iter().filter(takes_one_node) {
            let mut without = sent.clone();
            for reference in found.iter().filter(|one| references_overlap(one, &need.reference)) {
                without.insert(reference.clone(), Input::Value(json!([]))).expect("less than before");
            }
            let (cause, ..) = render_template(&template, &without);
            prop_assert!(cause.is_some(), "{template}\nwith nobody in {}", need.reference);
        }

        // If an input that the template reads is not sent, the error names that input.
        if let Some(removed) = read.first() {
            let mut rest = Inputs::new();
            for (reference, input) in sent.iter().filter(|(reference, _)| *reference != removed) {
                rest.insert(reference.clone(), input.clone()).expect("fewer than before");
            }
            let (cause, ..) = render_template(&template, &rest);
            let names_removed = matches!(&cause, Some(Cause::NotAnInput { reference }) if removed.as_str().starts_with(reference.as_str()));
            prop_assert!(names_removed, "{template}\nwithout {removed}: {cause:?}");
        }
    }
}

/// Returns whether two look-ups find the same nodes, or one path is within the other.
fn references_overlap(one: &Reference, other: &Reference) -> bool {
    match (one.read(), other.read()) {
        (Read::Nodes { query: a, .. }, Read::Nodes { query: b, .. }) => a == b,
        (Read::Primary { tag: a, .. }, Read::Primary { tag: b, .. }) => a == b,
        (Read::Parameter(a), Read::Parameter(b)) | (Read::Fact(a), Read::Fact(b)) => a.is_within(b) || b.is_within(a),
        _ => false,
    }
}
