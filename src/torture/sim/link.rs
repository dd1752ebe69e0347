//! A link between a client and a server: how long a message takes, and whether it arrives.
//!
//! Messages go over TCP, and only what can happen there happens. On one connection they arrive once and in order, or the
//! connection breaks. A lost packet is sent again after a time-out that doubles each time, so that the message is late; or the
//! connection breaks.

use crate::torture::random::Random;

/// Minimum and maximum latency of an unimpaired link.
const LATENCY_US: (u64, u64) = (100, 500);
/// TCP's retransmission time-out: the first one, and the maximum.
const RETRANSMISSION_US: (u64, u64) = (200_000, 1_000_000);
/// Percentage of losses that break the connection, where a loss may do so.
const BREAKS_PERCENT: u64 = 30;

/// A temporary impairment of a link.
#[derive(Clone, Copy, Debug)]
enum Impairment {
    /// Messages take up to this much longer.
    Delay { most_us: u64 },
    /// Packets are lost with this probability, in percent. `breaks` says whether a loss may break the connection.
    Loss { percent: u64, breaks: bool },
}

/// The link between a client and a server, in both directions. Its random choices follow from the time and not from earlier
/// messages: a message that is sent at the same moment has the same fate, whatever is removed from a run.
#[derive(Debug)]
pub struct Link {
    seed: u64,
    /// The stream for the moment `asked_us`.
    random: Random,
    asked_us: u64,
    /// The impairments, each with its end.
    impairments: Vec<(u64, Impairment)>,
}

/// The delivery of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delivery {
    /// It arrives after this time.
    Arrives(u64),
    /// It does not arrive, and its connection breaks.
    Breaks,
}

impl Link {
    /// A link with its own random stream.
    pub fn new(mut random: Random) -> Link {
        Link { seed: random.draw(), random, asked_us: u64::MAX, impairments: Vec::new() }
    }

    /// The random stream of a moment.
    pub fn random(&mut self, now_us: u64) -> &mut Random {
        if self.asked_us != now_us {
            (self.random, self.asked_us) = (Random::new(self.seed, now_us, 0), now_us);
        }
        &mut self.random
    }

    /// Delays messages by up to `most_us` until a time.
    pub fn delay(&mut self, until_us: u64, most_us: u64) {
        self.impairments.push((until_us, Impairment::Delay { most_us }));
    }

    /// Loses packets until a time.
    pub fn lose(&mut self, until_us: u64, percent: u64, breaks: bool) {
        self.impairments.push((until_us, Impairment::Loss { percent, breaks }));
    }

    /// The latency of a message without impairments.
    pub fn latency_us(&mut self, now_us: u64) -> u64 {
        self.random(now_us).between(LATENCY_US.0, LATENCY_US.1)
    }

    /// Decides on the delivery of a message that is sent now.
    pub fn send(&mut self, now_us: u64) -> Delivery {
        let mut takes_us = self.latency_us(now_us);
        if self.impairments.is_empty() {
            return Delivery::Arrives(takes_us);
        }
        self.impairments.retain(|(until_us, _)| *until_us > now_us);
        for (until_us, impairment) in &self.impairments {
            match *impairment {
                Impairment::Delay { most_us } => takes_us += self.random.below(most_us),
                Impairment::Loss { percent, breaks } => {
                    let mut again_us = RETRANSMISSION_US.0;
                    while now_us + takes_us < *until_us && self.random.percent(percent) {
                        if breaks && self.random.percent(BREAKS_PERCENT) {
                            return Delivery::Breaks;
                        }
                        takes_us += again_us;
                        again_us = (2 * again_us).min(RETRANSMISSION_US.1);
                    }
                }
            }
        }
        Delivery::Arrives(takes_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_late_or_breaks_the_connection() {
        let mut link = Link::new(Random::new(1, 2, 3));
        assert!((0..100).all(|_| matches!(link.send(0), Delivery::Arrives(100..500))));
        let again = |link: &mut Link| (link.send(5), link.send(5), link.send(7));
        let (first, second) = (again(&mut link), again(&mut link));
        assert_eq!(first, second, "the same moments give the same deliveries");
        link.lose(1_000_000, 100, false);
        assert!((0..100).all(|_| matches!(link.send(0), Delivery::Arrives(1_000_000..2_500_000))));
        assert!((0..100).all(|_| matches!(link.send(1_000_000), Delivery::Arrives(100..500))), "it is over");
        link.lose(1_000_000, 100, true);
        assert!((0..100).any(|_| link.send(0) == Delivery::Breaks));
    }
}
