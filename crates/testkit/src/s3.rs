//! An S3 server in this process: the real protocol over a loopback socket, files in a temporary folder.

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

/// What a server was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// Objects, or ranges of them.
    pub gets: u64,
    /// Pages of listings.
    pub lists: u64,
    /// Whether an object is there, and how long it is.
    pub heads: u64,
    /// Objects and parts of uploads.
    pub puts: u64,
    /// Beginnings and ends of uploads, and deletions of many.
    pub posts: u64,
    /// Deletions.
    pub deletes: u64,
    /// Those of all these that went wrong, as [`S3Server::trouble`] said.
    pub failed: u64,
}

/// What goes wrong with a request, on the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Trouble {
    /// 503 SlowDown.
    #[default]
    SlowDown,
    /// 500 InternalError.
    Internal,
    /// What was asked for is done, and the connection is lost in the middle of the answer's body, or in place of one.
    Cut,
    /// Never answered.
    Silence,
}

/// What a server counts, and which requests it fails.
#[derive(Debug, Default)]
struct Books {
    seen: Requests,
    /// This goes wrong...
    trouble: Trouble,
    /// ... of requests for these methods...
    failing: Vec<String>,
    /// ... fail so many in a row ...
    fail: u64,
    /// ... then serve so many.
    serve: u64,
    turn: u64,
}

impl Books {
    /// Counts a request, and says what goes wrong with it.
    fn enter(&mut self, request: &hyper::Request<hyper::body::Incoming>) -> Option<Trouble> {
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
        fails.then_some(self.trouble)
    }
}

/// A running server; it stops when it is dropped.
#[derive(Debug)]
pub struct S3Server {
    /// Where the buckets are.
    root: PathBuf,
    /// Removed with the server.
    temporary: Option<TempDir>,
    address: SocketAddr,
    books: SharedBooks,
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

    /// The same with the buckets as folders of a folder that is there, and stays.
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
        let books = Arc::default();
        let serving = serve(listener, service.build(), Arc::clone(&books), tasks.clone());
        tasks.background("the S3 server", log_failure, async move {
            serving.await;
            Ok(())
        });
        Ok(Self { root, temporary: None, address, books, tasks })
    }

    /// What was asked for so far.
    pub fn requests(&self) -> Requests {
        self.books.lock().seen
    }

    /// From now on requests with one of these methods (`GET`, `PUT`, ...) fail `fail` times in a row with 503 SlowDown, before `serve`
    /// of them are served, and so on. None fail with 0.
    pub fn fail(&self, methods: &[&str], fail: u64, serve: u64) {
        self.trouble(Trouble::SlowDown, methods, fail, serve);
    }

    /// The same with other trouble.
    pub fn trouble(&self, trouble: Trouble, methods: &[&str], fail: u64, serve: u64) {
        let mut books = self.books.lock();
        books.trouble = trouble;
        (books.failing, books.fail, books.serve, books.turn) =
            (methods.iter().map(|m| (*m).to_string()).collect(), fail, serve, 0);
    }

    /// The options that make [`caju_runtime::Stores`] talk to this server.
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

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The folder in which a bucket's objects lie, by their keys.
    pub fn bucket(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

type SharedBooks = Arc<parking_lot::Mutex<Books>>;

type Answer = hyper::Response<s3s::Body>;

fn refused(status: hyper::StatusCode, code: &str) -> Answer {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>As was ordered.</Message></Error>"
    );
    let mut answer = hyper::Response::new(s3s::Body::from(text));
    *answer.status_mut() = status;
    answer
}

/// The first half of an answer's body; then the connection breaks.
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

async fn serve(listener: TcpListener, service: S3Service, books: SharedBooks, tasks: Tasks) {
    // The file system behind the server looks whether an object exists, then writes it: one conditional
    // write at a time makes that atomic, as it is in S3.
    let turn = Arc::new(Mutex::new(()));
    while let Ok((socket, _)) = listener.accept().await {
        let (service, turn, books) = (service.clone(), Arc::clone(&turn), Arc::clone(&books));
        let one = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let (service, turn) = (service.clone(), Arc::clone(&turn));
            let trouble = books.lock().enter(&request);
            async move {
                match trouble {
                    Some(Trouble::SlowDown) => {
                        return Ok(refused(hyper::StatusCode::SERVICE_UNAVAILABLE, "SlowDown"));
                    }
                    Some(Trouble::Internal) => {
                        return Ok(refused(hyper::StatusCode::INTERNAL_SERVER_ERROR, "InternalError"));
                    }
                    Some(Trouble::Silence) => std::future::pending::<()>().await,
                    Some(Trouble::Cut) | None => {}
                }
                let conditional = request.headers().contains_key("if-none-match");
                let write = request.method() == hyper::Method::PUT;
                let _turn = if conditional && write { Some(turn.lock().await) } else { None };
                let answer = Service::call(&service, request).await?;
                Ok::<_, s3s::HttpError>(if trouble.is_some() { half(answer) } else { answer })
            }
        });
        // A connection that breaks is the client's business.
        tasks.background("a connection of the S3 server", log_failure, async move {
            drop(Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), one).await);
            Ok(())
        });
    }
}
