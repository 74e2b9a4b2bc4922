//! Opening a directory or S3. Owns: what a store is opened with. Must not know: what it holds.

use crate::error::Error;
use crate::limits::{
    CONNECT_TIMEOUT, REQUEST_TIMEOUT_DEFAULT, RETRIES_DEFAULT, RETRIES_MAX, STORE_REQUESTS_DEFAULT,
    STORE_REQUESTS_MAX,
};
use crate::store::folder::Folder;
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Where an archive is kept.
#[derive(Clone, Debug)]
pub enum Place {
    /// A directory; it is made if it is not there. What was written is on the disk before it is called written.
    Directory(PathBuf),
    /// A bucket of S3, or of what speaks its protocol. Credentials come from the environment (`AWS_ACCESS_KEY_ID` and so on), or from
    /// the machine's role.
    S3 {
        /// The bucket's name.
        bucket: String,
        /// What the names of all objects begin with; may be empty.
        prefix: String,
        /// The address of the service, `http://` or `https://`; none for that of the region.
        endpoint: Option<String>,
        /// The region; none for what the environment says.
        region: Option<String>,
        /// Whether the service refuses to overwrite when it is asked to (`If-None-Match`). Where it does not know how to, objects are
        /// only kept apart by their names, which no two have in common.
        conditional_puts: bool,
    },
    /// Any other store, for tests and those who have one.
    Other(Arc<dyn ObjectStore>),
}

/// How a store is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// Requests in flight at once; 1 to 256.
    pub requests_max: usize,
    /// How long one request may take, a whole pack included.
    pub request_timeout: Duration,
    /// Times that a request is made again after a fault that may pass; up to 10.
    pub retries_max: u32,
}

impl Default for StoreSettings {
    fn default() -> Self {
        StoreSettings {
            requests_max: STORE_REQUESTS_DEFAULT,
            request_timeout: REQUEST_TIMEOUT_DEFAULT,
            retries_max: RETRIES_DEFAULT,
        }
    }
}

impl StoreSettings {
    /// Fails if one is outside its bounds.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.requests_max == 0 || self.requests_max > STORE_REQUESTS_MAX {
            return Err(Error::invalid("requests_max", format!("must be 1 to {STORE_REQUESTS_MAX}")));
        }
        if self.request_timeout.is_zero() {
            return Err(Error::invalid("request_timeout", "must be more than nothing"));
        }
        if self.retries_max > RETRIES_MAX {
            return Err(Error::invalid("retries_max", format!("must be 0 to {RETRIES_MAX}")));
        }
        Ok(())
    }
}

/// A store, opened.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// What all names begin with.
    pub(crate) prefix: String,
    /// Whether it refuses to overwrite when asked to.
    pub(crate) creates_only: bool,
    /// The directory, if it is one.
    pub(crate) directory: Option<PathBuf>,
}

impl Place {
    /// Opens it. Asks a service for nothing yet.
    pub(crate) fn open(&self, settings: &StoreSettings) -> Result<Opened, Error> {
        match self {
            Place::Directory(path) => open_directory(path),
            Place::S3 { .. } => self.open_s3(settings),
            Place::Other(store) => {
                let store = Arc::clone(store);
                Ok(Opened { store, prefix: String::new(), creates_only: true, directory: None })
            }
        }
    }

    fn open_s3(&self, settings: &StoreSettings) -> Result<Opened, Error> {
        let Place::S3 { bucket, prefix, endpoint, region, conditional_puts } = self else {
            return Err(Error::invalid("place", "is not S3"));
        };
        // Requests are made again by us, with our limits, so that a store that is down is known to be within them.
        let once =
            RetryConfig { max_retries: 0, retry_timeout: settings.request_timeout, ..RetryConfig::default() };
        // So are requests ended that take too long: a limit of the client's own would say so in other words.
        let client = ClientOptions::new().with_timeout_disabled().with_connect_timeout(CONNECT_TIMEOUT);
        let plain = endpoint.as_ref().is_some_and(|address| address.starts_with("http://"));
        let puts = if *conditional_puts { S3ConditionalPut::ETagMatch } else { S3ConditionalPut::Disabled };
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_client_options(client.with_allow_http(plain))
            .with_conditional_put(puts)
            .with_retry(once);
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = region {
            builder = builder.with_region(region);
        }
        let store = builder.build().map_err(|fault| Error::invalid("S3", fault.to_string()))?;
        let (prefix, creates_only) = (prefix.clone(), *conditional_puts);
        Ok(Opened { store: Arc::new(store), prefix, creates_only, directory: None })
    }
}

fn open_directory(path: &std::path::Path) -> Result<Opened, Error> {
    let object = || path.display().to_string();
    let store = Folder::open(path).map_err(|fault| match fault.kind() {
        ErrorKind::PermissionDenied => {
            Error::CredentialsRefused { object: object(), fault: fault.to_string() }
        }
        ErrorKind::StorageFull => Error::Full { object: object(), fault: fault.to_string() },
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            let what = format!("the store's place {}", object());
            Error::damaged(what, "it is no directory; name another place, or move what is there")
        }
        _ => Error::Unreachable { object: object(), fault: fault.to_string() },
    })?;
    let directory = Some(path.to_owned());
    Ok(Opened { store: Arc::new(store), prefix: String::new(), creates_only: true, directory })
}
