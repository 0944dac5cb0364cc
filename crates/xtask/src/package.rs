//! `cargo xtask package`: what people install: an archive with an installer, `.deb` and `.rpm` files, all from one tree.
//! What measures and checks is a package of its own.
//!
//! Promises: the same build gives the same bytes: files have the time of the commit and no owner. Nothing is packed that
//! is not in the tree of `cargo xtask install`, the manual pages, the completions, the units, and the documents that a
//! package must have. Symbols for debuggers are an archive of their own. The command and the library are not larger than
//! [`COMMAND_AND_LIBRARY_BYTES_MAX`]. It must never write outside the target folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup::{self, Needed};
use crate::step;
use crate::workspace::{Profile, Workspace, link};
use crate::{demo, image, kubernetes};

/// Builds `.rpm` files.
pub(crate) const RPM: Needed = Needed::new("rpmbuild", "rpm");
/// Finds the packages whose libraries a program needs.
pub(crate) const SHLIBDEPS: Needed = Needed::new("dpkg-shlibdeps", "dpkg-dev");
/// Checks units.
pub(crate) const UNITS: Needed = Needed::new("systemd-analyze", "systemd");
/// Makes a system that has nothing but what is named.
pub(crate) const SYSTEM: Needed = Needed::new("mmdebstrap", "mmdebstrap");
/// Formats manual pages.
pub(crate) const MANUAL: Needed = Needed::new("groff", "groff");

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The most room that the command and the library take where the package is installed.
const COMMAND_AND_LIBRARY_BYTES_MAX: u64 = 12_000_000;
/// The shells, and where their completions lie below the prefix.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/trellis"),
    ("zsh", "share/zsh/site-functions/_trellis"),
    ("fish", "share/fish/vendor_completions.d/trellis.fish"),
];
/// Folders that no other package has.
const OWN_FOLDERS: [&str; 6] =
    ["include/trellis", "include/libivy", "lib64/trellis", "lib64/cmake/Trellis", "share/trellis", "share/doc/trellis"];
/// Documents of the repository, and their places below the prefix.
const DOCUMENTS: [(&str, &str); 4] = [
    ("README.md", "share/doc/trellis/README.md"),
    ("CHANGELOG.md", "share/doc/trellis/CHANGELOG.md"),
    ("LICENSE-MIT", "share/doc/trellis/LICENSE-MIT"),
    ("LICENSE-APACHE", "share/doc/trellis/LICENSE-APACHE"),
];

/// A package of those that need one.
struct Part {
    name: &'static str,
    /// The name of its description in `packaging/debian`.
    control: &'static str,
    /// The scripts there that run when it is installed and removed.
    scripts: &'static [&'static str],
    /// Files that say which libraries it needs.
    linked: &'static [&'static str],
}

const MAIN: Part = Part {
    name: "trellis",
    control: "control.in",
    scripts: &["prerm", "postinst", "postrm"],
    linked: &["usr/bin/trellis", "usr/lib/libtrellis.so"],
};

/// What measures and checks. Most users never start it.
const BENCH: Part =
    Part { name: "trellis-bench", control: "bench.control.in", scripts: &[], linked: &["usr/bin/trellis-bench"] };

/// Whether a file, relative to the prefix, belongs to [`BENCH`].
fn is_of_bench(file: &str) -> bool {
    let pages = ["bench", "check", "reproduce"].map(|name| format!("share/man/man1/trellis-{name}"));
    file == "bin/trellis-bench"
        || file.starts_with("share/trellis/parmacs/")
        || pages.iter().any(|page| file.starts_with(page))
}

