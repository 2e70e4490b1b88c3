//! How lists and values are written: columns for people, JSON for programs.

use std::io::Write;

use serde::Serialize;

use super::progress::harmless;
use super::stop::Stop;

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
    let widths: Vec<usize> = (0..names.len()).map(width).collect();
    let mut out = anstream::stdout().lock();
    let heading = padded(names.iter().map(ToString::to_string), &widths);
    writeln!(out, "\x1b[2m{heading}\x1b[0m")?;
    for row in rows {
        writeln!(out, "{}", padded(row.into_iter(), &widths))?;
    }
    out.flush()?;
    Ok(())
}

fn padded(cells: impl Iterator<Item = String>, widths: &[usize]) -> String {
    let cells = cells.zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}
