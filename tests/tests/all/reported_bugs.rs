//! Cases from public bug reports about comparable systems, run against the real programs. Each case is a script that
//! ends with 0 if the programs are correct.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use stemma_tests::{program, shared};

/// Number of attempts in a case about a race.
const RACE_ROUNDS: &str = "20";

/// Cases that another test covers, each with the reason.
const EXCLUDED_CASES: &[&str] = &[
    // The case boots this machine's own systemd. The step `commands_run_outside_of_limits_of_agent` of the test with booted
    // machines checks that a command has the limits of a plain service.
    "33-fences-of-the-unit",
];

/// Runs the script of one case. Fails with the output of the script if the script fails. Skips the case if the shared
/// directory does not contain the script. In CI (`STEMMA_REQUIRE_SHARED`), panics instead.
fn run_case(case: &str) -> Result<()> {
    let Some(script) = shared::path(&format!("found/cases/{case}/run.sh")) else { return Ok(()) };
    let programs = program::path("stemma-controller");
    let temp_dir = tempfile::tempdir()?;
    let output = Command::new("bash")
        .arg(script)
        .arg(programs.parent().context("the program has no directory")?)
        .env("SOURCE", concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env("TMPDIR", temp_dir.path())
        .env("ROUNDS", RACE_ROUNDS)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .output()?;
    let outputs = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    ensure!(output.status.success(), "{case}: {}\n{}", output.status, outputs.concat());
    Ok(())
}

macro_rules! cases {
    ($($test:ident: $case:literal;)+) => {
        const CASES: &[&str] = &[$($case),+];

        $(#[test]
        fn $test() -> Result<()> {
            run_case($case)
        })+
    };
}

cases! {
    y05_merge_patch_merges_maps: "01-merge-patch";
    y07_empty_hold_is_shown_and_exported: "03-empty-hold";
    y04_label_keeps_text_of_large_number: "05-large-number";
    y05_apply_names_fields_retained_by_others: "06-kept-in-silence";
    y05_apply_releases_omitted_map: "06-map-left-out";
    y05_merge_labels_has_owner: "06-merge-labels-is-nobodys";
    y05_single_field_call_owns_field: "06-single-calls-own-nothing";
    y07_long_key_is_exported_unchanged: "07-long-key";
    y04_empty_name_is_refused: "08-empty-name";
    y08_leftover_hooks_are_not_run: "10-leftover-hooks";
    y08_colliding_environment_keys_are_reported_at_source: "11-colliding-keys";
    y09_audit_of_node_has_join_and_token: "13-audit-of-a-join";
    y09_wildcard_address_is_shown_as_address_of_family: "15-any-v6-address";
    y09_import_names_files_and_merges_additions: "20-import-names-and-merge";
    y09_eleventh_observation_is_stored: "21-eleventh-observation";
    y09_time_zone_is_correct_or_absent: "22-timezone";
    y09_failed_replacement_leaves_no_temporary_file: "23-left-beside";
    y09_replaced_file_keeps_acl: "24-acl-lost";
    y01_path_conflict_is_reported_and_stable: "25-two-tasks-one-path";
    y02_commands_have_one_umask: "27-umask-of-commands";
    y02_concurrent_agent_commands_succeed: "28-once-beside-once";
    y09_directory_service_accounts_are_given_by_number: "31-accounts-of-a-directory";
}

#[test]
fn case_list_is_complete() -> Result<()> {
    let Some(cases) = shared::path("found/cases") else { return Ok(()) };
    let directories = fs::read_dir(cases)?.filter_map(Result::ok).filter(|entry| entry.path().is_dir());
    let directories: BTreeSet<String> = directories.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let listed_cases: BTreeSet<String> = CASES.iter().chain(EXCLUDED_CASES).map(|case| (*case).to_owned()).collect();
    ensure!(directories == listed_cases, "directories {directories:?}, listed {listed_cases:?}");
    Ok(())
}
