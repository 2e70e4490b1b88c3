//! Loads any text as a definition: no panic, positions of diagnostics are within the text, and a valid definition survives a
//! round trip through canonical JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use steprail_core::diagnostic::render;
use steprail_core::draw::{Picture, dot, mermaid, svg};
use steprail_core::load;
use steprail_core::source::Source;

fuzz_target!(|text: &str| {
    for name in ["x.yaml", "x.json", "x"] {
        let source = Source::new(name, text);
        let loaded = load(&source);
        for diagnostic in &loaded.diagnostics {
            assert!(diagnostic.span.end as usize <= text.len() + 1, "{diagnostic:?}");
            let _ = (render(diagnostic, &source, false), diagnostic.finding(&source));
        }
        let (Some(plan), Some(spec)) = (loaded.plan, loaded.spec) else { continue };
        let picture = Picture::of(&plan);
        let _ = (mermaid(&picture), dot(&picture), svg(&picture));
        let printed = spec.to_canonical_json();
        let reloaded = load(&Source::new("x.json", printed.as_str()));
        assert_eq!(reloaded.plan.expect("canonical JSON is valid").hash, plan.hash, "{printed}");
    }
});