/// Makes everything from one build, in `package` of the target folder, and returns the files.
pub(crate) fn run(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    setup::ensure(setup::NEEDED)?;
    let folder = workspace.target.join("package");
    let [tree, bench] = ["tree", "bench"].map(|name| folder.join(name));
    for old in [&tree, &bench, &folder.join("rpm")] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    workspace.build(Profile::Packaged)?;
    let time = time_of_commit(workspace)?;
    let prefix = tree.join("usr");
    step::step("put the tree together", || {
        demo::install_built(workspace, workspace, Profile::Packaged, &prefix)?;
        accompany(workspace, &prefix)?;
        settle(&tree)
    })?;
    let architecture = step::output(Command::new("dpkg").arg("--print-architecture"))?.trim().to_owned();
    let name = format!("trellis-{VERSION}-linux-{}", std::env::consts::ARCH);
    let symbols = folder.join(format!("{name}-symbols.tar.gz"));
    step::step("symbols", || pack_symbols(&prefix, &symbols, &time))?;
    let archive = folder.join(format!("{name}.tar.gz"));
    step::step("archive", || pack_archive(workspace, &prefix, &folder.join(&name), &archive, &time))?;
    for file in below(&prefix)?.iter().filter(|file| is_of_bench(file)) {
        let place = bench.join("usr").join(file);
        fs::create_dir_all(place.parent().unwrap_or(&bench))?;
        fs::rename(prefix.join(file), place)?;
    }
    fs::remove_dir_all(prefix.join("share/trellis/parmacs"))?;
    let oci = folder.join(format!("{name}-oci.tar"));
    step::step("container image", || image::pack(&tree, &folder.join("image"), &oci, VERSION, &time))?;
    let deb = |part: &Part| folder.join(format!("{}_{VERSION}_{architecture}.deb", part.name));
    for (part, tree) in [(&MAIN, &tree), (&BENCH, &bench)] {
        let title = format!("deb of {}", part.name);
        step::step(&title, || pack_deb(workspace, part, tree, &architecture, &deb(part), &time))?;
    }
    let [rpm, bench_rpm] = step::step("rpm", || pack_rpm(workspace, &tree, &bench, &folder, &time))?;
    Ok(vec![archive, deb(&MAIN), rpm, deb(&BENCH), bench_rpm, oci, symbols])
}

/// The bytes of the command and of the library below a prefix.
fn command_and_library_bytes(prefix: &Path) -> Result<u64> {
    let sizes = ["bin/trellis", "lib/libtrellis.so"].map(|file| fs::metadata(prefix.join(file)).map(|it| it.len()));
    let [command, library] = sizes;
    Ok(command? + library?)
}

