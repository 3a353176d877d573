//! Converts YAML to JSON text with the position of every field, and values to YAML.
//!
//! The API takes JSON, and the number in a label keeps the text that its author sent, so a YAML number must not pass
//! through a float. Hence there is no YAML-to-value library: the parser's events are written as JSON text. The core
//! schema of YAML 1.2 decides what is null, a boolean or a number (`yes` and `on` are text). A number that JSON cannot
//! express (`0x1F`, `+1`, `.5`) is text too. Aliases and `<<` are expanded within limits. A duplicate key is an error,
//! so the last one does not win silently. A `<<` in quotes is an ordinary key.

mod escapes;
mod write;

use std::collections::{BTreeMap, HashMap};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Tag};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use stemma_core::json::parse_value_with_inexact_texts;
use stemma_core::manifest::{BodyError, MAX_DEPTH, with_label_texts};

pub(crate) use write::is_printable;
pub use write::to_block;

/// Maximum number of values in one file, after aliases are expanded.
pub(crate) const MAX_NODES: usize = 1_000_000;
/// The types of YAML's core schema.
const CORE_TYPES: [&str; 7] = ["str", "int", "float", "bool", "null", "seq", "map"];

/// One document of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlDocument {
    /// The JSON text of the document.
    pub json: String,
    /// The position at which the document starts.
    pub position: SourcePosition,
    /// The position of each field, by path (`tasks[2].id`).
    pub positions: BTreeMap<String, SourcePosition>,
    /// The start of the text in each literal block (`|`), by path. The lines of this text are lines of the file.
    pub block_starts: BTreeMap<String, SourcePosition>,
}

/// A position in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
#[display("{line}:{column}")]
pub struct SourcePosition {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
}

/// An error in a file, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct YamlError {
    /// The position of the error.
    pub at: SourcePosition,
    /// One sentence that also says what to do.
    pub what: String,
}

impl YamlDocument {
    /// Parses the document.
    ///
    /// # Errors
    /// [`BodyError`], also for a number that does not fit into 64 bits.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, BodyError> {
        stemma_core::manifest::read_json(self.raw())
    }

    /// Like [`Self::read`], for an object or a part of one. Numbers in its labels and annotations become text as
    /// written.
    ///
    /// # Errors
    /// [`BodyError`], also for any other number that does not fit into 64 bits.
    pub fn read_body<T: DeserializeOwned>(&self) -> Result<T, BodyError> {
        stemma_core::manifest::read_json(&with_label_texts(self.raw()))
    }

    /// Returns the document as a value, for callers that need no exact numbers. A number without an exact value becomes
    /// its text.
    pub(crate) fn to_value(&self) -> serde_json::Value {
        parse_value_with_inexact_texts(self.raw())
    }

    fn raw(&self) -> &RawValue {
        serde_json::from_str(&self.json).expect("a document is written down as JSON")
    }

    /// Returns a part of the document, without its JSON text.
    #[must_use]
    pub fn sub_document(&self, path: &str) -> Self {
        let relocate =
            |(own, place): (&String, &SourcePosition)| Some((own.strip_prefix(path)?.trim_start_matches('.').to_owned(), *place));
        let part = |all: &BTreeMap<String, SourcePosition>| all.iter().filter_map(relocate).collect();
        Self {
            json: String::new(),
            position: self.position_of(path),
            positions: part(&self.positions),
            block_starts: part(&self.block_starts),
        }
    }

    /// Returns the position of a field, or of the nearest known field around it.
    #[must_use]
    pub fn position_of(&self, path: &str) -> SourcePosition {
        let mut path = path;
        loop {
            if let Some(place) = self.positions.get(path) {
                return *place;
            }
            match path.rfind(['.', '[']) {
                Some(cut) => path = &path[..cut],
                None => return self.position,
            }
        }
    }
}

impl SourcePosition {
    /// The start of a text.
    const START: Self = Self { line: 1, column: 1 };

