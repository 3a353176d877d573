//! The YAML output of the operator's command, read by other programs: YAML 1.1 by `PyYAML`, in Python and by libyaml,
//! and YAML 1.2 by ruamel.yaml.

use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::{Map, Value, json};
use stemma_tests::python::environment;

/// The Python packages with the YAML readers, at fixed versions.
const READER_PACKAGES: [&str; 2] = ["PyYAML==6.0.3", "ruamel.yaml==0.18.16"];
/// The Python program that reads a list of pairs, each of a value and the YAML that was written for the value. It
/// prints each pair whose YAML a reader reads as another value.
const READER_SCRIPT: &str = include_str!("../../data/yaml_readers.py");

/// Texts that some version of YAML reads as another type, or that have a special meaning there.
const AMBIGUOUS_TEXTS: &[&str] = &[
    "",
    "~",
    "null",
    "Null",
    "NULL",
    "true",
    "True",
    "TRUE",
    "false",
    "yes",
    "Yes",
    "YES",
    "no",
    "No",
    "on",
    "On",
    "off",
    "OFF",
    "y",
    "Y",
    "n",
    "N",
    "0",
    "-0",
    "+1",
    "-1",
    "007",
    "08",
    "0o17",
    "017",
    "0x1f",
    "0X1F",
    "0b101",
    "1_000",
    "1:30",
    "190:20:30",
    "190:20:30.15",
    "1e3",
    "1E3",
    "1.5e+3",
    "12e03",
    ".5",
    "5.",
    "-.5",
    ".inf",
    "-.Inf",
    "+.INF",
    ".nan",
    ".NaN",
    "2026-11-28",
    "2026-11-28 09:41:00",
    "2001-12-14t21:59:43.10-05:00",
    "=",
    "<<",
    "!",
    "!!str a",
    "&a",
    "*a",
    "?",
    "? a",
    ":",
    "a:",
    "a: b",
    "-",
    "- a",
    "a #b",
    "# a",
    "%YAML 1.1",
    "@a",
    "`a`",
    "---",
    "--- a",
    "...",
    "{a}",
    "[a]",
    "|",
    ">-",
    "a, b",
    "'a'",
    "\"a\"",
    "a\\b",
    " a",
    "a ",
    "\u{1f600}",
    "e\u{301}",
    "\u{10ffff}",
];

/// Texts that are put between line breaks, so that each text is a line of its own.
const LINE_PARTS: [&str; 8] = ["---", "...", "- a", "# a", "%a", " a", "\ta", "a: b"];

/// Returns the ambiguous texts, and texts with special characters, with line breaks, and with special lengths.
fn all_texts() -> Vec<String> {
    let mut texts: Vec<String> = AMBIGUOUS_TEXTS.iter().copied().map(str::to_owned).collect();
    // Control characters, ASCII, spaces and format characters, and code points that are special in Unicode.
    let code_points = (0..0xA1).chain(0x2000..0x2070).chain([0xD7FF, 0xFDD0, 0xFEFF, 0xFFFD, 0xFFFE, 0xFFFF, 0x1_FFFE]);
    for character in code_points.filter_map(char::from_u32) {
        texts.extend([character.to_string(), format!("a{character}b"), format!(" {character} ")]);
    }
    for part in LINE_PARTS {
        texts.extend(
            ["\n", "\r\n", "\r", "\u{85}", "\u{2028}"].map(|line_break| format!("a{line_break}{part}{line_break}b{line_break}")),
        );
    }
    // YAML limits the length of some keys to 1024 characters.
    let lengths = [100, 1_021, 1_022, 1_023, 1_024, 1_025, 5_000].into_iter();
    texts.extend(lengths.flat_map(|length| ["x", "1", "a ", "\u{1}", "\u{1f600}"].map(|part| part.repeat(length))));
    texts
}

/// Returns values that contain each text as a value, as an item, as a key, and as a key of a map within a list. Also
/// returns numbers, empty values, nested values, and one map with all texts as keys.
fn test_values() -> Vec<Value> {
    let mut values: Vec<Value> = Vec::new();
    for text in all_texts() {
        values.push(json!({"a": &text, "b": [&text, [&text]]}));
        values.push(json!({&text: 1, "z": [{&text: {&text: []}}, {&text: [1]}]}));
    }
    let numbers = [
        json!([0, -1, u64::MAX, i64::MIN, 1.0, -0.5, 1.1, 0.1]),
        json!([1e15, 1e16, 1e20, 1e21, -1e21, 1.5e300, 1e-5, 1e-7, 2.5e-7, f64::MAX, f64::MIN_POSITIVE, 5e-324]),
    ];
    let empty_values = [json!({"a": {}, "b": [], "c": null, "d": ""}), json!([[], {}, null, [[]], [{}], {"a": [[], [null]]}])];
    values.extend(numbers.into_iter().chain(empty_values));
    let nested_value =
        (0..20).fold(json!(null), |value, number| if number % 2 == 0 { json!([value, number]) } else { json!({"k": value}) });
    values.push(nested_value);
    let entries = all_texts().into_iter().enumerate().map(|(number, text)| (text, json!(number)));
    values.push(Value::Object(entries.collect::<Map<_, _>>()));
    values
}

/// Writes values as YAML with `to_block`. Python's YAML readers must read each text as the same value.
#[test]
fn y07_to_block_is_read_back_equal_by_yaml_readers() -> Result<()> {
    let venv = environment(env!("CARGO_TARGET_TMPDIR"), "yaml-readers", &READER_PACKAGES)?;
    let dir = tempfile::tempdir()?;
    let pairs: Vec<Value> = test_values().iter().map(|value| json!([value, stemma::yaml::to_block(value)])).collect();
    let file = dir.path().join("corpus.json");
    std::fs::write(&file, Value::from(pairs).to_string())?;
    let output = Command::new(venv.join("bin/python")).args(["-c", READER_SCRIPT]).arg(&file).output()?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{stdout}{stderr}");
    Ok(())
}
