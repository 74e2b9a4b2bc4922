//! Pools that share what they have: real servers, as one cluster. Owns: their configuration, and what their
//! operator asks of them. Must not know: the crates inside them.

use crate::hosts::{Hosts, Network};
use crate::http::{free_address, get_soon, value};
use crate::proxy::{Fault, Proxy};
use crate::server::{Server, Setup};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use turnkv_proto::wire::cluster_client::ClusterClient;
use turnkv_proto::wire::{FindReply, FindRequest, NameSessionRequest, StandingReply, StandingRequest};
use turnkv_proto::{BlockHash, NamespaceId, pack_hashes};

/// The longest time after which all members see the same, where nothing stands in the way.
pub const AGREE_MAX: Duration = Duration::from_secs(15);

/// Where a server is on a host of its own.
const TCP_PORT: u16 = 7300;
const HTTP_PORT: u16 = 7301;

/// Some pools of one cluster. The member at `at` is called `pool-at`.
pub struct Cluster {
    /// The servers, in order.
    pub servers: Vec<Server>,
    tcp: Vec<SocketAddr>,
    http: Vec<SocketAddr>,
    setups: Vec<Setup>,
}

/// How members are told of one another.
#[derive(Debug, Clone)]
pub enum Known {
    /// By a list in their configuration.
    Listed,
    /// By etcd at this address.
    Etcd(String),
}

/// A cluster whose members reach one another each through a link of its own, in each direction.
pub struct Linked {
    /// The members, as they know one another by a list.
    pub cluster: Cluster,
    links: BTreeMap<(usize, usize), Proxy>,
}

impl Linked {
    /// So many pools that all see one another.
    ///
    /// # Errors
    /// One does not come up, or they do not agree.
    pub async fn start(count: usize, setup: &Setup) -> Result<Linked> {
        let places = Places::new(count)?;
        let mut links = BTreeMap::new();
        for from in 0..count {
            for to in (0..count).filter(|to| *to != from) {
                links.insert((from, to), Proxy::to(places.tcp[to], |_| (Fault::None, Fault::None))?);
            }
        }
        let seen = |from: usize, to: usize| {
            links.get(&(from, to)).map_or(places.tcp[to], |link: &Proxy| link.address())
        };
        let known: Vec<Vec<SocketAddr>> =
            (0..count).map(|from| (0..count).map(|to| seen(from, to)).collect()).collect();
        let cluster = Cluster::launch(places, setup, |at| section_listed(at, &known[at])).await?;
        Ok(Linked { cluster, links })
    }

    /// Nothing that one asks of another arrives, or it does again; what the other asks of it is not touched.
    pub fn cut(&self, from: usize, to: usize, is_cut: bool) {
        if let Some(link) = self.links.get(&(from, to)) {
            link.partition(is_cut);
        }
    }

    /// A member hears nobody and is heard by nobody, or is again.
    pub fn isolate(&self, at: usize, is_cut: bool) {
        self.links.iter().filter(|((from, to), _)| *from == at || *to == at).for_each(|(_, link)| {
            link.partition(is_cut);
        });
    }
}

/// Where servers are.
struct Places {
    tcp: Vec<SocketAddr>,
    http: Vec<SocketAddr>,
    /// The words that have a server run there.
    prefixes: Vec<Vec<String>>,
}

impl Places {
    fn new(count: usize) -> Result<Places> {
        let addresses = || (0..count).map(|_| free_address()).collect::<Result<Vec<_>>>();
        Ok(Places { tcp: addresses()?, http: addresses()?, prefixes: vec![Vec::new(); count] })
    }

    /// One on each host.
    fn on(hosts: &Hosts, count: usize) -> Result<Places> {
        let addresses = |port: u16| {
            let address = |at| Ok(SocketAddr::new(Hosts::address(u8::try_from(at)?), port));
            (0..count).map(address).collect::<Result<Vec<_>>>()
        };
        let prefixes = (0..count).map(|at| hosts.prefix(at)).collect();
        Ok(Places { tcp: addresses(TCP_PORT)?, http: addresses(HTTP_PORT)?, prefixes })
    }
}

