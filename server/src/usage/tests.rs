//! Tests of what is said of a command line that cannot be understood.

use super::explain;
use crate::report;
use clap::{CommandFactory, Parser, Subcommand};

#[derive(Parser, Debug)]
#[command(name = "tool", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Move {
        #[command(subcommand)]
        how: How,
    },
}

#[derive(Subcommand, Debug)]
enum How {
    Far {
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..10))]
        steps: u32,
        to: String,
    },
}

fn said(line: &str) -> (String, String) {
    let words = || line.split(' ').map(Into::into);
    let error = Arguments::try_parse_from(words()).unwrap_err();
    report::lines(&explain(&error, Arguments::command(), words()))
}

#[test]
fn each_misuse_is_one_line_and_names_the_command_that_was_meant() {
    for (line, words, path) in [
        ("tool", "ends before it says", "`tool --help`"),
        ("tool move", "ends before it says", "`tool move --help`"),
        ("tool fly", "unrecognized subcommand 'fly'", "`tool --help`"),
        (
            "tool move far",
            "required arguments were not provided: --steps <STEPS> <TO>",
            "`tool move far --help`",
        ),
        (
            "tool move far home --steps 10",
            "invalid value '10' for '--steps <STEPS>'",
            "`tool move far --help`",
        ),
        ("tool move far home --step 1", "unexpected argument '--step' found tip:", "`tool move far --help`"),
        ("tool move far home there --steps 1", "unexpected argument 'there'", "`tool move far --help`"),
    ] {
        let (what, todo) = said(line);
        assert!(what.contains(words), "{line}: {what}");
        assert!(todo.contains(path), "{line}: {todo}");
        assert!(!what.contains('\n') && !todo.contains('\n'), "{line}: {what} / {todo}");
        assert!(!what.starts_with("error:") && !what.contains("Usage"), "{line}: {what}");
    }
}
