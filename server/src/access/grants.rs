//! What somebody may do: roles, and the tenants whose pages an engine reaches. Owns: the words for these, the same in a
//! certificate's URI names (`turnkv://engine/acme`) and in `[access]` (`engine/acme`). Must not know: who was granted it.

use std::collections::BTreeSet;
use std::fmt;
use turnkv_proto::limits::TENANT_BYTES_MAX;

/// What URI names of ours begin with; a certificate may have others beside them.
const SCHEME: &str = "turnkv://";
/// Names that one caller may have.
const GRANTS_MAX: usize = 256;

/// What somebody may do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Grants {
    /// Every verb, of every tenant.
    pub(super) operator: bool,
    /// What servers of one cluster ask of one another.
    pub(super) member: bool,
    /// What engines ask, of these tenants.
    pub(super) tenants: Tenants,
}

/// Whose pages an engine reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tenants {
    /// These; none: it is no engine.
    These(BTreeSet<String>),
    /// All, also those that are not known yet.
    All,
}

impl Default for Tenants {
    fn default() -> Tenants {
        Tenants::These(BTreeSet::new())
    }
}

/// Which tenants a list may tell of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen<'a> {
    /// All.
    All,
    /// These only.
    These(&'a BTreeSet<String>),
}

/// Words that grant nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GrantError {
    /// No such role.
    #[error("`{0}` is neither operator, member, engine/<tenant> nor engine/*")]
    Unknown(String),
    /// A tenant's name that no namespace can have.
    #[error("`{0}` names no tenant: at most {TENANT_BYTES_MAX} bytes of UTF-8, a `%` as %25")]
    Tenant(String),
    /// More names than anybody needs.
    #[error("more than {GRANTS_MAX} names for one caller")]
    Many,
}

impl Grants {
    /// Every verb, of every tenant.
    pub(crate) fn operator() -> Grants {
        Grants { operator: true, ..Grants::default() }
    }

    /// What engines ask, of all tenants.
    pub(crate) fn every_engine() -> Grants {
        Grants { tenants: Tenants::All, ..Grants::default() }
    }

    /// What these words grant together.
    pub(crate) fn of_words<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Grants, GrantError> {
        let mut grants = Grants::default();
        for (at, word) in words.into_iter().enumerate() {
            if at == GRANTS_MAX {
                return Err(GrantError::Many);
            }
            grants.add(word)?;
        }
        Ok(grants)
    }

