//! One file with all of a fleet: made of a running controller, encrypted, refused where a bit of it is another, and restored elsewhere (F31,
//! F32): on a new directory and another address, from where the hosts are led on without a hand on any of them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::{Running, eventually, file_contains, run};
use stemma_tests::site::SITE;
use stemma_tests::tool::is_there;

/// A key pair of age, and the secret of another.
const SECRET: &str = "AGE-SECRET-KEY-190CQVWUPCWHXR6RUCTJCG2VVDCJQZHXH6R2H2SZ90UM3S9433QFSRU8HAX";
const PUBLIC: &str = "age1zdkzp7vjg5p6zw3amt3wv8p6nmvvm2e9npuxxkt4knz3htnxg4zqyt46h8";
const OTHER: &str = "AGE-SECRET-KEY-14EZG4JRVF68YMMRY2U5HPRH5RPE6U7WXMLUYALMNXCYCJJRLPRJS2WX5PN";

/// What a restored fleet has to answer as the one did that was backed up.
const KEPT: [&str; 5] = [
    "/v1/releases",
    "/v1/clustertemplates",
    "/v1/clusters/detail",
    "/v1/clusters/prod/nodegroups",
    "/v1/audit?limit=1000",
];

/// The name by which the hosts of the drill reach their controller.
const NAME: &str = "controllers.stemma.test";
/// How many there are.
const HOSTS: usize = 20;

/// What they are to be: a file of a label, and a command without a guard.
const DRILL: &str = r#"
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

/// Runs the controller's program: whether it ended well, and all that it said.
fn controller(arguments: &[&str]) -> Result<(bool, String)> {
    let output = run("stemma-controller", arguments)?;
    Ok((output.status.success(), String::from_utf8([output.stdout, output.stderr].concat())?))
}

/// The same where it has to end well.
fn done(arguments: &[&str]) -> Result<String> {
    let (is_done, said) = controller(arguments)?;
    ensure!(is_done, "{arguments:?}: {said}");
    Ok(said)
}

/// The same where it has to refuse, and to say all of this.
fn refused(arguments: &[&str], sentences: &[&str]) -> Result<()> {
    let (is_done, said) = controller(arguments)?;
    let says_all = sentences.iter().all(|sentence| said.contains(sentence));
    ensure!(!is_done && says_all, "{arguments:?}: {said}\nnot: {sentences:?}");
    Ok(())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a temporary directory's name is text")
}

fn read(fleet: &Fleet, path: &str) -> Result<Value> {
    Ok(serde_json::from_str(&fleet.stemma(&["get", "--raw", path])?)?)
}

/// A metric without labels.
fn metric(fleet: &Fleet, name: &str) -> Result<u64> {
    let text = fleet.stemma(&["get", "--raw", "/metrics"])?;
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|value| value.starts_with(' ')));
    let value = line.with_context(|| format!("{name} in\n{text}"))?.rsplit(' ').next().context("a value")?;
    Ok(value.parse()?)
}

/// A file of secret keys, as age-keygen leaves it.
fn keys(path: &Path, secret: &str) -> Result<()> {
    std::fs::write(path, format!("# created: 2026-11-27T08:00:00Z\n{secret}\n"))?;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?)
}

/// A copy of a file of which one bit is another.
fn with_another_bit(of: &Path, at: usize, to: &Path) -> Result<()> {
    let mut bytes = std::fs::read(of)?;
    bytes[at] ^= 0x10;
    Ok(std::fs::write(to, bytes)?)
}

