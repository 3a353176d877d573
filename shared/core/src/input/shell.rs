//! Finds how a value must be quoted at a position in a shell script, so that sh reads it as data: one word, or a part
//! of one.
//!
//! A value that a template inserts into a script is untrusted data. Single quotes around the value are right outside of
//! other quotes. They are wrong inside `"…"`, where sh would run `$(…)` in the value. So quoting depends on the
//! position, which this part of sh's lexer determines. Where sh and this lexer could read a text differently
//! (here-documents, arithmetic, backquotes), a value is refused.

/// How a value must be quoted at a position in a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quoting {
    /// Outside of quotes: the value becomes a word or a part of a word.
    Unquoted,
    /// Inside `"…"`.
    DoubleQuoted,
    /// Inside `'…'`.
    SingleQuoted,
    /// A position at which no value can be quoted, with the reason.
    Unquotable(&'static str),
}

/// A construct of sh that encloses the current position of the lexer. Frames can be nested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    /// A command substitution, `$(…)`.
    Command,
    /// Parentheses, `(…)`, such as those of a subshell.
    Paren,
    /// An arithmetic expansion, `$((…))`, with the number of parentheses that are still open.
    Arithmetic(u32),
    /// `((…))`, with the number of parentheses that are still open. bash evaluates it, and other shells run it as a
    /// subshell in a subshell.
    ArithmeticCommand(u32),
    /// A parameter expansion, `${…}`.
    Parameter,
    /// A command substitution in backquotes. Quotes and comments in it are not recognized, because sh ends it at the next
    /// backquote without a backslash, even inside them.
    Backquote,
    /// Double quotes, `"…"`.
    Double,
    /// Single quotes, `'…'`.
    Single,
    /// Quotes after a dollar sign, `$'…'`, which sh and bash read differently.
    Dollar,
    /// A comment, from `#` to the end of the line.
    Comment,
    /// The lines of a here-document.
    HereDocument,
}

/// The delimiter of a here-document: the line that ends it, such as `EOF` for `<<EOF`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Delimiter {
    /// The delimiter without its quotes.
    word: String,
    /// True if a part of the delimiter is quoted. Then a backslash in the here-document is ordinary text.
    is_quoted: bool,
    /// The quote that is open at the current position of the delimiter, or `None` outside of quotes.
    open_quote: Option<char>,
    /// True after `<<-`: tabs at the beginning of each line are ignored.
    should_strip_tabs: bool,
}

/// The state of the lexer at a position in a script. Two lexers with equal states interpret any following text in the
/// same way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShellLexer {
    /// The constructs that enclose the position, the innermost last.
    frames: Vec<Frame>,
    /// As much of the current word as shows whether the word is empty and whether it is `case`: mostly the characters
    /// outside of quotes, opening quotes, and placeholders for unknown text. Begins with [`MAYBE_TEXT`] if the word may
    /// have other text before the part that was read. In a here-document, the part of the current line that was read.
    word: String,
    /// `None` if no backslash escapes the next character. Otherwise the construct that the character before the backslash
    /// may have begun.
    escape: Option<LastToken>,
    /// The construct that the last character may have begun.
    last: LastToken,
    /// The delimiters of the here-documents that follow the current line or contain the position, in order.
    here_documents: Vec<Delimiter>,
    /// The delimiter that is being read after `<<`.
    delimiter: Option<Delimiter>,
    /// The reason why no value can be quoted at any later position of the script.
    failure: Option<&'static str>,
}

/// The reason why no value can be quoted after a `case` in a command substitution.
const CASE_FAILURE: &str = "after a `case` within `$(…)`; put it into a function";

/// The reason why no value can be quoted after a `((…))` with text that is not arithmetic alone.
const ARITHMETIC_COMMAND_FAILURE: &str = "after a `((…))` that shells read differently; write `$((…))`";

/// Placeholder in a word for unknown text that may be empty.
const MAYBE_TEXT: char = '\u{fffe}';

/// Placeholder in a word for unknown text, such as a value or the output of a command. A word with this placeholder
/// counts as not empty.
const UNKNOWN_TEXT: char = '\u{fffd}';

