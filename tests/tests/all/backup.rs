//! One file with the whole fleet: created from a running controller, encrypted, refused if one bit was changed, and
//! restored to a new directory at another address. The hosts follow it there without manual work on any of them (F31,
//! F32).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{RunningProgram, check_file_contains, eventually, run};
use stemma_tests::site::SITE;
use stemma_tests::tool::is_available;

/// A key pair of age, and another secret key.
const SECRET_KEY: &str = "AGE-SECRET-KEY-190CQVWUPCWHXR6RUCTJCG2VVDCJQZHXH6R2H2SZ90UM3S9433QFSRU8HAX";
const PUBLIC_KEY: &str = "age1zdkzp7vjg5p6zw3amt3wv8p6nmvvm2e9npuxxkt4knz3htnxg4zqyt46h8";
const OTHER_SECRET_KEY: &str = "AGE-SECRET-KEY-14EZG4JRVF68YMMRY2U5HPRH5RPE6U7WXMLUYALMNXCYCJJRLPRJS2WX5PN";

/// Paths whose response must be the same before the backup and after the restore.
const COMPARED_PATHS: [&str; 5] =
    ["/v1/releases", "/v1/clustertemplates", "/v1/clusters/detail", "/v1/clusters/prod/nodegroups", "/v1/audit?limit=1000"];

/// The host name of the controller for the hosts of the drill.
const CONTROLLER_NAME: &str = "controllers.stemma.test";
/// Number of hosts in the drill.
const HOST_COUNT: usize = 20;

/// The tasks of the hosts: a file that reads a label, and a command without a guard.
const DRILL_MANIFEST: &str = r#"
kind: Release
name: drill
version: "1"
roles: {all: {tags: [common]}}
tags: {common: {}}
tasks:
  - {id: conf, type: file, tags: [common], parameters: {path: /etc/drill.conf, template: "tier {{ labels.tier }}\n"}}
  - id: once
    type: shell
    tags: [common]
    parameters: {script: 'mkdir -p "$STEMMA_ROOT/var/log" && echo ran >> "$STEMMA_ROOT/var/log/once.log"'}
---
{kind: Cluster, name: c, release: drill@1}
---
{kind: NodeGroup, cluster: c, name: g, roles: [all], labels: {tier: gold}}
"#;

/// Runs the controller's program. Returns whether it succeeded, and its output.
fn run_controller(arguments: &[&str]) -> Result<(bool, String)> {
    let output = run("stemma-controller", arguments)?;
    Ok((output.status.success(), String::from_utf8([output.stdout, output.stderr].concat())?))
}

/// Runs the controller's program, which must succeed.
fn succeed(arguments: &[&str]) -> Result<String> {
    let (is_done, said) = run_controller(arguments)?;
    ensure!(is_done, "{arguments:?}: {said}");
    Ok(said)
}

/// Runs the controller's program, which must fail with all these texts in its output.
fn check_refused(arguments: &[&str], sentences: &[&str]) -> Result<()> {
    let (is_done, said) = run_controller(arguments)?;
    let says_all = sentences.iter().all(|sentence| said.contains(sentence));
    ensure!(!is_done && says_all, "{arguments:?}: {said}\nnot: {sentences:?}");
    Ok(())
}

fn path_text(path: &Path) -> Result<&str> {
    path.to_str().context("a temporary directory's name is text")
}

fn read_json(fleet: &TempFleet, path: &str) -> Result<Value> {
    Ok(serde_json::from_str(&fleet.stemma(&["get", "--raw", path])?)?)
}

/// Returns the value of a metric without labels.
fn metric(fleet: &TempFleet, name: &str) -> Result<u64> {
    let text = fleet.stemma(&["get", "--raw", "/metrics"])?;
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|value| value.starts_with(' ')));
    let value = line.with_context(|| format!("{name} in\n{text}"))?.rsplit(' ').next().context("a value")?;
    Ok(value.parse()?)
}

/// Writes a file of secret keys in the format of age-keygen.
fn write_key_file(path: &Path, secret: &str) -> Result<()> {
    std::fs::write(path, format!("# created: 2026-11-27T08:00:00Z\n{secret}\n"))?;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?)
}

