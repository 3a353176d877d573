//! Compares the inputs that `stemma-author` finds in random templates with the inputs that the renderer reads.
//!
//! The renderer records the inputs that it reads, so the test needs no second analysis of a template.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Value, json};
use stemma_author::SyntaxReader;
use stemma_core::condition::{TemplateParser, TemplateReads};
use stemma_core::input::{Input, Inputs, Read, Reference, RequiredReference};
use stemma_render::{Cause, NoSecrets, RenderLimits, Renderer};

/// The canonical texts of references. The test adds an input for each of them that a template does not read. A random
/// template can read most of them. Others, such as `labels.v`, only resemble an expression of a template.
const EXTRA_REFERENCES: &[&str] = &[
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

/// Generates the name of a variable that a template sets. Some names are those of a root such as `labels`, which the
/// variable then hides.
fn variable_name() -> impl Strategy<Value = String> {
    prop_oneof![3 => Just("v"), 3 => Just("w"), 1 => Just("labels"), 1 => Just("node"), 1 => Just("nodes")].prop_map(String::from)
}

/// Generates a list of nodes: a look-up or a variable (`v`, `w`, `nodes`), with at most one filter or slice.
fn nodes_call() -> impl Strategy<Value = String> {
    let source = prop_oneof![Just("nodes(tag='db')"), Just("nodes(role=['s', 'r'])"), Just("v"), Just("w"), Just("nodes")];
    let filter = prop_oneof![
        Just(""),
        Just("|list"),
        Just("|reverse"),
        Just("|sort(attribute='name')"),
        Just("|selectattr('name', 'ne', 'x')"),
        Just("[1:]"),
    ];
    (source, filter).prop_map(|(nodes, filter)| format!("({nodes}{filter})"))
}

/// Generates an expression without other expressions in it: a literal, a value to read, or a variable (`v`, `w`).
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

/// Generates an expression with up to three levels of operators and filters.
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

/// Generates a template with up to three levels of blocks, such as `if`, `for`, `with` and `macro`. Outside of blocks,
/// it prints expressions, sets variables or is plain text.
fn template() -> impl Strategy<Value = String> {
    let output = expression().prop_map(|e| format!("{{{{ {e} }}}}")).boxed();
    let set = (variable_name(), prop_oneof![expression().boxed(), nodes_call().boxed()])
        .prop_map(|(v, e)| format!("{{% set {v} = {e} %}}"))
        .boxed();
    let without_blocks = prop_oneof![3 => output, 2 => set, 1 => Just("text".to_owned())].boxed();
    without_blocks.prop_recursive(3, 24, 4, |inner| {
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

/// Returns an input for a reference, of the type that the controller would send. `variant` selects one of several
/// values. If it is divisible by 4, the value is absent, or the list of nodes is empty. Traits, tags and labels with a
/// prefix always have a value. If `variant` is divisible by 3, looked-up nodes have a name only. `params.list` is a
/// list, and any other parameter with a path of one key is a map with the keys `r` and `t`.
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

/// Returns an input for each reference. The n-th reference gets the n-th variant, and the variants repeat.
fn inputs(references: &[Reference], variants: &[u8]) -> Inputs {
    let mut inputs = Inputs::new();
    for (index, reference) in references.iter().enumerate() {
        inputs.insert(reference.clone(), value(reference, variants[index % variants.len()])).expect("the inputs are small");
    }
    inputs
}

/// Renders a template. Returns the cause of an error, the references that were read, and the text.
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
        let Ok(TemplateReads { references: found, required_references, .. }) = SyntaxReader.parse_template(&template) else {
            return Err(TestCaseError::reject("not of the grammar"));
        };
        let inputs_sent = inputs(&found, &variants);
        let (cause, references_read, text) = render_template(&template, &inputs_sent);
        prop_assert!(!matches!(cause, Some(Cause::NotAnInput { .. })), "{template}\nfound {found:?}\n{cause:?}");

        // Additional inputs do not change the text, and are not read.
        let mut extended = inputs_sent.clone();
        for extra in EXTRA_REFERENCES.iter().map(|text| text.parse::<Reference>().expect("a reference")) {
            if inputs_sent.find(&extra).is_none() && !found.iter().any(|candidate| references_overlap(candidate, &extra)) {
                extended.insert(extra.clone(), value(&extra, 1)).expect("small");
            }
        }
        let (_, extended_references, extended_text) = render_template(&template, &extended);
        prop_assert_eq!(&extended_references, &references_read, "{}", template);
        prop_assert_eq!(extended_text, text, "{}", template);

        // Rendering fails if an input that it requires is absent.
        let required = required_references.iter().filter(|need| need.is_unconditional).map(|need| &need.reference);
        for need in required.filter(|need| found.contains(need)) {
            let mut reduced_inputs = inputs_sent.clone();
            reduced_inputs.insert(need.clone(), Input::Absent).expect("less than before");
            let (cause, ..) = render_template(&template, &reduced_inputs);
            prop_assert!(cause.is_some(), "{template}\nwithout {need}");
        }

        // Rendering also fails if the template selects one node of a look-up, and the look-up finds no node.
        let selects_one_node = |need: &&RequiredReference| matches!(need.reference.read(), Read::Nodes { fields, .. } if fields.is_empty());
        for need in required_references.iter().filter(selects_one_node) {
            let mut reduced_inputs = inputs_sent.clone();
            for reference in found.iter().filter(|candidate| references_overlap(candidate, &need.reference)) {
                reduced_inputs.insert(reference.clone(), Input::Value(json!([]))).expect("less than before");
            }
            let (cause, ..) = render_template(&template, &reduced_inputs);
            prop_assert!(cause.is_some(), "{template}\nwith nobody in {}", need.reference);
        }

        // If an input that the template reads is not sent, the error names that input.
        if let Some(removed) = references_read.first() {
            let mut remaining_inputs = Inputs::new();
            for (reference, input) in inputs_sent.iter().filter(|(reference, _)| *reference != removed) {
                remaining_inputs.insert(reference.clone(), input.clone()).expect("fewer than before");
            }
            let (cause, ..) = render_template(&template, &remaining_inputs);
            let names_removed = matches!(&cause, Some(Cause::NotAnInput { reference }) if removed.as_str().starts_with(reference.as_str()));
            prop_assert!(names_removed, "{template}\nwithout {removed}: {cause:?}");
        }
    }
}

/// Returns whether an input of one reference can contain the value of the other. Two look-ups overlap if they find the
/// same nodes, and two parameters or facts if one path is within the other. Others never overlap.
fn references_overlap(first: &Reference, second: &Reference) -> bool {
    match (first.read(), second.read()) {
        (Read::Nodes { query: a, .. }, Read::Nodes { query: b, .. }) => a == b,
        (Read::Primary { tag: a, .. }, Read::Primary { tag: b, .. }) => a == b,
        (Read::Parameter(a), Read::Parameter(b)) | (Read::Fact(a), Read::Fact(b)) => a.is_within(b) || b.is_within(a),
        _ => false,
    }
}
