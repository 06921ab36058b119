//! Compiles `caju/v1/caju.proto` and the protocol of KEDA's external scalers with protox, so that no `protoc` has to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=caju/v1/caju.proto");
    println!("cargo:rerun-if-changed=keda/externalscaler.proto");
    let files = protox::compile(["caju/v1/caju.proto", "keda/externalscaler.proto"], ["."])?;
    tonic_prost_build::configure().bytes(".").codec_path("crate::codec::BoundedCodec").compile_fds(files)?;
    Ok(())
}
