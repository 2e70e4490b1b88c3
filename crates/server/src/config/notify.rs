//! The settings of notifications as the configuration of their channels and recipients.

use steprail_notify::routing::Directory;
use steprail_notify::{ConfigError, NotifyConfig};

use super::keys::{self, Config, Notify};
use super::problem::Problem;
use super::setting::SettingError;

impl Notify {
    /// The configuration, with references to secrets.
    pub(crate) fn config(&self) -> NotifyConfig {
        NotifyConfig {
            allow: self.allow.clone(),
            timeout: Some(self.timeout.as_secs_f64()),
            proxy: self.proxy.0.clone(),
            certificates: self.certificates.clone(),
            channels: self.channels.0.clone(),
            direct: self.direct.clone(),
            users: self.users.0.clone(),
            groups: self.groups.0.clone(),
            on_call: self.on_call.0.clone(),
            subscriptions: self.subscriptions.0.clone(),
        }
    }
}

/// The problems of recipients, each at the setting that has it.
pub(super) fn violations(config: &Config) -> Vec<Problem> {
    let problems = Directory::compile(&config.notify.config()).err().unwrap_or_default();
    problems.into_iter().map(|problem| at_setting(config, problem)).collect()
}

fn at_setting(config: &Config, problem: ConfigError) -> Problem {
    let name = problem.message.split(['.', ':']).next().unwrap_or_default();
    let path = format!("notify.{name}");
    let key = keys::all().find(|key| key.path == path).map_or("notify.channels", |key| key.path);
    let error = SettingError { hint: problem.hint, ..SettingError::new(problem.message) };
    Problem::new(config.source(key).clone(), error)
}
