#![no_main]

libfuzzer_sys::fuzz_target!(init: caju_libfuzzer::prepare(), |data: &[u8]| {
    (caju_libfuzzer::target().one)(data);
});
