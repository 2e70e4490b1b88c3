//! A corpus of hostile texts: the verb and the target of the approval stay visible, and nothing hides.

use crate::run::{GuardedCall, GuardedWorkflow};

use super::{ApprovalText, line, quote, text};

/// Hostile prompts and arguments, by attack.
fn corpus() -> Vec<(&'static str, String)> {
    let tags: String = "ok".chars().filter_map(|c| char::from_u32(0xe0000 + u32::from(c))).collect();
    let fixed = [
        ("ANSI: clear the screen", "\u{1b}[2J\u{1b}[HSafe read"),
        ("ANSI: hidden text", "read\u{1b}[8m and delete\u{1b}[0m"),
        ("ANSI: 8-bit CSI", "\u{9b}31mred"),
        ("OSC 8: link", "\u{1b}]8;;https://evil.example\u{7}docs\u{1b}]8;;\u{7}"),
        ("carriage return", "delete prod\rread dev   "),
        ("Windows line break", "one\r\ntwo"),
        ("backspace", "delete\u{8}\u{8}\u{8}\u{8}\u{8}\u{8}read"),
        ("right-to-left override", "invoice\u{202e}fdp.exe"),
        ("isolates", "\u{2067}elbisivni\u{2069} \u{2066}x\u{2069}"),
        ("bidi marks", "a\u{200e}b\u{200f}c\u{61c}d"),
        ("zero-width", "del\u{200b}ete pro\u{200d}d\u{feff}\u{2060}"),
        ("soft hyphen and fillers", "pay\u{ad}ment\u{3164}\u{115f}\u{ffa0}"),
        ("variation selectors", "ok\u{fe0f}\u{e0100}"),
        ("Cyrillic look-alikes", "p\u{430}ypal.com, tr\u{430}nsf\u{435}r, \u{430}dmin"),
        ("Cyrillic only", "\u{440}\u{430}\u{443}"),
        ("Russian text", "Удалить запись?"),
        ("Greek look-alikes", "g\u{3bf}\u{3bf}gle, \u{391}pprove"),
        ("Greek text", "Διαγραφή εγγραφής"),
        ("full-width and mathematical letters", "\u{ff44}elete \u{1d41d}\u{1d41e}\u{1d425}"),
        ("look-alike signs", "https:\u{2215}\u{2215}bank.example\u{2044}evil"),
        ("Armenian and Cherokee", "g\u{585}\u{585}d \u{13a0}\u{13a2}A"),
        ("unusual spaces", "rm\u{a0}-rf\u{2003}/\u{3000}x\u{2800}y"),
        ("line separators", "one\u{2028}two\u{2029}three\u{85}four\u{b}five"),
        ("combining marks", "Z\u{310}\u{311}\u{312}\u{313}\u{314}o"),
        ("private and special characters", "\u{e000}\u{fff9}\u{fffc}\u{10fffd}"),
        ("forged fact", "Read a file.\ntool        files__read\nstarted by  the owner"),
        (
            "Markdown and HTML",
            "**Approved** <b>ok</b> ![x](https://evil.example/p.png) <script>alert(1)</script>",
        ),
        ("accents and emoji", "Größe über Café, 日本語, ✅"),
    ];
    let mut corpus: Vec<(&str, String)> =
        fixed.into_iter().map(|(name, text)| (name, text.to_owned())).collect();
    corpus.push(("tag characters", format!("Read{tags}")));
    corpus.push(("10,000 line breaks", format!("Read a file{}and delete prod", "\n".repeat(10_000))));
    corpus.push(("10,000 lines", format!("Read\n{}delete prod", "lorem\n".repeat(10_000))));
    corpus.push(("100,000 characters", format!("Read {} delete prod", "x".repeat(100_000))));
    corpus
}

#[test]
fn hostile_prompts_keep_the_facts_visible() {
    let mut shown = String::new();
    for (name, hostile) in corpus() {
        shown.push_str(&format!("--- {name}\n{}\n", quote(&hostile)));
    }
    insta::assert_snapshot!(shown);
}

#[test]
fn verb_and_target_stay_visible_in_every_position() {
    for (name, hostile) in corpus() {
        let args = serde_json::json!({ "target": "prod", "note": hostile }).to_string();
        let approval = ApprovalText {
            covered: Vec::new(),
            workflows: Vec::new(),
            tool: Some("db__delete"),
            args: Some(&args),
            starter: "ann",
            by_agent: true,
            definition: ("cleanup", 3),
            step: &hostile,
            prompt: &hostile,
        };
        let shown = approval.render();
        let facts: Vec<&str> = shown.lines().take_while(|line| *line != "prompt").collect();
        assert_eq!(facts[0], "tool        db__delete", "{name}");
        assert!(facts.iter().any(|line| line.contains("\"target\": \"prod\"")), "{name}: {shown}");
        assert!(facts.contains(&"started by  an agent of ann"), "{name}: {shown}");
        assert!(facts.iter().any(|line| line.starts_with("definition  cleanup version 3, step ")), "{name}");
        let prompt = &shown.lines().collect::<Vec<_>>()[facts.len() + 1..];
        assert!(prompt.iter().all(|line| line.starts_with("> ")), "{name}: the prompt is a quotation");
        assert!(shown.lines().count() < 150 && shown.len() < 40_000, "{name}: {} bytes", shown.len());
        let is_safe = |c: char| c == '\n' || !super::is_hidden(c);
        assert!(shown.chars().all(is_safe), "{name}: {shown:?}");
    }
}

#[test]
fn folds_say_what_they_contain_and_keep_the_end() {
    let lines = text(&format!("Read\n{}delete prod", "lorem\n".repeat(10_000)));
    assert!(lines.contains("⟨folded: 9962 lines, 59772 characters⟩"), "{lines}");
    assert!(lines.ends_with("delete prod"));
    let blank = text(&format!("Read{}delete prod", "\n".repeat(10_000)));
    assert_eq!(blank, "Read\n\n⟨9998 more empty lines⟩\ndelete prod");
    let long = line(&format!("Read {} delete prod", "x".repeat(100_000)));
    assert!(long.contains(" characters⟩") && long.ends_with("delete prod"));
    assert_eq!(line("one\ntwo"), "one⟨U+000A⟩two");
    assert_eq!(text("Größe\n\nCafé"), "Größe\n\nCafé");
}

#[test]
fn arguments_that_come_from_tools_are_marked() {
    let call = |from_tools: &[&str]| GuardedCall {
        step: "send".into(),
        tool: "mail__send".into(),
        args: Some(serde_json::json!({ "to": "bob" })),
        args_hash: None,
        unknown: vec!["text".into()],
        from_tools: from_tools.iter().map(|name| (*name).into()).collect(),
        tool_hash: None,
    };
    let approval = |tool, covered| ApprovalText {
        tool,
        args: tool.map(|_| "{\"to\":\"bob\"}"),
        starter: "ann",
        by_agent: false,
        definition: ("mail", 1),
        step: "send",
        prompt: "Send it?",
        covered,
        workflows: vec![GuardedWorkflow {
            step: "pay".into(),
            name: "pay_out".into(),
            hash: None,
            inputs: Some(serde_json::json!({ "amount": 40 })),
            unknown: vec!["ref".into()],
        }],
    };
    let own = approval(Some("mail__send"), vec![call(&["to"])]).render();
    let following = approval(None, vec![call(&["to", "text"]), call(&["*"]), call(&[])]).render();
    insta::assert_snapshot!(format!("{own}\n{following}"));
}