/// Copies a file and flips one bit.
fn flip_bit(of: &Path, at: usize, to: &Path) -> Result<()> {
    let mut bytes = std::fs::read(of)?;
    bytes[at] ^= 0x10;
    Ok(std::fs::write(to, bytes)?)
}

#[test]
fn x02_backup_of_running_controller_is_complete() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let data = fleet.data();
    let path = |name: &str| fleet.dir().join(name);
    let [busy, quiet, cut, other, made, new] = ["busy", "quiet", "cut", "other", "made", "restored"].map(path);
    let back_up = |to: &Path| -> Result<()> {
        let said = succeed(&["backup", path_text(to)?, "--data-dir", path_text(&data)?, "--unencrypted"])?;
        ensure!(said.contains("checked\nIT IS NOT ENCRYPTED: it contains the keys of the fleet"), "{said}");
        ensure!(std::fs::metadata(to)?.permissions().mode() & 0o777 == 0o600, "others read it");
        Ok(())
    };
    let writes = (0..10).map(|nth| fleet.spawn_cli(&["label", "nodegroup", "prod/frontends", &format!("tier=t{nth}")]));
    let writes = writes.collect::<Result<Vec<_>>>()?;
    back_up(&busy)?;
    for write in writes {
        let (is_done, log) = write.wait_with_log()?;
        ensure!(is_done, "{log}");
    }
    let before = COMPARED_PATHS.map(|path| fleet.stemma(&["get", "--raw", path])).into_iter().collect::<Result<Vec<_>>>()?;
    let revision = metric(&fleet, "stemma_store_revision")?;
    back_up(&quiet)?;
    let again = ["backup", path_text(&quiet)?, "--data-dir", path_text(&data)?, "--unencrypted"];
    check_refused(&again, &["already exists", "nothing was written"])?;
    ensure!(metric(&fleet, "stemma_backup_age_seconds")? < 600, "it was made now");
    let shown = read_json(&fleet, "/v1/fleet")?;
    let bytes = std::fs::metadata(&quiet)?.len();
    ensure!(shown["backup"]["revision"] == revision && shown["backup"]["bytes"] == bytes, "{shown}");
    ensure!(shown["backup"]["encrypted"] == false && shown["waits"] == false, "{shown}");

    let whole = std::fs::read(&quiet)?;
    std::fs::write(&cut, &whole[..whole.len() / 2])?;
    check_refused(&["restore", path_text(&cut)?, "--data-dir", path_text(&made)?], &["it was truncated", "nothing was changed"])?;
    flip_bit(&quiet, whole.len() / 2, &other)?;
    check_refused(&["restore", path_text(&other)?, "--data-dir", path_text(&made)?], &["nothing was changed"])?;
    ensure!(!made.exists(), "nothing was made of what was refused");
    let over_it = ["restore", path_text(&quiet)?, "--data-dir", path_text(&data)?];
    check_refused(&over_it, &["the directory contains a fleet", "nothing was changed"])?;
    succeed(&["restore", path_text(&busy)?, "--data-dir", path_text(&made)?])?;

    fleet.kill_controller()?;
    let said = succeed(&["restore", path_text(&quiet)?, "--data-dir", path_text(&new)?])?;
    ensure!(said.contains(&format!("at revision {revision}")), "{said}");
    ensure!(said.contains(&format!("stemma-controller resume-fleet --data-dir {}", path_text(&new)?)), "{said}");
    fleet.start_controller_in(new, "127.0.0.1")?;
    for (path, before) in COMPARED_PATHS.iter().zip(&before) {
        let now = fleet.stemma(&["get", "--raw", path])?;
        ensure!(now == *before, "{path}:\n{now}\nbefore:\n{before}");
    }
    let shown = read_json(&fleet, "/v1/fleet")?;
    let reason = format!("restored from a backup of revision {revision}");
    ensure!(shown["waits"] == true && shown["reason"] == reason, "{shown}");
    ensure!(shown["revision"].as_u64() > Some(revision + 999_999), "no revision that clients have read: {shown}");
    fleet.stemma(&["label", "nodegroup", "prod/frontends", "tier=after"])?;

    // The same for a stopped controller.
    fleet.stop_controller()?;
    let stopped = fleet.dir().join("stopped");
    succeed(&["backup", path_text(&stopped)?, "--data-dir", path_text(&fleet.data())?, "--unencrypted"])?;
    fleet.start_controller()?;
    ensure!(metric(&fleet, "stemma_backup_age_seconds")? < 600, "it is recorded there as well");
    Ok(())
}

