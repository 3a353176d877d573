//! A backup is one file with the whole fleet. A running or stopped controller creates it, encrypted or on request
//! unencrypted. It is refused if one bit was changed. It is restored to a new directory at another address. The hosts
//! then follow the new controller without manual work on any host (F31, F32).

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

/// A secret key of the encryption tool age, as an identity file contains it.
const SECRET_KEY: &str = "AGE-SECRET-KEY-190CQVWUPCWHXR6RUCTJCG2VVDCJQZHXH6R2H2SZ90UM3S9433QFSRU8HAX";
/// The public key of [`SECRET_KEY`].
const PUBLIC_KEY: &str = "age1zdkzp7vjg5p6zw3amt3wv8p6nmvvm2e9npuxxkt4knz3htnxg4zqyt46h8";
/// A secret key that belongs to another public key.
const OTHER_SECRET_KEY: &str = "AGE-SECRET-KEY-14EZG4JRVF68YMMRY2U5HPRH5RPE6U7WXMLUYALMNXCYCJJRLPRJS2WX5PN";

/// Paths whose response must be the same before the backup and after the restore.
const COMPARED_PATHS: [&str; 5] =
    ["/v1/releases", "/v1/clustertemplates", "/v1/clusters/detail", "/v1/clusters/prod/nodegroups", "/v1/audit?limit=1000"];

/// The host name at which the hosts of the drill reach the controller. The drill is a test that deletes the data of a
/// controller and restores it from a backup.
const CONTROLLER_NAME: &str = "controllers.stemma.test";
/// Number of hosts in the drill: the test of a restore, after which all hosts must follow the controller again.
const HOST_COUNT: usize = 20;

/// The manifest of the drill (the test of a restore). Its hosts have two tasks: a file that reads a label, and a
/// command without a guard.
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

/// Runs `stemma-controller`. Returns whether it succeeded, and both outputs.
fn run_controller(arguments: &[&str]) -> Result<(bool, String)> {
    let output = run("stemma-controller", arguments)?;
    Ok((output.status.success(), String::from_utf8([output.stdout, output.stderr].concat())?))
}

/// Runs `stemma-controller`, which must succeed. Returns both outputs.
fn succeed(arguments: &[&str]) -> Result<String> {
    let (is_success, output) = run_controller(arguments)?;
    ensure!(is_success, "{arguments:?}: {output}");
    Ok(output)
}

/// Checks that `stemma-controller` fails with these arguments, and that its output contains all these texts.
fn check_refused(arguments: &[&str], texts: &[&str]) -> Result<()> {
    let (is_success, output) = run_controller(arguments)?;
    let has_all_texts = texts.iter().all(|text| output.contains(text));
    ensure!(!is_success && has_all_texts, "{arguments:?}: {output}\nnot: {texts:?}");
    Ok(())
}

fn path_text(path: &Path) -> Result<&str> {
    path.to_str().context("a temporary directory's name is text")
}

/// Returns the JSON response of a GET with the rights of the first admin.
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

/// Writes a file with a secret key, in the format of age-keygen. Only the owner may read the file.
fn write_key_file(path: &Path, secret: &str) -> Result<()> {
    std::fs::write(path, format!("# created: 2026-11-27T08:00:00Z\n{secret}\n"))?;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?)
}

/// Copies a file and flips one bit of the byte at `index` in the copy.
fn flip_bit(source: &Path, index: usize, target: &Path) -> Result<()> {
    let mut bytes = std::fs::read(source)?;
    bytes[index] ^= 0x10;
    Ok(std::fs::write(target, bytes)?)
}

