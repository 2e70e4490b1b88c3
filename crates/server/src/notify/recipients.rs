//! Who gets a notification: names of definitions, the accounts of the daemon and the recipients of the configuration.

use std::collections::BTreeMap;

use serde::Deserialize;
use steprail_core::run::Millis;
use steprail_engine::{Access, NewDelivery, Notification, NotificationKind, Principal, Right};
use steprail_notify::Message;
use steprail_notify::config::RecipientConfig;
use steprail_notify::routing::{Directory, Planned, Routed};

use super::NO_CHANNEL;

/// What the body of a notification says about its recipients.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Body {
    /// Channels instead of those that the recipients prefer.
    channels: Vec<String>,
    /// Further recipients.
    levels: Vec<Level>,
}

/// The recipients of an escalation level.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Level {
    to: Vec<String>,
    channels: Vec<String>,
}
/// The recipients of events that concern the operation of the daemon.
const OPERATORS: &str = "right:administer";

/// The people of a daemon and their addresses.
pub(super) struct People {
    pub directory: Directory,
    pub users: BTreeMap<String, RecipientConfig>,
    pub groups: BTreeMap<String, RecipientConfig>,
    pub access: Access,
    pub owner: Principal,
}

impl People {
    /// The deliveries of a notification to its recipients and to subscribers.
    pub(super) fn deliveries(
        &self,
        notification: &Notification,
        message: &Message,
        now: Millis,
    ) -> Vec<NewDelivery> {
        if notification.kind == NotificationKind::Test {
            return notification.to.iter().flat_map(|to| self.test_deliveries(to, now)).collect();
        }
        let Body { channels, levels } = serde_json::from_str(notification.body.get()).unwrap_or_default();
        let mut recipients = self.recipients(notification);
        // Somebody has to decide: the operator sees whom the request does not reach. Others need not be reachable.
        let must_reach = message.kind.is_approval();
        if !must_reach {
            recipients.retain(|recipient| self.directory.check_recipient(recipient).is_ok());
        }
        let mut routed = self.directory.route_over(&recipients, &channels, message, now);
        for level in &levels {
            let recipients: Vec<String> = level.to.iter().flat_map(|to| self.expand(to)).collect();
            add(&mut routed, self.directory.route_over(&recipients, &level.channels, message, now));
        }
        let subscribers = self.directory.subscribers(message);
        add(&mut routed, self.directory.route(&subscribers, message, now));
        let unreachable = routed.unreachable.into_iter().filter(|_| must_reach);
        let unreachable = unreachable.map(|(recipient, _)| undeliverable(recipient, now));
        routed.deliveries.into_iter().map(delivery).chain(unreachable).collect()
    }

    /// One delivery for each channel of a user or group, now: a test must not wait for quiet hours.
    fn test_deliveries(&self, to: &str, now: Millis) -> Vec<NewDelivery> {
        let recipient = self.name(to);
        let config = match recipient.strip_prefix("group:") {
            Some(group) => self.groups.get(group),
            None => self.users.get(&recipient),
        };
        let addresses = config.into_iter().flat_map(|config| &config.addresses);
        let deliveries: Vec<NewDelivery> = addresses
            .map(|(channel, address)| NewDelivery {
                recipient: recipient.clone(),
                channel: channel.clone(),
                address: address.clone(),
                due: now,
                in_digest: false,
            })
            .collect();
        if deliveries.is_empty() { vec![undeliverable(recipient, now)] } else { deliveries }
    }

    /// Why a recipient has no channel.
    pub(super) fn unreachable(&self, recipient: &str) -> String {
        let reason = self.directory.check_recipient(recipient).err();
        let reason = reason.unwrap_or_else(|| format!("`{recipient}` has no address"));
        format!("{reason}; add it to [notify] in steprail.toml")
    }

    /// The recipients as the directory knows them.
    fn recipients(&self, notification: &Notification) -> Vec<String> {
        match notification.kind {
            // It only withdraws the requests, unless somebody has subscribed to it.
            NotificationKind::ApprovalDecided => Vec::new(),
            _ if notification.to.is_empty() => self.deciders(),
            _ => notification.to.iter().flat_map(|to| self.expand(to)).collect(),
        }
    }

