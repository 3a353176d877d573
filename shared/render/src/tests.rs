//! Tests templates that are rendered, templates that are refused, and values that try to escape their quotes.

use std::process::Command;

use proptest::prelude::*;
use serde_json::{Value, json};
use stemma_core::input::template::FILTERS;
use stemma_core::input::{Input, Inputs};

use super::*;

/// Secrets of which only version 3 of `DB` is available. Its value contains shell syntax.
struct TestSecrets;

impl Secrets for TestSecrets {
    /// Returns the value of version 3 of `DB`. No other secret is available.
    fn value(&self, name: &str, version: u64) -> Result<String, SecretUnavailable> {
        match (name, version) {
            ("DB", 3) => Ok("hunter2 $(id)".to_owned()),
            _ => Err(SecretUnavailable { reason: "no such credential".to_owned() }),
        }
    }
}

/// Returns inputs with the given values. The first text of a pair is the reference that reads the value.
fn inputs(pairs: &[(&str, Value)]) -> Inputs {
    let mut inputs = Inputs::new();
    for (text, value) in pairs {
        inputs.insert(text.parse().unwrap(), Input::Value(value.clone())).unwrap();
    }
    inputs
}

/// Returns inputs with a value for each kind of reference, three absent values, and two secrets. Only the secret `DB`
/// is available in [`TestSecrets`].
fn sample_inputs() -> Inputs {
    let mut inputs = inputs(&[
        ("labels.tier", json!("gold")),
        ("labels['a/b']", json!("it's")),
        ("labels_with_prefix('x/')", json!({"x/a": "1", "x/b": "2"})),
        ("params.port", json!(8080)),
        ("params.on", json!(true)),
        ("params.none", json!(null)),
        ("params.servers", json!([{"host": "a", "w": 1}, {"host": "b", "w": 2}])),
        ("params.deep.way", json!({"x": 1})),
        ("'CUSTOM_A' in traits", json!(true)),
        ("'CUSTOM_B' in traits", json!(false)),
        ("'db' in tags", json!(true)),
        ("facts.cpu.count", json!(4)),
        ("node.name", json!("web-1")),
        ("cluster.name", json!("prod")),
        ("nodes(tag='db'){name}", json!([{"name": "db-1"}, {"name": "db-2"}])),
        ("nodes(tag='db'){address, labels.zone}", json!([{"address": "10.0.0.1", "labels": {"zone": "z"}}, {"labels": {}}])),
        ("nodes(tag=['a', 'b'], or_role='c')", json!([])),
        ("primary('db'){name}", json!({"name": "db-1"})),
    ]);
    for reference in ["labels.gone", "params.gone.x", "primary('none'){name}"] {
        inputs.insert(reference.parse().unwrap(), Input::Absent).unwrap();
    }
    let secret = Input::Secret { name: "DB".into(), version: 3 };
    inputs.insert("secret('DB')".parse().unwrap(), secret).unwrap();
    inputs.insert("secret('X')".parse().unwrap(), Input::Secret { name: "X".into(), version: 1 }).unwrap();
    inputs
}

fn render(template: &str, inputs: &Inputs, secrets: &dyn Secrets, limits: RenderLimits) -> Result<String, RenderError> {
    Renderer::new(inputs, secrets, limits).text(template)
}

fn render_text(template: &str) -> Result<String, String> {
    render(template, &sample_inputs(), &TestSecrets, RenderLimits::default()).map_err(|error| error.to_string())
}

fn render_script(template: &str) -> Result<String, String> {
    Renderer::new(&sample_inputs(), &TestSecrets, RenderLimits::default()).script(template).map_err(|error| error.to_string())
}

