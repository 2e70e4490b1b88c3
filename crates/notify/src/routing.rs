//! Who gets a message, through which channels, and when.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::Time;
use jiff::tz::TimeZone;
use steprail_core::diagnostic::suggest;
use steprail_core::run::Millis;

use crate::config::{ConfigError, NotifyConfig, QuietHoursConfig, RecipientConfig};
use crate::limits;
use crate::local_time::{QuietHours, next_time, quiet_until, time_of_day, time_zone, weekday};
use crate::message::{Message, Urgency};
use crate::rotation::Rotation;
use crate::subscription::SubscriptionConfig;

/// All recipients, compiled from the configuration.
#[derive(Debug, Clone, Default)]
pub struct Directory {
    users: BTreeMap<String, Recipient>,
    groups: BTreeMap<String, Recipient>,
    rotations: BTreeMap<String, Rotation>,
    direct: BTreeSet<String>,
    subscriptions: Vec<SubscriptionConfig>,
}

/// A user or a group.
#[derive(Debug, Clone)]
struct Recipient {
    members: Vec<String>,
    addresses: BTreeMap<String, String>,
    channels: BTreeMap<Urgency, Vec<String>>,
    zone: TimeZone,
    quiet_hours: Vec<QuietHours>,
    break_quiet_hours: Urgency,
    /// The times of digests, and the highest urgency that waits for them.
    digest: Option<(Vec<Time>, Urgency)>,
}

/// One message that is due at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Planned {
    /// The recipient: `lea`, `group:ops`, or `mail:ann@example.org`.
    pub recipient: String,
    /// The name of the channel.
    pub channel: String,
    /// The address in the channel.
    pub address: String,
    /// The time before which the message is not sent.
    pub not_before: Millis,
    /// Whether the message is sent in a digest with the others of the same recipient, channel and time.
    pub digest: bool,
}

/// The deliveries of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routed {
    /// The deliveries, each recipient, channel and address once.
    pub deliveries: Vec<Planned>,
    /// The recipients that cannot be reached, with the reason.
    pub unreachable: Vec<(String, String)>,
}

