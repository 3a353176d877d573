//! Maps that a client sends as text in place of a JSON object, as Magnum's command line does.

use serde_json::{Map, Value};

use crate::api::http::json;

/// Parses a whole map of text that a client sent as text: JSON, or a Python dictionary of strings, numbers and
/// booleans. Magnum's command line sends a dictionary for `replace labels=a=1,b=2`. Numbers keep their text, and
/// booleans become `true` or `false`.
pub(crate) fn map_from_text(text: &str) -> Option<Map<String, Value>> {
    if let Ok(Value::Object(map)) = json::parse_texts(text.as_bytes()) {
        return Some(map);
    }
    PythonDict { rest: text.trim() }.read()
}

/// A parser of a Python dictionary.
struct PythonDict<'a> {
    /// The text that is not parsed yet.
    rest: &'a str,
}

impl PythonDict<'_> {
    /// Parses a whole dictionary. Returns `None` for any other text, and if a key is repeated.
    fn read(mut self) -> Option<Map<String, Value>> {
        let mut map = Map::new();
        self.expect_token("{")?;
        while !self.rest.starts_with('}') {
            let key = self.parse_quoted()?;
            self.expect_token(":")?;
            let value = if self.rest.starts_with(['\'', '"']) { self.parse_quoted()? } else { self.parse_bare()? };
            if map.insert(key, Value::String(value)).is_some() {
                return None;
            }
            if self.expect_token(",").is_none() {
                break;
            }
        }
        self.expect_token("}")?;
        self.rest.is_empty().then_some(map)
    }

    /// Removes a token and the white space after it from the text. Returns `None` if the text does not begin with the
    /// token.
    fn expect_token(&mut self, token: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(token)?.trim_start();
        Some(())
    }

    /// Parses a string in single or double quotes, with the white space after it. Returns `None` if the string has no
    /// end or an unknown escape.
    fn parse_quoted(&mut self) -> Option<String> {
        let quote = self.rest.chars().next().filter(|character| matches!(character, '\'' | '"'))?;
        let mut text = String::new();
        let mut chars = self.rest[1..].char_indices();
        while let Some((index, character)) = chars.next() {
            match character {
                character if character == quote => {
                    // `index` does not count the opening quote. So the text after the closing quote begins at `index +
                    // 2`.
                    self.rest = self.rest[index + 2..].trim_start();
                    return Some(text);
                }
                '\\' => text.push(match chars.next()?.1 {
                    'n' => '\n',
                    't' => '\t',
                    character @ ('\\' | '\'' | '"') => character,
                    _ => return None,
                }),
                character => text.push(character),
            }
        }
        None
    }

    /// Parses a value without quotes: `True`, `False` or a number. Returns `true`, `false` or the number as it was
    /// sent. Returns `None` for any other value.
    fn parse_bare(&mut self) -> Option<String> {
        let end = self.rest.find([',', '}'])?;
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        let word = word.trim_end();
        match word {
            "True" => Some("true".to_owned()),
            "False" => Some("false".to_owned()),
            _ => word.parse::<f64>().is_ok_and(f64::is_finite).then(|| word.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn map_from_text_parses_json_and_python_dict() {
        for (text, expected) in [
            ("{'a': '7'}", Some(json!({"a": "7"}))),
            (r#"{"y": "2"}"#, Some(json!({"y": "2"}))),
            (r#"{"y": 1.50}"#, Some(json!({"y": "1.50"}))),
            (r#"{'a': "it's", 'b': 'q\'x', 'c': 1, 'd': True, }"#, Some(json!({"a": "it's", "b": "q'x", "c": "1", "d": "true"}))),
            ("{}", Some(json!({}))),
            ("notadict", None),
            ("{'a': ['x']}", None),
            ("{'a': '1'} x", None),
            ("{'a': None}", None),
            (r#"{"a":"1"},"x":[1]"#, None),
        ] {
            assert_eq!(map_from_text(text).map(Value::Object), expected, "{text}");
        }
    }
}
