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

/// Returns both outputs of a command.
fn output_text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// Returns both outputs of a command that must have succeeded.
fn check_success(output: &Output) -> Result<String> {
    ensure!(output.status.success(), "{}", output_text(output));
    Ok(output_text(output))
}

/// Returns the permission bits of a file.
fn file_mode(path: &Path) -> Result<u32> {
    Ok(std::fs::metadata(path).with_context(|| path.display().to_string())?.permissions().mode() & 0o777)
}

#[test]
fn principal_create_writes_context_for_second_principal() -> Result<()> {
    let fleet = TempFleet::start()?;
    for cluster in ["prod", "test"] {
        fleet.stemma(&["create", "cluster", cluster])?;
        fleet.stemma(&["create", "nodegroup", cluster, "web"])?;
        fleet.stemma(&["create", "node", &format!("{cluster}-1"), "--nodegroup", &format!("{cluster}/web")])?;
    }
    let alice = fleet.dir().join("alice");
    let target_dir = alice.to_string_lossy().into_owned();
    fleet.stemma(&["principal", "create", "alice", "--role", "operator", "--cluster", "prod", "--to", &target_dir])?;
    ensure!(file_mode(&alice)? == 0o700);
    for file in ["context.toml", "ca.pem", "cert.pem", "key.pem"] {
        ensure!(file_mode(&alice.join(file))? == 0o600, "{file}");
    }
    let context = alice.join("context.toml").to_string_lossy().into_owned();
    let alice_options = ["--context", context.as_str()];
    let nodes = check_success(&run_stemma(&alice_options, &["get", "nodes", "-o", "name"])?)?;
    ensure!(nodes == "node/prod-1\n", "{nodes}");
    check_success(&run_stemma(&alice_options, &["label", "node", "prod-1", "a=b"])?)?;
    let outside_cluster = run_stemma(&alice_options, &["label", "node", "test-1", "a=b"])?;
    ensure!(
        outside_cluster.status.code() == Some(3) && output_text(&outside_cluster).contains("nothing was changed"),
        "{}",
        output_text(&outside_cluster)
    );
    let forbidden_request = run_stemma(&alice_options, &["principal", "create", "eve", "--role", "admin"])?;
    let denial = "(POST /v1/principals); this needs role admin; nothing was changed";
    let names_principal = output_text(&forbidden_request).contains("Permission denied: alice (operator) cannot do this: \"");
    ensure!(
        names_principal && output_text(&forbidden_request).contains("ask as an admin: "),
        "{}",
        output_text(&forbidden_request)
    );
    ensure!(
        forbidden_request.status.code() == Some(1) && output_text(&forbidden_request).contains(denial),
        "{}",
        output_text(&forbidden_request)
    );
    let audit = fleet.stemma(&["audit", "node/prod-1"])?;
    ensure!(audit.contains("alice"), "{audit}");
    check_success(&run_stemma(&alice_options, &["cert", "renew", "--ttl", "30d"])?)?;
    check_success(&run_stemma(&alice_options, &["get", "nodes"])?)?;
    let certificates: Value = serde_json::from_str(&fleet.stemma(&["cert", "list", "-o", "json"])?)?;
    let alice_certificates =
        certificates.as_array().into_iter().flatten().filter(|certificate| certificate["principal"] == "alice");
    for certificate in alice_certificates {
        fleet.stemma(&["cert", "revoke", certificate["serial"].as_str().context("a serial number")?])?;
    }
    let revoked_request = run_stemma(&alice_options, &["get", "nodes"])?;
    ensure!(
        !revoked_request.status.success() && output_text(&revoked_request).contains("revoked"),
        "{}",
        output_text(&revoked_request)
    );
    let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
    let expiry_metrics = metrics.lines().filter(|line| line.starts_with("stemma_credential_end_seconds{")).collect::<Vec<_>>();
    ensure!(expiry_metrics.len() == 1 && expiry_metrics[0].contains("principal=\"admin\""), "{expiry_metrics:?}");
    Ok(())
}

