//! Every decoder of bytes from outside, on bytes that nobody meant (docs/trust.md, S50 to S52): it answers, and what it answers is
//! bounded. What a target's cases are and how they are changed stands in `stemma_tests::fuzz`.

use std::cell::RefCell;
use std::fmt::Display;
use std::io::Read as _;
use std::path::PathBuf;

use stemma_agent::sync::read_files;
use stemma_author::Reader;
use stemma_controller::age::{Decrypted, Identity};
use stemma_controller::args;
use stemma_controller::backup;
use stemma_controller::ca::csr;
use stemma_controller::config::Config;
use stemma_controller::handed::Handed;
use stemma_core::condition::Author as _;
use stemma_core::key::{AnnotationKey, LabelKey, LabelValue};
use stemma_core::manifest::{assemble, read_document};
use stemma_core::ownership::Manager;
use stemma_core::requirement::Requirement;
use stemma_core::selector::Selector;
use stemma_core::traits::TraitNames;
use stemma_tests::fuzz::run;
use stemma_tests::operator::Operator;
use stemma_wire::client::Target;
use stemma_wire::error::{ErrorBody, quote};
use stemma_wire::message::channel::{FromApply, FromSync};
use stemma_wire::message::checkin::{CheckIn, CheckInAnswer};
use stemma_wire::message::desired::{Known, Profile, TaskSet};
use stemma_wire::message::enroll::{EnrollAnswer, EnrollRequest, RenewAnswer, RenewRequest};
use stemma_wire::message::{Hash, Message, decode, encode};
use stemma_wire::serve::HeadReader;
use stemma_wire::tls::{Fleet, SpiffeId, spki_sha256};

/// The most that an error says, in bytes. The texts of others (TOML, CEL) show the line, which a case may fill.
const MOST_SAID: usize = 32 * 1024;