#[test]
fn x02_a_backup_of_a_live_service_holds_all_of_it() -> Result<()> {
    let mut fleet = Fleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let data = fleet.data();
    let path = |name: &str| fleet.dir().join(name);
    let [busy, quiet, cut, other, made, new] = ["busy", "quiet", "cut", "other", "made", "restored"].map(path);
    let back_up = |to: &Path| -> Result<()> {
        let said = done(&["backup", text(to)?, "--data-dir", text(&data)?, "--unencrypted"])?;
        ensure!(said.contains("checked\nIT IS NOT ENCRYPTED, and whoever reads it is the fleet"), "{said}");
        ensure!(std::fs::metadata(to)?.permissions().mode() & 0o777 == 0o600, "others read it");
        Ok(())
    };
    let writes = (0..10).map(|nth| fleet.begin(&["label", "nodegroup", "prod/frontends", &format!("tier=t{nth}")]));
    let writes = writes.collect::<Result<Vec<_>>>()?;
    back_up(&busy)?;
    for write in writes {
        let (is_done, log) = write.ended_with()?;
        ensure!(is_done, "{log}");
    }
    let before = KEPT.map(|path| fleet.stemma(&["get", "--raw", path])).into_iter().collect::<Result<Vec<_>>>()?;
    let revision = metric(&fleet, "stemma_store_revision")?;
    back_up(&quiet)?;
    let again = ["backup", text(&quiet)?, "--data-dir", text(&data)?, "--unencrypted"];
    refused(&again, &["something is there already", "nothing was written"])?;
    ensure!(metric(&fleet, "stemma_backup_age_seconds")? < 600, "it was made now");
    let shown = read(&fleet, "/v1/fleet")?;
    let bytes = std::fs::metadata(&quiet)?.len();
    ensure!(shown["backup"]["revision"] == revision && shown["backup"]["bytes"] == bytes, "{shown}");
    ensure!(shown["backup"]["encrypted"] == false && shown["waits"] == false, "{shown}");

    let whole = std::fs::read(&quiet)?;
    std::fs::write(&cut, &whole[..whole.len() / 2])?;
    refused(&["restore", text(&cut)?, "--data-dir", text(&made)?], &["it was cut", "nothing was changed"])?;
    with_another_bit(&quiet, whole.len() / 2, &other)?;
    refused(&["restore", text(&other)?, "--data-dir", text(&made)?], &["nothing was changed"])?;
    ensure!(!made.exists(), "nothing was made of what was refused");
    let over_it = ["restore", text(&quiet)?, "--data-dir", text(&data)?];
    refused(&over_it, &["there is a fleet here", "nothing was changed"])?;
    done(&["restore", text(&busy)?, "--data-dir", text(&made)?])?;

    fleet.kill_controller()?;
    let said = done(&["restore", text(&quiet)?, "--data-dir", text(&new)?])?;
    ensure!(said.contains(&format!("as of revision {revision}")), "{said}");
    ensure!(said.contains(&format!("stemma-controller resume-fleet --data-dir {}", text(&new)?)), "{said}");
    fleet.start_controller_in(new, "127.0.0.1")?;
    for (path, before) in KEPT.iter().zip(&before) {
        let now = fleet.stemma(&["get", "--raw", path])?;
        ensure!(now == *before, "{path}:\n{now}\nbefore:\n{before}");
    }
    let shown = read(&fleet, "/v1/fleet")?;
    let reason = format!("restored from a backup of revision {revision}");
    ensure!(shown["waits"] == true && shown["reason"] == reason, "{shown}");
    ensure!(shown["revision"].as_u64() > Some(revision + 999_999), "no revision that clients have read: {shown}");
    fleet.stemma(&["label", "nodegroup", "prod/frontends", "tier=after"])?;

    // The same of a controller that is stopped.
    fleet.stop_controller()?;
    let stopped = fleet.dir().join("stopped");
    done(&["backup", text(&stopped)?, "--data-dir", text(&fleet.data())?, "--unencrypted"])?;
    fleet.start_controller()?;
    ensure!(metric(&fleet, "stemma_backup_age_seconds")? < 600, "it is recorded there as well");
    Ok(())
}

