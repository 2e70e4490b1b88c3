//! Reads JSON messages, one per line. A line above the size limit is discarded while it is read and reported by its id.

use std::io;

use rmcp::model::RequestId;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// Bytes at each end of an oversized line that are searched for its id.
const SEARCHED_BYTES: usize = 512;

/// One line of a server.
#[derive(Debug, PartialEq)]
pub(crate) enum Line {
    /// A JSON value.
    Message(Value),
    /// Not a JSON object, for example a log line.
    Garbage,
    /// A message above the limit, with the id of its request if that was found.
    Oversized(Option<RequestId>),
}

/// Reads lines. Cancellation-safe: a partially read line is kept.
pub(crate) struct LineReader<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    /// The last bytes of an oversized line, whose first bytes are in `line`.
    tail: Option<Vec<u8>>,
    limit: usize,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    pub(crate) fn new(reader: R, limit: usize) -> Self {
        Self { reader: BufReader::with_capacity(64 * 1024, reader), line: Vec::new(), tail: None, limit }
    }

    /// The next line; `None` at the end of the input.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let read = self.reader.fill_buf().await?;
            if read.is_empty() {
                return Ok(None);
            }
            let end = read.iter().position(|byte| *byte == b'\n');
            let part = &read[..end.unwrap_or(read.len())];
            match &mut self.tail {
                Some(tail) => keep_last(tail, part),
                None if self.line.len() + part.len() > self.limit => {
                    let mut tail = Vec::new();
                    keep_last(&mut tail, part);
                    self.tail = Some(tail);
                    self.line.extend_from_slice(&part[..part.len().min(SEARCHED_BYTES)]);
                    self.line.truncate(SEARCHED_BYTES);
                    self.line.shrink_to_fit();
                }
                None => self.line.extend_from_slice(part),
            }
            let used = end.map_or(read.len(), |end| end + 1);
            self.reader.consume(used);
            if end.is_some()
                && let Some(line) = self.take()
            {
                return Ok(Some(line));
            }
        }
    }

    /// The complete line; `None` if it is blank.
    fn take(&mut self) -> Option<Line> {
        let line = std::mem::take(&mut self.line);
        if let Some(tail) = self.tail.take() {
            return Some(Line::Oversized(id_at_start(&line).or_else(|| id_at_end(&tail))));
        }
        if line.trim_ascii().is_empty() {
            return None;
        }
        match serde_json::from_slice(&line) {
            Ok(value @ Value::Object(_)) => Some(Line::Message(value)),
            _ => Some(Line::Garbage),
        }
    }
}

fn keep_last(tail: &mut Vec<u8>, part: &[u8]) {
    tail.extend_from_slice(&part[part.len().saturating_sub(SEARCHED_BYTES)..]);
    tail.drain(..tail.len().saturating_sub(SEARCHED_BYTES));
}

/// The id of a message by its first bytes, before any nested value. `None` for requests of the server.
fn id_at_start(head: &[u8]) -> Option<RequestId> {
    let text = String::from_utf8_lossy(head);
    let inside = text.trim_start().strip_prefix('{')?;
    let flat = &inside[..inside.find(['{', '[']).unwrap_or(inside.len())];
    if flat.contains("\"method\"") { None } else { id_in(flat) }
}

/// The id of a message by its last bytes, after all nested values. `None` for requests of the server.
fn id_at_end(tail: &[u8]) -> Option<RequestId> {
    let text = String::from_utf8_lossy(tail);
    let inside = text.trim_end().strip_suffix('}')?;
    let flat = &inside[inside.rfind(['}', ']', '{', '[']).map_or(0, |at| at + 1)..];
    if flat.contains("\"method\"") { None } else { id_in(flat) }
}

/// The number after `"id":`. The ids of our requests are numbers.
fn id_in(text: &str) -> Option<RequestId> {
    let (_, rest) = text.rsplit_once("\"id\"")?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().map(RequestId::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(text: &str, limit: usize) -> Vec<Line> {
        let mut reader = LineReader::new(text.as_bytes(), limit);
        let mut lines = Vec::new();
        while let Some(line) = reader.next().await.expect("text") {
            lines.push(line);
        }
        lines
    }

    #[tokio::test]
    async fn distinguishes_messages_garbage_and_oversized_lines() {
        let big = "x".repeat(3_000);
        let text = format!(
            "{{\"id\":1}}\n\nready!\n[1]\n{{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"{big}\"}}\n{{\"result\":{{\"id\":3,\"x\":\"{big}\"}},\"id\": 8}}\n\
             {{\"method\":\"{big}\"}}\n{{\"id\":2}}\n"
        );
        let lines = lines(&text, 1_000).await;
        assert_eq!(
            lines,
            [
                Line::Message(serde_json::json!({ "id": 1 })),
                Line::Garbage,
                Line::Garbage,
                Line::Oversized(Some(RequestId::Number(7))),
                Line::Oversized(Some(RequestId::Number(8))),
                Line::Oversized(None),
                Line::Message(serde_json::json!({ "id": 2 })),
            ]
        );
    }
}
