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
            1 => "1 notification".to_owned(),
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
    /// is too long, arguments are cut first, then the end of the quotations. Deadline and link stay.
    pub fn text(&self, form: TextForm) -> String {
        let end = self.closing(form);
        // A note about a cut needs some room.
        let room = form.chars.saturating_sub(end.chars().count() + 1).max(40);
        let mut text = self.beginning(limits::TEXT_CHARS);
        if text.chars().count() > room {
            text = self.beginning(room / 2 / self.calls.len().max(1));
        }
        cut(&mut text, room);
        if !end.is_empty() {
            text.push('\n');
            text.push_str(&end);
        }
        text
    }

    /// Facts and quotations, with at most `args` characters of the arguments of each call.
    fn beginning(&self, args: usize) -> String {
        let mut text = self.facts(args.max(limits::MIN_ARGS_CHARS));
        self.quotations(&mut text);
        text.trim_end().to_owned()
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

    fn facts(&self, args: usize) -> String {
        let mut text = String::new();
        self.calls.iter().for_each(|call| push_call(&mut text, call, args));
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

    fn closing(&self, form: TextForm) -> String {
        let mut text = String::new();
        if let Some(deadline) = self.deadline.and_then(time) {
            let earliest = if self.count > 0 { "earliest " } else { "" };
            let _ = writeln!(text, "{earliest}deadline: {deadline}");
        }
        push_line(&mut text, "digest", "", self.digest.as_deref());
        if let Some(link) = self.usable_link().filter(|link| form.link && link.len() <= form.chars / 2) {
            let _ = writeln!(text, "{link}");
        }
        text.trim_end().to_owned()
    }
}

fn push_call(text: &mut String, call: &Call, args: usize) {
    let _ = writeln!(text, "tool: {}", display::line(&call.tool));
    if !call.args.is_empty() {
        let mut shown = display::text(&call.args);
        cut(&mut shown, args);
        let _ = writeln!(text, "arguments: {shown}");
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use strum::VariantArray;

    use super::*;
    use crate::message::{Definition, Kind};

    const FORM: TextForm = TextForm { chars: 1_000, link: true };

    fn approval(args: &str, prompt: &str) -> Message {
        Message {
            id: "n1".to_owned(),
            kind: Kind::ApprovalRequested,
            definition: Some(Definition { name: "deploy".to_owned(), version: 3 }),
            starter: Some("ann".to_owned()),
            step: Some("ask".to_owned()),
            calls: vec![Call { tool: "git__push".to_owned(), args: args.to_owned() }; 2],
            prompt: Some(prompt.to_owned()),
            deadline: Some(1_763_460_000_000),
            link: Some("https://example.org/a".to_owned()),
            ..Message::default()
        }
    }

    #[test]
    fn every_kind_has_a_title_and_a_text() {
        let mut shown = String::new();
        for kind in Kind::VARIANTS {
            let message = Message {
                kind: *kind,
                calls: Vec::new(),
                detail: Some("what happened".to_owned()),
                decider: Some("bob".to_owned()),
                comment: Some("why".to_owned()),
                ..approval("", "")
            };
            shown += &format!("{}\n{}\n\n", message.title(), message.text(FORM));
        }
        insta::assert_snapshot!(shown);
    }

    #[test]
    fn large_arguments_and_prompts_do_not_hide_facts() {
        let message = approval(&"x".repeat(100_000), &"please\n".repeat(10_000)).bounded();
        let text = message.text(FORM);
        for fact in ["tool: git__push", "started by: ann", "deadline: ", "https://example.org/a", "⟨cut: "]
        {
            assert!(text.contains(fact), "{fact} is missing: {text}");
        }
        assert!(text.chars().count() <= FORM.chars);
        assert_eq!(text.matches("tool: git__push").count(), 2);
    }

    #[test]
    fn a_link_that_is_not_a_url_is_not_shown() {
        for link in ["javascript:alert(1)", "https://a b", "https://a\n", "https://\u{202e}"] {
            let message = Message { link: Some(link.to_owned()), ..approval("", "") };
            assert_eq!(message.usable_link(), None, "{link}");
        }
    }

    #[test]
    fn a_message_survives_storage() {
        let message = approval("{}", "ok?");
        let json = serde_json::to_string(&message).unwrap();
        assert_eq!(serde_json::from_str::<Message>(&json).unwrap(), message);
    }

    proptest! {
        #[test]
        fn texts_are_bounded_and_visible(args in ".{0,3000}", prompt in "(?s).{0,3000}", chars in 300..4_000_usize) {
            let message = approval(&args, &prompt).bounded();
            let text = message.text(TextForm { chars, link: true });
            prop_assert!(text.chars().count() <= chars);
            prop_assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
            prop_assert!(text.ends_with("https://example.org/a"));
            prop_assert!(message.title().chars().count() <= limits::TITLE_CHARS);
        }
    }
}