#[test]
fn x02_a_backup_is_encrypted_to_its_recipients_and_says_aloud_where_it_is_not() -> Result<()> {
    let fleet = Fleet::start_with(&format!("backup_recipients = [\"{PUBLIC}\"]\n"))?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let (data, configuration) = (fleet.data(), fleet.dir().join("controller.toml"));
    let (data, configuration) = (text(&data)?, text(&configuration)?);
    let path = |name: &str| fleet.dir().join(name);
    let [file, changed, own, others] = ["fleet.backup", "changed", "own.key", "others.key"].map(path);
    let to = text(&file)?;
    // Nobody to encrypt to, and not told to do without: both commands, and nothing else.
    let by_configuration = format!("stemma-controller backup {to} --config /etc/stemma/controller.toml");
    let as_it_is = format!("stemma-controller backup {to} --data-dir {data} --unencrypted");
    refused(&["backup", to, "--data-dir", data], &[&by_configuration, &as_it_is, "nothing was written"])?;
    ensure!(!file.exists(), "nothing was written");
    refused(
        &["backup", "-", "--config", configuration, "--data-dir", data],
        &["a backup is a file", "nothing was written"],
    )?;

    let said = done(&["backup", to, "--config", configuration, "--data-dir", data])?;
    ensure!(said.contains("encrypted to backup_recipients (1)") && !said.contains("NOT ENCRYPTED"), "{said}");
    let bytes = std::fs::read(&file)?;
    ensure!(bytes.starts_with(b"age-encryption.org/v1\n-> X25519 "), "it is a file of age");
    let holds = |words: &[u8]| bytes.windows(words.len()).any(|part| part == words);
    ensure!(!holds(b"PRIVATE KEY") && !holds(b"stemma-backup"), "nothing of it stands there as it is");
    let shown = read(&fleet, "/v1/fleet")?;
    ensure!(shown["backup"]["encrypted"] == true, "{shown}");

    keys(&own, SECRET)?;
    keys(&others, OTHER)?;
    let new = path("new");
    let new = text(&new)?;
    let restore = |file: &Path, key: Option<&Path>, sentences: &[&str]| -> Result<()> {
        let key = key.map(text).transpose()?;
        let by_key = key.into_iter().flat_map(|key| ["--identity", key]);
        let words = ["restore", text(file)?, "--data-dir", new].into_iter().chain(by_key);
        refused(&words.collect::<Vec<_>>(), sentences)
    };
    let command = format!("stemma-controller restore {to} --data-dir {new} --identity KEYFILE");
    restore(&file, None, &["is encrypted", &command, "nothing was changed"])?;
    restore(&file, Some(&others), &["to none of the given identities", "nothing was changed"])?;
    with_another_bit(&file, bytes.len() / 2, &changed)?;
    restore(&changed, Some(&own), &["it was cut or changed", "nothing was changed"])?;
    let open = path("open.key");
    std::fs::write(&open, SECRET)?;
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644))?;
    restore(&file, Some(&open), &["others may read it", "chmod 0600"])?;
    ensure!(!Path::new(new).exists(), "nothing was made of what was refused");
    done(&["restore", to, "--data-dir", new, "--identity", text(&own)?])?;

    // The program of Debian reads it, and what that one wrote is restored.
    if is_there("age", &["--version"]) {
        let [plain, again, from_plain, from_again] = ["plain", "again", "from-plain", "from-again"].map(path);
        let none = path("none");
        let age = |arguments: &[&str]| -> Result<()> {
            let output = Command::new("age").args(arguments).output()?;
            ensure!(output.status.success(), "age {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            Ok(())
        };
        age(&["-d", "-i", text(&own)?, "-o", text(&plain)?, to])?;
        done(&["restore", text(&plain)?, "--data-dir", text(&from_plain)?])?;
        let with_a_key = ["restore", text(&plain)?, "--data-dir", text(&none)?, "--identity", text(&own)?];
        refused(&with_a_key, &["is not encrypted: leave --identity out", "nothing was changed"])?;
        let armored = path("armored");
        age(&["-a", "-r", PUBLIC, "-o", text(&armored)?, text(&plain)?])?;
        let of_armored = ["restore", text(&armored)?, "--data-dir", text(&none)?, "--identity", text(&own)?];
        refused(&of_armored, &["text form of age", "age -d -i KEYFILE", "nothing was changed"])?;
        age(&["-r", PUBLIC, "-o", text(&again)?, text(&plain)?])?;
        done(&["restore", text(&again)?, "--data-dir", text(&from_again)?, "--identity", text(&own)?])?;
    }
    Ok(())
}

/// What is in a directory whose name begins so.
fn begun(directory: &Path, prefix: &str) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)?.collect::<std::io::Result<Vec<_>>>()?;
    let is_one =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()));
    Ok(entries.iter().map(std::fs::DirEntry::path).filter(is_one).collect())
}

/// Makes a fleet that does not run, and a backup of it.
fn backed_up(data: &Path, file: &Path) -> Result<()> {
    done(&["init", "--data-dir", text(data)?])?;
    done(&["backup", text(file)?, "--data-dir", text(data)?, "--unencrypted"]).map(drop)
}

