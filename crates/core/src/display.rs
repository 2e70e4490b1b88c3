//! Untrusted text, made safe to show to a person who decides: text of tools, agents and definitions.
//!
//! Characters that cannot be seen, that move other text, or that look like another letter are replaced by their code
//! (`⟨U+202E⟩`). Line breaks are kept. Long text is folded, and the fold says how much it contains; the end stays visible.

use std::fmt::Write;

use crate::limits::{SHOWN_BLANK_LINES, SHOWN_LINE_CHARS, SHOWN_LINES};
use crate::run::{GuardedCall, GuardedWorkflow};

/// Combining marks in a row that are shown as they are.
const COMBINING_MARKS: usize = 3;

/// A text with several lines: every character is visible, and long parts are folded.
pub fn text(untrusted: &str) -> String {
    fold(&reveal(untrusted, true))
}

/// A text on one line: line breaks are visible, too.
pub fn line(untrusted: &str) -> String {
    fold_line(&reveal(untrusted, false))
}

/// A text with several lines in full: every character is visible, and nothing is folded.
pub fn visible(untrusted: &str) -> String {
    reveal(untrusted, true)
}

/// A text as a quotation: each line starts with `> `, so that it cannot be taken for a fact of the engine.
pub fn quote(untrusted: &str) -> String {
    indent(&text(untrusted), "> ")
}

/// The facts of an approval that the engine vouches for, and the prompt, for which it does not.
#[derive(Debug, Clone, Default)]
pub struct ApprovalText<'a> {
    /// The tool that is called after the approval.
    pub tool: Option<&'a str>,
    /// Its arguments, as JSON.
    pub args: Option<&'a str>,
    /// The user who started the run.
    pub starter: &'a str,
    /// Whether an agent started the run for the user.
    pub by_agent: bool,
    /// Name and version of the definition.
    pub definition: (&'a str, u32),
    /// Path of the step that waits.
    pub step: &'a str,
    /// The prompt, as the definition or the tool wrote it.
    pub prompt: &'a str,
    /// The calls that the approval covers: its own, or those that follow.
    pub covered: Vec<GuardedCall>,
    /// The sub-workflows that follow.
    pub workflows: Vec<GuardedWorkflow>,
}

impl ApprovalText<'_> {
    /// The facts first, the prompt second and as a quotation.
    pub fn render(&self) -> String {
        let mut shown = String::new();
        if let Some(tool) = self.tool {
            let _ = writeln!(shown, "tool        {}", line(tool));
        }
        let is_own = self.tool.is_some();
        let own_args = self.covered.iter().filter(|_| is_own).find_map(|call| call.args.as_ref());
        let args = self.args.map(ToOwned::to_owned).or_else(|| own_args.map(ToString::to_string));
        if let Some(args) = args {
            let _ =
                writeln!(shown, "arguments   {}", indent(&text(&pretty(&args)), "            ").trim_start());
        }
        for call in self.covered.iter().filter(|_| !is_own) {
            let _ = writeln!(shown, "may call    {}", guarded_call(call));
        }
        for names in self.covered.iter().filter(|_| is_own).filter_map(|call| from_tools(&call.from_tools)) {
            let _ = writeln!(shown, "            ({names})");
        }
        for workflow in &self.workflows {
            let _ = writeln!(shown, "may run     {}", guarded_workflow(workflow));
        }
        let who = if self.by_agent { "an agent of " } else { "" };
        let _ = writeln!(shown, "started by  {who}{}", line(self.starter));
        let (name, version) = self.definition;
        let _ = writeln!(shown, "definition  {} version {version}, step {}", line(name), line(self.step));
        let _ = write!(shown, "prompt\n{}", quote(self.prompt));
        shown
    }
}

/// A call that an approval covers, on one line.
fn guarded_call(call: &GuardedCall) -> String {
    let args = match (&call.args, call.args_hash) {
        (Some(args), _) => line(&args.to_string()),
        (None, Some(hash)) => format!("(arguments too large to show, SHA-256 {hash})"),
        (None, None) => String::new(),
    };
    let unknown = call.unknown.join(", ");
    let unknown = if unknown.is_empty() { unknown } else { format!(" (not known yet: {})", line(&unknown)) };
    let from_tools = from_tools(&call.from_tools).map(|names| format!(" ({names})")).unwrap_or_default();
    format!("{} {args}{unknown}{from_tools}", line(&call.tool))
}

/// A sub-workflow that an approval covers, on one line.
fn guarded_workflow(workflow: &GuardedWorkflow) -> String {
    let inputs = workflow.inputs.as_ref().map(|inputs| format!(" {}", line(&inputs.to_string())));
    let unknown = workflow.unknown.join(", ");
    let unknown = if unknown.is_empty() { unknown } else { format!(" (not known yet: {})", line(&unknown)) };
    format!("workflow {}{}{unknown}", line(&workflow.name), inputs.unwrap_or_default())
}

/// The arguments whose values come from tools. Their text can be anything.
fn from_tools(names: &[Box<str>]) -> Option<String> {
    let names = match names {
        [] => return None,
        [all] if **all == *"*" => "all of it".to_owned(),
        names => line(&names.join(", ")),
    };
    Some(format!("from tools: {names}"))
}

/// JSON with one value per line; the text itself if it is not JSON.
fn pretty(json: &str) -> String {
    let value: Option<serde_json::Value> = serde_json::from_str(json).ok();
    value.and_then(|value| serde_json::to_string_pretty(&value).ok()).unwrap_or_else(|| json.to_owned())
}