/// The construct that the last character may have begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastToken {
    /// No construct.
    #[default]
    Nothing,
    /// `$`.
    Dollar,
    /// `$$`, the process id.
    DollarDollar,
    /// `(` or `$(`. A second `(` begins an arithmetic expression.
    Bracket,
    /// `<`.
    Less,
    /// `<<`.
    LessLess,
}

impl ShellLexer {
    /// Creates a lexer at the beginning of a script.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads text that the script's author wrote, and advances the state. [`Self::push_value`] is called for a value.
    pub fn push_text(&mut self, text: &str) {
        text.chars().for_each(|c| self.read_char(c));
    }

    /// Returns how a value must be quoted at the current position, or the reason why it cannot be quoted.
    pub fn quoting(&self) -> Quoting {
        if let Some(reason) = self.failure {
            return Quoting::Unquotable(reason);
        }
        if self.escape.is_some() {
            return Quoting::Unquotable("right after a backslash");
        }
        if self.last == LastToken::Dollar {
            return Quoting::Unquotable("right after a `$`");
        }
        if self.delimiter.is_some() || matches!(self.last, LastToken::LessLess) {
            return Quoting::Unquotable("in the delimiter of a here-document");
        }
        // Each enclosing construct matters, not only the innermost one.
        for frame in &self.frames {
            match frame {
                Frame::Backquote => return Quoting::Unquotable("inside backquotes; write `$(…)` instead"),
                Frame::Arithmetic(_) | Frame::ArithmeticCommand(_) => {
                    return Quoting::Unquotable("inside an arithmetic expression, which sh would evaluate");
                }
                Frame::Parameter => return Quoting::Unquotable("inside `${…}`"),
                Frame::Comment => return Quoting::Unquotable("in a comment, which a line break would end"),
                Frame::HereDocument => {
                    return Quoting::Unquotable("in a here-document; use a task of type file, or printf");
                }
                Frame::Dollar => return Quoting::Unquotable("inside `$'…'`"),
                Frame::Command | Frame::Paren | Frame::Double | Frame::Single => {}
            }
        }
        match self.frames.last() {
            Some(Frame::Double) => Quoting::DoubleQuoted,
            Some(Frame::Single) => Quoting::SingleQuoted,
            _ => Quoting::Unquoted,
        }
    }

    /// Skips a value that was quoted for the current position. The value is part of a word, and its text is unknown.
    pub fn push_value(&mut self) {
        self.last = LastToken::Nothing;
        self.word.push(UNKNOWN_TEXT);
    }

    /// Returns the state at the start of a loop in a template, whose text may occur any number of times. So the current
    /// word may have other text before this position.
    #[must_use]
    pub fn at_loop_start(mut self) -> Self {
        if self.is_reading_word() {
            if self.case_prefix_length() > 0 {
                self.failure = Some(CASE_FAILURE);
            }
            self.word = MAYBE_TEXT.into();
        }
        self
    }

    /// Merges the states at the ends of two branches of a template. Returns `None` if the two states would read the
    /// following text differently. States that differ only in the current word are merged to a state in which the word
    /// is uncertain. If one state has failed, the result is that state.
    pub fn merge(&self, other: &Self) -> Option<Self> {
        if self == other || self.failure.is_some() {
            return Some(self.clone());
        }
        if other.failure.is_some() {
            return Some(other.clone());
        }
        let [without_word, other_without_word] = [self, other].map(|lexer| Self { word: String::new(), ..lexer.clone() });
        let longer_word = std::cmp::max_by_key(self, other, |lexer| lexer.case_prefix_length()).word.clone();
        let can_merge = without_word == other_without_word && self.is_reading_word();
        can_merge.then(|| Self { word: longer_word, ..without_word }.at_loop_start())
    }

    /// Returns the length of the current word if the word may become `case` within `$(…)`, and 0 otherwise.
    fn case_prefix_length(&self) -> usize {
        let word = self.word.trim_start_matches(MAYBE_TEXT);
        if "case".starts_with(word) && self.frames.contains(&Frame::Command) { word.len() } else { 0 }
    }

    /// Returns whether the lexer is reading a word of the script, and not the delimiter or a line of a here-document.
    /// Two things about a word matter: whether it is empty, because `#` begins a comment only outside of a word, and
    /// whether it is `case` (see [`Self::end_word`]).
    fn is_reading_word(&self) -> bool {
        self.delimiter.is_none() && self.frames.last() != Some(&Frame::HereDocument)
    }

