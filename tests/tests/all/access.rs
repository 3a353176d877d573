//! Tests of access with the `stemma` command and a real controller: a second principal, recovery by root, and the
//! socket of root.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::TempFleet;
use stemma_tests::program;

/// Runs `stemma` with options that select another context than the first admin's, or another server.
fn run_stemma(options: &[&str], arguments: &[&str]) -> Result<Output> {
    program::run("stemma", [options, arguments].concat())
}

fn output_text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

fn check_success(output: &Output) -> Result<String> {
    ensure!(output.status.success(), "{}", output_text(output));
    Ok(output_text(output))
}

fn mode(path: &Path) -> Result<u32> {
    Ok(std::fs::metadata(path).with_context(|| path.display().to_string())?.permissions().mode() & 0o777)
}

#[test]
fn principal_create_writes_context_for_second_person() -> Result<()> {
    let fleet = TempFleet::start()?;
    for cluster in ["prod", "test"] {
        fleet.stemma(&["create", "cluster", cluster])?;
        fleet.stemma(&["create", "nodegroup", cluster, "web"])?;
        fleet.stemma(&["create", "node", &format!("{cluster}-1"), "--nodegroup", &format!("{cluster}/web")])?;
    }
    let alice = fleet.dir().join("alice");
    let to = alice.to_string_lossy().into_owned();
    fleet.stemma(&["principal", "create", "alice", "--role", "operator", "--cluster", "prod", "--to", &to])?;
    ensure!(mode(&alice)? == 0o700);
    for file in ["context.toml", "ca.pem", "cert.pem", "key.pem"] {
        ensure!(mode(&alice.join(file))? == 0o600, "{file}");
    }
    let context = alice.join("context.toml").to_string_lossy().into_owned();
    let as_alice = ["--context", context.as_str()];
    let nodes = check_success(&run_stemma(&as_alice, &["get", "nodes", "-o", "name"])?)?;
    ensure!(nodes == "node/prod-1\n", "{nodes}");
    check_success(&run_stemma(&as_alice, &["label", "node", "prod-1", "a=b"])?)?;
    let hidden = run_stemma(&as_alice, &["label", "node", "test-1", "a=b"])?;
    ensure!(hidden.status.code() == Some(3) && output_text(&hidden).contains("nothing was changed"), "{}", output_text(&hidden));
    let refused = run_stemma(&as_alice, &["principal", "create", "eve", "--role", "admin"])?;
    let denied = "(POST /v1/principals); this needs role admin; nothing was changed";
    let is_named = output_text(&refused).contains("Permission denied: alice (operator) cannot do this: \"");
    ensure!(is_named && output_text(&refused).contains("ask as an admin: "), "{}", output_text(&refused));
    ensure!(refused.status.code() == Some(1) && output_text(&refused).contains(denied), "{}", output_text(&refused));
    let audit = fleet.stemma(&["audit", "node/prod-1"])?;
    ensure!(audit.contains("alice"), "{audit}");
    check_success(&run_stemma(&as_alice, &["cert", "renew", "--ttl", "30d"])?)?;
    check_success(&run_stemma(&as_alice, &["get", "nodes"])?)?;
    let certificates: Value = serde_json::from_str(&fleet.stemma(&["cert", "list", "-o", "json"])?)?;
    let alice_certificates = certificates.as_array().into_iter().flatten().filter(|one| one["principal"] == "alice");
    for one in alice_certificates {
        fleet.stemma(&["cert", "revoke", one["serial"].as_str().context("a serial number")?])?;
    }
    let rejected = run_stemma(&as_alice, &["get", "nodes"])?;
    ensure!(!rejected.status.success() && output_text(&rejected).contains("revoked"), "{}", output_text(&rejected));
    let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
    let end_metrics = metrics.lines().filter(|line| line.starts_with("stemma_credential_end_seconds{")).collect::<Vec<_>>();
    ensure!(end_metrics.len() == 1 && end_metrics[0].contains("principal=\"admin\""), "{end_metrics:?}");
    Ok(())
}

