//! Tests with tables of templates: the references that each reads, and the position and the error of each refused
//! template.

use stemma_core::input::Reference;

use super::*;

/// Returns the references that the template of a file reads. The template must be accepted.
fn read_references(text: &str) -> Vec<String> {
    match read_plain_template(text) {
        Ok(reads) => reads.references.iter().map(ToString::to_string).collect(),
        Err(error) => panic!("{text}: {error}"),
    }
}

/// Returns the required references of a template: those that each rendering needs if `is_certain`, else those that only
/// some renderings need.
fn required_references(text: &str, is_certain: bool) -> Vec<String> {
    let needs = read_plain_template(text).unwrap().required_references;
    needs.iter().filter(|need| need.is_unconditional == is_certain).map(|need| need.reference.to_string()).collect()
}

/// Each template is listed with the references that only some of its renderings need.
#[test]
fn reference_is_conditional_when_read_in_branch_or_loop() {
    for (text, needs) in [
        ("{% if labels.tier == 'gold' %}{{ labels.a }}{% endif %}", vec!["labels.a"]),
        ("{% if labels.a is defined %}{{ labels.a }}{{ labels.b }}{% endif %}", vec!["labels.b"]),
        ("{% if labels.b == 'x' %}{{ labels.a|default('x') }}{% endif %}{{ labels.a }}", vec![]),
        ("{% for i in [1] %}{{ labels.a }}{{ params.x }}{% endfor %}", vec!["labels.a", "params.x"]),
        ("{% set a = labels.a %}{% for i in [1] %}{{ a }}{% endfor %}", vec!["labels.a"]),
        ("{{ labels.b if labels.c == 'x' else labels.d }}", vec!["labels.b", "labels.d"]),
        ("{{ (labels.b if labels.c == 'x' else labels.d)|default('x') }}", vec![]),
        ("{% for i in [1] %}{{ labels.a == 'x' }}{% endfor %}", vec![]),
        ("{% macro m(x) %}{{ labels.a }}{% endmacro %}{{ m(labels.b) }}", vec!["labels.a"]),
        ("{% set p = params.a %}{% for i in [1] %}{{ p.b|default('x') }}{% endfor %}", vec!["params.a"]),
    ] {
        assert_eq!(required_references(text, false), needs, "{text}");
    }
}

/// Each template is listed with the references that each of its renderings needs, and those that only some need. A
/// look-up that is listed without a field must find at least one node.
#[test]
fn required_references_include_labels_of_looked_up_nodes() {
    let (zone, lookup) = ("nodes(tag='t'){labels.zone}", "nodes(tag='t')");
    for (text, certain, conditional) in [
        ("{% for n in nodes(tag='t') %}{{ n.name }} {{ n.labels.zone }}{% endfor %}", vec![zone], vec![]),
        ("{% for n in nodes(tag='t') %}{{ n.labels.zone|upper }}{% endfor %}", vec![zone], vec![]),
        ("{% for n in nodes(tag='t') %}{{ n.labels.zone|default('x') }}{% endfor %}", vec![], vec![]),
        ("{% for n in nodes(tag='t') if n.labels.zone is defined %}{{ n.labels.zone }}{% endfor %}", vec![], vec![]),
        ("{% for n in nodes(tag='t') if n.name != 'a' %}{{ n.labels.zone }}{% endfor %}", vec![], vec![zone]),
        ("{% for n in nodes(tag='t') %}{% if n.name != 'a' %}{{ n.labels.zone }}{% endif %}{% endfor %}", vec![], vec![zone]),
        ("{{ (nodes(tag='t')|first).labels.zone }}", vec![lookup], vec![zone]),
        ("{{ nodes(tag='t')[0].name|default('x') }}", vec![lookup], vec![]),
        ("{% set n = nodes(tag='t')[1:]|last %}{{ n.name }}", vec![lookup], vec![]),
        ("{% if nodes(tag='t') %}{{ nodes(tag='t')[0].name }}{% endif %}", vec![], vec![]),
        ("{{ nodes(tag='t')[0].name if nodes(tag='t') else 'x' }}", vec![], vec![]),
        ("{{ (nodes(tag='t') if 'x' in tags else nodes(tag='u'))[0].name }}", vec![], vec![]),
        ("{{ nodes(tag='t')|selectattr('name')|map(attribute='name')|join }}", vec![], vec![]),
        ("{% for n in nodes(tag='u') %}{{ nodes(tag='t')[0].labels.zone }}{% endfor %}", vec![], vec![zone]),
        (
            "{% for n in nodes(tag='u') %}{% for m in nodes(tag='t') %}{{ m.labels.zone }}{% endfor %}{% endfor %}",
            vec![],
            vec![zone],
        ),
        ("{% for n in nodes(tag='t')[1:] %}{{ n.labels.zone }}{% endfor %}", vec![], vec![zone]),
        ("{% for n in nodes(tag='t')|selectattr('name') %}{{ n.labels.zone }}{% endfor %}", vec![], vec![zone]),
        ("{% for n in nodes(tag='t')|sort(attribute='name')|reverse %}{{ n.labels.zone }}{% endfor %}", vec![zone], vec![]),
        (
            "{% set n = nodes(tag='t') if 'x' in tags else nodes(tag='u') %}{% for m in n %}{{ m.labels.zone }}{% endfor %}",
            vec![],
            vec![zone, "nodes(tag='u'){labels.zone}"],
        ),
        ("{{ (primary('t') if 'x' in tags else primary('u')).name }}", vec![], vec!["primary('t'){name}", "primary('u'){name}"]),
        ("{{ nodes(tag='t')|map(attribute='labels.zone')|join(' ') }}", vec![], vec![]),
        ("{{ primary('t').name }}", vec!["primary('t'){name}"], vec![]),
        ("{% if primary('t') is defined %}{{ primary('t').name }}{% endif %}", vec![], vec![]),
        ("{% if primary('t').name is defined %}{{ primary('t').labels.a }}{% endif %}", vec![], vec![]),
    ] {
        assert_eq!(
            (required_references(text, true), required_references(text, false)),
            (to_strings(certain), to_strings(conditional)),
            "{text}"
        );
    }
}