#[test]
fn x02_backup_is_encrypted_to_recipients_or_warns() -> Result<()> {
    let fleet = TempFleet::start_with_config(&format!("backup_recipients = [\"{PUBLIC_KEY}\"]\n"))?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let (data, configuration) = (fleet.data(), fleet.dir().join("controller.toml"));
    let (data, configuration) = (path_text(&data)?, path_text(&configuration)?);
    let path = |name: &str| fleet.dir().join(name);
    let [file, changed, own, others] = ["fleet.backup", "changed", "own.key", "others.key"].map(path);
    let to = path_text(&file)?;
    // Without recipients and without `--unencrypted`, the error proposes both commands and nothing is written.
    let by_configuration = format!("stemma-controller backup {to} --config /etc/stemma/controller.toml");
    let as_it_is = format!("stemma-controller backup {to} --data-dir {data} --unencrypted");
    check_refused(&["backup", to, "--data-dir", data], &[&by_configuration, &as_it_is, "nothing was written"])?;
    ensure!(!file.exists(), "nothing was written");
    check_refused(
        &["backup", "-", "--config", configuration, "--data-dir", data],
        &["a backup cannot go to standard output", "nothing was written"],
    )?;

    let said = succeed(&["backup", to, "--config", configuration, "--data-dir", data])?;
    ensure!(said.contains("encrypted to backup_recipients (1)") && !said.contains("NOT ENCRYPTED"), "{said}");
    let bytes = std::fs::read(&file)?;
    ensure!(bytes.starts_with(b"age-encryption.org/v1\n-> X25519 "), "it is a file of age");
    let holds = |words: &[u8]| bytes.windows(words.len()).any(|part| part == words);
    ensure!(!holds(b"PRIVATE KEY") && !holds(b"stemma-backup"), "nothing of it stands there as it is");
    let shown = read_json(&fleet, "/v1/fleet")?;
    ensure!(shown["backup"]["encrypted"] == true, "{shown}");

    write_key_file(&own, SECRET_KEY)?;
    write_key_file(&others, OTHER_SECRET_KEY)?;
    let new = path("new");
    let new = path_text(&new)?;
    let restore = |file: &Path, key: Option<&Path>, sentences: &[&str]| -> Result<()> {
        let key = key.map(path_text).transpose()?;
        let by_key = key.into_iter().flat_map(|key| ["--identity", key]);
        let words = ["restore", path_text(file)?, "--data-dir", new].into_iter().chain(by_key);
        check_refused(&words.collect::<Vec<_>>(), sentences)
    };
    let command = format!("stemma-controller restore {to} --data-dir {new} --identity KEYFILE");
    restore(&file, None, &["is encrypted", &command, "nothing was changed"])?;
    restore(&file, Some(&others), &["not encrypted to any of the given identities", "nothing was changed"])?;
    flip_bit(&file, bytes.len() / 2, &changed)?;
    restore(&changed, Some(&own), &["it was truncated or changed", "nothing was changed"])?;
    let open = path("open.key");
    std::fs::write(&open, SECRET_KEY)?;
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644))?;
    restore(&file, Some(&open), &["others may read it", "chmod 0600"])?;
    ensure!(!Path::new(new).exists(), "nothing was made of what was refused");
    succeed(&["restore", to, "--data-dir", new, "--identity", path_text(&own)?])?;

    // Debian's age can decrypt the file, and a file that age encrypted can be restored.
    if is_available("age", &["--version"]) {
        let [plain, again, from_plain, from_again] = ["plain", "again", "from-plain", "from-again"].map(path);
        let none = path("none");
        let age = |arguments: &[&str]| -> Result<()> {
            let output = Command::new("age").args(arguments).output()?;
            ensure!(output.status.success(), "age {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            Ok(())
        };
        age(&["-d", "-i", path_text(&own)?, "-o", path_text(&plain)?, to])?;
        succeed(&["restore", path_text(&plain)?, "--data-dir", path_text(&from_plain)?])?;
        let with_a_key = ["restore", path_text(&plain)?, "--data-dir", path_text(&none)?, "--identity", path_text(&own)?];
        check_refused(&with_a_key, &["is not encrypted: omit --identity", "nothing was changed"])?;
        let armored = path("armored");
        age(&["-a", "-r", PUBLIC_KEY, "-o", path_text(&armored)?, path_text(&plain)?])?;
        let of_armored = ["restore", path_text(&armored)?, "--data-dir", path_text(&none)?, "--identity", path_text(&own)?];
        check_refused(&of_armored, &["is an armored age file", "age -d -i KEYFILE", "nothing was changed"])?;
        age(&["-r", PUBLIC_KEY, "-o", path_text(&again)?, path_text(&plain)?])?;
        succeed(&["restore", path_text(&again)?, "--data-dir", path_text(&from_again)?, "--identity", path_text(&own)?])?;
    }
    Ok(())
}

