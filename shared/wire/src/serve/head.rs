//! Reads the raw head of each request, ahead of hyper, for what hyper lets pass (docs/trust.md, Facts measured: a missing or doubled
//! `Host`, bare LF, a length beside an encoding). Two programs that see two requests in the same bytes is how one is
//! smuggled past the other; whatever could be read in two ways is refused (S47), and so are heads without measure (S46).
//!
//! Pure: bytes in, a fault or the new phase out. It copies a line only when a read ends in the middle of one.

use std::ops::Range;

use memchr::memchr;

use crate::error::ErrorType;

/// The most bytes of a head: request line and headers.
pub(crate) const MAX_HEAD_BYTES: usize = 16 * 1024;
/// The most header lines.
pub(crate) const MAX_HEADERS: usize = 64;

/// Where in the stream of requests the bytes seen so far end.
///
/// ```text
/// Between ──first byte──▶ Head ──blank line──▶ Body(n) ──n bytes──▶ Between
///                          │                        (n = 0: at once)
///                          └─ chunked ──▶ Chunked (the connection's last request)
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before a request's first byte.
    #[default]
    Between,
    /// Within a head.
    Head,
    /// Within a body of which so many bytes are to come.
    Body(u64),
    /// Within or after a chunked body. Its end is not looked for: the connection is closed after the answer.
    Chunked,
}

/// What is wrong with a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// More bytes or more lines than a head may have.
    TooLarge,
    /// A line that ends without CR, a folded one, no request line, another protocol.
    Line,
    /// No `Host`, two, or an empty one.
    Host,
    /// A length that is no number, two lengths, a length beside an encoding, an encoding other than `chunked`.
    Framing,
}

impl Fault {
    /// The reason for which a listener refuses it, by its stable name.
    pub fn reason(self) -> &'static str {
        match self {
            Self::TooLarge => "head_too_large",
            Self::Line => "head_malformed",
            Self::Host => "host_missing_or_doubled",
            Self::Framing => "framing_ambiguous",
        }
    }

    pub(crate) fn error(self) -> ErrorType {
        match self {
            Self::TooLarge => ErrorType::RequestHeadTooLarge,
            Self::Line | Self::Framing => ErrorType::RequestMalformed,
            Self::Host => ErrorType::RequestHost,
        }
    }
}

/// The reader of one connection's heads.
#[derive(Debug, Default)]
pub struct HeadReader {
    phase: Phase,
    bytes: u16,
    /// Lines ended so far in this head, the request line among them.
    lines: u8,
    hosts: u8,
    length: Option<u64>,
    chunked: bool,
    /// Heads that ended so far on this connection.
    heads: u32,
    /// Where the digits of the length stand, counted from the head's first byte.
    length_at: Range<u16>,
    /// The head that ended last.
    last: Option<LastHead>,
    /// The beginning of a line whose end has not come yet.
    partial: Vec<u8>,
}

/// What is known of a head that ended: its size, its body's length, and where that length is written in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LastHead {
    pub(crate) bytes: usize,
    pub(crate) length: u64,
    pub(crate) length_at: Range<usize>,
}

impl HeadReader {
    /// How many heads have ended so far.
    pub(crate) fn heads(&self) -> u32 {
        self.heads
    }

