//! Help texts of options that several commands have.

pub(crate) const DATA_HELP: &str =
    "Data directory of the daemon [env: STEPRAIL_DATA] [default: steprail in the user's data directory]";

pub(crate) const SERVER_HELP: &str =
    "URL of a remote server; the token is read from STEPRAIL_TOKEN [env: STEPRAIL_SERVER]";

pub(crate) const CONFIG_HELP: &str =
    "Settings file [env: STEPRAIL_CONFIG] [default: steprail.toml in the data directory]";
