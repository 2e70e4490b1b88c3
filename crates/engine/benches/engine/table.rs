//! The table of results: measurement, baseline, ratio, target.

use std::time::Duration;

use crate::harness::Harness;

/// Prints rows as they are added.
pub(crate) struct Table {
    case: &'static str,
    missed: Vec<String>,
}

/// One measurement of a case.
pub(crate) struct Row {
    label: String,
    measured: String,
    baseline: String,
    ratio: Option<f64>,
    target: Option<(String, bool)>,
}

impl Row {
    pub(crate) fn new(label: impl Into<String>, measured: impl Into<String>) -> Self {
        let (label, measured) = (label.into(), measured.into());
        Self { label, measured, baseline: String::new(), ratio: None, target: None }
    }

    /// Adds the baseline, and the ratio of the measurement to it.
    pub(crate) fn baseline(mut self, baseline: impl Into<String>, ratio: f64) -> Self {
        self.baseline = baseline.into();
        self.ratio = Some(ratio);
        self
    }

    /// Adds the target, and whether it was met.
    pub(crate) fn target(mut self, target: impl Into<String>, is_met: bool) -> Self {
        self.target = Some((target.into(), is_met));
        self
    }
}

impl Table {
    pub(crate) fn begin(harness: &Harness) -> Self {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        println!(
            "databases in {} ({}); load {}",
            harness.dir().display(),
            harness.file_system(),
            load.trim()
        );
        print_cells(["case", "measurement", "measured", "baseline in this run", "ratio", "target"], "");
        println!("{}", "-".repeat(152));
        Self { case: "", missed: Vec::new() }
    }

    pub(crate) fn case(&mut self, name: &'static str) {
        self.case = name;
    }

    pub(crate) fn add(&mut self, row: &Row) {
        let ratio = row.ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        let (target, verdict) = match &row.target {
            Some((target, true)) => (&**target, "ok"),
            Some((target, false)) => (&**target, "MISS"),
            None => ("", ""),
        };
        if verdict == "MISS" {
            self.missed.push(format!("{}: {}", self.case, row.label));
        }
        print_cells([self.case, &row.label, &row.measured, &row.baseline, &ratio, target], verdict);
    }

    pub(crate) fn end(self) {
        match self.missed.as_slice() {
            [] => println!("\nall targets were met"),
            missed => println!("\nmissed: {}", missed.join("; ")),
        }
    }
}

fn print_cells([case, label, measured, baseline, ratio, target]: [&str; 6], verdict: &str) {
    let line =
        format!("{case:<11} {label:<54} {measured:>14}  {baseline:<34} {ratio:>6}  {target:<19} {verdict}");
    println!("{}", line.trim_end());
}

/// Formats a time in us, ms or s.
pub(crate) fn time(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        ..1_000.0 => format!("{micros:.1} us"),
        ..1_000_000.0 => format!("{:.2} ms", micros / 1e3),
        _ => format!("{:.2} s", micros / 1e6),
    }
}

/// Items per second.
pub(crate) fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// The mean time per item.
pub(crate) fn per_item(time: Duration, count: usize) -> Duration {
    time.div_f64(count as f64)
}

/// The quotient of two times.
pub(crate) fn ratio(time: Duration, of: Duration) -> f64 {
    time.as_secs_f64() / of.as_secs_f64()
}

pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
