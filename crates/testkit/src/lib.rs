//! Fixtures of tests: servers in process, faulty stores, clocks that are turned by hand.

pub mod clock;
pub mod faulty;
pub mod s3;
