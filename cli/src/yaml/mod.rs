//! Converts YAML to JSON text with the position of every field, and values to YAML.
//!
//! The API accepts JSON. A number in a label must have the text that its author wrote, so a YAML number must not be
//! converted to a float. So no library converts YAML to values here, and the events of the parser are written as JSON
//! text. The core schema of YAML 1.2 decides what is null, a boolean or a number (`yes` and `on` are text). A number
//! that JSON cannot express (`0x1F`, `+1`, `.5`) becomes text too. Aliases and `<<` are expanded within limits. A
//! duplicate key is an error, so that no value is lost silently. A `<<` in quotes is an ordinary key.

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

/// The maximum number of values in one file, after aliases are expanded.
pub(crate) const MAX_NODES: usize = 1_000_000;
/// The names of the types of YAML's core schema, as tags write them after `!!`.
const CORE_TYPES: [&str; 7] = ["str", "int", "float", "bool", "null", "seq", "map"];

/// One document of a YAML or JSON file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlDocument {
    /// The JSON text of the document.
    pub json: String,
    /// The position at which the document starts.
    pub position: SourcePosition,
    /// The position of each field, by path (`tasks[2].id`).
    pub positions: BTreeMap<String, SourcePosition>,
    /// The start of the text in each literal block (`|`), by path. Each line of such a text is one line of the file.
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
    /// One sentence with the error, and in many cases with advice to correct it.
    pub what: String,
}

impl YamlDocument {
    /// Deserializes the document as a `T`.
    ///
    /// # Errors
    /// Fails with [`BodyError`] if the document is not a `T`, is nested deeper than [`MAX_DEPTH`], or has a number that
    /// does not fit into 64 bits.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, BodyError> {
        stemma_core::manifest::read_json(self.raw())
    }

    /// Deserializes the document as an object or as a part of an object. Numbers in its labels and annotations become
    /// text, with the digits of the document.
    ///
    /// # Errors
    /// Fails with [`BodyError`] if the document is not a `T`, if it is nested deeper than [`MAX_DEPTH`], or if a number
    /// outside labels and annotations does not fit into 64 bits.
    pub fn read_body<T: DeserializeOwned>(&self) -> Result<T, BodyError> {
        stemma_core::manifest::read_json(&with_label_texts(self.raw()))
    }

    /// Returns the document as a value, for callers that do not need exact numbers. A number that a JSON value cannot
    /// represent exactly becomes its text.
    pub(crate) fn to_value(&self) -> serde_json::Value {
        parse_value_with_inexact_texts(self.raw())
    }

    /// Returns the JSON text as a raw value.
    fn raw(&self) -> &RawValue {
        serde_json::from_str(&self.json).expect("a document is written down as JSON")
    }

    /// Returns the part of the document at `path`, with its positions and without its JSON text. The caller must set
    /// the JSON text before it reads the part. The paths in the part are relative to `path`.
    #[must_use]
    pub fn sub_document(&self, path: &str) -> Self {
        let relocate =
            |(key, place): (&String, &SourcePosition)| Some((key.strip_prefix(path)?.trim_start_matches('.').to_owned(), *place));
        let part = |source: &BTreeMap<String, SourcePosition>| source.iter().filter_map(relocate).collect();
        Self {
            json: String::new(),
            position: self.position_of(path),
            positions: part(&self.positions),
            block_starts: part(&self.block_starts),
        }
    }

    /// Returns the position of a field, or of the nearest enclosing field that has a position.
    #[must_use]
    pub fn position_of(&self, path: &str) -> SourcePosition {
        let mut path = path;
        loop {
            if let Some(position) = self.positions.get(path) {
                return *position;
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = &path[..end],
                None => return self.position,
            }
        }
    }
}

impl SourcePosition {
    /// The position of the first character of a text.
    const START: Self = Self { line: 1, column: 1 };

    /// Converts a position in a block of text to a position in the file. The block begins at `self`, and all of its
    /// lines have the same indentation.
    #[must_use]
    pub fn position_in_file(self, position: Self) -> Self {
        Self { line: self.line + position.line - 1, column: self.column + position.column - 1 }
    }
}

