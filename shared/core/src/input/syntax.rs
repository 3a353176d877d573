//! The text of references: one spelling for each, parsed strictly.
//!
//! The text is similar to the text that an author writes. Only the fields of a look-up (`primary('w'){name}`) are
//! written in another way, so messages show the text of `Reference::display_text` instead. A second spelling would
//! result in a second digest, so [`parse`] refuses any text that [`to_text`] would not produce.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use super::path::{Path, is_identifier, write_key, write_literal};
use super::read::{FieldSet, NamePatterns, NodeQuery, Read};

/// Writes a single name as a quoted literal, and several names as a list of literals in brackets.
fn write_names(out: &mut impl fmt::Write, names: &NamePatterns) -> fmt::Result {
    if let [name] = names.as_slice() {
        return write_literal(out, name);
    }
    out.write_char('[')?;
    for (index, name) in names.as_slice().iter().enumerate() {
        out.write_str(if index == 0 { "" } else { ", " })?;
        write_literal(out, name)?;
    }
    out.write_char(']')
}

/// Writes the fields that a look-up reads from its nodes, in braces. Writes nothing if the look-up reads no field.
fn write_fields(out: &mut impl fmt::Write, fields: &FieldSet) -> fmt::Result {
    if fields.is_empty() {
        return Ok(());
    }
    for (index, field) in fields.iter().enumerate() {
        let text = field.to_string();
        out.write_str(if index == 0 { "{" } else { ", " })?;
        // The first key of a field is without the dot that the text of a path has.
        out.write_str(text.strip_prefix('.').unwrap_or(&text))?;
    }
    out.write_char('}')
}

/// Returns the canonical text of a value to read, such as `labels.ntp`.
pub(super) fn to_text(read: &Read) -> String {
    let mut out = String::new();
    write_read(&mut out, read).expect("writing to a string does not fail");
    out
}

/// Writes the canonical text of a value to read, such as `labels.ntp`.
fn write_read(out: &mut String, read: &Read) -> fmt::Result {
    match read {
        Read::Label(key) => {
            out.write_str("labels")?;
            write_key(out, key)
        }
        Read::LabelsWithPrefix(prefix) => write_call(out, "labels_with_prefix", prefix),
        Read::Parameter(path) => write!(out, "params{path}"),
        Read::Fact(path) => write!(out, "facts{path}"),
        Read::Node(path) => write!(out, "node{path}"),
        Read::Cluster(path) => write!(out, "cluster{path}"),
        Read::Trait(name) => {
            write_literal(out, name)?;
            out.write_str(" in traits")
        }
        Read::Tag(name) => {
            write_literal(out, name)?;
            out.write_str(" in tags")
        }
        Read::Nodes { query, fields } => {
            write_query(out, query)?;
            write_fields(out, fields)
        }
        Read::Primary { tag, fields } => {
            write_call(out, "primary", tag)?;
            write_fields(out, fields)
        }
        Read::Secret(name) => write_call(out, "secret", name),
    }
}

/// Writes a call of a function with one quoted argument.
fn write_call(out: &mut String, function: &str, literal: &str) -> fmt::Result {
    write!(out, "{function}(")?;
    write_literal(out, literal)?;
    out.write_char(')')
}

/// Writes the look-up of nodes by tags, by roles, or by tags or roles.
fn write_query(out: &mut String, query: &NodeQuery) -> fmt::Result {
    out.write_str("nodes(")?;
    match query {
        NodeQuery::Tag(tags) => {
            out.write_str("tag=")?;
            write_names(out, tags)?;
        }
        NodeQuery::Role(roles) => {
            out.write_str("role=")?;
            write_names(out, roles)?;
        }
        NodeQuery::TagOrRole { tags, roles } => {
            out.write_str("tag=")?;
            write_names(out, tags)?;
            out.write_str(", or_role=")?;
            write_names(out, roles)?;
        }
    }
    out.write_char(')')
}

/// Parses a text that [`to_text`] produced. Returns `None` for any other text, even if it has the same meaning.
pub(super) fn parse(text: &str) -> Option<Read> {
    let mut cursor = Cursor { rest: text };
    let read = cursor.parse_reference()?;
    (cursor.rest.is_empty() && to_text(&read) == text).then_some(read)
}

