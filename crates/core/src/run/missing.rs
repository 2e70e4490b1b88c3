//! A call of a tool that does not exist: it fails, a human is asked, or another tool is asked to create it.

use serde_json::json;

use super::decide::{Decided, Decision};
use super::event::Event;
use super::parts::InputRequest;
use super::{Failure, FailureKind, Payload};
use crate::limits;
use crate::pattern;
use crate::spec::policy::MissingTool;

impl Decision<'_> {
    /// The tool of a call does not exist.
    pub(super) fn tool_missing(&mut self, n: u32, error: Failure) -> Decided {
        let Some(call) = self.call_of(n) else { return self.fail_attempt(n, error) };
        let created = self.run.live.get(&n).is_some_and(|live| live.created);
        match call.missing_tool {
            MissingTool::Fail => self.fail_attempt(n, error),
            MissingTool::Ask => {
                let message =
                    format!("{}. Make it available, then say yes: the step is tried again", error.message);
                self.gate_within(n, InputRequest::whether(message, None));
                Ok(())
            }
            // It was said to be there, and is not.
            MissingTool::Create if created => self.fail_attempt(n, error),
            MissingTool::Create => self.create_tool(n, &error),
        }
    }

    fn create_tool(&mut self, n: u32, error: &Failure) -> Decided {
        let refused = |why: &str| Failure::new(FailureKind::NotFound, format!("{}; {why}", error.message));
        let Some(provider) = self.world.provider() else {
            return self.fail_attempt(n, refused("no tool is configured that could create it"));
        };
        let allowed = self.plan.settings.allowed_tools.as_ref();
        if allowed.is_some_and(|allowed| !allowed.iter().any(|allowed| pattern::matches(allowed, &provider)))
        {
            return self.fail_attempt(n, refused("`allowed_tools` leaves out the one that could create it"));
        }
        let Some(tool) = self.call_of(n).map(crate::plan::Call::full_name) else { return Ok(()) };
        let args = self.input(n)?;
        let args = Payload::new(json!({ "tool": tool, "arguments": args.value() }));
        let timeout = self.live(n).and_then(|(_, step)| step.timeout_ms).unwrap_or(limits::PROBE_MS);
        let until = self.now().saturating_add(i64::try_from(timeout).unwrap_or(i64::MAX));
        let Some(step) = self.run.step_ref(n) else { return Ok(()) };
        let event = Event::ToolRequested { step, tool: provider, args: args.hash(), until: Some(until) };
        self.records_probe(event, args);
        Ok(())
    }

    /// The tool that creates others has answered. If nobody knows what it did, the step finds out by trying again.
    pub(super) fn creation_ended(&mut self, n: u32, outcome: Result<Payload, Failure>) -> Decided {
        let Some(step) = self.run.step_ref(n) else { return Ok(()) };
        match outcome {
            Ok(_) => {
                self.emit(Event::ToolCreated { step, lost: false });
                self.begin(n)
            }
            // Asked once: if it is still not there, the step fails.
            Err(error) if error.kind == FailureKind::Lost => {
                self.emit(Event::ToolCreated { step, lost: true });
                self.begin(n)
            }
            Err(error) => {
                let message = format!("the tool does not exist, and was not created: {}", error.message);
                self.fail_attempt(n, Failure { message: message.into(), ..error })
            }
        }
    }
}