impl Cluster {
    /// So many pools that all see one another.
    ///
    /// # Errors
    /// One does not come up, or they do not agree.
    pub async fn start(count: usize) -> Result<Cluster> {
        Cluster::start_with(count, &Known::Listed, &Setup::default()).await
    }

    /// The same, with more of their configuration, and however they know one another.
    ///
    /// # Errors
    /// As there.
    pub async fn start_with(count: usize, known: &Known, setup: &Setup) -> Result<Cluster> {
        let places = Places::new(count)?;
        let tcp = places.tcp.clone();
        Cluster::launch(places, setup, |at| match known {
            Known::Listed => section_listed(at, &tcp),
            Known::Etcd(etcd) => section_of_etcd(at, tcp[at], etcd),
        })
        .await
    }

    /// So many pools that etcd knows, each on a host of its own, or, where there are none, behind a proxy of its own for the others.
    ///
    /// # Errors
    /// One does not come up, or they do not agree.
    pub async fn start_joined(
        count: usize,
        hosts: Option<Hosts>,
        etcd: &str,
        setup: &Setup,
    ) -> Result<(Cluster, Network)> {
        if let Some(hosts) = hosts {
            let places = Places::on(&hosts, count)?;
            let tcp = places.tcp.clone();
            // Nobody else is in their network.
            let open = "[tls]\ninsecure = true\n[access]\nplain = [\"engine/*\", \"member\", \"operator\"]\n";
            let section = |at: usize| format!("{open}{}", section_of_etcd(at, tcp[at], etcd));
            let cluster = Cluster::launch(places, setup, section).await?;
            return Ok((cluster, Network::Wires(hosts)));
        }
        let places = Places::new(count)?;
        let proxies = places.tcp.iter().map(|tcp| Proxy::to(*tcp, |_| (Fault::None, Fault::None)));
        let proxies = proxies.collect::<Result<Vec<_>>>()?;
        let section = |at: usize| section_of_etcd(at, proxies[at].address(), etcd);
        let cluster = Cluster::launch(places, setup, section).await?;
        Ok((cluster, Network::Proxies(proxies)))
    }

    async fn launch(places: Places, setup: &Setup, section: impl Fn(usize) -> String) -> Result<Cluster> {
        let Places { tcp, http, prefixes } = places;
        let count = tcp.len();
        let setups: Vec<Setup> = (0..count)
            .map(|at| Setup {
                tcp: Some(tcp[at].to_string()),
                metrics: Some(http[at].to_string()),
                sections: format!("{}\n{}", setup.sections, section(at)),
                prefix: prefixes[at].clone(),
                ..setup.clone()
            })
            .collect();
        let servers = setups.iter().map(|setup| Server::start(setup.clone())).collect::<Result<Vec<_>>>()?;
        let cluster = Cluster { servers, tcp, http, setups };
        cluster.agree(&(0..count).collect::<Vec<_>>(), AGREE_MAX).await?;
        Ok(cluster)
    }

    /// The name of a member.
    #[must_use]
    pub fn name(at: usize) -> String {
        format!("pool-{at}")
    }

    /// Its address for clients of other hosts.
    #[must_use]
    pub fn tcp(&self, at: usize) -> String {
        format!("tcp://{}", self.tcp[at])
    }

    /// How it was configured.
    #[must_use]
    pub fn setup(&self, at: usize) -> &Setup {
        &self.setups[at]
    }

    /// A series of its metrics page.
    ///
    /// # Errors
    /// It is not there.
    pub fn value(&self, at: usize, series: &str) -> Result<f64> {
        value(&get_soon(self.http[at], "/metrics")?.1, series)
    }

