//! Which vector instructions of x86-64 may be used. The feature `portable` answers "none".

/// AVX2.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn avx2() -> bool {
    !cfg!(feature = "portable") && std::arch::is_x86_feature_detected!("avx2")
}

/// BMI1 and BMI2, whose shifts make Huffman decoding faster.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn bmi2() -> bool {
    !cfg!(feature = "portable")
        && std::arch::is_x86_feature_detected!("bmi1")
        && std::arch::is_x86_feature_detected!("bmi2")
}
