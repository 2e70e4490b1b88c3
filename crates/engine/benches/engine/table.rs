//! One table: what was measured, the limit beside it, the ratio, and the target.

use std::time::Duration;

use crate::stage::Stage;

/// Lines are printed as they are measured.
pub(crate) struct Table {
    case: &'static str,
    missed: Vec<String>,
}

/// What was measured in a case.
pub(crate) struct Line {
    what: String,
    measured: String,
    beside: String,
    ratio: Option<f64>,
    target: Option<(String, bool)>,
}

impl Line {
    /// A measurement.
    pub(crate) fn new(what: impl Into<String>, measured: impl Into<String>) -> Self {
        let (what, measured) = (what.into(), measured.into());
        Self { what, measured, beside: String::new(), ratio: None, target: None }
    }

    /// What it is compared with.
    pub(crate) fn beside(mut self, limit: impl Into<String>, ratio: f64) -> Self {
        self.beside = limit.into();
        self.ratio = Some(ratio);
        self
    }

    /// What is wanted, and whether it was reached.
    pub(crate) fn target(mut self, target: impl Into<String>, reached: bool) -> Self {
        self.target = Some((target.into(), reached));
        self
    }
}

impl Table {
    pub(crate) fn begin(stage: &Stage) -> Self {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        println!("databases in {} ({}); load {}", stage.dir().display(), stage.kind(), load.trim());
        print_cells(["case", "what", "measured", "limit in this run", "ratio", "target"], "");
        println!("{}", "-".repeat(152));
        Self { case: "", missed: Vec::new() }
    }

    pub(crate) fn case(&mut self, name: &'static str) {
        self.case = name;
    }

    pub(crate) fn add(&mut self, line: &Line) {
        let ratio = line.ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        let (target, verdict) = match &line.target {
            Some((target, true)) => (&**target, "ok"),
            Some((target, false)) => (&**target, "MISS"),
            None => ("", ""),
        };
        if verdict == "MISS" {
            self.missed.push(format!("{}: {}", self.case, line.what));
        }
        print_cells([self.case, &line.what, &line.measured, &line.beside, &ratio, target], verdict);
    }

    pub(crate) fn end(self) {
        match self.missed.as_slice() {
            [] => println!("\nevery target was reached"),
            missed => println!("\nmissed: {}", missed.join("; ")),
        }
    }
}

fn print_cells([case, what, measured, beside, ratio, target]: [&str; 6], verdict: &str) {
    let line =
        format!("{case:<11} {what:<54} {measured:>14}  {beside:<34} {ratio:>6}  {target:<19} {verdict}");
    println!("{}", line.trim_end());
}

/// A time, in the unit that suits it.
pub(crate) fn time(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        ..1_000.0 => format!("{micros:.1} us"),
        ..1_000_000.0 => format!("{:.2} ms", micros / 1e3),
        _ => format!("{:.2} s", micros / 1e6),
    }
}

/// A number of things in a second.
pub(crate) fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// The time of one of many.
pub(crate) fn each(time: Duration, count: usize) -> Duration {
    time.div_f64(count as f64)
}

/// One time in terms of another.
pub(crate) fn ratio(time: Duration, of: Duration) -> f64 {
    time.as_secs_f64() / of.as_secs_f64()
}

/// The middle one of several times.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