#[test]
fn x02_backup_of_running_controller_is_complete() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let data = fleet.data();
    let path = |name: &str| fleet.dir().join(name);
    let [busy_file, quiet_file, truncated_file, changed_file, busy_dir, restored_dir] =
        ["busy", "quiet", "cut", "other", "made", "restored"].map(path);
    let back_up = |file: &Path| -> Result<()> {
        let output = succeed(&["backup", path_text(file)?, "--data-dir", path_text(&data)?, "--unencrypted"])?;
        ensure!(output.contains("checked\nIT IS NOT ENCRYPTED: it contains the keys of the fleet"), "{output}");
        ensure!(std::fs::metadata(file)?.permissions().mode() & 0o777 == 0o600, "only the owner can read the backup");
        Ok(())
    };
    let write_commands = (0..10).map(|nth| fleet.spawn_cli(&["label", "nodegroup", "prod/frontends", &format!("tier=t{nth}")]));
    let write_commands = write_commands.collect::<Result<Vec<_>>>()?;
    back_up(&busy_file)?;
    for command in write_commands {
        let (is_success, log) = command.wait_with_log()?;
        ensure!(is_success, "{log}");
    }
    let responses_before =
        COMPARED_PATHS.map(|path| fleet.stemma(&["get", "--raw", path])).into_iter().collect::<Result<Vec<_>>>()?;
    let revision = metric(&fleet, "stemma_store_revision")?;
    back_up(&quiet_file)?;
    let repeated_backup = ["backup", path_text(&quiet_file)?, "--data-dir", path_text(&data)?, "--unencrypted"];
    check_refused(&repeated_backup, &["already exists", "nothing was written"])?;
    ensure!(metric(&fleet, "stemma_backup_age_seconds")? < 600, "the backup is recent");
    let fleet_state = read_json(&fleet, "/v1/fleet")?;
    let file_size = std::fs::metadata(&quiet_file)?.len();
    ensure!(fleet_state["backup"]["revision"] == revision && fleet_state["backup"]["bytes"] == file_size, "{fleet_state}");
    ensure!(fleet_state["backup"]["encrypted"] == false && fleet_state["waits"] == false, "{fleet_state}");

    let backup_bytes = std::fs::read(&quiet_file)?;
    std::fs::write(&truncated_file, &backup_bytes[..backup_bytes.len() / 2])?;
    check_refused(
        &["restore", path_text(&truncated_file)?, "--data-dir", path_text(&busy_dir)?],
        &["it was truncated", "nothing was changed"],
    )?;
    flip_bit(&quiet_file, backup_bytes.len() / 2, &changed_file)?;
    check_refused(&["restore", path_text(&changed_file)?, "--data-dir", path_text(&busy_dir)?], &["nothing was changed"])?;
    ensure!(!busy_dir.exists(), "a refused restore creates no directory");
    let restore_over_fleet = ["restore", path_text(&quiet_file)?, "--data-dir", path_text(&data)?];
    check_refused(&restore_over_fleet, &["the directory contains a fleet", "nothing was changed"])?;
    succeed(&["restore", path_text(&busy_file)?, "--data-dir", path_text(&busy_dir)?])?;

    fleet.kill_controller()?;
    let output = succeed(&["restore", path_text(&quiet_file)?, "--data-dir", path_text(&restored_dir)?])?;
    ensure!(output.contains(&format!("at revision {revision}")), "{output}");
    ensure!(output.contains(&format!("stemma-controller resume-fleet --data-dir {}", path_text(&restored_dir)?)), "{output}");
    fleet.start_controller_in(restored_dir, "127.0.0.1")?;
    for (path, response_before) in COMPARED_PATHS.iter().zip(&responses_before) {
        let response = fleet.stemma(&["get", "--raw", path])?;
        ensure!(response == *response_before, "{path}:\n{response}\nbefore:\n{response_before}");
    }
    let fleet_state = read_json(&fleet, "/v1/fleet")?;
    let reason = format!("restored from a backup of revision {revision}");
    ensure!(fleet_state["waits"] == true && fleet_state["reason"] == reason, "{fleet_state}");
    ensure!(
        fleet_state["revision"].as_u64() > Some(revision + 999_999),
        "the revision is above all that clients have read: {fleet_state}"
    );
    fleet.stemma(&["label", "nodegroup", "prod/frontends", "tier=after"])?;

    // A backup of a stopped controller is recorded when the controller starts.
    fleet.stop_controller()?;
    let stopped_file = fleet.dir().join("stopped");
    succeed(&["backup", path_text(&stopped_file)?, "--data-dir", path_text(&fleet.data())?, "--unencrypted"])?;
    fleet.start_controller()?;
    ensure!(metric(&fleet, "stemma_backup_age_seconds")? < 600, "the backup of a stopped controller is recorded too");
    Ok(())
}

