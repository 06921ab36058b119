//! The messages of every version so far are read for ever.

use prost::Message;

use crate::v1;

/// Every message of the first version with all its fields set, as `proto/fixtures/make.py` wrote them. It must never change.
const V1: &str = include_str!("../fixtures/messages-v1.txt");

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |b: u8| u8::try_from(char::from(b).to_digit(16).unwrap()).unwrap();
    hex.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// What today's message of a type makes of the bytes: fields that it does not know, or knows otherwise, are lost.
fn through<M: Message + Default>(bytes: &[u8]) -> Vec<u8> {
    M::decode(bytes).unwrap().encode_to_vec()
}

/// The name of a message, and what becomes of its bytes when it is read and written.
type RoundTrip = (&'static str, fn(&[u8]) -> Vec<u8>);

macro_rules! round_trips {
    ($($name:ident,)*) => {
        &[$((stringify!($name), through::<v1::$name> as fn(&[u8]) -> Vec<u8>)),*]
    };
}

#[test]
fn every_field_of_the_first_version_is_still_read_and_written() {
    let messages: &[RoundTrip] = round_trips![
        ClientHeartbeatRequest,
        ClientHeartbeatResponse,
        CloseClientRequest,
        CloseClientResponse,
        DrainWorkerRequest,
        DrainWorkerResponse,
        Failure,
        FinishTaskRequest,
        FinishTaskResponse,
        GetDatasetRequest,
        GetDatasetResponse,
        GetSaveRequest,
        GetStatusRequest,
        GetStatusResponse,
        GetTaskRequest,
        GetTaskResponse,
        GetWorkerStatusRequest,
        GetWorkerStatusResponse,
        HintProbe,
        Incomplete,
        IoStats,
        JobStatus,
        LostTask,
        NextSplitsRequest,
        NextSplitsResponse,
        OpenIterationRequest,
        OpenIterationResponse,
        RegisterDatasetRequest,
        RegisterDatasetResponse,
        RegisterWorkerRequest,
        RegisterWorkerResponse,
        RowRange,
        SaveStatus,
        SplitCount,
        SplitLease,
        SplitModes,
        SplitRows,
        StageStats,
        StartSaveRequest,
        TaskCounts,
        TaskDef,
        TaskInfo,
        TaskPlan,
        TaskProfile,
        TaskStatus,
        WorkerHeartbeatRequest,
        WorkerHeartbeatResponse,
        WorkerStatus,
    ];
    let fixtures: Vec<(&str, Vec<u8>)> =
        V1.lines().map(|line| line.split_once(' ').unwrap()).map(|(name, hex)| (name, bytes(hex))).collect();
    assert_eq!(fixtures.len(), messages.len());
    for ((name, written), (ours, through)) in fixtures.iter().zip(messages) {
        assert_eq!(name, ours);
        assert_eq!(
            &through(written),
            written,
            "{name}: a field of the first version is gone, or has another type"
        );
    }
}

#[test]
fn a_field_that_is_gone_is_noticed() {
    // As a later version without the second field would read it.
    let full = v1::SplitCount { split_index: 1, rows: 2 }.encode_to_vec();
    assert_ne!(through::<v1::GetSaveRequest>(&v1::GetSaveRequest::default().encode_to_vec()), full);
    assert!(through::<v1::FinishTaskResponse>(&full).is_empty(), "unknown fields are dropped, not kept");
}

/// The calls of each service. A call's path is its name, so a call that is renamed is unknown to peers of the same major version.
const CALLS: &[(&str, &[&str])] = &[
    (
        "Dispatcher",
        &[
            "RegisterWorker",
            "WorkerHeartbeat",
            "GetTask",
            "NextSplits",
            "FinishTask",
            "ServeBehind",
            "DealTail",
            "NextRounds",
            "ReportBoundaries",
            "DrainWorker",
            "RegisterDataset",
            "GetDataset",
            "OpenIteration",
            "ClientHeartbeat",
            "CloseClient",
            "StartSave",
            "GetSave",
            "GetStatus",
        ],
    ),
    ("Worker", &["GetWorkerStatus"]),
];

#[test]
fn no_call_of_this_major_version_is_renamed() {
    let definition = include_str!("../caju/v1/caju.proto");
    for (service, calls) in CALLS {
        let start = definition.find(&format!("service {service} {{")).unwrap();
        let body = &definition[start..];
        let body = &body[..body.find("\n}").unwrap()];
        for call in *calls {
            assert!(body.contains(&format!("rpc {call}(")), "the service {service} has no call {call}");
        }
    }
}
