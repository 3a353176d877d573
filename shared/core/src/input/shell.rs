//! Where in a shell script a value stands, and how it must be quoted to be one word there.
//!
//! A value that is put into a script is data of somebody else. Single quotes around it are right in the
//! open, and wrong inside `"…"`, where `$(…)` in the value would run. So quoting needs to know the place,
//! and this is the part of sh's lexer that tells it. Where sh and this lexer could read a text differently
//! (here-documents, arithmetic, backquotes) no value may stand: better a refusal than a guess.

/// Where a value would stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quoting {
    /// In the open, as a word or a part of one.
    Open,
    /// Inside `"…"`.
    DoubleQuoted,
    /// Inside `'…'`.
    SingleQuoted,
    /// Where it cannot be quoted, with the reason.
    Nowhere(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    /// `$(…)`.
    Command,
    /// `(…)`, or a bracket within one of the others.
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

/// The end of a here-document that was announced.
#[derive(Clone, Debug, PartialEq, Eq)]
struct End {
    word: String,
    strips_tabs: bool,
}

/// The state of the lexer after some text. Equal states read what follows alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shell {
    frames: Vec<Frame>,
    /// The word so far in the open, or the line so far of a here-document. Begins with [`MAYBE`] where it
    /// is not known whether something stands before the rest.
    word: String,
    escape: bool,
    last: Last,
    awaited: Vec<End>,
    /// The delimiter of a here-document is being read.
    delimiter: Option<End>,
    lost: Option<&'static str>,
}

/// Stands in a word for something or nothing.
const MAYBE: char = '\u{fffe}';

/// Stands in a word for something that is not known.
const SOMETHING: char = '\u{fffd}';

/// What the last character may have begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Last {
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

impl Shell {
    /// The lexer at the beginning of a script.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads on over text of the script itself.
    pub fn read(&mut self, text: &str) {
        text.chars().for_each(|c| self.step(c));
    }

    /// Where a value would stand now.
    pub fn place(&self) -> Quoting {
        if let Some(why) = self.lost {
            return Quoting::Nowhere(why);
        }
        if self.escape {
            return Quoting::Nowhere("right after a backslash");
        }
        if self.last == Last::Dollar {
            return Quoting::Nowhere("right after a `$`");
        }
        if self.delimiter.is_some() || matches!(self.last, Last::LessLess) {
            return Quoting::Nowhere("in the name of a here-document's end");
        }
        for frame in &self.frames {
            match frame {
                Frame::Backquote => return Quoting::Nowhere("inside backquotes; write `$(…)` instead"),
                Frame::Arithmetic(_) => {
                    return Quoting::Nowhere("inside an arithmetic expression, which sh would evaluate");
                }
                Frame::Parameter => return Quoting::Nowhere("inside `${…}`"),
                Frame::Comment => return Quoting::Nowhere("in a comment, which a line break would end"),
                Frame::HereDocument => {
                    return Quoting::Nowhere("in a here-document; use a task of type file, or printf");
                }
                Frame::Dollar => return Quoting::Nowhere("inside `$'…'`"),
                Frame::Command | Frame::Paren | Frame::Double | Frame::Single => {}
            }
        }
        match self.frames.last() {
            Some(Frame::Double) => Quoting::DoubleQuoted,
            Some(Frame::Single) => Quoting::SingleQuoted,
            _ => Quoting::Open,
        }
    }

    /// Reads on over a value that was quoted for its place.
    pub fn read_value(&mut self) {
        self.last = Last::Nothing;
        self.word.push(SOMETHING);
    }

    /// The same state before text that may stand here any number of times.
    #[must_use]
    pub fn before_repeated(mut self) -> Self {
        if self.reads_words() {
            self.word = MAYBE.into();
        }
        self
    }

    /// The state where two ways meet; `None` where they would read what follows differently.
    pub fn meet(&self, other: &Self) -> Option<Self> {
        if self == other || self.lost.is_some() {
            return Some(self.clone());
        }
        if other.lost.is_some() {
            return Some(other.clone());
        }
        let [one, two] = [self, other].map(|shell| Self { word: String::new(), ..shell.clone() });
        (one == two && self.reads_words()).then(|| one.before_repeated())
    }

    /// Whether `word` is a word, of which it matters only whether there is one, and not a delimiter or its line.
    fn reads_words(&self) -> bool {
        self.delimiter.is_none() && self.frames.last() != Some(&Frame::HereDocument)
    }