    /// Reads one character of the script, by the rules of the innermost frame (the construct that encloses the
    /// position).
    fn read_char(&mut self, character: char) {
        if let Some(last) = self.escape.take() {
            return self.read_escaped_char(character, last);
        }
        // A character of a delimiter has no other meaning.
        if self.delimiter.is_some() && !self.read_delimiter_char(character) {
            return;
        }
        let last = std::mem::take(&mut self.last);
        match self.frames.last().copied() {
            Some(Frame::Single | Frame::Dollar) if character == '\'' => self.leave_frame(),
            Some(Frame::Dollar) if character == '\\' => {
                self.failure = Some("after a `$'…'` with a backslash, which shells read differently");
            }
            Some(Frame::Comment) if character == '\n' => {
                self.leave_frame();
                self.end_line();
            }
            Some(Frame::Backquote) if character == '`' => self.leave_frame(),
            Some(Frame::Backquote) if character == '\\' => self.escape = Some(last),
            Some(Frame::Single | Frame::Dollar | Frame::Comment | Frame::Backquote) => {}
            Some(Frame::HereDocument) => self.read_here_document_char(character),
            Some(Frame::Double | Frame::Parameter) => self.read_quoted_char(character, last),
            Some(Frame::Arithmetic(open_count)) => self.read_arithmetic_char(character, last, open_count),
            Some(Frame::ArithmeticCommand(open_count)) => self.read_arithmetic_command_char(character, last, open_count),
            Some(Frame::Command | Frame::Paren) | None => self.read_unquoted_char(character, last),
        }
    }

    /// Reads a character after a backslash. `last` is the construct that the character before the backslash may have
    /// begun. The character has no effect, except as a part of the word. A backslash and a line break have no effect at
    /// all: sh removes both, so that `$\⏎(` is read as `$(`. In the delimiter of a here-document, only a letter, a
    /// digit or `_` may follow a backslash. After any other character there, no value can be quoted any more.
    fn read_escaped_char(&mut self, character: char, last: LastToken) {
        if let Some(delimiter) = &mut self.delimiter {
            if character.is_alphanumeric() || character == '_' {
                delimiter.word.push(character);
            } else {
                self.failure = Some("after a here-document whose delimiter contains a backslash");
            }
        } else if character == '\n' {
            self.last = last;
            if matches!(self.frames.last(), Some(Frame::Command | Frame::Paren) | None) {
                // The backslash was read as a part of the word.
                self.word.pop();
            }
        } else {
            self.word.push(character);
        }
    }

    /// Leaves the innermost frame. The result of a command substitution or an arithmetic expression is part of a word,
    /// so a `#` that follows directly does not begin a comment.
    fn leave_frame(&mut self) {
        if matches!(self.frames.pop(), Some(Frame::Command | Frame::Arithmetic(_) | Frame::Backquote)) {
            self.word.clear();
            self.word.push(UNKNOWN_TEXT);
        }
    }

    /// Reads a character inside double quotes or `${…}`.
    fn read_quoted_char(&mut self, character: char, last: LastToken) {
        let is_parameter = self.frames.last() == Some(&Frame::Parameter);
        match character {
            '\\' => self.escape = Some(last),
            '"' if is_parameter => self.frames.push(Frame::Double),
            '"' => self.leave_frame(),
            '}' if is_parameter => self.leave_frame(),
            '\'' if is_parameter && self.frames.contains(&Frame::Double) => {
                self.failure = Some("after a quote within `${…}` within double quotes");
            }
            '\'' if is_parameter => self.frames.push(Frame::Single),
            _ => self.read_expansion_char(character, last),
        }
    }