#[test]
fn render_inserts_inputs() {
    for (template, expected) in [
        ("plain\n", "plain\n"),
        ("tier {{ labels.tier }}, {{ labels['a/b'] }}\n", "tier gold, it's\n"),
        ("{{ labels.gone is defined }} {{ labels.gone|default('x') }}", "False x"),
        ("{% if labels.gone is undefined %}no{% endif %}", "no"),
        ("{% for k, v in labels_with_prefix('x/')|items %}{{ k }}={{ v }};{% endfor %}", "x/a=1;x/b=2;"),
        ("{{ params.port }} {{ params.port + 1 }} {{ params.on }} {{ params.none is none }}", "8080 8081 True True"),
        ("{% for s in params.servers %}{{ loop.index }}:{{ s.host }} {% endfor %}", "1:a 2:b "),
        ("{{ params.deep.way.x }} {{ params.deep.way['y'] is defined }}", "1 False"),
        ("{{ params.gone.x is defined }} {{ params.gone.x|default(7) }}", "False 7"),
        (
            "{{ 'CUSTOM_A' in traits }} {{ 'CUSTOM_B' in traits }} {{ 'CUSTOM_B' not in traits }} {{ 'db' in tags }}",
            "True False True True",
        ),
        ("{{ facts.cpu.count * 2 }} {{ node.name }}@{{ cluster.name }}", "8 web-1@prod"),
        (
            "{% for n in nodes(tag='db') %}{{ n.name }} {{ n.address|default('-') }} {{ n.labels.zone is defined }};{% endfor %}",
            "db-1 10.0.0.1 True;db-2 - False;",
        ),
        ("{{ nodes(tag='db')|map(attribute='name')|join(',') }} {{ nodes(tag=['b', 'a'], or_role='c')|length }}", "db-1,db-2 0"),
        ("{{ (nodes(tag='db')|rejectattr('name', 'eq', 'db-1')|first).name }}", "db-2"),
        ("{{ primary('db').name }} {{ primary('none') is defined }}", "db-1 False"),
        ("{{ secret('DB') }}", "hunter2 $(id)"),
        ("{{ params.servers|tojson }}", r#"[{"host":"a","w":1},{"host":"b","w":2}]"#),
        (
            "{{ '%03d'|format(7) }} {{ 'a-b'|replace('-', '+') }} {{ ['x','y']|join(' ') }} {{ 'a\nb'|indent(2) }}",
            "007 a+b x y a\n  b",
        ),
        ("{% macro m(x, y='d') %}[{{ x }}{{ y }}]{% endmacro %}{{ m(labels.tier) }}{{ m(1, y=2) }}", "[goldd][12]"),
        ("{% set x %}a{{ labels.tier }}{% endset %}{{ x|upper }}", "AGOLD"),
        ("{% filter upper %}{{ labels.tier }}{% endfilter %}", "GOLD"),
        ("<{{ labels['a/b'] }}> & \"", "<it's> & \""),
        ("{{ 'a' if labels.gone is defined }}", ""),
    ] {
        assert_eq!(render_text(template).as_deref(), Ok(expected), "{template}");
    }
}

#[test]
fn render_error_names_line_and_remedy() {
    for (template, expected) in [
        (
            "a\n{{ labels.gone }}",
            "line 2: it needs `labels.gone`, which is absent; set it, or write `is defined` or `|default(…)`",
        ),
        ("{{ primary('none').name }}", "line 1: it needs `primary('none')`, which is absent"),
        ("{{ params.deep.way.y }}", "line 1: it needs a value that is absent"),
        ("{{ labels.other }}", "line 1: it reads `labels.other`, which is not among its inputs"),
        ("{{ labels.other|default('x') }}", "it reads `labels.other`, which is not among its inputs"),
        ("{{ params.port2 is defined }}", "it reads `params.port2`, which is not among its inputs"),
        ("{{ 'CUSTOM_C' in traits }}", "it reads `'CUSTOM_C' in traits`, which is not among its inputs"),
        ("{{ nodes(tag='x')|length }}", "it reads `nodes(tag='x')`, which is not among its inputs"),
        ("{{ labels }}", "it reads `labels`, which is not among its inputs"),
        ("{% for l in labels %}{% endfor %}", "it reads `labels`, which is not among its inputs"),
        ("{{ labels|tojson }}", "it reads `labels`, which is not among its inputs"),
        ("{% if params.deep %}{% endif %}", "it reads `params.deep`, which is not among its inputs"),
        ("{{ params.deep|length }}", "it reads `params.deep`, which is not among its inputs"),
        ("{{ params.deep }}", "it reads `params.deep`, which is not among its inputs"),
        ("{{ labels[params.port] }}", "it reads `labels`, which is not among its inputs"),
        ("{{ traits|join }}", "it reads `traits`, which is not among its inputs"),
        ("{{ uptime }}", "line 1: it needs a value that is absent"),
        ("{{ secret('X') }}", "secret `X` is not available: no such credential; provide it"),
        ("{{ secret('Y') }}", "it reads `secret('Y')`, which is not among its inputs"),
        ("{% include 'x' %}", "line 1: template not found"),
        ("{{ labels. }}", "line 1: it cannot be parsed"),
        ("{{ labels.tier|safe }}", "line 1: unknown filter"),
        ("{{ labels.tier|raw }}", "line 1: unknown filter"),
        ("{{ labels.tier|attr('x') }}", "line 1: unknown filter"),
        ("{{ namespace() }}", "line 1: unknown function"),
    ] {
        let error = render_text(template).expect_err(template);
        assert!(error.contains(expected), "{template}: {error}");
    }
}

/// Regression: each error message advised the reader to check the types of the values, even after a division by 0.
#[test]
fn y09_remedy_matches_error_kind() {
    let inputs = inputs(&[("params.zero", json!(0)), ("params.ten", json!(10)), ("params.word", json!("a"))]);
    let number_remedy = "check the numbers that it calculates with: a division by 0 has no result";
    let syntax_remedy = "see docs/templates.md for what a template can contain";
    let type_remedy = "check the types of the values that it combines";
    for (template, detail, remedy) in [
        ("a\n{{ 1 / params.zero }}", "line 2: invalid operation: unable to calculate 1 / 0", Some(number_remedy)),
        ("{{ 1 // params.zero }}", "unable to calculate 1 // 0", Some(number_remedy)),
        ("{{ 1 % params.zero }}", "unable to calculate 1 % 0", Some(number_remedy)),
        ("{{ params.ten ** 100 }}", "unable to calculate 10 ** 100", Some(number_remedy)),
        ("{{ params.word / params.ten }}", "unsupported types string and number", Some(type_remedy)),
        ("{{ params.word|nothing }}", "unknown filter", Some(syntax_remedy)),
        ("{{ nothing() }}", "unknown function", Some(syntax_remedy)),
        ("{{ params.word|indent(5000) }}", "`indent` takes at most 1000", None),
    ] {
        let error = render(template, &inputs, &TestSecrets, RenderLimits::default()).expect_err(template).to_string();
        let has_remedy = remedy.map_or_else(|| error.ends_with(detail), |remedy| error.contains(&format!("; {remedy}")));
        assert!(error.contains(detail) && has_remedy, "{template}: {error}");
    }
}

#[test]
fn environment_has_every_allowed_filter() {
    for filter in FILTERS {
        let rendered = render_text(&format!("{{{{ 'x'|{filter} }}}}"));
        assert!(!rendered.is_err_and(|error| error.contains("unknown filter")), "{filter}");
    }
}

#[test]
fn render_error_omits_secret_value() {
    for template in [
        "{{ secret('DB')|int }}",
        "{{ secret('DB') * 'x' }}",
        "{{ [1]|map(secret('DB'))|list }}",
        "{{ secret('DB')|upper|format(1, 2) + 1 }}",
        "{% include secret('DB') %}",
    ] {
        let error = render_text(template).expect_err(template);
        assert!(!error.to_lowercase().contains("hunter2"), "{template}: {error}");
    }
    let renderer = Renderer::new(&sample_inputs(), &TestSecrets, RenderLimits::default());
    assert!(!format!("{renderer:?}").contains("hunter2"));
}

#[test]
fn render_stops_at_limits() {
    let inputs = inputs(&[("params.xs", json!([1, 2, 3])), ("params.n", json!(1_000_000_000))]);
    for (template, expected) in [
        ("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}", "more than 100000 steps"),
        ("{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}", "more than 64 nested blocks"),
        ("{% for a in range(3000) %}{{ 'x' * 1000 }}{% endfor %}", "more than 1048576 bytes"),
        ("{% set t %}{% for a in range(9000) %}{{ 'x' * 1000 }}{% endfor %}{% endset %}", "more than 1048576 bytes"),
        ("{{ 'x' * 999999999 }}", "too large"),
        ("{{ range(1000000000)|list }}", "too many elements"),
        ("{{ (params.xs * params.n)|list }}", "too large"),
        ("{{ 'a\nb'|indent(params.n) }}", "`indent` takes at most 1000"),
        ("{{ 'a\nb'|indent(width=params.n) }}", "`indent` takes at most 1000"),
        ("{{ params.xs|batch(params.n, 'x') }}", "`batch` takes at most 1000"),
        ("{{ params.xs|slice(params.n) }}", "`slice` takes at most 1000"),
        ("{{ '%999999999d'|format(1) }}", "widths of at most 3 digits"),
        ("{{ '%*d'|format(params.n, 1) }}", "widths of at most 3 digits"),
        ("{{ ('x' * 100000)|replace('x', 'y' * 100000) }}", "`replace` makes at most"),
        ("{{ range(100000)|join('y' * 100000) }}", "`join` makes at most"),
    ] {
        let error = render(template, &inputs, &NoSecrets, RenderLimits::default()).expect_err(template).to_string();
        assert!(error.contains(expected), "{template}: {error}");
    }
    let error = render(&"x".repeat(70_000), &inputs, &NoSecrets, RenderLimits::default()).unwrap_err();
    assert_eq!(error.to_string(), "it takes more than 65536 bytes as a template; make it smaller, or split the task");
    let few_steps = RenderLimits { steps: 10, ..RenderLimits::default() };
    assert!(render("{% for a in range(9) %}{{ a }}{% endfor %}", &inputs, &NoSecrets, few_steps).is_err());
}

/// Renders templates that are about as deep as the check of a release permits. The thread has the stack size of tests
/// and servers, and must not overflow.
#[test]
fn render_accepts_deepest_allowed_template() {
    for template in [
        format!("{}x{}", "{% if true %}".repeat(140), "{% endif %}".repeat(140)),
        format!("{{{{ 'x'{} }}}}", "|lower".repeat(120)),
        format!("{{{{ {}'x'{} }}}}", "(".repeat(70), ")".repeat(70)),
        format!("{{{{ 'x' if true{} }}}}", " and true".repeat(110)),
        format!("{{% if false %}}{}{{% else %}}x{{% endif %}}", "{% elif false %}".repeat(100)),
    ] {
        assert_eq!(render_text(&template).as_deref(), Ok("x"), "{}", &template[..30]);
    }
}

#[test]
fn renderer_lists_references_read() {
    let inputs = sample_inputs();
    let renderer = Renderer::new(&inputs, &TestSecrets, RenderLimits::default());
    renderer.text("{{ labels.tier }}{{ nodes(tag='db')|length }}{{ labels.gone is defined }}").unwrap();
    let references: Vec<_> = renderer.references_read().iter().map(ToString::to_string).collect();
    assert_eq!(references, ["labels.gone", "labels.tier", "nodes(tag='db'){address, labels.zone}", "nodes(tag='db'){name}"]);
}

#[test]
fn script_quotes_value_for_position() {
    for (template, expected) in [
        ("echo {{ labels['a/b'] }}\n", "echo 'it'\\''s'\n"),
        ("echo \"{{ secret('DB') }}\"", "echo \"hunter2 \\$(id)\""),
        ("echo '{{ labels['a/b'] }}'", "echo 'it'\\''s'"),
        ("run --port={{ params.port }} {{ labels.tier|raw }} {{ params.on }}", "run --port='8080' gold 'True'"),
        (
            "for h in{% for n in nodes(tag='db') %} {{ n.name }}{% endfor %}; do ping $h; done",
            "for h in 'db-1' 'db-2'; do ping $h; done",
        ),
        ("{{ ('a ' ~ labels.tier)|raw }} {{ (labels.tier|raw) ~ ';' }}", "a gold 'gold;'"),
        ("{{ 'x' if labels.gone is defined }}y", "y"),
    ] {
        assert_eq!(render_script(template).as_deref(), Ok(expected), "{template}");
    }
    for (template, expected) in [
        ("# {{ labels.tier }}", "line 1: a value cannot be quoted in a comment"),
        ("a\ncat <<EOF\n{{ labels.tier }}\nEOF", "line 3: a value cannot be quoted in a here-document"),
        ("{% set x %}{{ labels.tier }}{% endset %}{{ x }}", "inside a text that is captured in a variable"),
        ("echo {{ labels.other }}", "it reads `labels.other`"),
    ] {
        let error = render_script(template).expect_err(template);
        assert!(error.contains(expected), "{template}: {error}");
    }
}

/// Items are not quoted. A NUL is refused in a command and in a script, and accepted in the text of a file.
#[test]
fn command_renders_each_item_separately() {
    let items = ["/bin/echo", "{{ labels['a/b'] }} {{ labels.tier }}", "$(id)"];
    let command = Renderer::new(&sample_inputs(), &NoSecrets, RenderLimits::default()).command(&items).unwrap();
    assert_eq!(command, ["/bin/echo", "it's gold", "$(id)"]);
    let inputs_with_nul = inputs(&[("params.x", json!("a\0b"))]);
    let renderer = Renderer::new(&inputs_with_nul, &NoSecrets, RenderLimits::default());
    let error = renderer.command(&["{{ params.x }}"]).unwrap_err();
    assert_eq!(error.to_string(), "a value holds a NUL, which cannot be passed to a program; remove it from the value");
    assert!(renderer.script("echo {{ params.x }}").is_err());
    assert!(render("{{ params.x }}", &inputs_with_nul, &NoSecrets, RenderLimits::default()).is_ok());
}

/// Shell scripts that print the value of `params.x` between brackets. Each script has the value at another position
/// where a value is allowed.
const QUOTING_POSITIONS: &[&str] = &[
    "printf '[%s]' {{ params.x }}",
    "printf '[%s]' \"{{ params.x }}\"",
    "printf '[%s]' '{{ params.x }}'",
    "x={{ params.x }}; printf '[%s]' \"$x\"",
    "printf '[%s]' \"$(printf '%s.' {{ params.x }})\" | sed '$s/\\.]$/]/'",
    "printf '[%s]' \"$(printf '%s.' \"{{ params.x }}\")\" | sed '$s/\\.]$/]/'",
    "f() { printf '[%s]' \"$1\"; }; f {{ params.x }} # it's",
    "cat <<'E' >/dev/null\nit's\nE\nprintf '[%s]' {{ params.x }}",
    "case a in a) printf '[%s]' {{ params.x }};; esac",
    "(printf '[%s]' {{ params.x }})",
    "printf '[%s]' \"${HOME:+}{{ params.x }}\"",
    "printf '[%s]' \"a\"'b'{{ params.x }} | sed '1s/^\\[ab/[/'",
];

/// Runs a script with `/bin/sh` and returns its standard output.
fn run_script(script: &str) -> String {
    let output = Command::new("/bin/sh").args(["-c", script]).output().expect("a shell is here");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Checks that every script of [`QUOTING_POSITIONS`] prints the value unchanged, so the shell reads it as a single
/// word.
fn check_value_is_one_word(value: &str) {
    let inputs = inputs(&[("params.x", json!(value))]);
    for template in QUOTING_POSITIONS {
        let script = Renderer::new(&inputs, &NoSecrets, RenderLimits::default()).script(template).unwrap();
        assert_eq!(run_script(&script), format!("[{value}]"), "{script}");
    }
}

/// The mark of a value contains the first character from `\u{e000}` on that neither the template nor an input has.
#[test]
fn s73_script_keeps_dangerous_value_as_one_word() {
    for value in [
        "",
        "a b",
        "; echo owned",
        "a\nrm -rf x",
        "$(echo owned)",
        "`echo owned`",
        "'; echo owned; '",
        "\"; echo owned; \"",
        "\\",
        "\\\\'",
        "a\\\"b",
        "${HOME}",
        "#x",
        "*",
        "~",
        "-n",
        "!!",
        "é\u{e000}0\u{e000}",
        "$((1+1))",
        "a'b\"c`d$e\\f",
    ] {
        check_value_is_one_word(value);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 10))]

    #[test]
    fn s73_script_keeps_random_value_as_one_word(value in "[ -~\n']{0,12}[^\n\r\0]") {
        check_value_is_one_word(&value);
    }
}