    /// Everyone who may decide and has an address. If nobody has, the owner.
    fn deciders(&self) -> Vec<String> {
        self.holders(Right::Approve)
    }

    /// Everyone who has a right and an address. If nobody has, the owner.
    fn holders(&self, right: Right) -> Vec<String> {
        let mut holders = if self.owner.sole_user { Vec::new() } else { self.access.holders(right) };
        holders.retain(|user| self.users.contains_key(user));
        if holders.is_empty() { vec![self.owner.id.clone()] } else { holders }
    }

    /// A recipient, and the users whose accounts are in the group.
    fn expand(&self, to: &str) -> Vec<String> {
        if to == OPERATORS {
            return self.holders(Right::Administer);
        }
        let recipient = self.name(to);
        let Some(group) = recipient.strip_prefix("group:") else { return vec![recipient] };
        let mut members = self.access.members(group);
        members.retain(|user| self.users.contains_key(user));
        // A group that only the accounts have is reached through its members.
        if self.groups.contains_key(group) || members.is_empty() {
            members.push(recipient);
        }
        members
    }

    /// A recipient as the directory writes it: `lea`, `group:ops`, `oncall:ops` or `mail:ann@example.org`.
    fn name(&self, to: &str) -> String {
        match to.strip_prefix("user:") {
            Some(user) => user.to_owned(),
            None if to.contains(':') || self.users.contains_key(to) => to.to_owned(),
            None if self.groups.contains_key(to) || !self.access.members(to).is_empty() => {
                format!("group:{to}")
            }
            None => to.to_owned(),
        }
    }
}

/// Adds deliveries, each recipient, channel and address once.
fn add(routed: &mut Routed, further: Routed) {
    let is_new = |planned: &Planned| {
        let key = |of: &Planned| (of.recipient.clone(), of.channel.clone(), of.address.clone());
        !routed.deliveries.iter().any(|known| key(known) == key(planned))
    };
    let new: Vec<Planned> = further.deliveries.into_iter().filter(is_new).collect();
    routed.deliveries.extend(new);
    let new = further
        .unreachable
        .into_iter()
        .filter(|(name, _)| !routed.unreachable.iter().any(|(known, _)| known == name));
    let new: Vec<_> = new.collect();
    routed.unreachable.extend(new);
}

fn delivery(planned: Planned) -> NewDelivery {
    NewDelivery {
        recipient: planned.recipient,
        channel: planned.channel,
        address: planned.address,
        due: planned.not_before,
        in_digest: planned.digest,
    }
}

