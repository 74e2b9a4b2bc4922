//! `turnkv certs`: an authority and certificates to try TLS with. Owns: their files and names. Must not know: the server.

use crate::access::uri_of_engine;
use crate::limits::{FILE_NAME_BYTES_MAX, TRIAL_AUTHORITY_DAYS, TRIAL_CERTIFICATE_DAYS, TRIAL_CLOCK_SKEW};
use crate::report::{Advise, misused};
use clap::Args;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::DnsName;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{DirBuilder, File};
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(86_400);
const AUTHORITY: &str = "ca";

/// What to make.
#[derive(Args)]
pub(crate) struct CertsArguments {
    /// Where the files go; an authority that is there already signs what is new.
    dir: PathBuf,
    /// Names and addresses by which clients reach the server.
    #[arg(long, num_args = 1.., value_name = "NAME")]
    server: Vec<String>,
    /// Tenants whose pages an engine may reach, in one certificate each: a name, or `*` for all.
    #[arg(long, num_args = 1.., value_name = "TENANT")]
    engine: Vec<String>,
    /// Members of a cluster, in one certificate each, which is the server's as well: it names the host, and says what members may do.
    #[arg(long, num_args = 1.., value_name = "NAME")]
    member: Vec<String>,
    /// Also one for an operator.
    #[arg(long)]
    operator: bool,
}

/// A certificate to be made.
struct Wanted {
    /// Of its files: `<name>.pem` and `<name>-key.pem`.
    name: String,
    params: CertificateParams,
}

/// Makes what is not there yet.
pub(crate) fn run(arguments: &CertsArguments) -> anyhow::Result<()> {
    let wanted = wanted(arguments)?;
    if wanted.is_empty() {
        let todo = "say for whom: --server NAME, --engine TENANT, --member NAME, --operator";
        return Err(misused("nothing to make", todo));
    }
    let dir = &arguments.dir;
    have_files_of_their_own(dir, &wanted)?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.advise(|| format!("cannot create {}", dir.display()), "name a directory that you may write to")?;
    let authority = authority(dir)?;
    let mut text = String::new();
    for Wanted { name, mut params } in wanted {
        let key = KeyPair::generate()?;
        (params.not_before, params.not_after) = times(TRIAL_CERTIFICATE_DAYS);
        params.distinguished_name.push(DnType::CommonName, name.as_str());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        write_pair(dir, &name, &params.signed_by(&key, &authority)?.pem(), &key)?;
        writeln!(text, "{}", dir.join(format!("{name}.pem")).display()).unwrap_or_default();
    }
    writeln!(
        text,
        "for {TRIAL_CERTIFICATE_DAYS} days; keys beside them, the authority is {}",
        dir.join("ca.pem").display()
    )
    .unwrap_or_default();
    super::print(&text)?;
    Ok(())
}

/// Checks that every file can be made: each has a name that a file can have, that no other one has, and that is not there yet.
fn have_files_of_their_own(dir: &Path, wanted: &[Wanted]) -> anyhow::Result<()> {
    let mut paths = BTreeSet::new();
    for path in wanted.iter().flat_map(|wanted| files(dir, &wanted.name)) {
        let name = path.file_name().unwrap_or_default().to_owned();
        if name.len() > FILE_NAME_BYTES_MAX {
            let todo = "have certificates of long tenants signed by an authority of your own";
            return Err(misused(format!("{} is too long for a file's name", name.display()), todo));
        }
        if path.exists() {
            let todo = "move it away, or name another directory: nothing is overwritten";
            return Err(misused(format!("{} exists", path.display()), todo));
        }
        if !paths.insert(path) {
            let todo = "name each tenant once; `all` and `*`, or `x` and `x-key`, need a directory each";
            return Err(misused(format!("two files would be {}", name.display()), todo));
        }
    }
    Ok(())
}

fn wanted(arguments: &CertsArguments) -> anyhow::Result<Vec<Wanted>> {
    let mut wanted = Vec::new();
    if let Some(wrong) = arguments.server.iter().find(|name| !names_a_server(name)) {
        let todo = "name hosts or IP addresses after --server; `*.` may stand before a domain";
        return Err(misused(format!("`{wrong}` is no name that a server can have"), todo));
    }
    if !arguments.server.is_empty() {
        let mut params = CertificateParams::new(arguments.server.clone()).advise(
            || "a name that no certificate can have".to_owned(),
            "name hosts or IP addresses after --server",
        )?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        wanted.push(Wanted { name: "server".to_owned(), params });
    }
    for tenant in &arguments.engine {
        let (uri, name) = uri_of_engine(tenant).advise(
            || format!("`{tenant}` is no tenant"),
            "name tenants as engines do, or `*` for all of them",
        )?;
        wanted.push(Wanted { name, params: client(uri)? });
    }
    for name in &arguments.member {
        wanted.push(member(name)?);
    }
    if arguments.operator {
        wanted.push(Wanted { name: "operator".to_owned(), params: client("turnkv://operator".to_owned())? });
    }
    Ok(wanted)
}

/// A member is a server to the others and their client: one file is enough for both, so that one is renewed at a time.
fn member(name: &str) -> anyhow::Result<Wanted> {
    if !names_a_server(name) || name.contains('*') {
        let todo = "name a host or an IP address after --member, that by which the others reach it";
        return Err(misused(format!("`{name}` is no name that a member can have"), todo));
    }
    let mut params = CertificateParams::new(vec![name.to_owned()]).advise(
        || "a name that no certificate can have".to_owned(),
        "name hosts or IP addresses after --member",
    )?;
    for uri in ["turnkv://member", "turnkv://engine/*"] {
        params.subject_alt_names.push(SanType::URI(uri.try_into()?));
    }
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    Ok(Wanted { name: format!("member-{name}"), params })
}

