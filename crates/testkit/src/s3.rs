//! An S3 server in this process: the real protocol over a loopback socket, files in a temporary folder.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use caju_runtime::Tasks;
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

/// A running server; it stops when it is dropped.
#[derive(Debug)]
pub struct S3Server {
    root: TempDir,
    address: SocketAddr,
    tasks: Tasks,
}

impl S3Server {
    /// Starts a server with these buckets on a free port.
    ///
    /// # Errors
    /// What the operating system says.
    pub async fn start(buckets: &[&str]) -> io::Result<Self> {
        let root = tempfile::tempdir()?;
        for bucket in buckets {
            std::fs::create_dir(root.path().join(bucket))?;
        }
        let files = FileSystem::new(root.path()).map_err(|e| io::Error::other(format!("{e:?}")))?;
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let tasks = Tasks::new();
        drop(tasks.spawn(serve(listener, service.build(), tasks.clone())));
        Ok(Self { root, address, tasks })
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
        self.root.path().join(name)
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

async fn serve(listener: TcpListener, service: S3Service, tasks: Tasks) {
    // The file system behind the server looks whether an object exists, then writes it: one conditional
    // write at a time makes that atomic, as it is in S3.
    let turn = Arc::new(Mutex::new(()));
    while let Ok((socket, _)) = listener.accept().await {
        let (service, turn) = (service.clone(), Arc::clone(&turn));
        let one = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let (service, turn) = (service.clone(), Arc::clone(&turn));
            async move {
                let conditional = request.headers().contains_key("if-none-match");
                let write = request.method() == hyper::Method::PUT;
                let _turn = if conditional && write { Some(turn.lock().await) } else { None };
                Service::call(&service, request).await
            }
        });
        // A connection that breaks is the client's business.
        drop(tasks.spawn(async move {
            drop(Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), one).await);
        }));
    }
}
