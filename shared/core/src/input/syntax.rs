//! The text of references: one spelling for each, read back strictly.
//!
//! It looks as an author writes it, so that `explain` and errors need no translation. A second spelling
//! would be a second digest, so [`parse`] refuses what the printer would not have printed.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use super::path::{Path, is_identifier, write_key, write_literal};
use super::read::{Fields, Names, Query, Read};

fn write_names(out: &mut impl fmt::Write, names: &Names) -> fmt::Result {
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

fn write_fields(out: &mut impl fmt::Write, fields: &Fields) -> fmt::Result {
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

/// The canonical text of a read.
pub(super) fn print(read: &Read) -> String {
    let mut out = String::new();
    write_read(&mut out, read).expect("writing to a string does not fail");
    out
}

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

fn write_query(out: &mut String, query: &Query) -> fmt::Result {
    out.write_str("nodes(")?;
    match query {
        Query::Tag(tags) => {
            out.write_str("tag=")?;
            write_names(out, tags)?;
        }
        Query::Role(roles) => {
            out.write_str("role=")?;
            write_names(out, roles)?;
        }
        Query::TagOrRole { tags, roles } => {
            out.write_str("tag=")?;
            write_names(out, tags)?;
            out.write_str(", or_role=")?;
            write_names(out, roles)?;
        }
    }
    out.write_char(')')
}

/// Reads what [`print`] wrote; anything else is `None`.
pub(super) fn parse(text: &str) -> Option<Read> {
    let mut cursor = Cursor { rest: text };
    let read = cursor.read()?;
    (cursor.rest.is_empty() && print(&read) == text).then_some(read)
}

struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
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

    fn fields(&mut self) -> Option<Fields> {
        if self.eat("{").is_none() {
            return Some(Fields::default());
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

    fn names(&mut self) -> Option<Names> {
        if self.eat("[").is_none() {
            return Names::new([self.literal()?]);
        }
        let mut names = Vec::new();
        loop {
            names.push(self.literal()?);
            if self.eat("]").is_some() {
                return Names::new(names);
            }
            self.eat(", ")?;
        }
    }

    fn query(&mut self) -> Option<Query> {
        self.eat("(")?;
        let query = if self.eat("role=").is_some() {
            Query::Role(self.names()?)
        } else {
            self.eat("tag=")?;
            let tags = self.names()?;
            match self.eat(", or_role=") {
                Some(()) => Query::TagOrRole { tags, roles: self.names()? },
                None => Query::Tag(tags),
            }
        };
        self.eat(")")?;
        Some(query)
    }
}