/// Reads every document of a file and skips empty ones. JSON is YAML, so a JSON file can be read too.
///
/// # Errors
/// Fails with [`YamlError`] if the text is not YAML, a key is a duplicate or not text, a tag is not supported or does
/// not fit its value, an alias or `<<` is invalid, or a limit is exceeded.
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
                // An empty document is read as null.
                if !matches!(&node.value, YamlValue::Scalar(text) if text == "null") {
                    documents.push(node.to_document());
                }
            }
            _ => {}
        }
    }
}

/// The maximum number of lines from the start of a block scalar to the first line of its text, without blank lines: one
/// line each for its anchor, its tag, its `|`, and that first line.
const MAX_BLOCK_HEAD_LINES: usize = 4;

/// A YAML value with its position in the file.
#[derive(Clone)]
struct YamlNode {
    position: SourcePosition,
    /// The start of the text, if this is a literal block.
    block_start: Option<SourcePosition>,
    value: YamlValue,
}

/// The content of a [`YamlNode`].
#[derive(Clone)]
enum YamlValue {
    /// The JSON text of a null, boolean, number or text.
    Scalar(String),
    Sequence(Vec<YamlNode>),
    Mapping(Vec<(String, YamlNode)>),
}

/// The state of reading a file: the parser's events, and the values of the anchors that were read.
struct YamlReader<'input> {
    events: Parser<'input, saphyr_parser::StrInput<'input>>,
    lines: Vec<&'input str>,
    /// The value of each anchor, by the number that the parser gives the anchor.
    anchors: HashMap<usize, YamlNode>,
    /// The number of values that were read, with aliases expanded.
    nodes: usize,
    position: SourcePosition,
}

impl<'input> YamlReader<'input> {
    /// Returns the next event of the parser, and stores its position in `self.position`.
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

    /// Returns an error at the position of the last event.
    fn error(&self, message: impl Into<String>) -> YamlError {
        YamlError { at: self.position, what: message.into() }
    }

    /// Adds to the number of values. Fails if the file has more than [`MAX_NODES`].
    fn add_nodes(&mut self, count: usize) -> Result<(), YamlError> {
        self.nodes += count;
        if self.nodes > MAX_NODES {
            return Err(self.error(format!("more than {MAX_NODES} values with aliases expanded: split the file")));
        }
        Ok(())
    }