/// Returns the paths in a directory whose names begin with this prefix.
fn files_with_prefix(directory: &Path, prefix: &str) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)?.collect::<std::io::Result<Vec<_>>>()?;
    let is_one = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()));
    Ok(entries.iter().map(std::fs::DirEntry::path).filter(is_one).collect())
}

/// Creates a fleet that does not run, and a backup of it.
fn create_backup(data: &Path, file: &Path) -> Result<()> {
    succeed(&["init", "--data-dir", path_text(data)?])?;
    succeed(&["backup", path_text(file)?, "--data-dir", path_text(data)?, "--unencrypted"]).map(drop)
}

#[test]
fn x02_next_run_removes_files_of_killed_backup_or_restore() -> Result<()> {
    let fleet = TempFleet::start()?;
    let path = |name: &str| fleet.dir().join(name);
    let [other, first, waiting, second, third, new] = ["other", "first", "waiting", "second", "third", "new"].map(path);
    create_backup(&other, &first)?;
    let back_up = |to: &Path| succeed(&["backup", path_text(to)?, "--data-dir", path_text(&other)?, "--unencrypted"]);
    // The backup waits, because the controller does not respond.
    fleet.pause_controller()?;
    let data = fleet.data();
    let words = ["backup", path_text(&waiting)?, "--data-dir", path_text(&data)?, "--unencrypted"];
    let waits = RunningProgram::start("stemma-controller", words)?;
    let begins = || files_with_prefix(fleet.dir(), ".stemma-backup-")?.pop().context("no file is there");
    let begun_by_it = eventually("the file of a backup that waits", begins)?;
    let said = back_up(&second)?;
    ensure!(begun_by_it.exists() && !said.contains("was removed"), "it is still at work on it: {said}");
    waits.kill()?;
    ensure!(begun_by_it.exists(), "what is killed takes nothing away");
    let said = back_up(&third)?;
    let sentence = format!("{} was removed: a killed backup had left it behind", begun_by_it.display());
    ensure!(said.contains(&sentence) && !begun_by_it.exists(), "{said}");
    fleet.resume_controller()?;

    let left = new.join(".restoring-killed");
    std::fs::create_dir_all(left.join("trust"))?;
    std::fs::write(left.join("trust/root.key"), "a key")?;
    let said = succeed(&["restore", path_text(&third)?, "--data-dir", path_text(&new)?])?;
    let sentence = format!("{} was removed: a killed restore had left it behind", left.display());
    ensure!(said.contains(&sentence), "{said}");
    ensure!(files_with_prefix(&new, ".restoring-")?.is_empty(), "nothing of it is left");
    Ok(())
}