#[test]
fn x02_backup_is_encrypted_to_recipients_or_warns() -> Result<()> {
    let fleet = TempFleet::start_with_config(&format!("backup_recipients = [\"{PUBLIC_KEY}\"]\n"))?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let (data, configuration) = (fleet.data(), fleet.dir().join("controller.toml"));
    let (data, configuration) = (path_text(&data)?, path_text(&configuration)?);
    let path = |name: &str| fleet.dir().join(name);
    let [backup_file, changed_file, key_file, other_key_file] = ["fleet.backup", "changed", "own.key", "others.key"].map(path);
    let backup_path = path_text(&backup_file)?;
    // Without recipients and without `--unencrypted`, the error proposes both commands and nothing is written.
    let encrypted_command = format!("stemma-controller backup {backup_path} --config /etc/stemma/controller.toml");
    let unencrypted_command = format!("stemma-controller backup {backup_path} --data-dir {data} --unencrypted");
    check_refused(
        &["backup", backup_path, "--data-dir", data],
        &[&encrypted_command, &unencrypted_command, "nothing was written"],
    )?;
    ensure!(!backup_file.exists(), "nothing was written");
    check_refused(
        &["backup", "-", "--config", configuration, "--data-dir", data],
        &["a backup cannot go to standard output", "nothing was written"],
    )?;

    let output = succeed(&["backup", backup_path, "--config", configuration, "--data-dir", data])?;
    ensure!(output.contains("encrypted to backup_recipients (1)") && !output.contains("NOT ENCRYPTED"), "{output}");
    let bytes = std::fs::read(&backup_file)?;
    ensure!(bytes.starts_with(b"age-encryption.org/v1\n-> X25519 "), "the file has the format of age");
    let file_contains = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
    ensure!(!file_contains(b"PRIVATE KEY") && !file_contains(b"stemma-backup"), "no content of the backup is readable");
    let fleet_state = read_json(&fleet, "/v1/fleet")?;
    ensure!(fleet_state["backup"]["encrypted"] == true, "{fleet_state}");

    write_key_file(&key_file, SECRET_KEY)?;
    write_key_file(&other_key_file, OTHER_SECRET_KEY)?;
    let new_dir = path("new");
    let new_dir = path_text(&new_dir)?;
    let check_restore_refused = |backup_file: &Path, key: Option<&Path>, texts: &[&str]| -> Result<()> {
        let key = key.map(path_text).transpose()?;
        let key_arguments = key.into_iter().flat_map(|key| ["--identity", key]);
        let arguments = ["restore", path_text(backup_file)?, "--data-dir", new_dir].into_iter().chain(key_arguments);
        check_refused(&arguments.collect::<Vec<_>>(), texts)
    };
    let command = format!("stemma-controller restore {backup_path} --data-dir {new_dir} --identity KEYFILE");
    check_restore_refused(&backup_file, None, &["is encrypted", &command, "nothing was changed"])?;
    check_restore_refused(
        &backup_file,
        Some(&other_key_file),
        &["not encrypted to any of the given identities", "nothing was changed"],
    )?;
    flip_bit(&backup_file, bytes.len() / 2, &changed_file)?;
    check_restore_refused(&changed_file, Some(&key_file), &["it was truncated or changed", "nothing was changed"])?;
    let readable_key_file = path("open.key");
    std::fs::write(&readable_key_file, SECRET_KEY)?;
    std::fs::set_permissions(&readable_key_file, std::fs::Permissions::from_mode(0o644))?;
    check_restore_refused(&backup_file, Some(&readable_key_file), &["others may read it", "chmod 0600"])?;
    ensure!(!Path::new(new_dir).exists(), "a refused restore creates no directory");
    succeed(&["restore", backup_path, "--data-dir", new_dir, "--identity", path_text(&key_file)?])?;

    // Debian's age can decrypt the file, and a file that age encrypted can be restored.
    if is_available("age", &["--version"]) {
        let [plain_file, age_file, plain_dir, age_dir] = ["plain", "again", "from-plain", "from-again"].map(path);
        let unused_dir = path("none");
        let age = |arguments: &[&str]| -> Result<()> {
            let output = Command::new("age").args(arguments).output()?;
            ensure!(output.status.success(), "age {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            Ok(())
        };
        age(&["-d", "-i", path_text(&key_file)?, "-o", path_text(&plain_file)?, backup_path])?;
        succeed(&["restore", path_text(&plain_file)?, "--data-dir", path_text(&plain_dir)?])?;
        let arguments_with_key =
            ["restore", path_text(&plain_file)?, "--data-dir", path_text(&unused_dir)?, "--identity", path_text(&key_file)?];
        check_refused(&arguments_with_key, &["is not encrypted: omit --identity", "nothing was changed"])?;
        let armored_file = path("armored");
        age(&["-a", "-r", PUBLIC_KEY, "-o", path_text(&armored_file)?, path_text(&plain_file)?])?;
        let armored_arguments =
            ["restore", path_text(&armored_file)?, "--data-dir", path_text(&unused_dir)?, "--identity", path_text(&key_file)?];
        check_refused(&armored_arguments, &["is an armored age file", "age -d -i KEYFILE", "nothing was changed"])?;
        age(&["-r", PUBLIC_KEY, "-o", path_text(&age_file)?, path_text(&plain_file)?])?;
        succeed(&["restore", path_text(&age_file)?, "--data-dir", path_text(&age_dir)?, "--identity", path_text(&key_file)?])?;
    }
    Ok(())
}

/// Returns the paths of the files and subdirectories of a directory. Omits names that do not begin with this prefix.
fn files_with_prefix(directory: &Path, prefix: &str) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)?.collect::<std::io::Result<Vec<_>>>()?;
    let has_prefix = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()));
    Ok(entries.iter().map(std::fs::DirEntry::path).filter(has_prefix).collect())
}

