//! YAML to JSON text, with the line of every field; and values as YAML.
//!
//! The API takes JSON, and a label's number keeps its text as its author sent it, so a YAML number may not go
//! through a float on its way. Hence no YAML-to-value library: the parser's events are written down as JSON
//! text. The core schema of YAML 1.2 decides what is null, a boolean or a number (`yes` and `on` are text); a
//! number that JSON could not hold (`0x1F`, `+1`, `.5`) is text too. Aliases and `<<` are expanded within
//! bounds, and a key that stands twice is an error, not the last one's win. A `<<` in quotes is a key like any other.

mod escapes;
mod write;

use std::collections::{BTreeMap, HashMap};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Tag};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use stemma_core::json::value_or_texts;
use stemma_core::manifest::{BodyError, MAX_DEPTH, with_label_texts};

pub use write::block;
pub(crate) use write::is_printed;

/// The most values that one file may have, aliases expanded.
pub(crate) const MAX_NODES: usize = 1_000_000;
/// The types of YAML's core schema.
const CORE_TYPES: [&str; 7] = ["str", "int", "float", "bool", "null", "seq", "map"];

/// One document of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its JSON text.
    pub json: String,
    /// Where it begins.
    pub at: Place,
    /// Where each field stands, by path (`tasks[2].id`).
    pub places: BTreeMap<String, Place>,
    /// Where the text of each literal block (`|`) begins, by path: its lines are lines of the file.
    pub texts: BTreeMap<String, Place>,
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
#[display("{line}:{column}")]
pub struct Place {
    /// From 1.
    pub line: usize,
    /// From 1.
    pub column: usize,
}

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct YamlError {
    /// Where.
    pub at: Place,
    /// One sentence with what to do.
    pub what: String,
}

impl Document {
    /// Reads it whole.
    ///
    /// # Errors
    /// [`BodyError`], also for a number that does not fit into 64 bits.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, BodyError> {
        stemma_core::manifest::read(self.raw())
    }

    /// The same, of an object or a part of one: the numbers of its labels and annotations are texts, as they are written.
    ///
    /// # Errors
    /// [`BodyError`], also for another number that does not fit into 64 bits.
    pub fn read_body<T: DeserializeOwned>(&self) -> Result<T, BodyError> {
        stemma_core::manifest::read(&with_label_texts(self.raw()))
    }

    /// All of it, where no number is asked for: one that has no exact value is its text.
    pub(crate) fn value(&self) -> serde_json::Value {
        value_or_texts(self.raw())
    }

    fn raw(&self) -> &RawValue {
        serde_json::from_str(&self.json).expect("a document is written down as JSON")
    }

    /// A part of it, without its text.
    #[must_use]
    pub fn below(&self, path: &str) -> Self {
        let within = |(own, place): (&String, &Place)| {
            Some((own.strip_prefix(path)?.trim_start_matches('.').to_owned(), *place))
        };
        let below = |all: &BTreeMap<String, Place>| all.iter().filter_map(within).collect();
        Self { json: String::new(), at: self.place_of(path), places: below(&self.places), texts: below(&self.texts) }
    }

    /// Where a field stands, or the nearest one around it that is known.
    #[must_use]
    pub fn place_of(&self, path: &str) -> Place {
        let mut path = path;
        loop {
            if let Some(place) = self.places.get(path) {
                return *place;
            }
            match path.rfind(['.', '[']) {
                Some(cut) => path = &path[..cut],
                None => return self.at,
            }
        }
    }
}

impl Place {
    /// Where a text begins.
    const BEGINNING: Self = Self { line: 1, column: 1 };

    /// The place in a file of a place in a text that begins here and stands there line by line.
    #[must_use]
    pub fn of_text(self, within: Self) -> Self {
        Self { line: self.line + within.line - 1, column: self.column + within.column - 1 }
    }
}

/// Reads every document of a file; empty ones are left out. JSON is YAML, so a JSON file is read as well.
///
/// # Errors
/// [`YamlError`] for text that is no YAML, for a key that stands twice or is no text, and past the limits.
pub fn documents(text: &str) -> Result<Vec<Document>, YamlError> {
    let text = &escapes::with_whole_characters(text);
    let mut reader = Reader {
        events: Parser::new_from_str(text),
        lines: text.lines().collect(),
        anchors: HashMap::new(),
        nodes: 0,
        position: Place::BEGINNING,
    };
    let mut documents = Vec::new();
    loop {
        match reader.next()? {
            Event::StreamEnd => return Ok(documents),
            Event::DocumentStart(_) => {
                let event = reader.next()?;
                let node = reader.node(event, 0)?;
                if !matches!(&node.value, Value::Scalar(text) if text == "null") {
                    documents.push(node.document());
                }
            }
            _ => {}
        }
    }
}