#[test]
fn x02_what_a_killed_backup_or_restore_has_left_is_taken_away_by_the_next() -> Result<()> {
    let fleet = Fleet::start()?;
    let path = |name: &str| fleet.dir().join(name);
    let [other, first, waiting, second, third, new] = ["other", "first", "waiting", "second", "third", "new"].map(path);
    backed_up(&other, &first)?;
    let back_up = |to: &Path| done(&["backup", text(to)?, "--data-dir", text(&other)?, "--unencrypted"]);
    // It waits for a controller that answers nothing.
    fleet.hold_controller()?;
    let data = fleet.data();
    let words = ["backup", text(&waiting)?, "--data-dir", text(&data)?, "--unencrypted"];
    let waits = Running::start("stemma-controller", words)?;
    let begins = || begun(fleet.dir(), ".stemma-backup-")?.pop().context("no file is there");
    let begun_by_it = eventually("the file of a backup that waits", begins)?;
    let said = back_up(&second)?;
    ensure!(begun_by_it.exists() && !said.contains("was taken away"), "it is still at work on it: {said}");
    waits.kill()?;
    ensure!(begun_by_it.exists(), "what is killed takes nothing away");
    let said = back_up(&third)?;
    let sentence = format!("{} was taken away: a backup that was killed had left it", begun_by_it.display());
    ensure!(said.contains(&sentence) && !begun_by_it.exists(), "{said}");
    fleet.let_controller_go_on()?;

    let left = new.join(".restoring-killed");
    std::fs::create_dir_all(left.join("trust"))?;
    std::fs::write(left.join("trust/root.key"), "a key")?;
    let said = done(&["restore", text(&third)?, "--data-dir", text(&new)?])?;
    let sentence = format!("{} was taken away: a restore that was killed had left it", left.display());
    ensure!(said.contains(&sentence), "{said}");
    ensure!(begun(&new, ".restoring-")?.is_empty(), "nothing of it is left");
    Ok(())
}

#[test]
fn x02_of_two_restores_into_one_directory_one_is_refused_before_it_changes_anything() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name);
    let [one, other, of_one, of_other, held] = ["one", "other", "of-one", "of-other", "held"].map(path);
    backed_up(&one, &of_one)?;
    backed_up(&other, &of_other)?;

    std::fs::create_dir(&held)?;
    let at_work = std::fs::File::open(&held)?;
    flock(&at_work, FlockOperation::NonBlockingLockExclusive)?;
    let sentences = ["is at work in this directory", "nothing was changed"];
    refused(&["restore", text(&of_one)?, "--data-dir", text(&held)?], &sentences)?;
    refused(&["init", "--data-dir", text(&held)?], &sentences)?;
    ensure!(std::fs::read_dir(&held)?.next().is_none(), "nothing was made");
    drop(at_work);

    for nth in 0..8 {
        let to = path(&format!("to-{nth}"));
        let begin = |file: &Path| -> Result<Running> {
            Running::start("stemma-controller", ["restore", text(file)?, "--data-dir", text(&to)?])
        };
        let (first, second) = (begin(&of_one)?, begin(&of_other)?);
        let ((first_won, first_said), (second_won, second_said)) = (first.ended_with()?, second.ended_with()?);
        ensure!(first_won != second_won, "one of them: {first_said}\n{second_said}");
        let (of, refusal) = if first_won { (&one, &second_said) } else { (&other, &first_said) };
        let says_why = refusal.contains("is at work in this directory") || refusal.contains("there is a fleet here");
        ensure!(says_why && refusal.contains("nothing was changed"), "{refusal}");
        for name in ["ca.pem", "trust/root.key", "trust/signers.key", "admin/admin.key"] {
            ensure!(std::fs::read(to.join(name))? == std::fs::read(of.join(name))?, "{name} is of the other fleet");
        }
        ensure!(begun(&to, ".restoring-")?.is_empty(), "nothing is left beside it");
    }
    Ok(())
}