/// Initializes a fleet in the directory `data`, and writes an unencrypted backup to `file`. No controller runs.
fn create_backup(data: &Path, file: &Path) -> Result<()> {
    succeed(&["init", "--data-dir", path_text(data)?])?;
    succeed(&["backup", path_text(file)?, "--data-dir", path_text(data)?, "--unencrypted"]).map(drop)
}

#[test]
fn x02_next_run_removes_files_of_killed_backup_or_restore() -> Result<()> {
    let fleet = TempFleet::start()?;
    let path = |name: &str| fleet.dir().join(name);
    let [other_data, first_backup, waiting_backup, second_backup, third_backup, new_dir] =
        ["other", "first", "waiting", "second", "third", "new"].map(path);
    create_backup(&other_data, &first_backup)?;
    let back_up = |file: &Path| succeed(&["backup", path_text(file)?, "--data-dir", path_text(&other_data)?, "--unencrypted"]);
    // The backup waits, because the controller does not respond.
    fleet.pause_controller()?;
    let data = fleet.data();
    let arguments = ["backup", path_text(&waiting_backup)?, "--data-dir", path_text(&data)?, "--unencrypted"];
    let waiting_process = RunningProgram::start("stemma-controller", arguments)?;
    let find_unfinished_file = || files_with_prefix(fleet.dir(), ".stemma-backup-")?.pop().context("no file is there");
    let unfinished_file = eventually("the unfinished file of the waiting backup", find_unfinished_file)?;
    let output = back_up(&second_backup)?;
    ensure!(unfinished_file.exists() && !output.contains("was removed"), "the waiting backup still uses the file: {output}");
    waiting_process.kill()?;
    ensure!(unfinished_file.exists(), "a killed backup removes no files");
    let output = back_up(&third_backup)?;
    let expected = format!("{} was removed: a killed backup had left it behind", unfinished_file.display());
    ensure!(output.contains(&expected) && !unfinished_file.exists(), "{output}");
    fleet.resume_controller()?;

    let unfinished_dir = new_dir.join(".restoring-killed");
    std::fs::create_dir_all(unfinished_dir.join("trust"))?;
    std::fs::write(unfinished_dir.join("trust/root.key"), "a key")?;
    let output = succeed(&["restore", path_text(&third_backup)?, "--data-dir", path_text(&new_dir)?])?;
    let expected = format!("{} was removed: a killed restore had left it behind", unfinished_dir.display());
    ensure!(output.contains(&expected), "{output}");
    ensure!(files_with_prefix(&new_dir, ".restoring-")?.is_empty(), "the unfinished restore is removed");
    Ok(())
}

