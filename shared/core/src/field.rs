//! The type of a manifest's field, and what an author must know to set it.
//!
//! [`manifest_struct!`] generates a type that a manifest is read into and the table of its fields, from the same rows.
//! So the reader accepts no field that the reference lacks, and the reference has none that the reader refuses.

use std::fmt::Display;
use std::str::FromStr;

use serde_json::{Map, Value};

/// The JSON type of a field, for the description of the API and for authors of bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// A text.
    Text,
    /// True or false.
    Flag,
    /// A time, in the form that [`crate::time::parse`] accepts.
    Time,
    /// A duration in whole seconds, from the first to the second number.
    Seconds(u64, u64),
    /// A whole number.
    Count,
    /// Any number.
    Number,
    /// An object.
    Map,
    /// An object with these members.
    Object(&'static [FieldDef]),
    /// An object whose members are objects with these members.
    MapOf(&'static [FieldDef]),
    /// An object with the parameters of its task's type.
    Parameters,
    /// A list of objects.
    Objects,
    /// A list of objects with these members.
    ListOf(&'static [FieldDef]),
    /// A list of texts.
    Names,
    /// A list of texts; a text is a list of one.
    TextOrList,
    /// An object, or a list if one key occurs twice.
    MapOrList,
    /// A whole number, or a percentage as text.
    Share,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// Anything.
    Any,
    /// A field of that type with its own bound.
    UpTo(FieldBound, &'static FieldType),
}

/// How much a field may hold. Every type has a bound, so every field has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldBound {
    /// Maximum number of entries in a list or map.
    pub max_entries: usize,
    /// Maximum length of a text in a list of texts, or of a key of a map, in bytes.
    pub max_entry_bytes: usize,
    /// Maximum length of a text, or of any other value as JSON without white space, in bytes.
    pub max_bytes: usize,
    /// True if a text in a list of texts, a key of a map, or a required text may be empty.
    pub allows_empty: bool,
}

/// What an author must know of a field to set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Help {
    /// The effect of leaving the field out, in words. Empty if there is none; [`REQUIRED`] if it must be set.
    pub default: &'static str,
    /// True if the value of the level above comes before the default.
    pub is_inherited: bool,
    /// The meaning of the field, in one sentence.
    pub meaning: &'static str,
    /// An example value, as JSON.
    pub example: &'static str,
}

/// A field of a manifest, or a member of one. The type of a field gives its bound:
///
/// ```
/// use stemma_core::field::{FieldDef, FieldType, Help};
///
/// const HELP: Help = Help { default: "", is_inherited: false, meaning: "a name", example: "\"x\"" };
/// const NAME: FieldDef = FieldDef { name: "name", aliases: &[], field_type: FieldType::Text, help: HELP };
/// assert_eq!(NAME.field_type.bound().max_bytes, 4 * 1024);
/// ```
///
/// A field without a type, and so without a bound, does not compile:
///
/// ```compile_fail
/// use stemma_core::field::{FieldDef, FieldType, Help};
///
/// const HELP: Help = Help { default: "", is_inherited: false, meaning: "a name", example: "\"x\"" };
/// const NAME: FieldDef = FieldDef { name: "name", aliases: &[], help: HELP };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldDef {
    /// The name of the field in manifests.
    pub name: &'static str,
    /// Fuel's names for the field.
    pub aliases: &'static [&'static str],
    /// The JSON type of the field.
    pub field_type: FieldType,
    /// The help text of the field.
    pub help: Help,
}

/// The default of a field that must be set.
pub(crate) const REQUIRED: &str = "required";

/// A type with a table of its fields.
pub trait DescribeFields {
    /// The fields of the type, in order.
    const FIELD_DEFS: &'static [FieldDef];
}

/// Maximum length of a text, in bytes.
const MAX_TEXT_BYTES: usize = 4 * 1024;
/// Maximum length of a key, or of a text in a list, in bytes. No name, label key or `NAME@VERSION` is as long.
const MAX_ENTRY_BYTES: usize = 512;
/// Maximum size of JSON that the type does not describe further, in bytes.
const MAX_FREE_JSON_BYTES: usize = 64 * 1024;
/// Maximum size of a value whose entries have their own bounds, in bytes. No body is larger.
const MAX_VALUE_BYTES: usize = 8 * 1024 * 1024;

impl FieldBound {
    const fn new(bytes: usize) -> Self {
        Self { max_entries: 256, max_entry_bytes: MAX_ENTRY_BYTES, max_bytes: bytes, allows_empty: false }
    }

    /// Returns the bound with another number of entries.
    #[must_use]
    pub const fn max_entries(self, entries: usize) -> Self {
        Self { max_entries: entries, ..self }
    }

    /// Returns the bound with another length of each entry, in bytes.
    #[must_use]
    pub const fn max_entry_bytes(self, each: usize) -> Self {
        Self { max_entry_bytes: each, ..self }
    }