fn indent(shown: &str, prefix: &str) -> String {
    let lines: Vec<String> = shown.split('\n').map(|line| format!("{prefix}{line}")).collect();
    lines.join("\n")
}

/// Replaces every character that is not plainly visible by its code.
fn reveal(untrusted: &str, keeps_lines: bool) -> String {
    let untrusted = untrusted.replace("\r\n", "\n");
    // A text in a script has letters that no Latin letter looks like. Then its words are what they seem to be.
    let has_script = untrusted.chars().any(|c| is_other_script(c) && !looks_latin(c));
    let mut shown = String::with_capacity(untrusted.len());
    let mut marks = 0;
    for word in words(&untrusted) {
        let is_mixed = word.chars().any(|c| c.is_ascii_alphanumeric());
        for c in word.chars() {
            marks = if is_combining(c) { marks + 1 } else { 0 };
            let is_plain = match c {
                '\n' => keeps_lines,
                _ if is_hidden(c) => false,
                _ if looks_latin(c) => has_script && !is_mixed && is_other_script(c),
                _ => marks <= COMBINING_MARKS,
            };
            if is_plain {
                shown.push(c);
            } else {
                let _ = write!(shown, "⟨U+{:04X}⟩", u32::from(c));
            }
        }
    }
    shown
}

/// The words of a text and what is between them, in order. Hidden characters are part of a word.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_in_word = |c: char| c.is_alphanumeric() || is_hidden(c) && c != '\n' || is_combining(c);
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let is_word = is_in_word(first);
        let end = rest.find(|c| is_in_word(c) != is_word).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        Some(word)
    })
}

/// Characters that cannot be seen or that change how other characters are shown: controls, zero-width characters, bidi
/// controls, tags, variation selectors, unusual spaces and private characters.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{a0}' | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{1680}'
            | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2000}'..='\u{200f}'
            | '\u{2028}'..='\u{202f}' | '\u{205f}'..='\u{206f}' | '\u{2800}' | '\u{3000}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{ffff}'
            | '\u{e000}'..='\u{f8ff}' | '\u{e0000}'..='\u{e0fff}' | '\u{f0000}'..='\u{10ffff}')
}

fn is_combining(c: char) -> bool {
    matches!(c,
        '\u{300}'..='\u{36f}' | '\u{483}'..='\u{489}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}'
        | '\u{20d0}'..='\u{20ff}' | '\u{fe20}'..='\u{fe2f}')
}

/// Greek, Cyrillic, Armenian and Cherokee letters.
fn is_other_script(c: char) -> bool {
    matches!(c, '\u{370}'..='\u{52f}' | '\u{531}'..='\u{58f}' | '\u{13a0}'..='\u{13ff}' | '\u{1c80}'..='\u{1c8f}'
        | '\u{1f00}'..='\u{1fff}' | '\u{2de0}'..='\u{2dff}' | '\u{a640}'..='\u{a69f}' | '\u{ab70}'..='\u{abbf}')
}

/// Characters that look like an ASCII letter, digit or sign.
fn looks_latin(c: char) -> bool {
    const CYRILLIC: &str = "АВЕЅІЈКМНОРСТУХЗЬавеѕіјкмнорстухьһԁԛԝӏӀүҮгпԍѵѴ";
    const GREEK: &str = "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧαγικνορτυχϲϳϹΙ";
    const OTHERS: &str = "ıɑɡɩɪʏȷʟʀʜɴƖǀոսցօհյքԼՏԱᎪᏴᏟᎠᎬᎻᎫᏦᏞᎷᏢᏚᎢᏙᎳᏃKÅℓ∕⁄․‐‑−∖⧸";
    matches!(c, '\u{ff01}'..='\u{ff5e}' | '\u{1d400}'..='\u{1d7ff}' | '\u{2160}'..='\u{217f}')
        || (!c.is_ascii() && [CYRILLIC, GREEK, OTHERS].iter().any(|letters| letters.contains(c)))
}

/// Folds empty lines, the middle of long lines and the middle of a text with many lines.
fn fold(shown: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut blank = 0;
    for line in shown.split('\n').chain(["end"]).collect::<Vec<_>>().windows(2) {
        let (line, next) = (line[0], line[1]);
        blank = if line.trim().is_empty() { blank + 1 } else { 0 };
        if blank <= SHOWN_BLANK_LINES {
            lines.push(fold_line(line));
        } else if !next.trim().is_empty() {
            lines.push(format!("⟨{} more empty lines⟩", blank - SHOWN_BLANK_LINES));
        }
    }
    if lines.len() <= SHOWN_LINES {
        return lines.join("\n");
    }
    // The end is shown, too: what a text begins with can distract from what it ends with.
    let (head, tail) = (SHOWN_LINES * 3 / 4, SHOWN_LINES / 4);
    let folded = &lines[head..lines.len() - tail];
    let chars: usize = folded.iter().map(|line| line.chars().count() + 1).sum();
    let note = format!("⟨folded: {} lines, {chars} characters⟩", folded.len());
    [&lines[..head], &[note], &lines[lines.len() - tail..]].concat().join("\n")
}

/// Folds the middle of a long line.
fn fold_line(line: &str) -> String {
    let count = line.chars().count();
    if count <= SHOWN_LINE_CHARS {
        return line.to_owned();
    }
    let (head, tail) = (SHOWN_LINE_CHARS * 3 / 4, SHOWN_LINE_CHARS / 4);
    let begin: String = line.chars().take(head).collect();
    let end: String = line.chars().skip(count - tail).collect();
    format!("{begin}⟨folded: {} characters⟩{end}", count - head - tail)
}

#[cfg(test)]
mod tests;