/// A delivery that fails, with the reason.
fn undeliverable(recipient: String, now: Millis) -> NewDelivery {
    let (channel, address) = (NO_CHANNEL.to_owned(), String::new());
    NewDelivery { recipient, channel, address, due: now, in_digest: false }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::to_raw_value;
    use steprail_engine::Grants;
    use steprail_notify::{Kind, NotifyConfig};

    use super::*;

    const CONFIG: &str = "
        channels.room = { type = 'desktop' }
        users.ann = { addresses = { room = 'ann' } }
        users.bob = { addresses = { room = 'bob' } }
        users.lea = { addresses = { room = 'lea' } }
        groups.ops = { members = ['lea'], addresses = { room = 'ops' } }
        subscriptions = [{ to = ['bob'], kinds = ['run_failed'] }]
    ";

    /// The owner is ann. The accounts are bob and kim, who are approvers, and in the groups `ops` and `sales`.
    fn people(sole_user: bool) -> People {
        let config: NotifyConfig = toml::from_str(CONFIG).unwrap();
        let account = |group: &str| Grants {
            may: [Right::Approve].into(),
            groups: vec![group.to_owned()],
            ..Grants::default()
        };
        let accounts = [("bob".to_owned(), account("ops")), ("kim".to_owned(), account("sales"))];
        People {
            directory: Directory::compile(&config).unwrap(),
            users: config.users,
            groups: config.groups,
            access: Access::new(accounts.into()),
            owner: Principal { sole_user, ..Principal::user("ann") },
        }
    }

    /// The recipients, those without a channel in parentheses.
    fn told(people: &People, kind: NotificationKind, to: &[&str]) -> String {
        let notification = Notification {
            id: 1,
            kind,
            run: None,
            path: None,
            to: to.iter().map(ToString::to_string).collect(),
            body: to_raw_value(&()).unwrap(),
            created_at: 0,
        };
        let kind = match kind {
            NotificationKind::RunFailed => Kind::RunFailed,
            NotificationKind::ApprovalDecided => Kind::Decided,
            _ => Kind::ApprovalRequested,
        };
        let message = Message { kind, ..Message::default() };
        let name = |delivery: NewDelivery| match &*delivery.channel {
            NO_CHANNEL => format!("({})", delivery.recipient),
            _ => delivery.recipient,
        };
        let deliveries = people.deliveries(&notification, &message, 0);
        deliveries.into_iter().map(name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn names_become_recipients() {
        use NotificationKind::{ApprovalDecided, ApprovalRequested, RunFailed, Test};
        let people = people(false);
        let asked = |to: &[&str]| told(&people, ApprovalRequested, to);
        assert_eq!(asked(&["lea"]), "lea");
        assert_eq!(asked(&["user:lea", "lea"]), "lea");
        assert_eq!(asked(&["group:ops"]), "bob group:ops lea");
        assert_eq!(asked(&["ops"]), "bob group:ops lea");
        assert_eq!(asked(&["sales"]), "(group:sales)", "kim has no address");
        assert_eq!(asked(&["leah"]), "(leah)");
        assert_eq!(asked(&[]), "bob", "who may decide and has an address");
        assert_eq!(told(&people, RunFailed, &["user:kim"]), "bob", "the subscriber only");
        assert_eq!(told(&people, ApprovalDecided, &[]), "");
        assert_eq!(told(&people, Test, &["group:ops"]), "group:ops");
        assert_eq!(told(&people, Test, &["leah"]), "(leah)");
    }

    /// The deliveries of a request with this body, as `recipient/channel`.
    fn told_over(config: &str, to: &[&str], body: &serde_json::Value) -> String {
        let config: NotifyConfig = toml::from_str(config).unwrap();
        let directory = Directory::compile(&config).unwrap();
        let people = People { directory, users: config.users, groups: config.groups, ..people(false) };
        let notification = Notification {
            id: 1,
            kind: NotificationKind::Reminder,
            run: None,
            path: None,
            to: to.iter().map(ToString::to_string).collect(),
            body: to_raw_value(body).unwrap(),
            created_at: 0,
        };
        let message = Message { kind: Kind::Reminder, ..Message::default() };
        let deliveries = people.deliveries(&notification, &message, 0);
        let shown = deliveries.iter().map(|new| format!("{}/{}", new.recipient, new.channel));
        shown.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn levels_have_recipients_and_channels_of_their_own() {
        let config = "
            channels.room = { type = 'desktop' }
            channels.phone = { type = 'desktop' }
            users.ann = { addresses = { room = 'ann', phone = '1' }, channels = { low = ['room'] } }
            users.lea = { addresses = { room = 'lea', phone = '2' }, channels = { low = ['room'] } }
            users.bob = { addresses = { room = 'bob' } }
        ";
        let told = |to: &[&str], body: serde_json::Value| told_over(config, to, &body);
        assert_eq!(told(&["ann"], json!({})), "ann/room");
        assert_eq!(told(&["ann", "bob"], json!({ "channels": ["phone"] })), "ann/phone bob/room");
        assert_eq!(told(&["ann"], json!({ "channels": ["no-such-channel"] })), "ann/room");
        let levels = json!({ "levels": [{ "to": ["user:lea", "ann"], "channels": ["phone"] }, { "to": ["ann", "eve"] }] });
        assert_eq!(told(&["ann"], levels), "ann/room ann/phone lea/phone eve/", "each channel once");
        let levels = json!({ "levels": [{ "to": ["lea"], "channels": [] }] });
        assert_eq!(told(&[], levels), "bob/room lea/room", "everyone who may decide, and the level");
    }

    #[test]
    fn the_owner_decides_alone() {
        assert_eq!(told(&people(true), NotificationKind::ApprovalRequested, &[]), "ann");
    }
}
