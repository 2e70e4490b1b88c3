//! Digests: many notifications of one recipient and channel become one message.

use serde::{Deserialize, Serialize};
use steprail_core::run::Millis;

use crate::limits;
use crate::message::{Kind, Message, Urgency};

/// The recent messages of one recipient and channel. The outbox stores it with them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Burst {
    /// The time of the first message of the interval.
    pub since: Millis,
    /// Messages of the interval.
    pub sent: u32,
}

/// How a message is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// On its own, now.
    Single,
    /// In a digest at this time, with all others that wait by then.
    InDigest(Millis),
}

impl Burst {
    /// Decides how a message is sent, and counts it. The first messages of an interval are sent on their own, and the others
    /// in one digest at its end. A digest is counted like a message.
    pub fn admit(&mut self, now: Millis) -> Admission {
        let end = self.since.saturating_add(limits::BURST_MS);
        if self.sent == 0 || now >= end || now < self.since {
            *self = Self { since: now, sent: 1 };
            return Admission::Single;
        }
        if self.sent < limits::BURST {
            self.sent += 1;
            return Admission::Single;
        }
        Admission::InDigest(end)
    }
}

/// Collects the notifications of a digest. Its size does not grow with their number.
#[derive(Debug, Clone, Default)]
pub struct DigestBuilder {
    entries: Vec<String>,
    count: u64,
    urgency: Option<Urgency>,
    deadline: Option<Millis>,
}

impl DigestBuilder {
    /// Adds a notification. Pass the most urgent ones first: the first ones get a line each.
    pub fn add(&mut self, message: &Message) {
        if self.entries.len() < limits::DIGEST_LINES {
            self.entries.push(message.summary());
        }
        self.count += message.count.max(1);
        self.urgency = self.urgency.max(Some(message.urgency));
        self.deadline = match (self.deadline, message.deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// Notifications so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The digest message: as urgent as its most urgent notification, with the earliest deadline. `link` is the page with
    /// all of them, such as the list of open approvals.
    pub fn finish(self, id: String, link: Option<String>) -> Message {
        Message {
            id,
            kind: Kind::Digest,
            urgency: self.urgency.unwrap_or_default(),
            deadline: self.deadline,
            link,
            entries: self.entries,
            count: self.count,
            ..Message::default()
        }
        .bounded()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Definition;
    use crate::render::TextForm;

    fn approval(number: u64) -> Message {
        Message {
            id: format!("n{number}"),
            kind: Kind::ApprovalRequested,
            definition: Some(Definition { name: "deploy".to_owned(), version: 3 }),
            step: Some(format!("item[{number}].ask")),
            deadline: Some(1_763_460_000_000 + i64::try_from(number).unwrap() * 1_000),
            ..Message::default()
        }
    }

    /// Sends approvals at these times; returns the number of single messages and the digests.
    fn deliver(times: impl Iterator<Item = Millis>) -> (usize, Vec<Message>) {
        let (mut burst, mut singles, mut digests) = (Burst::default(), 0, Vec::new());
        let mut waiting: Option<(Millis, DigestBuilder)> = None;
        for (number, now) in times.chain([Millis::MAX]).enumerate() {
            if let Some((_, digest)) = waiting.take_if(|(at, _)| *at <= now) {
                burst.admit(now);
                digests.push(digest.finish(format!("d{}", digests.len()), None));
            }
            if now == Millis::MAX {
                break;
            }
            match burst.admit(now) {
                Admission::Single => singles += 1,
                Admission::InDigest(at) => {
                    let (_, digest) = waiting.get_or_insert_with(|| (at, DigestBuilder::default()));
                    digest.add(&approval(number as u64));
                }
            }
        }
        (singles, digests)
    }

    #[test]
    fn ten_thousand_approvals_in_a_minute_become_a_few_messages() {
        let (singles, digests) = deliver((0..10_000).map(|number| number * 6));
        let counts: Vec<u64> = digests.iter().map(|digest| digest.count).collect();
        assert_eq!((singles, counts), (5, vec![9_995]));
        let json = serde_json::to_string(&digests[0]).unwrap();
        assert!(json.len() < 4_000, "{}", json.len());
        insta::assert_snapshot!(digests[0].text(TextForm { chars: 1_000, link: true }));
    }

    #[test]
    fn a_long_burst_has_at_most_a_few_messages_per_minute() {
        let (singles, digests) = deliver((0..60 * 60).map(|second| second * 1_000));
        assert!(singles <= 60 * 5 && digests.len() <= 60, "{singles} {}", digests.len());
        let all = singles as u64 + digests.iter().map(|digest| digest.count).sum::<u64>();
        assert_eq!(all, 60 * 60);
    }

    #[test]
    fn rare_messages_are_sent_on_their_own() {
        let (singles, digests) = deliver((0..100).map(|number| number * 20_000));
        assert_eq!((singles, digests.len()), (100, 0));
    }

    #[test]
    fn a_digest_is_as_urgent_as_its_most_urgent_notification() {
        let mut digest = DigestBuilder::default();
        digest.add(&approval(1));
        digest.add(&Message { urgency: Urgency::High, ..approval(2) });
        digest.add(&Message { urgency: Urgency::Low, ..approval(3) });
        let digest = digest.finish("d".to_owned(), None);
        assert_eq!((digest.urgency, digest.deadline), (Urgency::High, approval(1).deadline));
    }
}
