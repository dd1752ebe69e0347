//! How long a message takes between a client and a server, and whether it gets there.
//!
//! Messages go over TCP, and nothing happens to them that cannot happen there: on one connection they arrive in order and once, or the
//! connection breaks. What is lost on the way is sent again after a time-out that doubles, so that the message is late; or the connection is
//! given up.

use crate::torture::random::Random;

/// The least and the most that a message takes when nothing is wrong.
const LATENCY_US: (u64, u64) = (100, 500);
/// After how long TCP sends again what was lost, for the first time, and at most.
const RETRANSMISSION_US: (u64, u64) = (200_000, 1_000_000);
/// Of a hundred losses, those that end the connection, where they can.
const BREAKS_PERCENT: u64 = 30;

/// Something that is wrong with a link for a time.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// Messages take up to so much longer.
    Delay { most_us: u64 },
    /// So many of a hundred get lost.
    Loss { percent: u64, breaks: bool },
}

/// One client's way to one server and back. Its luck follows from the time, and not from what went over it before: a message that is sent at
/// the same moment has the same fate, whatever else is taken out of a run.
#[derive(Debug)]
pub struct Link {
    seed: u64,
    /// Of what it is asked next.
    random: Random,
    asked_us: u64,
    /// What is wrong, until when.
    troubles: Vec<(u64, Trouble)>,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    /// It arrives after so long.
    Arrives(u64),
    /// It does not, and its connection is no more.
    Breaks,
}

impl Link {
    /// A link with luck of its own.
    pub fn new(mut random: Random) -> Link {
        Link { seed: random.draw(), random, asked_us: u64::MAX, troubles: Vec::new() }
    }

    /// Luck of this moment.
    pub fn random(&mut self, now_us: u64) -> &mut Random {
        if self.asked_us != now_us {
            (self.random, self.asked_us) = (Random::new(self.seed, now_us, 0), now_us);
        }
        &mut self.random
    }

    /// Messages are late until then.
    pub fn delay(&mut self, until_us: u64, most_us: u64) {
        self.troubles.push((until_us, Trouble::Delay { most_us }));
    }

    /// Messages get lost until then.
    pub fn lose(&mut self, until_us: u64, percent: u64, breaks: bool) {
        self.troubles.push((until_us, Trouble::Loss { percent, breaks }));
    }

    /// How long a message takes that nothing happens to.
    pub fn latency_us(&mut self, now_us: u64) -> u64 {
        self.random(now_us).between(LATENCY_US.0, LATENCY_US.1)
    }

    /// Sends a message now.
    pub fn send(&mut self, now_us: u64) -> Fate {
        let mut takes_us = self.latency_us(now_us);
        if self.troubles.is_empty() {
            return Fate::Arrives(takes_us);
        }
        self.troubles.retain(|(until_us, _)| *until_us > now_us);
        for (until_us, trouble) in &self.troubles {
            match *trouble {
                Trouble::Delay { most_us } => takes_us += self.random.below(most_us),
                Trouble::Loss { percent, breaks } => {
                    let mut again_us = RETRANSMISSION_US.0;
                    while now_us + takes_us < *until_us && self.random.percent(percent) {
                        if breaks && self.random.percent(BREAKS_PERCENT) {
                            return Fate::Breaks;
                        }
                        takes_us += again_us;
                        again_us = (2 * again_us).min(RETRANSMISSION_US.1);
                    }
                }
            }
        }
        Fate::Arrives(takes_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_late_or_breaks_the_connection() {
        let mut link = Link::new(Random::new(1, 2, 3));
        assert!((0..100).all(|_| matches!(link.send(0), Fate::Arrives(100..500))));
        let again = |link: &mut Link| (link.send(5), link.send(5), link.send(7));
        let (first, second) = (again(&mut link), again(&mut link));
        assert_eq!(first, second, "the same moments, the same luck");
        link.lose(1_000_000, 100, false);
        assert!((0..100).all(|_| matches!(link.send(0), Fate::Arrives(1_000_000..2_500_000))));
        assert!((0..100).all(|_| matches!(link.send(1_000_000), Fate::Arrives(100..500))), "it is over");
        link.lose(1_000_000, 100, true);
        assert!((0..100).any(|_| link.send(0) == Fate::Breaks));
    }
}