#[test]
fn x02_restore_is_refused_when_another_uses_directory() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name);
    let [one, other, of_one, of_other, held] = ["one", "other", "of-one", "of-other", "held"].map(path);
    create_backup(&one, &of_one)?;
    create_backup(&other, &of_other)?;

    std::fs::create_dir(&held)?;
    let at_work = std::fs::File::open(&held)?;
    flock(&at_work, FlockOperation::NonBlockingLockExclusive)?;
    let sentences = ["is using this directory", "nothing was changed"];
    check_refused(&["restore", path_text(&of_one)?, "--data-dir", path_text(&held)?], &sentences)?;
    check_refused(&["init", "--data-dir", path_text(&held)?], &sentences)?;
    ensure!(std::fs::read_dir(&held)?.next().is_none(), "nothing was made");
    drop(at_work);

    for nth in 0..8 {
        let to = path(&format!("to-{nth}"));
        let begin = |file: &Path| -> Result<RunningProgram> {
            RunningProgram::start("stemma-controller", ["restore", path_text(file)?, "--data-dir", path_text(&to)?])
        };
        let (first, second) = (begin(&of_one)?, begin(&of_other)?);
        let ((first_won, first_said), (second_won, second_said)) = (first.wait_with_log()?, second.wait_with_log()?);
        ensure!(first_won != second_won, "one of them: {first_said}\n{second_said}");
        let (of, refusal) = if first_won { (&one, &second_said) } else { (&other, &first_said) };
        let says_why = refusal.contains("is using this directory") || refusal.contains("the directory contains a fleet");
        ensure!(says_why && refusal.contains("nothing was changed"), "{refusal}");
        for name in ["ca.pem", "trust/root.key", "trust/signers.key", "admin/admin.key"] {
            ensure!(std::fs::read(to.join(name))? == std::fs::read(of.join(name))?, "{name} is of the other fleet");
        }
        ensure!(files_with_prefix(&to, ".restoring-")?.is_empty(), "nothing is left beside it");
    }
    Ok(())
}

#[test]
fn x02_restore_names_remedy_for_pipe_or_full_disk() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name);
    let [one, file, pipe, new] = ["one", "file", "pipe", "new"].map(path);
    create_backup(&one, &file)?;
    let new_data = path_text(&new)?;
    let made = Command::new("mkfifo").arg(&pipe).status()?;
    ensure!(made.success(), "mkfifo: {made}");
    let to_a_file = format!("write it to a file first (cat {} > FILE)", pipe.display());
    let restore = |from: &str, sentences: &[&str]| check_refused(&["restore", from, "--data-dir", new_data], sentences);
    restore(path_text(&pipe)?, &["is a pipe or a device", &to_a_file, "nothing was changed"])?;
    restore("-", &["cannot be read from standard input", "cat > FILE", "nothing was changed"])?;
    restore(path_text(dir.path())?, &["is a directory", "nothing was changed"])?;
    ensure!(!new.exists(), "nothing was made");

    // A file size limit is reported in the same way as a full disk.
    std::fs::create_dir(&new)?;
    let words = ["sh", "-c", "trap '' XFSZ; ulimit -f 16; exec \"$@\"", "sh"].map(OsString::from);
    let arguments = ["restore", path_text(&file)?, "--data-dir", new_data];
    let (is_done, said) = RunningProgram::start_under(&words, "stemma-controller", arguments)?.wait_with_log()?;
    let begins = format!("{new_data}: the fleet of {} could not be created there, and nothing was changed", file.display());
    let says_all = [&*begins, "free space", "run restore again", "os error 27"].iter().all(|words| said.contains(words));
    ensure!(!is_done && says_all, "{said}");
    ensure!(std::fs::read_dir(&new)?.next().is_none(), "what was begun was taken away");
    succeed(&["restore", path_text(&file)?, "--data-dir", new_data]).map(drop)
}

