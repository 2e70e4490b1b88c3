//! Routing over virtual days, and both changes of the offset.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::*;
use crate::message::Kind;

const CONFIG: &str = r#"
direct = ["mail"]

[channels.phone]
type = "pushover"
token = { secret = "pushover" }

[channels.push]
type = "ntfy"

[channels.mail]
type = "command"
argv = ["mail"]

[channels.room]
type = "slack"
url = { secret = "slack" }

[users.lea]
time_zone = "Europe/Berlin"
addresses = { phone = "u-lea", mail = "lea@example.org" }
channels = { low = ["mail"], normal = ["phone"], emergency = ["phone", "mail"] }
quiet_hours = [{ from = "22:00", to = "07:00" }]
digest = { at = ["09:00", "16:00"] }

[users.bob]
time_zone = "America/New_York"
addresses = { phone = "u-bob" }
quiet_hours = [
  { from = "20:00", to = "08:00" },
  { from = "00:00", to = "00:00", days = ["sat", "sun"] },
]
break_quiet_hours = "emergency"

[users.kim]
addresses = { push = "kim-topic" }

[groups.ops]
members = ["lea", "bob"]
addresses = { room = "" }

[groups.all]
members = ["lea", "bob", "kim"]

[on_call.ops]
users = ["lea", "bob", "kim"]
shift = "1w"
start = "2026-01-05T09:00"
time_zone = "Europe/Berlin"

[on_call.nights]
users = ["lea", "bob"]
shift = "12h"
start = "2026-01-05T09:00"
"#;

fn config() -> NotifyConfig {
    toml::from_str(CONFIG).unwrap()
}

fn directory() -> Directory {
    Directory::compile(&config()).unwrap()
}

fn at(text: &str) -> Millis {
    text.parse::<Timestamp>().unwrap().as_millisecond()
}

fn show(millis: Millis, zone: &str) -> String {
    let zone = TimeZone::get(zone).unwrap();
    Timestamp::from_millisecond(millis).unwrap().to_zoned(zone).strftime("%a %d %b %H:%M %Z").to_string()
}

fn message(urgency: Urgency) -> Message {
    Message { id: "n1".to_owned(), kind: Kind::ApprovalRequested, urgency, ..Message::default() }
}

fn route(recipients: &[&str], urgency: Urgency, now: Millis) -> Routed {
    let recipients: Vec<String> = recipients.iter().map(|name| (*name).to_owned()).collect();
    directory().route(&recipients, &message(urgency), now)
}

/// The time at which lea or bob gets a message that is created at a time, both in local time.
fn delivered(user: &str, zone: &str, urgency: Urgency, now: &str) -> String {
    let now = at(now);
    let routed = route(&[user], urgency, now);
    let due = routed.deliveries[0].not_before;
    let when = if due == now { "at once".to_owned() } else { show(due, zone) };
    let digest = if routed.deliveries[0].digest { " in a digest" } else { "" };
    format!("{} → {when}{digest}\n", show(now, zone))
}

#[test]
fn recipients_and_channels() {
    let mut shown = String::new();
    let now = at("2026-06-03T10:00:00Z");
    for urgency in [Urgency::Low, Urgency::Normal, Urgency::High, Urgency::Emergency] {
        let name: &str = urgency.into();
        shown += &format!("{name}\n");
        let routed = route(
            &["group:ops", "lea", "oncall:ops", "mail:x@example.org", "leo", "group:dev", "fax:1"],
            urgency,
            now,
        );
        for delivery in routed.deliveries {
            let when = if delivery.not_before == now {
                "at once".to_owned()
            } else {
                show(delivery.not_before, "UTC")
            };
            shown += &format!(
                "  {} {} {:?} {when} {}\n",
                delivery.recipient, delivery.channel, delivery.address, delivery.digest
            );
        }
        if urgency == Urgency::Low {
            routed.unreachable.iter().for_each(|(name, reason)| shown += &format!("  {name}: {reason}\n"));
        }
    }
    insta::assert_snapshot!(shown);
}