    /// The head that ended last; of no use once the next one has begun.
    pub(crate) fn last(&self) -> Option<&LastHead> {
        self.last.as_ref()
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Takes the next bytes of the connection.
    ///
    /// # Errors
    /// [`Fault`] of the head that they are a part of; nothing more may be taken then.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        while !bytes.is_empty() {
            match self.phase {
                Phase::Chunked => return Ok(()),
                Phase::Body(left) => {
                    let taken = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
                    self.phase = body_phase(left - taken as u64);
                    bytes = &bytes[taken..];
                }
                Phase::Between | Phase::Head => {
                    self.phase = Phase::Head;
                    bytes = self.feed_head(bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Takes one line, or the beginning of one; gives back what follows.
    fn feed_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Fault> {
        let end = memchr(b'\n', bytes).map(|at| at + 1);
        let (line, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        self.count(line.len())?;
        if end.is_none() {
            self.partial.extend_from_slice(line);
            return Ok(rest);
        }
        if self.partial.is_empty() {
            self.end_line(line)?;
        } else {
            let mut whole = std::mem::take(&mut self.partial);
            whole.extend_from_slice(line);
            self.end_line(&whole)?;
        }
        Ok(rest)
    }

    fn count(&mut self, more: usize) -> Result<(), Fault> {
        let bytes = usize::from(self.bytes) + more;
        if bytes > MAX_HEAD_BYTES {
            return Err(Fault::TooLarge);
        }
        self.bytes = u16::try_from(bytes).map_err(|_| Fault::TooLarge)?;
        Ok(())
    }

    fn end_line(&mut self, line: &[u8]) -> Result<(), Fault> {
        let line = line.strip_suffix(b"\r\n").ok_or(Fault::Line)?;
        match (self.lines, line) {
            (0, request_line) if is_request_line(request_line) => {}
            (0, _) => return Err(Fault::Line),
            (_, []) => return self.end_head(),
            (_, header) => self.take_header(header)?,
        }
        self.lines += 1;
        if usize::from(self.lines) > MAX_HEADERS + 1 {
            return Err(Fault::TooLarge);
        }
        Ok(())
    }

    fn take_header(&mut self, line: &[u8]) -> Result<(), Fault> {
        // A name that is folded, empty, or followed by a space is read differently by different programs.
        let colon = memchr(b':', line).ok_or(Fault::Line)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.is_empty() || !all_are(TOKEN, name) || !all_are(VALUE, value) {
            return Err(Fault::Line);
        }
        if name.eq_ignore_ascii_case(b"host") {
            self.hosts = self.hosts.saturating_add(1);
            if value.is_empty() || self.hosts > 1 {
                return Err(Fault::Host);
            }
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let length = decimal(value).ok_or(Fault::Framing)?;
            self.length_at = self.place_of(line, value);
            if self.length.replace(length).is_some() {
                return Err(Fault::Framing);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if !value.eq_ignore_ascii_case(b"chunked") || self.chunked {
                return Err(Fault::Framing);
            }
            self.chunked = true;
        }
        Ok(())
    }

    fn end_head(&mut self) -> Result<(), Fault> {
        if self.hosts != 1 {
            return Err(Fault::Host);
        }
        let phase = match (self.length, self.chunked) {
            (Some(_), true) => return Err(Fault::Framing),
            (None, true) => Phase::Chunked,
            (length, false) => body_phase(length.unwrap_or(0)),
        };
        let length = self.length.unwrap_or(0);
        let length_at = usize::from(self.length_at.start)..usize::from(self.length_at.end);
        let last = LastHead { bytes: usize::from(self.bytes), length, length_at };
        *self = Self { phase, heads: self.heads.wrapping_add(1), last: Some(last), ..Self::default() };
        Ok(())
    }

    /// Where in the head a part of the line stands that has just been counted.
    fn place_of(&self, line: &[u8], part: &[u8]) -> Range<u16> {
        let in_line = part.as_ptr().addr() - line.as_ptr().addr();
        // The line has its CR and LF behind it.
        let start = usize::from(self.bytes) - line.len() - 2 + in_line;
        let place = |at: usize| u16::try_from(at).unwrap_or(0);
        place(start)..place(start + part.len())
    }
}

fn body_phase(left: u64) -> Phase {
    if left == 0 { Phase::Between } else { Phase::Body(left) }
}

/// `METHOD TARGET HTTP/1.1`, the target in the characters that a URI has.
fn is_request_line(line: &[u8]) -> bool {
    let Some(words) = line.strip_suffix(b" HTTP/1.1") else { return false };
    let Some(space) = memchr(b' ', words) else { return false };
    let (method, target) = (&words[..space], &words[space + 1..]);
    !method.is_empty() && all_are(TOKEN, method) && !target.is_empty() && all_are(TARGET, target)
}

/// RFC 9110's token characters: what names of headers and methods are made of.
const TOKEN: u8 = 1;
/// What a request's target is made of: what is visible in ASCII, less what no URI has.
const TARGET: u8 = 2;
/// What a header's value is made of: all but controls, with the tab.
const VALUE: u8 = 4;

/// The classes of each byte; one look-up instead of a dozen comparisons, for each byte of each head.
static CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut byte = 0_u8;
    loop {
        let mark = matches!(
            byte,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        );
        let token = if byte.is_ascii_alphanumeric() || mark { TOKEN } else { 0 };
        let no_uri = matches!(byte, b'"' | b'#' | b'<' | b'>' | b'`');
        let target = if byte.is_ascii_graphic() && !no_uri { TARGET } else { 0 };
        let value = if !byte.is_ascii_control() || byte == b'\t' { VALUE } else { 0 };
        classes[byte as usize] = token | target | value;
        if byte == u8::MAX {
            return classes;
        }
        byte += 1;
    }
}

fn all_are(class: u8, bytes: &[u8]) -> bool {
    bytes.iter().fold(class, |so_far, byte| so_far & CLASSES[usize::from(*byte)]) != 0
}

/// Digits alone, as the standard has it: no sign, no list, no blank.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Phase, Fault> {
        let mut reader = HeadReader::default();
        reader.feed(bytes)?;
        Ok(reader.phase())
    }

    #[test]
    fn a_request_is_followed_to_its_end_however_it_is_cut() {
        let two = b"POST /a HTTP/1.1\r\nHost: h\r\ncontent-Length: 5\r\n\r\nhelloGET /b HTTP/1.1\r\nhost: h\r\n\r\n";
        for cut in 0..=two.len() {
            let mut reader = HeadReader::default();
            reader.feed(&two[..cut]).expect("a good half");
            reader.feed(&two[cut..]).expect("the other");
            assert_eq!(reader.phase(), Phase::Between, "cut at {cut}");
        }
        let mut reader = HeadReader::default();
        for byte in two {
            reader.feed(std::slice::from_ref(byte)).expect("a good byte");
        }
        assert_eq!(reader.phase(), Phase::Between);
    }

    #[test]
    fn the_phase_says_what_is_to_come() {
        for (bytes, phase) in [
            (&b""[..], Phase::Between),
            (b"G", Phase::Head),
            (b"GET / HTTP/1.1\r\nHost: h\r\n", Phase::Head),
            (b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc", Phase::Body(7)),
            (b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551615\r\n\r\n", Phase::Body(u64::MAX)),
            (b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", Phase::Chunked),
        ] {
            assert_eq!(read(bytes), Ok(phase), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn the_last_head_says_where_its_length_is_written() {
        let bytes = b"POST /a HTTP/1.1\r\nHost: h\r\ncontent-length:  15 \r\n\r\nhello";
        for cut in 0..bytes.len() - 5 {
            let mut reader = HeadReader::default();
            reader.feed(&bytes[..cut]).expect("a good half");
            reader.feed(&bytes[cut..]).expect("the other");
            let last = reader.last().expect("a head");
            assert_eq!((last.bytes, last.length, reader.heads()), (bytes.len() - 5, 15, 1));
            assert_eq!(&bytes[last.length_at.clone()], b"15", "cut at {cut}");
        }
    }

    #[test]
    fn s47_what_could_be_read_in_two_ways_is_refused() {
        use Fault::{Framing, Host, Line};
        for (head, fault) in [
            ("GET / HTTP/1.1\nHost: h\n\n", Line),
            ("GET / HTTP/1.1\r\nHost: h\n\r\n", Line),
            ("GET / HTTP/1.1\r\nHost: h\r\n\n", Line),
            ("\r\nGET / HTTP/1.1\r\n", Line),
            ("GET / HTTP/1.0\r\nHost: h\r\n\r\n", Line),
            ("GET /\r\n", Line),
            ("GET  / HTTP/1.1\r\nHost: h\r\n\r\n", Line),
            ("GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", Line),
            ("GET /\u{e9} HTTP/1.1\r\nHost: h\r\n\r\n", Line),
            ("GET /\u{7f} HTTP/1.1\r\nHost: h\r\n\r\n", Line),
            ("G(T / HTTP/1.1\r\nHost: h\r\n\r\n", Line),
            ("GET / HTTP/1.1\r\nHost: h\r\nX\u{e9}: y\r\n\r\n", Line),
            ("GET / HTTP/1.1\r\nHost: h\r\nx: \u{1b}[2J\r\n\r\n", Line),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Line),
            ("GET / HTTP/1.1\r\nHost: h\r\n folded: x\r\n\r\n", Line),
            ("GET / HTTP/1.1\r\nHost : h\r\n\r\n", Line),
            ("GET / HTTP/1.1\r\nHost: h\r\n: x\r\n\r\n", Line),
            ("GET / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n", Line),
            ("GET / HTTP/1.1\r\nHost: h\r\nx: a\rContent-Length: 3\r\n\r\n", Line),
            ("GET / HTTP/1.1\r\nHost: h\0\r\n\r\n", Line),
            ("GET / HTTP/1.1\r\n\r\n", Host),
            ("GET / HTTP/1.1\r\nHost:\r\n\r\n", Host),
            ("GET / HTTP/1.1\r\nHost: a\r\nhOST: a\r\n\r\n", Host),
            ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", Framing),
            ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", Framing),
            ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", Framing),
            ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3, 3\r\n\r\n", Framing),
            ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +3\r\n\r\n", Framing),
            ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", Framing),
            ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x3\r\n\r\n", Framing),
            ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n", Framing),
            ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551616\r\n\r\n", Framing),
            ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Framing),
            ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\n\r\n", Framing),
            ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", Framing),
            ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n", Framing),
        ] {
            assert_eq!(read(head.as_bytes()), Err(fault), "{head:?}");
        }
    }

    #[test]
    fn s46_a_head_without_measure_is_refused() {
        let with_headers = |count: usize| {
            let lines = (0..count).map(|n| format!("x{n}: y\r\n")).collect::<Vec<_>>().concat();
            format!("GET / HTTP/1.1\r\nHost: h\r\n{lines}\r\n")
        };
        assert_eq!(read(with_headers(MAX_HEADERS - 1).as_bytes()), Ok(Phase::Between));
        assert_eq!(read(with_headers(MAX_HEADERS).as_bytes()), Err(Fault::TooLarge));
        let with_bytes = |bytes: usize| format!("GET / HTTP/1.1\r\nHost: h\r\nx: {}\r\n\r\n", "y".repeat(bytes));
        let rest = with_bytes(0).len();
        assert_eq!(read(with_bytes(MAX_HEAD_BYTES - rest).as_bytes()), Ok(Phase::Between));
        assert_eq!(read(with_bytes(MAX_HEAD_BYTES - rest + 1).as_bytes()), Err(Fault::TooLarge));
        assert_eq!(read(&vec![b'a'; MAX_HEAD_BYTES + 1]), Err(Fault::TooLarge), "a line without end");
    }
}
