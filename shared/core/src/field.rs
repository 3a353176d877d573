//! What a field of a manifest is like, and what a person must know to write it.
//!
//! [`described!`] makes a type that a manifest is read into, and the table of its fields, from the same rows. So the reader
//! takes no field that the reference does not name, and the reference names none that the reader refuses.

use std::fmt::Display;
use std::str::FromStr;

use serde_json::{Map, Value};

/// What a field's JSON is like, for whoever describes the API or writes a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Text,
    /// True or false.
    Flag,
    /// A time, as [`crate::time::read`] takes it.
    Time,
    /// A length of time in whole seconds, from the first to the second number.
    Seconds(u64, u64),
    /// A whole number.
    Count,
    /// Any number.
    Number,
    /// An object.
    Map,
    /// An object with these members.
    Object(&'static [Part]),
    /// An object whose members are objects with these members.
    MapOf(&'static [Part]),
    /// An object with the parameters of its task's type.
    Parameters,
    /// A list of objects.
    Objects,
    /// A list of objects with these members.
    ListOf(&'static [Part]),
    /// A list of texts.
    Names,
    /// A list of texts; a text is a list of one.
    TextOrList,
    /// An object, or a list where one key stands twice.
    MapOrList,
    /// A whole number, or a percentage as text.
    Share,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// Anything.
    Any,
    /// A field of that form with a bound of its own.
    UpTo(Bound, &'static Form),
}

/// What a field may hold at most. Every form has one, so no field is without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// How many entries a list or a map may have.
    pub entries: usize,
    /// How long a text in a list of texts, or a key of a map, may be, in bytes.
    pub each: usize,
    /// How long a text may be, or anything else as JSON without white space, in bytes.
    pub bytes: usize,
    /// Whether a text in a list of texts, a key of a map, or a text that is required may be empty.
    pub takes_empty: bool,
}

/// What a person must know of a field to write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Help {
    /// What holds where it is left out, in words: empty where nothing does, [`REQUIRED`] where it cannot be left out.
    pub default: &'static str,
    /// Whether the value of the level above holds before that.
    pub inherited: bool,
    /// What it means, in a sentence.
    pub meaning: &'static str,
    /// A value, as JSON.
    pub example: &'static str,
}

/// A field, or a part of one. Its form gives its bound:
///
/// ```
/// use stemma_core::field::{Form, Help, Part};
///
/// const HELP: Help = Help { default: "", inherited: false, meaning: "a name", example: "\"x\"" };
/// const NAME: Part = Part { name: "name", aliases: &[], form: Form::Text, help: HELP };
/// assert_eq!(NAME.form.bound().bytes, 4 * 1024);
/// ```
///
/// One without a form, and so without a bound, does not compile:
///
/// ```compile_fail
/// use stemma_core::field::{Form, Help, Part};
///
/// const HELP: Help = Help { default: "", inherited: false, meaning: "a name", example: "\"x\"" };
/// const NAME: Part = Part { name: "name", aliases: &[], help: HELP };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub name: &'static str,
    /// Other names of it, Fuel's.
    pub aliases: &'static [&'static str],
    /// What it is like.
    pub form: Form,
    /// For people.
    pub help: Help,
}

/// The default of a field that must be given.
pub(crate) const REQUIRED: &str = "required";

/// A type that knows its fields.
pub trait Described {
    /// Its fields, in order.
    const PARTS: &'static [Part];
}

/// The longest text, in bytes.
const TEXT: usize = 4 * 1024;
/// The longest key or text of a list, in bytes: more than any name, label key or `NAME@VERSION` has.
const ENTRY: usize = 512;
/// The largest JSON of which the form says nothing more, in bytes.
const FREE: usize = 64 * 1024;
/// The most of a value whose entries have bounds of their own, in bytes: no body is larger.
const WHOLE: usize = 8 * 1024 * 1024;

impl Bound {
    const fn of(bytes: usize) -> Self {
        Self { entries: 256, each: ENTRY, bytes, takes_empty: false }
    }

    /// The same with another number of entries.
    #[must_use]
    pub const fn entries(self, entries: usize) -> Self {
        Self { entries, ..self }
    }

    /// The same with another length of each entry, in bytes.
    #[must_use]
    pub const fn each(self, each: usize) -> Self {
        Self { each, ..self }
    }

    /// The same with other bytes in all.
    #[must_use]
    pub const fn bytes(self, bytes: usize) -> Self {
        Self { bytes, ..self }
    }

    /// The same, and what is empty is taken: where it may mean something, or where who reads it refuses it in other words.
    #[must_use]
    pub const fn with_empty(self) -> Self {
        Self { takes_empty: true, ..self }
    }
}

impl Form {
    /// The form with another number of entries.
    pub const fn up_to(entries: usize, of: &'static Self) -> Self {
        Self::UpTo(of.bound().entries(entries), of)
    }

    /// What a field of this form may hold at most.
    pub const fn bound(self) -> Bound {
        match self {
            Self::Text
            | Self::Time
            | Self::Seconds(..)
            | Self::Flag
            | Self::Count
            | Self::Number
            | Self::Share
            | Self::OneOf(_) => Bound::of(TEXT),
            Self::Map | Self::Objects | Self::Any => Bound::of(FREE),
            // As many bytes as its expressions may have together.
            Self::MapOrList => Bound::of(4 * FREE),
            // A script, and what stands in its environment.
            Self::Parameters => Bound::of(16 * FREE),
            Self::Object(_) | Self::MapOf(_) | Self::ListOf(_) | Self::Names => Bound::of(WHOLE),
            // A task may name all tasks of its release, whose ids are longer than names.
            Self::TextOrList => Bound::of(WHOLE).entries(4096).each(1024),
            Self::UpTo(bound, _) => bound,
        }
    }