#[test]
fn x02_restore_is_refused_when_another_uses_directory() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name);
    let [first_data, second_data, first_backup, second_backup, locked_dir] =
        ["one", "other", "of-one", "of-other", "held"].map(path);
    create_backup(&first_data, &first_backup)?;
    create_backup(&second_data, &second_backup)?;

    std::fs::create_dir(&locked_dir)?;
    let lock = std::fs::File::open(&locked_dir)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    let texts = ["is using this directory", "nothing was changed"];
    check_refused(&["restore", path_text(&first_backup)?, "--data-dir", path_text(&locked_dir)?], &texts)?;
    check_refused(&["init", "--data-dir", path_text(&locked_dir)?], &texts)?;
    ensure!(std::fs::read_dir(&locked_dir)?.next().is_none(), "a refused command creates no files");
    drop(lock);

    for nth in 0..8 {
        let target_dir = path(&format!("to-{nth}"));
        let start_restore = |file: &Path| -> Result<RunningProgram> {
            RunningProgram::start("stemma-controller", ["restore", path_text(file)?, "--data-dir", path_text(&target_dir)?])
        };
        let (first_restore, second_restore) = (start_restore(&first_backup)?, start_restore(&second_backup)?);
        let ((is_first_restored, first_log), (is_second_restored, second_log)) =
            (first_restore.wait_with_log()?, second_restore.wait_with_log()?);
        ensure!(is_first_restored != is_second_restored, "exactly one restore must succeed: {first_log}\n{second_log}");
        let (source_data, refused_log) = if is_first_restored { (&first_data, &second_log) } else { (&second_data, &first_log) };
        let has_reason =
            refused_log.contains("is using this directory") || refused_log.contains("the directory contains a fleet");
        ensure!(has_reason && refused_log.contains("nothing was changed"), "{refused_log}");
        for name in ["ca.pem", "trust/root.key", "trust/signers.key", "admin/admin.key"] {
            ensure!(
                std::fs::read(target_dir.join(name))? == std::fs::read(source_data.join(name))?,
                "{name} is not from the restored fleet"
            );
        }
        ensure!(files_with_prefix(&target_dir, ".restoring-")?.is_empty(), "no unfinished restore remains");
    }
    Ok(())
}

#[test]
fn x02_restore_names_remedy_for_pipe_or_full_disk() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name);
    let [data_dir, backup_file, pipe, new_dir] = ["one", "file", "pipe", "new"].map(path);
    create_backup(&data_dir, &backup_file)?;
    let new_path = path_text(&new_dir)?;
    let status = Command::new("mkfifo").arg(&pipe).status()?;
    ensure!(status.success(), "mkfifo: {status}");
    let remedy = format!("write it to a file first (cat {} > FILE)", pipe.display());
    let check_restore_refused = |from: &str, texts: &[&str]| check_refused(&["restore", from, "--data-dir", new_path], texts);
    check_restore_refused(path_text(&pipe)?, &["is a pipe or a device", &remedy, "nothing was changed"])?;
    check_restore_refused("-", &["cannot be read from standard input", "cat > FILE", "nothing was changed"])?;
    check_restore_refused(path_text(dir.path())?, &["is a directory", "nothing was changed"])?;
    ensure!(!new_dir.exists(), "a refused restore creates no directory");

    // A file size limit is reported in the same way as a full disk.
    std::fs::create_dir(&new_dir)?;
    let shell_command = ["sh", "-c", "trap '' XFSZ; ulimit -f 16; exec \"$@\"", "sh"].map(OsString::from);
    let arguments = ["restore", path_text(&backup_file)?, "--data-dir", new_path];
    let (is_success, output) = RunningProgram::start_under(&shell_command, "stemma-controller", arguments)?.wait_with_log()?;
    let error_start =
        format!("{new_path}: the fleet of {} could not be created there, and nothing was changed", backup_file.display());
    // The error 27 is EFBIG: the file is too large.
    let has_all_texts =
        [&*error_start, "free space", "run restore again", "os error 27"].iter().all(|text| output.contains(text));
    ensure!(!is_success && has_all_texts, "{output}");
    ensure!(std::fs::read_dir(&new_dir)?.next().is_none(), "a failed restore removes its files");
    succeed(&["restore", path_text(&backup_file)?, "--data-dir", new_path]).map(drop)
}

