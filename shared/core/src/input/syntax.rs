//! The text of references: one spelling for each, parsed strictly.
//!
//! The text looks like what an author writes, so `explain` and errors need no translation. A second spelling would give
//! a second digest, so [`parse`] refuses any text that [`to_text`] would not produce.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use super::path::{Path, is_identifier, write_key, write_literal};
use super::read::{FieldSet, NamePatterns, NodeQuery, Read};

/// Writes a single name as a literal, and several names as a list.
fn write_names(out: &mut impl fmt::Write, names: &NamePatterns) -> fmt::Result {
    if let [name] = names.as_slice() {
        return write_literal(out, name);
    }
    out.write_char('[')?;
    for (n, name) in names.as_slice().iter().enumerate() {
        out.write_str(if n == 0 { "" } else { ", " })?;
        write_literal(out, name)?;
    }
    out.write_char(']')
}

/// Writes the fields that are read from looked-up nodes in braces, or nothing if only their number is read.
fn write_fields(out: &mut impl fmt::Write, fields: &FieldSet) -> fmt::Result {
    if fields.is_empty() {
        return Ok(());
    }
    for (n, field) in fields.iter().enumerate() {
        let text = field.to_string();
        out.write_str(if n == 0 { "{" } else { ", " })?;
        out.write_str(text.strip_prefix('.').unwrap_or(&text))?;
    }
    out.write_char('}')
}

/// Returns the canonical text of a read.
pub(super) fn to_text(read: &Read) -> String {
    let mut out = String::new();
    write_read(&mut out, read).expect("writing to a string does not fail");
    out
}

/// Writes the canonical text of a read.
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

fn write_call(out: &mut String, function: &str, literal: &str) -> fmt::Result {
    write!(out, "{function}(")?;
    write_literal(out, literal)?;
    out.write_char(')')
}

/// Writes the look-up of nodes by tags, by roles or by either.
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

/// Parses a text that [`to_text`] produced. Returns `None` for any other text.
pub(super) fn parse(text: &str) -> Option<Read> {
    let mut cursor = Cursor { rest: text };
    let read = cursor.read()?;
    (cursor.rest.is_empty() && to_text(&read) == text).then_some(read)
}

/// The rest of a reference's text that is not parsed yet. Each method parses a part at its start, or returns `None`.
struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    /// Parses a read. What it reads is determined by the first identifier, or by the text after a literal.
    fn read(&mut self) -> Option<Read> {
        if self.rest.starts_with('\'') {
            let name = self.literal()?;
            let read = if self.rest == " in traits" { Read::Trait(name) } else { Read::Tag(name) };
            return self.eat(" in traits").or_else(|| self.eat(" in tags")).map(|()| read);
        }
        match self.identifier()? {
            "labels" => match *self.keys()? {
                [ref key] => Some(Read::Label(key.clone())),
                _ => None,
            },
            "params" => Some(Read::Parameter(self.path()?)),
            "facts" => Some(Read::Fact(self.path()?)),
            "node" => Some(Read::Node(self.path()?)),
            "cluster" => Some(Read::Cluster(self.path()?)),
            "labels_with_prefix" => Some(Read::LabelsWithPrefix(self.argument()?)),
            "secret" => Some(Read::Secret(self.argument()?)),
            "primary" => Some(Read::Primary { tag: self.argument()?, fields: self.fields()? }),
            "nodes" => Some(Read::Nodes { query: self.query()?, fields: self.fields()? }),
            _ => None,
        }
    }

    fn eat(&mut self, token: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(token)?;
        Some(())
    }

    fn identifier(&mut self) -> Option<&'a str> {
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        is_identifier(name).then_some(name)
    }

    /// Parses a literal in single quotes, in which a backslash precedes quotes and backslashes.
    fn literal(&mut self) -> Option<Box<str>> {
        self.eat("'")?;
        let mut out = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\'' => {
                    self.rest = &self.rest[at + 1..];
                    return Some(out.into());
                }
                '\\' => out.push(chars.next()?.1),
                c => out.push(c),
            }
        }
        None
    }

    fn argument(&mut self) -> Option<Box<str>> {
        self.eat("(")?;
        let literal = self.literal()?;
        self.eat(")")?;
        Some(literal)
    }

    /// Parses keys, each as `.x` or `['a/b']`, up to the first text that is neither.
    fn keys(&mut self) -> Option<Box<[Box<str>]>> {
        let mut keys = Vec::new();
        loop {
            if self.eat(".").is_some() {
                keys.push(self.identifier()?.into());
            } else if self.rest.starts_with("['") {
                self.eat("[")?;
                keys.push(self.literal()?);
                self.eat("]")?;
            } else {
                return Some(keys.into());
            }
        }
    }

    fn path(&mut self) -> Option<Path> {
        Path::new(self.keys()?)
    }

    /// Parses the fields in braces, or no fields if there is no brace.
    fn fields(&mut self) -> Option<FieldSet> {
        if self.eat("{").is_none() {
            return Some(FieldSet::default());
        }
        let mut fields = BTreeSet::new();
        loop {
            let first: Box<str> = self.identifier()?.into();
            fields.insert(Path::new(std::iter::once(first).chain(self.keys()?))?);
            if self.eat("}").is_some() {
                return Some(fields.into_iter().collect());
            }
            self.eat(", ")?;
        }
    }

    /// Parses one name, or a list of names in brackets.
    fn names(&mut self) -> Option<NamePatterns> {
        if self.eat("[").is_none() {
            return NamePatterns::new([self.literal()?]);
        }
        let mut names = Vec::new();
        loop {
            names.push(self.literal()?);
            if self.eat("]").is_some() {
                return NamePatterns::new(names);
            }
            self.eat(", ")?;
        }
    }

    /// Parses the arguments of `nodes(…)`.
    fn query(&mut self) -> Option<NodeQuery> {
        self.eat("(")?;
        let query = if self.eat("role=").is_some() {
            NodeQuery::Role(self.names()?)
        } else {
            self.eat("tag=")?;
            let tags = self.names()?;
            match self.eat(", or_role=") {
                Some(()) => NodeQuery::TagOrRole { tags, roles: self.names()? },
                None => NodeQuery::Tag(tags),
            }
        };
        self.eat(")")?;
        Some(query)
    }
}
