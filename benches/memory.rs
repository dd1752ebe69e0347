//! What a lock and an idle connection cost in resident memory, side by side with redis-server: `cargo bench --bench memory`.

mod servers;

fn main() {
    // `cargo bench` passes --bench; `cargo test --benches` passes --test and wants nothing measured.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let (json, met) = servers::memory::print();
    println!("\nBars {}.\n{{{json}}}", if met { "met" } else { "missed" });
}