/// Over how many lines the head of a block scalar goes at most: its anchor, its tag, its `|`.
const MOST_OF_HEAD: usize = 4;

#[derive(Clone)]
struct Node {
    at: Place,
    /// Of a literal block, where its text begins.
    text: Option<Place>,
    value: Value,
}

#[derive(Clone)]
enum Value {
    /// JSON text.
    Scalar(String),
    Sequence(Vec<Node>),
    Mapping(Vec<(String, Node)>),
}

struct Reader<'input> {
    events: Parser<'input, saphyr_parser::StrInput<'input>>,
    lines: Vec<&'input str>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    position: Place,
}

impl<'input> Reader<'input> {
    fn next(&mut self) -> Result<Event<'input>, YamlError> {
        match self.events.next_event() {
            Some(Ok((event, span))) => {
                self.position = place(span.start);
                Ok(event)
            }
            Some(Err(error)) => Err(YamlError { at: place(*error.marker()), what: unread(error.info()) }),
            None => Ok(Event::StreamEnd),
        }
    }

    fn error(&self, what: impl Into<String>) -> YamlError {
        YamlError { at: self.position, what: what.into() }
    }

    fn count(&mut self, more: usize) -> Result<(), YamlError> {
        self.nodes += more;
        if self.nodes > MAX_NODES {
            return Err(self.error(format!("more than {MAX_NODES} values with aliases expanded: split the file")));
        }
        Ok(())
    }

    fn node(&mut self, event: Event<'input>, depth: usize) -> Result<Node, YamlError> {
        if depth > MAX_DEPTH {
            return Err(self.error(format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.count(1)?;
        let at = self.position;
        let block = match &event {
            Event::Scalar(text, ScalarStyle::Literal, ..) => self.literal(text),
            _ => None,
        };
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = match self.type_of(tag.as_deref())? {
                    None => scalar(&text, style == ScalarStyle::Plain),
                    Some(named) => tagged(&text, named).ok_or_else(|| self.error(not_of(&text, named)))?,
                };
                (Value::Scalar(value), anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.type_of(tag.as_deref())?;
                (self.sequence(depth)?, anchor)
            }
            Event::MappingStart(anchor, tag) => {
                self.type_of(tag.as_deref())?;
                (self.mapping(depth)?, anchor)
            }
            Event::Alias(id) => {
                let known = self.anchors.get(&id).cloned();
                let node = known.ok_or_else(|| self.error("an alias of something that stands around it"))?;
                self.count(node.size())?;
                return Ok(node);
            }
            _ => return Err(self.error("a value is missing here")),
        };
        let node = Node { at, text: block, value };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    /// Where the text of a literal block begins, behind what it is indented by. The parser gives the place of the first line that is not
    /// blank, or that of an anchor or a tag before it.
    fn literal(&self, text: &str) -> Option<Place> {
        let (nth, first) = text.lines().enumerate().find(|(_, line)| !line.trim().is_empty())?;
        let is_first = |line: &&str| line.trim_start_matches(' ') == first.trim_start_matches(' ');
        let from = self.position.line.checked_sub(1)?;
        let ahead = self.lines.get(from..)?.iter().take(nth + MOST_OF_HEAD).position(is_first)?;
        let written = self.lines.get(from + ahead)?;
        let indent = written.len().checked_sub(first.len())?;
        Some(Place { line: (from + ahead + 1).checked_sub(nth)?, column: indent + 1 })
    }

    /// The type that a tag names; none without a tag. A tag of another program's would be passed over, and what it stands for with it.
    fn type_of(&self, tag: Option<&Tag>) -> Result<Option<&'static str>, YamlError> {
        let Some(tag) = tag else { return Ok(None) };
        let known = CORE_TYPES.iter().find(|name| tag.is_yaml_core_schema() && tag.suffix == **name);
        let written = if tag.is_yaml_core_schema() { format!("!!{}", tag.suffix) } else { tag.to_string() };
        let what = || {
            format!(
                "the tag {written} means nothing here: take it out; of tags there are !!{}",
                CORE_TYPES.join(", !!")
            )
        };
        known.map(|name| Some(*name)).ok_or_else(|| self.error(what()))
    }

    fn sequence(&mut self, depth: usize) -> Result<Value, YamlError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                Event::SequenceEnd => return Ok(Value::Sequence(items)),
                event => items.push(self.node(event, depth + 1)?),
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, YamlError> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        let mut merged = Vec::new();
        let mut seen = std::collections::HashSet::new();
        loop {
            let (key, is_merge) = match self.next()? {
                Event::MappingEnd => break,
                Event::Scalar(text, style, _, _) => {
                    (text.clone().into_owned(), text == "<<" && style == ScalarStyle::Plain)
                }
                _ => return Err(self.error("a key must be text")),
            };
            let twice = !seen.insert((key.clone(), is_merge));
            if twice {
                return Err(self.error(format!("the key {key:?} stands twice in one map: keep one of them")));
            }
            let at = self.position;
            let event = self.next()?;
            let mut node = self.node(event, depth + 1)?;
            if is_merge {
                merged.push(node);
            } else {
                node.at = at;
                entries.push((key, node));
            }
        }
        for node in merged {
            self.merge(&mut entries, node)?;
        }
        Ok(Value::Mapping(entries))
    }

    /// `<<`: keys of the maps named that do not stand here, the first map's before the second's.
    fn merge(&self, entries: &mut Vec<(String, Node)>, node: Node) -> Result<(), YamlError> {
        match node.value {
            Value::Mapping(more) => {
                for (key, node) in more {
                    if !entries.iter().any(|(own, _)| *own == key) {
                        entries.push((key, node));
                    }
                }
                Ok(())
            }
            Value::Sequence(maps) => maps.into_iter().try_for_each(|map| self.merge(entries, map)),
            Value::Scalar(_) => Err(self.error("`<<` takes a map or a list of maps")),
        }
    }
}

