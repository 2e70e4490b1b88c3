//! The users, groups and addresses that definitions can name: those of the accounts and those of `[notify]`.

use steprail_core::diagnostic::suggest;
use steprail_engine::{Access, Error, People, UnknownPrincipal};
use steprail_notify::routing::Directory;

use super::tool::SERVICE;
use crate::config::Config;
use crate::config::types::AuthMode;

/// Checks the approvers and recipients of definitions.
pub(crate) struct KnownPeople {
    access: Access,
    /// `None` if no channel is configured.
    directory: Option<Directory>,
    has_accounts: bool,
    /// Whether all users have an account. Those of an identity provider have none before their first sign-in.
    is_complete: bool,
}

impl KnownPeople {
    pub(crate) fn new(config: &Config, access: Access) -> Result<Self, Error> {
        let notify = config.notify.config();
        let directory = Directory::compile(&notify).map_err(|problems| super::open::invalid(&problems))?;
        let directory = Some(directory).filter(|_| !notify.channels.is_empty());
        let has_accounts = config.auth.mode == AuthMode::Users;
        let is_complete = has_accounts && config.auth.oidc_issuer.is_none();
        Ok(Self { access, directory, has_accounts, is_complete })
    }

    fn has_account(&self, name: &str) -> bool {
        let has = |names: Vec<String>, name: &str| names.iter().any(|known| known == name);
        match name.split_once(':') {
            Some(("user", user)) => has(self.access.users(), user),
            Some(("group", group)) => has(self.access.all_groups(), group),
            Some(_) => false,
            None => has(self.access.users(), name) || has(self.access.all_groups(), name),
        }
    }

    /// Whether notifications reach a name.
    fn is_recipient(&self, name: &str) -> bool {
        let Some(directory) = &self.directory else { return false };
        let is_known = |name: &str| directory.check_recipient(name).is_ok();
        match name.strip_prefix("user:") {
            Some(user) => is_known(user),
            None => is_known(name) || (!name.contains(':') && is_known(&format!("group:{name}"))),
        }
    }

    fn unknown(&self, name: &str) -> UnknownPrincipal {
        let is_error = self.is_complete;
        if let Some((kind, _)) = name.split_once(':').filter(|(kind, _)| !matches!(*kind, "user" | "group")) {
            let reason = self.directory.as_ref().and_then(|known| known.check_recipient(name).err());
            let message = reason.unwrap_or_else(|| format!("no channel `{kind}` is configured"));
            return UnknownPrincipal { message, hint: None, is_error };
        }
        let (kind, plain, candidates) = match name.split_once(':') {
            Some(("group", group)) => ("group", group, self.access.all_groups()),
            Some((_, user)) => ("user", user, self.access.users()),
            None => ("user or group", name, [self.access.users(), self.access.all_groups()].concat()),
        };
        let candidates: Vec<&str> =
            candidates.iter().map(String::as_str).filter(|name| *name != SERVICE).collect();
        let message = format!("unknown {kind} `{plain}`");
        UnknownPrincipal { message, hint: suggest(plain, &candidates), is_error }
    }
}

impl People for KnownPeople {
    fn find(&self, name: &str, is_approver: bool) -> Result<(), UnknownPrincipal> {
        // Without accounts, the only user decides, and without channels nobody is notified.
        let is_unused = !self.has_accounts && self.directory.is_none();
        let decides_in_person = is_approver && self.has_accounts;
        if is_unused || self.has_account(name) || (!decides_in_person && self.is_recipient(name)) {
            return Ok(());
        }
        Err(self.unknown(name))
    }
}

#[cfg(test)]
mod tests {
    use steprail_engine::Grants;
    use steprail_notify::NotifyConfig;

    use super::*;

    const CONFIG: &str = "
        channels.room = { type = 'desktop' }
        direct = ['room']
        users.kim = { addresses = { room = '' } }
        groups.night = { members = ['kim'] }
        on_call.ops = { users = ['kim'], shift = '1d', start = '2026-01-05T09:00' }
    ";

    fn people(has_accounts: bool, is_complete: bool, has_channels: bool) -> KnownPeople {
        let access = Access::default();
        access.grant("lea", Grants { groups: vec!["ops".to_owned()], ..Grants::default() });
        let config: NotifyConfig = toml::from_str(CONFIG).unwrap();
        let directory = has_channels.then(|| Directory::compile(&config).unwrap());
        KnownPeople { access, directory, has_accounts, is_complete }
    }

    #[test]
    fn unknown_names_are_errors_with_accounts_and_warnings_otherwise() {
        let names =
            ["lea", "user:lea", "ops", "group:ops", "kim", "group:night", "night", "oncall:ops", "room:x"];
        let users = people(true, true, true);
        assert!(names.iter().all(|name| users.find(name, false).is_ok()));
        let deciders: Vec<_> = names.iter().filter(|name| users.find(name, true).is_ok()).collect();
        assert_eq!(deciders, [&"lea", &"user:lea", &"ops", &"group:ops"], "those with accounts");
        let shown = |people: &KnownPeople, name: &str| {
            let UnknownPrincipal { message, hint, is_error } = people.find(name, false).unwrap_err();
            format!("{message} ({}), error: {is_error}", hint.unwrap_or_default())
        };
        assert_eq!(shown(&users, "user:leah"), "unknown user `leah` (did you mean `lea`?), error: true");
        assert_eq!(shown(&users, "group:opps"), "unknown group `opps` (did you mean `ops`?), error: true");
        assert_eq!(
            shown(&users, "oncall:dev"),
            "unknown rotation `dev` (expected one of `ops`) (), error: true"
        );
        assert_eq!(
            shown(&people(true, false, true), "leah"),
            "unknown user or group `leah` (did you mean `lea`?), error: false"
        );
        assert_eq!(
            shown(&people(false, false, true), "zoe"),
            "unknown user or group `zoe` (expected one of `lea`, `ops`), error: false"
        );
        assert_eq!(people(false, false, false).find("zoe", false), Ok(()), "nobody is notified");
    }
}
