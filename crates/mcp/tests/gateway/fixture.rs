//! The fixture server: a tool for each behaviour (result, error, progress, task, input request, crash, …).

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CreateTaskResult, DetailedTask,
    ElicitRequest, ElicitRequestParams, GetTaskParams, GetTaskResult, InputRequest, InputRequiredResult,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion, ServerCapabilities,
    ServerConfig, Task, TaskPayload, TaskStatus, Tool, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer, ServiceExt};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};

/// The server. `legacy` limits its revisions; `renamed` gives `echo.text` another name.
#[derive(Clone, Default)]
struct Fixture {
    legacy: bool,
    renamed: Arc<AtomicBool>,
}

impl Fixture {
    fn from_env() -> Self {
        Self { legacy: std::env::var("STEPRAIL_FIXTURE").is_ok_and(|era| era == "legacy"), ..Self::default() }
    }

    /// A task that completes after three polls. The count is in a file, so that it outlives this process.
    fn job(id: &str) -> DetailedTask {
        let file = std::env::temp_dir().join(id);
        let polls = std::fs::read_to_string(&file).unwrap_or_default().len();
        std::fs::write(&file, "x".repeat(polls + 1)).expect("a file");
        let task = Task::new(id, TaskStatus::Working, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z");
        let task = task.with_poll_interval_ms(1).with_status_message(format!("polled {polls} times"));
        let result = CallToolResult::structured(json!({ "job": "done" }));
        let result = serde_json::to_value(result).expect("JSON").as_object().cloned().expect("a map");
        let payload = if polls >= 3 { TaskPayload::Completed { result } } else { TaskPayload::Working };
        DetailedTask::new(task, payload)
    }
}

fn elicitation() -> ElicitRequestParams {
    let schema = json!({ "type": "object", "properties": { "region": { "type": "string" } } });
    serde_json::from_value(json!({ "mode": "form", "message": "Which region?", "requestedSchema": schema }))
        .expect("a form")
}

fn schema(value: &Value) -> Arc<rmcp::model::JsonObject> {
    Arc::new(value.as_object().cloned().expect("a map"))
}

impl ServerHandler for Fixture {
    fn get_info(&self) -> ServerConfig {
        let capabilities =
            ServerCapabilities::builder().enable_tools().enable_tool_list_changed().enable_tasks();
        ServerConfig::new(capabilities.build())
    }

    fn supported_protocol_versions(&self) -> std::borrow::Cow<'static, [ProtocolVersion]> {
        let known = ProtocolVersion::KNOWN_VERSIONS;
        let modern = |version: &&ProtocolVersion| version.as_str() >= "2026-07-28";
        if self.legacy {
            known.iter().filter(|version| !modern(version)).cloned().collect()
        } else {
            known.into()
        }
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        Ok(GetTaskResult::new(Self::job(&request.task_id)))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let any = schema(&json!({ "type": "object" }));
        let text = schema(&json!({
            "type": "object", "properties": { "text": { "type": "string" } }, "required": ["text"]
        }));
        let mut tools: Vec<Tool> =
            ["fail", "die", "big", "meta", "nest", "wait", "progress", "ask", "job", "rename"]
                .into_iter()
                .map(|name| {
                    let annotations = ToolAnnotations::new().destructive(name == "die");
                    Tool::new(name, "A tool.", any.clone()).annotate(annotations)
                })
                .collect();
        let read_only = ToolAnnotations::new().read_only(true);
        let name = if self.renamed.load(Ordering::Relaxed) { "say.text" } else { "echo.text" };
        tools.push(Tool::new(name, "Returns its text.", text).annotate(read_only));
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let args = request.arguments.unwrap_or_default();
        let renamed = self.renamed.load(Ordering::Relaxed);
        match &*request.name {
            "ask" if !self.legacy => {
                let Some(responses) = request.input_responses else {
                    let request = InputRequest::Elicitation(ElicitRequest::new(elicitation()));
                    let requests = Some([("where".to_owned(), request)].into());
                    return Ok(InputRequiredResult::new(requests, Some("s-1".to_owned())).into());
                };
                let state = request.request_state.unwrap_or_default();
                return Ok(
                    CallToolResult::structured(json!({ "got": responses["where"], "state": state })).into()
                );
            }
            "job" => {
                let task = Self::job(args["id"].as_str().expect("an id")).task;
                return Ok(CreateTaskResult::new(task).into());
            }
            "echo.text" if renamed => return Err(ErrorData::invalid_params("unknown tool: echo.text", None)),
            _ => {}
        }
        let text = |text: String| CallToolResult::success(vec![ContentBlock::text(text)]);
        Ok(CallToolResponse::Complete(match &*request.name {
            "ask" => {
                let answer = context.peer.create_elicitation(elicitation()).await.expect("an answer");
                CallToolResult::structured(json!({ "got": answer }))
            }
            "progress" => {
                let token = context.meta.get_progress_token().expect("a token");
                for step in [1.0, 2.0, 3.0] {
                    let report = ProgressNotificationParam::new(token.clone(), step).with_total(3.0);
                    context.peer.notify_progress(report).await.expect("sent");
                }
                text("done".to_owned())
            }
            "rename" => {
                self.renamed.store(true, Ordering::Relaxed);
                text("renamed".to_owned())
            }
            "echo.text" | "say.text" => CallToolResult::structured(json!({ "echo": args["text"] })),
            "fail" => CallToolResult::error(vec![ContentBlock::text("it did not work")]),
            "meta" => CallToolResult::structured(serde_json::to_value(&context.meta).expect("JSON")),
            "big" => text("x".repeat(100 * 1024 * 1024)),
            "nest" => {
                #[expect(clippy::zombie_processes, reason = "the supervisor has to end it")]
                let child = Command::new("sleep").arg("1000").spawn().expect("a grandchild");
                text(child.id().to_string())
            }
            "wait" => {
                context.ct.cancelled().await;
                tokio::time::sleep(Duration::from_millis(10)).await;
                text("stopped".to_owned())
            }
            _ => std::process::exit(9),
        }))
    }
}

/// Serves over HTTP and returns the URL.
pub(crate) async fn serve_http() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let sessions = Arc::new(LocalSessionManager::default());
    let service = StreamableHttpService::new(
        || Ok(Fixture::default()),
        sessions,
        StreamableHttpServerConfig::default(),
    );
    let router = axum::Router::new().nest_service("/mcp", service);
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/mcp")
}

/// Serves over stdio until the input closes.
pub(crate) fn serve() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let served = Fixture::from_env().serve(rmcp::transport::stdio()).await;
        if let Ok(service) = served {
            let _ = service.waiting().await;
        }
    });
}
