//! Maps that come as text, as Magnum's command line writes them.

use serde_json::{Map, Value};

use crate::api::http::json;

/// Reads a whole map of text that came as text: JSON, or Python's form of a dictionary, which is what Magnum's
/// command line makes of `replace labels=a=1,b=2`; only strings, numbers and booleans stand in that. Numbers keep their text.
pub(crate) fn map_from_text(text: &str) -> Option<Map<String, Value>> {
    if let Ok(Value::Object(map)) = json::parse_texts(text.as_bytes()) {
        return Some(map);
    }
    PythonDict { rest: text.trim() }.read()
}

struct PythonDict<'a> {
    rest: &'a str,
}

impl PythonDict<'_> {
    fn read(mut self) -> Option<Map<String, Value>> {
        let mut map = Map::new();
        self.token("{")?;
        while !self.rest.starts_with('}') {
            let key = self.quoted()?;
            self.token(":")?;
            let value = if self.rest.starts_with(['\'', '"']) { self.quoted()? } else { self.bare()? };
            if map.insert(key, Value::String(value)).is_some() {
                return None;
            }
            if self.token(",").is_none() {
                break;
            }
        }
        self.token("}")?;
        self.rest.is_empty().then_some(map)
    }

    fn token(&mut self, token: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(token)?.trim_start();
        Some(())
    }

    fn quoted(&mut self) -> Option<String> {
        let quote = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let mut text = String::new();
        let mut chars = self.rest[1..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.rest = self.rest[at + 2..].trim_start();
                    return Some(text);
                }
                '\\' => text.push(match chars.next()?.1 {
                    'n' => '\n',
                    't' => '\t',
                    c @ ('\\' | '\'' | '"') => c,
                    _ => return None,
                }),
                c => text.push(c),
            }
        }
        None
    }

    fn bare(&mut self) -> Option<String> {
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
    fn a_map_comes_as_json_or_as_python_writes_it() {
        for (text, expected) in [
            ("{'a': '7'}", Some(json!({"a": "7"}))),
            (r#"{"y": "2"}"#, Some(json!({"y": "2"}))),
            (r#"{"y": 1.50}"#, Some(json!({"y": "1.50"}))),
            (
                r#"{'a': "it's", 'b': 'q\'x', 'c': 1, 'd': True, }"#,
                Some(json!({"a": "it's", "b": "q'x", "c": "1", "d": "true"})),
            ),
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