fn to_strings(texts: Vec<&str>) -> Vec<String> {
    texts.into_iter().map(str::to_owned).collect()
}

/// The table lists each template with the labels and parameters without which it can never be rendered. If the template
/// checks a reference anywhere, by `is defined` or `default` for example, the reference is not one of them.
#[test]
fn reference_is_required_when_read_on_every_path_unguarded() {
    for (text, needs) in [
        ("{{ labels.a }} {{ params.x.y }}", vec!["labels.a", "params.x.y"]),
        ("{{ labels.a|upper }}{{ node.name }}{{ facts.cpu.count }}{{ 'a' in tags }}", vec!["labels.a"]),
        ("{{ labels.a|default('x') }}{{ labels.b|d(labels.c) }}", vec![]),
        ("{% if labels.a is defined %}{{ labels.a }}{% endif %}{{ labels.a }}", vec![]),
        ("{% if params.x is defined %}{{ params.x.y }}{% endif %}{{ params.x.z }}", vec![]),
        ("{% if labels.a %}{{ labels.b }}{% else %}{{ labels.c }}{% endif %}", vec!["labels.a"]),
        ("{% if labels.a == 'x' %}{{ labels.b }}{% endif %}{{ labels.b }}", vec!["labels.b"]),
        ("{{ labels.b if labels.a is undefined else labels.c }}", vec![]),
        ("{% for n in nodes(tag='t') %}{{ labels.a }}{% endfor %}", vec![]),
        ("{% for x in params.list %}{{ x }}{% endfor %}", vec!["params.list"]),
        ("{% set a = labels.a %}{{ a|default('x') }}", vec![]),
        ("{% set a = labels.a %}{{ a }}", vec!["labels.a"]),
        ("{% set a = params.x %}{{ a.y }}", vec!["params.x"]),
        ("{% set a = params.x %}{{ a.y|default('x') }}", vec!["params.x"]),
        ("{% set a = params.x %}{{ a['y'] is defined }}{{ a.z.q|default('x') }}", vec!["params.x"]),
        ("{% set a = params.x|default({}) %}{{ a.y|default('x') }}", vec![]),
        ("{% set a = params.x %}{% if a is defined %}{{ a.y|default('x') }}{% endif %}", vec![]),
        ("{% set a = labels.a %}{% set a = 'x' %}{{ a }}", vec![]),
        ("{% set a = labels.a %}{% if a is defined %}{{ a }}{% endif %}", vec![]),
        ("{% set a = labels.a %}{% if labels.b == 'x' %}{% set a = 'y' %}{% endif %}{{ a }}", vec![]),
        ("{% if labels.b == 'x' %}{% set a = labels.a %}{% endif %}{{ a }}", vec![]),
        ("{% set a = labels.a %}{% for i in [1] %}{{ a }}{% endfor %}", vec![]),
        ("{% set a = labels.a|default('x') %}{{ a }}", vec![]),
        ("{% set a = labels.a if labels.b == 'x' else 'y' %}{{ a }}", vec![]),
        ("{% with a = labels.a, b = labels.b %}{{ a }}{{ b|d('x') }}{% endwith %}", vec!["labels.a"]),
        ("{% macro m(x) %}{{ labels.a }}{% endmacro %}{{ m(labels.b) }}", vec![]),
    ] {
        assert_eq!(required_references(text, true), needs, "{text}");
    }
}