/// A recipient as written.
enum Target<'t> {
    User(&'t str),
    Group(&'t str),
    OnCall(&'t str),
    Direct { channel: &'t str, address: &'t str },
}

fn target(text: &str) -> Target<'_> {
    match text.split_once(':') {
        None => Target::User(text),
        Some(("group", name)) => Target::Group(name),
        Some(("oncall", name)) => Target::OnCall(name),
        Some((channel, address)) => Target::Direct { channel, address },
    }
}

impl Directory {
    /// Compiles the recipients, and reports every problem.
    pub fn compile<S>(config: &NotifyConfig<S>) -> Result<Self, Vec<ConfigError>> {
        let mut problems = Vec::new();
        let directory = Self {
            users: compile_recipients(config, "users", &config.users, &mut problems),
            groups: compile_recipients(config, "groups", &config.groups, &mut problems),
            rotations: compile_rotations(config, &mut problems),
            direct: config.direct.iter().cloned().collect(),
            subscriptions: config.subscriptions.clone(),
        };
        let unknown = config.direct.iter().filter(|channel| !config.channels.contains_key(*channel));
        problems.extend(unknown.map(|channel| unknown_channel(config, channel).at("direct")));
        if config.subscriptions.len() > limits::SUBSCRIPTIONS {
            let message = format!("more than {} subscriptions", limits::SUBSCRIPTIONS);
            problems.push(ConfigError::new(message).at("subscriptions"));
        }
        for text in config.subscriptions.iter().flat_map(|subscription| &subscription.to) {
            let checked = directory.check_recipient(text);
            problems.extend(checked.err().map(|reason| ConfigError::new(reason).at("subscriptions")));
        }
        if problems.is_empty() { Ok(directory) } else { Err(problems) }
    }

    /// The recipients whose subscriptions match a message.
    pub fn subscribers(&self, message: &Message) -> Vec<String> {
        let matching = self.subscriptions.iter().filter(|subscription| subscription.matches(message));
        let recipients: BTreeSet<&String> = matching.flat_map(|subscription| &subscription.to).collect();
        recipients.into_iter().cloned().collect()
    }

    /// Whether a recipient exists: `lea`, `group:ops`, `oncall:ops`, `mail:ann@example.org`. The error says what does.
    pub fn check_recipient(&self, text: &str) -> Result<(), String> {
        let known = |kind: &str, name: &str, names: Vec<&str>| {
            if names.contains(&name) {
                return Ok(());
            }
            let hint = suggest(name, &names).map(|hint| format!(" ({hint})")).unwrap_or_default();
            Err(format!("unknown {kind} `{name}`{hint}"))
        };
        match target(text) {
            Target::User(name) => known("user", name, self.users.keys().map(String::as_str).collect()),
            Target::Group(name) => known("group", name, self.groups.keys().map(String::as_str).collect()),
            Target::OnCall(name) => {
                known("rotation", name, self.rotations.keys().map(String::as_str).collect())
            }
            Target::Direct { channel, address } => {
                known(
                    "channel for direct addresses",
                    channel,
                    self.direct.iter().map(String::as_str).collect(),
                )?;
                let is_plain = !address.is_empty() && !address.chars().any(char::is_control);
                if is_plain {
                    Ok(())
                } else {
                    Err("the address is empty or has control characters".to_owned())
                }
            }
        }
    }

    /// The deliveries of a message to these recipients, over the channels that they prefer.
    pub fn route(&self, recipients: &[String], message: &Message, now: Millis) -> Routed {
        self.route_over(recipients, &[], message, now)
    }

    /// The deliveries of a message over some channels instead of those that the recipients prefer. A recipient who has no
    /// address in them is reached as usual.
    pub fn route_over(
        &self,
        recipients: &[String],
        channels: &[String],
        message: &Message,
        now: Millis,
    ) -> Routed {
        let mut routed = Routed::default();
        let mut names = BTreeSet::new();
        for text in recipients.iter().take(limits::RECIPIENTS) {
            let added = self.check_recipient(text).and_then(|()| self.expand(text, now, &mut names));
            if let Err(reason) = added {
                routed.unreachable.push((text.clone(), reason));
            }
        }
        let left = recipients.iter().skip(limits::RECIPIENTS);
        routed.unreachable.extend(left.map(|text| (text.clone(), too_many())));
        let mut planned = BTreeSet::new();
        for name in &names {
            let before = planned.len();
            self.deliver(name, channels, message, now, &mut planned);
            if planned.len() == before {
                routed.unreachable.push((name.clone(), "has no address for this urgency".to_owned()));
            }
        }
        routed.deliveries = planned.into_iter().collect();
        routed
    }

    /// Replaces groups by their members and rotations by the user on call. A group with addresses is a recipient itself.
    fn expand(&self, text: &str, now: Millis, names: &mut BTreeSet<String>) -> Result<(), String> {
        let mut add = |name: &str| {
            let is_full = names.len() >= limits::RECIPIENTS && !names.contains(name);
            if is_full {
                return Err(too_many());
            }
            names.insert(name.to_owned());
            Ok(())
        };
        match target(text) {
            Target::User(_) | Target::Direct { .. } => add(text),
            Target::OnCall(name) => {
                self.rotations.get(name).map_or(Ok(()), |rotation| add(rotation.on_call(now)))
            }
            Target::Group(name) => {
                let Some(group) = self.groups.get(name) else { return Ok(()) };
                if !group.addresses.is_empty() {
                    add(text)?;
                }
                group.members.iter().try_for_each(|member| add(member))
            }
        }
    }

    /// Plans the deliveries to one recipient.
    fn deliver(
        &self,
        name: &str,
        channels: &[String],
        message: &Message,
        now: Millis,
        planned: &mut BTreeSet<Planned>,
    ) {
        let recipient = match target(name) {
            Target::Direct { channel, address } => {
                planned.insert(Planned {
                    recipient: name.to_owned(),
                    channel: channel.to_owned(),
                    address: address.to_owned(),
                    not_before: now,
                    digest: false,
                });
                return;
            }
            Target::Group(group) => self.groups.get(group),
            Target::User(user) => self.users.get(user),
            Target::OnCall(_) => None,
        };
        let Some(recipient) = recipient else { return };
        let (not_before, digest) = recipient.time(message, now);
        for channel in recipient.channels_among(channels, message.urgency) {
            if let Some(address) = recipient.addresses.get(channel) {
                planned.insert(Planned {
                    recipient: name.to_owned(),
                    channel: channel.to_owned(),
                    address: address.clone(),
                    not_before,
                    digest,
                });
            }
        }
    }
}

impl Recipient {
    fn compile(config: &RecipientConfig) -> Result<Self, ConfigError> {
        let too_many =
            |name: &str| ConfigError::new(format!("`{name}` has more than {} entries", limits::WINDOWS));
        if config.quiet_hours.len() > limits::WINDOWS {
            return Err(too_many("quiet_hours"));
        }
        let digest = match &config.digest {
            None => None,
            Some(digest) if digest.at.is_empty() => {
                return Err(ConfigError::new("`digest.at` is empty").hint("write `at = [\"09:00\"]`"));
            }
            Some(digest) if digest.at.len() > limits::WINDOWS => return Err(too_many("digest.at")),
            Some(digest) => {
                let times: Result<Vec<Time>, _> = digest.at.iter().map(|time| time_of_day(time)).collect();
                Some((times?, digest.up_to.unwrap_or(Urgency::Low)))
            }
        };
        let quiet_hours: Result<_, _> = config.quiet_hours.iter().map(QuietHours::compile).collect();
        Ok(Self {
            members: config.members.clone(),
            addresses: config.addresses.clone(),
            channels: config.channels.clone(),
            zone: time_zone(config.time_zone.as_deref())?,
            quiet_hours: quiet_hours?,
            break_quiet_hours: config.break_quiet_hours.unwrap_or(Urgency::High),
            digest,
        })
    }

    /// The given channels in which the recipient has an address, or else those of the urgency.
    fn channels_among<'c>(&'c self, channels: &'c [String], urgency: Urgency) -> Vec<&'c str> {
        let given = channels.iter().filter(|channel| self.addresses.contains_key(*channel));
        let given: Vec<&str> = given.map(String::as_str).collect();
        if given.is_empty() { self.channels_for(urgency) } else { given }
    }

    /// The channels of an urgency: its entry, or the next lower, or the next higher one, or all addresses.
    fn channels_for(&self, urgency: Urgency) -> Vec<&str> {
        let lower = self.channels.range(..=urgency).next_back();
        match lower.or_else(|| self.channels.range(urgency..).next()) {
            Some((_, channels)) => channels.iter().map(String::as_str).collect(),
            None => self.addresses.keys().map(String::as_str).collect(),
        }
    }

    /// When a message is sent, and whether in a digest. A message whose deadline is before the next digest is sent alone.
    fn time(&self, message: &Message, now: Millis) -> (Millis, bool) {
        let urgency = message.urgency;
        let waits = |up_to: Urgency| urgency <= up_to && urgency < Urgency::Emergency;
        let digest = self.digest.as_ref().filter(|(_, up_to)| waits(*up_to));
        let at = digest.and_then(|(times, _)| next_time(&self.zone, times, now));
        let at = at.filter(|at| message.deadline.is_none_or(|deadline| *at < deadline));
        let due = at.unwrap_or(now);
        if urgency >= self.break_quiet_hours || urgency == Urgency::Emergency {
            return (due, at.is_some());
        }
        (quiet_until(&self.quiet_hours, &self.zone, due).unwrap_or(due), at.is_some())
    }
}

impl QuietHours {
    fn compile(config: &QuietHoursConfig) -> Result<Self, ConfigError> {
        let days: Result<_, _> = config.days.iter().map(|day| weekday(day)).collect();
        Ok(Self { from: time_of_day(&config.from)?, to: time_of_day(&config.to)?, days: days? })
    }
}

fn too_many() -> String {
    format!("a message has at most {} recipients", limits::RECIPIENTS)
}

fn compile_recipients<S>(
    config: &NotifyConfig<S>,
    section: &str,
    recipients: &BTreeMap<String, RecipientConfig>,
    problems: &mut Vec<ConfigError>,
) -> BTreeMap<String, Recipient> {
    let mut compiled = BTreeMap::new();
    for (name, recipient) in recipients {
        let position = format!("{section}.{name}");
        problems.extend(check(config, section, recipient).into_iter().map(|error| error.at(&position)));
        match Recipient::compile(recipient) {
            Ok(recipient) => drop(compiled.insert(name.clone(), recipient)),
            Err(error) => problems.push(error.at(&position)),
        }
    }
    compiled
}

fn compile_rotations<S>(
    config: &NotifyConfig<S>,
    problems: &mut Vec<ConfigError>,
) -> BTreeMap<String, Rotation> {
    let mut compiled = BTreeMap::new();
    for (name, rotation) in &config.on_call {
        let position = format!("on_call.{name}");
        problems.extend(unknown_users(config, &rotation.users).map(|error| error.at(&position)));
        match Rotation::compile(rotation) {
            Ok(rotation) => drop(compiled.insert(name.clone(), rotation)),
            Err(error) => problems.push(error.at(&position)),
        }
    }
    compiled
}

/// The problems of a recipient that refers to other parts of the configuration.
fn check<S>(config: &NotifyConfig<S>, section: &str, recipient: &RecipientConfig) -> Vec<ConfigError> {
    let mut problems: Vec<ConfigError> = unknown_users(config, &recipient.members).collect();
    if section == "users" && !recipient.members.is_empty() {
        problems.push(ConfigError::new("a user has no `members`"));
    }
    if recipient.members.len() > limits::MEMBERS {
        problems.push(ConfigError::new(format!("a group has at most {} members", limits::MEMBERS)));
    }
    for (channel, address) in &recipient.addresses {
        match config.channels.get(channel) {
            None => problems.push(unknown_channel(config, channel)),
            Some(kind) if kind.needs_address() && address.is_empty() => {
                problems.push(ConfigError::new(format!("the address in channel `{channel}` is empty")));
            }
            Some(_) => {}
        }
    }
    for channel in recipient.channels.values().flatten() {
        match config.channels.get(channel) {
            None => problems.push(unknown_channel(config, channel)),
            Some(_) if recipient.addresses.contains_key(channel) => {}
            Some(_) => {
                let hint = format!("write `addresses = {{ {channel} = \"…\" }}`");
                problems.push(ConfigError::new(format!("no address in channel `{channel}`")).hint(hint));
            }
        }
    }
    problems
}

fn unknown_channel<S>(config: &NotifyConfig<S>, channel: &str) -> ConfigError {
    let known: Vec<&str> = config.channels.keys().map(String::as_str).collect();
    ConfigError { hint: suggest(channel, &known), ..ConfigError::new(format!("unknown channel `{channel}`")) }
}

fn unknown_users<S>(config: &NotifyConfig<S>, users: &[String]) -> impl Iterator<Item = ConfigError> {
    let known: Vec<&str> = config.users.keys().map(String::as_str).collect();
    users.iter().filter(|user| !config.users.contains_key(*user)).map(move |user| ConfigError {
        hint: suggest(user, &known),
        ..ConfigError::new(format!("unknown user `{user}`"))
    })
}

#[cfg(test)]
mod tests;
