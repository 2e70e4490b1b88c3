//! Many notifications at a time become digests.

use std::collections::HashMap;

use steprail_core::run::Millis;
use steprail_engine::NewDelivery;
use steprail_notify::digest::{Admission, Burst};
use steprail_notify::{Kind, Message, Urgency, limits};

/// Recipients and channels that are counted. Those of past intervals are forgotten beyond it.
const COUNTED: usize = 10_000;

/// The recent messages by recipient and channel. They start from zero after a restart.
#[derive(Debug, Default)]
pub(super) struct Bursts(HashMap<(String, String), Burst>);

impl Bursts {
    /// Delays a delivery to a digest if the recipient got many messages through this channel a moment ago. Deliveries that
    /// wait for the end of quiet hours are sent together.
    pub(super) fn admit(&mut self, delivery: NewDelivery, message: &Message, now: Millis) -> NewDelivery {
        if delivery.due > now {
            return NewDelivery { in_digest: true, ..delivery };
        }
        if message.kind == Kind::Test || message.urgency == Urgency::Emergency {
            return delivery;
        }
        if self.0.len() >= COUNTED {
            self.0.retain(|_, burst| burst.since.saturating_add(limits::BURST_MS) > now);
        }
        let counted = self.0.entry((delivery.recipient.clone(), delivery.channel.clone())).or_default();
        match counted.admit(now) {
            Admission::Single => delivery,
            Admission::InDigest(due) => NewDelivery { due, in_digest: true, ..delivery },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(bursts: &mut Bursts, due: Millis, now: Millis) -> (Millis, bool) {
        let text = String::new;
        let delivery =
            NewDelivery { recipient: text(), channel: text(), address: text(), due, in_digest: false };
        let message = Message { kind: Kind::ApprovalRequested, ..Message::default() };
        let NewDelivery { due, in_digest, .. } = bursts.admit(delivery, &message, now);
        (due, in_digest)
    }

    #[test]
    fn the_sixth_message_of_a_minute_waits_for_a_digest() {
        let mut bursts = Bursts::default();
        let singles = (0..5).filter(|_| admit(&mut bursts, 0, 0) == (0, false)).count();
        assert_eq!((singles, admit(&mut bursts, 10, 10)), (5, (limits::BURST_MS, true)));
    }

    #[test]
    fn messages_of_quiet_hours_are_sent_together() {
        assert_eq!(admit(&mut Bursts::default(), 500, 10), (500, true));
    }
}