/// Each refused command and the dry run leave no principal and no directory behind. The last admin cannot be deleted
/// (status 4).
#[test]
fn principal_and_cert_commands_change_nothing_when_refused() -> Result<()> {
    let fleet = TempFleet::start()?;
    let last_admin_output = fleet.cli(&["principal", "delete", "admin"])?;
    ensure!(
        last_admin_output.status.code() == Some(4) && output_text(&last_admin_output).contains("the last admin"),
        "{}",
        output_text(&last_admin_output)
    );
    let existing_target_output =
        fleet.cli(&["principal", "create", "bob", "--role", "viewer", "--to", &fleet.data().to_string_lossy()])?;
    ensure!(
        output_text(&existing_target_output).contains("something exists there already"),
        "{}",
        output_text(&existing_target_output)
    );
    let missing_parent = fleet.dir().join("not/there").to_string_lossy().into_owned();
    let output = fleet.cli(&["principal", "create", "bob", "--role", "viewer", "--to", &missing_parent])?;
    ensure!(!output.status.success() && output_text(&output).contains(&missing_parent), "{}", output_text(&output));
    let new_dir = fleet.dir().join("bob");
    let new_dir_text = new_dir.to_string_lossy().into_owned();
    let output = fleet.cli(&["principal", "create", "bob", "--role", "viewer", "--to", &new_dir_text, "--url", "ftp://x"])?;
    ensure!(!output.status.success() && output_text(&output).contains("ftp://x"), "{}", output_text(&output));
    // Each of the three commands that would create `bob` has failed.
    ensure!(!fleet.stemma(&["principal", "list"])?.contains("bob"), "a refused command created a principal");
    // If the controller refuses the request, the command removes the directory that it created for the files.
    let output = fleet.cli(&["cert", "create", "nobody-there", "--to", &new_dir_text])?;
    ensure!(!output.status.success() && !new_dir.exists(), "{}", output_text(&output));
    let dry_run = fleet.stemma(&["--dry-run", "cert", "create", "admin", "--to", &new_dir_text])?;
    ensure!(dry_run.contains("(dry run)") && !new_dir.exists(), "{dry_run}");
    Ok(())
}

/// With `--to`, a token is written into the files of a context, else it is printed. A revoked token is refused.
#[test]
fn token_create_prints_token_or_writes_context() -> Result<()> {
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
    let revoked_request = run_stemma(&["--context", &context], &["get", "nodes"])?;
    ensure!(
        !revoked_request.status.success() && output_text(&revoked_request).contains("the token is unknown"),
        "{}",
        output_text(&revoked_request)
    );
    let token_output = fleet.cli(&["principal", "token", "create", "robot"])?;
    let token = String::from_utf8(token_output.stdout)?;
    ensure!(token.trim_end().split('.').count() == 2, "standard output contains only the token: {token}");
    Ok(())
}