/// Accepted templates, each with the references that it reads.
const ACCEPTED: &[(&str, &[&str])] = &[
    ("plain text", &[]),
    ("{{ labels.ntp }}", &["labels.ntp"]),
    ("{{ labels['ntp'] }}{{ labels.ntp }}", &["labels.ntp"]),
    ("{{ labels['a.b/c'] }}", &["labels['a.b/c']"]),
    ("{{ labels.ntp is defined }}{{ labels.x|default('y') }}", &["labels.ntp", "labels.x"]),
    ("{{ labels['a' 'b'] }}", &["labels.ab"]),
    ("{% for k, v in labels_with_prefix('x/')|items %}{{ k }}={{ v }}{% endfor %}", &["labels_with_prefix('x/')"]),
    ("{{ params.x }}", &["params.x"]),
    ("{{ params.x.y['z w'] }}", &["params.x.y['z w']"]),
    ("{{ params.x.y }}{{ params.x }}", &["params.x"]),
    ("{{ params.list[0].name }}", &["params.list"]),
    ("{{ params.map[labels.k] }}", &["labels.k", "params.map"]),
    ("{{ params.list[1:] }}", &["params.list"]),
    ("{% set p = params.x %}{{ p.y }}", &["params.x"]),
    (
        "{% for s in params.servers if s.on %}{{ s.host }}{{ loop.index }}{% else %}{{ labels.none }}{% endfor %}",
        &["labels.none", "params.servers"],
    ),
    ("{{ 'HW_CPU_X86_AVX2' in traits }}", &["'HW_CPU_X86_AVX2' in traits"]),
    ("{% if 'CUSTOM_A' not in traits and not 'mysql:1' in tags %}x{% endif %}", &["'CUSTOM_A' in traits", "'mysql:1' in tags"]),
    ("{% if 1 < 2 and 'a' in tags %}{% endif %}", &["'a' in tags"]),
    ("{% if labels.a in ['x', 'y'] %}{% endif %}", &["labels.a"]),
    ("{{ facts.cpu.count * 2 }}", &["facts.cpu.count"]),
    ("{{ facts.network.interfaces.eth0.addresses[0] }}", &["facts.network.interfaces.eth0.addresses"]),
    ("{% for name, i in facts.network.interfaces|items %}{{ name }}{% endfor %}", &["facts.network.interfaces"]),
    ("{{ node.name }} {{ cluster.name }} {{ node.properties.rack }}", &["cluster.name", "node.name", "node.properties.rack"]),
    ("{{ secret('DB') }}", &["secret('DB')"]),
    ("{{ nodes(tag='mysql')|length }}", &["nodes(tag='mysql')"]),
    ("{% if nodes(role='web') %}x{% endif %}", &["nodes(role='web')"]),
    ("{% for n in nodes(tag='mysql') %}{{ n.name }} {{ n.address }}{% endfor %}", &["nodes(tag='mysql'){address, name}"]),
    ("{% for node in nodes(tag='a') %}{{ node.name }}{% endfor %}{{ node.uuid }}", &["node.uuid", "nodes(tag='a'){name}"]),
    (
        "{% set ns = nodes(tag=['b', 'a'], or_role='/w.*/') %}{% for n in ns if n.name != node.name %}{{ n.labels['x/y'] }}{% endfor %}",
        &["node.name", "nodes(tag=['a', 'b'], or_role='/w.*/'){labels['x/y'], name}"],
    ),
    ("{{ nodes(tag='a')|map(attribute='name')|join(',') }}", &["nodes(tag='a'){name}"]),
    (
        "{{ nodes(tag='a')|sort(attribute='labels.zone')|map(attribute='address')|list }}",
        &["nodes(tag='a'){address, labels.zone}"],
    ),
    ("{{ (nodes(tag='a')|rejectattr('name', 'eq', node.name)|first).address }}", &["node.name", "nodes(tag='a'){address, name}"]),
    ("{{ nodes(tag='a')[0].facts.cpu.count }}{{ nodes(tag='a')[1:]|length }}", &["nodes(tag='a'){facts.cpu.count}"]),
    ("{{ (nodes(tag='a') or nodes(tag='b'))|map(attribute='name') }}", &["nodes(tag='a'){name}", "nodes(tag='b'){name}"]),
    (
        "{% if labels.x %}{% set n = nodes(tag='a') %}{% else %}{% set n = nodes(tag='b') %}{% endif %}{{ n[0].name }}",
        &["labels.x", "nodes(tag='a'){name}", "nodes(tag='b'){name}"],
    ),
    ("{{ primary('mysql').name }}", &["primary('mysql'){name}"]),
    (
        "{% with p = primary('mysql') %}{% if p is defined %}{{ p.address }}{% endif %}{% endwith %}",
        &["primary('mysql'){address}"],
    ),
    ("{{ (primary('a') if labels.x else primary('b')).name }}", &["labels.x", "primary('a'){name}", "primary('b'){name}"]),
    // A variable shadows a root only within its scope.
    ("{% set labels = {'x': 1} %}{{ labels.y }}{{ labels[labels.z] }}", &[]),
    ("{% with labels = 1 %}{{ labels }}{% endwith %}{{ labels.a }}", &["labels.a"]),
    ("{% for params in [1] %}{{ params }}{% endfor %}{{ params.a }}", &["params.a"]),
    ("{% for x in [1] %}{% set labels = 1 %}{{ labels }}{% endfor %}{{ labels.a }}", &["labels.a"]),
    ("{% for x in [1] %}{{ labels.a }}{% set labels = 1 %}{% endfor %}", &["labels.a"]),
    (
        "{% macro m(labels, b=params.d) %}{{ labels.x }}{{ facts.os.id }}{% endmacro %}{{ m(params.p, b=2) }}",
        &["facts.os.id", "params.d", "params.p"],
    ),
    ("{% macro f(n) %}{{ f(n - 1) if n else '' }}{% endmacro %}{{ f(3) }}", &[]),
    ("{% set x %}{{ labels.a }}{% endset %}{{ x|upper }}", &["labels.a"]),
    ("{% filter indent(2) %}{{ labels.a }}{% endfilter %}", &["labels.a"]),
    ("{% raw %}{{ labels }}{% endraw %}{# {{ labels }} #}", &[]),
    ("{% for i in range(3) %}{{ loop.cycle('a', labels.b) }}{% endfor %}", &["labels.b"]),
    ("{{ labels.a ~ '-' ~ params.b|upper }}", &["labels.a", "params.b"]),
    ("{{ params.xs|map('upper')|select('ne', labels.a)|join }}", &["labels.a", "params.xs"]),
    ("{{ params.x|tojson }}", &["params.x"]),
    ("{% if false %}{{ labels.dead }}{% endif %}", &["labels.dead"]),
];

