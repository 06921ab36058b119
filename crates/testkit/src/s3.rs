//! An S3 server in this process: the real protocol over a loopback socket, with files in a temporary folder.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use caju_runtime::{Tasks, log_failure};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::Mutex;

const KEY: &str = "caju-test";
const SECRET: &str = "caju-test-secret";

/// The requests that a server has got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// Reads of objects, or of ranges of them.
    pub gets: u64,
    /// Pages of listings.
    pub lists: u64,
    /// Reads of objects' metadata.
    pub heads: u64,
    /// Writes of objects and of parts of uploads.
    pub puts: u64,
    /// Starts and completions of uploads, and deletions of several objects.
    pub posts: u64,
    /// Deletions of single objects.
    pub deletes: u64,
    /// Those of all requests that failed by [`S3Server::inject`].
    pub failed: u64,
}

/// A fault of a request, on the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ServerFault {
    /// 503 SlowDown.
    #[default]
    SlowDown,
    /// 500 InternalError.
    Internal,
    /// 403 AccessDenied.
    Denied,
    /// The request is carried out. The connection is lost in the middle of the answer's body, or before an empty one.
    Cut,
    /// The request is never answered.
    Silence,
}

/// The counters of a server, and the requests that it fails.
#[derive(Debug, Default)]
struct Counters {
    seen: Requests,
    /// The fault that is injected.
    fault: ServerFault,
    /// The methods of the requests that may fail.
    failing: Vec<String>,
    /// Such requests that fail in a row.
    fail: u64,
    /// Such requests that are served after that, before others fail.
    serve: u64,
    /// Such requests so far.
    turn: u64,
}

impl Counters {
    /// Counts a request, and gives the fault that happens to it.
    fn enter(&mut self, request: &hyper::Request<hyper::body::Incoming>) -> Option<ServerFault> {
        let listing = request.uri().query().is_some_and(|q| q.contains("list-type"));
        let counter = match (request.method().as_str(), listing) {
            ("GET", true) => &mut self.seen.lists,
            ("GET", false) => &mut self.seen.gets,
            ("HEAD", _) => &mut self.seen.heads,
            ("PUT", _) => &mut self.seen.puts,
            ("DELETE", _) => &mut self.seen.deletes,
            _ => &mut self.seen.posts,
        };
        *counter += 1;
        if self.fail == 0 || !self.failing.iter().any(|m| m == request.method().as_str()) {
            return None;
        }
        let fails = self.turn % (self.fail + self.serve) < self.fail;
        self.turn += 1;
        self.seen.failed += u64::from(fails);
        fails.then_some(self.fault)
    }
}

/// A running server. It stops when it is dropped.
#[derive(Debug)]
pub struct S3Server {
    /// The folder of the buckets.
    root: PathBuf,
    /// The temporary folder, which is removed with the server.
    temporary: Option<TempDir>,
    address: SocketAddr,
    counters: SharedCounters,
    tasks: Tasks,
}

