//! Logs: one line per event on standard error, for people or for programs. Standard output belongs to answers.

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::types::LogFormat;

/// Writes logs to standard error from now on: of a level, or of one level per part of the program. Where somebody
/// else has set up logs before, theirs stay.
pub(crate) fn logs(format: LogFormat, level: &str) -> Result<(), String> {
    // A second call finds the first one's subscriber, which is as good.
    let _ = tracing::subscriber::set_global_default(subscriber(format, filter(level)?, std::io::stderr));
    Ok(())
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
    let hint =
        "give a level (error, warn, info, debug, trace, off), or one per part: warn,steprail_engine=debug";
    // A lone word that is no level would be taken for the name of a part, and everything else would be silent.
    let is_level =
        |part: &str| part.contains('=') || (!part.is_empty() && part.parse::<LevelFilter>().is_ok());
    if let Some(part) = level.split(',').map(str::trim).find(|part| !is_level(part)) {
        return Err(format!("`{part}` is no log level; {hint}"));
    }
    let filter = EnvFilter::builder()
        .parse(level)
        .map_err(|error| format!("`{level}` is no log filter: {error}; {hint}"))?;
    // At lower levels it logs authorization codes and tokens.
    let quiet = "rmcp::transport::auth=warn".parse().map_err(|_| "the log filter is wrong".to_owned())?;
    Ok(filter.add_directive(quiet))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("bytes").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, level: &str) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber = subscriber(format, filter(level).expect("a filter"), move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("too quiet");
            tracing::warn!(code = "storage_full", "the disk is full");
            tracing::info!(target: "part", "asked for");
        });
        let bytes = kept.0.lock().expect("bytes").clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn people_read_lines() {
        let text = logged(LogFormat::Text, "warn,part=info");
        insta::with_settings!({ filters => vec![(r"\d{4}-\S+Z", "<time>")] }, {
            insta::assert_snapshot!(text, @r#"
            <time>  WARN steprail::observe::logs::tests: the disk is full code="storage_full"
            <time>  INFO part: asked for
            "#);
        });
    }

    #[test]
    fn programs_read_objects() {
        let text = logged(LogFormat::Json, "warn");
        let mut lines = text.lines();
        let line: serde_json::Value = serde_json::from_str(lines.next().expect("a line")).expect("JSON");
        assert_eq!((&line["level"], &line["code"]), (&"WARN".into(), &"storage_full".into()));
        assert_eq!(line["message"], "the disk is full");
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn what_is_no_filter_is_refused_with_a_hint() {
        for bad in ["loud", "", "warn,,", "engine=loud", "warn,engine=loud"] {
            let problem = filter(bad).expect_err(bad);
            assert!(problem.contains("give a level (error"), "{bad}: {problem}");
        }
    }
}
