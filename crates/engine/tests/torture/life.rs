//! One life of the worker: a process that is started, listened to and killed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use steprail_engine::RunId;

use super::worker::{JOB, Job, TEST};

/// How long a worker may be silent before it counts as stalled.
const SILENCE: Duration = Duration::from_mins(1);

/// What a worker tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    Opened,
    Up,
    Call,
    Started { n: u64, run: RunId },
    Event { run: RunId, seq: u64 },
    Ended { n: u64, status: String, seq: u64 },
    Finished,
    Trouble(String),
}

impl Told {
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
            ["!", ..] => Some(Self::Trouble(line.to_owned())),
            // The test harness says things of its own.
            _ => None,
        }
    }
}

/// What workers have acknowledged so far.
#[derive(Debug, Default, Clone)]
pub(crate) struct Acks {
    /// Runs that were started.
    pub started: BTreeMap<u64, RunId>,
    /// How far the logs of runs went at least.
    pub seqs: BTreeMap<RunId, u64>,
    /// Runs that ended, how, and how long their logs were.
    pub ended: BTreeMap<u64, (String, u64)>,
}

impl Acks {
    fn note(&mut self, told: &Told) {
        match told {
            Told::Trouble(why) => panic!("the worker is in trouble: {why}"),
            Told::Started { n, run } => {
                let before = self.started.insert(*n, *run);
                assert!(before.is_none_or(|before| before == *run), "run {n} was started twice");
            }
            Told::Event { run, seq } => drop(self.seqs.insert(*run, *seq)),
            Told::Ended { n, status, seq } => {
                let ended = (status.clone(), *seq);
                let before = self.ended.insert(*n, ended.clone());
                assert!(before.is_none_or(|before| before == ended), "run {n} ended twice");
            }
            _ => {}
        }
    }

    /// How many events were published.
    pub(crate) fn events(&self) -> usize {
        self.seqs.values().map(|seq| usize::try_from(*seq).expect("a number of events")).sum()
    }

    /// The first run that is not known to be over.
    pub(crate) fn first_open(&self) -> u64 {
        (0..=u64::MAX).find(|n| !self.ended.contains_key(n)).unwrap_or_default()
    }

    /// A number that no run has that was asked for with so many at once.
    pub(crate) fn beyond(&self, at_once: usize) -> u64 {
        self.started.last_key_value().map_or(0, |(n, _)| n + 1) + at_once as u64
    }
}

/// A worker that lives.
pub(crate) struct Life {
    child: Child,
    told: Receiver<Told>,
    born: Instant,
    /// From the start of the process to its first call.
    pub first_call: Option<Duration>,
}

impl Life {
    /// Starts a worker: this very program, asked for another test.
    pub(crate) fn start(job: &Job) -> Self {
        let born = Instant::now();
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([TEST, "--exact", "--ignored", "--quiet", "--nocapture"])
            .env(JOB, serde_json::to_string(job).expect("JSON"))
            .env_remove("RUST_TEST_THREADS")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a worker");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let (sender, told) = channel();
        std::thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok);
            lines.filter_map(|line| Told::parse(&line)).try_for_each(|told| sender.send(told))
        });
        Self { child, told, born, first_call: None }
    }

    /// The next thing that the worker tells; nothing if it is gone.
    pub(crate) fn next(&mut self, acks: &mut Acks) -> Option<Told> {
        let told = match self.told.recv_timeout(SILENCE) {
            Ok(told) => told,
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {
                self.kill();
                panic!("the worker has been silent for {SILENCE:?}");
            }
        };
        if told == Told::Call && self.first_call.is_none() {
            self.first_call = Some(self.born.elapsed());
        }
        acks.note(&told);
        Some(told)
    }

    /// What the worker has told so far and nobody has heard yet.
    pub(crate) fn heard(&mut self, acks: &mut Acks) {
        while let Ok(told) = self.told.try_recv() {
            acks.note(&told);
        }
    }

    /// The process ends without having a say.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a process to kill");
        self.child.wait().expect("its end");
    }

    /// Listens until the worker is gone.
    pub(crate) fn drain(&mut self, acks: &mut Acks) {
        while self.next(acks).is_some() {}
    }

    /// Listens until the worker has nothing left to do.
    pub(crate) fn finish(&mut self, acks: &mut Acks) {
        let mut finished = false;
        while let Some(told) = self.next(acks) {
            finished |= told == Told::Finished;
        }
        self.child.wait().expect("its end");
        assert!(finished, "the worker ended before its work");
    }
}

impl Drop for Life {
    /// A harness that fails leaves no worker behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
