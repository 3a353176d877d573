//! The text that a person reads: comments of a source file, paragraphs of a page.

/// Returns each comment block of a source file, or each paragraph of a page, as one line, with the number of its first line.
/// Fenced blocks hold commands and output, so they are left out. Text between two backquotes is quoted, so it is blank.
pub(super) fn blocks(text: &str, is_rust: bool) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let (mut is_open, mut is_fenced) = (false, false);
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        let prose = if is_rust { line.strip_prefix("//").map(|line| line.trim_start_matches(['/', '!'])) } else { Some(line) };
        // A fence in a comment ends with the comment.
        is_fenced &= prose.is_some();
        let prose = prose.map(str::trim).filter(|prose| !prose.is_empty());
        let is_fence = prose.is_some_and(|prose| prose.starts_with("```"));
        is_fenced ^= is_fence;
        let Some(prose) = prose.filter(|_| !is_fence && !is_fenced) else {
            is_open = false;
            continue;
        };
        match blocks.last_mut().filter(|_| is_open) {
            Some((_, block)) => {
                block.push(' ');
                block.push_str(prose);
            }
            None => blocks.push((number, prose.to_owned())),
        }
        is_open = true;
    }
    blocks.into_iter().map(|(number, block)| (number, without_quotes(&block))).collect()
}

/// Returns the block without its quotations. A backquote without a second one quotes nothing, so the text after it stays.
fn without_quotes(block: &str) -> String {
    let pieces: Vec<_> = block.split('`').collect();
    let is_prose = |(index, _): &(usize, &&str)| index % 2 == 0 || index + 1 == pieces.len();
    pieces.iter().enumerate().filter(is_prose).map(|(_, piece)| *piece).collect::<Vec<_>>().join("`")
}