/// Previously, both failed with an error of standard output, and nothing reported that the file or the fleet existed.
#[test]
fn x02_backup_and_restore_succeed_when_output_is_closed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name);
    let [one, first, second, new] = ["one", "first", "second", "new"].map(path);
    create_backup(&one, &first)?;
    let to_full = ["sh", "-c", "exec \"$@\" > /dev/full", "sh"].map(OsString::from);
    let ends_well = |arguments: &[&str]| -> Result<()> {
        let (is_done, said) = RunningProgram::start_under(&to_full, "stemma-controller", arguments)?.wait_with_log()?;
        ensure!(is_done, "{arguments:?}: {said}");
        Ok(())
    };
    ends_well(&["backup", path_text(&second)?, "--data-dir", path_text(&one)?, "--unencrypted"])?;
    ends_well(&["restore", path_text(&second)?, "--data-dir", path_text(&new)?])?;
    ensure!(std::fs::read(one.join("ca.pem"))? == std::fs::read(new.join("ca.pem"))?, "the fleet is there");

    let directory = format!("{}/", path_text(&path("third"))?);
    let to_a_directory = ["backup", &directory, "--data-dir", path_text(&one)?, "--unencrypted"];
    check_refused(&to_a_directory, &["this is the name of a directory", "nothing was written"])?;
    let again = ["backup", path_text(&second)?, "--data-dir", path_text(&one)?, "--unencrypted"];
    check_refused(&again, &["already exists", "give another name"])
}

/// Returns the names of the connected hosts that are in this state.
fn connected_hosts_in_state(fleet: &TempFleet, state: &str) -> Result<BTreeSet<String>> {
    let all = read_json(fleet, "/v1/nodes/detail")?;
    let nodes = all["nodes"].as_array().with_context(|| format!("a list: {all}"))?;
    let stands = |node: &&Value| node["state"] == state && node["connected"] == true;
    Ok(nodes.iter().filter(stands).map(|node| node["name"].as_str().unwrap_or_default().to_owned()).collect())
}

/// Waits until all hosts are in a state and have this tier in their file.
fn wait_for_all_hosts(fleet: &TempFleet, agents: &[TestAgent], state: &str, tier: &str) -> Result<()> {
    eventually(&format!("all hosts are {state}"), || {
        let found = connected_hosts_in_state(fleet, state)?;
        ensure!(found.len() == HOST_COUNT, "{found:?}\n{}", fleet.log());
        Ok(())
    })?;
    let holds = |agent: &TestAgent| check_file_contains(&agent.path("etc/drill.conf"), &format!("tier {tier}\n"));
    agents.iter().try_for_each(|agent| eventually("the file of a host", || holds(agent)))
}

/// Returns the command line that starts a program with its own `/etc/hosts`, which has the address of the controller.
fn hosts_file_command(hosts: &Path) -> Result<Vec<OsString>> {
    let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    Ok(["unshare", "--mount", "sh", "-c", script, path_text(hosts)?].map(OsString::from).into())
}