/// Builds each crate from what crates.io would get, in the order of their dependencies, and uploads nothing. Makes the
/// packages twice, compares them, and tries what they contain without a change to this machine. Checks the files for
/// Kubernetes.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    kubernetes::check(workspace)?;
    check_recipe(&workspace.root.join("packaging/spack/package.py"))?;
    let published = workspace.target.join("publish");
    let mut publish = workspace.cargo();
    publish.args(["publish", "--workspace", "--dry-run", "--allow-dirty", "--locked", "--quiet", "--target-dir"]);
    publish.arg(&published).env("CARGO_HOME", home_of_cargo(&published.join("home"))?);
    step::command("what crates.io would get", &mut publish)?;
    let sums = |made: &[PathBuf]| step::output(Command::new("sha256sum").args(made));
    let before = sums(&run(workspace)?)?;
    let made = run(workspace)?;
    if sums(&made)? != before {
        bail!("the packages of one build differ: {before}");
    }
    let [archive, deb, rpm, bench, _, oci, _] = &made[..] else { bail!("there are {} packages", made.len()) };
    let folder = workspace.target.join("package/check");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let has = |list: &str, file: &str| match list.lines().any(|line| line.ends_with(file)) {
        true => Ok(()),
        false => bail!("{file} is not in the package: {list}"),
    };
    step::step("what the packages have", || {
        let list = step::output(Command::new("rpm").args(["-q", "-p", "-l"]).arg(rpm))?;
        ["/usr/lib64/libtrellis.so", "/usr/bin/trellis"].iter().try_for_each(|file| has(&list, file))?;
        step::run(Command::new("dpkg-deb").arg("-x").arg(deb).arg(folder.join("deb")))?;
        let root = folder.join("deb");
        let bytes = command_and_library_bytes(&root.join("usr"))?;
        if bytes > COMMAND_AND_LIBRARY_BYTES_MAX {
            bail!("the command and the library have {bytes} bytes; the limit is {COMMAND_AND_LIBRARY_BYTES_MAX}");
        }
        eprintln!("    the command and the library have {bytes} bytes");
        let units = files(&root.join("usr/lib/systemd/system"))?;
        step::output(
            Command::new("systemd-analyze")
                .args(["verify", "--man=no", "--recursive-errors=no"])
                .arg(root_option(&root))
                .args(&units),
        )?;
        for page in files(&root.join("usr/share/man/man1"))? {
            let text = step::output(Command::new("gzip").args(["-d", "-c"]).arg(&page))?;
            let plain = folder.join("page");
            write(&plain, text.as_bytes())?;
            let mut format = Command::new("groff");
            let warnings =
                format.args(["-man", "-Kutf8", "-Tutf8", "-ww", "-Wbreak", "-z"]).arg(&plain).output()?.stderr;
            if !warnings.is_empty() {
                bail!("{}: {}", page.display(), String::from_utf8_lossy(&warnings));
            }
        }
        step::run(Command::new("bash").arg("-n").arg(root.join("usr").join(COMPLETIONS[0].1)))
    })?;
    step::step("the archive: install, compile, run, remove", || {
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", TRY_ARCHIVE, "sh"]).arg(archive).current_dir(&folder);
        shell.arg(workspace.root.join("examples/hello/hello.cpp"));
        step::output(&mut shell).map(drop)
    })?;
    if !setup::is_root()? {
        eprintln!("    SKIPPED the .deb on a system with nothing else (root): only root can make one");
        return Ok(fs::remove_dir_all(&folder)?);
    }
    step::step("the container image: run two nodes of a program", || {
        let root = image::unpack(oci, &folder.join("image"))?;
        let made = Command::new("c++")
            .args(["-std=c++20", "-O2"])
            .arg(workspace.root.join("examples/hello/hello.cpp"))
            .arg("-I")
            .arg(folder.join("deb/usr/include"))
            .arg("-L")
            .arg(folder.join("deb/usr/lib"))
            .args(["-ltrellis", "-pthread", "-o"])
            .arg(root.join("hello"))
            .output()?;
        if !made.status.success() {
            bail!("hello cannot be compiled: {}", String::from_utf8_lossy(&made.stderr));
        }
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-e", "-c", TRY_IMAGE, "sh"]).arg(&root);
        step::output(&mut shell).map(drop)
    })?;
    setup::ensure(&[SYSTEM])?;
    let system = folder.join("system");
    step::step("a system with a compiler and nothing else", || {
        let mut make = Command::new("mmdebstrap");
        make.args(["--quiet", "--variant=minbase", "--include=g++,pkg-config", &codename()?]);
        step::output(make.arg(&system)).map(drop)
    })?;
    step::step("the .deb there: install, doctor, compile, run, remove", || {
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "--pid", "--fork", "--kill-child", "--net", "sh", "-e", "-c", TRY_DEB, "sh"]);
        let program = folder.join("pi.cpp");
        write(&program, program_of_readme(workspace)?.as_bytes())?;
        shell.args([deb, &program, &system, bench]);
        // The environment of this machine is not that of the system.
        shell.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        step::output(&mut shell).map(drop)
    })?;
    step::step("the .rpm there: install, doctor, compile, run, remove", || {
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "--pid", "--fork", "--kill-child", "--net", "sh", "-e", "-c", TRY_RPM, "sh"]);
        shell.args([rpm, &folder.join("pi.cpp"), &system]);
        shell.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        step::output(&mut shell).map(drop)
    })?;
    step::step("two containers of it, as pods of Kubernetes", || {
        step::output(Command::new("chroot").arg(&system).args(["dpkg", "-i", "/tmp/try/trellis.deb"]))?;
        kubernetes::run_containers(&system, &folder.join("pods"))
    })?;
    Ok(fs::remove_dir_all(&folder)?)
}

/// Python reads the recipe; Spack itself is in no package that can be installed here.
fn check_recipe(recipe: &Path) -> Result<()> {
    let compile = "import ast, pathlib, sys; ast.parse(pathlib.Path(sys.argv[1]).read_text())";
    step::output(Command::new("python3").args(["-c", compile]).arg(recipe))?;
    eprintln!("SKIPPED the recipe of Spack (program): no package has Spack; Python alone has read the recipe");
    Ok(())
}

/// A home for cargo that has the index and the archives of the user's, and sources of its own. Cargo unpacks a version
/// once and takes it for what it is from then on, but our crates change without another version.
fn home_of_cargo(folder: &Path) -> Result<PathBuf> {
    let users = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let users = users.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    let users = users.context("neither CARGO_HOME nor HOME is set")?;
    let sources = folder.join("registry/src");
    if sources.exists() {
        fs::remove_dir_all(&sources).with_context(|| format!("cannot remove {}", sources.display()))?;
    }
    for shared in ["registry/index", "registry/cache", "config.toml"] {
        if users.join(shared).exists() {
            link(&users.join(shared), &folder.join(shared))?;
        }
    }
    Ok(folder.to_owned())
}

