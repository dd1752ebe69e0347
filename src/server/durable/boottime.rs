//! The machine's boot clock (`CLOCK_BOOTTIME`) and the id of the boot.

use std::sync::OnceLock;

use rustix::time::{ClockId, clock_gettime};

use crate::persist::append::clock::BootClock;

/// The boot clock now. Without the id of the boot it is the default, which is the same boot as no other.
pub fn now() -> BootClock {
    static BOOT: OnceLock<Option<[u8; 16]>> = OnceLock::new();
    let Some(id) = *BOOT.get_or_init(id) else { return BootClock::default() };
    let time = clock_gettime(ClockId::Boottime);
    let now_ms = u64::try_from(time.tv_sec).unwrap_or(0) * 1000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000;
    BootClock { id, now_ms }
}

fn id() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32).map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_boot_clock_runs_within_one_boot() {
        let (first, second) = (super::now(), super::now());
        assert_eq!(first.id, second.id);
        assert!(second.now_ms >= first.now_ms);
    }
}
