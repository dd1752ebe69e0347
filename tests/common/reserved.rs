//! Reserved address space of the process.

#![allow(clippy::unwrap_used)]

/// Whether one mapping is as large as the machine's memory, which only a reservation can be.
pub fn as_much_as_the_memory() -> bool {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib: u64 = memory.lines().next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let len = |line: &str| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        u64::from_str_radix(to, 16).unwrap() - u64::from_str_radix(from, 16).unwrap()
    };
    maps.lines().any(|line| len(line) >= kib << 10)
}
