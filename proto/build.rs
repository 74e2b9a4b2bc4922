//! Compiles the .proto files in pure Rust: no protoc is needed on any machine.

#[cfg(feature = "wire")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use prost::Message;
    println!("cargo:rerun-if-changed=turnkv");
    let files = [
        "turnkv/v1/pool.proto",
        "turnkv/v1/sessions.proto",
        "turnkv/v1/admin.proto",
        "turnkv/v1/local.proto",
    ];
    let descriptors = protox::compile(files, ["."])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("turnkv.v1.bin"), descriptors.encode_to_vec())?;
    std::fs::write(out.join("methods.rs"), methods(&descriptors))?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors.clone())?;

    // The Pool service again, less what a server frames itself: its trait has no methods that nobody calls.
    let mut unary = descriptors;
    for file in &mut unary.file {
        file.service.retain(|service| service.name() == "Pool");
        for service in &mut file.service {
            service.method.retain(|method| !["Offload", "Reload"].contains(&method.name()));
        }
    }
    let unary_out = out.join("unary");
    std::fs::create_dir_all(&unary_out)?;
    let messages_elsewhere = tonic_prost_build::configure().extern_path(".turnkv.v1", "crate::wire");
    messages_elsewhere.build_client(false).out_dir(unary_out).compile_fds(unary)?;
    Ok(())
}

/// The table of all methods: path on the wire, and name in metrics.
#[cfg(feature = "wire")]
fn methods(descriptors: &tonic_prost_build::FileDescriptorSet) -> String {
    let mut rows = String::new();
    for file in &descriptors.file {
        for service in &file.service {
            for method in &service.method {
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                let name = method.name().chars().fold(String::new(), |mut name, letter| {
                    if letter.is_ascii_uppercase() && !name.is_empty() {
                        name.push('_');
                    }
                    name.push(letter.to_ascii_lowercase());
                    name
                });
                rows += &format!("({path:?}, {name:?}),\n");
            }
        }
    }
    format!("&[\n{rows}]\n")
}

#[cfg(not(feature = "wire"))]
fn main() {}
