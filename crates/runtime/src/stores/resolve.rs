//! Resolving URLs to object stores.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use caju_types::{Error, Result};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::ClientConfigKey;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use parking_lot::Mutex;

use super::access::{Access, AccessRules};
use super::regular::LocalStore;
use super::url::{SCHEMES, StoreUrl};

/// One in-memory store per name, for the life of the process.
static MEMORY: LazyLock<Mutex<HashMap<String, Arc<InMemory>>>> = LazyLock::new(Mutex::default);

/// The target of a URL: a store, and a path in it.
#[derive(Debug, Clone)]
pub struct Location {
    /// The URL in its canonical form.
    pub url: StoreUrl,
    /// The store of the URL's scheme and authority.
    pub store: Arc<dyn ObjectStore>,
    /// The path inside the store.
    pub path: Path,
    /// The path in the local file system, for `file://` URLs.
    pub local: Option<PathBuf>,
}

/// Resolves URLs to object stores, one instance per scheme and authority.
///
/// Credentials come from the options given at construction; nothing here reads the environment.
///
/// ```
/// # use caju_runtime::Stores;
/// let stores = Stores::default();
/// let at = stores.resolve("memory://scratch/a/b.parquet").unwrap();
/// assert_eq!(at.url.to_string(), "memory://scratch/a/b.parquet");
/// assert_eq!(at.path.as_ref(), "a/b.parquet");
/// ```
#[derive(Default)]
pub struct Stores {
    options: BTreeMap<String, String>,
    /// None if everything may be read and written.
    rules: Option<AccessRules>,
    opened: Mutex<HashMap<String, Opened>>,
}