/// Whether clients can find a server by this name of its certificate.
fn names_a_server(name: &str) -> bool {
    if name.parse::<IpAddr>().is_ok() {
        return true;
    }
    // In place of a whole label only, and with two labels after it: to clients any other `*` is no name.
    let (host, is_any) = name.strip_prefix("*.").map_or((name, false), |domain| (domain, true));
    DnsName::try_from(host).is_ok() && !host.ends_with('.') && (!is_any || host.contains('.'))
}

fn client(uri: String) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.subject_alt_names = vec![SanType::URI(uri.try_into()?)];
    Ok(params)
}

/// The authority of a directory; a new one where there is none.
fn authority(dir: &Path) -> anyhow::Result<Issuer<'static, KeyPair>> {
    let [cert, key] = files(dir, AUTHORITY);
    if cert.exists() || key.exists() {
        let todo = "keep ca.pem and ca-key.pem together, or name another directory";
        let read = |path: &Path| {
            std::fs::read_to_string(path).advise(|| format!("cannot read {}", path.display()), todo)
        };
        let unusable = || format!("{} and its key are no authority", cert.display());
        let key = KeyPair::from_pem(&read(&key)?).advise(unusable, todo)?;
        return Issuer::from_ca_cert_pem(&read(&cert)?, key).advise(unusable, todo);
    }
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = times(TRIAL_AUTHORITY_DAYS);
    params.distinguished_name.push(DnType::CommonName, "TurnKV, to try with");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    write_pair(dir, AUTHORITY, &params.self_signed(&key)?.pem(), &key)?;
    Ok(Issuer::new(params, key))
}

/// From a little before now on, for so many days.
fn times<Time: From<SystemTime>>(days: u32) -> (Time, Time) {
    let now = SystemTime::now();
    ((now - TRIAL_CLOCK_SKEW).into(), (now + DAY * days).into())
}

fn files(dir: &Path, name: &str) -> [PathBuf; 2] {
    [dir.join(format!("{name}.pem")), dir.join(format!("{name}-key.pem"))]
}

fn write_pair(dir: &Path, name: &str, cert: &str, key: &KeyPair) -> anyhow::Result<()> {
    for (path, text) in files(dir, name).iter().zip([cert, &key.serialize_pem()]) {
        let file = File::options().write(true).create_new(true).mode(0o600).open(path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.advise(
            || format!("cannot write {}", path.display()),
            "nothing is overwritten: name another directory",
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{CertsArguments, run};
    use std::path::Path;

    fn make(dir: &Path, server: &[&str], engine: &[&str]) -> anyhow::Result<()> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        run(&CertsArguments {
            dir: dir.into(),
            server: owned(server),
            engine: owned(engine),
            member: Vec::new(),
            operator: true,
        })
    }

    #[test]
    fn what_would_be_one_file_twice_is_refused_before_anything_is_made() {
        let made = tempfile::tempdir().unwrap();
        let dir = made.path().join("certs");
        for engine in [["acme", "acme"], ["all", "*"], ["acme", "acme-key"], ["all-key", "*"]] {
            let said = make(&dir, &[], &engine).unwrap_err().to_string();
            assert!(said.contains("two files would be engine-"), "{said}");
            assert!(!dir.exists());
        }
        make(&dir, &[], &["acme", "*"]).unwrap();
        let files = || std::fs::read_dir(&dir).unwrap().count();
        assert_eq!(files(), 8, "the authority's, two engines' and an operator's, with their keys");
        assert!(make(&dir, &["pool.example"], &[]).unwrap_err().to_string().contains("operator.pem exists"));
        assert_eq!(files(), 8);
    }

    #[test]
    fn a_tenant_has_files_of_its_own_whatever_it_is_called() {
        let made = tempfile::tempdir().unwrap();
        let dir = made.path().join("certs");
        let tenants = ["ca", "server", "operator", "x-key", "a/b", "..", "../x", ".", "", "a b", "%20"];
        make(&dir, &["pool.example"], &tenants).unwrap();
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2 * (tenants.len() + 3));
        assert_eq!(std::fs::read_dir(made.path()).unwrap().count(), 1, "nothing is beside it");
        let (other, long) = (made.path().join("other"), "/".repeat(100));
        let said = make(&other, &[], &[&long]).unwrap_err().to_string();
        assert!(said.contains("too long for a file's name"), "{said}");
        assert!(!other.exists());
    }

    #[test]
    fn a_server_has_names_by_which_clients_can_find_it() {
        let made = tempfile::tempdir().unwrap();
        let dir = made.path().join("certs");
        let long = "x".repeat(300);
        for name in [
            "",
            "a b",
            "-x-",
            &long,
            "*",
            "*.",
            "*.com",
            "x.*.com",
            "pool.example.",
            "a..b",
            "1.2.3",
            "p:1",
            "::g",
        ] {
            let said = make(&dir, &["pool.example", name], &[]).unwrap_err().to_string();
            assert!(said.contains("no name that a server can have"), "{name}: {said}");
            assert!(!dir.exists());
        }
        make(&dir, &["pool", "pool.example", "*.pool.example", "10.0.0.5", "2001:db8::1"], &[]).unwrap();
    }
}
