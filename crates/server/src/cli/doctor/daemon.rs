//! The daemon: whether it runs, and whether it answers.

use std::time::{Duration, Instant};

use rustix::process::{Pid, test_kill_process};
use tokio::time::timeout;

use super::Finding;
use crate::client::{At, Begin, Client, Refused};
use crate::daemon::{self, DataDir};
use steprail_http::views::Me;

/// How long it has to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Says how it is, and whether it runs.
pub(super) async fn look(home: &DataDir) -> (Finding, bool) {
    let process = process(home);
    let called = process.map_or("it".to_owned(), |process| format!("process {}", process.as_raw_nonzero()));
    let hint = format!("look into {}, end the process, and start `steprail serve`", home.log().display());
    let began = Instant::now();
    match (timeout(PATIENCE, answer(home)).await, process) {
        (Ok(Ok(())), _) => {
            let took = began.elapsed().as_millis();
            (Finding::ok("daemon", format!("{called} runs, and answered within {took} ms")), true)
        }
        (Ok(Err(None)), None) => {
            let what = "none is running; `steprail serve` or the next client starts one";
            (Finding::ok("daemon", what), false)
        }
        (Ok(Err(None)), Some(_)) => (
            Finding::problem("daemon", format!("{called} runs, but nobody listens at its socket"), hint),
            true,
        ),
        (Ok(Err(Some(problem))), _) => (
            Finding::problem("daemon", format!("{called} answers, but not as it should: {problem}"), hint),
            true,
        ),
        (Err(_), _) => (Finding::problem("daemon", format!("{called} does not answer"), hint), true),
    }
}

/// Asks who we are. Without a problem, nobody listens.
async fn answer(home: &DataDir) -> Result<(), Option<String>> {
    daemon::connect(home, &home.human_socket()).await.map_err(|_| None)?;
    let told = |refused| match refused {
        Refused::Unreachable(problem) => Some(problem),
        Refused::Problem(problem) => Some(problem.detail.into()),
    };
    let client = Client::reach(At::Home(home.clone()), Begin::IfUsed).await.map_err(told)?;
    client.get::<Me>("/me").await.map(drop).map_err(told)
}

/// The process that the last daemon was, if there is one.
fn process(home: &DataDir) -> Option<Pid> {
    let number = std::fs::read_to_string(home.pid_file()).ok()?.trim().parse().ok()?;
    Pid::from_raw(number).filter(|process| test_kill_process(*process).is_ok())
}