#[test]
fn x02_f31_f32_twenty_hosts_return_to_restored_fleet() -> Result<()> {
    if !is_available("unshare", &["--mount", "true"]) {
        return Ok(());
    }
    let mut fleet = TempFleet::start_with_name(CONTROLLER_NAME, &format!("backup_recipients = [\"{PUBLIC_KEY}\"]\n"))?;
    let path = |name: &str| fleet.dir().join(name);
    let [manifest, hosts, file, key, new] = ["drill.yaml", "hosts", "fleet.backup", "own.key", "new-machine"].map(path);
    let configuration = path("controller.toml");
    std::fs::write(&manifest, DRILL_MANIFEST)?;
    std::fs::write(&hosts, format!("127.0.0.1 localhost {CONTROLLER_NAME}\n"))?;
    write_key_file(&key, SECRET_KEY)?;
    fleet.stemma(&["apply", "-f", path_text(&manifest)?])?;
    fleet.set_agent_host_name(CONTROLLER_NAME);
    fleet.set_host_wrapper(hosts_file_command(&hosts)?);
    let agents = (1..=HOST_COUNT).map(|nth| fleet.join(&format!("host-{nth}"), "c/g")).collect::<Result<Vec<_>>>()?;
    wait_for_all_hosts(&fleet, &agents, "converged", "gold")?;
    succeed(&["backup", path_text(&file)?, "--config", path_text(&configuration)?, "--data-dir", path_text(&fleet.data())?])?;

    // When the machine and its disk are lost, each host has a change that is newer than the backup.
    fleet.stemma(&["label", "nodegroup", "c/g", "tier=silver", "--yes"])?;
    wait_for_all_hosts(&fleet, &agents, "converged", "silver")?;
    let _late = fleet.join("joined-late", "c/g")?;
    let epoch_before = read_json(&fleet, "/v1/fleet")?["epoch"].clone();
    fleet.kill_controller()?;
    std::fs::remove_dir_all(fleet.data())?;

    // Another machine with another address takes over the name.
    succeed(&["restore", path_text(&file)?, "--data-dir", path_text(&new)?, "--identity", path_text(&key)?])?;
    std::fs::write(&hosts, format!("127.0.0.1 localhost\n127.0.0.2 {CONTROLLER_NAME}\n"))?;
    fleet.start_controller_in(new, "127.0.0.2")?;
    eventually("all hosts are found to be ahead", || {
        let shown = read_json(&fleet, "/v1/fleet")?;
        ensure!(shown["waits"] == true && shown["ahead"]["nodes"] == HOST_COUNT, "{shown}");
        Ok(())
    })?;
    eventually("each says that it is not led", || {
        let failed = connected_hosts_in_state(&fleet, "failed")?;
        ensure!(failed.len() == HOST_COUNT, "{failed:?}");
        Ok(())
    })?;
    ensure!(metric(&fleet, "stemma_nodes_ahead")? == HOST_COUNT as u64, "so does the metric");
    ensure!(metric(&fleet, "stemma_desired_sent_total")? == 0, "nothing is sent before somebody says so");
    for agent in &agents {
        check_file_contains(&agent.path("etc/drill.conf"), "tier silver\n")?;
    }
    let until = "; nothing is sent to the host until an admin runs: stemma-controller resume-fleet";
    for [kind, what] in [["label", "tier"], ["task", "conf"]] {
        let said = fleet.stemma(&["explain", "node", "host-1", kind, what])?;
        let why = said.lines().find(|line| line.ends_with(until)).with_context(|| said.clone())?;
        ensure!(why.contains(" of another store (epoch ") && why.contains("restored from a backup"), "{why}");
        ensure!(!said.contains("has not confirmed"), "{said}");
    }
    eventually("the journal says what hosts and store hold, and what to do", || {
        let log = fleet.log();
        let line = log.lines().find(|line| line.contains("until an admin runs: stemma-controller resume-fleet"));
        let line = line.with_context(|| log.clone())?;
        let fields = ["host_epoch=", "host_revision=", " epoch=", " revision="];
        ensure!(fields.iter().all(|field| line.contains(field)), "{line}");
        Ok(())
    })?;

    let said = succeed(&["resume-fleet", "--data-dir", path_text(&fleet.data())?, "--yes", "--reason", "a drill"])?;
    let come = format!(
        "the store was restored from a backup, and nothing is sent to any host yet; {HOST_COUNT} of {HOST_COUNT} hosts have checked in so far"
    );
    ensure!(said.contains(&come), "{said}");
    wait_for_all_hosts(&fleet, &agents, "converged", "gold")?;
    let shown = read_json(&fleet, "/v1/fleet")?;
    let none_ahead = json!({"nodes": 0, "highest": null, "unknown_epochs": 0});
    ensure!(shown["waits"] == false && shown["ahead"] == none_ahead, "{shown}");
    let audit = read_json(&fleet, "/v1/audit?limit=1000")?;
    let resumed = audit["audit"].as_array().into_iter().flatten().find(|one| one["reason"] == "a drill");
    let action = json!({"kind": "fleet.resumed", "epoch_before": epoch_before, "epoch_after": shown["epoch"]});
    ensure!(resumed.is_some_and(|entry| entry["action"] == action), "{resumed:?}, not {action}");
    let said = fleet.stemma(&["audit", "--limit", "1000"])?;
    ensure!(said.contains("resumed the fleet: from epoch "), "{said}");
    for agent in &agents {
        let ran = std::fs::read_to_string(agent.path("var/log/once.log"))?;
        ensure!(ran == "ran\n", "what has run does not run again: {ran}");
    }
    // The host that joined after the backup is counted, but not accepted.
    eventually("a host that is unknown is counted", || {
        let shown = read_json(&fleet, "/v1/fleet")?;
        ensure!(shown["unknown_hosts"] == 1, "{shown}");
        Ok(())
    })?;
    ensure!(metric(&fleet, "stemma_hosts_unknown")? == 1, "so does the metric");
    let log = fleet.log();
    ensure!(log.contains("run stemma-agent leave on it, and join it again with a new token"), "{log}");
    // The other hosts get changes again.
    fleet.stemma(&["label", "nodegroup", "c/g", "tier=bronze", "--yes"])?;
    wait_for_all_hosts(&fleet, &agents, "converged", "bronze")
}