    fn step(&mut self, c: char) {
        if std::mem::take(&mut self.escape) {
            self.word.push(c);
            return;
        }
        if self.delimiter.is_some() && !self.ends_delimiter(c) {
            return;
        }
        let last = std::mem::take(&mut self.last);
        match self.frames.last().copied() {
            Some(Frame::Single | Frame::Dollar) if c == '\'' => self.leave(),
            Some(Frame::Dollar) if c == '\\' => {
                self.lost = Some("after a `$'…'` with a backslash, which shells read differently");
            }
            Some(Frame::Comment) if c == '\n' => {
                self.leave();
                self.line_ends();
            }
            Some(Frame::Single | Frame::Dollar | Frame::Comment) => {}
            Some(Frame::HereDocument) => self.step_here_document(c),
            Some(Frame::Double | Frame::Parameter) => self.step_quoted(c, last),
            Some(Frame::Arithmetic(open)) => self.step_arithmetic(c, last, open),
            Some(Frame::Command | Frame::Paren | Frame::Backquote) | None => self.step_open(c, last),
        }
    }

    /// Leaves the innermost frame. What an expansion gave is a part of a word, so that a `#` after it is no comment.
    fn leave(&mut self) {
        if matches!(self.frames.pop(), Some(Frame::Command | Frame::Arithmetic(_))) {
            self.word.clear();
            self.word.push(SOMETHING);
        }
    }

    fn step_quoted(&mut self, c: char, last: Last) {
        let parameter = self.frames.last() == Some(&Frame::Parameter);
        match c {
            '\\' => self.escape = true,
            '"' if parameter => self.frames.push(Frame::Double),
            '"' => self.leave(),
            '}' if parameter => self.leave(),
            '\'' if parameter && self.frames.contains(&Frame::Double) => {
                self.lost = Some("after a quote within `${…}` within double quotes");
            }
            '\'' if parameter => self.frames.push(Frame::Single),
            _ => self.step_expansion(c, last),
        }
    }