/// Installs the archive `$1` under a prefix, compiles the program `$2` with what pkg-config says, runs it on two nodes,
/// and removes everything again.
const TRY_ARCHIVE: &str = r#"
tar -xzf "$1"
installer=$(echo "$PWD"/trellis-*/install.sh)
"$installer" --prefix "$PWD/prefix" >&2
export PKG_CONFIG_PATH="$PWD/prefix/lib/pkgconfig"
c++ -std=c++20 -O2 "$2" $(pkg-config --cflags --libs trellis) -o hello
prefix/bin/trellis run -n 2 ./hello >&2
"$installer" --uninstall --prefix "$PWD/prefix" >&2
left=$(find prefix ! -type d)
[ -z "$left" ] || { echo "left behind: $left" >&2; exit 1; }
"#;

/// The name of this machine's release of Debian, for which the packages are.
fn codename() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("/etc/os-release cannot be read")?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.context("/etc/os-release names no release")?.to_owned())
}

/// The README's program in C++.
fn program_of_readme(workspace: &Workspace) -> Result<String> {
    let readme = fs::read_to_string(workspace.root.join("README.md")).context("README.md cannot be read")?;
    let program = readme.split_once("```cpp\n").and_then(|(_, rest)| rest.split_once("```"));
    program.map(|(program, _)| program.to_owned()).context("README.md has no program in C++")
}

/// Installs the package `$1` on the system in the folder `$3`, which has no network, and does the same with it. The
/// package `$4` adds what measures.
const TRY_DEB: &str = r#"
ip link set lo up
mount -t proc none "$3/proc"
mount --rbind /dev "$3/dev"
mkdir "$3/tmp/try"
cp "$1" "$3/tmp/try/trellis.deb"
cp "$2" "$3/tmp/try/pi.cpp"
cp "$4" "$3/tmp/try/bench.deb"
chroot "$3" sh -e -c '
    cd /tmp/try
    dpkg -i trellis.deb
    trellis doctor
    c++ -std=c++20 -O2 pi.cpp $(pkg-config --cflags --libs trellis) -o pi
    trellis run -n 4 ./pi | grep 3.14159
    [ -e /usr/share/man/man1/trellis-run.1.gz ]
    [ -z "$(dpkg --verify trellis)" ]
    ! trellis bench start 2>said
    grep -q "in the package trellis-bench, which is not installed" said
    dpkg -i bench.deb
    trellis bench start --rounds 1
    [ -e /usr/share/man/man1/trellis-bench.1.gz ]
    [ -z "$(dpkg --verify trellis-bench)" ]
    dpkg -r trellis-bench trellis
    [ ! -e /usr/bin/trellis ]
    [ ! -e /usr/bin/trellis-bench ]' >&2
"#;

/// Installs the package `$1` with rpm(8) and a new database on the system in the folder `$3`, and does the same with it.
/// That system is one of Debian: it must have the libraries that the package needs, which its database does not know, and
/// is told to look for libraries where systems with rpm do.
const TRY_RPM: &str = r#"
on_system() { rpm --root "$system" --dbpath /var/lib/rpm "$@"; }
rpm=$1
system=$3
ip link set lo up
mount -t proc none "$system/proc"
mount --rbind /dev "$system/dev"
cp "$2" "$system/tmp/try/pi.cpp"
[ ! -e "$system/usr/bin/trellis" ]
echo /usr/lib64 > "$system/etc/ld.so.conf.d/lib64.conf"
own=$(rpm -q -p --provides "$rpm")
for library in $(rpm -q -p --requires "$rpm" | grep -vxF "$own" | sed -n 's/^\(\(lib\|ld-\)[^(]*\)(.*/\1/p' | sort -u); do
    chroot "$system" ldconfig -p | grep -q "$library" || { echo "$library is not on the system" >&2; exit 1; }
done
on_system --initdb
on_system --install --force-debian --nodeps "$rpm" >&2
chroot "$system" sh -e -c '
    cd /tmp/try
    ldconfig
    trellis doctor
    export PKG_CONFIG_PATH=/usr/lib64/pkgconfig
    c++ -std=c++20 -O2 pi.cpp $(pkg-config --cflags --libs trellis) -o pi-of-rpm
    trellis run -n 4 ./pi-of-rpm | grep 3.14159
    [ -e /usr/share/man/man1/trellis-run.1.gz ]' >&2
