//! Files that are none, or too long, are refused at once.

use super::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};

#[test]
fn a_file_is_read_whole_or_refused_and_nobody_waits_for_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let most = CONFIG_BYTES_MAX as usize;
    std::fs::write(at("longest"), "#".repeat(most)).unwrap();
    assert_eq!(read_text(&at("longest")).unwrap().len(), most);
    std::fs::write(at("longer"), "#".repeat(most + 1)).unwrap();
    std::fs::write(at("no text"), [0xff, 0xfe]).unwrap();
    mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    std::os::unix::fs::symlink(at("longest"), at("link")).unwrap();
    assert!(read_text(&at("link")).is_ok(), "a link to a file is one");
    let kinds = [
        ("longer", ErrorKind::FileTooLarge),
        ("no text", ErrorKind::InvalidData),
        ("pipe", ErrorKind::InvalidInput),
        (".", ErrorKind::InvalidInput),
        ("nothing", ErrorKind::NotFound),
    ];
    for (name, kind) in kinds {
        let Err(ConfigError::Read { path, source }) = read_text(&at(name)) else { panic!("{name} is read") };
        assert_eq!((path, source.kind()), (at(name), kind), "{name}");
    }
}
