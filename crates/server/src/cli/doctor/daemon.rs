//! Checks whether the daemon runs and responds.

use std::time::{Duration, Instant};

use rustix::process::{Pid, test_kill_process};
use steprail_http::views::Me;
use tokio::time::timeout;

use super::Finding;
use crate::client::{Autostart, Client, ServerAddress};
use crate::daemon::{self, DataDir};

const TOPIC: &str = "daemon";

/// How long to wait for a response.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why the daemon cannot be used.
enum Failure {
    /// No process listens on its socket.
    NotListening,
    Response(String),
}

/// Returns the finding, and whether the daemon runs.
pub(super) async fn check(home: &DataDir) -> (Finding, bool) {
    let process = process(home);
    let name =
        process.map_or("the daemon".to_owned(), |process| format!("process {}", process.as_raw_nonzero()));
    let hint = format!("see {}, stop the process, and start `steprail serve`", home.log().display());
    let started = Instant::now();
    let problem = match (timeout(TIMEOUT, request(home)).await, process) {
        (Ok(Ok(Readiness { notes })), _) if !notes.is_empty() => {
            let hint = if notes.contains("runs") {
                "`steprail runs` and `steprail show RUN` find the run; report the cause"
            } else {
                "see the policy below"
            };
            return (Finding::warning(TOPIC, format!("{name} is ready, {notes}"), hint), true);
        }
        (Ok(Ok(_)), _) => {
            let millis = started.elapsed().as_millis();
            return (Finding::ok(TOPIC, format!("{name} responded within {millis} ms")), true);
        }
        (Ok(Err(Failure::NotListening)), None) => {
            let message = "not running; `steprail serve` or the next client starts it";
            return (Finding::ok(TOPIC, message), false);
        }
        (Ok(Err(Failure::NotListening)), Some(_)) => format!("{name} does not listen on its socket"),
        (Ok(Err(Failure::Response(problem))), _) => format!("{name} returned an error: {problem}"),
        (Err(_), _) => format!("{name} does not respond"),
    };
    (Finding::problem(TOPIC, problem, hint), true)
}

/// The response of the health check.
struct Readiness {
    /// Lines after `ready`.
    notes: String,
}

async fn request(home: &DataDir) -> Result<Readiness, Failure> {
    daemon::connect(home, &home.human_socket()).await.map_err(|_| Failure::NotListening)?;
    let address = ServerAddress::Local(home.clone());
    let client = Client::connect(address, Autostart::IfDatabaseExists).await;
    let client = client.map_err(|error| Failure::Response(error.message()))?;
    client.get::<Me>("/me").await.map_err(|error| Failure::Response(error.message()))?;
    let text = client.readiness().await.map_err(|error| Failure::Response(error.message()))?;
    Ok(Readiness { notes: text.lines().skip(1).collect::<Vec<_>>().join("; ") })
}

/// The process in daemon.pid, if it exists.
fn process(home: &DataDir) -> Option<Pid> {
    let pid = std::fs::read_to_string(home.pid_file()).ok()?.trim().parse().ok()?;
    Pid::from_raw(pid).filter(|process| test_kill_process(*process).is_ok())
}