    /// Waits until these see exactly one another, with one epoch.
    ///
    /// # Errors
    /// They do not within that time; what they see is in the error.
    pub async fn agree(&self, members: &[usize], within: Duration) -> Result<u64> {
        let wanted: Vec<String> = members.iter().map(|at| Cluster::name(*at)).collect();
        let until = Instant::now() + within;
        loop {
            let mut seen = BTreeMap::new();
            for at in members {
                let view = self.standing(*at).await.ok().and_then(|standing| standing.view);
                let view = view.map(|view| {
                    let mut names: Vec<String> =
                        view.members.iter().map(|member| member.name.clone()).collect();
                    names.sort();
                    (view.epoch, names)
                });
                seen.insert(*at, view);
            }
            let first = seen.values().next().cloned().flatten();
            let agreed = seen.values().all(|view| *view == first);
            if let Some((epoch, names)) = first.filter(|(_, names)| agreed && *names == wanted) {
                ensure!(names.len() == members.len());
                return Ok(epoch);
            }
            ensure!(Instant::now() < until, "no agreement on {wanted:?}: {seen:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What a member says of the cluster.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn standing(&self, at: usize) -> Result<StandingReply> {
        Ok(self.client(at).await?.standing(StandingRequest {}).await?.into_inner())
    }

    /// Where a member says that a session is, and how long that took.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn find(
        &self,
        at: usize,
        namespace: &NamespaceId,
        session: &str,
        turns_known: u32,
    ) -> Result<(FindReply, Duration)> {
        let namespace = namespace.0.to_vec().into();
        let asked = FindRequest { namespace, session: session.to_owned(), turns_known, ..Default::default() };
        self.ask(at, asked).await
    }

    /// Who a member says has most of a prefix.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn find_pages(
        &self,
        at: usize,
        namespace: &NamespaceId,
        hashes: &[BlockHash],
    ) -> Result<(FindReply, Duration)> {
        let (namespace, hashes) = (namespace.0.to_vec().into(), pack_hashes(hashes).into());
        self.ask(at, FindRequest { namespace, hashes, ..Default::default() }).await
    }

    /// A client of the Cluster service of a member.
    ///
    /// # Errors
    /// It is not there.
    pub async fn client(&self, at: usize) -> Result<ClusterClient<Channel>> {
        let address = self.tcp.get(at).context("no such member")?;
        Ok(ClusterClient::connect(format!("http://{address}")).await?)
    }

    /// The number by which members name a session's home, as the one at `asked`, which is another, says it.
    ///
    /// # Errors
    /// It does not come to know it, or has the session itself.
    pub async fn number_of_home(&self, asked: usize, namespace: &NamespaceId, session: &str) -> Result<u64> {
        let request = NameSessionRequest {
            namespace: namespace.0.to_vec().into(),
            session: session.to_owned(),
            turn_begins: false,
        };
        let until = Instant::now() + AGREE_MAX;
        loop {
            let said = self.client(asked).await?.name_session(request.clone()).await?.into_inner();
            ensure!(said.not_home && Instant::now() < until, "{said:?}");
            if let Some(home) = said.elsewhere.and_then(|tip| tip.home) {
                return Ok(home.member);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn ask(&self, at: usize, asked: FindRequest) -> Result<(FindReply, Duration)> {
        let mut client = self.client(at).await?;
        let began = Instant::now();
        let found = client.find(asked).await?.into_inner();
        Ok((found, began.elapsed()))
    }
}

fn own_section(at: usize) -> String {
    format!("[cluster]\nname = \"tests\"\nid = \"{}\"\n", Cluster::name(at))
}

/// `seen`: where this member reaches each of them.
fn section_listed(at: usize, seen: &[SocketAddr]) -> String {
    let member =
        |(at, address)| format!("{{ id = \"{}\", endpoint = \"tcp://{address}\" }}", Cluster::name(at));
    let members: Vec<String> = seen.iter().enumerate().map(member).collect();
    format!("{}members = [{}]\n", own_section(at), members.join(", "))
}

fn section_of_etcd(at: usize, endpoint: SocketAddr, etcd: &str) -> String {
    format!("{}endpoint = \"tcp://{endpoint}\"\netcd = [\"{etcd}\"]\n", own_section(at))
}