impl Node {
    fn size(&self) -> usize {
        1 + match &self.value {
            Value::Scalar(_) => 0,
            Value::Sequence(items) => items.iter().map(Self::size).sum(),
            Value::Mapping(entries) => entries.iter().map(|(_, node)| node.size()).sum(),
        }
    }

    fn document(&self) -> Document {
        let (places, texts) = (BTreeMap::new(), BTreeMap::new());
        let mut document = Document { json: String::new(), at: self.at, places, texts };
        self.write(&mut String::new(), &mut document);
        document
    }

    fn write(&self, path: &mut String, to: &mut Document) {
        if !path.is_empty() {
            to.places.insert(path.clone(), self.at);
        }
        if let Some(begins) = self.text {
            to.texts.insert(path.clone(), begins);
        }
        match &self.value {
            Value::Scalar(text) => to.json.push_str(text),
            Value::Sequence(items) => {
                to.json.push('[');
                for (index, item) in items.iter().enumerate() {
                    separate(&mut to.json, index);
                    within(path, &format!("[{index}]"), |path| item.write(path, to));
                }
                to.json.push(']');
            }
            Value::Mapping(entries) => {
                to.json.push('{');
                for (index, (key, node)) in entries.iter().enumerate() {
                    separate(&mut to.json, index);
                    to.json.push_str(&quoted(key));
                    to.json.push(':');
                    let step = if path.is_empty() { key.clone() } else { format!(".{key}") };
                    within(path, &step, |path| node.write(path, to));
                }
                to.json.push('}');
            }
        }
    }
}

fn within(path: &mut String, step: &str, write: impl FnOnce(&mut String)) {
    let length = path.len();
    path.push_str(step);
    write(path);
    path.truncate(length);
}

fn separate(json: &mut String, index: usize) {
    if index > 0 {
        json.push(',');
    }
}

fn place(marker: Marker) -> Place {
    Place { line: marker.line(), column: marker.col() + 1 }
}

