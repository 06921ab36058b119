//! Compiles `caju/v1/caju.proto` and the protocol of KEDA's external scalers with protox, so that no `protoc` has to be installed.

use protox::prost_reflect::prost_types::DescriptorProto;
use protox::prost_reflect::prost_types::field_descriptor_proto::{Label, Type};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=caju/v1/caju.proto");
    println!("cargo:rerun-if-changed=keda/externalscaler.proto");
    let files = protox::compile(["caju/v1/caju.proto", "keda/externalscaler.proto"], ["."])?;
    let mut fields = String::from("[\n");
    let mut sizes = String::from("[\n");
    for file in &files.file {
        // The module of this crate that has the generated types.
        let module = if file.package() == "externalscaler" { "externalscaler" } else { "v1" };
        for message in &file.message_type {
            list_fields(&format!(".{}", file.package()), message, &mut fields);
            let (name, package) = (message.name(), file.package());
            sizes.push_str(&format!("    (\".{package}.{name}\", size_of::<crate::{module}::{name}>()),\n"));
        }
    }
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);
    std::fs::write(out.join("message_fields.rs"), fields + "]\n")?;
    std::fs::write(out.join("message_sizes.rs"), sizes + "]\n")?;
    tonic_prost_build::configure().bytes(".").codec_path("crate::codec::BoundedCodec").compile_fds(files)?;
    Ok(())
}

/// Lists the fields of a message, and of those that are defined within it, as `(message, field, what it holds)`: the name of a
/// message, `[8]` for a list of numbers of eight bytes on the wire, `[]` for another list of numbers, or nothing.
fn list_fields(scope: &str, message: &DescriptorProto, table: &mut String) {
    let name = format!("{scope}.{}", message.name());
    for field in &message.field {
        let held = match field.r#type() {
            Type::Message => field.type_name(),
            Type::String | Type::Bytes => "",
            Type::Fixed64 | Type::Double if field.label() == Label::Repeated => "[8]",
            _ if field.label() == Label::Repeated => "[]",
            _ => "",
        };
        table.push_str(&format!("    ({name:?}, {}, {held:?}),\n", field.number()));
    }
    for nested in &message.nested_type {
        list_fields(&name, nested, table);
    }
}