fn cases(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// An error is one that people can read, and is not made large by what it is about.
fn said(error: &impl Display) {
    let text = error.to_string();
    assert!(!text.is_empty() && text.len() <= MOST_SAID, "{} bytes: {}", text.len(), &text[..text.len().min(200)]);
}

fn checked<T, E: Display>(result: Result<T, E>) -> Option<T> {
    result.inspect_err(|error| said(error)).ok()
}

/// A target over text; what is no UTF-8 no parser of text is given.
fn run_text(target: &str, texts: &[&str], check: impl Fn(&str)) {
    run(target, &cases(texts), |bytes| {
        if let Ok(text) = std::str::from_utf8(bytes) {
            check(text);
        }
    });
}

/// The messages that version 1 wrote, as they are kept.
fn golden(name: &str) -> Vec<Vec<u8>> {
    let directory: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../shared/wire/golden/v1"].iter().collect();
    let files = std::fs::read_dir(directory).expect("the golden files").map(|file| file.expect("a file").path());
    let is_its = |file: &PathBuf| file.file_stem().is_some_and(|stem| stem.to_string_lossy().starts_with(name));
    let from_hex = |file: PathBuf| {
        let text = std::fs::read_to_string(file).expect("a golden file");
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("digits");
        digits.chunks(2).map(pair).collect()
    };
    let found: Vec<Vec<u8>> = files.filter(is_its).map(from_hex).collect();
    assert!(!found.is_empty(), "no golden file of {name}");
    found
}

/// What decodes is written again within its bound, and reads as itself.
fn message<M: Message + PartialEq>() {
    run(M::NAME, &golden(M::NAME), |bytes| {
        if let Some(message) = checked(decode::<M>(bytes)) {
            let written = encode(&message);
            assert!(written.len() <= bytes.len() + 1, "{} bytes of {}", written.len(), bytes.len());
            assert!(decode::<M>(&written).is_ok_and(|again| again == message));
        }
    });
}

macro_rules! messages {
    ($($test:ident $message:ty;)*) => {
        $(#[test] fn $test() { message::<$message>(); })*
    };
}

messages! {
    s50_check_in CheckIn;
    s50_check_in_answer CheckInAnswer;
    s50_enroll_request EnrollRequest;
    s50_enroll_answer EnrollAnswer;
    s50_renew_request RenewRequest;
    s50_renew_answer RenewAnswer;
    s50_from_apply FromApply;
    s50_from_sync FromSync;
    s50_known Known;
    s50_profile Profile;
    s50_task_set TaskSet;
}

#[test]
fn s46_s47_heads_of_requests() {
    let kept = [
        "GET /v1/nodes HTTP/1.1\r\nHost: h\r\n\r\n",
        "POST /agent/v1/checkin HTTP/1.1\r\nhost: h:9\r\ncontent-length: 5\r\n\r\nhelloGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ];
    run("head", &cases(&kept), |bytes| {
        let read = |bytes: &[u8]| HeadReader::default().feed(bytes);
        let whole = read(bytes);
        // However it is cut, the answer is the same: what is refused early is refused whole.
        for cut in [1, bytes.len() / 2] {
            if read(&bytes[..cut.min(bytes.len())]).is_err() {
                assert!(whole.is_err());
            }
        }
    });
}

#[test]
fn certificates_and_what_they_name() {
    let kept = ["spiffe://example.com/node/0190b6c8-4c1e-7d2a-9f00-0123456789ab", "spiffe://f/admin/ada"];
    run_text("spiffe-id", &kept, |text| {
        if let Some(id) = checked(text.parse::<SpiffeId>()) {
            assert_eq!(id.to_string(), text, "one spelling");
        }
        checked(text.parse::<Fleet>());
        checked(text.parse::<Target>());
        checked(text.parse::<Hash>());
    });
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate").der().to_vec();
    run("certificate", &[certificate], |bytes| {
        checked(spki_sha256(bytes));
    });
    let mut plain = rcgen::CertificateParams::default();
    plain.distinguished_name = rcgen::DistinguishedName::new();
    let requests = [params, plain].map(|params| params.serialize_request(&key).expect("a request").der().to_vec());
    run("csr", &requests, |bytes| {
        checked(csr::check(bytes));
    });
}

#[test]
fn keys_selectors_and_requirements() {
    run_text("key", &["app.example.com/tier", "site.rack-1", "gold", "a: b\nc"], |text| {
        checked(LabelKey::new(text));
        checked(AnnotationKey::new(text));
        checked(LabelValue::new(text));
        checked(TraitNames::default().parse(text));
        assert!(quote(text).chars().count() <= 64 * 10 + 2 && !quote(text).contains(char::is_control));
    });
    let kept = ["tier in (gold, silver),!debug,kind!=node", "a==b,c", "x notin (1,2,3)"];
    run_text("selector", &kept, |text| drop(checked(Selector::parse(text))));
    let kept =
        ["property:memory_mb >= 16384", "trait:HW_CPU_X86_AVX2 required", "tier <or> a <or> b", "c <all-in> a b"];
    run_text("requirement", &kept, |text| drop(checked(Requirement::parse(text))));
}

const MANIFESTS: &[&str] = &[
    "kind: ClusterTemplate\nname: base\nrelease: site@2026.11\nlabels: {ntp: ntp.example.net, tier: standard}\n",
    "kind: Cluster\nname: prod\ncluster_template: base\n---\nkind: NodeGroup\ncluster: prod\nname: web\nmerge_labels: true\n\
     labels: {tier: gold, debug: null}\nroles: [web]\nrequirements: {\"property:memory_mb\": \">= 16384\"}\nstrategy: {type: RollingUpdate, max_unavailable: 25%}\n",
    "kind: Release\nname: site\nversion: \"2026.11\"\nroles: {web: {tags: [nginx]}}\ntags: {nginx: {has_primary: true}}\ntasks:\n\
     - {id: conf, type: file, tags: [nginx], parameters: {path: /etc/x, template: \"{{ labels.tier }}\"}}\n\
     - {id: run, type: shell, tags: [nginx], requires: [conf], condition: \"labels.tier == 'gold'\", parameters: {cmd: \"true\"}}\n",
    "&a {b: *a}\n",
    "a: &x [1, 2]\nb: *x\n<<: {c: 1}\n",
];

#[test]
fn s51_manifests() {
    run_text("yaml", MANIFESTS, |text| {
        checked(stemma::yaml::documents(text));
    });
    let json = [
        r#"{"kind":"Node","name":"web-1","nodegroup":"prod/web","labels":{"a":"b","c":null},"traits":["CUSTOM_A"],"properties":{"memory_mb":1}}"#,
        r#"{"kind":"NodeGroup","cluster":"prod","name":"web","requirements":{"trait:CUSTOM_A":"required"},"merge_labels":true}"#,
        r#"{"kind":"Release","name":"s","roles":{"web":{"tags":["t"]}},"tasks":[{"id":"a","type":"file","tags":["t"],"parameters":{"path":"/x","content":"y"}}]}"#,
        r#"{"kind":"Cluster","name":"prod","parameters":{"a":{"b":[1,2,{"c":1e308}]}},"tags":{"t":{}},"roles":{"web":{"add_tags":["t"]}}}"#,
    ];
    let manager = Manager::new("tester").expect("a manager");
    run_text("manifest", &json, |text| {
        if let Some(document) = checked(read_document(text))
            && let Err(errors) = assemble(&[document], &manager)
        {
            for (_, error) in &errors {
                said(error);
            }
        }
    });
    run_text("error-body", &[r#"{"error":{"code":400,"type":"a.b","message":"m"}}"#], |text| {
        drop(ErrorBody::parse(text.as_bytes()));
    });
}

#[test]
fn s52_templates_scripts_and_conditions() {
    let kept = [
        "{{ labels.tier | default('x') }}{% for n in nodes('a=b') %}{{ n.name }}{% endfor %}",
        "labels.tier == 'a' && has(facts.x)",
    ];
    run_text("template", &kept, |text| {
        checked(Reader.template(text));
        checked(Reader.script(text));
        checked(Reader.condition(text).map(drop));
    });
}

#[test]
fn files_of_a_host_and_of_a_program() {
    run_text("labels.d", &["tier=gold\n# why\nsite.rack = r-1\n", "=\n==\nA=b"], |text| {
        let read = read_files([("text".to_owned(), Ok(text.to_owned()))]);
        assert!(read.labels.len() <= 256 && read.findings.len() <= 64);
        for finding in &read.findings {
            said(finding);
        }
    });
    let agent = [
        "[host_label_map]\npath = \"/etc/stemma/node-labels\"\nformat = \"node_feature_discovery\"\n[schedule]\ndrift_seconds = 60\n",
    ];
    run_text("agent.toml", &agent, |text| drop(checked(stemma_agent::config::Config::parse(text))));
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let local = || Some("127.0.0.1:0".to_owned());
    // The addresses are flags here: a file's are looked up by name.
    let flags = args::Run {
        config: Some(file.path().to_owned()),
        admin_listen: local(),
        agent_listen: local(),
        ..args::Run::default()
    };
    let kept = "data_dir = \"/var/lib/stemma\"\nnames = [\"stemma.example\", \"10.0.0.1\"]\nextra_standard_traits = [\"HW_X\"]\n";
    run("controller.toml", &cases(&[kept]), |bytes| {
        std::fs::write(file.path(), bytes).expect("a temporary file");
        checked(Config::load_with(&flags, &Handed::default()));
    });
}

#[test]
fn backups_and_what_encrypts_them() {
    let head = r#"{"fleet":{"fleet":"f","controller":"00000000-0000-0000-0000-000000000001","names":[]},"epoch":"00000000-0000-0000-0000-000000000002","base":0,"revision":9,"schema":1,"program":"p","at_s":7}"#;
    let frame = |kind: u8, bytes: &[u8]| {
        let length = u32::try_from(bytes.len()).expect("a short frame").to_be_bytes();
        [&[kind][..], &length, bytes].concat()
    };
    let file = frame(3, b"\0\0\0\x06ca.pemx");
    let whole = [&b"stemma-backup 1\n"[..], &frame(1, head.as_bytes()), &file, &frame(4, &[0; 32])].concat();
    run("backup", &[whole], |bytes| {
        let Some((mut reader, _)) = checked(backup::Reader::begin(bytes)) else { return };
        while let Some(Some(_)) = checked(reader.next_part()) {}
    });
    let secret = "AGE-SECRET-KEY-190CQVWUPCWHXR6RUCTJCG2VVDCJQZHXH6R2H2SZ90UM3S9433QFSRU8HAX";
    let identities = Identity::read_all(secret).expect("an identity");
    let header = "age-encryption.org/v1\n-> X25519 nI37e/u3yp+S9sR7qeBYPw5/Vel3eQlAe/cGxYaQjQI\n\
                  l1B6DvI4gFWCBp3W7wItyI7pPb5SGRsp1pA94tLckXQ\n--- NDJZiWwgcypOOXiCpkHFkqk+/NJiDZk5oM9P/j1010I\n";
    run("age", &cases(&[&format!("{header}0123456789abcdef0123456789abcdef")]), |bytes| {
        let Some(mut text) = checked(Decrypted::begin(bytes, &identities)) else { return };
        checked(text.read_to_end(&mut Vec::new()));
    });
    run_text("age.keys", &[&format!("# a key\n{secret}\n")], |text| drop(checked(Identity::read_all(text))));
}

/// The calls whose bodies are made of chance: method, path, kind of body, and a body that is taken.
const CALLS: &[(&str, &str, &str, &str)] = &[
    (
        "POST",
        "/v1/apply?manager=m&force=true",
        "application/json",
        r#"{"objects":[{"kind":"ClusterTemplate","name":"b","labels":{"a":"1"}}]}"#,
    ),
    ("POST", "/v1/clustertemplates", "application/json", r#"{"name":"t1","labels":{"a":"b"},"coe":"kubernetes"}"#),
    (
        "POST",
        "/v1/clusters",
        "application/json",
        r#"{"name":"c1","cluster_template_id":"base","merge_labels":true,"labels":{"x":"y"}}"#,
    ),
    ("POST", "/v1/clusters/prod/nodegroups", "application/json", r#"{"name":"g1","labels":{"x":"y"},"node_count":2}"#),
    (
        "POST",
        "/v1/nodes",
        "application/json",
        r#"{"name":"n1","driver":"ipmi","properties":{"memory_mb":"1"},"extra":{}}"#,
    ),
    (
        "POST",
        "/v1/releases",
        "application/json",
        r#"{"name":"r","version":"1","roles":{"w":{"tags":["t"]}},"tasks":[{"id":"a","type":"file","tags":["t"],"parameters":{"path":"/x","content":"y"}}]}"#,
    ),
    (
        "PATCH",
        "/v1/clustertemplates/base?manager=m",
        "application/apply-patch+json",
        r#"{"labels":{"a":"2"},"annotations":null,"parameters":{"p":{"q":[1]}}}"#,
    ),
    ("PATCH", "/v1/clustertemplates/base", "application/merge-patch+json", r#"{"description":"d","labels":{"z":"1"}}"#),
    (
        "PATCH",
        "/v1/nodes/web-1",
        "application/json",
        r#"[{"op":"replace","path":"/extra/a~1b","value":{"c":1}},{"op":"remove","path":"/description"}]"#,
    ),
    (
        "PATCH",
        "/v1/clusters/prod",
        "application/json-patch+json",
        r#"[{"op":"add","path":"/labels","value":"{'a': 'b'}"}]"#,
    ),
    ("PUT", "/v1/clusters/prod/labels?manager=m", "application/json", r#"{"labels":{"a":"1","b":null}}"#),
    (
        "POST",
        "/v1/clusters/prod/labels/owners?manager=m",
        "application/json",
        r#"{"from":"m","to":"n:apply","keys":["a"]}"#,
    ),
    ("POST", "/v1/clusters/prod/labels/tombstones", "application/json", r#"{"keys":["a"]}"#),
    ("PUT", "/v1/nodes/web-1/traits", "application/json", r#"{"traits":["CUSTOM_A","HW_CPU_X86_AVX2"]}"#),
    ("POST", "/v1/nodes/web-1/tags", "application/json", r#"{"assign":["t"],"unassign":["u"]}"#),
    ("PUT", "/v1/clusters/prod/roles", "application/json", r#"{"roles":{"web":{"add_tags":["t"],"remove_tags":[]}}}"#),
    (
        "POST",
        "/v1/join-tokens",
        "application/json",
        r#"{"nodegroup":"prod/web","uses":2,"ttl_seconds":60,"mode":"noop"}"#,
    ),
    (
        "GET",
        "/v1/nodes?",
        "",
        "requirement=property:memory_mb+%3E%3D+16&selector=a+in+(b)&traits=CUSTOM_A&limit=3&sort_key=name",
    ),
    ("GET", "/v1/nodes/", "", "web-1/explain?label=a%2Fb"),
];

#[test]
fn s43_s51_s54_bodies_and_queries_over_the_real_listener() {
    let fleet = stemma_tests::fleet::Fleet::start().expect("a controller");
    let mut operator = Operator::of(&fleet.data(), fleet.bound()).expect("its admin's certificate");
    for (path, body) in [
        ("/v1/clustertemplates", serde_json::json!({"name": "base"})),
        ("/v1/clusters", serde_json::json!({"name": "prod", "cluster_template_id": "base"})),
        ("/v1/clusters/prod/nodegroups", serde_json::json!({"name": "web"})),
        ("/v1/nodes", serde_json::json!({"name": "web-1"})),
    ] {
        let (status, answer) = operator.call("POST", path, "application/json", &body).expect("an answer");
        assert!((200..300).contains(&status), "{path}: {status} {answer}");
    }
    let operator = RefCell::new(operator);
    // The first byte is the call.
    let kept: Vec<Vec<u8>> = (0_u8..).zip(CALLS).map(|(call, case)| [&[call], case.3.as_bytes()].concat()).collect();
    run("api", &kept, |bytes| {
        let Some((call, body)) = bytes.split_first() else { return };
        let (method, path, kind, _) = CALLS[usize::from(*call) % CALLS.len()];
        let text = String::from_utf8_lossy(body);
        let (path, text) = if method == "GET" { (format!("{path}{text}"), "") } else { (path.to_owned(), &*text) };
        if path.parse::<hyper::Uri>().is_err() {
            return;
        }
        let answer = operator.borrow_mut().call_text(method, &path, kind, text.to_owned());
        let (status, answer) = answer.unwrap_or_else(|error| panic!("{method} {path}: {error:#}\n{}", fleet.log()));
        assert!((200..500).contains(&status), "{method} {path}: {status} {answer}");
        if status >= 400 {
            let of_error = |part: &str| answer["error"][part].as_str().is_some_and(|text| !text.is_empty());
            assert!(of_error("type") && of_error("message"), "{method} {path}: {status} {answer}");
            assert!(answer.to_string().len() <= MOST_SAID, "{} bytes", answer.to_string().len());
        }
    });
}
