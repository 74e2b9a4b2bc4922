//! Panics of the database on a damaged file. Owns: turning them into errors, without the noise of a panic. Must not know: what
//! was asked of the database.

use super::CatalogError;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// This thread is in the database: a panic is an answer, which whoever asked tells of.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

static HOOK: Once = Once::new();

/// Runs something that may panic on a damaged file. Whatever it worked on must not be used again after an error.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, CatalogError>) -> Result<T, CatalogError> {
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                usual(panic);
            }
        }));
    });
    let was_quiet = IS_QUIET.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    IS_QUIET.set(was_quiet);
    outcome.unwrap_or_else(|panic| Err(CatalogError::Panicked(text_of(panic.as_ref()))))
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
    text.lines().next().unwrap_or_default().to_owned()
}
