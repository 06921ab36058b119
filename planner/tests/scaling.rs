//! How many workers keep readers busy.

#![allow(clippy::unwrap_used, reason = "tests")]

use caju_planner::ReportedTimes;
use caju_types::ErrorKind;

fn scaling(workers: &[f64], consumers: &[f64]) -> ReportedTimes {
    let mut scaling = ReportedTimes::default();
    (0..).zip(workers).for_each(|(id, t)| scaling.report_worker(id, *t).unwrap());
    (0..).zip(consumers).for_each(|(id, t)| scaling.report_consumer(id, *t).unwrap());
    scaling
}

/// SRV-05: the advice is that of tf.data service's auto-scaler.
#[test]
fn srv_05_workers_that_keep_readers_busy() {
    assert_eq!(scaling(&[0.2], &[0.025]).workers_wanted().unwrap(), 8);
    assert_eq!(scaling(&[0.2, 0.15], &[0.025, 0.05]).workers_wanted().unwrap(), 11);
    assert_eq!(scaling(&[0.2], &[5.0]).workers_wanted().unwrap(), 1, "never none");
    // One wild time among several counts as the median.
    let wild = scaling(&[0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 50.0], &[0.01]);
    assert_eq!(wild.workers_wanted().unwrap(), 10);
    let wild = scaling(&[0.1], &[0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 1e-6]);
    assert_eq!(wild.workers_wanted().unwrap(), 100);
    assert_eq!(scaling(&[0.2], &[0.0002]).advice(3).unwrap(), 12, "at most four times the present ones");
    assert_eq!(scaling(&[0.2], &[0.0002]).advice(0).unwrap(), 4);
}

/// SRV-05: what is no report, and who has not reported.
#[test]
fn srv_05_reports_are_checked() {
    for (workers, consumers) in [(&[][..], &[][..]), (&[0.2], &[]), (&[], &[0.2])] {
        let e = scaling(workers, consumers).workers_wanted().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable);
    }
    let mut s = scaling(&[0.2], &[0.025]);
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(s.report_worker(1, bad).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(s.report_consumer(1, bad).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(s.remove_worker(7).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(s.remove_consumer(7).unwrap_err().kind(), ErrorKind::NotFound);
    s.remove_worker(0).unwrap();
    s.remove_consumer(0).unwrap();
    assert_eq!(s, ReportedTimes::default());
}
