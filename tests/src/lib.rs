//! What the whole-system tests share. Tests talk to the pool the way users do; must not know: anything inside it.
//!
//! - [`workspace`]: where the workspace and the server's binary are
//! - [`server`]: a real server process
//! - [`http`]: its metrics page
//! - [`process`]: what the kernel says of it
//! - [`beside`]: a server that is misused, and a user beside it
//! - [`certs`]: an authority, and certificates of servers and clients
//! - [`child`]: a process that ends with its test
//! - [`cluster`]: pools that share what they have
//! - [`counts`]: a pool's counts, as they come to be
//! - [`etcd`]: an etcd of a test's own
//! - [`fabric`]: a server whose pages go by NICs
//! - [`flood`]: connections that want nothing good; [`http2`]: gRPC by hand, for callers that no library would be
//! - [`gpu`]: a host device with pages in it
//! - [`hosts`]: hosts with a network of their own each
//! - [`local`]: a client that speaks frames by hand; [`heavy`]: the largest legal requests, and a clock beside them
//! - [`manager`]: a play systemd, which starts servers and keeps what they give it
//! - [`mapped`]: a client that writes into slots after their commit
//! - [`object_store`]: a store that speaks S3
//! - [`pages`]: pages that a test can recognise
//! - [`proxy`]: a network that fails
//! - [`raw`]: gRPC calls of bytes that need be no message
//! - [`secured`]: a server under TLS, and clients of it
//! - [`traffic`]: traffic of every kind, and the metrics page after it
//! - [`user`]: a client that checks every byte it gets
#![forbid(unsafe_code)]

pub mod beside;
pub mod certs;
pub mod child;
pub mod cluster;
pub mod counts;
pub mod etcd;
pub mod fabric;
pub mod flood;
pub mod gpu;
pub mod heavy;
pub mod hosts;
pub mod http;
pub mod http2;
pub mod local;
pub mod manager;
pub mod mapped;
pub mod object_store;
pub mod own;
pub mod pages;
pub mod process;
pub mod proxy;
pub mod raw;
pub mod secured;
pub mod server;
pub mod traffic;
pub mod user;
pub mod workspace;
