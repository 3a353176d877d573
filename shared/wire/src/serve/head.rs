//! Checks the raw head of each request before hyper parses it, because hyper accepts some invalid heads: a missing or
//! doubled `Host`, bare LF, a length next to an encoding (docs/trust.md, TLS and connections). If two programs see
//! different requests in the same bytes, a request can be smuggled past one of them. So every ambiguous head is refused
//! (S47), and so are oversized heads (S46).
//!
//! The parser does no input or output: its caller passes bytes to it, and it returns an error or changes its phase. It
//! copies a line only if a read ends in the middle of the line.

use std::ops::Range;

use memchr::memchr;

use crate::error::ErrorType;

/// Maximum size of a head (request line and headers), in bytes.
pub(crate) const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Maximum number of header lines.
pub(crate) const MAX_HEADERS: usize = 64;

/// The parser's position in the stream of requests.
///
/// ```text
/// Idle ──first byte──▶ Head ──blank line──▶ Body(n) ──n bytes──▶ Idle
///                       │                       (n = 0: at once)
///                       └─ chunked ──▶ Chunked (the connection's last request)
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ParsePhase {
    /// Before a request's first byte.
    #[default]
    Idle,
    /// In a head, before its blank line.
    Head,
    /// In a body of which this number of bytes has not arrived yet.
    Body(u64),
    /// In or after a chunked body. The parser does not search for the end of the body, because the connection is closed
    /// after the response.
    Chunked,
}

/// The reason why the head of a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// Too many bytes or lines in the head.
    TooLarge,
    /// An invalid line: a line without CR at its end, a continued (folded) line, a header without a valid name or with
    /// a control character in its value, or a request line that is not HTTP/1.1 or has an invalid method or target.
    Line,
    /// A missing, doubled or empty header `Host`.
    Host,
    /// An ambiguous length of the body: a length that is not a number or does not fit in 64 bits, two lengths, a length
    /// and a transfer encoding, two transfer encodings, or a transfer encoding other than `chunked`.
    Framing,
}

impl HeadError {
    /// Returns the reason under which the refused head is counted as a rejection.
    pub fn rejection_reason(self) -> &'static str {
        match self {
            Self::TooLarge => "head_too_large",
            Self::Line => "head_malformed",
            Self::Host => "host_missing_or_doubled",
            Self::Framing => "framing_ambiguous",
        }
    }

    /// Returns the error type of the response to a refused head.
    pub(crate) fn error_type(self) -> ErrorType {
        match self {
            Self::TooLarge => ErrorType::RequestHeadTooLarge,
            Self::Line | Self::Framing => ErrorType::RequestMalformed,
            Self::Host => ErrorType::RequestHost,
        }
    }
}

/// The parser of the heads of one connection.
#[derive(Debug, Default)]
pub struct HeadReader {
    phase: ParsePhase,
    head_bytes: u16,
    /// The number of complete lines of the current head, including the request line.
    line_count: u8,
    host_count: u8,
    content_length: Option<u64>,
    is_chunked: bool,
    /// The number of complete heads on this connection.
    head_count: u32,
    /// The position of the digits of the content length: a range of bytes, counted from the first byte of the head.
    length_range: Range<u16>,
    /// The last complete head.
    last_head: Option<LastHead>,
    /// The beginning of an incomplete line.
    partial_line: Vec<u8>,
}

/// A complete head: its size, the length of its body, and the position of the digits of that length, all in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LastHead {
    pub(crate) bytes: usize,
    pub(crate) content_length: u64,
    pub(crate) length_range: Range<usize>,
}

impl HeadReader {
    /// Returns the number of complete heads so far.
    pub(crate) fn head_count(&self) -> u32 {
        self.head_count
    }

    /// Returns the last complete head of the connection, or `None` before the first.
    pub(crate) fn last_head(&self) -> Option<&LastHead> {
        self.last_head.as_ref()
    }

    pub(crate) fn phase(&self) -> ParsePhase {
        self.phase
    }

