//! JSON messages, one a line, with a bound on each. A line above it is dropped as it arrives and reported by its id.

use std::io;

use rmcp::model::RequestId;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// Bytes at either end of an oversized line that are searched for its id.
const ENDS: usize = 512;

/// One line of a server.
#[derive(Debug, PartialEq)]
pub(crate) enum Line {
    /// A JSON value.
    Message(Value),
    /// Something else, such as a log line on standard output.
    Garbage,
    /// A message above the limit, with the id of the request that it answers, if that could be found.
    Oversized(Option<RequestId>),
}

/// Reads lines. What was read of a line is kept when a read is cancelled.
pub(crate) struct LineReader<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    /// The end of a line whose beginning is in `line`, while it is being dropped.
    tail: Option<Vec<u8>>,
    limit: usize,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    pub(crate) fn new(reader: R, limit: usize) -> Self {
        Self { reader: BufReader::with_capacity(64 * 1024, reader), line: Vec::new(), tail: None, limit }
    }

    /// The next line; none at the end.
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
                    self.line.extend_from_slice(&part[..part.len().min(ENDS)]);
                    self.line.truncate(ENDS);
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

    /// The line that was read; none if it is blank.
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
    tail.extend_from_slice(&part[part.len().saturating_sub(ENDS)..]);
    tail.drain(..tail.len().saturating_sub(ENDS));
}

/// The id of a message whose beginning this is: before anything nested. A request of the server has none that is ours.
fn id_at_start(head: &[u8]) -> Option<RequestId> {
    let text = String::from_utf8_lossy(head);
    let inside = text.trim_start().strip_prefix('{')?;
    let flat = &inside[..inside.find(['{', '[']).unwrap_or(inside.len())];
    if flat.contains("\"method\"") { None } else { id_in(flat) }
}

/// The id of a message whose end this is: after everything nested.
fn id_at_end(tail: &[u8]) -> Option<RequestId> {
    let text = String::from_utf8_lossy(tail);
    let inside = text.trim_end().strip_suffix('}')?;
    let flat = &inside[inside.rfind(['}', ']', '{', '[']).map_or(0, |at| at + 1)..];
    if flat.contains("\"method\"") { None } else { id_in(flat) }
}

/// The number after `"id":`. Ids of ours are numbers.
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
    async fn messages_are_told_from_garbage_and_from_what_is_too_large() {
        let big = "x".repeat(3_000);
        let text = format!(
            "{{\"id\":1}}\n\nready!\n[1]\n{{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"{big}\"}}\n{{\"result\":{{\"id\":3,\"x\":\"{big}\"}},\"id\": 8}}\n\
             {{\"method\":\"{big}\"}}\n{{\"id\":2}}\n"
        );
        let found = lines(&text, 1_000).await;
        assert_eq!(
            found,
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
