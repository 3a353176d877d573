//! What public bug reports of comparable systems describe, tried on the running programs: each case is given as a script that ends with 0
//! where the programs are right.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use stemma_tests::{program, shared};

/// How often a case of a race tries it.
const ROUNDS: &str = "20";

/// Cases that another test stands for, each with the reason.
const LEFT_OUT: &[&str] = &[
    // Of the fences of the unit, which a booted machine shows.
    "33-fences-of-the-unit",
];

/// Runs one case, and says what it printed where it does not end with 0.
fn run(case: &str) -> Result<()> {
    let Some(script) = shared::path(&format!("found/cases/{case}/run.sh")) else { return Ok(()) };
    let programs = program::path("stemma-controller");
    let kept = tempfile::tempdir()?;
    let output = Command::new("bash")
        .arg(script)
        .arg(programs.parent().context("a program stands in a directory")?)
        .env("SOURCE", concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env("TMPDIR", kept.path())
        .env("ROUNDS", ROUNDS)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .output()?;
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    ensure!(output.status.success(), "{case}: {}\n{}", output.status, said.concat());
    Ok(())
}

macro_rules! cases {
    ($($test:ident: $case:literal;)+) => {
        const CASES: &[&str] = &[$($case),+];

        $(#[test]
        fn $test() -> Result<()> {
            run($case)
        })+
    };
}

cases! {
    y05_a_merge_patch_of_an_object_merges_its_maps: "01-merge-patch";
    y07_a_hold_that_says_nothing_is_shown_and_exported: "03-empty-hold";
    y04_a_large_number_is_a_label_s_text_in_each_form_of_a_write: "05-large-number";
    y05_what_others_keep_of_a_manifest_is_named: "06-kept-in-silence";
    y05_a_map_that_a_manifest_leaves_out_is_given_up: "06-map-left-out";
    y05_merge_labels_has_an_owner: "06-merge-labels-is-nobodys";
    y05_a_call_that_writes_one_field_owns_it: "06-single-calls-own-nothing";
    y07_a_long_key_is_exported_as_it_is_read: "07-long-key";
    y04_an_empty_name_is_refused: "08-empty-name";
    y08_leftover_hooks_are_not_run: "10-leftover-hooks";
    y08_keys_that_meet_in_the_environment_are_found_where_they_are_written: "11-colliding-keys";
    y09_a_join_and_a_token_stand_in_the_audit_of_their_node: "13-audit-of-a-join";
    y09_an_address_of_any_host_is_shown_as_one_of_its_family: "15-any-v6-address";
    y09_an_import_names_its_files_and_merges_what_it_adds: "20-import-names-and-merge";
    y09_the_eleventh_observation_is_kept: "21-eleventh-observation";
    y09_the_time_zone_is_right_or_absent: "22-timezone";
    y09_nothing_is_left_beside_a_file_that_cannot_be_replaced: "23-left-beside";
    y09_a_replaced_file_keeps_its_access_control_list: "24-acl-lost";
    y01_two_tasks_of_one_path_are_found_and_not_fought_over: "25-two-tasks-one-path";
    y02_commands_have_one_umask: "27-umask-of-commands";
    y02_commands_of_the_agent_beside_one_another_succeed: "28-once-beside-once";
    y09_accounts_of_a_directory_service_are_named_by_number: "31-accounts-of-a-directory";
}

#[test]
fn each_case_that_is_given_is_run() -> Result<()> {
    let Some(cases) = shared::path("found/cases") else { return Ok(()) };
    let given = fs::read_dir(cases)?.filter_map(Result::ok).filter(|entry| entry.path().is_dir());
    let given: BTreeSet<String> = given.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let known: BTreeSet<String> = CASES.iter().chain(LEFT_OUT).map(|case| (*case).to_owned()).collect();
    ensure!(given == known, "given {given:?}, known {known:?}");
    Ok(())
}
