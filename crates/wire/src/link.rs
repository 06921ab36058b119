//! The connection of workers and clients to the dispatcher, which may be unavailable for a while.

use std::time::Duration;

use caju_proto::v1::dispatcher_client::DispatcherClient;
use caju_proto::{Intercept, from_status, name_version, speaks_with};
use caju_types::{Error, ErrorKind, Result, did_you_mean};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use crate::transport::{Network, is_in_process};

/// A stub of the dispatcher's service, whose calls name the version of the protocol.
pub type Dispatcher = DispatcherClient<InterceptedService<Channel, Intercept>>;

/// The pause after the first failed attempt of [`DispatcherLink::retry`]; it doubles after each further one. It is
/// shorter than a process takes to start, so that a peer that starts together with its dispatcher hardly waits.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two attempts. All peers of a dispatcher that is down retry: one attempt per second of each is
/// little load, and a dispatcher that is back is found within a second.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest that a single call may take beyond the wait that it asks the dispatcher for.
const CALL: Duration = Duration::from_secs(10);
/// The shortest such bound, where the dispatcher is waited for less than [`CALL`]: a busy dispatcher answers in seconds.
const MIN_CALL: Duration = Duration::from_secs(2);

/// A connection to a dispatcher, opened on first use and reopened after a failure. Clones share it.
#[derive(Clone, Debug)]
pub struct DispatcherLink {
    address: String,
    client: Dispatcher,
}

impl DispatcherLink {
    /// A link to a dispatcher at `host:port` (a `caju://`, `grpc://` or `http://` in front is allowed), or within this
    /// process. Nothing is dialled yet. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// `InvalidArgument` if the address is none.
    pub fn new(address: &str) -> Result<Self> {
        Self::over(Network::default(), address)
    }

    /// A link over a given network.
    ///
    /// # Errors
    /// As [`DispatcherLink::new`].
    pub fn over(network: Network, address: &str) -> Result<Self> {
        let address = dial_address(address)?;
        let to = address.clone();
        // The connector knows where to; the URI is only what HTTP/2 names the peer.
        let authority = if is_in_process(&address) { "in-process" } else { &address };
        let channel = Endpoint::from_shared(format!("http://{authority}"))
            .map_err(|_| not_an_address(&address))?
            .connect_timeout(Duration::from_secs(2))
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(10))
            .connect_with_connector_lazy(tower::service_fn(move |_| {
                let (network, to) = (network.clone(), to.clone());
                async move { network.connect(&to).await.map(TokioIo::new) }
            }));
        let name_version: Intercept = name_version;
        let client = Dispatcher::new(InterceptedService::new(channel, name_version))
            .max_decoding_message_size(usize::MAX);
        Ok(Self { address, client })
    }

    /// The dispatcher's address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// One call. Its deadline is `wait`, the time that it asks the dispatcher to wait, and some seconds more.
    ///
    /// # Errors
    /// `Unavailable` if the dispatcher cannot be reached, `DeadlineExceeded` if it does not answer, else what
    /// the dispatcher says.
    pub async fn call<T, F, Fut>(&self, wait: Duration, call: F) -> Result<T>
    where
        F: FnOnce(Dispatcher) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        self.call_within(wait + CALL, call).await
    }

    async fn call_within<T, F, Fut>(&self, bound: Duration, call: F) -> Result<T>
    where
        F: FnOnce(Dispatcher) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        match tokio::time::timeout(bound, call(self.client.clone())).await {
            Ok(Ok(answer)) => {
                speaks_with(answer.metadata(), &format!("the dispatcher at {}", self.address))?;
                Ok(answer.into_inner())
            }
            Ok(Err(status)) => Err(self.error(&status)),
            Err(_) => Err(Error::deadline(format!(
                "the dispatcher at {} did not answer within {bound:?}",
                self.address
            ))),
        }
    }

    /// An idempotent call, repeated while the dispatcher is unavailable, for at most `timeout`.
    ///
    /// # Errors
    /// As [`DispatcherLink::call`], with the last reason.
    pub async fn retry<T, F, Fut>(&self, timeout: Duration, wait: Duration, mut call: F) -> Result<T>
    where
        F: FnMut(Dispatcher) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let until = Instant::now() + timeout;
        let bound = wait + timeout.clamp(MIN_CALL, CALL);
        let mut pause = FIRST_PAUSE;
        loop {
            match self.call_within(bound, &mut call).await {
                Err(e) if is_transient(&e) && Instant::now() + pause < until => {
                    tracing::debug!(error = %e, "the dispatcher is unavailable");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                other => return other,
            }
        }
    }

    fn error(&self, status: &Status) -> Error {
        // An error of the dispatcher has its kind in the metadata; all others are of the transport.
        let of_dispatcher = status.metadata().contains_key("caju-error-kind");
        if of_dispatcher
            || !matches!(
                status.code(),
                tonic::Code::Unavailable
                    | tonic::Code::Unknown
                    | tonic::Code::Cancelled
                    | tonic::Code::Internal
            )
        {
            return from_status(status);
        }
        if is_in_process(&self.address) {
            return Error::unavailable(format!(
                "no dispatcher at {}: {}; give a cluster that other processes use an address to listen on",
                self.address,
                cause(status)
            ));
        }
        Error::unavailable(format!(
            "no dispatcher at {}: {}; start one with `caju dispatcher --listen {}`, or check the address",
            self.address,
            cause(status),
            self.address
        ))
    }
}

