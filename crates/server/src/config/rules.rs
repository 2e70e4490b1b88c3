//! Rules that involve more than one setting.

use super::keys::Config;
use super::notify;
use super::problem::Problem;
use super::setting::SettingError;
use super::types::{AuthMode, Listen};

/// The rules that the settings violate.
pub(super) fn violations(config: &Config) -> Vec<Problem> {
    let of_access = [remote_access(config), oidc_complete(config), oidc_mode(config)].into_iter().flatten();
    of_access.chain(notify::violations(config)).collect()
}

/// A port that other machines can reach requires authentication.
fn remote_access(config: &Config) -> Option<Problem> {
    match (config.http.listen, config.auth.mode) {
        (Listen::At(address), AuthMode::Single) if !address.ip().is_loopback() => {
            let message = format!(
                "{address} is reachable from other machines, and `single` mode has no authentication"
            );
            let error = SettingError::new(message).hint("listen on 127.0.0.1, or set auth.mode to `users`");
            Some(Problem::new(config.source("http.listen").clone(), error))
        }
        _ => None,
    }
}

/// The settings that OIDC requires: those that are set, and those that are missing.
fn oidc_settings(config: &Config) -> (Vec<&'static str>, Vec<&'static str>) {
    let auth = &config.auth;
    let all = [
        ("auth.oidc_issuer", auth.oidc_issuer.is_some()),
        ("auth.oidc_audience", auth.oidc_audience.is_some()),
        ("auth.oidc_jwks", auth.oidc_jwks.is_some()),
    ];
    let select = |is_set: bool| all.iter().filter(|(_, set)| *set == is_set).map(|(key, _)| *key).collect();
    (select(true), select(false))
}

fn oidc_complete(config: &Config) -> Option<Problem> {
    let (set, missing) = oidc_settings(config);
    let first = set.first().filter(|_| !missing.is_empty())?;
    let error = SettingError::new(format!("{first} requires {}", missing.join(" and ")));
    Some(Problem::new(config.source(first).clone(), error.hint("set all three, or none")))
}

fn oidc_mode(config: &Config) -> Option<Problem> {
    let (set, _) = oidc_settings(config);
    let first = set.first().filter(|_| config.auth.mode == AuthMode::Single)?;
    let error = SettingError::new(format!("{first} has no effect while auth.mode is `single`"));
    Some(Problem::new(config.source(first).clone(), error.hint("set auth.mode to `users`")))
}
