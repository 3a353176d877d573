//! Templates of paths, rendered as the host renders them. The paths that two tasks write are then known when their
//! release is resolved (docs/adr/0019).

use minijinja::machinery::{self, Span, Token};
use minijinja::syntax::SyntaxConfig;
use stemma_core::condition::Template;
use stemma_core::input::Inputs;
use stemma_render::{NoSecrets, RenderLimits, Renderer};

/// The limits for rendering a path in the controller. Each node may have its own paths, so the controller does not
/// render a path that needs more steps: only the host renders it. `output_bytes` equals the maximum size of the inputs
/// of one task, so a path that is too long for a host is rendered here, and refused afterwards.
const PATH_LIMITS: RenderLimits = RenderLimits { steps: 10_000, depth: 16, output_bytes: 256 * 1024 };

/// The template of a path, or of the program of a command.
#[derive(Debug)]
pub(crate) struct PathTemplate {
    /// The template as the release contains it.
    text: Box<str>,
    /// The template in its normal form ([`Template::normalized_text`]).
    normalized_text: Box<str>,
}

impl PathTemplate {
    /// Creates the template. A text that cannot be normalized is its own normal form.
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

/// Returns a template with the usual blanks, quotes and form of keys: `{{facts["a"]}}` becomes `{{ facts.a }}`. Returns
/// `None` if the text has an invalid token, or an opening sign such as `{{` outside of tags (as in a `raw` block).
fn normalize(text: &str) -> Option<String> {
    let tokens = machinery::tokenize(text, false, SyntaxConfig::default()).collect::<Result<Vec<_>, _>>().ok()?;
    let mut normalized = String::with_capacity(text.len());
    let mut rest = tokens.as_slice();
    while let Some(((token, span), following)) = rest.split_first() {
        let (normal_token, following) = match (token, following) {
            (Token::BracketOpen, [(Token::Str(key), _), (Token::BracketClose, _), following @ ..])
                if is_dotted_key(key) && !matches!(following, [(Token::ParenOpen, _), ..]) =>
            {
                (format!(".{key}"), following)
            }
            _ => (format_token(text, token, *span)?, following),
        };
        if normalized.ends_with(is_word_char) && normal_token.starts_with(is_word_char) {
            normalized.push(' ');
        }
        normalized.push_str(&normal_token);
        rest = following;
    }
    Some(normalized)
}

/// Returns the normal form of a token, or `None` if it is plain text that contains an opening tag.
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

/// Returns whether a character can be part of a word, or is the quote around a text. Two adjacent tokens need a blank
/// between them if the first ends and the second begins with such a character.
fn is_word_char(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '_' | '"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y01_path_template_normalizes_equal_templates_alike() {
        for (text, normalized) in [
            ("/etc/{{ facts.a }}/x", "/etc/{{ facts.a }}/x"),
            ("/etc/{{facts.a}}/x", "/etc/{{ facts.a }}/x"),
            ("/etc/{{  facts [ 'a' ]  }}/x", "/etc/{{ facts.a }}/x"),
            ("/etc/{{ facts[\"a\"] }}/x", "/etc/{{ facts.a }}/x"),
            ("/etc/{{ labels['a/b'] }}", "/etc/{{ labels[\"a/b\"] }}"),
            ("/{% if labels.a  or labels.b %}x{%endif%}", "/{% if labels.a or labels.b %}x{% endif %}"),
            ("/{% raw %}{{facts.a}}{% endraw %}", "/{% raw %}{{facts.a}}{% endraw %}"),
            ("/{{ a", "/{{ a"),
        ] {
            assert_eq!(PathTemplate::new(text).normalized_text(), normalized, "{text}");
        }
    }

    #[test]
    fn y01_path_template_distinguishes_different_templates() {
        for (left, right) in [
            ("/{{ facts.a }}", "/{{ facts.b }}"),
            ("/{{ facts.a }}", "/ {{ facts.a }}"),
            ("/{{ -1 }}", "/{{- 1 }}"),
            ("/{{ 'a b' }}", "/{{ 'ab' }}"),
            ("/{{ 'a' }}", "/{{ a }}"),
            ("/{{ facts.a }}", "/{% raw %}{{ facts.a }}{% endraw %}"),
        ] {
            assert_ne!(PathTemplate::new(left).normalized_text(), PathTemplate::new(right).normalized_text(), "{left} {right}");
        }
    }
}
