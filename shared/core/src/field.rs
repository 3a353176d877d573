//! The type of a manifest's field, and what an author must know to set it.
//!
//! [`manifest_struct!`] generates a type that a manifest is read into and the table of its fields, from the same rows.
//! So the reader accepts no field that the reference lacks, and the reference has none that the reader refuses.

use std::fmt::Display;
use std::str::FromStr;

use serde_json::{Map, Value};

/// The JSON type of a field of a manifest or request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// A text.
    Text,
    /// True or false.
    Flag,
    /// A time, in the form that [`crate::time::parse`] accepts.
    Time,
    /// A duration in whole seconds, with its minimum and maximum.
    Seconds(u64, u64),
    /// A whole number that is not negative.
    Count,
    /// Any number.
    Number,
    /// An object with any members.
    Map,
    /// An object with these members and no others.
    Object(&'static [FieldDef]),
    /// An object with any keys. Each value is an object with these members.
    MapOf(&'static [FieldDef]),
    /// An object with the parameters that the type of a task defines.
    Parameters,
    /// A list of objects with any members.
    Objects,
    /// A list of objects with these members.
    ListOf(&'static [FieldDef]),
    /// A list of texts.
    Names,
    /// A list of texts, or a single text, which means a list with this text only.
    TextOrList,
    /// A map, or a list of maps and texts. In a list, a key can occur more than once. `requirements` has this type.
    MapOrList,
    /// A whole number, or a percentage as text.
    Share,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// Any JSON value.
    Any,
    /// A type with other limits than the usual ones of the type.
    UpTo(FieldBound, &'static FieldType),
}

/// The limits on the size of a field's value. Every field type has such limits, so every field has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldBound {
    /// Maximum number of entries in a list or map.
    pub max_entries: usize,
    /// Maximum length of a text in a list of texts, or of a key of a map, in bytes.
    pub max_entry_bytes: usize,
    /// Maximum length of a text, or of any other value as JSON without white space, in bytes.
    pub max_bytes: usize,
    /// True if a text without visible characters is accepted as an item of a list of texts, as a key of a map, and as
    /// the value of a field. If false, only the value of an optional field may be empty.
    pub allows_empty: bool,
}

/// The help text of a field for authors of manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Help {
    /// The effect of leaving the field out, in words. Empty if that has no effect, and [`REQUIRED`] if the field must
    /// be set.
    pub default: &'static str,
    /// True if a field that is left out has the value of the level above. The default then applies only if no level
    /// sets the field.
    pub is_inherited: bool,
    /// The meaning of the field, in one sentence.
    pub meaning: &'static str,
    /// An example value, as JSON.
    pub example: &'static str,
}

/// A field of a manifest, or a member of an object in such a field. The type of a field gives its bound:
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
    /// The other names of the field, which are those of Fuel.
    pub aliases: &'static [&'static str],
    /// The JSON type of the field.
    pub field_type: FieldType,
    /// The help text of the field.
    pub help: Help,
}

/// The value of [`Help::default`] for a field that must be set.
pub(crate) const REQUIRED: &str = "required";

/// A type that has a table of its fields.
pub trait DescribeFields {
    /// The fields of the type, in order.
    const FIELD_DEFS: &'static [FieldDef];
}

/// Usual maximum length of a text, in bytes. A field can have another maximum.
const MAX_TEXT_BYTES: usize = 4 * 1024;
/// Usual maximum length of a key of a map, or of a text in a list, in bytes. Every label key and `NAME@VERSION` is
/// shorter. The ids of tasks may be longer, so a list of them has a greater maximum.
const MAX_ENTRY_BYTES: usize = 512;
/// Usual maximum size of a JSON value whose content the field type does not describe, in bytes.
const MAX_FREE_JSON_BYTES: usize = 64 * 1024;
/// Maximum size of a value whose entries have their own limits, in bytes. It is also the maximum size of a request
/// body.
const MAX_VALUE_BYTES: usize = 8 * 1024 * 1024;

impl FieldBound {
    /// Returns the limits of a value with this maximum size, in bytes, and with the usual limits for its entries.
    const fn new(bytes: usize) -> Self {
        Self { max_entries: 256, max_entry_bytes: MAX_ENTRY_BYTES, max_bytes: bytes, allows_empty: false }
    }

    /// Returns the limits with another maximum number of entries.
    #[must_use]
    pub const fn max_entries(self, entries: usize) -> Self {
        Self { max_entries: entries, ..self }
    }

