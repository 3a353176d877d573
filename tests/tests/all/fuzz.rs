//! Fuzzes every decoder of bytes from outside (docs/trust.md, S50 to S52). It must return, and the size of its result
//! is limited. `stemma_tests::fuzz` describes the cases of a target and their mutations.

use std::cell::RefCell;
use std::fmt::Display;
use std::io::Read as _;
use std::path::PathBuf;

use stemma_agent::sync::read_files;
use stemma_author::SyntaxReader;
use stemma_controller::age::{AgeIdentity, DecryptReader};
use stemma_controller::args;
use stemma_controller::backup;
use stemma_controller::ca::csr;
use stemma_controller::config::Config;
use stemma_controller::socket_activation::ActivatedSockets;
use stemma_core::condition::TemplateParser as _;
use stemma_core::key::{AnnotationKey, LabelKey, LabelValue};
use stemma_core::manifest::{assemble, read_document};
use stemma_core::ownership::Manager;
use stemma_core::requirement::Requirement;
use stemma_core::selector::Selector;
use stemma_core::traits::TraitNames;
use stemma_tests::fuzz::run;
use stemma_tests::operator::OperatorClient;
use stemma_wire::client::Target;
use stemma_wire::error::{ErrorBody, quote};
use stemma_wire::message::channel::{ApplyMessage, SyncMessage};
use stemma_wire::message::checkin::{CheckIn, CheckInResponse};
use stemma_wire::message::desired::{Known, Profile, TaskSet};
use stemma_wire::message::enroll::{EnrollRequest, EnrollResponse, RenewRequest, RenewResponse};
use stemma_wire::message::{Hash, Message, decode, encode};
use stemma_wire::serve::HeadReader;
use stemma_wire::tls::{FleetName, SpiffeId, spki_sha256};

/// Maximum size of an error text, in bytes. Errors of TOML and CEL contain the line, which may be the whole case.
const MAX_ERROR_BYTES: usize = 32 * 1024;