[ -z "$(on_system --verify --nodeps trellis)" ]
on_system --erase --force-debian trellis >&2
[ ! -e "$system/usr/bin/trellis" ]
[ ! -e "$system/usr/lib64/libtrellis.so" ]
rm "$system/etc/ld.so.conf.d/lib64.conf"
"#;

/// Runs a program in the container image whose files are in `$1`, as the user of the image.
const TRY_IMAGE: &str = r#"
mkdir "$1/proc" "$1/dev"
mount -t proc none "$1/proc"
mount --rbind /dev "$1/dev"
chroot --userspec 65532:65532 "$1" /usr/bin/trellis run -n 2 /hello >&2
"#;

/// The option of systemd-analyze(1) for units below a folder.
fn root_option(root: &Path) -> std::ffi::OsString {
    let mut option = std::ffi::OsString::from("--root=");
    option.push(root);
    option
}

/// Adds manual pages, completions, units and documents.
fn accompany(workspace: &Workspace, prefix: &Path) -> Result<()> {
    let command = workspace.built(Profile::Packaged, "trellis");
    let manual = prefix.join("share/man/man1");
    // Defaults that follow from the builder's environment are not the reader's.
    step::run(Command::new(&command).arg("manual").arg(&manual).env_remove("XDG_RUNTIME_DIR"))?;
    for page in files(&manual)? {
        step::run(Command::new("gzip").args(["-9", "-n"]).arg(&page))?;
    }
    for (shell, place) in COMPLETIONS {
        let script = step::output(Command::new(&command).args(["completions", shell]))?;
        write(&prefix.join(place), script.as_bytes())?;
    }
    for unit in files(&workspace.root.join("packaging/systemd"))? {
        let name = unit.file_name().unwrap_or_default();
        write(&prefix.join("lib/systemd/system").join(name), &fs::read(&unit)?)?;
    }
    for (document, place) in DOCUMENTS {
        write(&prefix.join(place), &fs::read(workspace.root.join(document))?)?;
    }
    Ok(())
}

/// Modes that do not depend on the building user's umask.
pub(crate) fn settle(tree: &Path) -> Result<()> {
    for entry in walk(tree)? {
        let about = fs::symlink_metadata(&entry)?;
        if about.is_symlink() {
            continue;
        }
        let runs = about.is_dir() || about.permissions().mode() & 0o100 != 0;
        fs::set_permissions(&entry, fs::Permissions::from_mode(if runs { 0o755 } else { 0o644 }))?;
    }
    Ok(())
}

/// Moves what only debuggers need into an archive of its own.
fn pack_symbols(prefix: &Path, archive: &Path, time: &str) -> Result<()> {
    let folders = ["bin/.debug", "lib/.debug"];
    step::run(tar(time).arg("-cf").arg(archive).arg("-C").arg(prefix).args(folders))?;
    for folder in folders {
        fs::remove_dir_all(prefix.join(folder))?;
    }
    Ok(())
}

/// The archive: a folder with the tree, the installer, and the list of files for it.
fn pack_archive(workspace: &Workspace, prefix: &Path, folder: &Path, archive: &Path, time: &str) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    step::run(Command::new("cp").arg("-a").arg(prefix).arg(folder))?;
    // Only a system has units.
    fs::remove_dir_all(folder.join("lib/systemd"))?;
    let list: String = below(folder)?.iter().map(|file| format!("{file}\n")).collect();
    write(&folder.join("files"), list.as_bytes())?;
    fs::copy(workspace.root.join("packaging/install.sh"), folder.join("install.sh"))?;
    fs::set_permissions(folder.join("install.sh"), fs::Permissions::from_mode(0o755))?;
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else { bail!("the archive has no name") };
    settle(folder)?;
    step::run(tar(time).arg("-cf").arg(archive).arg("-C").arg(parent).arg(name))?;
    Ok(fs::remove_dir_all(folder)?)
}