    /// Returns the bound with another total size, in bytes.
    #[must_use]
    pub const fn max_bytes(self, bytes: usize) -> Self {
        Self { max_bytes: bytes, ..self }
    }

    /// Returns the bound with empty entries allowed: where an empty entry has a meaning, or where the reader of the
    /// field refuses it with its own message.
    #[must_use]
    pub const fn allowing_empty(self) -> Self {
        Self { allows_empty: true, ..self }
    }
}

impl FieldType {
    /// Returns the type with another number of entries.
    pub const fn up_to(entries: usize, inner: &'static Self) -> Self {
        Self::UpTo(inner.bound().max_entries(entries), inner)
    }

    /// Returns the bound of a field of this type.
    pub const fn bound(self) -> FieldBound {
        match self {
            Self::Text
            | Self::Time
            | Self::Seconds(..)
            | Self::Flag
            | Self::Count
            | Self::Number
            | Self::Share
            | Self::OneOf(_) => FieldBound::new(MAX_TEXT_BYTES),
            Self::Map | Self::Objects | Self::Any => FieldBound::new(MAX_FREE_JSON_BYTES),
            // The maximum size of all of its expressions together.
            Self::MapOrList => FieldBound::new(4 * MAX_FREE_JSON_BYTES),
            // A script and its environment.
            Self::Parameters => FieldBound::new(16 * MAX_FREE_JSON_BYTES),
            Self::Object(_) | Self::MapOf(_) | Self::ListOf(_) | Self::Names => FieldBound::new(MAX_VALUE_BYTES),
            // A task may name all tasks of its release, whose ids are longer than names.
            Self::TextOrList => FieldBound::new(MAX_VALUE_BYTES).max_entries(4096).max_entry_bytes(1024),
            Self::UpTo(bound, _) => bound,
        }
    }

    /// Returns the empty value of a type, or the only value of a type that has one. Returns `None` for a type without
    /// an empty value.
    #[must_use]
    pub fn empty_value(self) -> Option<Value> {
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

    /// Returns the type without its own bound, if it has one.
    #[must_use]
    pub const fn plain(self) -> Self {
        if let Self::UpTo(_, inner) = self { inner.plain() } else { self }
    }

    /// Returns the members of the objects that a field of this type contains. Empty if the type does not define them.
    pub fn members(self) -> &'static [FieldDef] {
        match self {
            Self::Object(parts) | Self::MapOf(parts) | Self::ListOf(parts) => parts,
            Self::UpTo(_, inner) => inner.members(),
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

    /// Returns a description in a word or two, for people.
    pub fn description(self) -> String {
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
            Self::UpTo(_, inner) => inner.description(),
        }
    }
}

impl Help {
    /// Creates the help of a field from the three columns of its row.
    pub const fn new(default: &'static str, meaning: &'static str, example: &'static str) -> Self {
        Self { default, is_inherited: false, meaning, example }
    }

    /// Sets whether the level above can provide the value.
    #[must_use]
    pub const fn with_inherited(self, inherited: bool) -> Self {
        Self { is_inherited: inherited, ..self }
    }

    /// Returns the effect of leaving the field out, in words.
    pub fn default_text(&self) -> String {
        format!("{}{}", if self.is_inherited { "the value of the level above, else " } else { "" }, self.default)
    }
}

impl FieldDef {
    /// Creates a field without other names.
    pub const fn new(name: &'static str, form: FieldType, help: Help) -> Self {
        Self { name, aliases: &[], field_type: form, help }
    }

    /// Returns whether this is one of its names.
    pub fn has_name(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    /// Returns whether it must be set.
    pub(crate) fn is_required(&self) -> bool {
        self.help.default == REQUIRED
    }
}

/// Generates a struct and the table of its fields. A row is `field: type = field type, default, example;`. The first
/// line of the field's documentation is its meaning. The name in a manifest follows `as`, and Fuel's names follow `or`.
macro_rules! manifest_struct {
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

        impl $crate::field::DescribeFields for $typed {
            const FIELD_DEFS: &'static [$crate::field::FieldDef] = &[$($crate::field::FieldDef {
                name: [$($name,)? stringify!($field)][0],
                aliases: &[$($($alias),+)?],
                field_type: $form,
                help: $crate::field::Help::new($default, $meaning.trim_ascii(), $example),
            }),+];
        }
    };
}
pub(crate) use manifest_struct;

/// Parses a whole number from a text where JSON does not give its type: in a query, an option, or a field of Magnum's.
/// The notation is that of JSON: no blank, no `+` and no leading zero.
pub fn parse_integer<N: FromStr + Display>(text: &str) -> Option<N> {
    text.parse().ok().filter(|number: &N| number.to_string() == text)
}

/// Parses a boolean as `OpenStack` does: `1 t true on y yes`, `0 f false off n no`, in any case, trimmed.
pub fn parse_boolean(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "on" | "y" | "yes" => Some(true),
        "0" | "f" | "false" | "off" | "n" | "no" => Some(false),
        _ => None,
    }
}