/// Previously, both commands failed if they could not write to standard output, although the backup or the restored
/// fleet was complete.
#[test]
fn x02_backup_and_restore_succeed_when_output_is_full() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name);
    let [data_dir, first_backup, second_backup, new_dir] = ["one", "first", "second", "new"].map(path);
    create_backup(&data_dir, &first_backup)?;
    let full_output_command = ["sh", "-c", "exec \"$@\" > /dev/full", "sh"].map(OsString::from);
    let check_success = |arguments: &[&str]| -> Result<()> {
        let (is_success, log) =
            RunningProgram::start_under(&full_output_command, "stemma-controller", arguments)?.wait_with_log()?;
        ensure!(is_success, "{arguments:?}: {log}");
        Ok(())
    };
    check_success(&["backup", path_text(&second_backup)?, "--data-dir", path_text(&data_dir)?, "--unencrypted"])?;
    check_success(&["restore", path_text(&second_backup)?, "--data-dir", path_text(&new_dir)?])?;
    ensure!(std::fs::read(data_dir.join("ca.pem"))? == std::fs::read(new_dir.join("ca.pem"))?, "the fleet is restored");

    // A backup is refused if the name of its target ends with a slash, or if the target exists.
    let directory = format!("{}/", path_text(&path("third"))?);
    let directory_as_target = ["backup", &directory, "--data-dir", path_text(&data_dir)?, "--unencrypted"];
    check_refused(&directory_as_target, &["this is the name of a directory", "nothing was written"])?;
    let repeated_backup = ["backup", path_text(&second_backup)?, "--data-dir", path_text(&data_dir)?, "--unencrypted"];
    check_refused(&repeated_backup, &["already exists", "give another name"])
}

/// Returns the names of the nodes in this state whose agents are connected.
fn connected_hosts_in_state(fleet: &TempFleet, state: &str) -> Result<BTreeSet<String>> {
    let list = read_json(fleet, "/v1/nodes/detail")?;
    let nodes = list["nodes"].as_array().with_context(|| format!("a list: {list}"))?;
    let is_in_state = |node: &&Value| node["state"] == state && node["connected"] == true;
    Ok(nodes.iter().filter(is_in_state).map(|node| node["name"].as_str().unwrap_or_default().to_owned()).collect())
}

/// Waits until all hosts are connected and in this state, and their files contain this tier.
fn wait_for_all_hosts(fleet: &TempFleet, agents: &[TestAgent], state: &str, tier: &str) -> Result<()> {
    eventually(&format!("all hosts are {state}"), || {
        let names = connected_hosts_in_state(fleet, state)?;
        ensure!(names.len() == HOST_COUNT, "{names:?}\n{}", fleet.log());
        Ok(())
    })?;
    let check_file = |agent: &TestAgent| check_file_contains(&agent.path("etc/drill.conf"), &format!("tier {tier}\n"));
    agents.iter().try_for_each(|agent| eventually("the file of a host", || check_file(agent)))
}

/// Returns the command line that starts a program in a mount namespace in which `/etc/hosts` is the given file. The
/// file contains the address of the controller.
fn hosts_file_command(hosts_file: &Path) -> Result<Vec<OsString>> {
    let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    Ok(["unshare", "--mount", "sh", "-c", script, path_text(hosts_file)?].map(OsString::from).into())
}