#[test]
fn x02_a_restore_of_a_pipe_or_onto_a_full_disk_says_what_to_do() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name);
    let [one, file, pipe, new] = ["one", "file", "pipe", "new"].map(path);
    backed_up(&one, &file)?;
    let new_data = text(&new)?;
    let made = Command::new("mkfifo").arg(&pipe).status()?;
    ensure!(made.success(), "mkfifo: {made}");
    let to_a_file = format!("write it to a file first (cat {} > FILE)", pipe.display());
    let restore = |from: &str, sentences: &[&str]| refused(&["restore", from, "--data-dir", new_data], sentences);
    restore(text(&pipe)?, &["is a pipe or a device", &to_a_file, "nothing was changed"])?;
    restore("-", &["not from standard input", "cat > FILE", "nothing was changed"])?;
    restore(text(dir.path())?, &["is a directory", "nothing was changed"])?;
    ensure!(!new.exists(), "nothing was made");

    // What may not grow is refused like what has no room.
    std::fs::create_dir(&new)?;
    let words = ["sh", "-c", "trap '' XFSZ; ulimit -f 16; exec \"$@\"", "sh"].map(OsString::from);
    let arguments = ["restore", text(&file)?, "--data-dir", new_data];
    let (is_done, said) = Running::start_under(&words, "stemma-controller", arguments)?.ended_with()?;
    let begins =
        format!("{new_data}: the fleet of {} could not be made there, and nothing was changed", file.display());
    let says_all = [&*begins, "make room", "run restore again", "os error 27"].iter().all(|words| said.contains(words));
    ensure!(!is_done && says_all, "{said}");
    ensure!(std::fs::read_dir(&new)?.next().is_none(), "what was begun was taken away");
    done(&["restore", text(&file)?, "--data-dir", new_data]).map(drop)
}

/// They ended with an error of standard output, and nothing said that the file or the fleet is there.
#[test]
fn x02_a_backup_and_a_restore_end_well_where_what_they_say_cannot_be_written() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name);
    let [one, first, second, new] = ["one", "first", "second", "new"].map(path);
    backed_up(&one, &first)?;
    let to_full = ["sh", "-c", "exec \"$@\" > /dev/full", "sh"].map(OsString::from);
    let ends_well = |arguments: &[&str]| -> Result<()> {
        let (is_done, said) = Running::start_under(&to_full, "stemma-controller", arguments)?.ended_with()?;
        ensure!(is_done, "{arguments:?}: {said}");
        Ok(())
    };
    ends_well(&["backup", text(&second)?, "--data-dir", text(&one)?, "--unencrypted"])?;
    ends_well(&["restore", text(&second)?, "--data-dir", text(&new)?])?;
    ensure!(std::fs::read(one.join("ca.pem"))? == std::fs::read(new.join("ca.pem"))?, "the fleet is there");

    let directory = format!("{}/", text(&path("third"))?);
    let to_a_directory = ["backup", &directory, "--data-dir", text(&one)?, "--unencrypted"];
    refused(&to_a_directory, &["this is the name of a directory", "nothing was written"])?;
    let again = ["backup", text(&second)?, "--data-dir", text(&one)?, "--unencrypted"];
    refused(&again, &["something is there already", "give another name"])
}

/// The hosts that stand in this state and are connected, by name.
fn in_state(fleet: &Fleet, state: &str) -> Result<BTreeSet<String>> {
    let all = read(fleet, "/v1/nodes/detail")?;
    let nodes = all["nodes"].as_array().with_context(|| format!("a list: {all}"))?;
    let stands = |node: &&Value| node["state"] == state && node["connected"] == true;
    Ok(nodes.iter().filter(stands).map(|node| node["name"].as_str().unwrap_or_default().to_owned()).collect())
}

/// Waits until all hosts stand in a state and hold this tier.
fn all_hold(fleet: &Fleet, agents: &[Agent], state: &str, tier: &str) -> Result<()> {
    eventually(&format!("all hosts are {state}"), || {
        let found = in_state(fleet, state)?;
        ensure!(found.len() == HOSTS, "{found:?}\n{}", fleet.log());
        Ok(())
    })?;
    let holds = |agent: &Agent| file_contains(&agent.path("etc/drill.conf"), &format!("tier {tier}\n"));
    agents.iter().try_for_each(|agent| eventually("the file of a host", || holds(agent)))
}

/// The words that give a program names of its own: a file in the place of the system's, which says where the controller is.
fn naming(hosts: &Path) -> Result<Vec<OsString>> {
    let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    Ok(["unshare", "--mount", "sh", "-c", script, text(hosts)?].map(OsString::from).into())
}

