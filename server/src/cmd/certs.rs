//! `turnkv certs`: an authority and certificates to try TLS with. Owns: their files and names. Must not know: the server.

use crate::access::uri_of_engine;
use crate::limits::{TRIAL_AUTHORITY_DAYS, TRIAL_CERTIFICATE_DAYS, TRIAL_CLOCK_SKEW};
use crate::report::{Advise, misused};
use clap::Args;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{DirBuilder, File};
use std::io::Write as _;
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
        let todo = "say for whom: --server NAME, --engine TENANT, --operator";
        return Err(misused("nothing to make", todo));
    }
    let dir = &arguments.dir;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.advise(|| format!("cannot create {}", dir.display()), "name a directory that you may write to")?;
    let mut names = BTreeSet::new();
    if let Some(twice) = wanted.iter().find(|wanted| !names.insert(wanted.name.as_str())) {
        let todo = "name each tenant once; one that is called `all` and `*` need a directory each";
        return Err(misused(format!("two certificates would be {}.pem", twice.name), todo));
    }
    let taken = wanted.iter().flat_map(|wanted| files(dir, &wanted.name)).find(|path| path.exists());
    if let Some(taken) = taken {
        let todo = "move it away, or name another directory: nothing is overwritten";
        return Err(misused(format!("{} exists", taken.display()), todo));
    }
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

fn wanted(arguments: &CertsArguments) -> anyhow::Result<Vec<Wanted>> {
    let mut wanted = Vec::new();
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
    if arguments.operator {
        wanted.push(Wanted { name: "operator".to_owned(), params: client("turnkv://operator".to_owned())? });
    }
    Ok(wanted)
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

    #[test]
    fn what_would_be_one_file_twice_is_refused_before_anything_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let make = |engine: &[&str]| {
            let engine = engine.iter().map(|tenant| (*tenant).to_owned()).collect();
            run(&CertsArguments { dir: dir.path().into(), server: Vec::new(), engine, operator: true })
        };
        let made = || std::fs::read_dir(dir.path()).unwrap().count();
        for engine in [["acme", "acme"], ["all", "*"]] {
            let said = make(&engine).unwrap_err().to_string();
            assert!(said.contains("two certificates would be engine-"), "{said}");
            assert_eq!(made(), 0);
        }
        make(&["acme", "*"]).unwrap();
        assert_eq!(made(), 8, "the authority's, two engines' and an operator's, with their keys");
    }
}
