//! `cargo xtask documents`: carries out the README and the guides as they are written.
//!
//! Promises: every `sh` block of a document runs, in the order of the text, in one shell that ends with the first
//! command that fails. A block whose paragraph names a file (`heat.cpp`) is saved under this name in the shell's
//! current folder. Each document gets a home folder, a network and processes of its own, which end with it, and a
//! copy of the examples; it writes nothing into the repository. Of the programs that only some tasks of the project
//! need, it finds those that its text, or the README, says to install. The guides that name several hosts are carried
//! out by a test of `trellis-cli` instead, which has a lab.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use trellis_output::programs;

use crate::workspace::Workspace;
use crate::{setup, step};

/// The guides that `crates/trellis-cli/tests/guides.rs` carries out, each command on the host that the guide names.
const ON_SEVERAL_HOSTS: [&str; 2] =
    ["docs/guides/give-a-program-the-racks-memory.md", "docs/guides/operate-a-memory-fabric.md"];

/// Lines that CI carries out elsewhere, in any document.
const ELSEWHERE: [&str; 1] = ["cargo xtask test "];

/// Temporary files that hosts of a lab see, too: each has a `/tmp` of its own.
const SHARED: &str = "/var/tmp";

/// Output that a reader types in place of the document's example, and the shell function that finds it.
const PRINTED: [(&str, &str); 1] =
    [("127.0.0.1:40213 --secret-file /run/user/1000/trellis-8211.secret", "$(how_to_join)")];

/// Files that a reader provides: the document, the file, and the shell command that creates it.
const BROUGHT: [(&str, &str, &str); 3] = [
    ("docs/guides/a-program-bigger-than-memory.md", "text", "printf 'one word and another word\\n' > text"),
    ("docs/guides/migrate-from-libivy.md", "input.txt", "seq 1 1000 > input.txt"),
    ("docs/guides/where-did-my-time-go.md", "program", PROGRAM),
];
const PROGRAM: &str = "c++ -std=c++20 -O2 examples/hello/hello.cpp $(pkg-config --cflags --libs trellis) -o program";

/// The languages of blocks that can be files, and the endings of the file names.
const FILES: [(&str, &[&str]); 5] =
    [("cpp", &[".cpp", ".cc"]), ("c", &[".c"]), ("rust", &[".rs"]), ("toml", &[".toml"]), ("json", &[".json"])];

/// Programs that `cargo xtask install` and `demo` install, as the README says.
const BY_TASKS: [&str; 8] = ["c++", "cc", "nm", "make", "cmake", "pkg-config", "clang-19", "llvm-config-19"];

/// Far more than any document needs: only a hanging one reaches it.
const LONGEST_SECONDS: u32 = 1200;
/// The lines of output that are shown if a document fails.
const SHOWN_LINES: usize = 40;

/// The beginning of every shell script. `cargo xtask` and `cargo test` use the repository, whose build folder exists.
const BEGIN: &str = r#"set -eE -o pipefail
trap 'echo "$document:$line: \`$BASH_COMMAND\` ended with status $?" >&2' ERR
cargo() {
    case "$1" in
    xtask | test) (
        cd "$repository"
        [ -z "${built-}" ] || export CARGO_TARGET_DIR="$built"
        command cargo "$@"
    ) ;;
    *) command cargo "$@" ;;
    esac
}
how_to_join() {
    until grep -q 'others join with: ' "$HOME/log"; do sleep 0.05; done
    sed -n 's/.*trellis run --join \(.*\) PROGRAM$/\1/p' "$HOME/log"
}
"$ip" link set lo up
cd "$HOME/source/trellis"
"#;

/// The end of every shell script: background jobs that end by themselves must succeed.
const END: &str = "for job in ${started-}; do wait $job; done\n";

/// Carries out all documents, or those whose path contains `only`.
pub(crate) fn run(workspace: &Workspace, only: Option<&str>) -> Result<()> {
    setup::ensure(setup::NEEDED)?;
    let all = documents(&workspace.root)?;
    let chosen: Vec<&String> = all.iter().filter(|name| only.is_none_or(|only| name.contains(only))).collect();
    if chosen.is_empty() {
        bail!("no document with commands has {:?} in its name; there are {}", only.unwrap_or_default(), all.join(", "));
    }
    // A document has no network, so the crates that it builds must be fetched before.
    step::command("fetch crates", workspace.cargo().args(["fetch", "--locked"]))?;
    chosen
        .into_iter()
        .try_for_each(|name| step::step(&format!("the commands of {name}"), || carry_out(workspace, name)))
}

/// The documents with commands, by their path in the repository.
fn documents(root: &Path) -> Result<Vec<String>> {
    let mut all = vec!["README.md".to_owned()];
    for entry in std::fs::read_dir(root.join("docs/guides")).context("docs/guides cannot be read")? {
        let name = format!("docs/guides/{}", entry?.file_name().to_string_lossy());
        let text = std::fs::read_to_string(root.join(&name)).with_context(|| format!("{name} cannot be read"))?;
        if text.contains("```sh\n") && !ON_SEVERAL_HOSTS.contains(&name.as_str()) {
            all.push(name);
        }
    }
    all[1..].sort();
    Ok(all)
}