#[test]
fn x02_f31_f32_twenty_hosts_return_to_restored_fleet() -> Result<()> {
    if !is_available("unshare", &["--mount", "true"]) {
        return Ok(());
    }
    let mut fleet = TempFleet::start_with_name(CONTROLLER_NAME, &format!("backup_recipients = [\"{PUBLIC_KEY}\"]\n"))?;
    let path = |name: &str| fleet.dir().join(name);
    let [manifest, hosts_file, backup_file, key_file, new_dir] =
        ["drill.yaml", "hosts", "fleet.backup", "own.key", "new-machine"].map(path);
    let configuration = path("controller.toml");
    std::fs::write(&manifest, DRILL_MANIFEST)?;
    std::fs::write(&hosts_file, format!("127.0.0.1 localhost {CONTROLLER_NAME}\n"))?;
    write_key_file(&key_file, SECRET_KEY)?;
    fleet.stemma(&["apply", "-f", path_text(&manifest)?])?;
    fleet.set_agent_host_name(CONTROLLER_NAME);
    fleet.set_host_wrapper(hosts_file_command(&hosts_file)?);
    let agents = (1..=HOST_COUNT).map(|number| fleet.join(&format!("host-{number}"), "c/g")).collect::<Result<Vec<_>>>()?;
    wait_for_all_hosts(&fleet, &agents, "converged", "gold")?;
    succeed(&[
        "backup",
        path_text(&backup_file)?,
        "--config",
        path_text(&configuration)?,
        "--data-dir",
        path_text(&fleet.data())?,
    ])?;

    // Each host gets a change that is newer than the backup. Then the machine of the controller and its disk are lost.
    fleet.stemma(&["label", "nodegroup", "c/g", "tier=silver", "--yes"])?;
    wait_for_all_hosts(&fleet, &agents, "converged", "silver")?;
    let _late_host = fleet.join("joined-late", "c/g")?;
    let epoch_before = read_json(&fleet, "/v1/fleet")?["epoch"].clone();
    fleet.kill_controller()?;
    std::fs::remove_dir_all(fleet.data())?;

    // Another machine with another address takes over the name.
    succeed(&["restore", path_text(&backup_file)?, "--data-dir", path_text(&new_dir)?, "--identity", path_text(&key_file)?])?;
    std::fs::write(&hosts_file, format!("127.0.0.1 localhost\n127.0.0.2 {CONTROLLER_NAME}\n"))?;
    fleet.start_controller_in(new_dir, "127.0.0.2")?;
    eventually("all hosts are found to be ahead", || {
        let fleet_state = read_json(&fleet, "/v1/fleet")?;
        ensure!(fleet_state["waits"] == true && fleet_state["ahead"]["nodes"] == HOST_COUNT, "{fleet_state}");
        Ok(())
    })?;
    eventually("each host reports that it follows no controller", || {
        let failed_hosts = connected_hosts_in_state(&fleet, "failed")?;
        ensure!(failed_hosts.len() == HOST_COUNT, "{failed_hosts:?}");
        Ok(())
    })?;
    ensure!(metric(&fleet, "stemma_nodes_ahead")? == HOST_COUNT as u64, "the metric counts the same hosts");
    ensure!(metric(&fleet, "stemma_desired_sent_total")? == 0, "nothing is sent before an admin resumes the fleet");
    for agent in &agents {
        check_file_contains(&agent.path("etc/drill.conf"), "tier silver\n")?;
    }
    let line_end = "; nothing is sent to the host until an admin runs: stemma-controller resume-fleet";
    for [kind, name] in [["label", "tier"], ["task", "conf"]] {
        let output = fleet.stemma(&["explain", "node", "host-1", kind, name])?;
        let line = output.lines().find(|line| line.ends_with(line_end)).with_context(|| output.clone())?;
        ensure!(line.contains(" of another store (epoch ") && line.contains("restored from a backup"), "{line}");
        ensure!(!output.contains("has not confirmed"), "{output}");
    }
    eventually("the log names the revisions of hosts and store, and the remedy", || {
        let log = fleet.log();
        let line = log.lines().find(|line| line.contains("until an admin runs: stemma-controller resume-fleet"));
        let line = line.with_context(|| log.clone())?;
        let fields = ["host_epoch=", "host_revision=", " epoch=", " revision="];
        ensure!(fields.iter().all(|field| line.contains(field)), "{line}");
        Ok(())
    })?;

    let output = succeed(&["resume-fleet", "--data-dir", path_text(&fleet.data())?, "--yes", "--reason", "a drill"])?;
    let expected = format!(
        "the store was restored from a backup, and nothing is sent to any host yet; {HOST_COUNT} of {HOST_COUNT} hosts have checked in so far"
    );
    ensure!(output.contains(&expected), "{output}");
    wait_for_all_hosts(&fleet, &agents, "converged", "gold")?;
    let fleet_state = read_json(&fleet, "/v1/fleet")?;
    let none_ahead = json!({"nodes": 0, "highest": null, "unknown_epochs": 0});
    ensure!(fleet_state["waits"] == false && fleet_state["ahead"] == none_ahead, "{fleet_state}");
    let audit = read_json(&fleet, "/v1/audit?limit=1000")?;
    let resumed_entry = audit["audit"].as_array().into_iter().flatten().find(|entry| entry["reason"] == "a drill");
    let action = json!({"kind": "fleet.resumed", "epoch_before": epoch_before, "epoch_after": fleet_state["epoch"]});
    ensure!(resumed_entry.is_some_and(|entry| entry["action"] == action), "{resumed_entry:?}, not {action}");
    let output = fleet.stemma(&["audit", "--limit", "1000"])?;
    ensure!(output.contains("resumed the fleet: from epoch "), "{output}");
    for agent in &agents {
        let command_log = std::fs::read_to_string(agent.path("var/log/once.log"))?;
        ensure!(command_log == "ran\n", "the command does not run again: {command_log}");
    }
    // The controller counts the host that joined after the backup, but does not accept the host.
    eventually("the unknown host is counted", || {
        let fleet_state = read_json(&fleet, "/v1/fleet")?;
        ensure!(fleet_state["unknown_hosts"] == 1, "{fleet_state}");
        Ok(())
    })?;
    ensure!(metric(&fleet, "stemma_hosts_unknown")? == 1, "the metric counts the same host");
    let log = fleet.log();
    ensure!(log.contains("run stemma-agent leave on it, and join it again with a new token"), "{log}");
    // The other hosts get changes again.
    fleet.stemma(&["label", "nodegroup", "c/g", "tier=bronze", "--yes"])?;
    wait_for_all_hosts(&fleet, &agents, "converged", "bronze")
}

