//! The container image of `cargo xtask package`: an archive in OCI's layout (image-spec 1.1), which `docker load`, `podman
//! load` and `skopeo copy oci-archive:FILE` read.
//!
//! Promises: nothing is fetched and no daemon is asked. The image has the command, the libraries, the libraries of this
//! system that these and programs in C++ need, with their licences, and nothing else. The same build on the same system
//! gives the same bytes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::package::{plain_tar, settle};
use crate::step;

/// The user of the image, which has no rights.
const USER: &str = "65532:65532";

/// Makes the archive from a tree with `usr`; `time` is that of the commit.
pub(crate) fn pack(tree: &Path, folder: &Path, archive: &Path, version: &str, time: &str) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let (root, layout) = (folder.join("root"), folder.join("layout"));
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    fill(tree, &root)?;
    settle(&root)?;
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    let layer = folder.join("layer.tar");
    step::run(plain_tar(time).arg("-cf").arg(&layer).arg("-C").arg(&root).arg("."))?;
    let uncompressed = sum(&layer)?;
    step::run(Command::new("gzip").args(["-9", "-n"]).arg(&layer))?;
    let layer = keep(&blobs, &folder.join("layer.tar.gz"), "application/vnd.oci.image.layer.v1.tar+gzip")?;
    let created = step::output(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ", "-d"]).arg(format!("@{time}")))?;
    let architecture = if std::env::consts::ARCH == "x86_64" { "amd64" } else { "arm64" };
    let configuration = json!({
        "created": created.trim(),
        "architecture": architecture,
        "os": "linux",
        "config": { "User": USER, "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Entrypoint": ["trellis"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{uncompressed}")] },
        "history": [{ "created": created.trim(), "created_by": "cargo xtask package" }],
    });
    let configuration = text(&blobs, folder, &configuration, "application/vnd.oci.image.config.v1+json")?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": configuration,
        "layers": [layer],
    });
    let mut manifest = text(&blobs, folder, &manifest, "application/vnd.oci.image.manifest.v1+json")?;
    let name = format!("trellis:{version}");
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": version,
        "io.containerd.image.name": format!("docker.io/library/{name}"),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    fs::write(layout.join("index.json"), index.to_string())?;
    fs::write(layout.join("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;
    step::run(plain_tar(time).arg("-cf").arg(archive).arg("-C").arg(&layout).args([
        "blobs",
        "index.json",
        "oci-layout",
    ]))?;
    Ok(fs::remove_dir_all(folder)?)
}

/// Unpacks the image in an archive into a folder, after it has compared what it reads with the sums that name it.
pub(crate) fn unpack(archive: &Path, folder: &Path) -> Result<PathBuf> {
    let (layout, root) = (folder.join("layout"), folder.join("root"));
    fs::create_dir_all(&layout)?;
    fs::create_dir_all(&root)?;
    step::run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&layout))?;
    let blob = |about: &Value| -> Result<PathBuf> {
        let digest = about["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
        let digest = digest.context("something in the image has no sum")?;
        let file = layout.join("blobs/sha256").join(digest);
        match sum(&file)? == digest && about["size"] == fs::metadata(&file)?.len() {
            true => Ok(file),
            false => bail!("{} is not what the image says", file.display()),
        }
    };
    let read = |file: &Path| -> Result<Value> { Ok(serde_json::from_slice(&fs::read(file)?)?) };
    let manifest = read(&blob(&read(&layout.join("index.json"))?["manifests"][0])?)?;
    let configuration = read(&blob(&manifest["config"])?)?;
    if configuration["config"]["User"] != USER {
        bail!("the image has another user: {configuration}");
    }
    step::run(Command::new("tar").arg("-xzf").arg(blob(&manifest["layers"][0])?).arg("-C").arg(&root))?;
    Ok(root)
}

/// The files of the image: what runs, and what that is linked with.
fn fill(tree: &Path, root: &Path) -> Result<()> {
    for folder in ["usr/bin", "usr/lib", "tmp"] {
        fs::create_dir_all(root.join(folder))?;
    }
    let copy = |files: &[PathBuf], to: &Path| step::run(Command::new("cp").args(["-d", "--"]).args(files).arg(to));
    copy(&[tree.join("usr/bin/trellis")], &root.join("usr/bin"))?;
    let is_library =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libtrellis"));
    let entries = fs::read_dir(tree.join("usr/lib"))?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let libraries: Vec<PathBuf> = entries.into_iter().filter(is_library).collect();
    copy(&libraries, &root.join("usr/lib"))?;
    let standard = step::output(Command::new("c++").arg("-print-file-name=libstdc++.so.6"))?;
    let mut linked = vec![tree.join("usr/bin/trellis"), PathBuf::from(standard.trim())];
    linked.extend(libraries);
    for (name, file) in
        linked_with(&linked)?.into_iter().chain([(PathBuf::from("/usr/lib/libstdc++.so.6"), linked[1].clone())])
    {
        let place = root.join(name.strip_prefix("/").unwrap_or(&name));
        fs::create_dir_all(place.parent().unwrap_or(root))?;
        // The file itself, where the loader looks for a link.
        fs::copy(&file, &place).with_context(|| format!("cannot copy {}", file.display()))?;
    }
    for package in ["libc6", "libgcc-s1", "libstdc++6", "trellis"] {
        let licence = PathBuf::from(format!("usr/share/doc/{package}"));
        let from = if package == "trellis" { tree.join(&licence) } else { Path::new("/").join(&licence) };
        if from.is_dir() {
            fs::create_dir_all(root.join(&licence))?;
            step::run(Command::new("cp").args(["-rL", "--"]).arg(from).arg(root.join("usr/share/doc")))?;
        }
    }
    Ok(())
}

/// Where the loader looks for the libraries of these files, and where they are here.
fn linked_with(files: &[PathBuf]) -> Result<BTreeSet<(PathBuf, PathBuf)>> {
    let said = step::output(Command::new("ldd").args(files))?;
    let found = said
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/') && !word.ends_with(':')));
    Ok(found.map(|path| (PathBuf::from(path), PathBuf::from(path))).collect())
}

/// Keeps a file under its sum, and describes it.
fn keep(blobs: &Path, file: &Path, kind: &str) -> Result<Value> {
    let (digest, bytes) = (sum(file)?, fs::metadata(file)?.len());
    fs::rename(file, blobs.join(&digest))?;
    Ok(json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes }))
}

fn text(blobs: &Path, folder: &Path, value: &Value, kind: &str) -> Result<Value> {
    let file = folder.join("text");
    fs::write(&file, value.to_string())?;
    keep(blobs, &file, kind)
}

fn sum(file: &Path) -> Result<String> {
    let said = step::output(Command::new("sha256sum").arg(file))?;
    Ok(said.split(' ').next().unwrap_or_default().to_owned())
}