#[derive(Clone)]
struct Opened {
    store: Arc<dyn ObjectStore>,
    /// Added by [`Stores::register`]: then even `file://` goes through the trait.
    registered: bool,
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Options hold secrets: only their names are shown.
        f.debug_struct("Stores")
            .field("options", &self.options.keys().collect::<Vec<_>>())
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl Stores {
    /// Stores with the given options, restricted to `access` if given.
    ///
    /// Options are object_store's own names (`aws_access_key_id`, `aws_endpoint`, `aws_region`,
    /// `google_service_account`, `azure_storage_account_name`, `allow_http`, ...), in any letter case.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown option or an entry of `access` that is not a URL or an absolute path.
    pub fn new(options: BTreeMap<String, String>, access: Option<Access>) -> Result<Self> {
        let options: BTreeMap<_, _> = options.into_iter().map(|(k, v)| (k.to_ascii_lowercase(), v)).collect();
        for key in options.keys() {
            if !Self::known_option(key) {
                let near = caju_types::did_you_mean(key, COMMON_OPTIONS);
                return Err(Error::invalid(format!("unknown store option `{key}`{near}")));
            }
        }
        let rules = access.as_ref().map(AccessRules::new).transpose()?;
        Ok(Self { options, rules, opened: Mutex::default() })
    }

    /// Lets the cache at this URL be read and written, in place of the one before. An empty text allows none.
    ///
    /// # Errors
    /// `InvalidArgument` for what is neither a URL nor an absolute path.
    pub fn allow_cache(&self, url: &str) -> Result<()> {
        if let Some(rules) = &self.rules {
            rules.set_cache(if url.is_empty() { None } else { Some(StoreUrl::parse(url)?) });
        }
        Ok(())
    }

    /// Whether any store knows an option of this name. The binary uses it to pick options from the environment.
    pub fn known_option(key: &str) -> bool {
        let key = key.to_ascii_lowercase();
        AmazonS3ConfigKey::from_str(&key).is_ok()
            || GoogleConfigKey::from_str(&key).is_ok()
            || AzureConfigKey::from_str(&key).is_ok()
            || ClientConfigKey::from_str(&key).is_ok()
    }

    /// Replaces the store that `root` (such as `s3://bucket` or `file://`) would open, for tests that count, delay or fail
    /// requests.
    ///
    /// # Errors
    /// `InvalidArgument` if `root` is not a URL.
    pub fn register(&self, root: &str, store: Arc<dyn ObjectStore>) -> Result<()> {
        let root = StoreUrl::parse(root)?.root();
        self.opened.lock().insert(root, Opened { store, registered: true });
        Ok(())
    }

    /// Resolves a URL or an absolute path for reading.
    ///
    /// # Errors
    /// `InvalidArgument` for any other text, `PermissionDenied` for what may not be read, and the errors of the store about its
    /// options.
    pub fn resolve(&self, url: &str) -> Result<Location> {
        let url = StoreUrl::parse(url)?;
        self.rules.as_ref().map_or(Ok(()), |f| f.check_read(&url))?;
        self.locate(url)
    }

    /// Resolves a URL or an absolute path for writing.
    ///
    /// # Errors
    /// As [`Stores::resolve`]; `PermissionDenied` for what may not be written.
    pub fn resolve_to_write(&self, url: &str) -> Result<Location> {
        let url = StoreUrl::parse(url)?;
        self.rules.as_ref().map_or(Ok(()), |f| f.check_write(&url))?;
        self.locate(url)
    }

    fn locate(&self, url: StoreUrl) -> Result<Location> {
        let opened = self.open(&url)?;
        let path = Path::parse(&url.key).map_err(|e| Error::invalid(format!("{url}: {e}")))?;
        let local = (url.is_local() && !opened.registered).then(|| url.local_path());
        Ok(Location { url, store: opened.store, path, local })
    }

    fn open(&self, url: &StoreUrl) -> Result<Opened> {
        let root = url.root();
        if let Some(o) = self.opened.lock().get(&root) {
            return Ok(o.clone());
        }
        let store = self.build(url, &root).map_err(|e| e.context(&root))?;
        // Two threads may have built it concurrently: the first store stays.
        let opened = Opened { store, registered: false };
        Ok(self.opened.lock().entry(root).or_insert(opened).clone())
    }

    fn build(&self, url: &StoreUrl, root: &str) -> Result<Arc<dyn ObjectStore>> {
        let bad = |e: object_store::Error| Error::invalid(e.to_string());
        let retry = RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: 6,
            retry_timeout: Duration::from_secs(60),
        };
        Ok(match url.scheme.as_str() {
            "file" => Arc::new(LocalStore::new()),
            "memory" => {
                Arc::clone(MEMORY.lock().entry(url.authority.clone()).or_default()) as Arc<dyn ObjectStore>
            }
            "s3" => {
                let mut b = AmazonS3Builder::new().with_bucket_name(&url.authority).with_retry(retry);
                for (k, v) in &self.options {
                    if let Ok(key) = AmazonS3ConfigKey::from_str(k) {
                        b = b.with_config(key, v);
                    }
                }
                let plain = b
                    .get_config_value(&AmazonS3ConfigKey::Endpoint)
                    .is_some_and(|e| e.starts_with("http://"));
                if plain {
                    b = b.with_allow_http(true);
                }
                Arc::new(b.build().map_err(bad)?)
            }
            "gs" => {
                let mut b =
                    GoogleCloudStorageBuilder::new().with_bucket_name(&url.authority).with_retry(retry);
                for (k, v) in &self.options {
                    if let Ok(key) = GoogleConfigKey::from_str(k) {
                        b = b.with_config(key, v);
                    }
                }
                Arc::new(b.build().map_err(bad)?)
            }
            "az" => {
                let mut b = MicrosoftAzureBuilder::new().with_url(format!("{root}/")).with_retry(retry);
                for (k, v) in &self.options {
                    if let Ok(key) = AzureConfigKey::from_str(k) {
                        b = b.with_config(key, v);
                    }
                }
                Arc::new(b.build().map_err(bad)?)
            }
            "http" | "https" => {
                let mut client = ClientOptions::new().with_allow_http(true);
                for (k, v) in &self.options {
                    if let Ok(key) = ClientConfigKey::from_str(k) {
                        client = client.with_config(key, v);
                    }
                }
                let b = HttpBuilder::new().with_url(root).with_client_options(client).with_retry(retry);
                Arc::new(b.build().map_err(bad)?)
            }
            other => {
                let near = caju_types::did_you_mean(other, SCHEMES);
                return Err(Error::invalid(format!(
                    "unknown URL scheme `{other}`; use file, s3, gs, az, memory, http or https{near}"
                )));
            }
        })
    }
}

/// Common options, for "did you mean". The stores know many more.
const COMMON_OPTIONS: [&str; 12] = [
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_region",
    "aws_endpoint",
    "aws_allow_http",
    "aws_skip_signature",
    "aws_virtual_hosted_style_request",
    "google_service_account",
    "azure_storage_account_name",
    "azure_storage_account_key",
    "allow_http",
];
