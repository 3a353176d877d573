//! `cargo xtask language`: checks the part of the language rule that a machine can check.
//!
//! `docs/contributing.md` contains the rule. The check finds type names that are defined twice, banned names, banned
//! phrases in comments and pages, and test names that have no verb, too many words or a pronoun. The lists of names,
//! phrases and verbs are text files next to this module, so a change of the rule is usually a change of a list. A
//! reviewer still has to judge whether a sentence is clear.

mod definitions;
mod prose;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result, bail};
use regex_lite::Regex;

use crate::source;
use definitions::{SourceName, SourceNameKind};
use prose::TextFile;

/// Names that no type, function, constant or module may have, one per line. The text after a tab is the replacement.
/// `*word` bans all names that contain this word as a part, in snake case or camel case.
const BANNED_NAMES: &str = include_str!("banned_names.txt");

/// Phrases that no comment and no page may contain, as regular expressions, one per line. The text after a tab is the
/// replacement.
const BANNED_PHRASES: &str = include_str!("banned_phrases.txt");

/// Type names that may be defined more than once, one per line. The text after a tab is the reason.
const SHARED_TYPE_NAMES: &str = include_str!("shared_type_names.txt");

/// Verbs in the third person, one per line. A test name must contain such a verb.
const VERBS: &str = include_str!("verbs.txt");

/// The maximum number of words of a test name. Number prefixes such as `s21` are not counted.
const MAX_TEST_WORDS: usize = 10;

/// Pronouns that a test name must not contain, because the name should contain the noun instead.
const TEST_PRONOUNS: [&str; 10] = ["it", "its", "that", "their", "them", "they", "what", "whatever", "who", "whose"];

/// Checks names, comments and pages of the workspace in `root` against the language rule.
///
/// # Errors
/// Fails with a list of all violations, one per line.
pub(crate) fn run(root: &Path) -> Result<()> {
    let files = files(root)?;
    let mut violations = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let relative_path = file.strip_prefix(root).unwrap_or(file).display().to_string();
        violations.extend(check_file(&relative_path, &text)?);
    }
    violations.extend(repeated_types(&types(root)?));
    if violations.is_empty() {
        return Ok(());
    }
    bail!("{} names or phrases break the rule of docs/contributing.md:\n{}", violations.len(), violations.join("\n"))
}

/// Returns the violations in the file `path`, whose extension determines how `text` is read. Fails on invalid Rust.
fn check_file(path: &str, text: &str) -> Result<Vec<String>> {
    let kind = TextFile::from_path(Path::new(path)).unwrap_or(TextFile::Page);
    let mut violations: Vec<_> = prose::blocks(text, kind)
        .into_iter()
        .flat_map(|(line, block)| banned_phrases(&block).into_iter().map(move |message| format!("{path}:{line}: {message}")))
        .collect();
    if kind == TextFile::Rust {
        let definitions = definitions::from_text(text).with_context(|| path.to_owned())?;
        violations.extend(
            definitions.iter().filter_map(|definition| Some(format!("{path}:{}: {}", definition.line, check_name(definition)?))),
        );
    }
    Ok(violations)
}

/// Returns a message for each banned phrase in a block of text.
fn banned_phrases(block: &str) -> Vec<String> {
    let messages = phrases().iter().filter_map(|(pattern, replacement)| {
        let phrase = pattern.find(block)?;
        Some(format!("`{}` is banned: {replacement}", phrase.as_str().trim()))
    });
    messages.collect()
}

