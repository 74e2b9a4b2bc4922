//! One session that is to leave: members are asked in rank until one has taken it. Owns: whom, in which order, and what is told of it.
//! Must not know: other sessions.

use super::mover::Mover;
use crate::cluster::Takeover;
use crate::engine::leaving::LeavingSession;
use crate::engine::moves::MovedOne;

impl Mover {
    /// Offers a session to one member after the other.
    pub(super) async fn offer(&self, session: &LeavingSession) -> MovedOne {
        let LeavingSession { of, tip, spec, bytes, .. } = session;
        let mut fault = MovedOne::NoPeer;
        for member in self.cluster.takers(&of.namespace, &of.session) {
            if !self.engine.is_draining() {
                break;
            }
            match self.cluster.offer_session(member, spec, &of.session, *tip).await {
                Takeover::Done(at) => {
                    self.cluster.moved_away(&of.namespace, &of.session, at);
                    return MovedOne::Taken { bytes: *bytes };
                }
                // It has become another's home meanwhile, or has nothing any more.
                Takeover::Gone => return MovedOne::Gone,
                Takeover::NoRoom => fault = MovedOne::NoRoom,
                Takeover::Failed(why) => {
                    tracing::info!(
                        session = of.session.as_str(),
                        why,
                        "a member did not take a session over"
                    );
                    fault = MovedOne::Failed(why);
                }
            }
        }
        fault
    }
}