/// The `.deb` (deb(5)); its dependencies are those that `dpkg-shlibdeps` finds.
fn pack_deb(workspace: &Workspace, part: &Part, tree: &Path, architecture: &str, deb: &Path, time: &str) -> Result<()> {
    let text = fs::read_to_string(workspace.root.join("packaging/debian").join(part.control))?;
    // As dpkg-gencontrol(1) counts: files in whole KiB, everything else as one.
    let kib = |entry: &PathBuf| match fs::symlink_metadata(entry) {
        Ok(about) if about.is_file() => about.len().div_ceil(1024),
        _ => 1,
    };
    let installed_kib: u64 = walk(tree)?.iter().map(kib).sum();
    let about = tree.join("DEBIAN");
    fs::create_dir_all(&about)?;
    let control = text
        .replace("@VERSION@", VERSION)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@KIB@", &installed_kib.to_string())
        .replace("@DEPENDS@", &dependencies(part, tree, deb)?);
    write(&about.join("control"), control.as_bytes())?;
    let sums = checksums(tree)?;
    write(&about.join("md5sums"), sums.as_bytes())?;
    for script in part.scripts {
        let file = about.join(script);
        fs::copy(workspace.root.join("packaging/debian").join(script), &file)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    }
    let completions = ["share/zsh/site-functions/_trellis", "share/zsh/vendor-completions/_trellis"];
    let [ordinary, of_debian] = completions.map(|place| tree.join("usr").join(place));
    let has_library = ordinary.exists();
    if has_library {
        write(&about.join("triggers"), b"activate-noawait ldconfig\n")?;
        fs::create_dir_all(of_debian.parent().unwrap_or(tree))?;
        fs::rename(&ordinary, &of_debian)?;
        fs::remove_dir(ordinary.parent().unwrap_or(tree))?;
    }
    settle(tree)?;
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zxz", "--build"]).arg(tree).arg(deb).env("SOURCE_DATE_EPOCH", time);
    set_times(tree, time)?;
    step::output(&mut build)?;
    if has_library {
        fs::create_dir_all(ordinary.parent().unwrap_or(tree))?;
        fs::rename(&of_debian, &ordinary)?;
        fs::remove_dir(of_debian.parent().unwrap_or(tree))?;
    }
    Ok(fs::remove_dir_all(&about)?)
}

/// The packages of Debian whose libraries a package needs.
fn dependencies(part: &Part, tree: &Path, deb: &Path) -> Result<String> {
    let source = deb.with_extension("source");
    write(&source.join("debian/control"), b"Source: trellis\n\nPackage: trellis\nArchitecture: any\n")?;
    let mut find = Command::new("dpkg-shlibdeps");
    find.current_dir(&source).args(["-O", "--ignore-missing-info", "-xtrellis"]);
    let found = step::output(find.args(part.linked.iter().map(|file| tree.join(file))))?;
    fs::remove_dir_all(&source)?;
    let found = found.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    Ok(found.context("dpkg-shlibdeps names no packages")?.trim().to_owned())
}

/// The checksums by which dpkg verifies what it has installed.
fn checksums(tree: &Path) -> Result<String> {
    let is_plain = |file: &String| !file.starts_with("DEBIAN/") && !tree.join(file).is_symlink();
    let files: Vec<String> = below(tree)?.into_iter().filter(is_plain).collect();
    step::output(Command::new("md5sum").args(files).current_dir(tree))
}

