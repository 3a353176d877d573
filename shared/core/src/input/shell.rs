//! Finds how a value must be quoted at a position in a shell script, so that it is one word there.
//!
//! A value that is put into a script is untrusted data. Single quotes around it are right outside of other quotes, and
//! wrong inside `"…"`, where `$(…)` in the value would run. So quoting depends on the position, and this part of sh's
//! lexer determines it. Where sh and this lexer could read a text differently (here-documents, arithmetic, backquotes),
//! a value is refused rather than guessed at.

/// How a value must be quoted at a position in a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quoting {
    /// Outside of quotes, as a word or a part of one.
    Unquoted,
    /// Inside `"…"`.
    DoubleQuoted,
    /// Inside `'…'`.
    SingleQuoted,
    /// The value cannot be quoted here, with the reason.
    Unquotable(&'static str),
}

/// A construct of sh that encloses the current position. Frames are nested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    /// `$(…)`.
    Command,
    /// `(…)`, or a parenthesis inside one of the others.
    Paren,
    /// `((…))`, `$((…))` with the number of open brackets.
    Arithmetic(u32),
    /// `${…}`.
    Parameter,
    Backquote,
    Double,
    Single,
    /// `$'…'`, which sh and bash read differently.
    Dollar,
    Comment,
    HereDocument,
}

/// The end of a here-document that was announced but has not begun.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Delimiter {
    word: String,
    should_strip_tabs: bool,
}

/// The state of the lexer after some text. Two equal states interpret any following text in the same way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShellLexer {
    frames: Vec<Frame>,
    /// The word so far outside of quotes, or the line so far of a here-document. Begins with [`MAYBE_TEXT`] if it is
    /// unknown whether text precedes the rest.
    word: String,
    is_escaped: bool,
    last: LastToken,
    here_documents: Vec<Delimiter>,
    /// The delimiter of a here-document, while it is being read.
    delimiter: Option<Delimiter>,
    failure: Option<&'static str>,
}

/// Placeholder in a word for text that may be empty.
const MAYBE_TEXT: char = '\u{fffe}';

/// Placeholder in a word for unknown text.
const UNKNOWN_TEXT: char = '\u{fffd}';