    /// Reads a character that may begin an expansion (`$`, `$(`, `${` or a backquote). After `$[`, `$$[`, `$$(` or
    /// `$${`, which shells read differently, no value can be quoted any more. Any other character has no effect. The
    /// rules are the same inside and outside of double quotes.
    fn read_expansion_char(&mut self, character: char, last: LastToken) {
        match (character, last) {
            // dash reads `$$(` as the process id and a parenthesis. bash reads `$(` as a command substitution.
            ('(' | '{', LastToken::DollarDollar) => self.failure = Some("after a `$$(` or `$${`, which shells read differently"),
            ('[', LastToken::Dollar | LastToken::DollarDollar) => {
                self.failure = Some("after a `$[`, which bash evaluates; write `$((…))` instead");
            }
            ('$', LastToken::Dollar) => self.last = LastToken::DollarDollar,
            ('$', _) => self.last = LastToken::Dollar,
            ('(', LastToken::Dollar) => {
                self.frames.push(Frame::Command);
                self.word.clear();
                self.last = LastToken::Bracket;
            }
            ('{', LastToken::Dollar) => self.frames.push(Frame::Parameter),
            ('`', _) => self.frames.push(Frame::Backquote),
            _ => {}
        }
    }

    /// Reads a character of an arithmetic expression in which `open_count` parentheses are still open.
    fn read_arithmetic_char(&mut self, character: char, last: LastToken, open_count: u32) {
        let innermost = self.frames.len() - 1;
        if open_count == 1 && character != ')' {
            self.failure = Some("after a `$((` without `))`, which shells read differently");
        }
        match character {
            // `$(` begins a command substitution instead.
            '(' if last != LastToken::Dollar => self.frames[innermost] = Frame::Arithmetic(open_count + 1),
            ')' if open_count == 1 => self.leave_frame(),
            ')' => self.frames[innermost] = Frame::Arithmetic(open_count - 1),
            '\\' => self.escape = Some(last),
            '\'' => self.frames.push(Frame::Single),
            '"' => self.frames.push(Frame::Double),
            _ => self.read_expansion_char(character, last),
        }
    }

    /// Reads a character of `((…))` in which `open_count` parentheses are still open. Text that bash's arithmetic and a
    /// subshell read alike ends at the same `))`. After any other text, no value can be quoted any more.
    fn read_arithmetic_command_char(&mut self, character: char, last: LastToken, open_count: u32) {
        let innermost = self.frames.len() - 1;
        match (character, last) {
            (')', _) if open_count == 1 => self.leave_frame(),
            // The two closing parentheses are apart.
            _ if open_count == 1 => self.failure = Some(ARITHMETIC_COMMAND_FAILURE),
            ('(' | '{' | '[', LastToken::Dollar) | ('<', LastToken::Less) | ('\'' | '"' | '\\' | '`', _) => {
                self.failure = Some(ARITHMETIC_COMMAND_FAILURE);
            }
            ('#', last) if last != LastToken::Dollar => self.failure = Some(ARITHMETIC_COMMAND_FAILURE),
            ('(', _) => self.frames[innermost] = Frame::ArithmeticCommand(open_count + 1),
            (')', _) => self.frames[innermost] = Frame::ArithmeticCommand(open_count - 1),
            ('$', _) => self.last = LastToken::Dollar,
            ('<', _) => self.last = LastToken::Less,
            _ => {}
        }
    }

    /// Reads a character outside of quotes, where words, comments, operators and quotes can begin. `#` begins a comment
    /// only if no word precedes it directly. If it is unknown whether a word precedes it, no value can be quoted any
    /// more.
    fn read_unquoted_char(&mut self, character: char, last: LastToken) {
        match character {
            // The word is the placeholder alone, so it may be empty.
            '#' if self.word.starts_with(MAYBE_TEXT) && self.word.len() == MAYBE_TEXT.len_utf8() && last != LastToken::Dollar => {
                self.failure = Some("after a `#` that may begin a comment or be in a word; put a space before it");
            }
            '#' if self.word.is_empty() && last != LastToken::Dollar => self.frames.push(Frame::Comment),
            // The first parenthesis was read as a frame of its own. The two together begin an arithmetic expression, in
            // which two parentheses are open.
            '(' if last == LastToken::Bracket => {
                let is_command = self.frames.last() == Some(&Frame::Paren);
                self.leave_frame();
                self.frames.push(if is_command { Frame::ArithmeticCommand(2) } else { Frame::Arithmetic(2) });
            }
            '<' => self.read_less_than(last),
            // These characters end a word. The parenthesis of `$(` does not, and is read as an expansion below.
            ' ' | '\t' | ';' | '&' | '|' | '>' | '\n' | '(' | ')'
                if !(character == '(' && matches!(last, LastToken::Dollar | LastToken::DollarDollar)) =>
            {
                self.end_word();
                self.read_operator(character);
            }
            '\\' => self.escape = Some(last),
            '\'' if last == LastToken::DollarDollar => self.failure = Some("after a `$$'`, which shells read differently"),
            '\'' if last == LastToken::Dollar => self.frames.push(Frame::Dollar),
            '\'' => self.frames.push(Frame::Single),
            '"' => self.frames.push(Frame::Double),
            _ => {
                self.word.push(character);
                self.read_expansion_char(character, last);
                return;
            }
        }
        // A quote or backslash is a part of a word, so a `#` after it does not begin a comment.
        if matches!(character, '\\' | '\'' | '"') {
            self.word.push(character);
        }
    }