#[test]
fn principal_create_changes_nothing_when_context_is_not_writable() -> Result<()> {
    let fleet = TempFleet::start()?;
    let last = fleet.cli(&["principal", "delete", "admin"])?;
    ensure!(last.status.code() == Some(4) && output_text(&last).contains("the last admin"), "{}", output_text(&last));
    let existing = fleet.cli(&["principal", "create", "bob", "--role", "viewer", "--to", &fleet.data().to_string_lossy()])?;
    ensure!(output_text(&existing).contains("something is there already"), "{}", output_text(&existing));
    let missing_parent = fleet.dir().join("not/there").to_string_lossy().into_owned();
    let refused = fleet.cli(&["principal", "create", "bob", "--role", "viewer", "--to", &missing_parent])?;
    ensure!(!refused.status.success() && output_text(&refused).contains(&missing_parent), "{}", output_text(&refused));
    let fresh = fleet.dir().join("bob");
    let to = fresh.to_string_lossy().into_owned();
    let refused = fleet.cli(&["principal", "create", "bob", "--role", "viewer", "--to", &to, "--url", "ftp://x"])?;
    ensure!(!refused.status.success() && output_text(&refused).contains("ftp://x"), "{}", output_text(&refused));
    ensure!(!fleet.stemma(&["principal", "list"])?.contains("bob"), "nobody was made");
    // If the controller refuses, the directory created for the files is removed again.
    let refused = fleet.cli(&["cert", "create", "nobody-there", "--to", &to])?;
    ensure!(!refused.status.success() && !fresh.exists(), "{}", output_text(&refused));
    let dry_run = fleet.stemma(&["--dry-run", "cert", "create", "admin", "--to", &to])?;
    ensure!(dry_run.contains("(dry run)") && !fresh.exists(), "{dry_run}");
    Ok(())
}

#[test]
fn token_is_printed_once_or_written_to_context() -> Result<()> {
    let fleet = TempFleet::start()?;
    fleet.stemma(&["principal", "create", "robot", "--role", "viewer"])?;
    let robot = fleet.dir().join("robot");
    fleet.stemma(&["principal", "token", "create", "robot", "--to", &robot.to_string_lossy()])?;
    let (context, secret) = (robot.join("context.toml"), std::fs::read_to_string(robot.join("token"))?);
    let context = context.to_string_lossy().into_owned();
    check_success(&run_stemma(&["--context", &context], &["get", "nodes"])?)?;
    let list = fleet.stemma(&["principal", "list"])?;
    ensure!(list.contains("token until"), "{list}");
    let (id, secret) = secret.split_once('.').context("ID.SECRET")?;
    ensure!(!fleet.log().contains(secret), "no secret in the log");
    fleet.stemma(&["principal", "token", "revoke", "robot", id])?;
    let rejected = run_stemma(&["--context", &context], &["get", "nodes"])?;
    ensure!(!rejected.status.success() && output_text(&rejected).contains("the token is unknown"), "{}", output_text(&rejected));
    let printed = fleet.cli(&["principal", "token", "create", "robot"])?;
    let token = String::from_utf8(printed.stdout)?;
    ensure!(token.trim_end().split('.').count() == 2, "the token alone stands on standard output: {token}");
    Ok(())
}