    /// Reads the value that begins with an event. An alias is replaced with a copy of its value. `depth` is the number
    /// of lists and maps around the value. Fails if it exceeds [`MAX_DEPTH`]. The nesting in the copy is not counted.
    fn read_node(&mut self, event: Event<'input>, depth: usize) -> Result<YamlNode, YamlError> {
        if depth > MAX_DEPTH {
            return Err(self.error(format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.add_nodes(1)?;
        let start = self.position;
        let block = match &event {
            Event::Scalar(text, ScalarStyle::Literal, ..) => self.block_start(text),
            _ => None,
        };
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = match self.tag_type(tag.as_deref())? {
                    None => scalar_json(&text, style == ScalarStyle::Plain),
                    Some(type_name) => tagged_scalar(&text, type_name).ok_or_else(|| self.error(tag_error(&text, type_name)))?,
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
                let anchored_node = self.anchors.get(&id).cloned();
                let node = anchored_node.ok_or_else(|| self.error("an alias of a value that contains the alias"))?;
                self.add_nodes(node.size())?;
                return Ok(node);
            }
            _ => return Err(self.error("a value is missing here")),
        };
        let node = YamlNode { position: start, block_start: block, value };
        // The parser numbers anchors from 1. The number 0 means that the value has no anchor.
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    /// Returns the position of the first character of a literal block's text, after the indentation. The parser reports
    /// only the first line that is not blank, or an anchor or tag before the text. So the text's first line that is not
    /// blank is searched from there. `None` if the search fails.
    fn block_start(&self, text: &str) -> Option<SourcePosition> {
        let (blank_lines, first_text) = text.lines().enumerate().find(|(_, line)| !line.trim().is_empty())?;
        let is_first_text = |line: &&str| line.trim_start_matches(' ') == first_text.trim_start_matches(' ');
        let start_line = self.position.line.checked_sub(1)?;
        let distance = self.lines.get(start_line..)?.iter().take(blank_lines + MAX_BLOCK_HEAD_LINES).position(is_first_text)?;
        let line = self.lines.get(start_line + distance)?;
        let indent = line.len().checked_sub(first_text.len())?;
        // Lines count from 1. The blank lines before the line that was found belong to the text.
        Some(SourcePosition { line: (start_line + distance + 1).checked_sub(blank_lines)?, column: indent + 1 })
    }

    /// Returns the type that a tag names, such as `int`, or `None` without a tag. An unknown tag is an error, because
    /// the value would lose its meaning without the tag.
    fn tag_type(&self, tag: Option<&Tag>) -> Result<Option<&'static str>, YamlError> {
        let Some(tag) = tag else { return Ok(None) };
        let core_type = CORE_TYPES.iter().find(|name| tag.is_yaml_core_schema() && tag.suffix == **name);
        let tag_text = if tag.is_yaml_core_schema() { format!("!!{}", tag.suffix) } else { tag.to_string() };
        let message =
            || format!("the tag {tag_text} is not supported: remove it; the supported tags are !!{}", CORE_TYPES.join(", !!"));
        core_type.map(|name| Some(*name)).ok_or_else(|| self.error(message()))
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

    /// Reads a map until its end. A duplicate key is an error. The value of the key `<<` has entries for this map: they
    /// are added at the end, if the map does not have their keys.
    fn read_mapping(&mut self, depth: usize) -> Result<YamlValue, YamlError> {
        let mut entries: Vec<(String, YamlNode)> = Vec::new();
        let mut merge_values = Vec::new();
        let mut seen_keys = std::collections::HashSet::new();
        loop {
            let (key, is_merge) = match self.next_event()? {
                Event::MappingEnd => break,
                Event::Scalar(text, style, _, _) => (text.clone().into_owned(), text == "<<" && style == ScalarStyle::Plain),
                _ => return Err(self.error("a key must be text")),
            };
            let is_duplicate = !seen_keys.insert((key.clone(), is_merge));
            if is_duplicate {
                return Err(self.error(format!("the key {key:?} occurs twice in one map: keep one of them")));
            }
            let key_position = self.position;
            let event = self.next_event()?;
            let mut node = self.read_node(event, depth + 1)?;
            if is_merge {
                merge_values.push(node);
            } else {
                node.position = key_position;
                entries.push((key, node));
            }
        }
        for node in merge_values {
            self.merge_entries(&mut entries, node)?;
        }
        Ok(YamlValue::Mapping(entries))
    }

    /// Adds the entries of a `<<` value to a map: those whose keys the map does not have. The value is a map or a list
    /// of maps, in which an earlier map wins over a later one.
    fn merge_entries(&self, entries: &mut Vec<(String, YamlNode)>, node: YamlNode) -> Result<(), YamlError> {
        match node.value {
            YamlValue::Mapping(merged) => {
                for (key, node) in merged {
                    if !entries.iter().any(|(present_key, _)| *present_key == key) {
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
    /// Returns the number of values in the node, including the node itself.
    fn size(&self) -> usize {
        1 + match &self.value {
            YamlValue::Scalar(_) => 0,
            YamlValue::Sequence(items) => items.iter().map(Self::size).sum(),
            YamlValue::Mapping(entries) => entries.iter().map(|(_, node)| node.size()).sum(),
        }
    }

    /// Returns the document whose content is this node: its JSON text, and the positions of its fields.
    fn to_document(&self) -> YamlDocument {
        let (places, texts) = (BTreeMap::new(), BTreeMap::new());
        let mut document = YamlDocument { json: String::new(), position: self.position, positions: places, block_starts: texts };
        self.write(&mut String::new(), &mut document);
        document
    }

    /// Appends the value to the JSON text of `document`, and stores the position of each field. `path` is the path of
    /// this value.
    fn write(&self, path: &mut String, document: &mut YamlDocument) {
        if !path.is_empty() {
            document.positions.insert(path.clone(), self.position);
        }
        if let Some(start) = self.block_start {
            document.block_starts.insert(path.clone(), start);
        }
        match &self.value {
            YamlValue::Scalar(text) => document.json.push_str(text),
            YamlValue::Sequence(items) => {
                document.json.push('[');
                for (index, item) in items.iter().enumerate() {
                    write_separator(&mut document.json, index);
                    with_step(path, &format!("[{index}]"), |path| item.write(path, document));
                }
                document.json.push(']');
            }
            YamlValue::Mapping(entries) => {
                document.json.push('{');
                for (index, (key, node)) in entries.iter().enumerate() {
                    write_separator(&mut document.json, index);
                    document.json.push_str(&quoted(key));
                    document.json.push(':');
                    let step = if path.is_empty() { key.clone() } else { format!(".{key}") };
                    with_step(path, &step, |path| node.write(path, document));
                }
                document.json.push('}');
            }
        }
    }
}

/// Calls `write` with the path extended by one step. Afterwards, the path is as it was.
fn with_step(path: &mut String, step: &str, write: impl FnOnce(&mut String)) {
    let length = path.len();
    path.push_str(step);
    write(path);
    path.truncate(length);
}

/// Writes a comma before every item but the first.
fn write_separator(json: &mut String, index: usize) {
    if index > 0 {
        json.push(',');
    }
}

/// Converts a position of the parser, which counts columns from 0.
fn position_from_marker(marker: Marker) -> SourcePosition {
    SourcePosition { line: marker.line(), column: marker.col() + 1 }
}

/// Returns an error text: the parser's reason, and advice about the most likely cause.
fn syntax_error(reason: &str) -> String {
    let advice = match reason {
        _ if reason.contains("unprintable") => "; remove the character, or write it as an escape in double quotes",
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

/// Returns the JSON text of a scalar. Only a plain scalar, which has no quotes, can be null, a boolean or a number.
fn scalar_json(text: &str, is_plain: bool) -> String {
    match text {
        "" | "~" | "null" | "Null" | "NULL" if is_plain => "null".to_owned(),
        "true" | "True" | "TRUE" if is_plain => "true".to_owned(),
        "false" | "False" | "FALSE" if is_plain => "false".to_owned(),
        _ if is_plain && is_json_number(text) => text.to_owned(),
        _ => quoted(text),
    }
}

/// Returns the JSON text of a scalar with an explicit tag, such as `!!int`. Quotes around the scalar have no effect.
/// `None` if the scalar does not have the type of the tag.
fn tagged_scalar(text: &str, type_name: &str) -> Option<String> {
    let json = scalar_json(text, true);
    let has_type = match type_name {
        "str" => return Some(quoted(text)),
        "int" => is_json_number(text) && !text.contains(['.', 'e', 'E']),
        "float" => is_json_number(text),
        "bool" => matches!(&*json, "true" | "false"),
        "null" => json == "null",
        // A list or a map is not a scalar.
        _ => false,
    };
    has_type.then_some(json)
}

/// Returns the error text for a scalar that does not have the type of its tag. Shows at most 64 characters of the
/// scalar.
fn tag_error(text: &str, type_name: &str) -> String {
    let text: String = text.chars().take(64).collect();
    format!("{text:?} is no !!{type_name} as JSON writes one: correct it, or remove the tag")
}

/// Returns whether a text is a number in JSON.
fn is_json_number(text: &str) -> bool {
    text.starts_with(|first: char| first == '-' || first.is_ascii_digit()) && serde_json::from_str::<&RawValue>(text).is_ok()
}

/// Returns a text as a JSON string, in quotes.
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
        for (path, expected) in [
            ("kind", "1:1"),
            ("tasks", "2:1"),
            ("tasks[0].tags[0]", "4:12"),
            ("tasks[1].id", "5:5"),
            ("tasks[1].nothing", "5:5"),
            ("", "1:1"),
        ] {
            assert_eq!(document.position_of(path).to_string(), expected, "{path}");
        }
    }

    #[test]
    fn y09_position_in_file_finds_line_of_block() {
        let text = "a: |\n    x\n    y\nb:\n  - |2+\n\n      z\n  - >\n    folded\n  - \"q\"\nc: &c |-\n  w\nd: *c\n";
        let document = &read_documents(text).unwrap()[0];
        // The place in the file of line 2, column 3 of a block.
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
            ("a: 1\n\0b: 2", "2:1: no YAML: found unprintable character; remove the character, or write it as an escape"),
            ("a: b\n\tc: d", "1:4: no YAML: while scanning a plain scalar, found a tab; indent with spaces"),
        ] {
            let text = read_documents(yaml).unwrap_err().to_string();
            assert!(text.starts_with(expected), "{yaml}: {text}");
        }
        // Each list contains the list before it ten times, so the aliases expand to more than a million values.
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
