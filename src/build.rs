//! Links the program with the static half of GCC's runtime where the compiler has it, and names the sanitizer that code is built
//! for.
//!
//! All that is wanted of `libgcc_s.so.1` is the unwinder. As a library of its own it has to be found, mapped and bound at each
//! start, and it asks the processor what it can do, which a virtual one takes its time to answer: 0.15 ms of 2.5 from exec to the
//! first reply. Whoever embeds the library links as ever.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=src/build.rs");
    // What `.ci/models` sets.
    println!("cargo::rustc-check-cfg=cfg(loom)");
    name_sanitizers();
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    let var = |name: &str| env::var(name).unwrap_or_default();
    let gnu = var("CARGO_CFG_TARGET_OS") == "linux" && var("CARGO_CFG_TARGET_ENV") == "gnu";
    let whole = var("CARGO_CFG_TARGET_FEATURE").split(',').any(|feature| feature == "crt-static");
    if !gnu || whole || var("HOST") != var("TARGET") {
        return;
    }
    let linker = Some(var("RUSTC_LINKER")).filter(|linker| !linker.is_empty()).unwrap_or_else(|| "cc".to_owned());
    let Ok(said) = Command::new(linker).arg("-print-file-name=libgcc_eh.a").output() else { return };
    let archive = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    // What it does not know, it says as it was asked.
    if !Path::new(&archive).is_absolute() || !Path::new(&archive).is_file() || archive.contains(['"', '\n']) {
        return;
    }
    // The standard library asks for `-lgcc_s`, and the linker takes the first file of that name, which may be a script.
    let folder = var("OUT_DIR");
    if fs::write(Path::new(&folder).join("libgcc_s.so"), format!("INPUT(\"{archive}\")\n")).is_ok() {
        println!("cargo::rustc-link-arg-bins=-L{folder}");
    }
}

/// Sets `address_sanitizer` or `thread_sanitizer` where code is built for it: stable Rust has no condition of its own for that.
fn name_sanitizers() {
    let built_for = env::var("CARGO_CFG_SANITIZE").unwrap_or_default();
    for kind in ["address", "thread"] {
        println!("cargo::rustc-check-cfg=cfg({kind}_sanitizer)");
        if built_for.split(',').any(|sanitizer| sanitizer == kind) {
            println!("cargo::rustc-cfg={kind}_sanitizer");
        }
    }
}