/// The rest of a reference's text that is not parsed yet. Each method parses and removes a part at its start, or
/// returns `None` if the rest begins with something else.
struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    /// Parses a whole reference. The first identifier determines its kind. A reference that begins with a literal is a
    /// test such as `'mysql' in tags`, and the text after the literal determines the kind.
    fn parse_reference(&mut self) -> Option<Read> {
        if self.rest.starts_with('\'') {
            let name = self.parse_literal()?;
            let read = if self.rest == " in traits" { Read::Trait(name) } else { Read::Tag(name) };
            return self.consume(" in traits").or_else(|| self.consume(" in tags")).map(|()| read);
        }
        match self.parse_identifier()? {
            "labels" => match *self.parse_keys()? {
                [ref key] => Some(Read::Label(key.clone())),
                _ => None,
            },
            "params" => Some(Read::Parameter(self.parse_path()?)),
            "facts" => Some(Read::Fact(self.parse_path()?)),
            "node" => Some(Read::Node(self.parse_path()?)),
            "cluster" => Some(Read::Cluster(self.parse_path()?)),
            "labels_with_prefix" => Some(Read::LabelsWithPrefix(self.parse_argument()?)),
            "secret" => Some(Read::Secret(self.parse_argument()?)),
            "primary" => Some(Read::Primary { tag: self.parse_argument()?, fields: self.parse_fields()? }),
            "nodes" => Some(Read::Nodes { query: self.parse_query()?, fields: self.parse_fields()? }),
            _ => None,
        }
    }

    /// Removes a token from the start of the rest. Returns `None` if the rest does not begin with the token.
    fn consume(&mut self, token: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(token)?;
        Some(())
    }

    /// Parses an identifier: letters, digits and `_`, not beginning with a digit.
    fn parse_identifier(&mut self) -> Option<&'a str> {
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        is_identifier(name).then_some(name)
    }

    /// Parses a literal in single quotes and returns its content. A backslash escapes a quote or a backslash in it.
    fn parse_literal(&mut self) -> Option<Box<str>> {
        self.consume("'")?;
        let mut out = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((offset, character)) = chars.next() {
            match character {
                '\'' => {
                    self.rest = &self.rest[offset + 1..];
                    return Some(out.into());
                }
                '\\' => out.push(chars.next()?.1),
                character => out.push(character),
            }
        }
        None
    }

    /// Parses a single argument of a function: a literal in parentheses.
    fn parse_argument(&mut self) -> Option<Box<str>> {
        self.consume("(")?;
        let literal = self.parse_literal()?;
        self.consume(")")?;
        Some(literal)
    }

    /// Parses keys of the form `.x` or `['a/b']`, as many as follow. The result may be empty.
    fn parse_keys(&mut self) -> Option<Box<[Box<str>]>> {
        let mut keys = Vec::new();
        loop {
            if self.consume(".").is_some() {
                keys.push(self.parse_identifier()?.into());
            } else if self.rest.starts_with("['") {
                self.consume("[")?;
                keys.push(self.parse_literal()?);
                self.consume("]")?;
            } else {
                return Some(keys.into());
            }
        }
    }

    /// Parses a path of at least one key.
    fn parse_path(&mut self) -> Option<Path> {
        Path::new(self.parse_keys()?)
    }

    /// Parses the fields of a look-up in braces. Without an opening brace, the result is empty.
    fn parse_fields(&mut self) -> Option<FieldSet> {
        if self.consume("{").is_none() {
            return Some(FieldSet::default());
        }
        let mut fields = BTreeSet::new();
        loop {
            let first_key: Box<str> = self.parse_identifier()?.into();
            fields.insert(Path::new(std::iter::once(first_key).chain(self.parse_keys()?))?);
            if self.consume("}").is_some() {
                return Some(fields.into_iter().collect());
            }
            self.consume(", ")?;
        }
    }

    /// Parses one name, or a list of names in brackets.
    fn parse_names(&mut self) -> Option<NamePatterns> {
        if self.consume("[").is_none() {
            return NamePatterns::new([self.parse_literal()?]);
        }
        let mut names = Vec::new();
        loop {
            names.push(self.parse_literal()?);
            if self.consume("]").is_some() {
                return NamePatterns::new(names);
            }
            self.consume(", ")?;
        }
    }

    /// Parses the arguments of `nodes(…)`, with the parentheses.
    fn parse_query(&mut self) -> Option<NodeQuery> {
        self.consume("(")?;
        let query = if self.consume("role=").is_some() {
            NodeQuery::Role(self.parse_names()?)
        } else {
            self.consume("tag=")?;
            let tags = self.parse_names()?;
            match self.consume(", or_role=") {
                Some(()) => NodeQuery::TagOrRole { tags, roles: self.parse_names()? },
                None => NodeQuery::Tag(tags),
            }
        };
        self.consume(")")?;
        Some(query)
    }
}
