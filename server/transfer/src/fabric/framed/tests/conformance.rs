//! The suite that every engine passes.

use super::pair::OverTcp;
use crate::fabric::conformance::conforms;

conforms!(OverTcp::USUAL);
