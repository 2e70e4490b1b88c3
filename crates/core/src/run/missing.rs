//! Calls of tools that do not exist: they fail, wait for a human, or request the tool from a provider.

use serde_json::json;

use super::decide::{DecideResult, Decision};
use super::event::Event;
use super::parts::InputRequest;
use super::{Failure, FailureKind, Payload};
use crate::limits;
use crate::pattern;
use crate::spec::policy::MissingTool;

impl Decision<'_> {
    /// Applies the `missing_tool` policy of a step.
    pub(super) fn tool_missing(&mut self, n: u32, error: Failure) -> DecideResult {
        let Some(call) = self.call_of(n) else { return self.fail_attempt(n, error) };
        let created = self.run.live.get(&n).is_some_and(|live| live.created);
        match call.missing_tool {
            MissingTool::Fail => self.fail_attempt(n, error),
            MissingTool::Ask => {
                let message = format!("{}. Make it available, then approve to retry the step", error.message);
                self.request_input(n, InputRequest::confirm_call(message, None))
            }
            // The provider reported that it created the tool.
            MissingTool::Create if created => self.fail_attempt(n, error),
            MissingTool::Create => self.create_tool(n, &error),
        }
    }

    fn create_tool(&mut self, n: u32, error: &Failure) -> DecideResult {
        let not_found =
            |reason: &str| Failure::new(FailureKind::NotFound, format!("{}; {reason}", error.message));
        let Some(provider) = self.world.provider() else {
            return self.fail_attempt(n, not_found("no tool is configured to create it"));
        };
        let allowed = self.plan.settings.allowed_tools.as_ref();
        if allowed.is_some_and(|allowed| !allowed.iter().any(|allowed| pattern::matches(allowed, &provider)))
        {
            return self.fail_attempt(n, not_found("`allowed_tools` excludes the tool that could create it"));
        }
        let Some(tool) = self.call_of(n).map(crate::plan::Call::full_name) else { return Ok(()) };
        let args = self.input(n)?;
        let args = Payload::new(json!({ "tool": tool, "arguments": args.value() }));
        if let Err(denied) = self.permit_auxiliary(n, &provider, &args)? {
            return self.fail_attempt(n, denied);
        }
        let timeout = self.live(n).and_then(|(_, step)| step.timeout_ms).unwrap_or(limits::PROBE_MS);
        let until = self.now().saturating_add(i64::try_from(timeout).unwrap_or(i64::MAX));
        let Some(step) = self.run.step_ref(n) else { return Ok(()) };
        let event = Event::ToolRequested { step, tool: provider, args: args.hash(), until: Some(until) };
        self.record_probe(event, args);
        Ok(())
    }

    /// Starts the step again after the provider ended. If the outcome is unknown, the call shows whether the tool exists.
    pub(super) fn creation_ended(&mut self, n: u32, outcome: Result<Payload, Failure>) -> DecideResult {
        let Some(step) = self.run.step_ref(n) else { return Ok(()) };
        match outcome {
            Ok(_) => {
                self.emit(Event::ToolCreated { step, lost: false });
                self.begin(n)
            }
            // The provider is called once per step: if the tool is still missing, the step fails.
            Err(error) if error.kind == FailureKind::Lost => {
                self.emit(Event::ToolCreated { step, lost: true });
                self.begin(n)
            }
            Err(error) => {
                let message = format!("the tool does not exist and was not created: {}", error.message);
                self.fail_attempt(n, Failure { message: message.into(), ..error })
            }
        }
    }
}