#[test]
fn template_lists_references() {
    for (text, expected) in ACCEPTED {
        assert_eq!(read_references(text), *expected, "{text}");
    }
}

/// Refused templates, each with the line and the column of the error, and a part of its text.
const REFUSED: &[(&str, (u32, u32), &str)] = &[
    ("{{ labels }}", (1, 4), "`labels`: it is read as a whole, so every change in it would affect the task; name one"),
    ("{{ labels|tojson }}", (1, 4), "it is read as a whole"),
    ("a\n  {{ labels[params.k] }}", (2, 6), "`labels[params.k]`: the key is computed, so what is read is not known"),
    ("{{ labels['a' ~ 'b'] }}", (1, 4), "the key is computed"),
    ("{{ labels[0] }}", (1, 4), "the key is computed"),
    ("{{ labels.a.b }}", (1, 4), "for the label of that whole name write `labels['a.b']`"),
    ("{{ labels['a\\nb'] }}", (1, 4), "write a valid name"),
    ("{{ labels[''] }}", (1, 4), "write a valid name"),
    ("{{ labels['a/b/c'] }}", (1, 4), "more than one slash"),
    ("{{ params[''] }}", (1, 4), "1 to 512 bytes"),
    ("{{ 'hw_cpu_x86_avx' in traits }}", (1, 4), "is not a trait"),
    ("{{ 'my sql' in tags }}", (1, 4), "is not well formed"),
    ("{{ nodes(role='a b')|length }}", (1, 4), "is not well formed"),
    ("{{ primary('a b').name }}", (1, 4), "is not well formed"),
    ("{% for l in labels %}{% endfor %}", (1, 13), "read as a whole"),
    ("{% set l = labels %}", (1, 12), "read as a whole"),
    ("{{ labels|length }}", (1, 4), "read as a whole"),
    ("{{ 'a' in labels }}", (1, 4), "write `labels.x is defined`"),
    ("{{ labels is defined }}", (1, 4), "read as a whole"),
    ("{{ labels == params.x }}", (1, 4), "read as a whole"),
    ("{{ [labels] }}", (1, 5), "read as a whole"),
    ("{{ dict(a=labels) }}", (1, 11), "read as a whole"),
    ("{{ labels|attr('x') }}", (1, 11), "there is no filter `attr`"),
    ("{{ params[labels.x] }}", (1, 4), "the key is computed"),
    ("{{ params }}", (1, 4), "read as a whole"),
    ("{{ traits }}", (1, 4), "check for one: `'HW_CPU_X86_AVX2' in traits`"),
    ("{{ traits.HW }}", (1, 4), "traits have no fields"),
    ("{{ labels.t in traits }}", (1, 4), "the name is computed"),
    ("{{ traits|join }}", (1, 4), "read as a whole"),
    ("{% for t in tags %}{% endfor %}", (1, 13), "read as a whole"),
    ("{{ facts.uptime }}", (1, 4), "`facts.uptime` is not a stable fact; stable are architecture"),
    ("{{ facts.memory.free_bytes }}", (1, 4), "stable are memory.total_bytes"),
    ("{{ facts[labels.x] }}", (1, 4), "the key is computed"),
    ("{{ node.nam }}", (1, 4), "`node.nam` does not exist; node has address"),
    ("{{ node }}", (1, 4), "name a field"),
    ("{{ cluster.labels.x }}", (1, 4), "cluster has name"),
    ("{{ nodes }}", (1, 4), "`nodes` is a function"),
    ("{{ nodes() }}", (1, 4), "write `nodes(tag='x')`"),
    ("{{ nodes('mysql')|length }}", (1, 4), "it takes named arguments"),
    ("{{ nodes(tag=labels.t)|length }}", (1, 14), "the name is computed"),
    ("{{ nodes(tag='a', role='b')|length }}", (1, 4), "cannot be combined"),
    ("{{ nodes(group='a')|length }}", (1, 4), "it takes no `group`"),
    ("{{ nodes(tag='/(/')|length }}", (1, 14), "is not a regex"),
    ("{{ nodes(tag='a') }}", (1, 4), "a list of nodes is not text"),
    ("{{ nodes(tag='a').name }}", (1, 4), "a list of nodes has no fields"),
    ("{{ nodes(tag='a')|join }}", (1, 19), "`join` takes data, not nodes"),
    ("{{ nodes(tag='a')|sort|length }}", (1, 19), "it takes a field's name"),
    ("{{ nodes(tag='a')|map(attribute=labels.f) }}", (1, 33), "the field is computed"),
    ("{{ nodes(tag='a')[0] }}", (1, 4), "a node is not text"),
    ("{{ nodes(tag='a')[0][labels.f] }}", (1, 4), "the key is computed"),
    ("{{ nodes(tag='a')[0].nam }}", (1, 4), "nodes has address"),
    ("{{ nodes(tag='a')[0].labels }}", (1, 4), "`nodes.labels` does not exist"),
    ("{{ nodes(tag='a')[0].facts.cpu.model }}", (1, 4), "fact `facts.cpu.model` of another host cannot be read"),
    ("{% for n in nodes(tag='a') %}{{ n }}{% endfor %}", (1, 33), "a node is not text"),
    ("{% for n in nodes(tag='a') %}{{ n|tojson }}{% endfor %}", (1, 33), "a node is not text"),
    ("{% for a, b in nodes(tag='a') %}{% endfor %}", (1, 8), "a node cannot be unpacked"),
    ("{{ 'a' if labels.x else nodes(tag='a') }}", (1, 4), "it may be nodes or something else"),
    ("{% set n = 'a' %}{% if labels.x %}{% set n = nodes(tag='a') %}{% endif %}{{ n }}", (1, 77), "depending on an `if`"),
    ("{% if labels.x %}{% set labels = {} %}{% endif %}{{ labels.y }}", (1, 53), "depending on an `if`"),
    ("{{ primary('a') }}", (1, 4), "a node is not text"),
    ("{{ primary(labels.t).name }}", (1, 4), "it takes one literal text"),
    ("{{ primary('a')|default('x') }}", (1, 4), "a node is not text"),
    ("{{ secret('a', 'b') }}", (1, 4), "it takes one literal text"),
    ("{{ labels_with_prefix(*['x/']) }}", (1, 4), "it takes one literal text"),
    ("{% include 'x' %}", (1, 4), "nothing is included from outside"),
    ("x\n{%- import 'x' as y %}", (2, 5), "nothing is imported from outside"),
    ("{% from 'x' import y %}", (1, 4), "nothing is imported"),
    ("{% extends 'x' %}", (1, 4), "do not extend each other"),
    ("{% block a %}{% endblock %}", (1, 4), "do not extend each other"),
    ("{% autoescape true %}{% endautoescape %}", (1, 4), "escaping is decided"),
    ("{% call m() %}{% endcall %}", (1, 4), "call blocks are not available"),
    ("{{ self }}", (1, 4), "there is no variable `self` here"),
    ("{{ self.title() }}", (1, 4), "there is no variable `self` here"),
    ("{{ super() }}", (1, 4), "there is no variable `super` here"),
    ("{{ uptime }}", (1, 4), "there is no variable `uptime` here"),
    ("{{ namespace() }}", (1, 4), "there is no variable `namespace` here"),
    ("{{ debug() }}", (1, 4), "there is no variable `debug` here"),
    ("{% for x in [1] %}{% endfor %}{{ x }}", (1, 34), "there is no variable `x` here"),
    ("{% for x in [1] %}{{ loop }}{% endfor %}", (1, 22), "`loop` is not text"),
    ("{% for x in [1] %}{{ loop.nextitem }}{% endfor %}", (1, 22), "`loop` has no `nextitem`"),
    ("{% for x in [1] %}{{ loop.cycle() }}{% endfor %}", (1, 22), "`loop.cycle` needs values"),
    ("{% for x in [1] recursive %}{{ loop([]) }}{% endfor %}", (1, 4), "recursive loops are not available"),
    ("{% set a = 1 %}{% set a.b = labels.x %}", (1, 23), "only a name can be set"),
    ("{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}", (1, 34), "a macro sees its arguments and the roots only"),
    ("{% macro m() %}{{ labels.a }}{% endmacro %}{% set labels = 1 %}{{ m() }}", (1, 51), "a macro reads `labels`"),
    ("{% macro m(n) %}{{ n }}{% endmacro %}{{ m(nodes(tag='a')) }}", (1, 43), "a list of nodes is not text"),
    ("{{ params.x.items() }}", (1, 4), "values have no methods"),
    ("{{ params.x() }}", (1, 4), "values have no methods"),
    ("{{ labels.a|safe }}", (1, 13), "there is no filter `safe`"),
    ("{{ labels.a|raw }}", (1, 13), "only in `script`"),
    ("{{ params.x|map('raw') }}", (1, 13), "there is no `raw`"),
    ("{{ params.x|map(labels.f) }}", (1, 13), "the filter or test that it applies is computed"),
    ("{{ labels.a is nosuch }}", (1, 16), "there is no test `nosuch`"),
    ("{{ labels. }}", (1, 12), "`}}`: a name or a number is expected here"),
];

