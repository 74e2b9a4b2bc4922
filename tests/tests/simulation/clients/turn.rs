//! Turns: sessions begin and end them, fork, go back, close. Owns: what an engine says of a session. Must not know: pages'
//! bytes.

use super::conversation::{hashes, path};
use super::open;
use crate::context::Context;
use crate::tasks::pause;
use std::rc::Rc;
use turnkv_proto::{ErrorKind, wire};

/// A turn of a session, and often what comes after one.
pub(super) async fn turn(context: &Rc<Context>, space: usize) {
    let path = path(context, space, false);
    let namespace: bytes::Bytes = context.model.borrow().id(space).0.to_vec().into();
    let name = format!("s{space}-{}", path[0]);
    let server = context.server();
    let engine = if context.percent(30) { "engine".to_owned() } else { String::new() };
    let begin = wire::BeginTurnRequest {
        namespace: namespace.clone(),
        session: name.clone(),
        engine,
        ..Default::default()
    };
    let begun = match context.call("BeginTurn", async { server.begin_turn(&begin) }).await {
        Ok(begun) => begun,
        Err(error) if error.kind == ErrorKind::NamespaceUnknown => {
            open(context, space).await;
            return;
        }
        Err(error) => return context.refused("BeginTurn", &error),
    };
    context.note(u64::from(begun.pages));
    if begun.dram > begun.pages {
        context.broken(format!("BeginTurn answers {begun:?}"));
    }
    pause().await;
    let end = wire::EndTurnRequest {
        namespace: namespace.clone(),
        session: name.clone(),
        keep: 0,
        hashes: hashes(context, space, &path).into(),
        tail_tokens: 0,
        expected_return_ms: [0, 500, 5_000][context.below(3) as usize],
        ttl_ms: [0, 2_000][context.below(2) as usize],
        priority: context.below(2) as u32,
        r#final: context.percent(5),
        archive: false,
    };
    if let Err(error) = server.end_turn(&end) {
        context.refused("EndTurn", &error);
    }
    let other = format!("{name}-{}", context.below(3));
    match context.below(10) {
        0..3 => {
            let pages = context.below(path.len() as u64 + 1) as u32;
            let fork = wire::ForkRequest { namespace, session: name, fork: other, pages };
            let forked = server.fork(&fork);
            if let Err(error) = forked {
                context.refused("Fork", &error);
            }
        }
        3 => {
            let keep = context.below(path.len() as u64) as u32;
            let superseded = server.supersede(&wire::SupersedeRequest { namespace, session: name, keep });
            if let Err(error) = superseded {
                context.refused("Supersede", &error);
            }
        }
        4 => {
            if let Err(error) =
                server.close(&wire::CloseRequest { namespace, session: other, archive: false })
            {
                context.refused("Close", &error);
            }
        }
        _ => {}
    }
}
