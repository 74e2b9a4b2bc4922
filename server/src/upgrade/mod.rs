//! Another program takes this one's place, in the same process: what it finds is what is kept (page memory, listening sockets), with a
//! keeper or left open for it, and what is on disk. Owns: who may be asked for it, the check before, `exec`, and the way back. Must not know: doors, engine.
//!
//! ```text
//! asked for --check--> accepted --calls end--> exec --> the new program starts --> serves
//!     \--> refused: nothing changed               \          \--> cannot start
//!                                                  \--> no program  \
//!                                                         \----------+--> exec of the old one: serves as it did, and says why
//! ```
//!
//! - [`asked`]: who asks, one at a time
//! - [`become_other`]: `exec`, and what one program tells the next
//! - [`before`]: what the program before left, and the way back
//! - [`program`]: what another program says of itself
//! - [`replace`]: one program takes the place of the other

pub(crate) mod asked;
mod become_other;
pub(crate) mod before;
pub(crate) mod program;
pub(crate) mod replace;