    /// Reads a character that ended a word. A line break or a parenthesis can begin or end a construct. A blank or
    /// another operator has no effect.
    fn read_operator(&mut self, character: char) {
        match character {
            '\n' => self.end_line(),
            '(' => {
                self.frames.push(Frame::Paren);
                self.last = LastToken::Bracket;
            }
            ')' if matches!(self.frames.last(), Some(Frame::Command | Frame::Paren)) => self.leave_frame(),
            _ => {}
        }
    }

    /// Reads `<`, which ends the current word. A second `<` directly after it begins the delimiter of a here-document.
    fn read_less_than(&mut self, last: LastToken) {
        self.end_word();
        match last {
            LastToken::Less => {
                self.last = LastToken::LessLess;
                self.delimiter = Some(Delimiter::default());
            }
            _ => self.last = LastToken::Less,
        }
    }

    /// Reads one character of a here-document's delimiter. Returns `true` if the delimiter ended before this character,
    /// so that the caller must read the character as ordinary text.
    fn read_delimiter_char(&mut self, character: char) -> bool {
        let Some(delimiter) = self.delimiter.as_mut() else { return true };
        match character {
            '\n' if delimiter.open_quote.is_some() => {
                self.failure = Some("after a here-document whose delimiter has several lines");
            }
            quote @ ('\'' | '"') if delimiter.open_quote.is_none() => {
                (delimiter.is_quoted, delimiter.open_quote) = (true, Some(quote));
            }
            quote if delimiter.open_quote == Some(quote) => delimiter.open_quote = None,
            letter if delimiter.open_quote.is_some() => delimiter.word.push(letter),
            '<' if delimiter.word.is_empty() && self.last == LastToken::LessLess => {
                // `<<<` is bash's here-string: an ordinary word follows.
                self.delimiter = None;
                self.last = LastToken::Nothing;
                return false;
            }
            '-' if delimiter.word.is_empty() && self.last == LastToken::LessLess => delimiter.should_strip_tabs = true,
            ' ' | '\t' if delimiter.word.is_empty() && !delimiter.is_quoted => {}
            '\\' => (delimiter.is_quoted, self.escape) = (true, Some(LastToken::Nothing)),
            '$' | '`' | '(' => self.failure = Some("after a here-document with a computed delimiter"),
            ' ' | '\t' | ';' | '&' | '|' | '<' | '>' | ')' | '\n' => {
                self.here_documents.extend(self.delimiter.take());
                self.last = LastToken::Nothing;
                return true;
            }
            character => delimiter.word.push(character),
        }
        self.last = LastToken::Nothing;
        false
    }

    /// Ends the current word. After the word `case` within `$(…)`, no value can be quoted any more, because the
    /// patterns of a `case` contain unbalanced parentheses.
    fn end_word(&mut self) {
        if self.word.trim_start_matches(MAYBE_TEXT) == "case" && self.frames.contains(&Frame::Command) {
            self.failure = Some(CASE_FAILURE);
        }
        self.word.clear();
    }

    /// Ends a line. If the line contained `<<` with a delimiter, the here-document begins on the next line.
    fn end_line(&mut self) {
        self.word.clear();
        if !self.here_documents.is_empty() {
            self.frames.push(Frame::HereDocument);
        }
    }

