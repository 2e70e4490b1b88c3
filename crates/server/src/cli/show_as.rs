//! How lists and values are written: columns for people, JSON for programs.

use std::io::Write;

use serde::Serialize;

use super::progress::harmless;
use super::stop::Stop;

/// What is between two columns.
const GAP: &str = "  ";
/// Characters that a column keeps.
const NARROWEST: usize = 8;

/// Writes JSON on one line.
pub(super) fn json(value: &impl Serialize) -> Result<(), Stop> {
    let text = serde_json::to_string(value).map_err(std::io::Error::from)?;
    line(&text)
}

/// Writes a line.
pub(super) fn line(text: &str) -> Result<(), Stop> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

/// Says that something was done; to programs, an empty map.
pub(super) fn done(is_json: bool, text: &str) -> Result<(), Stop> {
    line(if is_json { "{}" } else { text })
}

/// Writes rows in columns under their names, or says that there is nothing.
pub(super) fn table(names: &[&str], rows: &[Vec<String>], nothing: &str) -> Result<(), Stop> {
    if rows.is_empty() {
        writeln!(anstream::stderr(), "{nothing}")?;
        return Ok(());
    }
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| harmless(cell)).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([names[column].len()]).max().unwrap_or_default()
    };
    let widths = fitted((0..names.len()).map(width).collect(), room());
    let mut out = anstream::stdout().lock();
    let heading = padded(names.iter().map(ToString::to_string), &widths);
    writeln!(out, "\x1b[2m{heading}\x1b[0m")?;
    for row in rows {
        writeln!(out, "{}", padded(row.into_iter(), &widths))?;
    }
    out.flush()?;
    Ok(())
}

/// Characters of a line of the terminal. What is read by something else is not cut.
fn room() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Columns that fit: the widest one gives way, but the first, which names the row.
fn fitted(mut widths: Vec<usize>, room: Option<usize>) -> Vec<usize> {
    let Some(room) = room else { return widths };
    let taken = |widths: &[usize]| widths.iter().sum::<usize>() + GAP.len() * (widths.len() - 1);
    while taken(&widths) > room {
        match widths.iter_mut().skip(1).max() {
            Some(widest) if *widest > NARROWEST => *widest -= 1,
            _ => break,
        }
    }
    widths
}

fn padded(cells: impl Iterator<Item = String>, widths: &[usize]) -> String {
    let cells = cells.zip(widths).map(|(cell, width)| match cell.char_indices().nth(*width) {
        Some(_) => cell.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        None => format!("{cell:<width$}"),
    });
    cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::{fitted, padded};

    #[test]
    fn a_table_fits_into_the_terminal() {
        let widths = fitted(vec![36, 12, 60, 5], Some(80));
        assert_eq!(widths, [36, 12, 21, 5]);
        let row = ["r".repeat(36), "name".to_owned(), "why ".repeat(15), "ann".to_owned()];
        let line = padded(row.into_iter(), &widths);
        assert_eq!(line.chars().count(), 78, "{line}");
        assert!(line.contains("why why why why why …  ann"), "{line}");
        assert_eq!(fitted(vec![36, 12, 60], None), [36, 12, 60], "what is piped is not cut");
        assert_eq!(fitted(vec![36, 9, 9], Some(20)), [36, 8, 8], "something is left of each");
    }
}
