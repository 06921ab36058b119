//! Callers of other versions of the protocol.

use caju_proto::v1::dispatcher_client::DispatcherClient;
use caju_proto::{PROTOCOL, from_status, v1};
use caju_types::ErrorKind;
use serde_json::json;
use tonic::Request;
use tonic::metadata::MetadataValue;

use super::fake::{open_request, run};
use super::service::{fast, start};

fn with_version<T>(message: T, version: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("caju-protocol", MetadataValue::try_from(version).unwrap());
    request
}

#[test]
fn callers_of_the_same_major_version_are_served_and_others_refused() {
    run(async {
        let (handle, url) = start(fast()).await;
        let mut rpc = DispatcherClient::connect(url).await.unwrap();
        // The first version names none, and knows fewer fields than today's.
        let open = rpc.open_iteration(open_request(&json!({"splits": 2}), "first")).await.unwrap();
        let named = open.metadata().get("caju-protocol").unwrap().to_str().unwrap().to_string();
        assert_eq!(named, PROTOCOL.to_string(), "the dispatcher says what it speaks");
        let later_minor = format!("{}.{}", PROTOCOL.major, PROTOCOL.minor + 7);
        rpc.get_status(with_version(v1::GetStatusRequest::default(), &later_minor)).await.unwrap();
        for other in [PROTOCOL.major - 1, PROTOCOL.major + 1] {
            let version = format!("{other}.0");
            let request = with_version(open_request(&json!({"splits": 2}), "other"), &version);
            let refused = from_status(&rpc.open_iteration(request).await.unwrap_err());
            assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
            let told =
                [format!("version {version} "), format!("version {PROTOCOL};"), "both sides".to_string()];
            assert!(told.iter().all(|t| refused.message().contains(t)), "{refused}");
        }
        let status = rpc.get_status(v1::GetStatusRequest::default()).await.unwrap().into_inner();
        assert_eq!(status.jobs.len(), 1, "a refused call changes nothing");
        assert!(handle.shutdown().await);
    });
}