/// The `.rpm` files, with libraries where 64-bit systems of this kind look for them.
fn pack_rpm(workspace: &Workspace, tree: &Path, bench: &Path, folder: &Path, time: &str) -> Result<[PathBuf; 2]> {
    let top = folder.join("rpm");
    let own = top.join("tree");
    fs::create_dir_all(&top)?;
    step::run(Command::new("cp").arg("-a").arg(tree).arg(&own))?;
    fs::create_dir_all(own.join("usr/lib64"))?;
    for entry in fs::read_dir(own.join("usr/lib"))? {
        let entry = entry?;
        if entry.file_name() != "systemd" {
            fs::rename(entry.path(), own.join("usr/lib64").join(entry.file_name()))?;
        }
    }
    // These files name the folder of the libraries.
    for file in ["pkgconfig/trellis.pc", "pkgconfig/libivy.pc", "cmake/Trellis/TrellisConfig.cmake"] {
        let file = own.join("usr/lib64").join(file);
        let text = fs::read_to_string(&file)?;
        let moved = text.replace("prefix}/lib\n", "prefix}/lib64\n").replace("prefix}/lib/", "prefix}/lib64/");
        if moved == text {
            bail!("{} names no folder of libraries", file.display());
        }
        fs::write(&file, moved)?;
    }
    let of_bench = below(bench)?;
    step::run(Command::new("cp").arg("-a").arg(bench.join("usr")).arg(&own))?;
    let folders = OWN_FOLDERS.map(|folder| own.join("usr").join(folder));
    let is_own = |entry: &PathBuf| entry.is_dir() && folders.iter().any(|folder| entry.starts_with(folder));
    let of_package = walk(&own)?.into_iter().filter(is_own);
    let owned =
        of_package.filter_map(|entry| Some(format!("%dir \"/{}\"\n", entry.strip_prefix(&own).ok()?.display())));
    let listed = |file: &String| format!("\"/{file}\"\n");
    let files = below(&own)?.into_iter().filter(|file| !of_bench.contains(file));
    let list: String = owned.chain(files.map(|file| listed(&file))).collect();
    write(&top.join("files"), list.as_bytes())?;
    write(&top.join("bench"), of_bench.iter().map(listed).collect::<String>().as_bytes())?;
    let spec = fs::read_to_string(workspace.root.join("packaging/rpm/trellis.spec.in"))?
        .replace("@VERSION@", VERSION)
        .replace("@TREE@", &own.display().to_string())
        .replace("@FILES@", &top.join("files").display().to_string())
        .replace("@BENCH@", &top.join("bench").display().to_string());
    write(&top.join("trellis.spec"), spec.as_bytes())?;
    set_times(&own, time)?;
    let mut build = Command::new("rpmbuild");
    build.args(["-bb", "--quiet", "--define"]).arg(format!("_topdir {}", top.display()));
    // The files are stripped already. The package must not contain the build host or the time of the build.
    for define in [
        "debug_package %{nil}",
        "__os_install_post %{nil}",
        "_build_id_links none",
        "_buildhost localhost",
        "use_source_date_epoch_as_buildtime 1",
        "clamp_mtime_to_source_date_epoch 1",
    ] {
        build.args(["--define", define]);
    }
    step::output(build.arg(top.join("trellis.spec")).env("SOURCE_DATE_EPOCH", time))?;
    let architecture = std::env::consts::ARCH;
    let names = [MAIN.name, BENCH.name].map(|name| format!("{name}-{VERSION}-1.{architecture}.rpm"));
    for name in &names {
        let made = top.join("RPMS").join(architecture).join(name);
        fs::rename(&made, folder.join(name)).with_context(|| format!("rpmbuild made no {}", made.display()))?;
    }
    fs::remove_dir_all(&top)?;
    Ok(names.map(|name| folder.join(name)))
}

/// The time of the commit in seconds since 1970, or the one that the caller gives (reproducible-builds.org).
fn time_of_commit(workspace: &Workspace) -> Result<String> {
    if let Ok(time) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(time);
    }
    let mut log = workspace.command("git");
    let time = step::output(log.args(["log", "-1", "--format=%ct"]));
    let time = time.context("this is no clone of the repository; set SOURCE_DATE_EPOCH to the time of the release")?;
    Ok(time.trim().to_owned())
}

/// `tar` with the same result for the same files.
pub(crate) fn plain_tar(time: &str) -> Command {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    tar.arg(format!("--mtime=@{time}"));
    tar
}

/// The same, compressed.
fn tar(time: &str) -> Command {
    let mut tar = plain_tar(time);
    tar.args(["--use-compress-program", "gzip -n"]);
    tar
}

/// Gives every file this time: rpm and dpkg only cut times that are later.
fn set_times(tree: &Path, time: &str) -> Result<()> {
    let all = walk(tree)?;
    step::run(Command::new("touch").args(["--no-dereference", "--date"]).arg(format!("@{time}")).args(all))
}

fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    fs::create_dir_all(file.parent().unwrap_or(Path::new("/")))?;
    fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))
}

/// The files directly in a folder, in order.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

/// Everything in a folder, folders first.
fn walk(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut all = vec![folder.to_owned()];
    for entry in files(folder)? {
        match entry.is_dir() && !entry.is_symlink() {
            true => all.extend(walk(&entry)?),
            false => all.push(entry),
        }
    }
    Ok(all)
}

/// The files and links in a folder, relative to it.
fn below(folder: &Path) -> Result<Vec<String>> {
    let is_file = |entry: &PathBuf| entry.is_symlink() || !entry.is_dir();
    let relative = |entry: PathBuf| entry.strip_prefix(folder).map(|file| file.display().to_string()).ok();
    Ok(walk(folder)?.into_iter().filter(is_file).filter_map(relative).collect())
}
