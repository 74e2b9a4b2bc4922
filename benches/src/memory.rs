//! Page-aligned buffers on huge pages, so that the limit and the pool are measured on the same kind of memory.
//! Must not know: what is copied.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

const ALIGN: usize = 4096;
const TUNABLES: &str = "GLIBC_TUNABLES";
const HUGE: &str = "glibc.malloc.hugetlb=1";

/// Restarts this program once with the C library's allocator told to ask for transparent huge pages.
///
/// Call it first in `main`. Engines' buffers lie on huge pages too (torch and pinned memory), and 4 KiB pages cost
/// both sides about a tenth of their rate.
pub fn with_huge_pages() -> Result<()> {
    if std::env::var_os(TUNABLES).is_some() {
        return Ok(());
    }
    let program = std::env::current_exe().context("the path of this bench")?;
    Err(Command::new(program).args(std::env::args_os().skip(1)).env(TUNABLES, HUGE).exec())
        .context("restarting with huge pages")
}

/// Takes the allocator's setting away from a child process.
pub fn without_huge_pages(command: &mut Command) -> &mut Command {
    command.env_remove(TUNABLES)
}

/// A buffer whose pages are there and whose start is aligned for O_DIRECT.
#[derive(Debug)]
pub struct Buffer {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Buffer {
    /// A buffer of `bytes`, touched.
    pub fn new(bytes: usize) -> Buffer {
        let mut memory = vec![0u8; bytes + ALIGN];
        memory.fill(1);
        let start = memory.as_ptr().align_offset(ALIGN);
        Buffer { memory, start, bytes }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }

    /// Its bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::Buffer;

    #[test]
    fn a_buffer_is_aligned_and_as_long_as_asked() {
        let mut buffer = Buffer::new(10_000);
        assert_eq!((buffer.bytes().len(), buffer.bytes_mut().len()), (10_000, 10_000));
        assert_eq!(buffer.bytes().as_ptr() as usize % 4096, 0);
    }
}
