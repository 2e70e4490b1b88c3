//! Renders diagnostics for terminals: message, annotated source lines and hint.

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use super::{Diagnostic, Severity};
use crate::source::Source;

/// Maximum number of source lines shown of a span.
const LINES_SHOWN: usize = 4;
/// Maximum number of bytes of a long line shown before and after a span.
const BYTES_SHOWN: usize = 2_000;

/// Renders one diagnostic with its source line; `styled` adds terminal colours.
pub fn render(diagnostic: &Diagnostic, source: &Source, styled: bool) -> String {
    let level = match diagnostic.code.severity() {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let excerpt = Excerpt::around(diagnostic, source);
    let title = format!("{} [{}]", diagnostic.message, diagnostic.code.name());
    let snippet = Snippet::source(excerpt.text)
        .line_start(excerpt.line)
        .annotation(AnnotationKind::Primary.span(excerpt.marked));
    let title = level.primary_title(title).id(diagnostic.code.id());
    let mut report = vec![if excerpt.truncated {
        // The renderer would count columns from the start of the excerpt.
        let column = source.position(diagnostic.span.start).column;
        title.element(Origin::path(source.name()).line(excerpt.line).char_column(column)).element(snippet)
    } else {
        title.element(snippet.path(source.name()))
    }];
    if let Some(hint) = &diagnostic.hint {
        report.push(Group::with_title(Level::HELP.with_name("hint").secondary_title(hint.as_str())));
    }
    let renderer = if styled { Renderer::styled() } else { Renderer::plain() };
    renderer.render(&report)
}

/// The source lines of a span. The renderer only gets these, so that its cost does not depend on the size
/// of the text and very long lines are truncated.
struct Excerpt<'s> {
    text: &'s str,
    line: usize,
    marked: std::ops::Range<usize>,
    /// Whether the start of the first line is omitted.
    truncated: bool,
}

impl<'s> Excerpt<'s> {
    fn around(diagnostic: &Diagnostic, source: &'s Source) -> Self {
        let text = source.text();
        let boundary = |byte: u32| text.floor_char_boundary((byte as usize).min(text.len()));
        let (start, mut end) = (boundary(diagnostic.span.start), boundary(diagnostic.span.end));
        let marked = &text[start..end];
        if let Some((length, _)) = marked.match_indices('\n').nth(LINES_SHOWN - 1) {
            end = start + length;
        }
        end = end.min(text.floor_char_boundary(start + BYTES_SHOWN));
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[end..].find('\n').map_or(text.len(), |newline| end + newline);
        let from = line_start.max(text.ceil_char_boundary(start.saturating_sub(BYTES_SHOWN)));
        let to = line_end.min(text.floor_char_boundary(end + BYTES_SHOWN));
        Self {
            text: &text[from..to],
            line: source.position(diagnostic.span.start).line,
            marked: start - from..end - from,
            truncated: from > line_start,
        }
    }
}