/// An update that gives a principal more rights ends each of its credentials whose creator does not have these rights.
/// The command asks for confirmation before. Previously, a principal retained its tokens when it became a fleet admin.
/// So an admin of one cluster who knew such a token got rights in the whole fleet.
#[test]
fn x04_f10_update_asks_before_ending_credentials_when_rights_grow() -> Result<()> {
    let fleet = TempFleet::start()?;
    fleet.stemma(&["create", "cluster", "prod"])?;
    let (ada, carol) = (fleet.dir().join("ada"), fleet.dir().join("carol"));
    let target_dir = ada.to_string_lossy().into_owned();
    fleet.stemma(&["principal", "create", "ada", "--role", "admin", "--cluster", "prod", "--to", &target_dir])?;
    let ada_options = ada.join("context.toml").to_string_lossy().into_owned();
    let ada_options = ["--context", ada_options.as_str()];
    check_success(&run_stemma(&ada_options, &["principal", "create", "carol", "--role", "operator", "--cluster", "prod"])?)?;
    let target_dir = carol.to_string_lossy().into_owned();
    check_success(&run_stemma(&ada_options, &["principal", "token", "create", "carol", "--to", &target_dir])?)?;
    let carol_options = carol.join("context.toml").to_string_lossy().into_owned();
    let carol_options = ["--context", carol_options.as_str()];
    check_success(&run_stemma(&carol_options, &["get", "nodes"])?)?;
    let token = std::fs::read_to_string(carol.join("token"))?;
    let token_field = format!("tokens.{}", token.split_once('.').context("ID.SECRET")?.0);

    let update = ["principal", "update", "carol", "--role", "admin", "--fleet"];
    let dry_run = check_success(&fleet.cli(&[&["--dry-run"][..], &update].concat())?)?;
    ensure!(dry_run.contains(&format!("{token_field}  good -> (unset)")), "{dry_run}");
    let output = fleet.cli(&update)?;
    let text = output_text(&output);
    ensure!(output.status.code() == Some(1) && text.contains(&format!("this ends {token_field} of principal carol")), "{text}");
    ensure!(text.contains("there is no terminal") && text.contains("use --yes"), "{text}");
    check_success(&run_stemma(&carol_options, &["get", "nodes"])?)?;
    fleet.stemma(&[&update[..], &["--yes"]].concat())?;
    let revoked_request = run_stemma(&carol_options, &["get", "nodes"])?;
    ensure!(
        !revoked_request.status.success() && output_text(&revoked_request).contains("the token is unknown"),
        "{}",
        output_text(&revoked_request)
    );
    let audit = fleet.stemma(&["audit", "principal/carol", "-o", "json"])?;
    ensure!(audit.contains(&format!("\"{token_field}\"")), "{audit}");

    // Credentials that a fleet admin issued remain valid, and the command does not ask for confirmation.
    fleet.stemma(&["principal", "create", "dora", "--role", "viewer", "--cluster", "prod"])?;
    let target_dir = fleet.dir().join("dora");
    fleet.stemma(&["cert", "create", "dora", "--to", &target_dir.to_string_lossy()])?;
    fleet.stemma(&["principal", "update", "dora", "--role", "operator", "--fleet"])?;
    let dora_context = target_dir.join("context.toml").to_string_lossy().into_owned();
    check_success(&run_stemma(&["--context", dora_context.as_str()], &["get", "nodes"])?)?;
    Ok(())
}

/// The admin has lost the private key. Root issues a new certificate for the admin over the socket on the controller's
/// host.
#[test]
fn root_restores_lost_admin_on_controller_host() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    let admin = fleet.data().join("admin");
    for file in ["admin.pem", "admin.key"] {
        std::fs::remove_file(admin.join(file))?;
    }
    fleet.stop_controller()?;
    fleet.start_controller()?;
    let server = format!("unix:{}", fleet.data().join("admin.sock").display());
    let new_context_dir = fleet.dir().join("mended");
    check_success(&run_stemma(
        &["--server", &server],
        &["cert", "create", "admin", "--to", &new_context_dir.to_string_lossy()],
    )?)?;
    let context = new_context_dir.join("context.toml").to_string_lossy().into_owned();
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
    // 0 is root, and 65534 is the user `nobody`.
    let request_as = |user: u32| -> Result<String> {
        let output = Command::new("python3").args(["-c", script]).arg(&socket).uid(user).gid(user).output()?;
        Ok(output_text(&output))
    };
    ensure!(file_mode(&socket)? == 0o600 && file_mode(&fleet.data())? == 0o700);
    ensure!(request_as(0)?.contains("200 OK"), "root is accepted: {}", request_as(0)?);
    ensure!(request_as(65534)?.contains("Permission denied"), "{}", request_as(65534)?);
    // Even with open file permissions, the controller checks which user connects.
    std::fs::set_permissions(fleet.dir(), std::fs::Permissions::from_mode(0o755))?;
    std::fs::set_permissions(fleet.data(), std::fs::Permissions::from_mode(0o755))?;
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666))?;
    let answer = request_as(65534)?;
    ensure!(!answer.contains("HTTP"), "{answer}");
    let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
    ensure!(metrics.contains("stemma_rejected_total{reason=\"socket_not_root\"} 1"), "{metrics}");
    Ok(())
}