/// Previously, an admin of one cluster who knew a token of a principal got fleet rights when that principal became a
/// fleet admin.
#[test]
fn x04_f10_update_asks_before_ending_credentials_when_rights_grow() -> Result<()> {
    let fleet = TempFleet::start()?;
    fleet.stemma(&["create", "cluster", "prod"])?;
    let (ada, carol) = (fleet.dir().join("ada"), fleet.dir().join("carol"));
    let to = ada.to_string_lossy().into_owned();
    fleet.stemma(&["principal", "create", "ada", "--role", "admin", "--cluster", "prod", "--to", &to])?;
    let as_ada = ada.join("context.toml").to_string_lossy().into_owned();
    let as_ada = ["--context", as_ada.as_str()];
    check_success(&run_stemma(&as_ada, &["principal", "create", "carol", "--role", "operator", "--cluster", "prod"])?)?;
    let to = carol.to_string_lossy().into_owned();
    check_success(&run_stemma(&as_ada, &["principal", "token", "create", "carol", "--to", &to])?)?;
    let as_carol = carol.join("context.toml").to_string_lossy().into_owned();
    let as_carol = ["--context", as_carol.as_str()];
    check_success(&run_stemma(&as_carol, &["get", "nodes"])?)?;
    let token = std::fs::read_to_string(carol.join("token"))?;
    let token_field = format!("tokens.{}", token.split_once('.').context("ID.SECRET")?.0);

    let update = ["principal", "update", "carol", "--role", "admin", "--fleet"];
    let dry_run = check_success(&fleet.cli(&[&["--dry-run"][..], &update].concat())?)?;
    ensure!(dry_run.contains(&format!("{token_field}  good -> (unset)")), "{dry_run}");
    let refused = fleet.cli(&update)?;
    let text = output_text(&refused);
    ensure!(refused.status.code() == Some(1) && text.contains(&format!("this ends {token_field} of principal carol")), "{text}");
    ensure!(text.contains("there is no terminal") && text.contains("say --yes"), "{text}");
    check_success(&run_stemma(&as_carol, &["get", "nodes"])?)?;
    fleet.stemma(&[&update[..], &["--yes"]].concat())?;
    let rejected = run_stemma(&as_carol, &["get", "nodes"])?;
    ensure!(!rejected.status.success() && output_text(&rejected).contains("the token is unknown"), "{}", output_text(&rejected));
    let audit = fleet.stemma(&["audit", "principal/carol", "-o", "json"])?;
    ensure!(audit.contains(&format!("\"{token_field}\"")), "{audit}");

    // Credentials issued by a fleet admin stay valid, and the command does not ask.
    fleet.stemma(&["principal", "create", "dora", "--role", "viewer", "--cluster", "prod"])?;
    let to = fleet.dir().join("dora");
    fleet.stemma(&["cert", "create", "dora", "--to", &to.to_string_lossy()])?;
    fleet.stemma(&["principal", "update", "dora", "--role", "operator", "--fleet"])?;
    let as_dora = to.join("context.toml").to_string_lossy().into_owned();
    check_success(&run_stemma(&["--context", as_dora.as_str()], &["get", "nodes"])?)?;
    Ok(())
}

#[test]
fn root_restores_lost_admin_on_controller_host() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    let admin = fleet.data().join("admin");
    for lost in ["admin.pem", "admin.key"] {
        std::fs::remove_file(admin.join(lost))?;
    }
    fleet.stop_controller()?;
    fleet.start_controller()?;
    let server = format!("unix:{}", fleet.data().join("admin.sock").display());
    let restored = fleet.dir().join("mended");
    check_success(&run_stemma(&["--server", &server], &["cert", "create", "admin", "--to", &restored.to_string_lossy()])?)?;
    let context = restored.join("context.toml").to_string_lossy().into_owned();
    check_success(&run_stemma(&["--context", &context], &["create", "cluster", "prod"])?)?;
    let audit = check_success(&run_stemma(&["--context", &context], &["audit", "--principal", "root"])?)?;
    ensure!(audit.contains("unix") && audit.contains("principal/admin"), "{audit}");
    Ok(())
}

#[test]
fn s61_socket_refuses_local_user() -> Result<()> {
    let fleet = TempFleet::start()?;
    let (socket, script) = (
        fleet.data().join("admin.sock"),
        r#"
import socket, sys
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
    s.sendall(b"GET /v1/nodes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    print(s.recv(64))
except OSError as error:
    print(error.strerror)
"#,
    );
    let ask = |user: u32| -> Result<String> {
        let output = Command::new("python3").args(["-c", script]).arg(&socket).uid(user).gid(user).output()?;
        Ok(output_text(&output))
    };
    ensure!(mode(&socket)? == 0o600 && mode(&fleet.data())? == 0o700);
    ensure!(ask(0)?.contains("200 OK"), "root is heard: {}", ask(0)?);
    ensure!(ask(65534)?.contains("Permission denied"), "{}", ask(65534)?);
    // Even with open file permissions, the controller checks which user connects.
    std::fs::set_permissions(fleet.dir(), std::fs::Permissions::from_mode(0o755))?;
    std::fs::set_permissions(fleet.data(), std::fs::Permissions::from_mode(0o755))?;
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666))?;
    let answer = ask(65534)?;
    ensure!(!answer.contains("HTTP"), "{answer}");
    let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
    ensure!(metrics.contains("stemma_rejected_total{reason=\"socket_not_root\"} 1"), "{metrics}");
    Ok(())
}
