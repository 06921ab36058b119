//! Test fixtures: an S3 server in this process, stores with injected faults, a clock that tests advance.

pub mod clock;
pub mod faulty;
pub mod s3;