/// The construct that the last character may have begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastToken {
    #[default]
    Nothing,
    Dollar,
    /// `(` or `$(`, which a second `(` makes arithmetic.
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

    /// Reads more text of the script itself.
    pub fn push_text(&mut self, text: &str) {
        text.chars().for_each(|c| self.step(c));
    }

    /// Returns how a value must be quoted at the current position.
    pub fn quoting(&self) -> Quoting {
        if let Some(why) = self.failure {
            return Quoting::Unquotable(why);
        }
        if self.is_escaped {
            return Quoting::Unquotable("right after a backslash");
        }
        if self.last == LastToken::Dollar {
            return Quoting::Unquotable("right after a `$`");
        }
        if self.delimiter.is_some() || matches!(self.last, LastToken::LessLess) {
            return Quoting::Unquotable("in the delimiter of a here-document");
        }
        for frame in &self.frames {
            match frame {
                Frame::Backquote => return Quoting::Unquotable("inside backquotes; write `$(…)` instead"),
                Frame::Arithmetic(_) => {
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

    /// Continues after a value that was quoted for this position.
    pub fn push_value(&mut self) {
        self.last = LastToken::Nothing;
        self.word.push(UNKNOWN_TEXT);
    }

    /// Returns the state before text that may occur here any number of times.
    #[must_use]
    pub fn at_loop_start(mut self) -> Self {
        if self.is_reading_word() {
            self.word = MAYBE_TEXT.into();
        }
        self
    }

    /// Merges the states at the end of two branches. Returns `None` if they would read the following text differently.
    pub fn merge(&self, other: &Self) -> Option<Self> {
        if self == other || self.failure.is_some() {
            return Some(self.clone());
        }
        if other.failure.is_some() {
            return Some(other.clone());
        }
        let [one, two] = [self, other].map(|shell| Self { word: String::new(), ..shell.clone() });
        (one == two && self.is_reading_word()).then(|| one.at_loop_start())
    }

    /// Returns whether `word` is a word, of which only its presence matters. Otherwise it is a delimiter or a line of a
    /// here-document.
    fn is_reading_word(&self) -> bool {
        self.delimiter.is_none() && self.frames.last() != Some(&Frame::HereDocument)
    }

    /// Reads one character of the script, by the rules of the innermost frame.
    fn step(&mut self, c: char) {
        if std::mem::take(&mut self.is_escaped) {
            self.word.push(c);
            return;
        }
        if self.delimiter.is_some() && !self.read_delimiter_char(c) {
            return;
        }
        let last = std::mem::take(&mut self.last);
        match self.frames.last().copied() {
            Some(Frame::Single | Frame::Dollar) if c == '\'' => self.leave_frame(),
            Some(Frame::Dollar) if c == '\\' => {
                self.failure = Some("after a `$'…'` with a backslash, which shells read differently");
            }
            Some(Frame::Comment) if c == '\n' => {
                self.leave_frame();
                self.end_line();
            }
            Some(Frame::Single | Frame::Dollar | Frame::Comment) => {}
            Some(Frame::HereDocument) => self.step_here_document(c),
            Some(Frame::Double | Frame::Parameter) => self.step_quoted(c, last),
            Some(Frame::Arithmetic(open)) => self.step_arithmetic(c, last, open),
            Some(Frame::Command | Frame::Paren | Frame::Backquote) | None => self.step_open(c, last),
        }
    }

    /// Leaves the innermost frame. The result of an expansion is part of a word, so a `#` after it does not begin a
    /// comment.
    fn leave_frame(&mut self) {
        if matches!(self.frames.pop(), Some(Frame::Command | Frame::Arithmetic(_))) {
            self.word.clear();
            self.word.push(UNKNOWN_TEXT);
        }
    }

    /// Reads a character inside double quotes or `${…}`.
    fn step_quoted(&mut self, c: char, last: LastToken) {
        let parameter = self.frames.last() == Some(&Frame::Parameter);
        match c {
            '\\' => self.is_escaped = true,
            '"' if parameter => self.frames.push(Frame::Double),
            '"' => self.leave_frame(),
            '}' if parameter => self.leave_frame(),
            '\'' if parameter && self.frames.contains(&Frame::Double) => {
                self.failure = Some("after a quote within `${…}` within double quotes");
            }
            '\'' if parameter => self.frames.push(Frame::Single),
            _ => self.step_expansion(c, last),
        }
    }

    /// Reads a character of an expansion, which begins with `$` or a backquote. Expansions are alike in and outside of
    /// double quotes.
    fn step_expansion(&mut self, c: char, last: LastToken) {
        match (c, last) {
            ('$', _) => self.last = LastToken::Dollar,
            ('(', LastToken::Dollar) => {
                self.frames.push(Frame::Command);
                self.word.clear();
                self.last = LastToken::Bracket;
            }
            ('{', LastToken::Dollar) => self.frames.push(Frame::Parameter),
            ('`', _) if self.frames.contains(&Frame::Backquote) => {
                while self.frames.pop().is_some_and(|frame| frame != Frame::Backquote) {}
            }
            ('`', _) => {
                self.frames.push(Frame::Backquote);
                self.word.clear();
            }
            _ => {}
        }
    }

    /// Reads a character of an arithmetic expression with `open` open parentheses.
    fn step_arithmetic(&mut self, c: char, last: LastToken, open: u32) {
        let top = self.frames.len() - 1;
        match c {
            '(' if last != LastToken::Dollar => self.frames[top] = Frame::Arithmetic(open + 1),
            ')' if open == 1 => self.leave_frame(),
            ')' => self.frames[top] = Frame::Arithmetic(open - 1),
            '\\' => self.is_escaped = true,
            '\'' => self.frames.push(Frame::Single),
            '"' => self.frames.push(Frame::Double),
            _ => self.step_expansion(c, last),
        }
    }

    /// Reads a character outside of quotes, where words, comments, operators and quotes can begin.
    fn step_open(&mut self, c: char, last: LastToken) {
        match c {
            '#' if self.word.starts_with(MAYBE_TEXT) && self.word.len() == MAYBE_TEXT.len_utf8() && last != LastToken::Dollar => {
                self.failure = Some("after a `#` that may begin a comment or be in a word; put a space before it");
            }
            '#' if self.word.is_empty() && last != LastToken::Dollar => self.frames.push(Frame::Comment),
            '(' if last == LastToken::Bracket => {
                self.leave_frame();
                self.frames.push(Frame::Arithmetic(2));
            }
            '<' => self.step_less(last),
            ' ' | '\t' | ';' | '&' | '|' | '>' | '\n' | '(' | ')' if !(c == '(' && last == LastToken::Dollar) => {
                self.end_word();
                self.step_operator(c);
            }
            '\\' => self.is_escaped = true,
            '\'' if last == LastToken::Dollar => self.frames.push(Frame::Dollar),
            '\'' => self.frames.push(Frame::Single),
            '"' => self.frames.push(Frame::Double),
            _ => {
                self.word.push(c);
                self.step_expansion(c, last);
                return;
            }
        }
        if matches!(c, '\\' | '\'' | '"') {
            self.word.push(c);
        }
    }

    /// Reads a character that ends a word: a line break, a parenthesis or another operator.
    fn step_operator(&mut self, c: char) {
        match c {
            '\n' => self.end_line(),
            '(' => {
                self.frames.push(Frame::Paren);
                self.last = LastToken::Bracket;
            }
            ')' if matches!(self.frames.last(), Some(Frame::Command | Frame::Paren)) => self.leave_frame(),
            _ => {}
        }
    }

    /// Reads `<`. The second one in a row begins a here-document.
    fn step_less(&mut self, last: LastToken) {
        self.end_word();
        match last {
            LastToken::Less => {
                self.last = LastToken::LessLess;
                self.delimiter = Some(Delimiter { word: String::new(), should_strip_tabs: false });
            }
            _ => self.last = LastToken::Less,
        }
    }

    /// Reads one character of a here-document's delimiter. Returns whether the delimiter ended before it.
    fn read_delimiter_char(&mut self, c: char) -> bool {
        let Some(end) = self.delimiter.as_mut() else { return true };
        match c {
            '<' if end.word.is_empty() && self.last == LastToken::LessLess => {
                // `<<<` is bash's here-string: an ordinary word follows.
                self.delimiter = None;
                self.last = LastToken::Nothing;
                return false;
            }
            '-' if end.word.is_empty() && self.last == LastToken::LessLess => end.should_strip_tabs = true,
            ' ' | '\t' if end.word.is_empty() => {}
            '\'' | '"' | '\\' => {}
            '$' | '`' | '(' => self.failure = Some("after a here-document with a computed delimiter"),
            ' ' | '\t' | ';' | '&' | '|' | '<' | '>' | ')' | '\n' => {
                self.here_documents.extend(self.delimiter.take());
                self.last = LastToken::Nothing;
                return true;
            }
            c => end.word.push(c),
        }
        self.last = LastToken::Nothing;
        false
    }

    /// Ends the current word. A `case` within `$(…)` is refused, because its patterns contain unbalanced parentheses.
    fn end_word(&mut self) {
        if self.word.trim_start_matches(MAYBE_TEXT) == "case"
            && self.frames.iter().any(|frame| matches!(frame, Frame::Command | Frame::Backquote))
        {
            self.failure = Some("after a `case` within `$(…)`; put it into a function");
        }
        self.word.clear();
    }

    /// Ends a line. The here-documents that were announced in it begin on the next line.
    fn end_line(&mut self) {
        self.word.clear();
        if !self.here_documents.is_empty() {
            self.frames.push(Frame::HereDocument);
        }
    }

    /// Reads a character of a here-document, which ends with a line that equals its delimiter.
    fn step_here_document(&mut self, c: char) {
        if c != '\n' {
            self.word.push(c);
            return;
        }
        let line = std::mem::take(&mut self.word);
        let Some(end) = self.here_documents.first() else { return self.leave_frame() };
        let line = if end.should_strip_tabs { line.trim_start_matches('\t') } else { &line };
        if line == end.word {
            self.here_documents.remove(0);
            if self.here_documents.is_empty() {
                self.leave_frame();
            }
        }
    }
}

/// Quotes a value as one word, or as a part of the quotes around it. Returns `None` if no value is possible at this
/// position.
pub fn quote(value: &str, place: Quoting) -> Option<String> {
    match place {
        Quoting::Unquoted => Some(format!("'{}'", value.replace('\'', r"'\''"))),
        Quoting::SingleQuoted => Some(value.replace('\'', r"'\''")),
        Quoting::DoubleQuoted => {
            let mut out = String::with_capacity(value.len());
            for c in value.chars() {
                if matches!(c, '\\' | '"' | '$' | '`') {
                    out.push('\\');
                }
                out.push(c);
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
        let mut shell = ShellLexer::new();
        shell.push_text(script);
        shell.quoting()
    }

    #[test]
    fn quoting_follows_preceding_text() {
        for (script, place) in [
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
            ("echo `date` ", Unquoted),
            ("x < ", Unquoted),
        ] {
            assert_eq!(quoting_after(script), place, "{script}");
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
            "x=$(case a in a) echo ",
            "x=\"$(case a in a) echo \"",
            "x=\"${y:-'}\" ",
        ] {
            assert!(matches!(quoting_after(script), Unquotable(_)), "{script}: {:?}", quoting_after(script));
        }
    }

    #[test]
    fn merge_succeeds_when_following_text_is_read_alike() {
        let after = |script: &str| {
            let mut shell = ShellLexer::new();
            shell.push_text(script);
            shell
        };
        for (one, two, meet) in [
            ("echo ", "echo x", true),
            ("echo 'x' ", "echo \"x\"", true),
            ("echo \"x", "echo \"y z", true),
            ("echo ", "echo '", false),
            ("echo ", "echo $", false),
            ("cat <<A\n", "cat <<B\n", false),
            ("cat <<A\nx", "cat <<A\ny", false),
            ("echo ", "echo # ", false),
        ] {
            assert_eq!(after(one).merge(&after(two)).is_some(), meet, "{one:?} {two:?}");
        }
        let mut met = after("echo ").merge(&after("echo x")).unwrap();
        assert_eq!(met.quoting(), Unquoted);
        met.push_text("#");
        assert!(matches!(met.quoting(), Unquotable(_)));
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