fn carry_out(workspace: &Workspace, name: &str) -> Result<()> {
    let text = std::fs::read_to_string(workspace.root.join(name))?;
    let home = Home::make(&workspace.root)?;
    let readme = std::fs::read_to_string(workspace.root.join("README.md"))?;
    let programs = home.programs(&hidden(&(prose(&readme) + &prose(&text))))?;
    std::fs::write(home.0.join("script"), script(name, &text)?)?;
    let user_home = std::env::var("HOME").unwrap_or_default();
    let kept =
        |variable: &str, folder: &str| std::env::var(variable).unwrap_or_else(|_| format!("{user_home}/{folder}"));
    let log = std::fs::File::create(home.0.join("log"))?;
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    // A user other than root gets the necessary rights in a user namespace.
    if step::output(Command::new("id").arg("-u"))?.trim() != "0" {
        command.arg("--map-root-user");
    }
    command.args(["timeout", "--foreground", &LONGEST_SECONDS.to_string(), "bash"]).arg(home.0.join("script"));
    command.env_clear().env("HOME", &home.0).env("PATH", programs);
    command.env("CARGO_HOME", kept("CARGO_HOME", ".cargo")).env("RUSTUP_HOME", kept("RUSTUP_HOME", ".rustup"));
    // There is no other network: only crates that the build has fetched are available.
    command.env("CARGO_NET_OFFLINE", "true").env("repository", &workspace.root).env("document", name);
    command.env("ip", programs::find("ip").context("`ip` is not there any more")?);
    // Only for the repository: a reader's own builds are in the reader's own folder.
    if let Some(target) = std::env::var_os("CARGO_TARGET_DIR") {
        command.env("built", target);
    }
    let status = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).status();
    let status = status.context("cannot start `unshare`, which gives a document a network of its own")?;
    if !status.success() {
        let said = std::fs::read(home.0.join("log"))?;
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].iter().for_each(|line| eprintln!("    {line}"));
        bail!("{name} does not work as it stands: {status}");
    }
    Ok(())
}

/// A home folder with a copy of the sources; removed when dropped.
struct Home(PathBuf);

impl Home {
    fn make(root: &Path) -> Result<Home> {
        let home = Home(Path::new(SHARED).join(format!("trellis-documents-{}", std::process::id())));
        let sources = home.0.join("source/trellis");
        std::fs::create_dir_all(&sources).with_context(|| format!("cannot make {}", sources.display()))?;
        for entry in std::fs::read_dir(root).context("the repository cannot be read")? {
            let name = entry?.file_name();
            match name.to_str() {
                // Documents write beside the examples.
                Some("examples") => step::run(Command::new("cp").arg("-r").arg(root.join(&name)).arg(&sources))?,
                Some("target" | ".git") => {}
                _ => std::os::unix::fs::symlink(root.join(&name), sources.join(&name))?,
            }
        }
        Ok(home)
    }

    /// A folder with all programs of this machine but the hidden ones.
    fn programs(&self, hidden: &[&str]) -> Result<PathBuf> {
        let all = self.0.join("programs");
        std::fs::create_dir(&all).with_context(|| format!("cannot make {}", all.display()))?;
        for folder in std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()) {
            // A folder that is not there has no programs.
            for entry in std::fs::read_dir(&folder).into_iter().flatten() {
                let name = entry?.file_name();
                let link = all.join(&name);
                if !hidden.iter().any(|hidden| name == *hidden) && link.symlink_metadata().is_err() {
                    std::os::unix::fs::symlink(folder.join(&name), link)?;
                }
            }
        }
        Ok(all)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("    {} was left behind: {error}", self.0.display());
        }
    }
}

/// The text of a document without its blocks.
fn prose(text: &str) -> String {
    let mut is_block = false;
    let is_prose = |line: &&str| {
        is_block ^= line.starts_with("```");
        !is_block
    };
    text.lines().filter(is_prose).map(|line| format!("{line}\n")).collect()
}

/// The programs that only some tasks of the project need, and that a text does not say to install.
fn hidden(prose: &str) -> Vec<&'static str> {
    let words: BTreeSet<&str> =
        prose.split(|letter: char| !letter.is_ascii_alphanumeric() && !"+-_".contains(letter)).collect();
    let is_there = |program: &str, package: &str| {
        words.contains(program) || words.contains(package) || BY_TASKS.contains(&program)
    };
    setup::programs().filter(|(program, package)| !is_there(program, package)).map(|(program, _)| program).collect()
}

