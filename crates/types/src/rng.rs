//! The counter-based generator of the random kernels.
//!
//! A draw depends only on (row key, call site, number of the draw): not on the thread, on the engine's batch size, or on
//! whether a chain ran fused. `exp` and `ln` are computed here from additions, multiplications and divisions,
//! because the last bit of a system library's result differs between machines.

use crate::hash::mix64;

/// Draws for one call of a random kernel on one row.
///
/// ```
/// use caju_types::rng::RowRng;
/// let (mut a, mut b) = (RowRng::new(7, 1), RowRng::new(7, 1));
/// assert_eq!(a.next_u64(), b.next_u64());
/// assert_ne!(RowRng::new(7, 1).next_u64(), RowRng::new(7, 2).next_u64());
/// assert!((0.0..1.0).contains(&a.uniform()));
/// assert!(a.below(10) < 10);
/// ```
#[derive(Debug, Clone)]
pub struct RowRng {
    key: u64,
    counter: u64,
}

impl RowRng {
    /// The generator of call site `site` for the row with the key `row_key`.
    pub fn new(row_key: u64, site: u64) -> Self {
        Self { key: mix64(row_key, site), counter: 0 }
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.counter += 1;
        mix64(self.key, self.counter)
    }

    /// A number in `[0, 1)`, with 53 random bits.
    #[inline]
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A number in `[lo, hi)`; `lo` if the two are equal. One draw in either case. `lo` is at most `hi`, and both are finite.
    #[inline]
    pub fn uniform_in(&mut self, lo: f64, hi: f64) -> f64 {
        let u = self.uniform();
        let span = hi - lo;
        let drawn = if span.is_finite() { lo + span * u } else { lo * (1.0 - u) + hi * u };
        // Rounding gives the upper bound where few numbers lie between the two.
        if drawn >= hi && lo < hi { hi.next_down().max(lo) } else { drawn }
    }

    /// An integer in `[0, n)`; 0 for `n` = 0. One draw; the bias is below n / 2^64.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(n);
        (wide >> 64) as u64
    }

    /// A standard normal number (polar method; a varying number of draws).
    pub fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (self.uniform_in(-1.0, 1.0), self.uniform_in(-1.0, 1.0));
            let s = x * x + y * y;
            if s > 0.0 && s < 1.0 {
                return x * (-2.0 * ln(s) / s).sqrt();
            }
        }
    }
}

/// e^x, equal on every machine. The relative error is below 1e-14 for |x| < 700.
pub fn exp(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x > 709.0 {
        return f64::INFINITY;
    }
    if x < -708.0 {
        return 0.0;
    }
    let n = (x * std::f64::consts::LOG2_E).round();
    // ln 2 in two pieces, so that the reduced argument keeps its low bits.
    let r = (x - n * 0.693_147_180_369_123_8) - n * 1.908_214_929_270_587_7e-10;
    let mut term = 1.0;
    let mut sum = 1.0;
    for i in 1..16 {
        term = term * r / f64::from(i);
        sum += term;
    }
    #[expect(clippy::cast_possible_truncation, reason = "|n| < 1024 by the checks above")]
    let n = n as i64;
    #[expect(clippy::cast_sign_loss, reason = "the biased exponent is positive: -1021 <= n <= 1023")]
    let power = f64::from_bits(((n + 1023) as u64) << 52);
    sum * power
}

/// The natural logarithm of a positive normal number, equal on every machine; NaN for other numbers.
pub fn ln(x: f64) -> f64 {
    if !x.is_normal() || x < 0.0 {
        return f64::NAN;
    }
    let bits = x.to_bits();
    #[expect(clippy::cast_possible_wrap, reason = "an 11-bit exponent")]
    let mut e = ((bits >> 52) & 0x7FF) as i64 - 1023;
    let mut m = f64::from_bits((bits & 0x000F_FFFF_FFFF_FFFF) | (1023u64 << 52));
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        e += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)), |argument| < 0.172.
    let t = (m - 1.0) / (m + 1.0);
    let t2 = t * t;
    let mut power = t;
    let mut sum = 0.0;
    for i in 0..14 {
        sum += power / f64::from(2 * i + 1);
        power *= t2;
    }
    2.0 * sum + e as f64 * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_and_ln_are_close_to_the_systems() {
        for i in -2000..2000 {
            let x = f64::from(i) * 0.01;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-13, "exp {x}");
            let y = f64::from(i + 2001) * 0.37;
            assert!((ln(y) - y.ln()).abs() < 1e-13, "ln {y}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(ln(1.0), 0.0);
        assert!(ln(0.0).is_nan() && ln(-1.0).is_nan());
    }

    #[test]
    fn draws_are_pinned() {
        let mut r = RowRng::new(1, 2);
        assert_eq!((r.next_u64(), r.next_u64()), (mix64(mix64(1, 2), 1), mix64(mix64(1, 2), 2)));
    }

    #[test]
    fn draws_lie_below_the_upper_bound() {
        let mut r = RowRng::new(5, 6);
        let most = f64::MAX;
        for (lo, hi) in
            [(1e16, 1e16 + 2.0), (1.0, 1.0 + f64::EPSILON), (-most, most), (-most, 0.0), (0.0, 5e-324)]
        {
            for _ in 0..100 {
                let drawn = r.uniform_in(lo, hi);
                assert!(lo <= drawn && drawn < hi, "{lo:e} <= {drawn:e} < {hi:e}");
            }
        }
        assert_eq!(r.uniform_in(3.0, 3.0), 3.0);
    }

    #[test]
    fn draws_fill_their_ranges() {
        let mut r = RowRng::new(3, 4);
        let mut seen = [0u32; 7];
        let (mut sum, mut squares) = (0.0, 0.0);
        for _ in 0..7000 {
            seen[usize::try_from(r.below(7)).unwrap()] += 1;
            let n = r.normal();
            sum += n;
            squares += n * n;
            assert!((2.0..3.0).contains(&r.uniform_in(2.0, 3.0)));
        }
        assert!(seen.iter().all(|&n| (850..1150).contains(&n)), "{seen:?}");
        assert!((sum / 7000.0).abs() < 0.05 && (squares / 7000.0 - 1.0).abs() < 0.06);
        assert_eq!(r.below(0), 0);
    }
}