/// Returns the message for a banned name, or for a test name that has no verb, too many words or a pronoun. `None` if
/// the name is allowed.
fn check_name(definition: &SourceName) -> Option<String> {
    let (name, words) = (&definition.name, words(&definition.name));
    let is_banned = |banned: &str| match banned.strip_prefix('*') {
        Some(word) => words.iter().any(|part| part == word),
        None => banned == name,
    };
    if let Some((_, replacement)) = list_entries(BANNED_NAMES).find(|(banned, _)| is_banned(banned)) {
        return Some(format!("the name `{name}` is banned: {replacement}"));
    }
    // A prefix such as `s21` or `05` has at most one letter.
    let is_number_prefix = |word: &&String| word.chars().filter(char::is_ascii_alphabetic).count() <= 1;
    let words: Vec<_> = words.iter().skip_while(is_number_prefix).map(String::as_str).collect();
    let fault = if definition.kind != SourceNameKind::Test {
        return None;
    } else if !words.iter().any(|word| list_entries(VERBS).any(|(verb, _)| verb == *word)) {
        "has no verb: write UNIT_DOES_WHEN, or add the verb to verbs.txt".to_owned()
    } else if words.len() > MAX_TEST_WORDS {
        format!("has {} words, but at most {MAX_TEST_WORDS} are allowed", words.len())
    } else {
        let pronoun = words.iter().find(|word| TEST_PRONOUNS.contains(*word))?;
        format!("contains the pronoun `{pronoun}`: name the thing")
    };
    Some(format!("the test name `{name}` {fault}"))
}

/// Returns the words of a name in snake case or camel case, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for letter in name.chars() {
        if letter == '_' || (letter.is_ascii_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = letter.is_ascii_lowercase();
        if let Some(word) = words.last_mut().filter(|_| letter != '_') {
            word.push(letter.to_ascii_lowercase());
        }
    }
    words
}

/// Returns one message for each type name that is defined more than once and is not in `shared_type_names.txt`. Returns
/// another message for each name in that file that is not defined more than once. `types` has the places of each name.
fn repeated_types(types: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let allowed: BTreeSet<&str> = list_entries(SHARED_TYPE_NAMES).map(|(name, _)| name).collect();
    let repeated: BTreeMap<&str, &Vec<String>> =
        types.iter().filter(|(_, places)| places.len() > 1).map(|(name, places)| (name.as_str(), places)).collect();
    let unlisted = repeated
        .iter()
        .filter(|(name, _)| !allowed.contains(*name))
        .map(|(name, places)| format!("{}: the type name `{name}` is defined {} times", places.join(", "), places.len()));
    let obsolete = allowed
        .iter()
        .filter(|name| !repeated.contains_key(*name))
        .map(|name| format!("shared_type_names.txt: `{name}` is not defined more than once: delete its line"));
    unlisted.chain(obsolete).collect()
}

/// Returns the places, as `FILE:LINE`, at which each type name is defined in a library or program. Modules that are
/// only for tests are left out, but not single types with `#[cfg(test)]`.
fn types(root: &Path) -> Result<BTreeMap<String, Vec<String>>> {
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in source::read_packages(root)? {
        for root_file in [Some(&package.root_file), package.program_file.as_ref()].into_iter().flatten() {
            for module in source::read_modules(root_file)? {
                let file = module.file.strip_prefix(root).unwrap_or(&module.file).display().to_string();
                for definition in definitions::from_items(&module.items) {
                    if definition.kind == SourceNameKind::Type {
                        types.entry(definition.name).or_default().push(format!("{file}:{}", definition.line));
                    }
                }
            }
        }
    }
    Ok(types)
}

/// Returns the files of a checkout whose text is checked, sorted. Hidden directories and `target` are skipped.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() && !path.is_symlink() && name != "target" && !name.starts_with('.') {
                directories.push(path);
            } else if TextFile::from_path(&path).is_some() {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the entries of a list, each with the text after its tab. Empty lines and lines with `#` are skipped.
fn list_entries(list: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once('\t').unwrap_or((line, "")))
}

/// Returns the patterns of the banned phrases, each with its replacement.
fn phrases() -> &'static [(Regex, &'static str)] {
    static PHRASES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
        let pattern = |text| Regex::new(text).expect("each line of banned_phrases.txt is a regular expression");
        list_entries(BANNED_PHRASES).map(|(text, replacement)| (pattern(text), replacement)).collect()
    });
    &PHRASES
}
