//! What is said of files that cannot be used, and what a certificate says.

use super::*;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
    date_time_ymd,
};
use rustls::pki_types::UnixTime;
use std::path::Path;

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn written(dir: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn params() -> CertificateParams {
    CertificateParams::new(vec!["pool.example".to_owned()]).unwrap()
}

/// A certificate for this only.
fn for_only(purpose: ExtendedKeyUsagePurpose) -> CertificateParams {
    let mut params = params();
    params.extended_key_usages = vec![purpose];
    params
}

fn load(files: &ServerFiles) -> Result<ServerTls, TlsError> {
    files.load(&files.read()?, &[b"h2"], UnixTime::now())
}

#[test]
fn a_set_of_files_is_checked_before_it_is_used() {
    let (dir, authority, key) = (tempfile::tempdir().unwrap(), authority(), KeyPair::generate().unwrap());
    let at = |name: &str, text: &str| written(dir.path(), name, text);
    let cert = at("cert", &params().signed_by(&key, &authority).unwrap().pem());
    let good =
        ServerFiles { cert, key: at("key", &key.serialize_pem()), client_ca: at("ca", &authority.pem()) };
    assert!(load(&good).unwrap().not_after_s > 0);
    let mut times = params();
    times.not_after = date_time_ymd(2001, 1, 1);
    let expired = at("old", &times.clone().signed_by(&key, &authority).unwrap().pem());
    (times.not_before, times.not_after) = (date_time_ymd(4000, 1, 1), date_time_ymd(4001, 1, 1));
    let early = at("early", &times.signed_by(&key, &authority).unwrap().pem());
    let other = at("other", &KeyPair::generate().unwrap().serialize_pem());
    let (empty, long) = (at("empty", "no PEM here\n"), at("long", &"x".repeat(2 << 20)));
    let torn = at("torn", &authority.pem()[..120]);
    let clients = at(
        "clients",
        &for_only(ExtendedKeyUsagePurpose::ClientAuth).signed_by(&key, &authority).unwrap().pem(),
    );
    let any = at("any", &for_only(ExtendedKeyUsagePurpose::Any).signed_by(&key, &authority).unwrap().pem());
    let cases: [(ServerFiles, &str); 10] = [
        (ServerFiles { cert: clients, ..good.clone() }, "lacks serverAuth"),
        (ServerFiles { cert: any, ..good.clone() }, "lacks serverAuth"),
        (ServerFiles { cert: dir.path().join("missing"), ..good.clone() }, "cannot read"),
        (ServerFiles { cert: expired, ..good.clone() }, "expired"),
        (ServerFiles { cert: early, ..good.clone() }, "not valid for another"),
        (ServerFiles { key: other, ..good.clone() }, "is not that of the certificate"),
        (ServerFiles { cert: empty.clone(), ..good.clone() }, "holds no certificate"),
        (ServerFiles { key: empty.clone(), ..good.clone() }, "holds no private key"),
        (ServerFiles { client_ca: torn, ..good.clone() }, "torn"),
        (ServerFiles { client_ca: long, ..good.clone() }, "longer than"),
    ];
    for (files, words) in cases {
        let said = load(&files).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(said.contains(words), "{words}: {said}");
    }
    let digest = |files: &ServerFiles| files.read().unwrap().digest();
    assert_ne!(digest(&good), digest(&ServerFiles { client_ca: empty, ..good.clone() }));
    assert_eq!(digest(&good), digest(&good));
}

#[test]
fn a_client_needs_an_authority_and_a_key_with_its_certificate() {
    let (dir, authority, pair) = (tempfile::tempdir().unwrap(), authority(), KeyPair::generate().unwrap());
    let at = |name: &str, text: &str| Some(written(dir.path(), name, text));
    let cert = at("cert", &params().signed_by(&pair, &authority).unwrap().pem());
    let (ca, key) = (at("ca", &authority.pem()), at("key", &pair.serialize_pem()));
    let of = |ca: &Option<_>, cert: &Option<_>, key: &Option<_>| {
        let files = TlsConfig { ca: ca.clone(), cert: cert.clone(), key: key.clone(), server_name: None };
        client_config(&files, &[b"h2"]).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(of(&ca, &cert, &key), Ok(()));
    assert_eq!(of(&ca, &None, &None), Ok(()));
    assert!(of(&None, &cert, &key).unwrap_err().contains("tls_ca"));
    assert!(of(&ca, &cert, &None).unwrap_err().contains("together"));
    assert!(of(&ca, &cert, &ca).unwrap_err().contains("no private key"));
    let of_purpose = |purpose| {
        let cert = for_only(purpose).signed_by(&pair, &authority).unwrap();
        of(&ca, &at("purpose", &cert.pem()), &key)
    };
    assert_eq!(of_purpose(ExtendedKeyUsagePurpose::ClientAuth), Ok(()));
    assert!(of_purpose(ExtendedKeyUsagePurpose::ServerAuth).unwrap_err().contains("lacks clientAuth"));
}

#[test]
fn a_certificate_says_names_and_time_and_not_too_many() {
    let with = |uris: usize| {
        let mut params = params();
        params.distinguished_name.push(rcgen::DnType::CommonName, "engine-7");
        params.not_after = date_time_ymd(2030, 1, 2);
        let uri = |at: usize| SanType::URI(format!("turnkv://engine/{at}").try_into().unwrap());
        params.subject_alt_names.extend((0..uris).map(uri));
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        certificate_facts(certificate.der())
    };
    let facts = with(2).unwrap();
    assert_eq!(facts.uris, ["turnkv://engine/0", "turnkv://engine/1"]);
    assert_eq!((facts.name.as_str(), facts.not_after_s), ("engine-7", 1_893_542_400));
    assert!(with(257).unwrap_err().to_string().contains("more than 256"));
    for bytes in [&b""[..], b"\x30\x82\xff\xff", &[0x30; 4_000], &[0xff; 100]] {
        assert!(certificate_facts(bytes).is_err());
    }
}

/// A certificate of its own in the bundle lets its owner in, and nobody whom he signs.
#[test]
fn only_an_authority_vouches_for_others() {
    let client = |name: &str| {
        let mut params = params();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params
    };
    let authority = authority();
    let own = CertifiedIssuer::self_signed(client("own"), KeyPair::generate().unwrap()).unwrap();
    let mut odd = client("odd");
    odd.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    odd.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
    let odd = CertifiedIssuer::self_signed(odd, KeyPair::generate().unwrap()).unwrap();
    let signed = |by: &CertifiedIssuer<'static, KeyPair>| {
        client("leaf").signed_by(&KeyPair::generate().unwrap(), by).unwrap().der().clone()
    };
    let (all, alone) = ([authority.pem(), own.pem(), odd.pem()].concat(), own.pem());
    for (bundle, of_authority) in [(all, true), (alone, false)] {
        let (dir, key) = (tempfile::tempdir().unwrap(), KeyPair::generate().unwrap());
        let at = |name: &str, text: &str| written(dir.path(), name, text);
        let cert = at("cert", &params().signed_by(&key, &authority).unwrap().pem());
        let files = ServerFiles { cert, key: at("key", &key.serialize_pem()), client_ca: at("ca", &bundle) };
        let set = load(&files).unwrap();
        let accepts = |shown: &[_]| set.accepts(shown, UnixTime::now()).is_ok();
        assert!(accepts(&[own.der().clone()]));
        assert_eq!(accepts(&[signed(&authority)]), of_authority);
        assert!(!accepts(&[signed(&own)]) && !accepts(&[signed(&own), own.der().clone()]));
        assert!(!accepts(&[signed(&odd)]), "it may not sign certificates");
    }
}

/// Whose names cannot be read would be granted less than its names say: it is refused in the handshake, where it can be told so.
#[test]
fn a_client_that_cannot_be_read_whole_or_is_none_is_not_accepted() {
    let (dir, authority, key) = (tempfile::tempdir().unwrap(), authority(), KeyPair::generate().unwrap());
    let at = |name: &str, text: &str| written(dir.path(), name, text);
    let cert = at("cert", &params().signed_by(&key, &authority).unwrap().pem());
    let files =
        ServerFiles { cert, key: at("key", &key.serialize_pem()), client_ca: at("ca", &authority.pem()) };
    let set = load(&files).unwrap();
    let accepts = |purpose, names: usize, bytes: usize| {
        let mut params = for_only(purpose);
        let uri = |at: usize| SanType::URI(format!("turnkv://engine/{at:0>bytes$}").try_into().unwrap());
        params.subject_alt_names.extend((0..names).map(uri));
        let shown = params.signed_by(&KeyPair::generate().unwrap(), &authority).unwrap().der().clone();
        set.accepts(&[shown], UnixTime::now()).map_err(|error| server_words(&error))
    };
    let client = || ExtendedKeyUsagePurpose::ClientAuth;
    assert_eq!(accepts(client(), 256, 1), Ok(()));
    for (names, bytes) in [(257, 1), (1, 512)] {
        let said = accepts(client(), names, bytes).unwrap_err();
        assert!(said.contains("more than 256 URI names"), "{said}");
    }
    accepts(ExtendedKeyUsagePurpose::ServerAuth, 1, 1).unwrap_err();
}
