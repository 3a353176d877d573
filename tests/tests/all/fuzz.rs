//! Fuzzes every decoder of bytes from outside (docs/trust.md, S50 to S52). A decoder must return, and its result has a
//! maximum size. `stemma_tests::fuzz` describes the cases of a target and their mutations.

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

/// Maximum size of an error text, in bytes. Errors of TOML and CEL contain the line of the error, and the whole input
/// may be one line.
const MAX_ERROR_BYTES: usize = 32 * 1024;

/// Converts texts to the bytes of fuzz cases.
fn to_cases(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Checks that an error has a text, and that the input does not make the text large.
fn check_error(error: &impl Display) {
    let text = error.to_string();
    assert!(!text.is_empty() && text.len() <= MAX_ERROR_BYTES, "{} bytes: {}", text.len(), &text[..text.len().min(200)]);
}

/// Returns the value of a result. If the result is an error, checks its text and returns `None`.
fn check_result<T, E: Display>(result: Result<T, E>) -> Option<T> {
    result.inspect_err(|error| check_error(error)).ok()
}

/// Fuzzes the target with this name: calls `check` with these texts and with mutations of them. Skips mutations that
/// are not UTF-8.
fn run_text_target(target: &str, texts: &[&str], check: impl Fn(&str)) {
    run(target, &to_cases(texts), |bytes| {
        if let Ok(text) = std::str::from_utf8(bytes) {
            check(text);
        }
    });
}

/// Returns the encodings in version 1 of the wire format that are stored in the files whose names begin with `name`.
/// Each file contains the bytes of one message as hexadecimal digits.
fn golden_messages(name: &str) -> Vec<Vec<u8>> {
    let directory: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../shared/wire/golden/v1"].iter().collect();
    let files = std::fs::read_dir(directory).expect("the golden files").map(|file| file.expect("a file").path());
    let has_name = |file: &PathBuf| file.file_stem().is_some_and(|stem| stem.to_string_lossy().starts_with(name));
    let from_hex = |file: PathBuf| {
        let text = std::fs::read_to_string(file).expect("a golden file");
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let to_byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("digits");
        digits.chunks(2).map(to_byte).collect()
    };
    let encodings: Vec<Vec<u8>> = files.filter(has_name).map(from_hex).collect();
    assert!(!encodings.is_empty(), "no golden file of {name}");
    encodings
}

/// Fuzzes the decoder of a message. A message that is decoded from any bytes must not become larger when it is encoded
/// again; one byte is tolerated. The encoding must decode to the same message.
fn check_message<M: Message + PartialEq>() {
    run(M::NAME, &golden_messages(M::NAME), |bytes| {
        if let Some(message) = check_result(decode::<M>(bytes)) {
            let encoded = encode(&message);
            assert!(encoded.len() <= bytes.len() + 1, "{} bytes of {}", encoded.len(), bytes.len());
            assert!(decode::<M>(&encoded).is_ok_and(|decoded| decoded == message));
        }
    });
}

macro_rules! messages {
    ($($test:ident $message:ty;)*) => {
        $(#[test] fn $test() { check_message::<$message>(); })*
    };
}

messages! {
    s50_check_in_decodes_or_rejects_any_bytes CheckIn;
    s50_check_in_response_decodes_or_rejects_any_bytes CheckInResponse;
    s50_enroll_request_decodes_or_rejects_any_bytes EnrollRequest;
    s50_enroll_response_decodes_or_rejects_any_bytes EnrollResponse;
    s50_renew_request_decodes_or_rejects_any_bytes RenewRequest;
    s50_renew_response_decodes_or_rejects_any_bytes RenewResponse;
    s50_from_apply_decodes_or_rejects_any_bytes ApplyMessage;
    s50_from_sync_decodes_or_rejects_any_bytes SyncMessage;
    s50_known_decodes_or_rejects_any_bytes Known;
    s50_profile_decodes_or_rejects_any_bytes Profile;
    s50_task_set_decodes_or_rejects_any_bytes TaskSet;
}

/// The parser of request heads returns a result or an error for any bytes, and never panics.
#[test]
fn s46_s47_request_head_parser_handles_any_bytes() {
    let cases = [
        "GET /v1/nodes HTTP/1.1\r\nHost: h\r\n\r\n",
        "POST /agent/v1/checkin HTTP/1.1\r\nhost: h:9\r\ncontent-length: 5\r\n\r\nhelloGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ];
    run("head", &to_cases(&cases), |bytes| {
        let parse = |bytes: &[u8]| HeadReader::default().feed(bytes);
        let whole_result = parse(bytes);
        // The bytes may arrive in several reads. If a prefix is refused, the whole must be refused too.
        for prefix_len in [1, bytes.len() / 2] {
            if parse(&bytes[..prefix_len.min(bytes.len())]).is_err() {
                assert!(whole_result.is_err());
            }
        }
    });
}

/// The parsers of SPIFFE ids, certificates, certificate requests and related names return a value or an error for any
/// input. They never panic.
#[test]
fn certificate_parser_handles_any_bytes() {
    let cases = ["spiffe://example.com/node/0190b6c8-4c1e-7d2a-9f00-0123456789ab", "spiffe://f/admin/ada"];
    run_text_target("spiffe-id", &cases, |text| {
        if let Some(id) = check_result(text.parse::<SpiffeId>()) {
            assert_eq!(id.to_string(), text, "an id has only one spelling");
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
    // The second request for a certificate has an empty subject.
    let mut nameless_params = rcgen::CertificateParams::default();
    nameless_params.distinguished_name = rcgen::DistinguishedName::new();
    let requests = [params, nameless_params].map(|params| params.serialize_request(&key).expect("a request").der().to_vec());
    run("csr", &requests, |bytes| {
        check_result(csr::check(bytes));
    });
}

/// The parsers of keys, selectors and requirements return a value or an error for any text, and never panic.
#[test]
fn key_selector_and_requirement_parsing_handles_any_text() {
    run_text_target("key", &["app.example.com/tier", "site.rack-1", "gold", "a: b\nc"], |text| {
        check_result(LabelKey::new(text));
        check_result(AnnotationKey::new(text));
        check_result(LabelValue::new(text));
        check_result(TraitNames::default().parse(text));
        // `quote` shows at most 64 characters of the text between two quotation marks. An escaped character has at most
        // ten.
        assert!(quote(text).chars().count() <= 64 * 10 + 2 && !quote(text).contains(char::is_control));
    });
    let cases = ["tier in (gold, silver),!debug,kind!=node", "a==b,c", "x notin (1,2,3)"];
    run_text_target("selector", &cases, |text| drop(check_result(Selector::parse(text))));
    let cases = ["property:memory_mb >= 16384", "trait:HW_CPU_X86_AVX2 required", "tier <or> a <or> b", "c <all-in> a b"];
    run_text_target("requirement", &cases, |text| drop(check_result(Requirement::parse(text))));
}

/// Cases for the YAML reader. The last two have anchors, aliases and a merge key.
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

/// The readers of YAML, of manifests and of error responses return a value or an error for any text, and never panic.
#[test]
fn s51_manifest_reader_handles_any_text() {
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

/// The parsers of templates, scripts and conditions return a value or an error for any text, and never panic.
#[test]
fn s52_template_script_and_condition_parsing_handles_any_text() {
    let cases = [
        "{{ labels.tier | default('x') }}{% for n in nodes('a=b') %}{{ n.name }}{% endfor %}",
        "labels.tier == 'a' && has(facts.x)",
    ];
    run_text_target("template", &cases, |text| {
        check_result(SyntaxReader.parse_template(text));
        check_result(SyntaxReader.parse_script(text));
        check_result(SyntaxReader.parse_condition(text).map(drop));
    });
}

/// The readers of label files and of both configuration files return a value or an error for any text, and never panic.
/// The reader of `controller.toml` does so for any bytes.
#[test]
fn host_and_config_file_reading_handles_any_bytes() {
    run_text_target("labels.d", &["tier=gold\n# why\nsite.rack = r-1\n", "=\n==\nA=b"], |text| {
        let parsed = read_files([("text".to_owned(), Ok(text.to_owned()))]);
        // The reader reports at most 256 labels, and 32 findings with a last one that counts the others.
        assert!(parsed.labels.len() <= 256 && parsed.findings.len() <= 64);
        for finding in &parsed.findings {
            check_error(finding);
        }
    });
    let agent_cases = [
        "[host_label_map]\npath = \"/etc/stemma/node-labels\"\nformat = \"node_feature_discovery\"\n[schedule]\ndrift_seconds = 60\n",
    ];
    run_text_target("agent.toml", &agent_cases, |text| drop(check_result(stemma_agent::config::AgentConfig::parse(text))));
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let any_port = || Some("127.0.0.1:0".to_owned());
    // The addresses are set by flags, because addresses in the file would be resolved as names.
    let flags = args::RunArgs {
        config: Some(file.path().to_owned()),
        admin_listen: any_port(),
        agent_listen: any_port(),
        ..args::RunArgs::default()
    };
    let cases =
        "data_dir = \"/var/lib/stemma\"\nnames = [\"stemma.example\", \"10.0.0.1\"]\nextra_standard_traits = [\"HW_X\"]\n";
    run("controller.toml", &to_cases(&[cases]), |bytes| {
        std::fs::write(file.path(), bytes).expect("a temporary file");
        check_result(Config::load_with_sockets(&flags, &ActivatedSockets::default()));
    });
}

/// The readers of backups, encrypted files and age keys return a value or an error for any bytes, and never panic.
#[test]
fn backup_reader_handles_any_bytes() {
    let head = r#"{"fleet":{"fleet":"f","controller":"00000000-0000-0000-0000-000000000001","names":[]},"epoch":"00000000-0000-0000-0000-000000000002","base":0,"revision":9,"schema":1,"program":"p","at_s":7}"#;
    // The kinds of frames: 1 for the header, 2 for an entry of the store (none here), 3 for a file, 4 for the checksum.
    let frame = |kind: u8, bytes: &[u8]| {
        let length = u32::try_from(bytes.len()).expect("a short frame").to_be_bytes();
        [&[kind][..], &length, bytes].concat()
    };
    // The file has the name `ca.pem`, of 6 bytes, and the content `x`.
    let file = frame(3, b"\0\0\0\x06ca.pemx");
    let backup_bytes = [&b"stemma-backup 1\n"[..], &frame(1, head.as_bytes()), &file, &frame(4, &[0; 32])].concat();
    run("backup", &[backup_bytes], |bytes| {
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

/// API calls to fuzz: method, path, media type, and a body in the form that the endpoint expects, which is mutated. In
/// a GET call, the last text is not a body: it is appended to the path, and mutated there.
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

/// The controller answers each request with any body or query. It never answers with a server error (5xx).
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
    // The first byte of a case selects the call. The other bytes are the body, or the query of a GET request.
    let cases: Vec<Vec<u8>> = (0_u8..).zip(BODY_CALLS).map(|(index, call)| [&[index], call.3.as_bytes()].concat()).collect();
    run("api", &cases, |bytes| {
        let Some((call, body)) = bytes.split_first() else { return };
        // The first byte may be any number, so it is reduced to an index of the list.
        let (method, path, media_type, _) = BODY_CALLS[usize::from(*call) % BODY_CALLS.len()];
        let text = String::from_utf8_lossy(body);
        let (path, text) = if method == "GET" { (format!("{path}{text}"), "") } else { (path.to_owned(), &*text) };
        if path.parse::<hyper::Uri>().is_err() {
            return;
        }
        let answer = operator.borrow_mut().send_text(method, &path, media_type, text.to_owned());
        let (status, answer) = answer.unwrap_or_else(|error| panic!("{method} {path}: {error:#}\n{}", fleet.log()));
        assert!((200..500).contains(&status), "{method} {path}: {status} {answer}");
        if status >= 400 {
            // The body of an error has a type and a message, and is not large.
            let has_error_field = |part: &str| answer["error"][part].as_str().is_some_and(|text| !text.is_empty());
            assert!(has_error_field("type") && has_error_field("message"), "{method} {path}: {status} {answer}");
            assert!(answer.to_string().len() <= MAX_ERROR_BYTES, "{} bytes", answer.to_string().len());
        }
    });
}
