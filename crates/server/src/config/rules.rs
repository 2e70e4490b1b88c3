//! What settings must fit one another.

use super::keys::Config;
use super::problem::Problem;
use super::setting::Wrong;
use super::types::{AuthMode, Listen};

/// What does not fit.
pub(super) fn broken(config: &Config) -> Vec<Problem> {
    [reach(config), issuer(config), sign_in(config)].into_iter().flatten().collect()
}

/// Nobody else reaches a daemon that asks nobody who they are.
fn reach(config: &Config) -> Option<Problem> {
    match (config.http.listen, config.auth.mode) {
        (Listen::At(address), AuthMode::Single) if !address.ip().is_loopback() => {
            let message =
                format!("{address} can be reached from other machines, and nobody would have to sign in");
            let wrong = Wrong::new(message).hint("listen on 127.0.0.1, or set auth.mode to `users`");
            Some(Problem::new(config.place("http.listen").clone(), wrong))
        }
        _ => None,
    }
}

/// What is set of the three settings without which no token can be checked, and what is not.
fn oidc(config: &Config) -> (Vec<&'static str>, Vec<&'static str>) {
    let auth = &config.auth;
    let all = [
        ("auth.oidc_issuer", auth.oidc_issuer.is_some()),
        ("auth.oidc_audience", auth.oidc_audience.is_some()),
        ("auth.oidc_jwks", auth.oidc_jwks.is_some()),
    ];
    let which = |wanted: bool| all.iter().filter(|(_, set)| *set == wanted).map(|(key, _)| *key).collect();
    (which(true), which(false))
}

fn issuer(config: &Config) -> Option<Problem> {
    let (set, missing) = oidc(config);
    let first = set.first().filter(|_| !missing.is_empty())?;
    let wrong = Wrong::new(format!("{first} means nothing without {}", missing.join(" and ")));
    Some(Problem::new(config.place(first).clone(), wrong.hint("set all three, or none")))
}

/// Whoever names an issuer expects that people sign in.
fn sign_in(config: &Config) -> Option<Problem> {
    let (set, _) = oidc(config);
    let first = set.first().filter(|_| config.auth.mode == AuthMode::Single)?;
    let wrong = Wrong::new(format!("{first} means nothing while auth.mode is `single`"));
    Some(Problem::new(config.place(first).clone(), wrong.hint("set auth.mode to `users`")))
}
