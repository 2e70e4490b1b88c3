//! Results on standard output: lines, tables and JSON.

use std::io::Write;

use serde::Serialize;

use super::text::sanitize;
use crate::cli::shared::error::CliError;

/// The separator of columns.
const GAP: &str = "  ";
/// The minimum width of a column that is cut to fit the terminal.
const MIN_WIDTH: usize = 8;

/// Prints a value as JSON on one line.
pub(crate) fn json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value).map_err(std::io::Error::from)?;
    line(&text)
}

/// Prints a line.
pub(crate) fn line(text: &str) -> Result<(), CliError> {
    print(&format!("{text}\n"))
}

/// Prints text as it is. anstream strips colours if the output is not a terminal.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Prints bytes as they are.
pub(crate) fn bytes(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(())
}

/// Prints a warning on standard error.
pub(crate) fn warning(text: &str) -> Result<(), CliError> {
    Ok(writeln!(anstream::stderr(), "warning: {text}")?)
}

/// Prints rows in columns, or `empty` on standard error if there are none.
pub(crate) fn table(
    names: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
    empty: &str,
) -> Result<(), CliError> {
    let rows: Vec<Vec<String>> = rows.map(|row| row.iter().map(|cell| sanitize(cell)).collect()).collect();
    if rows.is_empty() {
        writeln!(anstream::stderr(), "{empty}")?;
        return Ok(());
    }
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([names[column].len()]).max().unwrap_or_default()
    };
    let widths = fit((0..names.len()).map(width).collect(), terminal_width());
    let heading = format_row(names.iter().map(ToString::to_string), &widths);
    let mut text = format!("\x1b[2m{heading}\x1b[0m\n");
    for row in rows {
        text.push_str(&format_row(row.into_iter(), &widths));
        text.push('\n');
    }
    print(&text)
}

/// The width of the terminal; `None` if standard output is not one, and nothing is cut.
fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Shrinks the widest columns until the row fits. The first column, which names the row, keeps its width.
fn fit(mut widths: Vec<usize>, limit: Option<usize>) -> Vec<usize> {
    let Some(limit) = limit else { return widths };
    let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP.len() * (widths.len() - 1);
    while total(&widths) > limit {
        match widths.iter_mut().skip(1).max() {
            Some(widest) if *widest > MIN_WIDTH => *widest -= 1,
            _ => break,
        }
    }
    widths
}

fn format_row(cells: impl Iterator<Item = String>, widths: &[usize]) -> String {
    let cells = cells.zip(widths).map(|(cell, width)| match cell.char_indices().nth(*width) {
        Some(_) => cell.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        None => format!("{cell:<width$}"),
    });
    cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::{fit, format_row};

    #[test]
    fn table_fits_the_terminal() {
        let widths = fit(vec![36, 12, 60, 5], Some(80));
        assert_eq!(widths, [36, 12, 21, 5]);
        let row = ["r".repeat(36), "name".to_owned(), "why ".repeat(15), "ann".to_owned()];
        let line = format_row(row.into_iter(), &widths);
        assert_eq!(line.chars().count(), 78, "{line}");
        assert!(line.contains("why why why why why …  ann"), "{line}");
        assert_eq!(fit(vec![36, 12, 60], None), [36, 12, 60], "piped output is not cut");
        assert_eq!(fit(vec![36, 9, 9], Some(20)), [36, 8, 8], "columns keep a minimum width");
    }
}
