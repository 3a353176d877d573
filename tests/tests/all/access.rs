//! A second person, root's way back in, and who is let onto the socket: the operator's command against a real controller.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::Fleet;
use stemma_tests::program;

/// The command with another context than the first admin's, or another server.
fn stemma(how: &[&str], arguments: &[&str]) -> Result<Output> {
    program::run("stemma", [how, arguments].concat())
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

fn done(output: &Output) -> Result<String> {
    ensure!(output.status.success(), "{}", said(output));
    Ok(said(output))
}

fn mode(path: &Path) -> Result<u32> {
    Ok(std::fs::metadata(path).with_context(|| path.display().to_string())?.permissions().mode() & 0o777)
}

#[test]
fn a_second_person_gets_a_context_of_their_own_in_one_command() -> Result<()> {
    let fleet = Fleet::start()?;
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
    let nodes = done(&stemma(&as_alice, &["get", "nodes", "-o", "name"])?)?;
    ensure!(nodes == "node/prod-1\n", "{nodes}");
    done(&stemma(&as_alice, &["label", "node", "prod-1", "a=b"])?)?;
    let hidden = stemma(&as_alice, &["label", "node", "test-1", "a=b"])?;
    ensure!(hidden.status.code() == Some(3) && said(&hidden).contains("nothing was changed"), "{}", said(&hidden));
    let refused = stemma(&as_alice, &["principal", "create", "eve", "--role", "admin"])?;
    let denied = "(POST /v1/principals); this needs role admin; nothing was changed";
    let is_named = said(&refused).contains("Permission denied: alice (operator) cannot do this: \"");
    ensure!(is_named && said(&refused).contains("ask as an admin: "), "{}", said(&refused));
    ensure!(refused.status.code() == Some(1) && said(&refused).contains(denied), "{}", said(&refused));
    let audit = fleet.stemma(&["audit", "node/prod-1"])?;
    ensure!(audit.contains("alice"), "{audit}");
    done(&stemma(&as_alice, &["cert", "renew", "--ttl", "30d"])?)?;
    done(&stemma(&as_alice, &["get", "nodes"])?)?;
    let certificates: Value = serde_json::from_str(&fleet.stemma(&["cert", "list", "-o", "json"])?)?;
    let of_alice = certificates.as_array().into_iter().flatten().filter(|one| one["principal"] == "alice");
    for one in of_alice {
        fleet.stemma(&["cert", "revoke", one["serial"].as_str().context("a serial number")?])?;
    }
    let cut = stemma(&as_alice, &["get", "nodes"])?;
    ensure!(!cut.status.success() && said(&cut).contains("revoked"), "{}", said(&cut));
    let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
    let ends = metrics.lines().filter(|line| line.starts_with("stemma_credential_end_seconds{")).collect::<Vec<_>>();
    ensure!(ends.len() == 1 && ends[0].contains("principal=\"admin\""), "{ends:?}");
    Ok(())
}

#[test]
fn where_a_context_can_not_be_written_nobody_is_made() -> Result<()> {
    let fleet = Fleet::start()?;
    let last = fleet.cli(&["principal", "delete", "admin"])?;
    ensure!(last.status.code() == Some(4) && said(&last).contains("the last admin"), "{}", said(&last));
    let there =
        fleet.cli(&["principal", "create", "bob", "--role", "viewer", "--to", &fleet.data().to_string_lossy()])?;
    ensure!(said(&there).contains("something is there already"), "{}", said(&there));
    let deep = fleet.dir().join("not/there").to_string_lossy().into_owned();
    let refused = fleet.cli(&["principal", "create", "bob", "--role", "viewer", "--to", &deep])?;
    ensure!(!refused.status.success() && said(&refused).contains(&deep), "{}", said(&refused));
    let fresh = fleet.dir().join("bob");
    let to = fresh.to_string_lossy().into_owned();
    let refused = fleet.cli(&["principal", "create", "bob", "--role", "viewer", "--to", &to, "--url", "ftp://x"])?;
    ensure!(!refused.status.success() && said(&refused).contains("ftp://x"), "{}", said(&refused));
    ensure!(!fleet.stemma(&["principal", "list"])?.contains("bob"), "nobody was made");
    // What was taken for it is given back where the controller refuses.
    let refused = fleet.cli(&["cert", "create", "nobody-there", "--to", &to])?;
    ensure!(!refused.status.success() && !fresh.exists(), "{}", said(&refused));
    let tried = fleet.stemma(&["--dry-run", "cert", "create", "admin", "--to", &to])?;
    ensure!(tried.contains("(dry run)") && !fresh.exists(), "{tried}");
    Ok(())
}

#[test]
fn a_token_is_told_once_or_written_into_a_context() -> Result<()> {
    let fleet = Fleet::start()?;
    fleet.stemma(&["principal", "create", "robot", "--role", "viewer"])?;
    let robot = fleet.dir().join("robot");
    fleet.stemma(&["principal", "token", "create", "robot", "--to", &robot.to_string_lossy()])?;
    let (context, secret) = (robot.join("context.toml"), std::fs::read_to_string(robot.join("token"))?);
    let context = context.to_string_lossy().into_owned();
    done(&stemma(&["--context", &context], &["get", "nodes"])?)?;
    let list = fleet.stemma(&["principal", "list"])?;
    ensure!(list.contains("token until"), "{list}");
    let (id, secret) = secret.split_once('.').context("ID.SECRET")?;
    ensure!(!fleet.log().contains(secret), "no secret in the log");
    fleet.stemma(&["principal", "token", "revoke", "robot", id])?;
    let cut = stemma(&["--context", &context], &["get", "nodes"])?;
    ensure!(!cut.status.success() && said(&cut).contains("the token is unknown"), "{}", said(&cut));
    let printed = fleet.cli(&["principal", "token", "create", "robot"])?;
    let token = String::from_utf8(printed.stdout)?;
    ensure!(token.trim_end().split('.').count() == 2, "the token alone stands on standard output: {token}");
    Ok(())
}

/// An admin of one cluster knew a token of who became an admin of the fleet, and it was one from then on.
#[test]
fn x04_f10_what_another_made_ends_where_rights_grow_and_the_command_asks_before() -> Result<()> {
    let fleet = Fleet::start()?;
    fleet.stemma(&["create", "cluster", "prod"])?;
    let (ada, carol) = (fleet.dir().join("ada"), fleet.dir().join("carol"));
    let to = ada.to_string_lossy().into_owned();
    fleet.stemma(&["principal", "create", "ada", "--role", "admin", "--cluster", "prod", "--to", &to])?;
    let as_ada = ada.join("context.toml").to_string_lossy().into_owned();
    let as_ada = ["--context", as_ada.as_str()];
    done(&stemma(&as_ada, &["principal", "create", "carol", "--role", "operator", "--cluster", "prod"])?)?;
    let to = carol.to_string_lossy().into_owned();
    done(&stemma(&as_ada, &["principal", "token", "create", "carol", "--to", &to])?)?;
    let as_carol = carol.join("context.toml").to_string_lossy().into_owned();
    let as_carol = ["--context", as_carol.as_str()];
    done(&stemma(&as_carol, &["get", "nodes"])?)?;
    let token = std::fs::read_to_string(carol.join("token"))?;
    let part = format!("tokens.{}", token.split_once('.').context("ID.SECRET")?.0);

    let grow = ["principal", "update", "carol", "--role", "admin", "--fleet"];
    let tried = done(&fleet.cli(&[&["--dry-run"][..], &grow].concat())?)?;
    ensure!(tried.contains(&format!("{part}  good -> (unset)")), "{tried}");
    let asked = fleet.cli(&grow)?;
    let text = said(&asked);
    ensure!(asked.status.code() == Some(1) && text.contains(&format!("this ends {part} of principal carol")), "{text}");
    ensure!(text.contains("nobody is at a terminal") && text.contains("say --yes"), "{text}");
    done(&stemma(&as_carol, &["get", "nodes"])?)?;
    fleet.stemma(&[&grow[..], &["--yes"]].concat())?;
    let cut = stemma(&as_carol, &["get", "nodes"])?;
    ensure!(!cut.status.success() && said(&cut).contains("the token is unknown"), "{}", said(&cut));
    let audit = fleet.stemma(&["audit", "principal/carol", "-o", "json"])?;
    ensure!(audit.contains(&format!("\"{part}\"")), "{audit}");

    // What an admin of the fleet made stays, and nobody is asked.
    fleet.stemma(&["principal", "create", "dora", "--role", "viewer", "--cluster", "prod"])?;
    let to = fleet.dir().join("dora");
    fleet.stemma(&["cert", "create", "dora", "--to", &to.to_string_lossy()])?;
    fleet.stemma(&["principal", "update", "dora", "--role", "operator", "--fleet"])?;
    let as_dora = to.join("context.toml").to_string_lossy().into_owned();
    done(&stemma(&["--context", as_dora.as_str()], &["get", "nodes"])?)?;
    Ok(())
}

#[test]
fn root_mends_a_lost_admin_on_the_controllers_machine() -> Result<()> {
    let mut fleet = Fleet::start()?;
    let admin = fleet.data().join("admin");
    for lost in ["admin.pem", "admin.key"] {
        std::fs::remove_file(admin.join(lost))?;
    }
    fleet.stop_controller()?;
    fleet.start_controller()?;
    let server = format!("unix:{}", fleet.data().join("admin.sock").display());
    let mended = fleet.dir().join("mended");
    done(&stemma(&["--server", &server], &["cert", "create", "admin", "--to", &mended.to_string_lossy()])?)?;
    let context = mended.join("context.toml").to_string_lossy().into_owned();
    done(&stemma(&["--context", &context], &["create", "cluster", "prod"])?)?;
    let audit = done(&stemma(&["--context", &context], &["audit", "--principal", "root"])?)?;
    ensure!(audit.contains("unix") && audit.contains("principal/admin"), "{audit}");
    Ok(())
}

#[test]
fn s61_a_local_user_is_not_heard_on_the_socket() -> Result<()> {
    let fleet = Fleet::start()?;
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
        Ok(said(&output))
    };
    ensure!(mode(&socket)? == 0o600 && mode(&fleet.data())? == 0o700);
    ensure!(ask(0)?.contains("200 OK"), "root is heard: {}", ask(0)?);
    ensure!(ask(65534)?.contains("Permission denied"), "{}", ask(65534)?);
    // Were the files open to all, the controller would still look who comes.
    std::fs::set_permissions(fleet.dir(), std::fs::Permissions::from_mode(0o755))?;
    std::fs::set_permissions(fleet.data(), std::fs::Permissions::from_mode(0o755))?;
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666))?;
    let answer = ask(65534)?;
    ensure!(!answer.contains("HTTP"), "{answer}");
    let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
    ensure!(metrics.contains("stemma_rejected_total{reason=\"socket_not_root\"} 1"), "{metrics}");
    Ok(())
}
