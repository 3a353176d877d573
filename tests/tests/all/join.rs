//! Tests of `stemma-agent join`. Each error for a wrong token, address or hash proposes the next step.

use std::ffi::OsString;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use anyhow::{Result, ensure};
use stemma_tests::fleet::TempFleet;
use stemma_tests::ports::ClosedPort;
use stemma_tests::program::{check_file_contains, eventually, path, run};

const LISTENER_ADVICE: &str = "is this the agents' listener (the controller prints it as `agents`)?";
const TOKEN_ADVICE: &str = "make another with `stemma token create`";
const HASH_ADVICE: &str = "compare --ca-hash with what `stemma token ca-hash` prints";

/// The last line that `token create` prints on standard error is a command that joins a host. It has `FILE` in place of
/// the file of the token. An invalid `--ttl` is refused.
#[test]
fn printed_join_command_joins_host() -> Result<()> {
    let fleet = TempFleet::start()?;
    let created = fleet.cli(&["token", "create", "--ttl", "1h"])?;
    let stderr = String::from_utf8(created.stderr)?;
    ensure!(stderr.starts_with("good for one host, into no group, until "), "{stderr}");
    ensure!(["(in 59 min)", "(in 60 min)"].iter().any(|remaining| stderr.contains(remaining)), "{stderr}");
    let (root, file) = (fleet.dir().join("host"), fleet.dir().join("token"));
    std::fs::create_dir(&root)?;
    std::fs::write(&file, created.stdout)?;
    let file = file.to_string_lossy();
    let command = stderr.lines().last().unwrap_or_default().replace("FILE", &file);
    let mut words = command.split_whitespace();
    ensure!(words.next() == Some("stemma-agent"), "{stderr}");
    let root = root.to_string_lossy();
    let join_output = run("stemma-agent", ["--root", &root].into_iter().chain(words))?;
    ensure!(join_output.status.success(), "{command}: {}", String::from_utf8_lossy(&join_output.stderr));
    for invalid_ttl in ["3600", "soon"] {
        let refused_output = fleet.cli(&["token", "create", "--ttl", invalid_ttl])?;
        let text = String::from_utf8_lossy(&refused_output.stderr);
        ensure!(refused_output.status.code() == Some(2) && text.contains("write it as 90s, 30m, 1h30m, 7d or 2w"), "{text}");
    }
    Ok(())
}

/// `--join-script` writes a script that joins a host without further arguments, and prints no secret. An existing file
/// is not overwritten, and no token is created then.
#[test]
fn script_of_token_create_joins_host() -> Result<()> {
    let fleet = TempFleet::start()?;
    let (root, script, programs) = (fleet.dir().join("host"), fleet.dir().join("join.sh"), fleet.dir().join("bin"));
    std::fs::create_dir(&root)?;
    std::fs::create_dir(&programs)?;
    let script_path = script.to_string_lossy();
    let words = ["token", "create", "--uses", "2", "--join-script", &script_path];
    let created = fleet.cli(&words)?;
    let stderr = String::from_utf8(created.stderr)?;
    ensure!(created.status.success() && created.stdout.is_empty(), "{stderr}");
    ensure!(stderr.starts_with("good for 2 hosts, into no group, until ") && stderr.ends_with("  sh join.sh\n"), "{stderr}");
    ensure!(std::fs::metadata(&script)?.permissions().mode() & 0o777 == 0o600, "others can read the script");
    let text = std::fs::read_to_string(&script)?;
    let token = text.lines().rev().nth(1).unwrap_or_default();
    ensure!(token.contains('.') && !stderr.contains(token), "{stderr}");
    let token_names = || fleet.stemma(&["get", "tokens", "-o", "name"]);
    let names_before = token_names()?;
    let refused = fleet.cli(&words)?;
    ensure!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("name a new file"), "{refused:?}");
    ensure!(token_names()? == names_before, "a token was created");
    ensure!(std::fs::read_to_string(&script)? == text, "the script was overwritten");
    // The script names no root directory, so a program of the same name adds it.
    let agent = programs.join("stemma-agent");
    std::fs::write(&agent, format!("#!/bin/sh\nexec {} --root {} \"$@\"\n", path("stemma-agent").display(), root.display()))?;
    std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755))?;
    let search_path = format!("{}:{}", programs.display(), std::env::var("PATH")?);
    let joined = Command::new("sh").arg(&script).env("PATH", search_path).output()?;
    ensure!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
    Ok(())
}

