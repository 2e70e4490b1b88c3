//! Trace contexts of runs. Span ids are derived from the ids of the run, so a run that takes days and several processes holds
//! no span open.

use std::fmt;

use sha2::{Digest, Sha256};
use steprail_store::RunId;

/// A W3C Trace Context `traceparent`: `00-<trace>-<span>-<flags>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// Trace id.
    pub trace: [u8; 16],
    /// Span id.
    pub span: [u8; 8],
    /// Whether the trace is recorded.
    pub sampled: bool,
}

/// Length of a version 00 `traceparent`, in bytes.
const LENGTH: usize = 55;

impl TraceParent {
    /// Parses a `traceparent`. Of a later version, the fields of version 00 are used, as the standard requires.
    pub fn parse(text: &str) -> Option<Self> {
        let [version] = hex(text.get(..2)?)?;
        let length_fits = match version {
            0 => text.len() == LENGTH,
            0xff => false,
            _ => matches!(text.as_bytes().get(LENGTH), None | Some(b'-')),
        };
        let dashes = [2, 35, 52].iter().all(|at| text.as_bytes().get(*at) == Some(&b'-'));
        let (trace, span) = (hex(text.get(3..35)?)?, hex(text.get(36..52)?)?);
        let [flags] = hex(text.get(53..LENGTH)?)?;
        let is_valid = length_fits && dashes && trace != [0; 16] && span != [0; 8];
        is_valid.then_some(Self { trace, span, sampled: flags & 1 == 1 })
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (u128::from_be_bytes(self.trace), u64::from_be_bytes(self.span));
        write!(out, "00-{trace:032x}-{span:016x}-{:02x}", u8::from(self.sampled))
    }
}

/// Decodes lowercase hexadecimal digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

/// The trace of a run, with spans for the run, for each step execution and for each attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunTrace {
    run: RunId,
    /// The span in which the run was started.
    pub parent: Option<TraceParent>,
}

impl RunTrace {
    /// The trace of a run, given the `traceparent` of its start. An invalid `traceparent` is ignored.
    pub fn new(run: RunId, started_in: Option<&str>) -> Self {
        Self { run, parent: started_in.and_then(TraceParent::parse) }
    }

    /// The span of the run.
    pub fn run(&self) -> TraceParent {
        self.span(0, 0)
    }

    /// The span of step execution `n`.
    pub fn step(&self, n: u32) -> TraceParent {
        self.span(n, 0)
    }

    /// The span of an attempt of step execution `n`.
    pub fn attempt(&self, n: u32, attempt: u32) -> TraceParent {
        self.span(n, attempt)
    }

    fn span(&self, n: u32, attempt: u32) -> TraceParent {
        let mut hasher = Sha256::new();
        hasher.update(self.run.0.as_bytes());
        hasher.update(n.to_be_bytes());
        hasher.update(attempt.to_be_bytes());
        let mut span = [0; 8];
        span.copy_from_slice(&hasher.finalize()[..8]);
        TraceParent {
            trace: self.parent.map_or(*self.run.0.as_bytes(), |parent| parent.trace),
            span,
            sampled: self.parent.is_none_or(|parent| parent.sampled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RunTrace, TraceParent};
    use steprail_store::RunId;

    const OUTER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn run(id: &str) -> RunId {
        id.parse().expect("an id")
    }

    #[test]
    fn parses_its_own_format() {
        let parsed = TraceParent::parse(OUTER).expect("a traceparent");
        assert_eq!(parsed.to_string(), OUTER);
        assert!(parsed.sampled);
        assert!(!TraceParent::parse(&OUTER.replace("-01", "-00")).expect("a traceparent").sampled);
    }

    #[test]
    fn parses_the_known_fields_of_later_versions() {
        for later in [OUTER.replacen("00", "01", 1), format!("{}-more", OUTER.replacen("00", "cc", 1))] {
            assert_eq!(TraceParent::parse(&later).expect("a traceparent").to_string(), OUTER, "{later}");
        }
    }

    #[test]
    fn rejects_invalid_text() {
        let zeros = "0".repeat(32);
        for bad in [
            "",
            "00",
            "00-é",
            &OUTER[..54],
            &format!("{OUTER}-more"),
            &format!("{}more", OUTER.replacen("00", "01", 1)),
            &OUTER.replacen("00", "ff", 1),
            &OUTER.replace('-', "_"),
            &OUTER.to_uppercase(),
            &OUTER.replace("4bf", "4b+"),
            &format!("00-{zeros}-00f067aa0ba902b7-01"),
            &format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", &zeros[..16]),
            &OUTER.repeat(100_000),
        ] {
            let start: String = bad.chars().take(70).collect();
            assert_eq!(TraceParent::parse(bad), None, "{start}");
        }
    }

    #[test]
    fn run_has_its_own_trace_unless_started_in_one() {
        let id = run("0198a1b2-c3d4-7000-8000-000000000001");
        let own = RunTrace::new(id, None);
        let all = [own.run(), own.step(1), own.attempt(1, 1), own.attempt(1, 2), own.step(2)];
        insta::assert_snapshot!(all.map(|span| span.to_string()).join("\n"), @r"
        00-0198a1b2c3d470008000000000000001-0776f764321bf4ca-01
        00-0198a1b2c3d470008000000000000001-e69c6b9021950eff-01
        00-0198a1b2c3d470008000000000000001-88619f995d633076-01
        00-0198a1b2c3d470008000000000000001-38a57f5cf377598c-01
        00-0198a1b2c3d470008000000000000001-da3a9b4fe2516555-01
        ");
        let part = RunTrace::new(id, Some(OUTER));
        assert_eq!(part.attempt(1, 2).trace, TraceParent::parse(OUTER).expect("a traceparent").trace);
        assert_eq!(part.attempt(1, 2).span, own.attempt(1, 2).span);
        assert!(!RunTrace::new(id, Some(&OUTER.replace("-01", "-00"))).run().sampled, "an unsampled parent");
        assert_eq!(RunTrace::new(id, Some("not a traceparent")), own);
    }

    #[test]
    fn span_ids_are_unique() {
        let (a, b) =
            (run("0198a1b2-c3d4-7000-8000-000000000001"), run("0198a1b2-c3d4-7000-8000-000000000002"));
        let mut seen = std::collections::BTreeSet::new();
        for trace in [RunTrace::new(a, Some(OUTER)), RunTrace::new(b, Some(OUTER))] {
            assert!(seen.insert(trace.run().span));
            for n in 1..20 {
                assert!(seen.insert(trace.step(n).span));
                assert!((1..20).all(|attempt| seen.insert(trace.attempt(n, attempt).span)));
            }
        }
    }
}
