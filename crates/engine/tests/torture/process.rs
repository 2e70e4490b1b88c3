//! The worker process: starts it, reads its messages and kills it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use steprail_engine::RunId;

use super::worker::{JOB, Job, TEST};

/// How long a worker can send no message before it counts as stalled.
const STALL_TIMEOUT: Duration = Duration::from_mins(1);

/// A message of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    Opened,
    Up,
    Call,
    Started { n: u64, run: RunId },
    Event { run: RunId, seq: u64 },
    Ended { n: u64, status: String, seq: u64 },
    Finished,
    Error(String),
}

impl Message {
    fn parse(line: &str) -> Option<Self> {
        let parts: Vec<&str> = line.split(' ').collect();
        match parts.as_slice() {
            ["B"] => Some(Self::Opened),
            ["U"] => Some(Self::Up),
            ["."] => Some(Self::Call),
            ["S", n, run] => Some(Self::Started { n: n.parse().ok()?, run: run.parse().ok()? }),
            ["C", run, seq] => Some(Self::Event { run: run.parse().ok()?, seq: seq.parse().ok()? }),
            ["E", n, status, seq] => {
                Some(Self::Ended { n: n.parse().ok()?, status: (*status).to_owned(), seq: seq.parse().ok()? })
            }
            ["Z"] => Some(Self::Finished),
            ["!", ..] => Some(Self::Error(line.to_owned())),
            // Output of the test harness.
            _ => None,
        }
    }
}

/// The acknowledgements of all workers so far.
#[derive(Debug, Default, Clone)]
pub(crate) struct Acks {
    /// Runs that were started.
    pub started: BTreeMap<u64, RunId>,
    /// Sequence number of the last published event, by run.
    pub seqs: BTreeMap<RunId, u64>,
    /// Runs that ended: status and number of events.
    pub ended: BTreeMap<u64, (String, u64)>,
}

impl Acks {
    fn record(&mut self, message: &Message) {
        match message {
            Message::Error(why) => panic!("the worker failed: {why}"),
            Message::Started { n, run } => {
                let before = self.started.insert(*n, *run);
                assert!(before.is_none_or(|before| before == *run), "run {n} was started twice");
            }
            Message::Event { run, seq } => drop(self.seqs.insert(*run, *seq)),
            Message::Ended { n, status, seq } => {
                let ended = (status.clone(), *seq);
                let before = self.ended.insert(*n, ended.clone());
                assert!(before.is_none_or(|before| before == ended), "run {n} ended twice");
            }
            _ => {}
        }
    }

    /// The number of published events.
    pub(crate) fn events(&self) -> usize {
        self.seqs.values().map(|seq| usize::try_from(*seq).expect("a number of events")).sum()
    }

    /// The first run that has not ended.
    pub(crate) fn first_open(&self) -> u64 {
        (0..=u64::MAX).find(|n| !self.ended.contains_key(n)).unwrap_or_default()
    }

    /// A number above those of all runs that were started with this concurrency.
    pub(crate) fn beyond(&self, concurrency: usize) -> u64 {
        self.started.last_key_value().map_or(0, |(n, _)| n + 1) + concurrency as u64
    }
}

/// A running worker.
pub(crate) struct WorkerProcess {
    child: Child,
    messages: Receiver<Message>,
    started: Instant,
    /// Time from the start of the process to its first call.
    pub first_call: Option<Duration>,
}

impl WorkerProcess {
    /// Starts a worker: this program with another test.
    pub(crate) fn start(job: &Job) -> Self {
        let started = Instant::now();
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([TEST, "--exact", "--ignored", "--quiet", "--nocapture"])
            .env(JOB, serde_json::to_string(job).expect("JSON"))
            .env_remove("RUST_TEST_THREADS")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a worker");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok);
            lines.filter_map(|line| Message::parse(&line)).try_for_each(|message| sender.send(message))
        });
        Self { child, messages, started, first_call: None }
    }

    /// Returns the next message; `None` if the worker has exited.
    pub(crate) fn next(&mut self, acks: &mut Acks) -> Option<Message> {
        let message = match self.messages.recv_timeout(STALL_TIMEOUT) {
            Ok(message) => message,
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {
                self.kill();
                panic!("the worker has sent no message for {STALL_TIMEOUT:?}");
            }
        };
        if message == Message::Call && self.first_call.is_none() {
            self.first_call = Some(self.started.elapsed());
        }
        acks.record(&message);
        Some(message)
    }

    /// Reads the messages that have arrived, without waiting.
    pub(crate) fn read_pending(&mut self, acks: &mut Acks) {
        while let Ok(message) = self.messages.try_recv() {
            acks.record(&message);
        }
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a process to kill");
        self.child.wait().expect("its end");
    }

    /// Reads messages until the worker has exited.
    pub(crate) fn drain(&mut self, acks: &mut Acks) {
        while self.next(acks).is_some() {}
    }

    /// Reads messages until the worker has finished its job.
    pub(crate) fn finish(&mut self, acks: &mut Acks) {
        let mut finished = false;
        while let Some(message) = self.next(acks) {
            finished |= message == Message::Finished;
        }
        self.child.wait().expect("its end");
        assert!(finished, "the worker exited before it finished its job");
    }
}

impl Drop for WorkerProcess {
    /// Kills the worker also if the test panics.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
