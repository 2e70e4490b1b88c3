//! The title and the text of a message for people: facts that the engine vouches for first, then untrusted text.

use std::fmt::Write;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use steprail_core::display;
use steprail_core::run::Millis;

use crate::limits;
use crate::message::{Call, Message, cut};

/// How a channel shows a text.
#[derive(Debug, Clone, Copy)]
pub struct TextForm {
    /// The maximum length, in characters.
    pub chars: usize,
    /// Whether the text contains the link. False for channels that show the link separately.
    pub link: bool,
}

impl Message {
    /// The default title, on one line.
    pub fn title(&self) -> String {
        let mut title = match self.count {
            0 => self.kind.label().to_owned(),
            count => format!("{count} notifications"),
        };
        if let Some(definition) = &self.definition {
            let _ = write!(title, ": {}", display::line(&definition.name));
        }
        if let Some(step) = &self.step {
            let _ = write!(title, " › {}", display::line(step));
        }
        cut(&mut title, limits::TITLE_CHARS);
        title
    }

    /// The default text: calls, starter and definition, then the prompt as a quotation, then deadline and link. If the text
    /// is too long, deadline and link stay.
    pub fn text(&self, form: TextForm) -> String {
        let end = self.closing(form.link);
        let mut text = self.facts();
        self.quotations(&mut text);
        // `cut` needs some room for its note.
        let room = form.chars.saturating_sub(end.chars().count() + 1).max(40);
        let mut text = text.trim_end().to_owned();
        cut(&mut text, room);
        if !end.is_empty() {
            text.push('\n');
            text.push_str(&end);
        }
        text
    }

    /// One line for a digest.
    pub fn summary(&self) -> String {
        let mut line = self.title();
        if let Some(call) = self.calls.first() {
            let _ = write!(line, ": {} {}", display::line(&call.tool), display::line(&call.args));
        } else if let Some(detail) = &self.detail {
            let _ = write!(line, ": {}", display::line(detail));
        }
        cut(&mut line, limits::FIELD_CHARS);
        line
    }

    fn facts(&self) -> String {
        let mut text = String::new();
        self.calls.iter().for_each(|call| push_call(&mut text, call));
        if self.more_calls > 0 {
            let _ = writeln!(text, "and {} more calls", self.more_calls);
        }
        let who = if self.by_agent { "an agent of " } else { "" };
        push_line(&mut text, "started by", who, self.starter.as_deref());
        if let Some(definition) = &self.definition {
            let name = display::line(&definition.name);
            let _ = writeln!(text, "definition: {name} version {}", definition.version);
        }
        push_line(&mut text, "step", "", self.step.as_deref());
        push_line(&mut text, "run", "", self.run.as_deref());
        push_line(&mut text, "decided by", "", self.decider.as_deref());
        text
    }

    fn quotations(&self, text: &mut String) {
        let parts = [("detail", &self.detail), ("comment", &self.comment), ("prompt", &self.prompt)];
        for (name, part) in parts {
            if let Some(part) = part.as_deref().filter(|part| !part.is_empty()) {
                let _ = writeln!(text, "{name}:\n{}", display::quote(part));
            }
        }
        for entry in &self.entries {
            let _ = writeln!(text, "- {}", display::line(entry));
        }
        let rest = self.count.saturating_sub(self.entries.len() as u64);
        if rest > 0 {
            let _ = writeln!(text, "and {rest} more");
        }
    }

    fn closing(&self, with_link: bool) -> String {
        let mut text = String::new();
        if let Some(deadline) = self.deadline.and_then(time) {
            let earliest = if self.count > 0 { "earliest " } else { "" };
            let _ = writeln!(text, "{earliest}deadline: {deadline}");
        }
        push_line(&mut text, "digest", "", self.digest.as_deref());
        if let Some(link) = self.usable_link().filter(|_| with_link) {
            let _ = writeln!(text, "{link}");
        }
        text.trim_end().to_owned()
    }
}

fn push_call(text: &mut String, call: &Call) {
    let _ = writeln!(text, "tool: {}", display::line(&call.tool));
    if !call.args.is_empty() {
        let _ = writeln!(text, "arguments: {}", display::text(&call.args));
    }
}

fn push_line(text: &mut String, name: &str, prefix: &str, value: Option<&str>) {
    if let Some(value) = value {
        let _ = writeln!(text, "{name}: {prefix}{}", display::line(value));
    }
}

/// A time to the minute, in UTC.
pub(crate) fn time(millis: Millis) -> Option<String> {
    let time = Timestamp::from_millisecond(millis).ok()?.to_zoned(TimeZone::UTC);
    Some(format!("{} {:02}:{:02} UTC", time.date(), time.hour(), time.minute()))
}
