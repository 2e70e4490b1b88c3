//! The name of the user of this process.

/// The name in `USER` or `LOGNAME`, or `local`.
pub(crate) fn name() -> String {
    let name = ["USER", "LOGNAME"].into_iter().find_map(|variable| std::env::var(variable).ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "local".to_owned())
}