#[test]
fn x02_f31_f32_the_drill_twenty_hosts_come_back_to_a_restored_fleet_without_a_hand() -> Result<()> {
    if !is_there("unshare", &["--mount", "true"]) {
        return Ok(());
    }
    let mut fleet = Fleet::start_named(NAME, &format!("backup_recipients = [\"{PUBLIC}\"]\n"))?;
    let path = |name: &str| fleet.dir().join(name);
    let [manifest, hosts, file, key, new] = ["drill.yaml", "hosts", "fleet.backup", "own.key", "new-machine"].map(path);
    let configuration = path("controller.toml");
    std::fs::write(&manifest, DRILL)?;
    std::fs::write(&hosts, format!("127.0.0.1 localhost {NAME}\n"))?;
    keys(&key, SECRET)?;
    fleet.stemma(&["apply", "-f", text(&manifest)?])?;
    fleet.reach_agents_by_name(NAME);
    fleet.hosts_under(naming(&hosts)?);
    let agents = (1..=HOSTS).map(|nth| fleet.join(&format!("host-{nth}"), "c/g")).collect::<Result<Vec<_>>>()?;
    all_hold(&fleet, &agents, "converged", "gold")?;
    done(&["backup", text(&file)?, "--config", text(&configuration)?, "--data-dir", text(&fleet.data())?])?;

    // Each host holds what came after the backup when the machine is lost, with its disk.
    fleet.stemma(&["label", "nodegroup", "c/g", "tier=silver", "--yes"])?;
    all_hold(&fleet, &agents, "converged", "silver")?;
    let _late = fleet.join("joined-late", "c/g")?;
    let epoch_before = read(&fleet, "/v1/fleet")?["epoch"].clone();
    fleet.kill_controller()?;
    std::fs::remove_dir_all(fleet.data())?;

    // Another machine with another address, which takes over the name.
    done(&["restore", text(&file)?, "--data-dir", text(&new)?, "--identity", text(&key)?])?;
    std::fs::write(&hosts, format!("127.0.0.1 localhost\n127.0.0.2 {NAME}\n"))?;
    fleet.start_controller_in(new, "127.0.0.2")?;
    eventually("all hosts are found to be ahead", || {
        let shown = read(&fleet, "/v1/fleet")?;
        ensure!(shown["waits"] == true && shown["ahead"]["nodes"] == HOSTS, "{shown}");
        Ok(())
    })?;
    eventually("each says that it is not led", || {
        let failed = in_state(&fleet, "failed")?;
        ensure!(failed.len() == HOSTS, "{failed:?}");
        Ok(())
    })?;
    ensure!(metric(&fleet, "stemma_nodes_ahead")? == HOSTS as u64, "so does the metric");
    ensure!(metric(&fleet, "stemma_desired_sent_total")? == 0, "nothing is sent before somebody says so");
    for agent in &agents {
        file_contains(&agent.path("etc/drill.conf"), "tier silver\n")?;
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

    let said = done(&["resume-fleet", "--data-dir", text(&fleet.data())?, "--yes", "--reason", "a drill"])?;
    let come = format!(
        "the store was restored from a backup, and nothing is sent to any host yet; {HOSTS} of {HOSTS} hosts have come so far"
    );
    ensure!(said.contains(&come), "{said}");
    all_hold(&fleet, &agents, "converged", "gold")?;
    let shown = read(&fleet, "/v1/fleet")?;
    let none_ahead = json!({"nodes": 0, "highest": null, "unknown_epochs": 0});
    ensure!(shown["waits"] == false && shown["ahead"] == none_ahead, "{shown}");
    let audit = read(&fleet, "/v1/audit?limit=1000")?;
    let resumed = audit["audit"].as_array().into_iter().flatten().find(|one| one["reason"] == "a drill");
    let action = json!({"kind": "fleet.resumed", "epoch_before": epoch_before, "epoch_after": shown["epoch"]});
    ensure!(resumed.is_some_and(|entry| entry["action"] == action), "{resumed:?}, not {action}");
    let said = fleet.stemma(&["audit", "--limit", "1000"])?;
    ensure!(said.contains("resumed the fleet: from epoch "), "{said}");
    for agent in &agents {
        let ran = std::fs::read_to_string(agent.path("var/log/once.log"))?;
        ensure!(ran == "ran\n", "what has run does not run again: {ran}");
    }
    // The one that joined after the backup is counted, and not taken in.
    eventually("a host that is unknown is counted", || {
        let shown = read(&fleet, "/v1/fleet")?;
        ensure!(shown["unknown_hosts"] == 1, "{shown}");
        Ok(())
    })?;
    ensure!(metric(&fleet, "stemma_hosts_unknown")? == 1, "so does the metric");
    let log = fleet.log();
    ensure!(log.contains("run stemma-agent leave on it, and join it again with a new token"), "{log}");
    // And the others follow from there on.
    fleet.stemma(&["label", "nodegroup", "c/g", "tier=bronze", "--yes"])?;
    all_hold(&fleet, &agents, "converged", "bronze")
}

/// Two restores of one backup, of which the second knows nothing of the first: a host that was away meanwhile follows the second, since an
/// admin led the hosts there. The machine of the first, which comes back, leads nobody to it.
#[test]
fn x02_a_host_that_was_away_follows_the_store_that_was_resumed_last_and_no_earlier_one() -> Result<()> {
    let mut fleet = Fleet::start()?;
    let path = |name: &str| fleet.dir().join(name);
    let [manifest, file, first, second] = ["drill.yaml", "fleet.backup", "first", "second"].map(path);
    std::fs::write(&manifest, DRILL)?;
    fleet.stemma(&["apply", "-f", text(&manifest)?])?;
    let mut agent = fleet.join("host-1", "c/g")?;
    let holds = |agent: &Agent, tier: &str| {
        let holds = || file_contains(&agent.path("etc/drill.conf"), &format!("tier {tier}\n"));
        eventually("the file of the host", holds)
    };
    holds(&agent, "gold")?;
    done(&["backup", text(&file)?, "--data-dir", text(&fleet.data())?, "--unencrypted"])?;
    fleet.kill_controller()?;

    done(&["restore", text(&file)?, "--data-dir", text(&first)?])?;
    fleet.start_controller_in(first.clone(), "127.0.0.1")?;
    done(&["resume-fleet", "--data-dir", text(&first)?, "--yes"])?;
    fleet.stemma(&["label", "nodegroup", "c/g", "tier=of-first", "--yes"])?;
    holds(&agent, "of-first")?;
    agent.kill()?;
    fleet.kill_controller()?;

    done(&["restore", text(&file)?, "--data-dir", text(&second)?])?;
    fleet.start_controller_in(second.clone(), "127.0.0.1")?;
    done(&["resume-fleet", "--data-dir", text(&second)?, "--yes"])?;
    fleet.stemma(&["label", "nodegroup", "c/g", "tier=of-second", "--yes"])?;
    agent.start()?;
    holds(&agent, "of-second")?;
    fleet.kill_controller()?;

    fleet.start_controller_in(first, "127.0.0.1")?;
    let epoch = read(&fleet, "/v1/fleet")?["epoch"].clone();
    eventually("the host is found to be another store's", || {
        let shown = read(&fleet, "/v1/fleet")?;
        let (ahead, epochs) = (&shown["ahead"]["nodes"], &shown["ahead"]["unknown_epochs"]);
        ensure!(*ahead == 1 && *epochs == 1, "{shown}\n{}", agent.log());
        Ok(())
    })?;
    let said = fleet.stemma(&["explain", "node", "host-1", "label", "tier"])?;
    ensure!(said.contains("that store was restored later or is in use beside this one"), "{said}");
    ensure!(metric(&fleet, "stemma_desired_sent_total")? == 0, "nothing is sent to it");
    file_contains(&agent.path("etc/drill.conf"), "tier of-second\n")?;
    // By an admin's word alone, a second time.
    let said = done(&["resume-fleet", "--data-dir", text(&fleet.data())?, "--yes", "--reason", "the second is gone"])?;
    ensure!(said.contains("hosts hold revisions of another copy of the store"), "{said}");
    holds(&agent, "of-first")?;
    ensure!(read(&fleet, "/v1/fleet")?["epoch"] != epoch, "it is in an epoch that is later than both");
    Ok(())
}
