//! A command line that cannot be understood, in the words of any other error. Owns: what of the parser's text is said.
//! Must not know: which commands there are, what they do.

use crate::report::misused;
use std::ffi::OsString;

/// What is wrong with these arguments of a command, the program's own name first, in one line, and where it says what is right.
pub(crate) fn explain(
    error: &clap::Error,
    mut command: clap::Command,
    arguments: impl IntoIterator<Item = OsString>,
) -> anyhow::Error {
    let mut path = command.get_name().to_owned();
    for argument in arguments.into_iter().skip(1) {
        let Some(next) = argument.to_str().and_then(|name| command.find_subcommand(name)).cloned() else {
            break;
        };
        path = format!("{path} {}", next.get_name());
        command = next;
    }
    misused(what(error), format!("name what it takes, as `{path} --help` lists it"))
}

/// The parser's text without its heading, usage and help, in one line.
fn what(error: &clap::Error) -> String {
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "the command line ends before it says what is to be done".to_owned();
    }
    let text = error.render().to_string();
    let said = text.split("\nUsage:").next().unwrap_or_default();
    let said = said.split("\nFor more information").next().unwrap_or_default();
    let said = said.strip_prefix("error: ").unwrap_or(said);
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