    /// Converts a position in a text to a position in the file. The text begins at `self` and has the same lines in the
    /// file.
    #[must_use]
    pub fn position_in_file(self, within: Self) -> Self {
        Self { line: self.line + within.line - 1, column: self.column + within.column - 1 }
    }
}

/// Reads every document of a file and skips empty ones. JSON is YAML, so a JSON file can be read too.
///
/// # Errors
/// [`YamlError`] if the text is not YAML, a key is a duplicate or not text, or a limit is exceeded.
pub fn read_documents(text: &str) -> Result<Vec<YamlDocument>, YamlError> {
    let text = &escapes::join_surrogates(text);
    let mut reader = YamlReader {
        events: Parser::new_from_str(text),
        lines: text.lines().collect(),
        anchors: HashMap::new(),
        nodes: 0,
        position: SourcePosition::START,
    };
    let mut documents = Vec::new();
    loop {
        match reader.next_event()? {
            Event::StreamEnd => return Ok(documents),
            Event::DocumentStart(_) => {
                let event = reader.next_event()?;
                let node = reader.read_node(event, 0)?;
                if !matches!(&node.value, YamlValue::Scalar(text) if text == "null") {
                    documents.push(node.to_document());
                }
            }
            _ => {}
        }
    }
}

/// Maximum number of lines in the head of a block scalar: its anchor, its tag, its `|`.
const MAX_BLOCK_HEAD_LINES: usize = 4;

/// A value with its position in the file.
#[derive(Clone)]
struct YamlNode {
    position: SourcePosition,
    /// The start of the text, if this is a literal block.
    block_start: Option<SourcePosition>,
    value: YamlValue,
}

/// The content of a node.
#[derive(Clone)]
enum YamlValue {
    /// JSON text.
    Scalar(String),
    Sequence(Vec<YamlNode>),
    Mapping(Vec<(String, YamlNode)>),
}

/// The state of reading a file: the parser's events, and the values of the anchors so far.
struct YamlReader<'input> {
    events: Parser<'input, saphyr_parser::StrInput<'input>>,
    lines: Vec<&'input str>,
    anchors: HashMap<usize, YamlNode>,
    nodes: usize,
    position: SourcePosition,
}