    /// Returns the limits with another maximum length of each entry, in bytes.
    #[must_use]
    pub const fn max_entry_bytes(self, bytes: usize) -> Self {
        Self { max_entry_bytes: bytes, ..self }
    }

    /// Returns the limits with another maximum size of the whole value, in bytes.
    #[must_use]
    pub const fn max_bytes(self, bytes: usize) -> Self {
        Self { max_bytes: bytes, ..self }
    }

    /// Returns the limits with empty texts and keys allowed. Used if an empty one has a meaning, or if later code
    /// refuses it with a better message.
    #[must_use]
    pub const fn allowing_empty(self) -> Self {
        Self { allows_empty: true, ..self }
    }
}

impl FieldType {
    /// Returns a type with another maximum number of entries than `inner` has.
    pub const fn up_to(entries: usize, inner: &'static Self) -> Self {
        Self::UpTo(inner.bound().max_entries(entries), inner)
    }

    /// Returns the limits on the size of a field of this type.
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
            // `requirements`: the limit covers all of its expressions together.
            Self::MapOrList => FieldBound::new(4 * MAX_FREE_JSON_BYTES),
            // The parameters of a task may contain a script and its environment.
            Self::Parameters => FieldBound::new(16 * MAX_FREE_JSON_BYTES),
            Self::Object(_) | Self::MapOf(_) | Self::ListOf(_) | Self::Names => FieldBound::new(MAX_VALUE_BYTES),
            // A list that a task has, such as `requires`, may name all tasks of a release. Their ids may be longer than
            // other names.
            Self::TextOrList => FieldBound::new(MAX_VALUE_BYTES).max_entries(4096).max_entry_bytes(1024),
            Self::UpTo(bound, _) => bound,
        }
    }

    /// Returns the value that a field of this type has without any content: an empty list or map, or `false`. If the
    /// type has a single possible text, the value is this text. Returns `None` for other types.
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

    /// Returns the type without the special limits of [`FieldType::UpTo`].
    #[must_use]
    pub const fn plain(self) -> Self {
        if let Self::UpTo(_, inner) = self { inner.plain() } else { self }
    }

    /// Returns the members of the objects that a field of this type contains. Empty if the type does not list members.
    pub fn members(self) -> &'static [FieldDef] {
        match self {
            Self::Object(fields) | Self::MapOf(fields) | Self::ListOf(fields) => fields,
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

    /// Returns the type in a few words, for people.
    pub fn description(self) -> String {
        match self {
            Self::Text => "text".to_owned(),
            Self::Time => "time".to_owned(),
            Self::Seconds(min_seconds, max_seconds) => format!("seconds, {min_seconds} to {max_seconds}"),
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
    /// Creates the help of a field from its default, its meaning and an example.
    pub const fn new(default: &'static str, meaning: &'static str, example: &'static str) -> Self {
        Self { default, is_inherited: false, meaning, example }
    }

    /// Returns the help with `is_inherited` set to this value.
    #[must_use]
    pub const fn with_inherited(self, inherited: bool) -> Self {
        Self { is_inherited: inherited, ..self }
    }

    /// Returns the effect of leaving the field out, in words. It includes the level above if the field is inherited.
    pub fn default_text(&self) -> String {
        format!("{}{}", if self.is_inherited { "the value of the level above, else " } else { "" }, self.default)
    }
}

impl FieldDef {
    /// Creates a field that has no other names.
    pub const fn new(name: &'static str, value_type: FieldType, help: Help) -> Self {
        Self { name, aliases: &[], field_type: value_type, help }
    }

    /// Returns whether this is the name of the field or one of its aliases.
    pub fn has_name(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    /// Returns whether a manifest must set the field.
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

/// Parses a whole number from a text, where the value is not a JSON number: for example in a query, an option or a
/// percentage. Returns `None` unless the text has the notation of JSON: without blanks, `+` or leading zeros.
pub fn parse_integer<N: FromStr + Display>(text: &str) -> Option<N> {
    text.parse().ok().filter(|number: &N| number.to_string() == text)
}

/// Parses a boolean as `OpenStack` does: `1 t true on y yes` or `0 f false off n no`, in any case, with blanks around
/// it. Returns `None` for any other text.
pub fn parse_boolean(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "on" | "y" | "yes" => Some(true),
        "0" | "f" | "false" | "off" | "n" | "no" => Some(false),
        _ => None,
    }
}