#[test]
fn quiet_hours_of_a_week() {
    let mut shown = String::new();
    for hour in (0..7 * 24).step_by(5) {
        let now =
            Timestamp::from_millisecond(at("2026-06-01T00:00:00Z") + hour * 3_600_000).unwrap().to_string();
        shown += &format!("lea {}", delivered("lea", "Europe/Berlin", Urgency::Normal, &now));
        shown += &format!("bob {}", delivered("bob", "America/New_York", Urgency::High, &now));
    }
    insta::assert_snapshot!(shown);
}

#[test]
fn quiet_hours_and_digests_across_both_changes_of_the_offset() {
    let mut shown = String::new();
    // Berlin: 2026-03-29 02:00 → 03:00 and 2026-10-25 03:00 → 02:00.
    for night in ["2026-03-28", "2026-10-24"] {
        for hours in [19, 20, 21, 24, 25, 26, 27, 28, 29, 30, 31, 36] {
            let now = at(&format!("{night}T00:00:00Z")) + hours * 3_600_000;
            let now = Timestamp::from_millisecond(now).unwrap().to_string();
            shown += &format!("normal {}", delivered("lea", "Europe/Berlin", Urgency::Normal, &now));
            shown += &format!("low    {}", delivered("lea", "Europe/Berlin", Urgency::Low, &now));
        }
    }
    insta::assert_snapshot!(shown);
}

#[test]
fn urgent_messages_break_quiet_hours() {
    let night = "2026-06-03T01:00:00Z";
    for (user, urgency, waits) in [
        ("lea", Urgency::Normal, true),
        ("lea", Urgency::High, false),
        ("lea", Urgency::Emergency, false),
        ("bob", Urgency::High, true),
        ("bob", Urgency::Emergency, false),
        ("kim", Urgency::Low, false),
    ] {
        let due = route(&[user], urgency, at(night)).deliveries[0].not_before;
        assert_eq!(due > at(night), waits, "{user} {urgency:?}");
    }
}

#[test]
fn a_message_with_a_deadline_does_not_wait_for_a_later_digest() {
    let now = at("2026-06-03T10:00:00Z");
    for (deadline, digest) in [("2026-06-03T12:00:00Z", false), ("2026-06-04T12:00:00Z", true)] {
        let message = Message { deadline: Some(at(deadline)), ..message(Urgency::Low) };
        let routed = directory().route(&["lea".to_owned()], &message, now);
        assert_eq!(routed.deliveries[0].digest, digest, "{deadline}");
    }
}

/// A window whose start or end is skipped or repeated by the change of the offset.
#[test]
fn windows_that_touch_the_change() {
    let zone = TimeZone::get("Europe/Berlin").unwrap();
    let window = |from: &str, to: &str| QuietHours {
        from: time_of_day(from).unwrap(),
        to: time_of_day(to).unwrap(),
        days: Vec::new(),
    };
    let end =
        |window: &QuietHours, now: &str| window.end(&zone, at(now)).map(|end| show(end, "Europe/Berlin"));
    let early = window("22:00", "02:30");
    // 02:30 does not exist: the window ends when the clock shows 03:00.
    assert_eq!(end(&early, "2026-03-29T00:59:00Z").as_deref(), Some("Sun 29 Mar 03:00 CEST"));
    assert_eq!(end(&early, "2026-03-29T01:00:00Z"), None);
    // 02:30 exists twice: the window ends at the first one and does not start again.
    assert_eq!(end(&early, "2026-10-25T00:15:00Z").as_deref(), Some("Sun 25 Oct 02:30 CEST"));
    assert_eq!(end(&early, "2026-10-25T01:15:00Z"), None);
    let late = window("02:30", "06:00");
    assert_eq!(end(&late, "2026-03-29T01:00:00Z").as_deref(), Some("Sun 29 Mar 06:00 CEST"));
    assert_eq!(end(&late, "2026-10-25T01:15:00Z").as_deref(), Some("Sun 25 Oct 06:00 CET"));
}

