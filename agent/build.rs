//! Strips the symbols from the released program, which has a size limit of 6 MB.
//!
//! The `strip` setting of the profile does not apply to a package that has its own `opt-level`, and cannot be set for
//! one package.

/// Makes cargo strip the symbols from the program, but only in a release build.
fn main() {
    if std::env::var_os("PROFILE").is_some_and(|profile| profile == "release") {
        emit("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    }
    emit("cargo::rerun-if-changed=build.rs");
}

/// Prints an instruction to cargo, which reads standard output.
fn emit(line: &str) {
    use std::io::Write;
    writeln!(std::io::stdout(), "{line}").expect("cargo listens while a build script runs");
}
