//! Why a configuration was refused. Owns: the sentences, and what to do. Must not know: what the settings mean.

use std::path::{Path, PathBuf};

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not TOML, or a key that does not exist.
    #[error("{path}:{line}: `{text}`: {why}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What it says.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// A value out of its bounds.
    #[error("{key}: {why}")]
    Value {
        /// The key.
        key: &'static str,
        /// What is wrong and what to do.
        why: String,
    },
}

impl ConfigError {
    /// What to do about it.
    pub(crate) fn advice(&self) -> String {
        match self {
            ConfigError::Read { .. } => {
                "name a file that exists and may be read (--config), or none for the defaults".to_owned()
            }
            ConfigError::Parse { .. } => {
                "correct that line; `turnkv config` without a file prints every key".to_owned()
            }
            ConfigError::Value { key, .. } => {
                format!(
                    "correct {key}; docs/operating/configuration.md has a table of all settings and their bounds"
                )
            }
        }
    }

    /// A file that is not TOML, or has a key or value that does not exist: its place and its fault in one line.
    pub(super) fn parse(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
        let before = text.get(..error.span().map_or(0, |span| span.start)).unwrap_or("");
        let line = before.matches('\n').count() + 1;
        let said = text.lines().nth(line - 1).unwrap_or("").trim().to_owned();
        let why = error.message().trim().replace('\n', ", ");
        ConfigError::Parse { path: path.into(), line, text: said, why }
    }
}