/// The parser's reason, and what is most often behind it.
fn unread(reason: &str) -> String {
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

/// A scalar's JSON text.
fn scalar(text: &str, plain: bool) -> String {
    match text {
        "" | "~" | "null" | "Null" | "NULL" if plain => "null".to_owned(),
        "true" | "True" | "TRUE" if plain => "true".to_owned(),
        "false" | "False" | "FALSE" if plain => "false".to_owned(),
        _ if plain && is_json_number(text) => text.to_owned(),
        _ => quoted(text),
    }
}

/// The JSON text of a scalar that is of a type by its tag, in quotes or not; none where it cannot be.
fn tagged(text: &str, named: &str) -> Option<String> {
    let plain = scalar(text, true);
    let is_of = match named {
        "str" => return Some(quoted(text)),
        "int" => is_json_number(text) && !text.contains(['.', 'e', 'E']),
        "float" => is_json_number(text),
        "bool" => matches!(&*plain, "true" | "false"),
        "null" => plain == "null",
        // A list or a map is no scalar.
        _ => false,
    };
    is_of.then_some(plain)
}

fn not_of(text: &str, named: &str) -> String {
    let text: String = text.chars().take(64).collect();
    format!("{text:?} is no !!{named} as JSON writes one: mend it, or take the tag out")
}

fn is_json_number(text: &str) -> bool {
    text.starts_with(|first: char| first == '-' || first.is_ascii_digit())
        && serde_json::from_str::<&RawValue>(text).is_ok()
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Vec<String> {
        documents(text).unwrap().into_iter().map(|document| document.json).collect()
    }

    #[test]
    fn a_value_is_what_yaml_1_2_says_and_a_number_keeps_its_text() {
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
            match documents(yaml) {
                Ok(documents) => assert_eq!(documents[0].json, expected, "{yaml}"),
                Err(_) => assert_eq!(expected, "error", "{yaml}"),
            }
        }
    }

    #[test]
    fn empty_documents_are_left_out() {
        assert_eq!(json("---\n---\na: 1\n---\n# only a comment\n"), [r#"{"a":1}"#]);
        assert_eq!(json(""), Vec::<String>::new());
    }

    #[test]
    fn a_field_is_found_again_by_its_line() {
        let document = &documents("kind: Release\ntasks:\n  - id: a\n    tags: [x]\n  - id: b\n").unwrap()[0];
        for (path, place) in [
            ("kind", "1:1"),
            ("tasks", "2:1"),
            ("tasks[0].tags[0]", "4:12"),
            ("tasks[1].id", "5:5"),
            ("tasks[1].nothing", "5:5"),
            ("", "1:1"),
        ] {
            assert_eq!(document.place_of(path).to_string(), place, "{path}");
        }
    }

    #[test]
    fn y09_the_text_of_a_literal_block_is_found_again_line_by_line() {
        let text = "a: |\n    x\n    y\nb:\n  - |2+\n\n      z\n  - >\n    folded\n  - \"q\"\nc: &c |-\n  w\nd: *c\n";
        let document = &documents(text).unwrap()[0];
        let second = |path: &str| Some(document.texts.get(path)?.of_text(Place { line: 2, column: 3 }).to_string());
        for (path, place) in [
            ("a", Some("3:7")),
            ("b[0]", Some("7:7")),
            ("b[1]", None),
            ("b[2]", None),
            ("c", Some("13:5")),
            ("d", Some("13:5")),
        ] {
            assert_eq!(second(path).as_deref(), place, "{path}");
        }
        assert_eq!(document.below("b").texts.keys().collect::<Vec<_>>(), ["[0]"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (yaml, expected) in [
            ("a: 1\na: 2", "2:1: the key \"a\" stands twice in one map: keep one of them"),
            ("[x]: 1", "1:1: a key must be text"),
            (
                "a: !!python/object:os.system {}",
                "1:4: the tag !!python/object:os.system means nothing here: take it out",
            ),
            ("a: !secret x", "1:4: the tag !secret means nothing here: take it out"),
            ("a: !!binary [x]", "1:4: the tag !!binary means nothing here"),
            ("a: !!int 0x1F", "1:4: \"0x1F\" is no !!int as JSON writes one: mend it, or take the tag out"),
            ("a: !!int 1.5", "1:4: \"1.5\" is no !!int"),
            ("a: !!float .inf", "1:4: \".inf\" is no !!float"),
            ("a: !!bool yes", "1:4: \"yes\" is no !!bool"),
            ("a: !!null x", "1:4: \"x\" is no !!null"),
            ("a: !!map x", "1:4: \"x\" is no !!map"),
            ("a: [1", "2:1: no YAML: while parsing a flow sequence"),
            (
                "a: 1\n\0b: 2",
                "2:1: no YAML: found unprintable character; take the character out, or write it as an escape",
            ),
            ("a: b\n\tc: d", "1:4: no YAML: while scanning a plain scalar, found a tab; indent with spaces"),
        ] {
            let text = documents(yaml).unwrap_err().to_string();
            assert!(text.starts_with(expected), "{yaml}: {text}");
        }
        let bomb = format!("a: &a [x, x, x, x, x, x, x, x, x, x]\n{}", {
            let names: Vec<char> = ('a'..='i').collect();
            names
                .windows(2)
                .map(|pair| format!("{1}: &{1} [{0}]\n", vec![format!("*{}", pair[0]); 10].join(", "), pair[1]))
                .collect::<String>()
        });
        assert!(documents(&bomb).unwrap_err().what.contains("more than 1000000 values"));
        assert!(documents(&"[".repeat(100)).is_err());
    }
}
