//! `trellis store serve`: offers any store through the Redis protocol.
//!
//! It must never be reachable from another machine, unless an option whose name says that this is insecure is given.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use trellis_store::resp::{Options, RespServer};

use super::Which;
use trellis_command::ending::{Ends, say_ready};
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal::announce;

const EXAMPLES: &str = "\
Examples:
  trellis store serve --resp 127.0.0.1:7001 --store embedded-durable:/var/tmp/store
  trellis store serve --resp unix:/run/store.socket --store etcd://127.0.0.1:2379
  redis-cli -p 7001 SET message hello

The command prints `listening on ADDRESS` when clients may come, and serves until it gets SIGINT or SIGTERM. \
What clients keep lies beside the regions of the store, and is none of them. Programs reach regions \
through it too: --store redis://127.0.0.1:7001.

Exit codes: 70 the store failed; 71 the address of --resp cannot be had; 74 the file with the \
password cannot be read; 78 the store's address is refused.";

/// Offer a store through the Redis protocol
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    which: Which,
    /// Where to listen: HOST:PORT (port 0 for any free one) or unix:/PATH
    #[arg(long, value_name = "ADDRESS")]
    resp: String,
    /// A file whose first line is the password that clients must send with AUTH
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Listen at an address that other machines can reach: nothing is encrypted
    #[arg(long)]
    insecure_beyond_this_machine: bool,
    /// Threads that serve clients [default: 1 for a store in this process, several for one elsewhere]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// Runs `trellis store serve`.
pub(super) fn serve(arguments: &ServeArguments) -> Ending {
    // Before any thread starts: no thread may be interrupted by the signals.
    let ends = Ends::listen()?;
    let store = arguments.which.open()?;
    let options = Options {
        password: arguments.password_file.as_deref().map(password).transpose()?,
        insecure_beyond_this_machine: arguments.insecure_beyond_this_machine,
        threads: arguments.threads,
        ..Options::default()
    };
    let refused = |error: std::io::Error| Failure::new(exit::SYSTEM, format!("--resp {}: {error}", arguments.resp));
    let running = ends.begin(|| {
        let running = RespServer::bind(&arguments.resp, store, &options)?.start()?;
        let stop = running.stopper();
        Ok((running, stop))
    });
    let running = running.map_err(refused)?;
    announce(format_args!("listening on {}", running.address()));
    say_ready();
    running.wait();
    Ok(exit::FINE)
}

fn password(file: &Path) -> Result<String, Failure> {
    let unreadable = |what: &str| Failure::new(exit::FILE, format!("--password-file {}: {what}", file.display()));
    let text = fs::read_to_string(file)
        .map_err(|error| unreadable(&format!("{error}; name a file that can be read, its first line the password")))?;
    match text.lines().next().filter(|line| !line.is_empty()) {
        Some(line) => Ok(line.to_owned()),
        None => Err(unreadable("its first line is empty; it must be the password")),
    }
}
