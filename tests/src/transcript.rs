//! Operator scripts: a text of files, commands and what they print, that anyone can read and extend.
//!
//! ```text
//! What this shows, in words.
//! -- site.yaml --
//! kind: Cluster
//! name: prod
//! -- script --
//! $ stemma validate -f site.yaml
//! no findings: 0 nodes resolve
//! $ stemma render -f site.yaml web-1
//! error: no node "web-1" among these manifests
//! [status 3]
//! ```
//!
//! Standard output stands before standard error; a status other than 0 stands last. `$SITE` is `examples/site`, and
//! `SHA-256` stands for any hash. With `STEMMA_WRITE_TRANSCRIPTS=1` what a command prints now is written into the script,
//! to be read before it is kept.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::program;

const SITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/site");
const SCRIPT: &str = "-- script --";

/// Runs one script and compares what it prints.
///
/// # Errors
/// When a command prints something else than the script says: both are in the error, and the file's name.
pub fn check(file: &Path) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let (head, script) = text.split_once(SCRIPT).with_context(|| format!("{} has no {SCRIPT}", file.display()))?;
    let dir = tempfile::tempdir()?;
    write_files(head, dir.path())?;
    let mut found = format!("{head}{SCRIPT}\n");
    for command in script.lines().filter_map(|line| line.strip_prefix("$ ")) {
        found.push_str(&format!("$ {command}\n{}", run(command, dir.path())?));
    }
    if found == text {
        return Ok(());
    }
    if std::env::var_os("STEMMA_WRITE_TRANSCRIPTS").is_some() {
        return Ok(std::fs::write(file, found)?);
    }
    bail!("{} says\n{text}\nand this is printed:\n{found}", file.display())
}

/// Writes the files before the script: each begins with `-- NAME --`.
fn write_files(head: &str, dir: &Path) -> Result<()> {
    let mut file = None;
    for line in head.lines() {
        if let Some(name) = line.strip_prefix("-- ").and_then(|line| line.strip_suffix(" --")) {
            file = Some((dir.join(name), String::new()));
        } else if let Some((_, text)) = &mut file {
            text.push_str(&format!("{line}\n"));
        }
        if let Some((path, text)) = &file {
            std::fs::write(path, text).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

fn run(command: &str, dir: &Path) -> Result<String> {
    let words = words(command);
    let Some((program, arguments)) = words.split_first() else { bail!("a command without a program") };
    let output = Command::new(program::path(program))
        .args(arguments)
        .current_dir(dir)
        .env("NO_COLOR", "1")
        .env("HOME", dir)
        .env_remove("STEMMA_CONTEXT")
        .stdin(Stdio::null())
        .output()
        .with_context(|| command.to_owned())?;
    let mut text = String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?;
    text = without_hashes(&text).replace(SITE, "$SITE").replace(&dir.display().to_string(), "$DIR");
    if !output.status.success() {
        text.push_str(&format!("[status {}]\n", output.status.code().unwrap_or(-1)));
    }
    Ok(text)
}

/// What a hash is, other tests say.
fn without_hashes(text: &str) -> String {
    let is_hash = |word: &&str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let hashes: Vec<&str> = text.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(is_hash).collect();
    // YAML quotes a hash that begins with a digit, so its quotes go too.
    let hide = |text: String, hash| text.replace(&format!("\"{hash}\""), "SHA-256").replace(hash, "SHA-256");
    hashes.into_iter().fold(text.to_owned(), hide)
}

/// Words apart by spaces; what stands in single quotes is one.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in command.split('\'').enumerate() {
        match at % 2 {
            0 => words.extend(part.split_whitespace().map(|word| word.replace("$SITE", SITE))),
            _ => words.push(part.to_owned()),
        }
    }
    words
}