impl<'input> YamlReader<'input> {
    /// Returns the next event of the parser, and stores its position.
    fn next_event(&mut self) -> Result<Event<'input>, YamlError> {
        match self.events.next_event() {
            Some(Ok((event, span))) => {
                self.position = position_from_marker(span.start);
                Ok(event)
            }
            Some(Err(error)) => Err(YamlError { at: position_from_marker(*error.marker()), what: syntax_error(error.info()) }),
            None => Ok(Event::StreamEnd),
        }
    }

    fn error(&self, what: impl Into<String>) -> YamlError {
        YamlError { at: self.position, what: what.into() }
    }

    /// Counts values. Fails if the file has too many of them.
    fn add_nodes(&mut self, more: usize) -> Result<(), YamlError> {
        self.nodes += more;
        if self.nodes > MAX_NODES {
            return Err(self.error(format!("more than {MAX_NODES} values with aliases expanded: split the file")));
        }
        Ok(())
    }

    /// Reads the value that begins with an event. An alias is replaced with a copy of its value.
    fn read_node(&mut self, event: Event<'input>, depth: usize) -> Result<YamlNode, YamlError> {
        if depth > MAX_DEPTH {
            return Err(self.error(format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.add_nodes(1)?;
        let at = self.position;
        let block = match &event {
            Event::Scalar(text, ScalarStyle::Literal, ..) => self.block_start(text),
            _ => None,
        };
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = match self.tag_type(tag.as_deref())? {
                    None => scalar_json(&text, style == ScalarStyle::Plain),
                    Some(named) => tagged_scalar(&text, named).ok_or_else(|| self.error(tag_error(&text, named)))?,
                };
                (YamlValue::Scalar(value), anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.tag_type(tag.as_deref())?;
                (self.read_sequence(depth)?, anchor)
            }
            Event::MappingStart(anchor, tag) => {
                self.tag_type(tag.as_deref())?;
                (self.read_mapping(depth)?, anchor)
            }
            Event::Alias(id) => {
                let known = self.anchors.get(&id).cloned();
                let node = known.ok_or_else(|| self.error("an alias of a value that contains the alias"))?;
                self.add_nodes(node.size())?;
                return Ok(node);
            }
            _ => return Err(self.error("a value is missing here")),
        };
        let node = YamlNode { position: at, block_start: block, value };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    /// Returns the start of a literal block's text, after its indentation. The parser reports the first line that is
    /// not blank, or an anchor or tag before it.
    fn block_start(&self, text: &str) -> Option<SourcePosition> {
        let (nth, first) = text.lines().enumerate().find(|(_, line)| !line.trim().is_empty())?;
        let is_first = |line: &&str| line.trim_start_matches(' ') == first.trim_start_matches(' ');
        let from = self.position.line.checked_sub(1)?;
        let ahead = self.lines.get(from..)?.iter().take(nth + MAX_BLOCK_HEAD_LINES).position(is_first)?;
        let line = self.lines.get(from + ahead)?;
        let indent = line.len().checked_sub(first.len())?;
        Some(SourcePosition { line: (from + ahead + 1).checked_sub(nth)?, column: indent + 1 })
    }

    /// Returns the type that a tag names, or `None` without a tag. An unknown tag is an error, because ignoring it
    /// would lose its meaning.
    fn tag_type(&self, tag: Option<&Tag>) -> Result<Option<&'static str>, YamlError> {
        let Some(tag) = tag else { return Ok(None) };
        let known = CORE_TYPES.iter().find(|name| tag.is_yaml_core_schema() && tag.suffix == **name);
        let written = if tag.is_yaml_core_schema() { format!("!!{}", tag.suffix) } else { tag.to_string() };
        let what =
            || format!("the tag {written} is not supported: remove it; the supported tags are !!{}", CORE_TYPES.join(", !!"));
        known.map(|name| Some(*name)).ok_or_else(|| self.error(what()))
    }

    /// Reads the items of a list until its end.
    fn read_sequence(&mut self, depth: usize) -> Result<YamlValue, YamlError> {
        let mut items = Vec::new();
        loop {
            match self.next_event()? {
                Event::SequenceEnd => return Ok(YamlValue::Sequence(items)),
                event => items.push(self.read_node(event, depth + 1)?),
            }
        }
    }

    /// Reads a map. A duplicate key is an error. The maps of `<<` are merged in at its end.
    fn read_mapping(&mut self, depth: usize) -> Result<YamlValue, YamlError> {
        let mut entries: Vec<(String, YamlNode)> = Vec::new();
        let mut merge_values = Vec::new();
        let mut seen = std::collections::HashSet::new();
        loop {
            let (key, is_merge) = match self.next_event()? {
                Event::MappingEnd => break,
                Event::Scalar(text, style, _, _) => (text.clone().into_owned(), text == "<<" && style == ScalarStyle::Plain),
                _ => return Err(self.error("a key must be text")),
            };
            let is_duplicate = !seen.insert((key.clone(), is_merge));
            if is_duplicate {
                return Err(self.error(format!("the key {key:?} occurs twice in one map: keep one of them")));
            }
            let at = self.position;
            let event = self.next_event()?;
            let mut node = self.read_node(event, depth + 1)?;
            if is_merge {
                merge_values.push(node);
            } else {
                node.position = at;
                entries.push((key, node));
            }
        }
        for node in merge_values {
            self.merge_entries(&mut entries, node)?;
        }
        Ok(YamlValue::Mapping(entries))
    }

    /// Merges a `<<` value: adds the keys of its maps that the map itself lacks. An earlier map wins over a later one.
    fn merge_entries(&self, entries: &mut Vec<(String, YamlNode)>, node: YamlNode) -> Result<(), YamlError> {
        match node.value {
            YamlValue::Mapping(more) => {
                for (key, node) in more {
                    if !entries.iter().any(|(own, _)| *own == key) {
                        entries.push((key, node));
                    }
                }
                Ok(())
            }
            YamlValue::Sequence(maps) => maps.into_iter().try_for_each(|map| self.merge_entries(entries, map)),
            YamlValue::Scalar(_) => Err(self.error("`<<` takes a map or a list of maps")),
        }
    }
}

impl YamlNode {
    /// Returns the number of values in the node, including itself.
    fn size(&self) -> usize {
        1 + match &self.value {
            YamlValue::Scalar(_) => 0,
            YamlValue::Sequence(items) => items.iter().map(Self::size).sum(),
            YamlValue::Mapping(entries) => entries.iter().map(|(_, node)| node.size()).sum(),
        }
    }

    fn to_document(&self) -> YamlDocument {
        let (places, texts) = (BTreeMap::new(), BTreeMap::new());
        let mut document = YamlDocument { json: String::new(), position: self.position, positions: places, block_starts: texts };
        self.write(&mut String::new(), &mut document);
        document
    }

    /// Writes the value as JSON text, and stores the position of each field. `path` is the path of this value.
    fn write(&self, path: &mut String, to: &mut YamlDocument) {
        if !path.is_empty() {
            to.positions.insert(path.clone(), self.position);
        }
        if let Some(start) = self.block_start {
            to.block_starts.insert(path.clone(), start);
        }
        match &self.value {
            YamlValue::Scalar(text) => to.json.push_str(text),
            YamlValue::Sequence(items) => {
                to.json.push('[');
                for (index, item) in items.iter().enumerate() {
                    write_separator(&mut to.json, index);
                    with_step(path, &format!("[{index}]"), |path| item.write(path, to));
                }
                to.json.push(']');
            }
            YamlValue::Mapping(entries) => {
                to.json.push('{');
                for (index, (key, node)) in entries.iter().enumerate() {
                    write_separator(&mut to.json, index);
                    to.json.push_str(&quoted(key));
                    to.json.push(':');
                    let step = if path.is_empty() { key.clone() } else { format!(".{key}") };
                    with_step(path, &step, |path| node.write(path, to));
                }
                to.json.push('}');
            }
        }
    }
}

/// Calls `write` with the path extended by one step.
fn with_step(path: &mut String, step: &str, write: impl FnOnce(&mut String)) {
    let length = path.len();
    path.push_str(step);
    write(path);
    path.truncate(length);
}

fn write_separator(json: &mut String, index: usize) {
    if index > 0 {
        json.push(',');
    }
}

fn position_from_marker(marker: Marker) -> SourcePosition {
    SourcePosition { line: marker.line(), column: marker.col() + 1 }
}

/// Returns the parser's reason, followed by the most likely cause.
fn syntax_error(reason: &str) -> String {
    let advice = match reason {
        _ if reason.contains("unprintable") => "; take the character out, or write it as an escape in double quotes",
        _ if reason.contains("tab") => "; indent with spaces",
        _ if reason.contains("':' indicator") || reason.contains("mapping values") => {
            "; put a text with a colon into quotes, and close what was opened before"
        }
        _ if reason.contains("flow sequence") || reason.contains("flow mapping") => {
            "; is a bracket, comma or quote missing before?"
        }
        _ => "",
    };
    format!("no YAML: {reason}{advice}")
}

/// Returns the JSON text of a scalar.
fn scalar_json(text: &str, plain: bool) -> String {
    match text {
        "" | "~" | "null" | "Null" | "NULL" if plain => "null".to_owned(),
        "true" | "True" | "TRUE" if plain => "true".to_owned(),
        "false" | "False" | "FALSE" if plain => "false".to_owned(),
        _ if plain && is_json_number(text) => text.to_owned(),
        _ => quoted(text),
    }
}

/// Returns the JSON text of a scalar with an explicit type tag, quoted or not. `None` if it does not have that type.
fn tagged_scalar(text: &str, named: &str) -> Option<String> {
    let plain = scalar_json(text, true);
    let has_type = match named {
        "str" => return Some(quoted(text)),
        "int" => is_json_number(text) && !text.contains(['.', 'e', 'E']),
        "float" => is_json_number(text),
        "bool" => matches!(&*plain, "true" | "false"),
        "null" => plain == "null",
        // A list or a map is not a scalar.
        _ => false,
    };
    has_type.then_some(plain)
}

fn tag_error(text: &str, named: &str) -> String {
    let text: String = text.chars().take(64).collect();
    format!("{text:?} is no !!{named} as JSON writes one: correct it, or remove the tag")
}

fn is_json_number(text: &str) -> bool {
    text.starts_with(|first: char| first == '-' || first.is_ascii_digit()) && serde_json::from_str::<&RawValue>(text).is_ok()
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Vec<String> {
        read_documents(text).unwrap().into_iter().map(|document| document.json).collect()
    }

    #[test]
    fn read_documents_follows_yaml_1_2_and_keeps_number_text() {
        for (yaml, expected) in [
            ("a: 1", r#"{"a":1}"#),
            ("a: 1.10", r#"{"a":1.10}"#),
            ("a: 1e3", r#"{"a":1e3}"#),
            ("a: 0x1F", r#"{"a":"0x1F"}"#),
            ("a: 007", r#"{"a":"007"}"#),
            ("a: +1", r#"{"a":"+1"}"#),
            ("a: -", "error"),
            ("a: yes", r#"{"a":"yes"}"#),
            ("a: true", r#"{"a":true}"#),
            ("a: 'true'", r#"{"a":"true"}"#),
            ("a: ~\nb:", r#"{"a":null,"b":null}"#),
            ("a: !!str 1", r#"{"a":"1"}"#),
            ("a: !!int \"3\"", r#"{"a":3}"#),
            ("a: !!int 3", r#"{"a":3}"#),
            ("a: !!float '1.50'", r#"{"a":1.50}"#),
            ("a: !!float 3", r#"{"a":3}"#),
            ("a: !!bool 'True'", r#"{"a":true}"#),
            ("a: !!null ''", r#"{"a":null}"#),
            ("a: .5", r#"{"a":".5"}"#),
            ("a: .inf", r#"{"a":".inf"}"#),
            ("a: 0o17", r#"{"a":"0o17"}"#),
            ("a: !!map {b: !!seq [!!int 1]}", r#"{"a":{"b":[1]}}"#),
            ("a: \"tab\\there\"", r#"{"a":"tab\there"}"#),
            ("a: |\n  x\n  y\n", r#"{"a":"x\ny\n"}"#),
            ("[1, {b: c}]", r#"[1,{"b":"c"}]"#),
            (r#"{"a": ["x", 2]}"#, r#"{"a":["x",2]}"#),
            (r#"{"a": "\ud83d\uDE00 \\ud83d\ude00 \u00e9\n"}"#, "error"),
            (r#"{"\ud83d\uDE00": "\\ud83d \u00e9\ud83d\ude00!"}"#, "{\"😀\":\"\\\\ud83d é😀!\"}"),
            ("a: |-\n  \\ud83d\\ude00", r#"{"a":"\\ud83d\\ude00"}"#),
            ("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}", r#"{"x":{"a":1,"b":2},"y":{"b":3,"a":1}}"#),
            ("\"<<\": {a: 1}\n<<: {b: 2}", r#"{"<<":{"a":1},"b":2}"#),
            ("? a\n: 1\n? \"b\"\n:\n  c: 2", r#"{"a":1,"b":{"c":2}}"#),
        ] {
            match read_documents(yaml) {
                Ok(documents) => assert_eq!(documents[0].json, expected, "{yaml}"),
                Err(_) => assert_eq!(expected, "error", "{yaml}"),
            }
        }
    }

    #[test]
    fn read_documents_skips_empty_documents() {
        assert_eq!(json("---\n---\na: 1\n---\n# only a comment\n"), [r#"{"a":1}"#]);
        assert_eq!(json(""), Vec::<String>::new());
    }

    #[test]
    fn position_of_finds_field_line() {
        let document = &read_documents("kind: Release\ntasks:\n  - id: a\n    tags: [x]\n  - id: b\n").unwrap()[0];
        for (path, place) in [
            ("kind", "1:1"),
            ("tasks", "2:1"),
            ("tasks[0].tags[0]", "4:12"),
            ("tasks[1].id", "5:5"),
            ("tasks[1].nothing", "5:5"),
            ("", "1:1"),
        ] {
            assert_eq!(document.position_of(path).to_string(), place, "{path}");
        }
    }

    #[test]
    fn y09_position_in_file_finds_line_of_block() {
        let text = "a: |\n    x\n    y\nb:\n  - |2+\n\n      z\n  - >\n    folded\n  - \"q\"\nc: &c |-\n  w\nd: *c\n";
        let document = &read_documents(text).unwrap()[0];
        let second = |path: &str| {
            Some(document.block_starts.get(path)?.position_in_file(SourcePosition { line: 2, column: 3 }).to_string())
        };
        for (path, place) in
            [("a", Some("3:7")), ("b[0]", Some("7:7")), ("b[1]", None), ("b[2]", None), ("c", Some("13:5")), ("d", Some("13:5"))]
        {
            assert_eq!(second(path).as_deref(), place, "{path}");
        }
        assert_eq!(document.sub_document("b").block_starts.keys().collect::<Vec<_>>(), ["[0]"]);
    }

    #[test]
    fn yaml_error_has_position() {
        for (yaml, expected) in [
            ("a: 1\na: 2", "2:1: the key \"a\" occurs twice in one map: keep one of them"),
            ("[x]: 1", "1:1: a key must be text"),
            ("a: !!python/object:os.system {}", "1:4: the tag !!python/object:os.system is not supported: remove it"),
            ("a: !secret x", "1:4: the tag !secret is not supported: remove it"),
            ("a: !!binary [x]", "1:4: the tag !!binary is not supported"),
            ("a: !!int 0x1F", "1:4: \"0x1F\" is no !!int as JSON writes one: correct it, or remove the tag"),
            ("a: !!int 1.5", "1:4: \"1.5\" is no !!int"),
            ("a: !!float .inf", "1:4: \".inf\" is no !!float"),
            ("a: !!bool yes", "1:4: \"yes\" is no !!bool"),
            ("a: !!null x", "1:4: \"x\" is no !!null"),
            ("a: !!map x", "1:4: \"x\" is no !!map"),
            ("a: [1", "2:1: no YAML: while parsing a flow sequence"),
            ("a: 1\n\0b: 2", "2:1: no YAML: found unprintable character; take the character out, or write it as an escape"),
            ("a: b\n\tc: d", "1:4: no YAML: while scanning a plain scalar, found a tab; indent with spaces"),
        ] {
            let text = read_documents(yaml).unwrap_err().to_string();
            assert!(text.starts_with(expected), "{yaml}: {text}");
        }
        let bomb = format!("a: &a [x, x, x, x, x, x, x, x, x, x]\n{}", {
            let names: Vec<char> = ('a'..='i').collect();
            names
                .windows(2)
                .map(|pair| format!("{1}: &{1} [{0}]\n", vec![format!("*{}", pair[0]); 10].join(", "), pair[1]))
                .collect::<String>()
        });
        assert!(read_documents(&bomb).unwrap_err().what.contains("more than 1000000 values"));
        assert!(read_documents(&"[".repeat(100)).is_err());
    }
}
