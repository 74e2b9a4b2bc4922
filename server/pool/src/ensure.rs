//! What a check of invariants says. Owns: the macro. Must not know: any invariant.

/// Returns the message as an error unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

pub(crate) use ensure;