#[test]
fn join_error_names_remedy() -> Result<()> {
    let fleet = TempFleet::start()?;
    let token = fleet.stemma(&["token", "create"])?.trim().to_owned();
    let hash = fleet.stemma(&["token", "ca-hash"])?.trim().to_owned();
    let (agent_url, admin_url) = (fleet.addresses().agents.clone(), fleet.addresses().admin.clone());
    let closed_port = ClosedPort::new()?;
    let closed_url = format!("https://{}", closed_port.address());
    let plain_url = start_plain_http_server()?;
    let wrong_token = format!("{}.{}", token.split('.').next().unwrap_or_default(), "0".repeat(43));
    let other_hash = "0".repeat(64);
    // Each entry has the case, the arguments of `join`, a part of the output, and the end of the output.
    for (case, url, token, hash, expected_text, advice) in [
        ("a closed port", &closed_url, &token, &hash, "cannot be reached", LISTENER_ADVICE),
        ("a plain HTTP server", &plain_url, &token, &hash, "does not speak TLS", LISTENER_ADVICE),
        ("the admin's address", &admin_url.replace("http://", "https://"), &token, &hash, "", LISTENER_ADVICE),
        ("another hash", &agent_url, &token, &other_hash, "is not trusted", HASH_ADVICE),
        ("a wrong token", &agent_url, &wrong_token, &hash, "refused (403)", TOKEN_ADVICE),
        ("no mistake", &agent_url, &token, &hash, "joined", ""),
        ("a token that was used", &agent_url, &token, &hash, "refused (403)", TOKEN_ADVICE),
    ] {
        let root = fleet.dir().join(case.replace(' ', "-"));
        std::fs::create_dir_all(&root)?;
        let file = root.join("token");
        std::fs::write(&file, token)?;
        let (root, file) = (root.to_string_lossy(), file.to_string_lossy());
        let words = ["--root", &root, "join", url, "--name", "web-1", "--token-file", &file, "--ca-hash", hash];
        let output = run("stemma-agent", words)?;
        let text = String::from_utf8([output.stdout, output.stderr].concat())?;
        ensure!(text.contains(expected_text) && text.trim_end().ends_with(advice), "{case}: {text}");
        // This is the TLS library's name of an error, which helps no operator.
        ensure!(!text.contains("InvalidContentType"), "{case}: {text}");
    }
    Ok(())
}

/// Starts a server that answers each connection in plain HTTP. Returns its URL, with the scheme `https`.
fn start_plain_http_server() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("https://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for mut connection in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 64];
            // A client may close the connection before it has the response, so errors are ignored.
            let _ = connection.read(&mut request);
            let _ = connection.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    Ok(url)
}

/// The agent and the operator's command connect to the controller directly, even if their environment names a proxy.
#[test]
fn y09_join_ignores_proxy_of_environment() -> Result<()> {
    let proxy = TcpListener::bind("127.0.0.1:0")?;
    proxy.set_nonblocking(true)?;
    let url = format!("http://{}", proxy.local_addr()?);
    let names = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let variables = names.map(|name| OsString::from(format!("{name}={url}")));
    let mut fleet = TempFleet::start()?;
    let file = fleet.dir().join("site.yaml");
    let site = "{kind: Cluster, name: c, labels: {tier: gold}}\n---\n{kind: NodeGroup, cluster: c, name: g}\n";
    std::fs::write(&file, site)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    fleet.set_host_wrapper(std::iter::once(OsString::from("env")).chain(variables.clone()).collect());
    let agent = fleet.join("n1", "c/g")?;
    eventually("the label on the host", || check_file_contains(&agent.path("run/stemma/labels.json"), "\"tier\":\"gold\""))?;
    let mut command = Command::new("env");
    command.args(&variables).arg(path("stemma")).arg("--context").arg(fleet.context()).args(["get", "nodes"]);
    let output = command.output()?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success() && stdout.contains("n1"), "{stdout}{stderr}");
    ensure!(proxy.accept().is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "a program connected to the proxy");
    Ok(())
}
