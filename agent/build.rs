//! Takes the symbols out of the released program: it is held to 6 MB.
//!
//! `strip` of the profile does not reach a package that has an `opt-level` of its own, and cannot be given for one.

fn main() {
    if std::env::var_os("PROFILE").is_some_and(|profile| profile == "release") {
        emit("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    }
    emit("cargo::rerun-if-changed=build.rs");
}

/// Says something to cargo, which reads standard output.
fn emit(line: &str) {
    use std::io::Write;
    writeln!(std::io::stdout(), "{line}").expect("cargo listens while a build script runs");
}
