//! Logs: one line per event on standard error, as text or JSON. Standard output is reserved for results.

use std::io::{self, Write};

use steprail_mcp::redact;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::types::LogFormat;

/// Installs the log subscriber with a level, or levels per target. A subscriber that is already installed stays.
pub(crate) fn install_logs(format: LogFormat, level: &str) -> Result<(), String> {
    let _ =
        tracing::subscriber::set_global_default(subscriber(format, filter(level)?, Redacting(io::stderr)));
    Ok(())
}

/// Removes the secrets that this process has used from log lines.
struct Redacting<M>(M);

impl<'w, M: MakeWriter<'w>> MakeWriter<'w> for Redacting<M> {
    type Writer = RedactingWriter<M::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        RedactingWriter(self.0.make_writer())
    }
}

/// Each write is one whole line.
struct RedactingWriter<W>(W);

impl<W: Write> Write for RedactingWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self.0.write_all(redact::text(&text).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn subscriber<W>(format: LogFormat, filter: EnvFilter, writer: W) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt().with_writer(writer).with_ansi(false).with_env_filter(filter);
    match format {
        LogFormat::Text => Box::new(lines.finish()),
        LogFormat::Json => Box::new(lines.json().flatten_event(true).finish()),
    }
}

fn filter(level: &str) -> Result<EnvFilter, String> {
    let hint = "use a level (error, warn, info, debug, trace, off), or levels per target: warn,steprail_engine=debug";
    // The library accepts an invalid level as the name of a target, which would silence all other targets.
    let is_level =
        |part: &str| part.contains('=') || (!part.is_empty() && part.parse::<LevelFilter>().is_ok());
    if let Some(part) = level.split(',').map(str::trim).find(|part| !is_level(part)) {
        return Err(format!("invalid log level `{part}`; {hint}"));
    }
    let filter = EnvFilter::builder()
        .parse(level)
        .map_err(|error| format!("invalid log filter `{level}`: {error}; {hint}"))?;
    // Redaction: below `warn`, this target logs authorization codes and tokens.
    let directive = "rmcp::transport::auth=warn".parse().map_err(|_| "invalid log filter".to_owned())?;
    Ok(filter.add_directive(directive))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("bytes").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, level: &str) -> String {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let subscriber =
            subscriber(format, filter(level).expect("a filter"), Redacting(move || writer.clone()));
        tracing::subscriber::with_default(subscriber, || {
            redact::learn("db", "hunter-2000");
            tracing::info!("below the level");
            tracing::warn!(code = "storage_full", "the disk is full");
            tracing::warn!(target: "part", header = "Bearer hunter-2000", "sent");
            tracing::info!(target: "part", "above the level of its target");
        });
        let bytes = buffer.0.lock().expect("bytes").clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn text_format() {
        let text = logged(LogFormat::Text, "warn,part=info");
        insta::with_settings!({ filters => vec![(r"\d{4}-\S+Z", "<time>")] }, {
            insta::assert_snapshot!(text, @r#"
            <time>  WARN steprail::observe::logs::tests: the disk is full code="storage_full"
            <time>  WARN part: sent header="Bearer ‹secret:db›"
            <time>  INFO part: above the level of its target
            "#);
        });
    }

    #[test]
    fn json_format() {
        let text = logged(LogFormat::Json, "warn");
        let mut lines = text.lines();
        let line: serde_json::Value = serde_json::from_str(lines.next().expect("a line")).expect("JSON");
        assert_eq!((&line["level"], &line["code"]), (&"WARN".into(), &"storage_full".into()));
        assert_eq!(line["message"], "the disk is full");
        assert!(lines.next().expect("a line").contains("Bearer ‹secret:db›"));
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn rejects_invalid_filters_with_a_hint() {
        for bad in ["loud", "", "warn,,", "engine=loud", "warn,engine=loud"] {
            let problem = filter(bad).expect_err(bad);
            assert!(problem.contains("use a level (error"), "{bad}: {problem}");
        }
    }
}