/// Restores one backup twice; the second store has no record of the first. A host that was offline follows the second
/// store, because an admin resumed the fleet there. When the machine of the first store comes back, the host does not
/// follow it.
#[test]
fn x02_host_follows_latest_resumed_store_when_back() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    let path = |name: &str| fleet.dir().join(name);
    let [manifest, file, first, second] = ["drill.yaml", "fleet.backup", "first", "second"].map(path);
    std::fs::write(&manifest, DRILL_MANIFEST)?;
    fleet.stemma(&["apply", "-f", path_text(&manifest)?])?;
    let mut agent = fleet.join("host-1", "c/g")?;
    let holds = |agent: &TestAgent, tier: &str| {
        let holds = || check_file_contains(&agent.path("etc/drill.conf"), &format!("tier {tier}\n"));
        eventually("the file of the host", holds)
    };
    holds(&agent, "gold")?;
    succeed(&["backup", path_text(&file)?, "--data-dir", path_text(&fleet.data())?, "--unencrypted"])?;
    fleet.kill_controller()?;

    succeed(&["restore", path_text(&file)?, "--data-dir", path_text(&first)?])?;
    fleet.start_controller_in(first.clone(), "127.0.0.1")?;
    succeed(&["resume-fleet", "--data-dir", path_text(&first)?, "--yes"])?;
    fleet.stemma(&["label", "nodegroup", "c/g", "tier=of-first", "--yes"])?;
    holds(&agent, "of-first")?;
    agent.kill()?;
    fleet.kill_controller()?;

    succeed(&["restore", path_text(&file)?, "--data-dir", path_text(&second)?])?;
    fleet.start_controller_in(second.clone(), "127.0.0.1")?;
    succeed(&["resume-fleet", "--data-dir", path_text(&second)?, "--yes"])?;
    fleet.stemma(&["label", "nodegroup", "c/g", "tier=of-second", "--yes"])?;
    agent.start()?;
    holds(&agent, "of-second")?;
    fleet.kill_controller()?;

    fleet.start_controller_in(first, "127.0.0.1")?;
    let epoch = read_json(&fleet, "/v1/fleet")?["epoch"].clone();
    eventually("the host is found to be another store's", || {
        let shown = read_json(&fleet, "/v1/fleet")?;
        let (ahead, epochs) = (&shown["ahead"]["nodes"], &shown["ahead"]["unknown_epochs"]);
        ensure!(*ahead == 1 && *epochs == 1, "{shown}\n{}", agent.log());
        Ok(())
    })?;
    let said = fleet.stemma(&["explain", "node", "host-1", "label", "tier"])?;
    ensure!(said.contains("that store was restored later or is in use beside this one"), "{said}");
    ensure!(metric(&fleet, "stemma_desired_sent_total")? == 0, "nothing is sent to it");
    check_file_contains(&agent.path("etc/drill.conf"), "tier of-second\n")?;
    // Only an admin can make the host follow it, by resuming the fleet a second time.
    let said = succeed(&["resume-fleet", "--data-dir", path_text(&fleet.data())?, "--yes", "--reason", "the second is gone"])?;
    ensure!(said.contains("hosts hold revisions of another copy of the store"), "{said}");
    holds(&agent, "of-first")?;
    ensure!(read_json(&fleet, "/v1/fleet")?["epoch"] != epoch, "it is in an epoch that is later than both");
    Ok(())
}