/// Schemes that may precede a dispatcher's `host:port`.
const SCHEMES: [&str; 4] = ["caju", "grpc", "grpc+tcp", "http"];

fn not_an_address(address: &str) -> Error {
    Error::invalid(format!(
        "`{address}` is not a dispatcher's address; write HOST:PORT, such as 127.0.0.1:7070"
    ))
}

/// The address to connect to, without its scheme.
fn dial_address(address: &str) -> Result<String> {
    if is_in_process(address) {
        return Ok(address.to_owned());
    }
    let bare = match address.split_once("://") {
        Some((scheme, bare)) if SCHEMES.contains(&scheme.to_ascii_lowercase().as_str()) => bare,
        Some((scheme, _)) => {
            return Err(Error::invalid(format!(
                "`{address}`: `{scheme}` is not a scheme of a dispatcher's address{}; write caju://HOST:PORT or \
                 HOST:PORT",
                did_you_mean(scheme, SCHEMES)
            )));
        }
        None => address,
    };
    let bare = bare.trim_end_matches('/');
    let is_address =
        bare.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if is_address { Ok(bare.to_owned()) } else { Err(not_an_address(address)) }
}

/// Whether a retry may succeed without a change.
pub fn is_transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded)
}

/// The innermost cause, which is the most readable one.
fn cause(status: &Status) -> String {
    let mut text = status.message().to_string();
    let mut source = std::error::Error::source(status);
    while let Some(e) = source {
        text = e.to_string();
        source = e.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use caju_proto::v1::GetStatusRequest;

    use super::*;

    /// A server that accepts connections and never answers.
    #[tokio::test]
    async fn a_call_that_is_not_answered_ends_in_time_and_names_the_dispatcher() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let link = DispatcherLink::new(&address).unwrap();
        let began = std::time::Instant::now();
        let status = |mut d: Dispatcher| async move { d.get_status(GetStatusRequest::default()).await };
        let e = link.retry(Duration::from_millis(50), Duration::ZERO, status).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DeadlineExceeded);
        assert!(
            e.message().contains(&format!("the dispatcher at {address} did not answer within 2s")),
            "{e}"
        );
        assert!(began.elapsed() < CALL, "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn an_absent_dispatcher_is_named() {
        // A port that was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let link = DispatcherLink::new(&format!("caju://127.0.0.1:{port}")).unwrap();
        let e = link
            .retry(Duration::from_millis(50), Duration::ZERO, |mut d| async move {
                d.get_status(GetStatusRequest::default()).await
            })
            .await
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable);
        assert!(e.message().contains(&format!("no dispatcher at 127.0.0.1:{port}")), "{e}");
        assert!(e.message().contains("caju dispatcher --listen"), "{e}");
        for bad in ["", "localhost", "a:b:c", ":70"] {
            assert_eq!(DispatcherLink::new(bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad}");
        }
        for good in [
            "grpc://10.0.0.1:7070",
            "grpc+tcp://10.0.0.1:7070",
            "CAJU://10.0.0.1:7070/",
            "http://10.0.0.1:7070",
        ] {
            assert_eq!(DispatcherLink::new(good).unwrap().address(), "10.0.0.1:7070", "{good}");
        }
        let e = DispatcherLink::new("grp://10.0.0.1:7070").unwrap_err();
        assert!(e.message().contains("`grp` is not a scheme") && e.message().contains("grpc"), "{e}");
    }
}
