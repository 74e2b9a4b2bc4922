//! `turnkv-next`: a program that differs from `turnkv` by a version, for the test of upgrades between the two. Owns: nothing; which version
//! it is says the feature that it is built with.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    turnkv::run()
}
