//! `stemma`: see the library of this crate.

fn main() -> std::process::ExitCode {
    stemma::main()
}