    /// What begins with `$` or is a backquote, alike in and outside of double quotes.
    fn step_expansion(&mut self, c: char, last: Last) {
        match (c, last) {
            ('$', _) => self.last = Last::Dollar,
            ('(', Last::Dollar) => {
                self.frames.push(Frame::Command);
                self.word.clear();
                self.last = Last::Bracket;
            }
            ('{', Last::Dollar) => self.frames.push(Frame::Parameter),
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

    fn step_arithmetic(&mut self, c: char, last: Last, open: u32) {
        let top = self.frames.len() - 1;
        match c {
            '(' if last != Last::Dollar => self.frames[top] = Frame::Arithmetic(open + 1),
            ')' if open == 1 => self.leave(),
            ')' => self.frames[top] = Frame::Arithmetic(open - 1),
            '\\' => self.escape = true,
            '\'' => self.frames.push(Frame::Single),
            '"' => self.frames.push(Frame::Double),
            _ => self.step_expansion(c, last),
        }
    }

    fn step_open(&mut self, c: char, last: Last) {
        match c {
            '#' if self.word.starts_with(MAYBE) && self.word.len() == MAYBE.len_utf8() && last != Last::Dollar => {
                self.lost = Some("after a `#` that may begin a comment or be in a word; put a space before it");
            }
            '#' if self.word.is_empty() && last != Last::Dollar => self.frames.push(Frame::Comment),
            '(' if last == Last::Bracket => {
                self.leave();
                self.frames.push(Frame::Arithmetic(2));
            }
            '<' => self.step_less(last),
            ' ' | '\t' | ';' | '&' | '|' | '>' | '\n' | '(' | ')' if !(c == '(' && last == Last::Dollar) => {
                self.word_ends();
                self.step_operator(c);
            }
            '\\' => self.escape = true,
            '\'' if last == Last::Dollar => self.frames.push(Frame::Dollar),
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

    fn step_operator(&mut self, c: char) {
        match c {
            '\n' => self.line_ends(),
            '(' => {
                self.frames.push(Frame::Paren);
                self.last = Last::Bracket;
            }
            ')' if matches!(self.frames.last(), Some(Frame::Command | Frame::Paren)) => self.leave(),
            _ => {}
        }
    }

    fn step_less(&mut self, last: Last) {
        self.word_ends();
        match last {
            Last::Less => {
                self.last = Last::LessLess;
                self.delimiter = Some(End { word: String::new(), strips_tabs: false });
            }
            _ => self.last = Last::Less,
        }
    }

    /// One character more of a here-document's delimiter; whether that ended before it.
    fn ends_delimiter(&mut self, c: char) -> bool {
        let Some(end) = self.delimiter.as_mut() else { return true };
        match c {
            '<' if end.word.is_empty() && self.last == Last::LessLess => {
                // `<<<` is bash's here-string: an ordinary word follows.
                self.delimiter = None;
                self.last = Last::Nothing;
                return false;
            }
            '-' if end.word.is_empty() && self.last == Last::LessLess => end.strips_tabs = true,
            ' ' | '\t' if end.word.is_empty() => {}
            '\'' | '"' | '\\' => {}
            '$' | '`' | '(' => self.lost = Some("after a here-document whose end is computed"),
            ' ' | '\t' | ';' | '&' | '|' | '<' | '>' | ')' | '\n' => {
                self.awaited.extend(self.delimiter.take());
                self.last = Last::Nothing;
                return true;
            }
            c => end.word.push(c),
        }
        self.last = Last::Nothing;
        false
    }

    fn word_ends(&mut self) {
        if self.word.trim_start_matches(MAYBE) == "case"
            && self.frames.iter().any(|frame| matches!(frame, Frame::Command | Frame::Backquote))
        {
            self.lost = Some("after a `case` within `$(…)`; put it into a function");
        }
        self.word.clear();
    }

    fn line_ends(&mut self) {
        self.word.clear();
        if !self.awaited.is_empty() {
            self.frames.push(Frame::HereDocument);
        }
    }

    fn step_here_document(&mut self, c: char) {
        if c != '\n' {
            self.word.push(c);
            return;
        }
        let line = std::mem::take(&mut self.word);
        let Some(end) = self.awaited.first() else { return self.leave() };
        let line = if end.strips_tabs { line.trim_start_matches('\t') } else { &line };
        if line == end.word {
            self.awaited.remove(0);
            if self.awaited.is_empty() {
                self.leave();
            }
        }
    }
}

/// A value as one word, or as a part of the quotes that it stands in; `None` where it cannot stand.
pub fn quote(value: &str, place: Quoting) -> Option<String> {
    match place {
        Quoting::Open => Some(format!("'{}'", value.replace('\'', r"'\''"))),
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
        Quoting::Nowhere(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Quoting::{DoubleQuoted, Nowhere, Open, SingleQuoted};

    fn place_after(script: &str) -> Quoting {
        let mut shell = Shell::new();
        shell.read(script);
        shell.place()
    }

    #[test]
    fn a_place_is_known_by_what_stands_before_it() {
        for (script, place) in [
            ("", Open),
            ("echo ", Open),
            ("echo x", Open),
            ("echo \"", DoubleQuoted),
            ("echo \"a\\\"", DoubleQuoted),
            ("echo \"a\" ", Open),
            ("echo '", SingleQuoted),
            ("echo 'a\"' ", Open),
            ("echo it\\'s ", Open),
            ("x=$(cat ", Open),
            ("x=\"$(cat ", Open),
            ("x=\"$(cat \"", DoubleQuoted),
            ("x=\"$(cat 'y')\" ", Open),
            ("x=\"$(cat 'y')", DoubleQuoted),
            ("echo $# ", Open),
            ("echo a#b ", Open),
            ("echo $(x)#\"", DoubleQuoted),
            ("echo $((1))#\"", DoubleQuoted),
            ("(x)#\"\n", Open),
            ("echo ${x#y} ", Open),
            ("echo hi # it's\n", Open),
            ("(cd /; ls) ", Open),
            ("f() { ", Open),
            ("case $x in a) ", Open),
            ("cat <<< ", Open),
            ("cat <<EOF\nit's\nEOF\n", Open),
            ("cat <<-'EOF' >/x\n\tit's\n\tEOF\n", Open),
            ("cat <<A; cat <<B\na\nA\nb\nB\n", Open),
            ("echo $((1 + 2)) ", Open),
            ("echo `date` ", Open),
            ("x < ", Open),
        ] {
            assert_eq!(place_after(script), place, "{script}");
        }
    }

    #[test]
    fn where_quoting_cannot_help_no_value_may_stand() {
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
            assert!(matches!(place_after(script), Nowhere(_)), "{script}: {:?}", place_after(script));
        }
    }

    #[test]
    fn two_ways_meet_where_what_follows_is_read_alike() {
        let after = |script: &str| {
            let mut shell = Shell::new();
            shell.read(script);
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
            assert_eq!(after(one).meet(&after(two)).is_some(), meet, "{one:?} {two:?}");
        }
        let mut met = after("echo ").meet(&after("echo x")).unwrap();
        assert_eq!(met.place(), Open);
        met.read("#");
        assert!(matches!(met.place(), Nowhere(_)));
    }

    #[test]
    fn a_value_is_quoted_for_its_place() {
        let value = "a'b\"$(c)`d`\\e;\nf";
        assert_eq!(quote(value, Open).unwrap(), "'a'\\''b\"$(c)`d`\\e;\nf'");
        assert_eq!(quote(value, SingleQuoted).unwrap(), "a'\\''b\"$(c)`d`\\e;\nf");
        assert_eq!(quote(value, DoubleQuoted).unwrap(), "a'b\\\"\\$(c)\\`d\\`\\\\e;\nf");
        assert_eq!(quote(value, Nowhere("")), None);
        assert_eq!(quote("", Open).unwrap(), "''");
    }
}