fn to_cases(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Checks that an error has a text, and that the input does not make the text large.
fn check_error(error: &impl Display) {
    let text = error.to_string();
    assert!(!text.is_empty() && text.len() <= MAX_ERROR_BYTES, "{} bytes: {}", text.len(), &text[..text.len().min(200)]);
}

fn check_result<T, E: Display>(result: Result<T, E>) -> Option<T> {
    result.inspect_err(|error| check_error(error)).ok()
}

/// Runs a target over text. Skips bytes that are not UTF-8.
fn run_text_target(target: &str, texts: &[&str], check: impl Fn(&str)) {
    run(target, &to_cases(texts), |bytes| {
        if let Ok(text) = std::str::from_utf8(bytes) {
            check(text);
        }
    });
}

/// Returns the golden messages of version 1.
fn golden_messages(name: &str) -> Vec<Vec<u8>> {
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

/// Checks that a decoded message is encoded within the size limit and decodes to the same message.
fn check_message<M: Message + PartialEq>() {
    run(M::NAME, &golden_messages(M::NAME), |bytes| {
        if let Some(message) = check_result(decode::<M>(bytes)) {
            let written = encode(&message);
            assert!(written.len() <= bytes.len() + 1, "{} bytes of {}", written.len(), bytes.len());
            assert!(decode::<M>(&written).is_ok_and(|again| again == message));
        }
    });
}

macro_rules! messages {
    ($($test:ident $message:ty;)*) => {
        $(#[test] fn $test() { check_message::<$message>(); })*
    };
}

messages! {
    s50_check_in CheckIn;
    s50_check_in_response CheckInResponse;
    s50_enroll_request EnrollRequest;
    s50_enroll_response EnrollResponse;
    s50_renew_request RenewRequest;
    s50_renew_response RenewResponse;
    s50_from_apply ApplyMessage;
    s50_from_sync SyncMessage;
    s50_known Known;
    s50_profile Profile;
    s50_task_set TaskSet;
}

#[test]
fn s46_s47_request_head_parser_accepts_any_bytes() {
    let kept = [
        "GET /v1/nodes HTTP/1.1\r\nHost: h\r\n\r\n",
        "POST /agent/v1/checkin HTTP/1.1\r\nhost: h:9\r\ncontent-length: 5\r\n\r\nhelloGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ];
    run("head", &to_cases(&kept), |bytes| {
        let read = |bytes: &[u8]| HeadReader::default().feed(bytes);
        let whole = read(bytes);
        // The result does not depend on how the bytes are split: if a prefix is refused, the whole is refused.
        for cut in [1, bytes.len() / 2] {
            if read(&bytes[..cut.min(bytes.len())]).is_err() {
                assert!(whole.is_err());
            }
        }
    });
}

#[test]
fn certificate_parser_accepts_any_bytes() {
    let kept = ["spiffe://example.com/node/0190b6c8-4c1e-7d2a-9f00-0123456789ab", "spiffe://f/admin/ada"];
    run_text_target("spiffe-id", &kept, |text| {
        if let Some(id) = check_result(text.parse::<SpiffeId>()) {
            assert_eq!(id.to_string(), text, "one spelling");
        }
        check_result(text.parse::<FleetName>());
        check_result(text.parse::<Target>());
        check_result(text.parse::<Hash>());
    });
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate").der().to_vec();
    run("certificate", &[certificate], |bytes| {
        check_result(spki_sha256(bytes));
    });
    let mut plain = rcgen::CertificateParams::default();
    plain.distinguished_name = rcgen::DistinguishedName::new();
    let requests = [params, plain].map(|params| params.serialize_request(&key).expect("a request").der().to_vec());
    run("csr", &requests, |bytes| {
        check_result(csr::check(bytes));
    });
}

#[test]
fn key_selector_and_requirement_parsers_accept_any_text() {
    run_text_target("key", &["app.example.com/tier", "site.rack-1", "gold", "a: b\nc"], |text| {
        check_result(LabelKey::new(text));
        check_result(AnnotationKey::new(text));
        check_result(LabelValue::new(text));
        check_result(TraitNames::default().parse(text));
        assert!(quote(text).chars().count() <= 64 * 10 + 2 && !quote(text).contains(char::is_control));
    });
    let kept = ["tier in (gold, silver),!debug,kind!=node", "a==b,c", "x notin (1,2,3)"];
    run_text_target("selector", &kept, |text| drop(check_result(Selector::parse(text))));
    let kept = ["property:memory_mb >= 16384", "trait:HW_CPU_X86_AVX2 required", "tier <or> a <or> b", "c <all-in> a b"];
    run_text_target("requirement", &kept, |text| drop(check_result(Requirement::parse(text))));
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
fn s51_manifest_reader_accepts_any_text() {
    run_text_target("yaml", MANIFESTS, |text| {
        check_result(stemma::yaml::read_documents(text));
    });
    let json = [
        r#"{"kind":"Node","name":"web-1","nodegroup":"prod/web","labels":{"a":"b","c":null},"traits":["CUSTOM_A"],"properties":{"memory_mb":1}}"#,
        r#"{"kind":"NodeGroup","cluster":"prod","name":"web","requirements":{"trait:CUSTOM_A":"required"},"merge_labels":true}"#,
        r#"{"kind":"Release","name":"s","roles":{"web":{"tags":["t"]}},"tasks":[{"id":"a","type":"file","tags":["t"],"parameters":{"path":"/x","content":"y"}}]}"#,
        r#"{"kind":"Cluster","name":"prod","parameters":{"a":{"b":[1,2,{"c":1e308}]}},"tags":{"t":{}},"roles":{"web":{"add_tags":["t"]}}}"#,
    ];
    let manager = Manager::new("tester").expect("a manager");
    run_text_target("manifest", &json, |text| {
        if let Some(document) = check_result(read_document(text))
            && let Err(errors) = assemble(&[document], &manager)
        {
            for (_, error) in &errors {
                check_error(error);
            }
        }
    });
    run_text_target("error-body", &[r#"{"error":{"code":400,"type":"a.b","message":"m"}}"#], |text| {
        drop(ErrorBody::parse(text.as_bytes()));
    });
}

#[test]
fn s52_template_script_and_condition_parsers_accept_any_text() {
    let kept = [
        "{{ labels.tier | default('x') }}{% for n in nodes('a=b') %}{{ n.name }}{% endfor %}",
        "labels.tier == 'a' && has(facts.x)",
    ];
    run_text_target("template", &kept, |text| {
        check_result(SyntaxReader.parse_template(text));
        check_result(SyntaxReader.parse_script(text));
        check_result(SyntaxReader.parse_condition(text).map(drop));
    });
}

#[test]
fn host_and_config_file_readers_accept_any_bytes() {
    run_text_target("labels.d", &["tier=gold\n# why\nsite.rack = r-1\n", "=\n==\nA=b"], |text| {
        let read = read_files([("text".to_owned(), Ok(text.to_owned()))]);
        assert!(read.labels.len() <= 256 && read.findings.len() <= 64);
        for finding in &read.findings {
            check_error(finding);
        }
    });
    let agent = [
        "[host_label_map]\npath = \"/etc/stemma/node-labels\"\nformat = \"node_feature_discovery\"\n[schedule]\ndrift_seconds = 60\n",
    ];
    run_text_target("agent.toml", &agent, |text| drop(check_result(stemma_agent::config::AgentConfig::parse(text))));
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let local = || Some("127.0.0.1:0".to_owned());
    // The addresses are set by flags, because addresses in the file would be resolved as names.
    let flags = args::RunArgs {
        config: Some(file.path().to_owned()),
        admin_listen: local(),
        agent_listen: local(),
        ..args::RunArgs::default()
    };
    let kept = "data_dir = \"/var/lib/stemma\"\nnames = [\"stemma.example\", \"10.0.0.1\"]\nextra_standard_traits = [\"HW_X\"]\n";
    run("controller.toml", &to_cases(&[kept]), |bytes| {
        std::fs::write(file.path(), bytes).expect("a temporary file");
        check_result(Config::load_with_sockets(&flags, &ActivatedSockets::default()));
    });
}

#[test]
fn backup_reader_accepts_any_bytes() {
    let head = r#"{"fleet":{"fleet":"f","controller":"00000000-0000-0000-0000-000000000001","names":[]},"epoch":"00000000-0000-0000-0000-000000000002","base":0,"revision":9,"schema":1,"program":"p","at_s":7}"#;
    let frame = |kind: u8, bytes: &[u8]| {
        let length = u32::try_from(bytes.len()).expect("a short frame").to_be_bytes();
        [&[kind][..], &length, bytes].concat()
    };
    let file = frame(3, b"\0\0\0\x06ca.pemx");
    let whole = [&b"stemma-backup 1\n"[..], &frame(1, head.as_bytes()), &file, &frame(4, &[0; 32])].concat();
    run("backup", &[whole], |bytes| {
        let Some((mut reader, _)) = check_result(backup::BackupReader::begin(bytes)) else { return };
        while let Some(Some(_)) = check_result(reader.next_part()) {}
    });
    let secret = "AGE-SECRET-KEY-190CQVWUPCWHXR6RUCTJCG2VVDCJQZHXH6R2H2SZ90UM3S9433QFSRU8HAX";
    let identities = AgeIdentity::read_all(secret).expect("an identity");
    let header = "age-encryption.org/v1\n-> X25519 nI37e/u3yp+S9sR7qeBYPw5/Vel3eQlAe/cGxYaQjQI\n\
                  l1B6DvI4gFWCBp3W7wItyI7pPb5SGRsp1pA94tLckXQ\n--- NDJZiWwgcypOOXiCpkHFkqk+/NJiDZk5oM9P/j1010I\n";
    run("age", &to_cases(&[&format!("{header}0123456789abcdef0123456789abcdef")]), |bytes| {
        let Some(mut text) = check_result(DecryptReader::begin(bytes, &identities)) else { return };
        check_result(text.read_to_end(&mut Vec::new()));
    });
    run_text_target("age.keys", &[&format!("# a key\n{secret}\n")], |text| {
        drop(check_result(AgeIdentity::read_all(text)));
    });
}

/// The calls with random bodies: method, path, media type, and a body that is accepted.
const BODY_CALLS: &[(&str, &str, &str, &str)] = &[
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
    ("POST", "/v1/nodes", "application/json", r#"{"name":"n1","driver":"ipmi","properties":{"memory_mb":"1"},"extra":{}}"#),
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
    ("PATCH", "/v1/clusters/prod", "application/json-patch+json", r#"[{"op":"add","path":"/labels","value":"{'a': 'b'}"}]"#),
    ("PUT", "/v1/clusters/prod/labels?manager=m", "application/json", r#"{"labels":{"a":"1","b":null}}"#),
    ("POST", "/v1/clusters/prod/labels/owners?manager=m", "application/json", r#"{"from":"m","to":"n:apply","keys":["a"]}"#),
    ("POST", "/v1/clusters/prod/labels/tombstones", "application/json", r#"{"keys":["a"]}"#),
    ("PUT", "/v1/nodes/web-1/traits", "application/json", r#"{"traits":["CUSTOM_A","HW_CPU_X86_AVX2"]}"#),
    ("POST", "/v1/nodes/web-1/tags", "application/json", r#"{"assign":["t"],"unassign":["u"]}"#),
    ("PUT", "/v1/clusters/prod/roles", "application/json", r#"{"roles":{"web":{"add_tags":["t"],"remove_tags":[]}}}"#),
    ("POST", "/v1/join-tokens", "application/json", r#"{"nodegroup":"prod/web","uses":2,"ttl_seconds":60,"mode":"noop"}"#),
    ("GET", "/v1/nodes?", "", "requirement=property:memory_mb+%3E%3D+16&selector=a+in+(b)&traits=CUSTOM_A&limit=3&sort_key=name"),
    ("GET", "/v1/nodes/", "", "web-1/explain?label=a%2Fb"),
];

#[test]
fn s43_s51_s54_listener_answers_any_body_or_query() {
    let fleet = stemma_tests::fleet::TempFleet::start().expect("a controller");
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses()).expect("its admin's certificate");
    for (path, body) in [
        ("/v1/clustertemplates", serde_json::json!({"name": "base"})),
        ("/v1/clusters", serde_json::json!({"name": "prod", "cluster_template_id": "base"})),
        ("/v1/clusters/prod/nodegroups", serde_json::json!({"name": "web"})),
        ("/v1/nodes", serde_json::json!({"name": "web-1"})),
    ] {
        let (status, answer) = operator.send_typed("POST", path, "application/json", &body).expect("an answer");
        assert!((200..300).contains(&status), "{path}: {status} {answer}");
    }
    let operator = RefCell::new(operator);
    // The first byte selects the call.
    let kept: Vec<Vec<u8>> = (0_u8..).zip(BODY_CALLS).map(|(call, case)| [&[call], case.3.as_bytes()].concat()).collect();
    run("api", &kept, |bytes| {
        let Some((call, body)) = bytes.split_first() else { return };
        let (method, path, kind, _) = BODY_CALLS[usize::from(*call) % BODY_CALLS.len()];
        let text = String::from_utf8_lossy(body);
        let (path, text) = if method == "GET" { (format!("{path}{text}"), "") } else { (path.to_owned(), &*text) };
        if path.parse::<hyper::Uri>().is_err() {
            return;
        }
        let answer = operator.borrow_mut().send_text(method, &path, kind, text.to_owned());
        let (status, answer) = answer.unwrap_or_else(|error| panic!("{method} {path}: {error:#}\n{}", fleet.log()));
        assert!((200..500).contains(&status), "{method} {path}: {status} {answer}");
        if status >= 400 {
            let of_error = |part: &str| answer["error"][part].as_str().is_some_and(|text| !text.is_empty());
            assert!(of_error("type") && of_error("message"), "{method} {path}: {status} {answer}");
            assert!(answer.to_string().len() <= MAX_ERROR_BYTES, "{} bytes", answer.to_string().len());
        }
    });
}