    /// Parses the next bytes of the connection.
    ///
    /// # Errors
    /// [`HeadError`] of the head that contains these bytes. After an error, the caller must not pass more bytes.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), HeadError> {
        while !bytes.is_empty() {
            match self.phase {
                ParsePhase::Chunked => return Ok(()),
                ParsePhase::Body(remaining) => {
                    let consumed = usize::try_from(remaining).map_or(bytes.len(), |body_bytes| body_bytes.min(bytes.len()));
                    self.phase = body_phase(remaining - consumed as u64);
                    bytes = &bytes[consumed..];
                }
                ParsePhase::Idle | ParsePhase::Head => {
                    self.phase = ParsePhase::Head;
                    bytes = self.feed_head(bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Parses the first line of the bytes. If the line is incomplete, stores its beginning until the rest arrives.
    /// Returns the bytes after the line.
    fn feed_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], HeadError> {
        let end = memchr(b'\n', bytes).map(|index| index + 1);
        let (line, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        self.add_bytes(line.len())?;
        if end.is_none() {
            self.partial_line.extend_from_slice(line);
            return Ok(rest);
        }
        if self.partial_line.is_empty() {
            self.end_line(line)?;
        } else {
            let mut whole_line = std::mem::take(&mut self.partial_line);
            whole_line.extend_from_slice(line);
            self.end_line(&whole_line)?;
        }
        Ok(rest)
    }

    /// Adds to the size of the current head. Fails if the head is then larger than [`MAX_HEAD_BYTES`].
    fn add_bytes(&mut self, count: usize) -> Result<(), HeadError> {
        let bytes = usize::from(self.head_bytes) + count;
        if bytes > MAX_HEAD_BYTES {
            return Err(HeadError::TooLarge);
        }
        self.head_bytes = u16::try_from(bytes).map_err(|_| HeadError::TooLarge)?;
        Ok(())
    }

    /// Parses a complete line: the request line, a header, or the blank line that ends the head. Fails if the line is
    /// invalid, or if the head has more than [`MAX_HEADERS`] header lines.
    fn end_line(&mut self, line: &[u8]) -> Result<(), HeadError> {
        let line = line.strip_suffix(b"\r\n").ok_or(HeadError::Line)?;
        match (self.line_count, line) {
            (0, request_line) if is_request_line(request_line) => {}
            (0, _) => return Err(HeadError::Line),
            (_, []) => return self.end_head(),
            (_, header) => self.parse_header(header)?,
        }
        self.line_count += 1;
        // The request line is counted too.
        if usize::from(self.line_count) > MAX_HEADERS + 1 {
            return Err(HeadError::TooLarge);
        }
        Ok(())
    }

    /// Checks a header line. Stores what determines the body: the content length, and whether it is chunked.
    fn parse_header(&mut self, line: &[u8]) -> Result<(), HeadError> {
        // Programs disagree about a name that is folded, empty, or followed by a space.
        let colon = memchr(b':', line).ok_or(HeadError::Line)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.is_empty() || !all_in_class(TOKEN_CLASS, name) || !all_in_class(VALUE_CLASS, value) {
            return Err(HeadError::Line);
        }
        if name.eq_ignore_ascii_case(b"host") {
            self.host_count = self.host_count.saturating_add(1);
            if value.is_empty() || self.host_count > 1 {
                return Err(HeadError::Host);
            }
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let length = parse_decimal(value).ok_or(HeadError::Framing)?;
            self.length_range = self.range_in_head(line, value);
            if self.content_length.replace(length).is_some() {
                return Err(HeadError::Framing);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if !value.eq_ignore_ascii_case(b"chunked") || self.is_chunked {
                return Err(HeadError::Framing);
            }
            self.is_chunked = true;
        }
        Ok(())
    }

    /// Checks the complete head, stores it as the last head, and resets the parser for the body and the next head.
    fn end_head(&mut self) -> Result<(), HeadError> {
        if self.host_count != 1 {
            return Err(HeadError::Host);
        }
        let phase = match (self.content_length, self.is_chunked) {
            (Some(_), true) => return Err(HeadError::Framing),
            (None, true) => ParsePhase::Chunked,
            (length, false) => body_phase(length.unwrap_or(0)),
        };
        let content_length = self.content_length.unwrap_or(0);
        let length_range = usize::from(self.length_range.start)..usize::from(self.length_range.end);
        let last = LastHead { bytes: usize::from(self.head_bytes), content_length, length_range };
        *self = Self { phase, head_count: self.head_count.wrapping_add(1), last_head: Some(last), ..Self::default() };
        Ok(())
    }

    /// Returns the position of `part`, a slice of `line`, as a range of bytes from the beginning of the head. `line` is
    /// the current line without CR and LF, and `head_bytes` already includes this line.
    fn range_in_head(&self, line: &[u8], part: &[u8]) -> Range<u16> {
        let offset_in_line = part.as_ptr().addr() - line.as_ptr().addr();
        // The line's CR and LF were counted too.
        let start = usize::from(self.head_bytes) - line.len() - 2 + offset_in_line;
        let to_u16 = |position: usize| u16::try_from(position).unwrap_or(0);
        to_u16(start)..to_u16(start + part.len())
    }
}

/// Returns the phase of a body of which this number of bytes has not arrived yet.
fn body_phase(remaining: u64) -> ParsePhase {
    if remaining == 0 { ParsePhase::Idle } else { ParsePhase::Body(remaining) }
}

/// Returns whether a line has the form `METHOD TARGET HTTP/1.1`, with only URI characters in the target.
fn is_request_line(line: &[u8]) -> bool {
    let Some(words) = line.strip_suffix(b" HTTP/1.1") else { return false };
    let Some(space) = memchr(b' ', words) else { return false };
    let (method, target) = (&words[..space], &words[space + 1..]);
    !method.is_empty() && all_in_class(TOKEN_CLASS, method) && !target.is_empty() && all_in_class(TARGET_CLASS, target)
}

/// The bit of the characters that methods and header names may contain (a token of RFC 9110).
const TOKEN_CLASS: u8 = 1;
/// The bit of the characters of a request target: visible ASCII except `"`, `#`, `<`, `>` and the backquote.
const TARGET_CLASS: u8 = 2;
/// The bit of the bytes that a header value may contain: the tab, and all bytes except ASCII control characters.
const VALUE_CLASS: u8 = 4;

/// The bits of the classes of each byte. One lookup for each byte of a head replaces a dozen comparisons.
static BYTE_CLASSES: [u8; 256] = byte_classes();

/// Builds the table of the classes of each byte, at compile time.
const fn byte_classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut byte = 0_u8;
    loop {
        let is_mark = matches!(
            byte,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        );
        let token = if byte.is_ascii_alphanumeric() || is_mark { TOKEN_CLASS } else { 0 };
        let is_excluded_from_target = matches!(byte, b'"' | b'#' | b'<' | b'>' | b'`');
        let target = if byte.is_ascii_graphic() && !is_excluded_from_target { TARGET_CLASS } else { 0 };
        let value = if !byte.is_ascii_control() || byte == b'\t' { VALUE_CLASS } else { 0 };
        classes[byte as usize] = token | target | value;
        if byte == u8::MAX {
            return classes;
        }
        byte += 1;
    }
}

/// Returns whether all bytes are in a class. The bitwise AND of the classes of all bytes then contains the class.
fn all_in_class(class: u8, bytes: &[u8]) -> bool {
    bytes.iter().fold(class, |common, byte| common & BYTE_CLASSES[usize::from(*byte)]) != 0
}

/// Parses a decimal number that consists of digits only, as the HTTP standard requires. Returns `None` for a sign, a
/// list, spaces, an empty text, or a number that does not fit.
fn parse_decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the phase of a new parser after these bytes, or the error.
    fn feed_all(bytes: &[u8]) -> Result<ParsePhase, HeadError> {
        let mut reader = HeadReader::default();
        reader.feed(bytes)?;
        Ok(reader.phase())
    }

    #[test]
    fn head_reader_follows_request_when_split_anywhere() {
        let requests = b"POST /a HTTP/1.1\r\nHost: h\r\ncontent-Length: 5\r\n\r\nhelloGET /b HTTP/1.1\r\nhost: h\r\n\r\n";
        for cut in 0..=requests.len() {
            let mut reader = HeadReader::default();
            reader.feed(&requests[..cut]).expect("a valid first part");
            reader.feed(&requests[cut..]).expect("a valid second part");
            assert_eq!(reader.phase(), ParsePhase::Idle, "cut at {cut}");
        }
        let mut reader = HeadReader::default();
        for byte in requests {
            reader.feed(std::slice::from_ref(byte)).expect("a valid byte");
        }
        assert_eq!(reader.phase(), ParsePhase::Idle);
    }

    #[test]
    fn head_reader_reports_phase_after_bytes() {
        for (bytes, phase) in [
            (&b""[..], ParsePhase::Idle),
            (b"G", ParsePhase::Head),
            (b"GET / HTTP/1.1\r\nHost: h\r\n", ParsePhase::Head),
            (b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc", ParsePhase::Body(7)),
            (b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551615\r\n\r\n", ParsePhase::Body(u64::MAX)),
            (b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", ParsePhase::Chunked),
        ] {
            assert_eq!(feed_all(bytes), Ok(phase), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn last_head_has_range_of_content_length() {
        let bytes = b"POST /a HTTP/1.1\r\nHost: h\r\ncontent-length:  15 \r\n\r\nhello";
        // The last five bytes are the first part of the body, and not of the head.
        for cut in 0..bytes.len() - 5 {
            let mut reader = HeadReader::default();
            reader.feed(&bytes[..cut]).expect("a valid first part");
            reader.feed(&bytes[cut..]).expect("a valid second part");
            let last = reader.last_head().expect("a head");
            assert_eq!((last.bytes, last.content_length, reader.head_count()), (bytes.len() - 5, 15, 1));
            assert_eq!(&bytes[last.length_range.clone()], b"15", "cut at {cut}");
        }
    }

    #[test]
    fn s47_head_reader_rejects_invalid_and_ambiguous_heads() {
        use HeadError::{Framing, Host, Line};
        for (head, error) in [
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
            assert_eq!(feed_all(head.as_bytes()), Err(error), "{head:?}");
        }
    }

    #[test]
    fn s46_head_reader_rejects_oversized_head() {
        let with_headers = |count: usize| {
            let lines = (0..count).map(|number| format!("x{number}: y\r\n")).collect::<Vec<_>>().concat();
            format!("GET / HTTP/1.1\r\nHost: h\r\n{lines}\r\n")
        };
        // The header `Host` is one more.
        assert_eq!(feed_all(with_headers(MAX_HEADERS - 1).as_bytes()), Ok(ParsePhase::Idle));
        assert_eq!(feed_all(with_headers(MAX_HEADERS).as_bytes()), Err(HeadError::TooLarge));
        let with_bytes = |bytes: usize| format!("GET / HTTP/1.1\r\nHost: h\r\nx: {}\r\n\r\n", "y".repeat(bytes));
        let other_bytes = with_bytes(0).len();
        assert_eq!(feed_all(with_bytes(MAX_HEAD_BYTES - other_bytes).as_bytes()), Ok(ParsePhase::Idle));
        assert_eq!(feed_all(with_bytes(MAX_HEAD_BYTES - other_bytes + 1).as_bytes()), Err(HeadError::TooLarge));
        assert_eq!(feed_all(&vec![b'a'; MAX_HEAD_BYTES + 1]), Err(HeadError::TooLarge), "a line without end");
    }
}
