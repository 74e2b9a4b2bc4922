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
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}

#[cfg(not(feature = "wire"))]
fn main() {}
