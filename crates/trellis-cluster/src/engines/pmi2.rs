//! The second version of PMI, for engines that have only that one, and for who asks for it: `engine = "pmi2"`.
//!
//! A message is the length of the rest as six characters, and fields such as `cmd=kvs-put;key=…;value=…;`.
//!
//! Source: the PMI-2 wire protocol of MPICH (`src/pmi/src/pmi_v2.c`), tried with MPICH 4.0.2 and Slurm 22.05.

use std::io::Read;

use super::Exchanged;
use super::pmi::{Limited, PmiServer, not_said, silent};

/// The characters of the length before each message.
const LENGTH_BYTES: usize = 6;
/// The maximum length of an answer. It holds the longest value of an engine (1,024 bytes) and its surroundings.
const MESSAGE_BYTES_MAX: usize = 8_192;
/// What separates fields, and what stands for it in a value. No text of a node has the second.
const SEPARATOR: (&str, &str) = (";", "|");

impl<S: Limited> PmiServer<S> {
    /// Gives this node's text to all others and gets theirs, after the versions are agreed.
    pub(super) fn exchange_2(&mut self, node: usize, nodes: usize, text: &str) -> Result<Exchanged, String> {
        let job = std::env::var("PMI_JOBID").unwrap_or_default();
        let begun = self.ask_2("fullinit", &format!("pmijobid={job};pmirank={node};threaded=FALSE;"))?;
        let number = |name: &str| field(&begun, name).and_then(|value| value.parse::<usize>().ok());
        let node = number("rank").unwrap_or(node);
        let nodes = number("size").unwrap_or(nodes);
        let job = self.ask_2("job-getid", "")?;
        let job = field(&job, "jobid").ok_or("it has no name for the values of the job")?.to_owned();
        let text = text.replace(SEPARATOR.0, SEPARATOR.1);
        self.ask_2("kvs-put", &format!("key=trellis-{node};value={text};"))?;
        self.ask_2("kvs-fence", "").map_err(|why| format!("waiting for all {nodes} nodes: {why}"))?;
        let mut texts = Vec::new();
        for peer in 0..nodes {
            let got = self.ask_2("kvs-get", &format!("jobid={job};srcid=-1;key=trellis-{peer};"))?;
            let value = field(&got, "value").filter(|_| field(&got, "flag") != Some("FALSE"));
            texts.push(value.ok_or_else(|| not_said(peer))?.replace(SEPARATOR.1, SEPARATOR.0));
        }
        self.ask_2("finalize", "")?;
        Ok(Exchanged { node, texts })
    }

    /// Sends a command with its fields and returns the answer to it.
    fn ask_2(&mut self, command: &str, fields: &str) -> Result<String, String> {
        let message = format!("cmd={command};{fields}");
        self.send(&format!("{:<LENGTH_BYTES$}{message}", message.len()), command)?;
        let got = self.message()?;
        let (kind, code) = (field(&got, "cmd").unwrap_or_default(), field(&got, "rc").unwrap_or("0"));
        if kind.strip_suffix("-response") == Some(command) && code == "0" {
            return Ok(got);
        }
        Err(format!("the engine answers `{command}` with `cmd={kind} rc={code}`"))
    }

    fn message(&mut self) -> Result<String, String> {
        let mut length = [0; LENGTH_BYTES];
        self.fill(&mut length)?;
        let length = String::from_utf8_lossy(&length).trim().parse().ok().filter(|bytes| *bytes <= MESSAGE_BYTES_MAX);
        let mut message = vec![0; length.ok_or("the engine sends what is no message of PMI-2")?];
        self.fill(&mut message)?;
        Ok(String::from_utf8_lossy(&message).into_owned())
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        self.limit().map_err(silent)?;
        self.stream.read_exact(bytes).map_err(silent)
    }
}

/// The value of a field of a message.
fn field<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    message.split(SEPARATOR.0).find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread::JoinHandle;

    use super::super::pmi::tests::{engine, server};
    use super::*;

    /// A message as it is sent.
    fn framed(message: &str) -> String {
        format!("{:<6}{message}", message.len())
    }

    /// Answers a dialogue of which the first lines have the form of PMI-1.
    fn engine_2(lines: &[(&str, &str)], messages: &[(&str, &str)]) -> (UnixStream, JoinHandle<()>) {
        let lines = lines.iter().map(|(question, answer)| (format!("{question}\n"), format!("{answer}\n")));
        let messages = messages.iter().map(|(question, answer)| (framed(question), framed(answer)));
        engine(lines.chain(messages).collect())
    }

    const HELLO: (&str, &str) =
        ("cmd=init pmi_version=2 pmi_subversion=0", "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0");

    #[test]
    fn an_engine_that_has_only_the_second_version_is_spoken_to_in_it() {
        assert_eq!(framed("cmd=finalize;"), "13    cmd=finalize;");
        let refusal =
            ("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=-1");
        let (ours, theirs) = engine_2(
            &[refusal, HELLO],
            &[
                (
                    "cmd=fullinit;pmijobid=;pmirank=1;threaded=FALSE;",
                    "cmd=fullinit-response;pmi-version=2;rank=1;size=2;rc=0;",
                ),
                ("cmd=job-getid;", "cmd=job-getid-response;jobid=77_0;rc=0;"),
                ("cmd=kvs-put;key=trellis-1;value=b=1|c;", "cmd=kvs-put-response;rc=0;"),
                ("cmd=kvs-fence;", "cmd=kvs-fence-response;rc=0;"),
                ("cmd=kvs-get;jobid=77_0;srcid=-1;key=trellis-0;", "cmd=kvs-get-response;flag=TRUE;value=a=0|c;rc=0;"),
                ("cmd=kvs-get;jobid=77_0;srcid=-1;key=trellis-1;", "cmd=kvs-get-response;flag=TRUE;value=b=1|c;rc=0;"),
                ("cmd=finalize;", "cmd=finalize-response;rc=0;"),
            ],
        );
        let exchanged = server(ours).exchange(1, 1, 2, "b=1;c");
        assert_eq!(exchanged, Ok(Exchanged { node: 1, texts: vec!["a=0;c".to_owned(), "b=1;c".to_owned()] }));
        theirs.join().expect("it was asked for everything");
    }

    #[test]
    fn what_is_no_message_and_what_is_refused_are_errors_without_values() {
        let first = "cmd=fullinit;pmijobid=;pmirank=0;threaded=FALSE;";
        let (ours, _theirs) = engine_2(&[HELLO], &[(first, "cmd=fullinit-response;rc=3;x=secret;")]);
        let why = server(ours).exchange(2, 0, 1, "secret").unwrap_err();
        assert_eq!(why, "the engine answers `fullinit` with `cmd=fullinit-response rc=3`");
        let hello = (format!("{}\n", HELLO.0), format!("{}\n", HELLO.1));
        let (ours, _theirs) = engine(vec![hello, (framed(first), "999999cmd=".to_owned())]);
        let why = server(ours).exchange(2, 0, 1, "secret").unwrap_err();
        assert_eq!(why, "the engine sends what is no message of PMI-2");
    }
}
