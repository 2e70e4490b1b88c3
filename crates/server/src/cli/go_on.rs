//! What a run of a server waits for, and the commands that go on with it.

use steprail_engine::RunStatus;

use super::progress::harmless;
use super::target::Target;
use super::waiting::quoted;
use steprail_http::views::{Approval, Run, UnknownCall};

/// Says what a run waits for, and how to go on; an entry for each.
pub(super) fn hints(run: &Run, target: &Target) -> Vec<String> {
    let (id, at) = (run.run_id, target.arguments());
    let mut hints: Vec<String> = run.approvals.iter().flatten().map(|open| gate(open, &at)).collect();
    for UnknownCall { shown: step, .. } in run.unknown_calls.iter().flatten() {
        let path = quoted(step);
        hints.push(format!(
            "nobody knows whether the call of `{step}` took place\n  steprail resume {id}{at} --retry {path}\n  \
             --happened {path}=RESULT if it took place; --skip {path} to go on without it"
        ));
    }
    match run.status {
        RunStatus::Paused if hints.is_empty() => {
            hints.push(format!("it is paused\n  steprail resume {id}{at}"));
        }
        RunStatus::Interrupted => {
            hints.push(format!("a restart interrupted it\n  steprail resume {id}{at}"));
        }
        _ => {}
    }
    hints
}

fn gate(open: &Approval, at: &str) -> String {
    if open.may_decide == Some(false) {
        return format!("`{}` waits for somebody else to decide: {}", open.step, harmless(&open.prompt));
    }
    let (run, step) = (open.run_id, quoted(&open.step));
    let answer = if open.form.is_some() { " --answer JSON" } else { "" };
    format!(
        "`{}` waits for a human: {}\n  steprail approve {run} {step}{at}{answer}\n  steprail deny {run} {step}{at}",
        open.step,
        harmless(&open.prompt)
    )
}