impl S3Server {
    /// Starts a server with these buckets on a free port.
    ///
    /// # Errors
    /// What the operating system says.
    pub async fn start(buckets: &[&str]) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut server = Self::start_in(folder.path().to_path_buf(), buckets).await?;
        server.temporary = Some(folder);
        Ok(server)
    }

    /// Starts a server whose buckets are folders of an existing folder, which stays.
    ///
    /// # Errors
    /// What the operating system says.
    pub async fn start_in(root: PathBuf, buckets: &[&str]) -> io::Result<Self> {
        for bucket in buckets {
            std::fs::create_dir_all(root.join(bucket))?;
        }
        let files = FileSystem::new(&root).map_err(|e| io::Error::other(format!("{e:?}")))?;
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let tasks = Tasks::new();
        let counters = Arc::default();
        let serving = serve(listener, service.build(), Arc::clone(&counters), tasks.clone());
        tasks.background("the S3 server", log_failure, async move {
            serving.await;
            Ok(())
        });
        Ok(Self { root, temporary: None, address, counters, tasks })
    }

    /// The requests so far.
    pub fn requests(&self) -> Requests {
        self.counters.lock().seen
    }

    /// Makes requests with one of these methods (`GET`, `PUT`, ...) fail from now on: `fail` in a row with 503 SlowDown, then
    /// `serve` of them are served, and so on. None fail if `fail` is 0.
    pub fn fail(&self, methods: &[&str], fail: u64, serve: u64) {
        self.inject(ServerFault::SlowDown, methods, fail, serve);
    }

    /// Like [`S3Server::fail`], with any fault.
    pub fn inject(&self, fault: ServerFault, methods: &[&str], fail: u64, serve: u64) {
        let mut counters = self.counters.lock();
        counters.fault = fault;
        (counters.failing, counters.fail, counters.serve, counters.turn) =
            (methods.iter().map(|m| (*m).to_string()).collect(), fail, serve, 0);
    }

    /// The options that make [`caju_runtime::Stores`] use this server.
    pub fn options(&self) -> BTreeMap<String, String> {
        [
            ("aws_endpoint", format!("http://{}", self.address)),
            ("aws_access_key_id", KEY.to_string()),
            ("aws_secret_access_key", SECRET.to_string()),
            ("aws_region", "us-east-1".to_string()),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_string(), v))
        .collect()
    }

    /// The server's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The folder of a bucket. Objects are files in it, by their keys.
    pub fn bucket(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

type SharedCounters = Arc<parking_lot::Mutex<Counters>>;

type Answer = hyper::Response<s3s::Body>;

fn refused(status: hyper::StatusCode, code: &str) -> Answer {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>An injected fault.</Message></Error>"
    );
    let mut answer = hyper::Response::new(s3s::Body::from(text));
    *answer.status_mut() = status;
    answer
}

/// The first half of an answer's body, and then an error of the connection.
struct Half {
    body: s3s::Body,
    left: usize,
}

impl hyper::body::Body for Half {
    type Data = bytes::Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Self::Data>, Self::Error>>> {
        let me = self.get_mut();
        if me.left == 0 {
            return Poll::Ready(Some(Err("the connection was lost".into())));
        }
        let frame = std::task::ready!(Pin::new(&mut me.body).poll_frame(cx));
        let data = frame.and_then(|f| f.ok()?.into_data().ok());
        let data = data.map(|mut data| data.split_to(data.len().min(me.left)));
        me.left = data.as_ref().map_or(0, |data| me.left - data.len());
        Poll::Ready(Some(data.map(hyper::body::Frame::data).ok_or_else(|| "the connection was lost".into())))
    }
}

fn half(answer: Answer) -> Answer {
    let length = answer.headers().get(hyper::header::CONTENT_LENGTH);
    let length = length.and_then(|n| n.to_str().ok()?.parse::<usize>().ok()).unwrap_or(0);
    answer.map(|body| s3s::Body::http_body(Half { body, left: length / 2 }))
}

async fn serve(listener: TcpListener, service: S3Service, counters: SharedCounters, tasks: Tasks) {
    // The file system behind the server checks whether an object exists, and then writes it. One conditional write at a
    // time makes that atomic, as it is in S3.
    let turn = Arc::new(Mutex::new(()));
    while let Ok((socket, _)) = listener.accept().await {
        let (service, turn, counters) = (service.clone(), Arc::clone(&turn), Arc::clone(&counters));
        let one = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let (service, turn) = (service.clone(), Arc::clone(&turn));
            let fault = counters.lock().enter(&request);
            async move {
                match fault {
                    Some(ServerFault::SlowDown) => {
                        return Ok(refused(hyper::StatusCode::SERVICE_UNAVAILABLE, "SlowDown"));
                    }
                    Some(ServerFault::Internal) => {
                        return Ok(refused(hyper::StatusCode::INTERNAL_SERVER_ERROR, "InternalError"));
                    }
                    Some(ServerFault::Denied) => {
                        return Ok(refused(hyper::StatusCode::FORBIDDEN, "AccessDenied"));
                    }
                    Some(ServerFault::Silence) => std::future::pending::<()>().await,
                    Some(ServerFault::Cut) | None => {}
                }
                let conditional = request.headers().contains_key("if-none-match");
                let write = request.method() == hyper::Method::PUT;
                let _turn = if conditional && write { Some(turn.lock().await) } else { None };
                let answer = Service::call(&service, request).await?;
                Ok::<_, s3s::HttpError>(if fault.is_some() { half(answer) } else { answer })
            }
        });
        // An error of the connection is no error of the server.
        tasks.background("a connection of the S3 server", log_failure, async move {
            drop(Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), one).await);
            Ok(())
        });
    }
}
