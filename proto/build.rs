//! Compiles `caju/v1/caju.proto` and the protocol of KEDA's external scalers with protox, so that no `protoc` has to be installed.

use protox::prost_reflect::prost_types::DescriptorProto;
use protox::prost_reflect::prost_types::field_descriptor_proto::{Label, Type};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=caju/v1/caju.proto");
    println!("cargo:rerun-if-changed=keda/externalscaler.proto");
    let files = protox::compile(["caju/v1/caju.proto", "keda/externalscaler.proto"], ["."])?;
    let mut table = String::from("[\n");
    for file in &files.file {
        for message in &file.message_type {
            list_fields(&format!(".{}", file.package()), message, &mut table);
        }
    }
    let out =
        std::path::PathBuf::from(std::env::var_os("OUT_DIR").ok_or("no OUT_DIR")?).join("message_fields.rs");
    std::fs::write(out, table + "]\n")?;
    tonic_prost_build::configure().bytes(".").codec_path("crate::codec::BoundedCodec").compile_fds(files)?;
    Ok(())
}

/// Lists the fields of a message, and of those that are defined within it, as `(message, field, what it holds)`: the name of a
/// message, `[]` for a list of numbers, or nothing.
fn list_fields(scope: &str, message: &DescriptorProto, table: &mut String) {
    let name = format!("{scope}.{}", message.name());
    for field in &message.field {
        let held = match field.r#type() {
            Type::Message => field.type_name(),
            Type::String | Type::Bytes => "",
            _ if field.label() == Label::Repeated => "[]",
            _ => "",
        };
        table.push_str(&format!("    ({name:?}, {}, {held:?}),\n", field.number()));
    }
    for nested in &message.nested_type {
        list_fields(&name, nested, table);
    }
}
