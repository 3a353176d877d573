//! The errors that a person reads who joins a host with a wrong token, address or hash. Each error says what to do
//! next.

use std::ffi::OsString;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;

use anyhow::{Result, ensure};
use stemma_tests::fleet::TempFleet;
use stemma_tests::ports::ClosedPort;
use stemma_tests::program::{check_file_contains, eventually, path, run};

const LISTENER_ADVICE: &str = "is this the agents' listener (the controller prints it as `agents`)?";
const TOKEN_ADVICE: &str = "make another with `stemma token create`";
const HASH_ADVICE: &str = "compare --ca-hash with what `stemma token ca-hash` prints";

#[test]
fn printed_join_command_joins_host() -> Result<()> {
    let fleet = TempFleet::start()?;
    let made = fleet.cli(&["token", "create", "--ttl", "1h"])?;
    let told = String::from_utf8(made.stderr)?;
    ensure!(told.starts_with("good for one host, into no group, until "), "{told}");
    ensure!(["(in 59 min)", "(in 60 min)"].iter().any(|left| told.contains(left)), "{told}");
    let (root, file) = (fleet.dir().join("host"), fleet.dir().join("token"));
    std::fs::create_dir(&root)?;
    std::fs::write(&file, made.stdout)?;
    let file = file.to_string_lossy();
    let command = told.lines().last().unwrap_or_default().replace("FILE", &file);
    let mut words = command.split_whitespace();
    ensure!(words.next() == Some("stemma-agent"), "{told}");
    let root = root.to_string_lossy();
    let joined = run("stemma-agent", ["--root", &root].into_iter().chain(words))?;
    ensure!(joined.status.success(), "{command}: {}", String::from_utf8_lossy(&joined.stderr));
    for wrong in ["3600", "soon"] {
        let refused = fleet.cli(&["token", "create", "--ttl", wrong])?;
        let text = String::from_utf8_lossy(&refused.stderr);
        ensure!(refused.status.code() == Some(2) && text.contains("write it as 90s, 30m, 1h30m, 7d or 2w"), "{text}");
    }
    Ok(())
}

#[test]
fn join_error_names_remedy() -> Result<()> {
    let fleet = TempFleet::start()?;
    let token = fleet.stemma(&["token", "create"])?.trim().to_owned();
    let hash = fleet.stemma(&["token", "ca-hash"])?.trim().to_owned();
    let (agents, admin) = (fleet.addresses().agents.clone(), fleet.addresses().admin.clone());
    let nobody = ClosedPort::new()?;
    let closed = format!("https://{}", nobody.address());
    let plain = plain_http_server()?;
    let spent = format!("{}.{}", token.split('.').next().unwrap_or_default(), "0".repeat(43));
    let other_hash = "0".repeat(64);
    for (what, url, token, hash, said, to_do) in [
        ("a closed port", &closed, &token, &hash, "cannot be reached", LISTENER_ADVICE),
        ("a plain HTTP server", &plain, &token, &hash, "does not speak TLS", LISTENER_ADVICE),
        ("the admin's address", &admin.replace("http://", "https://"), &token, &hash, "", LISTENER_ADVICE),
        ("another hash", &agents, &token, &other_hash, "is not trusted", HASH_ADVICE),
        ("a wrong token", &agents, &spent, &hash, "refused (403)", TOKEN_ADVICE),
        ("nothing", &agents, &token, &hash, "joined", ""),
        ("a token that was used", &agents, &token, &hash, "refused (403)", TOKEN_ADVICE),
    ] {
        let root = fleet.dir().join(what.replace(' ', "-"));
        std::fs::create_dir_all(&root)?;
        let file = root.join("token");
        std::fs::write(&file, token)?;
        let (root, file) = (root.to_string_lossy(), file.to_string_lossy());
        let words = ["--root", &root, "join", url, "--name", "web-1", "--token-file", &file, "--ca-hash", hash];
        let output = run("stemma-agent", words)?;
        let told = String::from_utf8([output.stdout, output.stderr].concat())?;
        ensure!(told.contains(said) && told.trim_end().ends_with(to_do), "{what}: {told}");
        ensure!(!told.contains("InvalidContentType"), "{what}: {told}");
    }
    Ok(())
}

/// Starts a server that answers each connection in plain HTTP. Returns its URL, with the scheme `https`.
fn plain_http_server() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("https://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for mut connection in listener.incoming().map_while(Result::ok) {
            let mut first = [0; 64];
            // This test does not care about clients that close the connection early.
            let _ = connection.read(&mut first);
            let _ = connection.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    Ok(url)
}

/// A host and a command with a proxy in their environment connect to their controller directly, and never to the proxy.
#[test]
fn y09_join_ignores_proxy_of_environment() -> Result<()> {
    let proxy = TcpListener::bind("127.0.0.1:0")?;
    proxy.set_nonblocking(true)?;
    let url = format!("http://{}", proxy.local_addr()?);
    let names = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let set = names.map(|name| OsString::from(format!("{name}={url}")));
    let mut fleet = TempFleet::start()?;
    let file = fleet.dir().join("site.yaml");
    let site = "{kind: Cluster, name: c, labels: {tier: gold}}\n---\n{kind: NodeGroup, cluster: c, name: g}\n";
    std::fs::write(&file, site)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    fleet.set_host_wrapper(std::iter::once(OsString::from("env")).chain(set.clone()).collect());
    let agent = fleet.join("n1", "c/g")?;
    eventually("the host is told", || check_file_contains(&agent.path("run/stemma/labels.json"), "\"tier\":\"gold\""))?;
    let mut command = Command::new("env");
    command.args(&set).arg(path("stemma")).arg("--context").arg(fleet.context()).args(["get", "nodes"]);
    let listed = command.output()?;
    let (said, errors) = (String::from_utf8_lossy(&listed.stdout), String::from_utf8_lossy(&listed.stderr));
    ensure!(listed.status.success() && said.contains("n1"), "{said}{errors}");
    ensure!(proxy.accept().is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "somebody called the proxy");
    Ok(())
}
