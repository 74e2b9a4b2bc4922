//! Compiles the .proto files in pure Rust: no protoc is needed on any machine.

#[cfg(feature = "wire")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use prost::Message;
    println!("cargo:rerun-if-changed=turnkv");
    println!("cargo:rerun-if-changed=etcd");
    let files = [
        "turnkv/v1/pool.proto",
        "turnkv/v1/sessions.proto",
        "turnkv/v1/admin.proto",
        "turnkv/v1/local.proto",
        "turnkv/v1/remote.proto",
        "turnkv/v1/snapshots.proto",
        "turnkv/v1/cluster.proto",
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

    // Of etcd this is a client only.
    if std::env::var_os("CARGO_FEATURE_ETCD").is_some() {
        let etcd = protox::compile(["etcd/kv.proto", "etcd/rpc.proto"], ["."])?;
        tonic_prost_build::configure().bytes(".").build_server(false).compile_fds(etcd)?;
    }
    Ok(())
}

/// The type of all methods: a variant each, its path on the wire, and its name in metrics. Whoever matches on it says
/// something of every method, also of the next one.
#[cfg(feature = "wire")]
fn methods(descriptors: &tonic_prost_build::FileDescriptorSet) -> String {
    let (mut variants, mut all, mut paths, mut names) = Default::default();
    let add = |text: &mut String, more: String| text.push_str(&more);
    for file in &descriptors.file {
        for service in &file.service {
            for method in &service.method {
                let variant = format!("{}{}", service.name(), method.name());
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                // Sessions has verbs of the same names.
                let of = if service.name() == "Snapshots" { "snapshot_" } else { "" };
                let name = format!("{of}{}", snake(method.name()));
                add(&mut variants, format!("    /// `{path}`\n    {variant},\n"));
                add(&mut all, format!("Method::{variant}, "));
                add(&mut paths, format!("Method::{variant} => {path:?}, "));
                add(&mut names, format!("Method::{variant} => {name:?}, "));
            }
        }
    }
    format!(
        "#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]\npub enum Method {{\n{variants}}}\n\
         impl Method {{\n/// Every method.\npub const ALL: &[Method] = &[{all}];\n\
         /// Its path in an HTTP request.\n#[must_use]\npub fn path(self) -> &'static str {{ match self {{ {paths} }} }}\n\
         /// Its name in metrics.\n#[must_use]\npub fn name(self) -> &'static str {{ match self {{ {names} }} }}\n}}\n"
    )
}

#[cfg(feature = "wire")]
fn snake(name: &str) -> String {
    name.chars().fold(String::new(), |mut name, letter| {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
        name
    })
}

#[cfg(not(feature = "wire"))]
fn main() {}