/// The shell script of a document.
fn script(name: &str, text: &str) -> Result<String> {
    let mut script = BEGIN.to_owned();
    let brought: Vec<_> = BROUGHT.iter().filter(|brought| brought.0 == name).collect();
    let (mut is_installed, mut paragraph) = (false, String::new());
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            match line.is_empty() {
                true if paragraph.ends_with('\n') => {}
                true => paragraph.push('\n'),
                false if paragraph.ends_with('\n') => line.clone_into(&mut paragraph),
                false => paragraph.push_str(&format!(" {line}")),
            }
            continue;
        };
        let block: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| !line.starts_with("```")).collect();
        if language == "sh" {
            script.push_str(&format!("line={}\n", number + 2));
            for line in block {
                script.push_str(&command(line));
                if !is_installed && line.starts_with("export PATH=") {
                    is_installed = true;
                    brought.iter().for_each(|(_, _, make)| script.push_str(&format!("{make}\n")));
                }
            }
        } else if let Some(file) = file_name(language, &paragraph) {
            script.push_str(&format!("cat > {file} <<'END OF {file}'\n{}\nEND OF {file}\n", block.join("\n")));
        }
        paragraph.clear();
    }
    if let (false, Some((_, file, _))) = (is_installed, brought.first()) {
        bail!("{name} installs nothing, so nobody can bring {file} along");
    }
    Ok(script + END)
}

/// A line of a block, adapted to this environment.
fn command(line: &str) -> String {
    if ELSEWHERE.iter().any(|elsewhere| line.starts_with(elsewhere)) {
        return String::new();
    }
    let line = PRINTED.iter().fold(line.to_owned(), |line, (written, here)| line.replace(written, here));
    // The shell remembers how each background job ended, however long ago.
    if is_background(&line) { line + "\nstarted=\"${started-} $!\"\n" } else { line + "\n" }
}

/// Whether a line starts a background job.
fn is_background(line: &str) -> bool {
    let bare = line.split(" #").next().unwrap_or(line).trim_end();
    bare.ends_with('&') && !bare.ends_with("&&")
}

/// The file name that the paragraph above a block gives to the block.
fn file_name<'a>(language: &str, paragraph: &'a str) -> Option<&'a str> {
    let endings = FILES.iter().find(|(known, _)| *known == language)?.1;
    let words = paragraph.split('`').skip(1).step_by(2);
    words.filter(|word| !word.contains([' ', '*']) && endings.iter().any(|ending| word.ends_with(ending))).last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_one_script_in_their_order() {
        let text = "Save it as `a.cpp`:\n\n```cpp\nint main() {}\n```\n\nNot `b.cpp`.\n\nAny:\n\n```cpp\nx;\n```\n\n```sh\nc++ a.cpp\n\
                    cargo xtask test    # all\ntrellis check swarm --seeds 1000  # some\n```\n";
        let script = script("README.md", text).unwrap();
        let work = script.strip_prefix(BEGIN).unwrap().strip_suffix(END).unwrap();
        assert_eq!(
            work,
            "cat > a.cpp <<'END OF a.cpp'\nint main() {}\nEND OF a.cpp\nline=16\nc++ a.cpp\n\
             trellis check swarm --seeds 1000  # some\n"
        );
    }

    #[test]
    fn a_program_is_hidden_unless_the_text_says_to_install_it() {
        let text = "Install redis-server.\n\n```sh\nm4 x | etcd\n```\n";
        let hidden = hidden(&prose(text));
        ["m4", "etcd", "java"].iter().for_each(|name| assert!(hidden.contains(name), "{name}: {hidden:?}"));
        ["c++", "cc", "redis-server"].iter().for_each(|name| assert!(!hidden.contains(name), "{name}: {hidden:?}"));
    }

    #[test]
    fn what_failed_in_the_background_fails_the_script() {
        let ended = |line: &str| {
            let script = format!("set -e\n{}true &\nwait $!\n: $(echo)\n{END}", command(line));
            Command::new("bash").arg("-c").arg(script).status().unwrap().success()
        };
        assert!(ended("true &") && ended("true &     # in the background"));
        assert!(!ended("false &") && !ended("false &     # in the background"));
        assert!(!is_background("true && # no") && !is_background("echo '&'"));
    }

    #[test]
    fn every_name_in_the_lists_is_used() {
        let root = Workspace::find().unwrap().root;
        let all = documents(&root).unwrap();
        let texts: Vec<String> = all.iter().map(|name| std::fs::read_to_string(root.join(name)).unwrap()).collect();
        let is_there = |part: &str| texts.iter().any(|text| text.contains(part));
        let parts = ELSEWHERE.iter().chain(PRINTED.iter().map(|(written, _)| written));
        parts.for_each(|part| assert!(is_there(part), "no document has {part:?} any more"));
        ON_SEVERAL_HOSTS.iter().for_each(|name| assert!(root.join(name).is_file(), "{name}"));
        BROUGHT.iter().for_each(|(name, ..)| assert!(all.iter().any(|known| known == name), "{name}"));
    }
}