/// Asserts that `read` refuses each template at this line and column, with an error that contains this text.
fn assert_refused(read: fn(&str) -> Result<TemplateReads, AuthorError>, cases: &[(&str, (u32, u32), &str)]) {
    let mut failures = Vec::new();
    for (text, position, expected) in cases {
        match read(text) {
            Ok(references) => failures.push(format!("{text}: reads {references:?}")),
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
fn template_rejects_unknowable_read_with_position() {
    assert_refused(read_plain_template, REFUSED);
}

/// An error gives the position that the author must correct, not the position where the parser stopped. The text of the
/// error does not use the parser's terms.
#[test]
fn y09_template_explains_syntax_error_with_position() {
    let cases = [
        ("a\n{% for n in params.xs %}\n{{ n }}\n", (2, 1), "`{% for n in params.xs %}`: {% for %} has no {% endfor %};"),
        ("{% if labels.a %}", (1, 1), "`{% if labels.a %}`: {% if %} has no {% endif %};"),
        ("{%- set x %}a", (1, 1), "{% set %} has no {% endset %};"),
        ("{% set x | replace('a', 'b') %}a{% set y = 1 %}", (1, 1), "{% set %} has no {% endset %};"),
        ("{% if 1 %}{% set x = 1 %}", (1, 1), "{% if %} has no {% endif %};"),
        ("{% if 1 %}{% for a in [] %}{% endfor %}", (1, 1), "{% if %} has no {% endif %};"),
        ("{% filter upper %}{% with a = 1 %}{% endwith %}", (1, 1), "{% filter %} has no {% endfilter %};"),
        ("{% macro m() %}x", (1, 1), "{% macro %} has no {% endmacro %};"),
        (
            "{% for a in [] %}\n{% if a %}\n{% endfor %}",
            (2, 1),
            "`{% if a %}`: {% if %} has no {% endif %} before the {% endfor %} of line 3;",
        ),
        ("{% if 1 %}{% for a in [] %}{% else %}{% elif 1 %}", (1, 11), "{% for %} has no {% endfor %} before the {% elif %}"),
        ("x{% endfor %}", (1, 5), "`endfor`: {% endfor %} belongs to no {% for %};"),
        ("{% if 1 %}{% endfor %}{% endif %}", (1, 14), "{% endfor %} belongs to no {% for %};"),
        ("{% else %}", (1, 4), "{% else %} belongs to no {% if %};"),
        ("{% endraw %}", (1, 4), "{% endraw %} belongs to no {% raw %};"),
        ("{% raw %}x", (1, 1), "{% raw %} has no {% endraw %};"),
        ("{% raw x %}", (1, 4), "{% raw %} accepts nothing but its name;"),
        ("{% fro a in [] %}", (1, 4), "`fro`: there is no tag {% fro %} (did you mean \"for\"?); there are filter,"),
        ("{% %}", (1, 4), "a tag begins with its name;"),
        ("x {{ labels.a", (1, 3), "`{{ labels`: `{{` has no `}}`;"),
        ("{% if labels.a", (1, 1), "`{% if`: `{%` has no `%}`;"),
        ("{{ labels.a }", (1, 13), "`}`: `}}` is expected here;"),
        ("{% if labels.a }}x{% endif %}", (1, 16), "`%}` is expected here;"),
        ("{{ 'a", (1, 1), "a text in quotes has no end;"),
        ("a {# b", (1, 3), "`{#` has no `#}`;"),
        ("{{ labels.a|uper }}", (1, 13), "there is no filter `uper` (did you mean \"upper\"?);"),
        ("{{ labels.a is definde }}", (1, 16), "there is no test `definde` (did you mean \"defined\"?);"),
        ("{{ params.x|map('uper') }}", (1, 13), "there is no `uper` (did you mean \"upper\"?);"),
        ("{{ lables.a }}", (1, 4), "there is no variable `lables` here (did you mean \"labels\"?);"),
    ];
    assert_refused(read_plain_template, &cases);
}

/// In a script, the filter `raw` is allowed only at the end of a whole value. The position of each `raw` is reported.
#[test]
fn s74_script_reports_position_of_raw_filter() {
    let script = read_script("set -e\nrun {{ labels.a }} {{ labels.b|raw }}\n{{ params.c | raw }}").unwrap();
    assert_eq!(script.unquoted, [(2, 32), (3, 15)]);
    let texts: Vec<_> = script.references.iter().map(Reference::as_str).collect();
    assert_eq!(texts, ["labels.a", "labels.b", "params.c"]);
    assert_eq!(read_script("run {{ labels.a }}").unwrap().unquoted, []);
    assert!(read_script("{{ labels.a|raw|upper }}").is_err());
    assert!(read_script("{{ labels.a ~ labels.b|raw }}").is_err());
}

/// Each template of the first list would interpret a value a second time, as a pattern, a path of keys or a name. The
/// template is accepted, and the result lists the value.
#[test]
fn y03_template_reports_value_used_as_pattern_or_path() {
    for (text, expected) in [
        ("{{ labels.pct|format('X') }}", "line 1, column 4: `labels.pct`: `format` would take a value as its pattern"),
        ("a\n{{ (labels.a ~ '%s')|format(1) }}", "line 2, column 5: `labels.a"),
        ("{{ ('%s' if labels.x else labels.y)|format(1) }}", "`format` would"),
        ("{{ '%s'|format('a')|format('b') }}", "`format` would"),
        ("{{ labels.a|default('%s')|format(1) }}", "`format` would"),
        ("{% set p = labels.a %}{{ p|format(1) }}", "`format` would"),
        ("{% macro m(p) %}{{ p|format(1) }}{% endmacro %}{{ m(labels.a) }}", "`format` would"),
        ("{% filter format(1) %}{{ labels.a }}{% endfilter %}", "`format` would"),
        ("{% set x|format(1) %}{{ labels.a }}{% endset %}", "`format` would"),
        ("{% if labels.a|format(1) == 'x' %}{% endif %}", "`format` would"),
        ("{% for x in params.xs if x|format(1) %}{% endfor %}", "`format` would"),
        ("{{ [1, {'a': params.p|format(1)}] }}", "`format` would"),
        ("{{ params.xs[params.p|format(1)] }}", "`format` would"),
        ("{{ '%s'|format(params.p|format(1)) }}", "`format` would"),
        ("{{ params.xs|map('format', 'X')|join }}", "`format` would"),
        ("{{ params.xs|map('map', 'format', 'X')|join }}", "`format` would"),
        ("{{ params.xs|map('map', 'raw')|join }}", "there is no `raw`"),
        ("{{ params.xs|map('map', labels.f)|join }}", "the filter or test that it applies is computed"),
        ("{{ params.xs|map('select', labels.t)|join }}", "the filter or test that it applies is computed"),
        ("{{ params.xs|map(attribute=labels.f)|join }}", "`labels.f`: the key is computed, and would be split"),
        ("{{ params.xs|sort(attribute='a' ~ labels.f) }}", "the key is computed"),
        ("{{ params.xs|groupby(labels.f) }}", "the key is computed"),
        ("{{ params.xs|selectattr(labels.f, 'eq', 1)|list }}", "the key is computed"),
        ("{{ params.xs|join(',', labels.f) }}", "the key is computed"),
        ("{{ params.xs|map('groupby', labels.f)|list }}", "the key is computed"),
    ] {
        let values = read_plain_template(text).unwrap().reread_values;
        assert!(values.first().is_some_and(|value| value.to_string().contains(expected)), "{text}: {values:?}");
    }
    for text in [
        "{{ '%s.conf'|format(labels.a) }}",
        "{{ ('%s' ~ '-%d')|format(labels.a, params.n) }}",
        "{{ ('%s' if labels.x else '[%s]')|format(labels.a) }}",
        "{{ params.xs|map(attribute='a.b')|join(labels.a) }}{{ params.xs|map(attribute=0)|list }}",
        "{{ params.xs|map('replace', labels.a, labels.b)|select('eq', labels.c)|join(',', 'name') }}",
        "{{ labels.a|split(labels.b)|map('upper')|join(labels.c) }}{{ labels.a|replace(labels.b, labels.c) }}",
    ] {
        assert_eq!(read_plain_template(text).unwrap().reread_values, [], "{text}");
    }
    let script = read_script("run {{ labels.a|format('X') }}").unwrap().reread_values;
    assert_eq!(script.iter().map(|value| (value.line, value.column)).collect::<Vec<_>>(), [(1, 8)]);
}

#[test]
fn script_rejects_value_when_position_is_unquotable() {
    for text in [
        "echo {{ labels.a }} \"{{ labels.b }}\" '{{ labels.c }}' x={{ labels.d }}",
        "for h in {% for n in nodes(tag='a') %}{{ n.name }} {% endfor %}; do ping $h; done",
        "for h in{% for n in nodes(tag='a') %} {{ n.name }}{% endfor %}; do ping $h; done",
        "{% if labels.a %}echo \"{{ labels.b }}\"{% else %}echo no{% endif %}\necho {{ labels.c }}",
        "{% for x in params.xs %}\n# each\nrun {{ x }}\n{% endfor %}",
        "x=$(cat {{ labels.a }})",
    ] {
        assert!(read_script(text).is_ok(), "{text}: {}", read_script(text).unwrap_err());
    }
    let cases = [
        ("# {{ labels.a }}", (1, 6), "a value cannot be quoted in a comment"),
        ("cat <<EOF\n{{ labels.a }}\nEOF", (2, 4), "in a here-document"),
        ("x=`cat {{ labels.a }}`", (1, 11), "inside backquotes"),
        ("echo $(( {{ labels.a }} ))", (1, 13), "inside an arithmetic expression"),
        ("echo \\{{ labels.a }}", (1, 10), "right after a backslash"),
        ("{% if labels.a %}\"{% endif %}x", (1, 4), "a quote or bracket begins inside this block"),
        ("{% for x in params.xs %}'{% endfor %}", (1, 4), "a quote or bracket begins inside this block"),
        ("{% set x %}a{% endset %}{{ x }}", (1, 4), "would be quoted a second time"),
        ("{% filter upper %}a{% endfilter %}", (1, 4), "would be quoted a second time"),
        ("{% macro m() %}a{% endmacro %}{{ m() }}", (1, 4), "would be quoted a second time"),
    ];
    assert_refused(read_script, &cases);
}

#[test]
fn s52_template_rejects_value_when_size_is_unbounded() {
    // Each variable is twice as long as the one before, so the seventh may contain 64 values.
    let doubling_template = |times: usize| {
        let steps: Vec<_> = (1..times).map(|n| format!("{{% set v{n} = v{0} ~ v{0} %}}", n - 1)).collect();
        format!("{{% set v0 = labels.a %}}{}", steps.join(""))
    };
    assert_eq!(read_references(&doubling_template(7)), ["labels.a"]);
    for (text, expected) in [
        (doubling_template(8), "it may hold more than 64 values"),
        ("{% set a = params.x %}{% set b = [a,a,a,a,a,a,a,a,a] %}{% set c = [b,b,b,b,b,b,b,b] %}".into(), "more than 64 values"),
        ("{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m(labels.a) }}".into(), "a macro's argument may hold at most 8"),
        ("{% set x %}a{% endset %}{% set y = x ~ x ~ x ~ x ~ x %}".into(), "it may hold more than 64 values"),
        ("{{ 'x' * 100000 }}".into(), "it is repeated more than 1000 times"),
        ("{{ params.n * [1] }}".into(), "the number of repetitions is not known"),
        (
            format!("{{% set x %}}{{% for n in params.xs %}}{}{{% endfor %}}{{% endset %}}", "x".repeat(3_000)),
            "of text are in a loop",
        ),
    ] {
        let error = read_plain_template(&text).expect_err(&text);
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
    for text in [
        "{{ '-' * 40 }}{{ facts.memory.total_bytes * 1024 / 3 + 1 }}",
        "{% set x = labels.a ~ '/' ~ labels.b %}{% set y = x ~ '.conf' %}{{ y }}",
        "{% macro m(x) %}[{{ x ~ '!' }}]{% endmacro %}{{ m(labels.a ~ ':' ~ labels.b) }}{{ m('a') ~ m('b') }}",
        "{% for n in params.xs %}{% set x %}{{ n }}{% endset %}{{ x }}{% endfor %}",
    ] {
        assert!(read_plain_template(text).is_ok(), "{text}: {}", read_plain_template(text).unwrap_err());
    }
}

/// Each refused template is nested too deeply, or has too many bytes, `elif` branches, or tokens in one tag.
#[test]
fn s52_template_rejects_text_when_too_deep_or_large() {
    let depth = 100_000;
    for text in [
        format!("{{{{ {}1{} }}}}", "(".repeat(depth), ")".repeat(depth)),
        format!("{{{{ params{} }}}}", ".a".repeat(depth / 4)),
        format!("{{{{ params.a{} }}}}", "|upper".repeat(depth / 10)),
        format!("{{{{ {}1 }}}}", "-".repeat(depth / 2)),
        format!("{{{{ {}1 }}}}", "not ".repeat(depth / 10)),
        format!("{{{{ 1{} }}}}", "+1".repeat(depth / 4)),
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(depth / 20)),
        format!("{{{{ {}{} }}}}", "[".repeat(depth / 4), "]".repeat(depth / 4)),
        "{% if 1 %}".repeat(5_000),
        format!("{}{}", "{% if 1 %}".repeat(3_000), "{% endif %}".repeat(3_000)),
        format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(4_000)),
        format!("{{% set x = [{}] %}}", "1,".repeat(depth / 4)),
        "x".repeat(70_000),
        "{{ ".repeat(20_000),
    ] {
        let error = read_plain_template(&text).expect_err(&text[..20]);
        assert!(error.to_string().len() < 600, "{error}");
    }
    let wide = "{{ labels.a }}".repeat(4_000);
    assert_eq!(read_references(&wide), ["labels.a"]);
    let nested = format!("{}{}", "{% if 1 %}".repeat(60), "{% endif %}".repeat(60));
    assert_eq!(read_references(&nested), [""; 0]);
    let branches: Vec<_> = (0..200).map(|n| format!("{{% if labels.k{n} %}}{{% set v{n} = 1 %}}{{% endif %}}")).collect();
    assert_eq!(read_references(&branches.join("")).len(), 200);
}