    /// The value without anything in it, of a form whose default that is, and the only word of a form that has one.
    #[must_use]
    pub fn empty(self) -> Option<Value> {
        match self.plain() {
            Self::OneOf([only]) => Some((*only).into()),
            Self::Flag => Some(false.into()),
            Self::Names | Self::Objects | Self::ListOf(_) | Self::TextOrList => Some(Value::Array(Vec::new())),
            Self::Map | Self::MapOf(_) | Self::Parameters | Self::MapOrList => Some(Value::Object(Map::new())),
            Self::Text
            | Self::Time
            | Self::Seconds(..)
            | Self::Count
            | Self::Number
            | Self::Object(_)
            | Self::Share
            | Self::OneOf(_)
            | Self::Any
            | Self::UpTo(..) => None,
        }
    }

    /// The form itself, where it has a bound of its own.
    #[must_use]
    pub const fn plain(self) -> Self {
        if let Self::UpTo(_, of) = self { of.plain() } else { self }
    }

    /// The members of its objects, where they are known.
    pub fn parts(self) -> &'static [Part] {
        match self {
            Self::Object(parts) | Self::MapOf(parts) | Self::ListOf(parts) => parts,
            Self::UpTo(_, of) => of.parts(),
            Self::Text
            | Self::Time
            | Self::Seconds(..)
            | Self::Flag
            | Self::Count
            | Self::Number
            | Self::Map
            | Self::Parameters
            | Self::Objects
            | Self::Names
            | Self::TextOrList
            | Self::MapOrList
            | Self::Share
            | Self::OneOf(_)
            | Self::Any => &[],
        }
    }

    /// In a word or two, for people.
    pub fn words(self) -> String {
        match self {
            Self::Text => "text".to_owned(),
            Self::Time => "time".to_owned(),
            Self::Seconds(least, most) => format!("seconds, {least} to {most}"),
            Self::Flag => "true or false".to_owned(),
            Self::Count => "whole number".to_owned(),
            Self::Number => "number".to_owned(),
            Self::Map | Self::Object(_) | Self::Parameters => "map".to_owned(),
            Self::MapOf(_) => "map of maps, by name".to_owned(),
            Self::Objects | Self::ListOf(_) => "list of maps".to_owned(),
            Self::Names => "list of texts".to_owned(),
            Self::TextOrList => "text or list of texts".to_owned(),
            Self::MapOrList => "map, or list of maps".to_owned(),
            Self::Share => "whole number or percentage".to_owned(),
            Self::OneOf(texts) => format!("one of {}", texts.join(", ")),
            Self::Any => "any value".to_owned(),
            Self::UpTo(_, of) => of.words(),
        }
    }
}

impl Help {
    /// The three columns of a row.
    pub const fn new(default: &'static str, meaning: &'static str, example: &'static str) -> Self {
        Self { default, inherited: false, meaning, example }
    }

    /// The same field on a level that has one above it, or none.
    #[must_use]
    pub const fn inherited(self, inherited: bool) -> Self {
        Self { inherited, ..self }
    }

    /// What holds where it is left out, in words.
    pub fn default_text(&self) -> String {
        format!("{}{}", if self.inherited { "the level's above, else " } else { "" }, self.default)
    }
}

impl Part {
    /// A row without other names.
    pub const fn new(name: &'static str, form: Form, help: Help) -> Self {
        Self { name, aliases: &[], form, help }
    }

    /// Whether it is called so.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    /// Whether it must be given.
    pub(crate) fn is_required(&self) -> bool {
        self.help.default == REQUIRED
    }
}

/// Makes a struct and the table of its fields. A row is `field: type = form, default, example;` and the first line of the
/// field's documentation is its meaning. After `as` stands the name in a manifest, after `or` stand Fuel's names.
macro_rules! described {
    ($(#[$of_all:meta])* $vis:vis struct $typed:ident {$(
        #[doc = $meaning:literal]
        $(#[$of_one:meta])*
        $own:vis $field:ident $(as $name:literal)? $(or [$($alias:literal),+])?: $type:ty = $form:expr, $default:expr, $example:literal;
    )+}) => {
        $(#[$of_all])*
        $vis struct $typed {$(
            #[doc = $meaning]
            $(#[$of_one])*
            $(#[serde(rename = $name)])?
            $own $field: $type,
        )+}

        impl $crate::field::Described for $typed {
            const PARTS: &'static [$crate::field::Part] = &[$($crate::field::Part {
                name: [$($name,)? stringify!($field)][0],
                aliases: &[$($($alias),+)?],
                form: $form,
                help: $crate::field::Help::new($default, $meaning.trim_ascii(), $example),
            }),+];
        }
    };
}
pub(crate) use described;

/// The whole number that a text has, where no JSON says that it is one: in a query, an option, or a field of Magnum's. It is written as JSON
/// writes one: no blank, no `+` and no zero stands before it.
pub fn whole<N: FromStr + Display>(text: &str) -> Option<N> {
    text.parse().ok().filter(|number: &N| number.to_string() == text)
}

/// Reads a truth value as `OpenStack` does: `1 t true on y yes`, `0 f false off n no`, in any case, trimmed.
pub fn truth(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "on" | "y" | "yes" => Some(true),
        "0" | "f" | "false" | "off" | "n" | "no" => Some(false),
        _ => None,
    }
}
