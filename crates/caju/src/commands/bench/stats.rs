//! Medians of few values, and their confidence.

/// The difference between the largest and the least value, as a fraction of the median.
pub(super) fn spread(values: &[f64]) -> Option<f64> {
    let (most, least) = (values.iter().copied().reduce(f64::max)?, values.iter().copied().reduce(f64::min)?);
    let middle = median(values.to_vec());
    (values.len() > 1 && middle > 0.0).then(|| (most - least) / middle)
}

/// The 90 % confidence interval of the median, by the sign test: its bounds are the values `k` from either end, with the
/// largest `k` for which a fair coin falls at most `k` times on one side in at most one of ten cases. Of fewer than five
/// values it is the range of all.
pub(super) fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let n = values.len();
    // The number of coin sequences in which at most `aside` of `n` values are below the true median.
    let (mut aside, mut ways, mut outside) = (0, 1.0, 1.0);
    loop {
        ways *= (n - aside) as f64 / (aside + 1) as f64;
        outside += ways;
        if 2.0 * outside / 2.0_f64.powf(n as f64) > 0.1 || 2 * (aside + 1) >= n {
            break;
        }
        aside += 1;
    }
    (n > 1).then(|| (values[aside], values[n - 1 - aside]))
}

/// The median. 0 of no values.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => values[n / 2],
        _ => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}
