//! Templates of paths, rendered as the host does it: what two tasks write is known where their release is resolved (docs/adr/0019).

use minijinja::machinery::{self, Span, Token};
use minijinja::syntax::SyntaxConfig;
use stemma_core::condition::Template;
use stemma_core::input::Inputs;
use stemma_render::{Limits, NoSecrets, Renderer};

/// A path is short, and each node may have one of its own: what takes more steps is left to the host. Of bytes there may be as many as all
/// inputs of a node have together, so that a path that is too long is rendered, and then refused.
const LIMITS: Limits = Limits { steps: 10_000, depth: 16, output_bytes: 256 * 1024 };

/// The template of a path, or of the program of a command.
#[derive(Debug)]
pub(crate) struct PathTemplate {
    text: Box<str>,
    spelled: Box<str>,
}

impl PathTemplate {
    pub(crate) fn new(text: &str) -> Self {
        let spelled = spelled(text).unwrap_or_else(|| text.to_owned());
        Self { text: text.into(), spelled: spelled.into() }
    }
}

impl Template for PathTemplate {
    fn spelled(&self) -> &str {
        &self.spelled
    }

    fn render(&self, inputs: &Inputs) -> Option<String> {
        // No secret is part of a path, on the host either.
        Renderer::new(inputs, &NoSecrets, LIMITS).text(&self.text).ok()
    }
}

/// The template with the blanks, quotes and form of keys that most write: `{{facts["a"]}}` is `{{ facts.a }}`. `None`: it is left as it is,
/// since it does not parse or has a tag as plain text.
fn spelled(text: &str) -> Option<String> {
    let tokens = machinery::tokenize(text, false, SyntaxConfig::default()).collect::<Result<Vec<_>, _>>().ok()?;
    let mut spelled = String::with_capacity(text.len());
    let mut rest = tokens.as_slice();
    while let Some(((token, span), after)) = rest.split_first() {
        let (next, after) = match (token, after) {
            (Token::BracketOpen, [(Token::Str(key), _), (Token::BracketClose, _), after @ ..])
                if is_field(key) && !matches!(after, [(Token::ParenOpen, _), ..]) =>
            {
                (format!(".{key}"), after)
            }
            _ => (token_text(text, token, *span)?, after),
        };
        if spelled.ends_with(is_of_word) && next.starts_with(is_of_word) {
            spelled.push(' ');
        }
        spelled.push_str(&next);
        rest = after;
    }
    Some(spelled)
}

/// A token as it is spelled; `None`: it is text in which a tag seems to stand.
fn token_text(text: &str, token: &Token<'_>, span: Span) -> Option<String> {
    Some(match token {
        Token::TemplateData(data) if ["{{", "{%", "{#"].iter().any(|tag| data.contains(tag)) => return None,
        Token::TemplateData(data) => (*data).to_owned(),
        Token::VariableStart => "{{ ".to_owned(),
        Token::VariableEnd => " }}".to_owned(),
        Token::BlockStart => "{% ".to_owned(),
        Token::BlockEnd => " %}".to_owned(),
        Token::Str(string) => format!("{string:?}"),
        Token::String(string) => format!("{string:?}"),
        _ => text.get(span.start_offset as usize..span.end_offset as usize)?.to_owned(),
    })
}

/// Whether a key can be written behind a dot.
fn is_field(key: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
    key.starts_with(is_letter) && key.chars().all(|letter| is_letter(letter) || letter.is_ascii_digit())
}

/// Whether two tokens that meet with it would be one.
fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '_' | '"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y01_templates_that_say_the_same_are_spelled_alike() {
        for (text, spelled) in [
            ("/etc/{{ facts.a }}/x", "/etc/{{ facts.a }}/x"),
            ("/etc/{{facts.a}}/x", "/etc/{{ facts.a }}/x"),
            ("/etc/{{  facts [ 'a' ]  }}/x", "/etc/{{ facts.a }}/x"),
            ("/etc/{{ facts[\"a\"] }}/x", "/etc/{{ facts.a }}/x"),
            ("/etc/{{ labels['a/b'] }}", "/etc/{{ labels[\"a/b\"] }}"),
            ("/{% if labels.a  or labels.b %}x{%endif%}", "/{% if labels.a or labels.b %}x{% endif %}"),
            ("/{% raw %}{{facts.a}}{% endraw %}", "/{% raw %}{{facts.a}}{% endraw %}"),
            ("/{{ a", "/{{ a"),
        ] {
            assert_eq!(PathTemplate::new(text).spelled(), spelled, "{text}");
        }
    }

    #[test]
    fn y01_templates_that_say_something_else_are_spelled_otherwise() {
        for (one, other) in [
            ("/{{ facts.a }}", "/{{ facts.b }}"),
            ("/{{ facts.a }}", "/ {{ facts.a }}"),
            ("/{{ -1 }}", "/{{- 1 }}"),
            ("/{{ 'a b' }}", "/{{ 'ab' }}"),
            ("/{{ 'a' }}", "/{{ a }}"),
            ("/{{ facts.a }}", "/{% raw %}{{ facts.a }}{% endraw %}"),
        ] {
            assert_ne!(PathTemplate::new(one).spelled(), PathTemplate::new(other).spelled(), "{one} {other}");
        }
    }
}
