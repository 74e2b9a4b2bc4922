//! `turnkv`: the pool server and the operator's commands. Owns: nothing; the library has it all.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    turnkv::run()
}
