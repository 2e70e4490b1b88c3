//! Channels that call a tool of an MCP server: each message is a run of one step, with the rights of a service principal.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use steprail_core::budget::Budget;
use steprail_core::expr;
use steprail_core::policy::{Action, CallFacts, Policy};
use steprail_engine::{
    Engine, Error, FailureKind, Grants, Principal, RunStatus, RunView, Start, ToolCaller, WeakEngine,
};
use steprail_notify::config::{ChannelConfig, ToolConfig};
use steprail_notify::template::ArgsTemplate;
use steprail_notify::{BoxFuture, Channel, ConfigError, Delivery, NotifyConfig, Receipt, SendError};
use tokio::sync::watch;

/// Id of the principal that calls the tools. It is not that of a user, because ids of users have no colon.
pub(super) const SERVICE: &str = "service:notifications";

/// The engine, once it has started.
pub(crate) type AttachedEngine = watch::Receiver<Option<WeakEngine>>;

/// The rights of the service principal: the tools of the configuration.
pub(super) fn grants(config: &NotifyConfig) -> Grants {
    let tools = tool_channels(config).map(|(_, channel)| channel.tool.clone());
    Grants { tools: tools.collect(), ..Grants::default() }
}

/// The channels whose calls the policy denies, or for which it requires an approval: a notification cannot wait for one.
pub(crate) fn refusals(
    config: &NotifyConfig,
    policy: Option<&Policy>,
    tools: &dyn ToolCaller,
) -> Vec<ConfigError> {
    let Some(policy) = policy else { return Vec::new() };
    let refused = |(name, channel): (&String, &ToolConfig)| {
        let problem = refusal(channel, policy, tools)?;
        Some(problem.at(&format!("channels.{name}")))
    };
    tool_channels(config).filter_map(refused).collect()
}

fn tool_channels(config: &NotifyConfig) -> impl Iterator<Item = (&String, &ToolConfig)> {
    config.channels.iter().filter_map(|(name, channel)| match channel {
        ChannelConfig::Tool(tool) => Some((name, tool)),
        _ => None,
    })
}

fn refusal(channel: &ToolConfig, policy: &Policy, tools: &dyn ToolCaller) -> Option<ConfigError> {
    let tool = &channel.tool;
    // The problems of the templates are reported when the channel is opened.
    let args = ArgsTemplate::compile(&split(&channel.args).0).map(|args| args.examples()).unwrap_or_default();
    args.iter().find_map(|args| {
        let facts = CallFacts {
            tool,
            args,
            annotations: tools.annotations(tool),
            user: SERVICE,
            groups: &[],
            agent: false,
            client: None,
            workflow: None,
            step: "call",
            now: jiff::Timestamp::now().as_millisecond(),
        };
        let verdict = policy.judge(&facts, &mut Budget::evaluation());
        let what = match verdict.action {
            Action::Deny(reason) => format!("denies calls of `{tool}`: {reason}"),
            Action::RequireApproval(_) => {
                format!("requires an approval for `{tool}`, and a notification cannot wait for one")
            }
            Action::Allow | Action::Limit(_) => return None,
        };
        let hint = format!(
            "add a rule before it: {{ name: notifications, tools: {tool}, principals: [\"user:{SERVICE}\"], then: allow }}"
        );
        Some(ConfigError::new(format!("the rule `{}` of policy.yaml {what}", verdict.rule)).hint(hint))
    })
}

/// The arguments without references to secrets, and those that are references. Only the configuration refers to secrets: the
/// same characters in a message are data.
fn split(args: &Map<String, Value>) -> (Map<String, Value>, BTreeMap<String, String>) {
    let (mut plain, mut secrets) = (Map::new(), BTreeMap::new());
    for (name, value) in args {
        match value.as_str().filter(|text| expr::secret_references(text).next().is_some()) {
            Some(text) => drop(secrets.insert(name.clone(), text.to_owned())),
            None => drop(plain.insert(name.clone(), value.clone())),
        }
    }
    (plain, secrets)
}

/// A channel that calls a tool.
pub(super) struct ToolChannel {
    name: String,
    tool: String,
    args: ArgsTemplate,
    secrets: BTreeMap<String, String>,
    engine: AttachedEngine,
}

impl ToolChannel {
    pub(super) fn open(name: &str, config: &ToolConfig, engine: AttachedEngine) -> Result<Self, ConfigError> {
        if !config.tool.contains("__") {
            let problem = ConfigError::new(format!("`{}` is not the name of a tool", config.tool));
            return Err(problem.hint("write `server__tool`"));
        }
        let (args, secrets) = split(&config.args);
        let args = ArgsTemplate::compile(&args)?;
        Ok(Self { name: name.to_owned(), tool: config.tool.clone(), args, secrets, engine })
    }

    async fn call(&self, delivery: Delivery<'_>) -> Result<(), SendError> {
        let args = self.args.eval(delivery.message, delivery.address).map_err(SendError::permanent)?;
        let Value::Object(args) = args else { return Err(SendError::permanent("`args` is not an object")) };
        let engine = self.engine.borrow().as_ref().and_then(WeakEngine::upgrade);
        let engine = engine.ok_or_else(|| SendError::transient("the engine is stopping"))?;
        let ended = self.run(&engine, args, delivery).await.map_err(|error| not_started(&error))?;
        outcome(&ended)
    }

    /// Runs the call. After a crash, the run of the same attempt is continued instead of a new one, unless the facts of the
    /// message have changed since.
    async fn run(
        &self,
        engine: &Engine,
        args: Map<String, Value>,
        delivery: Delivery<'_>,
    ) -> Result<RunView, Error> {
        let Self { name, tool, secrets, .. } = self;
        let Delivery { message, address, attempts, now } = delivery;
        let key = format!("notification {} {name} {address} {attempts}", message.id);
        let start = Start::notification(tool, args, secrets, Principal::user(SERVICE));
        let run = match engine.start(start.clone().request_key(&*key)).await {
            Err(Error::Conflict(_)) => engine.start(start.request_key(format!("{key} {now}"))).await?,
            started => started?,
        };
        run.wait().await
    }
}

impl Channel for ToolChannel {
    fn send<'f>(&'f self, delivery: Delivery<'f>) -> BoxFuture<'f, Result<Receipt, SendError>> {
        Box::pin(async move { self.call(delivery).await.map(|()| Receipt::default()) })
    }
}

fn not_started(error: &Error) -> SendError {
    match error {
        Error::Invalid(_) | Error::BadInput(_) => SendError::permanent(error.to_string()),
        _ => SendError::transient(error.to_string()),
    }
}

/// Whether the tool accepted the message. What the rights, the policy or the schema of the tool exclude fails again.
fn outcome(ended: &RunView) -> Result<(), SendError> {
    use FailureKind as Kind;
    match (&ended.run.status, &ended.run.error) {
        (RunStatus::Completed, _) => Ok(()),
        (_, Some(error)) => {
            let reason = error.to_string();
            let is_permanent = matches!(error.kind, Kind::Permission | Kind::NotFound | Kind::Validation);
            Err(if is_permanent { SendError::permanent(reason) } else { SendError::transient(reason) })
        }
        (status, None) => Err(SendError::transient(format!("the run of the call is {}", status.name()))),
    }
}