    /// Reads a character of a here-document. `word` contains the current line. At a line break, a line that equals the
    /// delimiter ends the here-document. The next here-document that began on the same line of the script follows. If
    /// there is none, the frame is left.
    fn read_here_document_char(&mut self, character: char) {
        if character != '\n' {
            self.word.push(character);
            return;
        }
        let Some(delimiter) = self.here_documents.first() else { return self.leave_frame() };
        let backslashes = self.word.len() - self.word.trim_end_matches('\\').len();
        if !delimiter.is_quoted && backslashes % 2 == 1 {
            // sh joins this line and the next one. The line break stays in `word`, to show that a line was joined.
            self.word.pop();
            self.word.push(character);
            return;
        }
        let line = std::mem::take(&mut self.word);
        let line = if delimiter.should_strip_tabs { line.trim_start_matches('\t') } else { &line };
        if line.replace('\n', "") != delimiter.word {
            return;
        }
        if line.contains('\n') {
            self.failure = Some("after a here-document whose delimiter may be on joined lines");
        }
        self.here_documents.remove(0);
        if self.here_documents.is_empty() {
            self.leave_frame();
        }
    }
}

/// Quotes a value for a position in a script. Outside of quotes, the result is one word in single quotes. Inside
/// quotes, the characters that have a meaning there are escaped. Returns `None` if no value can be quoted at the
/// position.
pub fn quote(value: &str, quoting: Quoting) -> Option<String> {
    match quoting {
        Quoting::Unquoted => Some(format!("'{}'", value.replace('\'', r"'\''"))),
        Quoting::SingleQuoted => Some(value.replace('\'', r"'\''")),
        Quoting::DoubleQuoted => {
            let mut out = String::with_capacity(value.len());
            for character in value.chars() {
                if matches!(character, '\\' | '"' | '$' | '`') {
                    out.push('\\');
                }
                out.push(character);
            }
            Some(out)
        }
        Quoting::Unquotable(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Quoting::{DoubleQuoted, SingleQuoted, Unquotable, Unquoted};

    fn quoting_after(script: &str) -> Quoting {
        let mut lexer = ShellLexer::new();
        lexer.push_text(script);
        lexer.quoting()
    }

    #[test]
    fn quoting_follows_preceding_text() {
        for (script, expected) in [
            ("", Unquoted),
            ("echo ", Unquoted),
            ("echo x", Unquoted),
            ("echo \"", DoubleQuoted),
            ("echo \"a\\\"", DoubleQuoted),
            ("echo \"a\" ", Unquoted),
            ("echo '", SingleQuoted),
            ("echo 'a\"' ", Unquoted),
            ("echo it\\'s ", Unquoted),
            ("x=$(cat ", Unquoted),
            ("x=\"$(cat ", Unquoted),
            ("x=\"$(cat \"", DoubleQuoted),
            ("x=\"$(cat 'y')\" ", Unquoted),
            ("x=\"$(cat 'y')", DoubleQuoted),
            ("echo $# ", Unquoted),
            ("echo a#b ", Unquoted),
            ("echo $(x)#\"", DoubleQuoted),
            ("echo $((1))#\"", DoubleQuoted),
            ("(x)#\"\n", Unquoted),
            ("echo ${x#y} ", Unquoted),
            ("echo hi # it's\n", Unquoted),
            ("(cd /; ls) ", Unquoted),
            ("f() { ", Unquoted),
            ("case $x in a) ", Unquoted),
            ("cat <<< ", Unquoted),
            ("cat <<EOF\nit's\nEOF\n", Unquoted),
            ("cat <<-'EOF' >/x\n\tit's\n\tEOF\n", Unquoted),
            ("cat <<A; cat <<B\na\nA\nb\nB\n", Unquoted),
            ("echo $((1 + 2)) ", Unquoted),
            ("for ((i = 0; i < (3); i++)); do echo ", Unquoted),
            ("(($# < $n)) # it's\n", Unquoted),
            ("echo `date` ", Unquoted),
            ("echo $$ ", Unquoted),
            ("echo \"$$", DoubleQuoted),
            ("echo \"'$$' $$\" ", Unquoted),
            // sh removes a backslash with a line break.
            ("echo \\\n# it's\n", Unquoted),
            ("echo \"$\\\n(cat ", Unquoted),
            ("echo a\\\n#\"", DoubleQuoted),
            // A backquote ends the substitution, even inside a comment or quotes.
            ("x=`a # c`\ny='", SingleQuoted),
            ("x=`echo 'a`'b", SingleQuoted),
            ("x=`echo \\`date\\``#\"", DoubleQuoted),
            ("cat <<'A B'\nA\nA B\n", Unquoted),
            ("cat <<\\EOF\nx\\\nEOF\n", Unquoted),
            ("cat <<'EOF'\nx\\\nEOF\n", Unquoted),
            ("x < ", Unquoted),
        ] {
            assert_eq!(quoting_after(script), expected, "{script}");
        }
    }

    #[test]
    fn quoting_is_impossible_where_value_stays_unsafe() {
        for script in [
            "echo \\",
            "echo $",
            "echo \"$",
            "echo # ",
            "echo `cat ",
            "echo \"`cat ",
            "echo $((1 + ",
            "((x = ",
            "echo ${x:-",
            "echo \"${x:-",
            "echo $'",
            "echo $'a\\'b' ",
            "cat <<",
            "cat <<EOF\n",
            "cat <<EOF\nx\nEO",
            "cat <<$x\n",
            "echo \"run.$$(",
            "echo $$(x) ",
            "echo \"$${x}",
            "echo $$'x' ",
            "echo $[1 + ",
            "((i = 1) ); echo ",
            "((i = 1 << 2)); echo ",
            "((i = $(x) )); echo ",
            "((i = ",
            "((echo a); echo b # it's\n); echo 'x) ",
            "echo $((1 + (2)) ); echo ",
            "cat <<EOF\nx\\\nEOF\n",
            "cat <<EOF\nEO\\\nF\n",
            "cat <<A\\ B\nA\n",
            "cat <<'A\nB'\nA\n",
            "x=$(case a in a) echo ",
            "x=\"$(case a in a) echo \"",
            "x=\"${y:-'}\" ",
        ] {
            assert!(matches!(quoting_after(script), Unquotable(_)), "{script}: {:?}", quoting_after(script));
        }
    }

    #[test]
    fn merge_succeeds_when_following_text_is_read_alike() {
        let lexer_after = |script: &str| {
            let mut lexer = ShellLexer::new();
            lexer.push_text(script);
            lexer
        };
        for (first, second, expected) in [
            ("echo ", "echo x", true),
            ("echo 'x' ", "echo \"x\"", true),
            ("echo \"x", "echo \"y z", true),
            ("echo ", "echo '", false),
            ("echo ", "echo $", false),
            ("cat <<A\n", "cat <<B\n", false),
            ("cat <<A\nx", "cat <<A\ny", false),
            ("echo ", "echo # ", false),
        ] {
            assert_eq!(lexer_after(first).merge(&lexer_after(second)).is_some(), expected, "{first:?} {second:?}");
        }
        for (first, second) in [("$(case", "$(if"), ("$(if", "$(case"), ("$(ca", "$(x")] {
            let merged = lexer_after(first).merge(&lexer_after(second)).unwrap();
            assert!(matches!(merged.quoting(), Unquotable(_)), "{first:?} {second:?}: the word may become `case`");
        }
        let mut merged = lexer_after("echo ").merge(&lexer_after("echo x")).unwrap();
        assert_eq!(merged.quoting(), Unquoted);
        // In one branch, this `#` begins a comment. In the other, it is in a word.
        merged.push_text("#");
        assert!(matches!(merged.quoting(), Unquotable(_)));
    }

    #[test]
    fn quote_depends_on_quoting() {
        let value = "a'b\"$(c)`d`\\e;\nf";
        assert_eq!(quote(value, Unquoted).unwrap(), "'a'\\''b\"$(c)`d`\\e;\nf'");
        assert_eq!(quote(value, SingleQuoted).unwrap(), "a'\\''b\"$(c)`d`\\e;\nf");
        assert_eq!(quote(value, DoubleQuoted).unwrap(), "a'b\\\"\\$(c)\\`d\\`\\\\e;\nf");
        assert_eq!(quote(value, Unquotable("")), None);
        assert_eq!(quote("", Unquoted).unwrap(), "''");
    }
}
