//! The tier on a disk that fails as it is told, without threads, against a plain model of what it promises.

mod basics;
mod small_disk;
