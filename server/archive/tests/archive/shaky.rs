//! A store in memory that does what it is told to: dies at any request, is slow, full, down, forgets, or lies; and whose time passes
//! as it is told to. Must not know: archives.

use futures_util::stream::{BoxStream, once};
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How the request at which a store dies ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// It is not done.
    Before,
    /// It is done, and nobody learns of it.
    After,
    /// Half of what was to be written is there, under its name. What writes nothing is not done.
    Half,
}

/// What a store is told to do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    /// Dies at this request, counted from now, and answers none after it.
    pub(crate) dies_at: Option<(u64, Death)>,
    pub(crate) dead: bool,
    /// Every request takes so long.
    pub(crate) delay: Option<Duration>,
    /// Others come first, now and then.
    pub(crate) dawdles: bool,
    pub(crate) full: bool,
    pub(crate) down: bool,
    pub(crate) denied: bool,
    /// Says that it wrote what it did not, if the name has this in it.
    pub(crate) forgets: Option<&'static str>,
    /// Says that a name is taken that is not, so many times.
    pub(crate) pretends: u32,
    /// Lists leave out names that have this in them.
    pub(crate) hides: Option<&'static str>,
    /// Fails where more bytes are asked for than an object has.
    pub(crate) short_sighted: bool,
    /// Answers with a wrong bit for names that have this in them, so many times.
    pub(crate) garbles: Option<(&'static str, u32)>,
}

struct Shared {
    inner: InMemory,
    rules: Mutex<Rules>,
    requests: Mutex<Vec<String>>,
    /// How much time had passed when an object was written.
    written: Mutex<HashMap<Path, Duration>>,
    passed: Mutex<Duration>,
    /// Bytes that are being written, and the most there were.
    writing: Mutex<(u64, u64)>,
}

/// The store. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Shaky(Arc<Shared>);

impl Shaky {
    pub(crate) fn new() -> Shaky {
        Shaky(Arc::new(Shared {
            inner: InMemory::new(),
            rules: Mutex::default(),
            requests: Mutex::default(),
            written: Mutex::default(),
            passed: Mutex::default(),
            writing: Mutex::default(),
        }))
    }

    /// Another store with the same objects.
    pub(crate) fn copy(&self) -> Shaky {
        Shaky(Arc::new(Shared {
            inner: self.0.inner.fork(),
            rules: Mutex::default(),
            requests: Mutex::default(),
            written: Mutex::new(self.0.written.lock().unwrap().clone()),
            passed: Mutex::new(*self.0.passed.lock().unwrap()),
            writing: Mutex::default(),
        }))
    }

    /// Tells it what to do from now on.
    pub(crate) fn tell(&self, rules: Rules) {
        self.0.requests.lock().unwrap().clear();
        *self.0.rules.lock().unwrap() = rules;
    }

    /// Requests since it was told something.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.0.requests.lock().unwrap().clone()
    }

    /// The most bytes that were being written at once.
    pub(crate) fn writing_max(&self) -> u64 {
        self.0.writing.lock().unwrap().1
    }

    /// Time passes.
    pub(crate) fn pass(&self, time: Duration) {
        *self.0.passed.lock().unwrap() += time;
    }

    /// All names, with the bytes of each.
    pub(crate) async fn names(&self) -> Vec<(String, u64)> {
        let listed: Vec<ObjectMeta> = self.0.inner.list(None).try_collect().await.unwrap();
        let mut names: Vec<_> =
            listed.into_iter().map(|meta| (meta.location.to_string(), meta.size)).collect();
        names.sort();
        names
    }

    /// Names with a word in them.
    pub(crate) async fn names_with(&self, word: &str) -> Vec<String> {
        self.names().await.into_iter().map(|(name, _)| name).filter(|name| name.contains(word)).collect()
    }

    pub(crate) async fn bytes_with(&self, word: &str) -> u64 {
        self.names().await.into_iter().filter(|(name, _)| name.contains(word)).map(|(_, bytes)| bytes).sum()
    }

    pub(crate) async fn read(&self, name: &str) -> Vec<u8> {
        self.0.inner.get(&Path::from(name)).await.unwrap().bytes().await.unwrap().to_vec()
    }

    pub(crate) async fn write(&self, name: &str, bytes: Vec<u8>) {
        self.0.inner.put(&Path::from(name), bytes.into()).await.unwrap();
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.0.inner.delete(&Path::from(name)).await.unwrap();
    }

    fn rules(&self) -> Rules {
        self.0.rules.lock().unwrap().clone()
    }

    /// Counts a request; how it dies, if it does.
    async fn gate(&self, what: &str, at: &str) -> Result<Option<Death>> {
        let (rules, count) = {
            let mut requests = self.0.requests.lock().unwrap();
            requests.push(format!("{what} {at}"));
            (self.rules(), requests.len() as u64)
        };
        for _ in 0..if rules.dawdles { count * 7 % 5 } else { 0 } {
            tokio::task::yield_now().await;
        }
        if let Some(delay) = rules.delay {
            tokio::time::sleep(delay).await;
        }
        if rules.denied {
            return Err(Error::PermissionDenied { path: at.to_owned(), source: "no".into() });
        }
        if rules.down || rules.dead {
            return Err(failed("it is down"));
        }
        match rules.dies_at {
            Some((dies_at, death)) if count >= dies_at => {
                self.0.rules.lock().unwrap().dead = true;
                if death == Death::Before { Err(failed("it died")) } else { Ok(Some(death)) }
            }
            _ => Ok(None),
        }
    }

    /// Whether the next answer for this name is wrong.
    fn garbles(&self, at: &str) -> bool {
        let mut rules = self.0.rules.lock().unwrap();
        match &mut rules.garbles {
            Some((word, left)) if at.contains(*word) && *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }

    fn shift(&self, mut meta: ObjectMeta) -> ObjectMeta {
        let written = self.0.written.lock().unwrap().get(&meta.location).copied().unwrap_or_default();
        meta.last_modified += written;
        meta
    }
}