    /// What a certificate's URI names grant; those of other schemes say nothing here.
    pub(crate) fn of_uris<'a>(uris: impl IntoIterator<Item = &'a str>) -> Result<Grants, GrantError> {
        Grants::of_words(uris.into_iter().filter_map(|uri| uri.strip_prefix(SCHEME)))
    }

    /// The same and what another one grants.
    pub(crate) fn and(mut self, other: &Grants) -> Grants {
        self.operator |= other.operator;
        self.member |= other.member;
        match (&mut self.tenants, &other.tenants) {
            (Tenants::These(own), Tenants::These(others)) => own.extend(others.iter().cloned()),
            (own, _) => *own = Tenants::All,
        }
        self
    }

    /// Whether nothing is granted at all.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Grants::default()
    }

    /// Which tenants a list may tell of.
    pub(super) fn seen(&self) -> Seen<'_> {
        match &self.tenants {
            Tenants::These(tenants) if !self.operator => Seen::These(tenants),
            _ => Seen::All,
        }
    }

    /// The words that grant as much.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        words.extend(self.operator.then(|| "operator".to_owned()));
        words.extend(self.member.then(|| "member".to_owned()));
        match &self.tenants {
            Tenants::All => words.push("engine/*".to_owned()),
            Tenants::These(tenants) => {
                words.extend(tenants.iter().map(|tenant| format!("engine/{}", spelled(tenant))))
            }
        }
        words
    }

    fn add(&mut self, word: &str) -> Result<(), GrantError> {
        match word {
            "operator" => self.operator = true,
            "member" => self.member = true,
            "engine/*" => self.tenants = Tenants::All,
            _ => {
                let tenant = word.strip_prefix("engine/").ok_or_else(|| GrantError::Unknown(cut(word)))?;
                let tenant = tenant_of(tenant).ok_or_else(|| GrantError::Tenant(cut(word)))?;
                if let Tenants::These(tenants) = &mut self.tenants {
                    tenants.insert(tenant);
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Grants {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_nothing() { text.write_str("nothing") } else { text.write_str(&self.words().join(", ")) }
    }
}

/// The URI name that makes an engine of a tenant's (`*`: of every tenant's), and a name for its files.
pub(crate) fn uri_of_engine(tenant: &str) -> Result<(String, String), GrantError> {
    let (word, name) = match tenant {
        "*" => ("engine/*".to_owned(), "engine-all".to_owned()),
        tenant => (format!("engine/{}", spelled(tenant)), format!("engine-{}", spelled(tenant))),
    };
    Grants::of_words([word.as_str()])?;
    Ok((format!("{SCHEME}{word}"), name))
}

/// A tenant's name as a URI spells it: `%` and two digits stand for a byte, a `*` must be spelled so too.
fn tenant_of(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, others @ ..] = rest {
        rest = match (first, others) {
            (b'%', [high, low, after @ ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                bytes.push((digit(high)? * 16 + digit(low)?) as u8);
                after
            }
            (b'%' | b'*' | b'/', _) => return None,
            (byte, after) => {
                bytes.push(*byte);
                after
            }
        };
    }
    String::from_utf8(bytes).ok().filter(|tenant| tenant.len() <= TENANT_BYTES_MAX)
}

/// The inverse of [`tenant_of`].
fn spelled(tenant: &str) -> String {
    tenant.bytes().fold(String::new(), |mut text, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(byte))
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
        text
    })
}

/// As much of a word as a message may hold; what is no plain letter in it cannot lead a log astray.
fn cut(word: &str) -> String {
    word[..word.floor_char_boundary(2 * TENANT_BYTES_MAX)].escape_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::{GRANTS_MAX, GrantError, Grants, Seen};

    #[test]
    fn words_and_uris_grant_the_same_and_come_back() {
        let of = |words: &[&str]| Grants::of_words(words.iter().copied()).unwrap();
        for words in [
            vec!["operator"],
            vec!["member", "engine/acme"],
            vec!["engine/*"],
            vec!["engine/"],
            vec!["engine/a%20b%2Fc"],
        ] {
            let grants = of(&words);
            assert_eq!(grants.words(), words);
            let uris: Vec<String> = words.iter().map(|word| format!("turnkv://{word}")).collect();
            let others = ["spiffe://elsewhere/x", "https://a/turnkv://operator"];
            assert_eq!(Grants::of_uris(uris.iter().map(String::as_str).chain(others)).unwrap(), grants);
        }
        assert!(
            matches!(of(&["engine/a%20b%2Fc"]).seen(), Seen::These(tenants) if tenants.contains("a b/c"))
        );
        assert!(Grants::of_uris(["spiffe://x/operator"]).unwrap().is_nothing());
    }

    #[test]
    fn what_is_no_grant_is_refused_whole() {
        for word in [
            "",
            "Operator",
            "root",
            "engine",
            "engine/%",
            "engine/%zz",
            "engine/a*",
            "engine/a/b",
            "engine/%ff",
        ] {
            assert!(Grants::of_words(["operator", word]).is_err(), "{word}");
        }
        let long = format!("engine/{}", "x".repeat(129));
        assert!(matches!(Grants::of_words([long.as_str()]), Err(GrantError::Tenant(_))));
        let said = Grants::of_words(["root\n all is well"]).unwrap_err().to_string();
        assert!(said.starts_with("`root\\n all is well` is neither"), "{said}");
        let many = vec!["engine/a"; GRANTS_MAX + 1];
        assert_eq!(Grants::of_words(many), Err(GrantError::Many));
    }
}
