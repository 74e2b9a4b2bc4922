//! One call, at one member after the other. Owns: how many are asked, for how long each, and after which errors. Must not know: what
//! is asked.

use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind};
use crate::limits::{MEMBER_WAIT_MIN, TRIES_MAX};
use crate::link::Link;
use crate::members::{Members, is_among};
use crate::namespace::Namespace;
use std::sync::Arc;

/// See the module text.
#[derive(Debug)]
pub(crate) struct Tries {
    /// The namespace, at the member that is asked now.
    at: Namespace,
    /// Those that did not answer.
    asked: Vec<Arc<Link>>,
}

impl Namespace {
    /// A call that is about a session, or about none: where its last turn began through this client, else in the usual order.
    pub(crate) fn tries(&self, session: Option<&str>) -> Tries {
        self.tries_from(session.and_then(|session| self.members.place_of(&self.id(), session)))
    }

    /// A call that goes there first, if that is well.
    pub(crate) fn tries_from(&self, first: Option<Arc<Link>>) -> Tries {
        self.members.keep_following();
        let first = first.filter(|link| link.is_well());
        let link = first.or_else(|| self.members.next(&self.id(), &[]));
        Tries { at: self.at(link.unwrap_or_else(|| self.members.first())), asked: Vec::new() }
    }
}

impl Tries {
    /// The namespace, at the member that is to be asked now.
    pub(crate) fn at(&self) -> &Namespace {
        &self.at
    }

    /// By when that member answers a call that carries no pages: where another one could, half of the time is left for it. Pages are
    /// moved by whoever answered a moment ago, and get all of it.
    pub(crate) fn share(&self, deadline: Deadline) -> Deadline {
        let another = if self.members().is_list() { self.another() } else { None };
        match another.filter(|link| link.is_well()) {
            Some(_) => deadline.within((deadline.left() / 2).max(MEMBER_WAIT_MIN)),
            None => deadline,
        }
    }

    /// Whether another member than this one is to be asked now.
    pub(crate) fn has_left(&self, link: &Arc<Link>) -> bool {
        !Arc::ptr_eq(&self.at.link, link)
    }

    /// After an error: whether another member is asked, which is the one it is at now.
    pub(crate) fn go_on(&mut self, error: &Error, deadline: Deadline) -> bool {
        let is_members = matches!(
            error.kind,
            ErrorKind::Unavailable | ErrorKind::BreakerOpen | ErrorKind::Deadline | ErrorKind::Draining
        );
        if !is_members || !self.members().is_list() || deadline.left().is_zero() {
            return false;
        }
        let Some(link) = self.another() else { return false };
        tracing::debug!(from = %self.at.link.address, to = %link.address, %error, "another member is asked");
        self.asked.push(std::mem::replace(&mut self.at.link, link));
        true
    }

    /// Goes on where one that answered says. False: it is there, or that member did not answer.
    pub(crate) fn follow(&mut self, link: Arc<Link>) -> bool {
        if is_among(&link, &self.asked) || Arc::ptr_eq(&link, &self.at.link) {
            return false;
        }
        self.at.link = link;
        true
    }

    fn another(&self) -> Option<Arc<Link>> {
        if self.asked.len() + 1 >= TRIES_MAX {
            return None;
        }
        let mut asked = self.asked.clone();
        asked.push(Arc::clone(&self.at.link));
        self.members().next(&self.at.id(), &asked)
    }

    fn members(&self) -> &Arc<Members> {
        &self.at.members
    }
}

#[cfg(test)]
mod tests;