/// An answer with one bit turned in its last byte.
async fn garbled(got: GetResult) -> Result<GetResult> {
    let (meta, range, attributes, extensions) =
        (got.meta.clone(), got.range.clone(), got.attributes.clone(), got.extensions.clone());
    let mut bytes = got.bytes().await?.to_vec();
    if let Some(last) = bytes.last_mut() {
        *last ^= 4;
    }
    let payload = GetResultPayload::Stream(once(async { Ok(bytes.into()) }).boxed());
    Ok(GetResult { payload, meta, range, attributes, extensions })
}

fn failed(why: &'static str) -> Error {
    Error::Generic { store: "Shaky", source: why.into() }
}

fn died<T>(death: Option<Death>, done: T) -> Result<T> {
    if death.is_some() { Err(failed("it died")) } else { Ok(done) }
}

impl fmt::Debug for Shaky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shaky")
    }
}

impl fmt::Display for Shaky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shaky")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Shaky {
    async fn put_opts(&self, at: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let bytes = payload.content_length() as u64;
        {
            let mut writing = self.0.writing.lock().unwrap();
            writing.0 += bytes;
            writing.1 = writing.1.max(writing.0);
        }
        let gate = self.gate("put", at.as_ref()).await;
        self.0.writing.lock().unwrap().0 -= bytes;
        let death = gate?;
        let mut rules = self.rules();
        if rules.full {
            let source = Box::new(std::io::Error::from(std::io::ErrorKind::StorageFull));
            return Err(Error::Generic { store: "Shaky", source });
        }
        if rules.pretends > 0 && opts.mode == PutMode::Create {
            rules.pretends -= 1;
            *self.0.rules.lock().unwrap() = rules;
            return Err(Error::AlreadyExists { path: at.to_string(), source: "so it says".into() });
        }
        if rules.forgets.is_some_and(|word| at.as_ref().contains(word)) {
            return Ok(PutResult { e_tag: None, version: None, extensions: Default::default() });
        }
        let payload = match death {
            Some(Death::Half) => {
                let whole: Vec<u8> = payload.iter().flat_map(|piece| piece.to_vec()).collect();
                whole[..whole.len() / 2].to_vec().into()
            }
            _ => payload,
        };
        let passed = *self.0.passed.lock().unwrap();
        // Known before it is there: nobody sees it older than it is. A name that is taken is not written again.
        let is_new = self.0.inner.head(at).await.is_err();
        if is_new || opts.mode != PutMode::Create {
            self.0.written.lock().unwrap().insert(at.clone(), passed);
        }
        let put = self.0.inner.put_opts(at, payload, opts).await?;
        died(death, put)
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(failed("nobody writes in parts"))
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        let death = self.gate(if options.head { "head" } else { "get" }, at.as_ref()).await?;
        let is_head = options.head;
        if let (true, Some(range)) = (self.rules().short_sighted, &options.range) {
            let bytes = self.0.inner.head(at).await?.size;
            let is_beyond = match range {
                GetRange::Bounded(range) => range.end > bytes,
                GetRange::Offset(from) => *from > bytes,
                GetRange::Suffix(length) => *length > bytes,
            };
            if is_beyond {
                return Err(failed("there are fewer bytes"));
            }
        }
        let mut got = self.0.inner.get_opts(at, options).await?;
        if !is_head && self.garbles(at.as_ref()) {
            got = garbled(got).await?;
        }
        got.meta = self.shift(got.meta);
        died(death, got)
    }

    fn delete_stream(&self, places: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let deletes = places.then(move |place| {
            let store = store.clone();
            async move {
                let place = place?;
                let death = store.gate("delete", place.as_ref()).await?;
                if death != Some(Death::Half) {
                    store.0.inner.delete(&place).await?;
                }
                died(death, place)
            }
        });
        deletes.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, prefix) = (self.clone(), prefix.cloned());
        let listing = async move {
            let death = store.gate("list", prefix.as_ref().map_or("", |path| path.as_ref())).await?;
            let hides = store.rules().hides;
            let listed: Vec<ObjectMeta> = store.0.inner.list(prefix.as_ref()).try_collect().await?;
            let seen = listed
                .into_iter()
                .filter(|meta| !hides.is_some_and(|word| meta.location.as_ref().contains(word)));
            let seen: Vec<_> = seen.map(|meta| Ok(store.shift(meta))).collect();
            died(death, futures_util::stream::iter(seen))
        };
        once(listing).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(failed("nobody copies"))
    }
}