#[test]
fn on_call_changes_at_the_same_local_time_all_year() {
    let directory = directory();
    let rotation = &directory.rotations["ops"];
    let (mut now, mut last, mut changes) = (at("2026-01-05T08:00:00Z"), "lea".to_owned(), Vec::new());
    while now < at("2026-12-31T00:00:00Z") {
        let user = rotation.on_call(now);
        if user != last {
            changes.push(format!("{} {user}", show(now, "Europe/Berlin")));
            last = user.to_owned();
        }
        now += 15 * 60_000;
    }
    assert_eq!(changes.len(), 51);
    assert!(
        changes.iter().all(|change| change.starts_with("Mon") && change.contains("09:00")),
        "{changes:#?}"
    );
    insta::assert_snapshot!(changes[10..14].join("\n"));
    assert_eq!(rotation.on_call(at("2025-01-01T00:00:00Z")), "lea");
    let nights = &directory.rotations["nights"];
    let users: Vec<&str> = ["2026-01-05T09:00:00Z", "2026-01-05T21:00:00Z", "2026-01-06T09:00:00Z"]
        .map(|time| nights.on_call(at(time)))
        .to_vec();
    assert_eq!(users, ["lea", "bob", "lea"]);
}

#[test]
fn problems_of_the_configuration_are_all_reported() {
    let config: NotifyConfig = toml::from_str(
        r#"
        direct = ["mial"]
        [channels.mail]
        type = "ntfy"
        [channels.room]
        type = "slack"
        url = { secret = "slack" }
        [users.lea]
        addresses = { mial = "x", mail = "" }
        channels = { low = ["room"] }
        [users.bob]
        time_zone = "Europe/Berln"
        [users.kim]
        quiet_hours = [{ from = "22", to = "07:00" }]
        [users.ann]
        members = ["lea"]
        digest = { at = [] }
        [groups.ops]
        members = ["leo"]
        [on_call.ops]
        users = ["leo"]
        shift = "1m"
        start = "2026-01-05T09:00"
        [on_call.none]
        users = []
        shift = "1d"
        start = "monday"
        "#,
    )
    .unwrap();
    let problems = Directory::compile(&config).unwrap_err();
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn subscriptions_match_kind_definition_label_and_failure() {
    let config: NotifyConfig = toml::from_str(
        r#"
        [users.kim]
        [users.lea]
        [[subscriptions]]
        to = ["kim"]
        [[subscriptions]]
        to = ["lea"]
        kinds = ["run_failed", "audit_failure"]
        definition = "billing*"
        labels = { team = "o*" }
        failures = ["timeout", "lost"]
        "#,
    )
    .unwrap();
    let directory = Directory::compile(&config).unwrap();
    let failed = Message {
        kind: Kind::RunFailed,
        definition: Some(crate::Definition { name: "billing-eu".to_owned(), version: 1 }),
        labels: [("team".to_owned(), "ops".to_owned())].into(),
        failure: Some("timeout".to_owned()),
        ..Message::default()
    };
    assert_eq!(directory.subscribers(&failed), ["kim", "lea"]);
    for other in [
        Message { kind: Kind::RunCancelled, ..failed.clone() },
        Message { definition: None, ..failed.clone() },
        Message { labels: BTreeMap::new(), ..failed.clone() },
        Message { failure: Some("tool".to_owned()), ..failed.clone() },
        Message { failure: None, ..failed },
    ] {
        assert_eq!(directory.subscribers(&other), ["kim"], "{other:?}");
    }
    let wrong = NotifyConfig::<crate::SecretRef> {
        subscriptions: vec![SubscriptionConfig {
            to: vec!["leo".to_owned()],
            ..SubscriptionConfig::default()
        }],
        ..config
    };
    let problems = Directory::compile(&wrong).unwrap_err();
    assert_eq!(problems[0].to_string(), "subscriptions: unknown user `leo` (did you mean `lea`?)");
}

/// The examples of the documentation.
#[test]
fn documented_configurations_are_valid() {
    #[derive(serde::Deserialize)]
    struct File {
        notify: NotifyConfig,
    }
    let docs = include_str!("../../../../docs/notifications.md");
    let blocks: Vec<&str> =
        docs.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let sections: Vec<&str> = blocks.iter().copied().filter(|block| block.starts_with('[')).collect();
    // The first one is complete; the others are parts of one configuration.
    let [start, parts @ ..] = &sections[..] else { panic!("no configuration is documented") };
    assert_eq!(parts.len(), 4);
    let others = "[notify.channels.room]\ntype = \"slack\"\nurl = { secret = \"slack\" }\n[notify.users.bob]\n[notify.users.kim]\n";
    for text in [(*start).to_owned(), parts.concat() + others] {
        let file: File = toml::from_str(&text).unwrap();
        Directory::compile(&file.notify).unwrap();
    }
}

#[test]
fn the_number_of_recipients_is_bounded() {
    let mut config = NotifyConfig::<crate::SecretRef>::default();
    let members: Vec<String> = (0..limits::MEMBERS).map(|number| format!("u{number}")).collect();
    let user = RecipientConfig {
        addresses: [("a".to_owned(), "x".to_owned())].into(),
        ..RecipientConfig::default()
    };
    config.channels.extend(toml::from_str::<NotifyConfig>("[channels.a]\ntype = \"ntfy\"").unwrap().channels);
    config.users.extend(members.iter().map(|name| (name.clone(), user.clone())));
    config.users.insert("late".to_owned(), user);
    config.groups.insert("all".to_owned(), RecipientConfig { members, ..RecipientConfig::default() });
    let directory = Directory::compile(&config).unwrap();
    let routed = directory.route(&["group:all".to_owned(), "late".to_owned()], &message(Urgency::Normal), 0);
    assert_eq!(routed.deliveries.len(), limits::RECIPIENTS);
    assert_eq!(routed.unreachable, [("late".to_owned(), too_many())]);
}

#[test]
fn numbers_of_seconds_can_be_integers() {
    let config: NotifyConfig =
        toml::from_str("timeout = 20\n[channels.a]\ntype = \"command\"\nargv = [\"a\"]\ntimeout = 5")
            .unwrap();
    assert_eq!(config.timeout, Some(20.0));
}

#[test]
fn unknown_keys_are_errors() {
    for text in [
        "user = {}",
        "[users.lea]\nadress = {}",
        "[channels.a]\ntype = \"slack\"\nurl = { secret = \"s\" }\ntoken = 1",
    ] {
        assert!(toml::from_str::<NotifyConfig>(text).is_err(), "{text}");
    }
}

proptest! {
    /// In any hour of three years and in any zone: a message is never early, never lost, never due in quiet hours, and waits
    /// no longer than the quiet hours last.
    #[test]
    fn quiet_hours_end(
        minutes in 0..3 * 366 * 24 * 60_i64,
        from in 0..24 * 60_u32,
        length in 1..24 * 60_u32,
        zone in prop::sample::select(vec!["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia", "UTC"]),
    ) {
        let now = at("2025-01-01T00:00:00Z") + minutes * 60_000;
        let clock = |minutes: u32| format!("{:02}:{:02}", minutes / 60 % 24, minutes % 60);
        let window = QuietHours {
            from: time_of_day(&clock(from)).unwrap(),
            to: time_of_day(&clock(from + length)).unwrap(),
            days: Vec::new(),
        };
        let zone = TimeZone::get(zone).unwrap();
        if let Some(until) = quiet_until(std::slice::from_ref(&window), &zone, now) {
            prop_assert!(until > now);
            prop_assert!(until - now <= i64::from(length + 60) * 60_000);
            prop_assert_eq!(window.end(&zone, until), None);
            prop_assert!(window.end(&zone, until - 1).is_some());
        }
    }

    /// At any time exactly one user is on call, and shifts follow the order of the list.
    #[test]
    fn shifts_follow_the_order(minutes in 0..3 * 366 * 24 * 60_i64) {
        let directory = directory();
        let rotation = &directory.rotations["ops"];
        let now = at("2026-01-05T08:00:00Z") + minutes * 60_000;
        let index = |now: Millis| rotation.users().iter().position(|user| user == rotation.on_call(now)).unwrap();
        // A week later is the next shift, except within an hour of a change of the offset.
        let week = 7 * 24 * 3_600_000;
        let (this, next) = (index(now), index(now + week));
        let near = [this, (this + 1) % 3, (this + 2) % 3];
        prop_assert!(near[1] == next || index(now + week + 3_600_000) == near[1] || index(now + week - 3_600_000) == near[1]);
    }
}