/// Restores one backup twice, so the second store has no record of the first store. A host that was offline follows the
/// second store, because an admin resumed the fleet there. When the machine of the first store runs again, the host
/// does not follow the first store.
#[test]
fn x02_host_follows_latest_resumed_store_when_earlier_store_returns() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    let path = |name: &str| fleet.dir().join(name);
    let [manifest, backup_file, first_dir, second_dir] = ["drill.yaml", "fleet.backup", "first", "second"].map(path);
    std::fs::write(&manifest, DRILL_MANIFEST)?;
    fleet.stemma(&["apply", "-f", path_text(&manifest)?])?;
    let mut agent = fleet.join("host-1", "c/g")?;
    let wait_for_tier = |agent: &TestAgent, tier: &str| {
        let check_file = || check_file_contains(&agent.path("etc/drill.conf"), &format!("tier {tier}\n"));
        eventually("the file of the host", check_file)
    };
    wait_for_tier(&agent, "gold")?;
    succeed(&["backup", path_text(&backup_file)?, "--data-dir", path_text(&fleet.data())?, "--unencrypted"])?;
    fleet.kill_controller()?;

    succeed(&["restore", path_text(&backup_file)?, "--data-dir", path_text(&first_dir)?])?;
    fleet.start_controller_in(first_dir.clone(), "127.0.0.1")?;
    succeed(&["resume-fleet", "--data-dir", path_text(&first_dir)?, "--yes"])?;
    fleet.stemma(&["label", "nodegroup", "c/g", "tier=of-first", "--yes"])?;
    wait_for_tier(&agent, "of-first")?;
    agent.kill()?;
    fleet.kill_controller()?;

    succeed(&["restore", path_text(&backup_file)?, "--data-dir", path_text(&second_dir)?])?;
    fleet.start_controller_in(second_dir.clone(), "127.0.0.1")?;
    succeed(&["resume-fleet", "--data-dir", path_text(&second_dir)?, "--yes"])?;
    fleet.stemma(&["label", "nodegroup", "c/g", "tier=of-second", "--yes"])?;
    agent.start()?;
    wait_for_tier(&agent, "of-second")?;
    fleet.kill_controller()?;

    fleet.start_controller_in(first_dir, "127.0.0.1")?;
    let epoch_before = read_json(&fleet, "/v1/fleet")?["epoch"].clone();
    eventually("the host is found to follow another store", || {
        let fleet_state = read_json(&fleet, "/v1/fleet")?;
        let (ahead, unknown_epochs) = (&fleet_state["ahead"]["nodes"], &fleet_state["ahead"]["unknown_epochs"]);
        ensure!(*ahead == 1 && *unknown_epochs == 1, "{fleet_state}\n{}", agent.log());
        Ok(())
    })?;
    let output = fleet.stemma(&["explain", "node", "host-1", "label", "tier"])?;
    ensure!(output.contains("that store was restored later, or is in use in addition to this one"), "{output}");
    ensure!(metric(&fleet, "stemma_desired_sent_total")? == 0, "nothing is sent to the host");
    check_file_contains(&agent.path("etc/drill.conf"), "tier of-second\n")?;
    // Only an admin can make the host follow the first store, by resuming the fleet there again.
    let output = succeed(&["resume-fleet", "--data-dir", path_text(&fleet.data())?, "--yes", "--reason", "the second is gone"])?;
    ensure!(output.contains("hosts hold revisions of another copy of the store"), "{output}");
    wait_for_tier(&agent, "of-first")?;
    ensure!(read_json(&fleet, "/v1/fleet")?["epoch"] != epoch_before, "the second resumption begins a new epoch");
    Ok(())
}
