//! The text of a configuration file. Owns: that it is read at once or not at all. Must not know: what it says.

use super::ConfigError;
use crate::limits::CONFIG_BYTES_MAX;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Reads a file. A pipe, a device or a directory in its place is refused: whoever waits for the other end of a pipe waits for ever.
pub(super) fn read_text(path: &Path) -> Result<String, ConfigError> {
    read(path).map_err(|source| ConfigError::Read { path: path.into(), source })
}

fn read(path: &Path) -> io::Result<String> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut text = String::new();
    if file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text)? as u64 > CONFIG_BYTES_MAX {
        return Err(io::Error::new(
            ErrorKind::FileTooLarge,
            format!("it is longer than {CONFIG_BYTES_MAX} bytes"),
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
