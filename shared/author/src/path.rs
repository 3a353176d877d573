//! Templates of paths, rendered as the host renders them. The paths that two tasks write are then known when their
//! release is resolved (docs/adr/0019).

use minijinja::machinery::{self, Span, Token};
use minijinja::syntax::SyntaxConfig;
use stemma_core::condition::Template;
use stemma_core::input::Inputs;
use stemma_render::{NoSecrets, RenderLimits, Renderer};

/// The limits for rendering a path. A path is short, and each node may have its own, so a path that takes more steps is
/// left to the host. The byte limit equals that of all inputs of a node together: a path that is too long is rendered
/// first, then refused.
const PATH_LIMITS: RenderLimits = RenderLimits { steps: 10_000, depth: 16, output_bytes: 256 * 1024 };

/// The template of a path, or of the program of a command.
#[derive(Debug)]
pub(crate) struct PathTemplate {
    text: Box<str>,
    normalized_text: Box<str>,
}

impl PathTemplate {
    pub(crate) fn new(text: &str) -> Self {
        let normalized = normalize(text).unwrap_or_else(|| text.to_owned());
        Self { text: text.into(), normalized_text: normalized.into() }
    }
}

impl Template for PathTemplate {
    fn normalized_text(&self) -> &str {
        &self.normalized_text
    }

    fn render(&self, inputs: &Inputs) -> Option<String> {
        // A path contains no secrets. The host also renders it without.
        Renderer::new(inputs, &NoSecrets, PATH_LIMITS).text(&self.text).ok()
    }
}

/// Returns the template with the usual blanks, quotes and form of keys: `{{facts["a"]}}` becomes `{{ facts.a }}`.
/// Returns `None` if it does not parse or contains a tag as plain text. It then stays unchanged.
fn normalize(text: &str) -> Option<String> {
    let tokens = machinery::tokenize(text, false, SyntaxConfig::default()).collect::<Result<Vec<_>, _>>().ok()?;
    let mut normalized = String::with_capacity(text.len());
    let mut rest = tokens.as_slice();
    while let Some(((token, span), after)) = rest.split_first() {
        let (next, after) = match (token, after) {
            (Token::BracketOpen, [(Token::Str(key), _), (Token::BracketClose, _), after @ ..])
                if is_dotted_key(key) && !matches!(after, [(Token::ParenOpen, _), ..]) =>
            {
                (format!(".{key}"), after)
            }
            _ => (format_token(text, token, *span)?, after),
        };
        if normalized.ends_with(is_word_char) && next.starts_with(is_word_char) {
            normalized.push(' ');
        }
        normalized.push_str(&next);
        rest = after;
    }
    Some(normalized)
}

/// Returns the normalized form of a token, or `None` if it is text that contains an opening tag.
fn format_token(text: &str, token: &Token<'_>, span: Span) -> Option<String> {
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

/// Returns whether a key can be written after a dot.
fn is_dotted_key(key: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
    key.starts_with(is_letter) && key.chars().all(|letter| is_letter(letter) || letter.is_ascii_digit())
}

/// Returns whether two adjacent tokens would become one if this character is at both sides of their border.
fn is_word_char(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '_' | '"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y01_path_template_normalizes_equal_templates_alike() {
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
            assert_eq!(PathTemplate::new(text).normalized_text(), spelled, "{text}");
        }
    }

    #[test]
    fn y01_path_template_distinguishes_different_templates() {
        for (one, other) in [
            ("/{{ facts.a }}", "/{{ facts.b }}"),
            ("/{{ facts.a }}", "/ {{ facts.a }}"),
            ("/{{ -1 }}", "/{{- 1 }}"),
            ("/{{ 'a b' }}", "/{{ 'ab' }}"),
            ("/{{ 'a' }}", "/{{ a }}"),
            ("/{{ facts.a }}", "/{% raw %}{{ facts.a }}{% endraw %}"),
        ] {
            assert_ne!(PathTemplate::new(one).normalized_text(), PathTemplate::new(other).normalized_text(), "{one} {other}");
        }
    }
}
