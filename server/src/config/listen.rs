//! `listen`: where the sockets are. Owns: the check of the path, and the place where none is named. Must not know: binding.

use super::error::ConfigError;
use crate::limits::SOCKET_PATH_BYTES_MAX;
use std::path::{Path, PathBuf};

/// The path of the gRPC socket.
pub(super) fn check_listen(listen: Option<&str>) -> Result<PathBuf, ConfigError> {
    let Some(listen) = listen else { return Ok(default_socket()) };
    let bad = |why| Err(ConfigError::Value { key: "listen", why });
    match listen.strip_prefix("unix:") {
        Some(path) if !path.is_empty() && !path.starts_with('/') => {
            bad(format!("`{listen}` must name an absolute path: unix:/path/to/turnkv.sock"))
        }
        Some(path) if (1..=SOCKET_PATH_BYTES_MAX).contains(&path.len()) => Ok(PathBuf::from(path)),
        Some(path) => {
            let (most, bytes) = (SOCKET_PATH_BYTES_MAX, path.len());
            bad(format!("the socket path must be 1 to {most} bytes long, this is {bytes}"))
        }
        None => bad(format!("`{listen}` must be unix:/path/to/turnkv.sock (TCP has its own key: tcp)")),
    }
}

/// The socket of a server that was told none: the user's run directory, else the system's.
pub(crate) fn default_socket() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() => Path::new(&dir).join("turnkv.sock"),
        _ => PathBuf::from("/run/turnkv/turnkv.sock"),
    }
}
