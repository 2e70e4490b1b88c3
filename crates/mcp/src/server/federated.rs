//! Federation: resources, prompts and completions of other servers.
//!
//! A URI or a prompt keeps its name unless Steprail or a server earlier in `federate` uses it already. Then it is
//! qualified: `SERVER+URI`, `SERVER__PROMPT`.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::RoleServer;
use rmcp::model::{
    ClientRequest, CompleteRequest, CompleteRequestParams, CompleteResult, ErrorData, GetPromptRequest,
    GetPromptRequestParams, GetPromptResponse, InputResponses, Prompt, ReadResourceRequest,
    ReadResourceRequestParams, ReadResourceResponse, Reference, Resource, ResourceTemplate, ServerResult,
};
use rmcp::service::RequestContext;
use serde_json::json;
use steprail_core::pattern;
use steprail_engine::User;

use super::{Shared, is_sessionless, prompts, relayed};
use crate::gateway::Offer;
use crate::limits::{RELAY_ROUNDS, STATES, URI_BYTES};
use crate::names;

/// The tool name, after the server's alias and `__`, that a user must be allowed to call to read resources.
const READ: &str = "resources/read";
/// The same for prompts.
const GET: &str = "prompts/get";

/// A federated server that a user may access.
struct FederatedServer {
    name: String,
    alias: String,
    offer: Arc<Offer>,
}

impl FederatedServer {
    fn route(&self, name: &str) -> Route {
        Route { server: self.name.clone(), name: name.to_owned() }
    }

    fn has_prompt(&self, name: &str) -> bool {
        self.offer.prompts.iter().any(|prompt| prompt.name == name)
    }
}

/// The target of a request: a server, and the name or URI that the server uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route {
    pub server: String,
    pub name: String,
}

async fn servers(shared: &Shared, user: &User, method: &str) -> Vec<FederatedServer> {
    let Some(gateway) = &shared.gateway else { return Vec::new() };
    let listing = shared.settings.federate.iter().map(|server| async move {
        let alias = gateway.alias_of(server)?;
        if !user.may_call(&format!("{alias}__{method}")).await {
            return None;
        }
        let offer = gateway.offer(server, user.principal()).await;
        Some(FederatedServer { name: server.clone(), alias: alias.to_owned(), offer })
    });
    futures::future::join_all(listing).await.into_iter().flatten().collect()
}

/// Whether a user may read resources of a server.
pub(super) async fn may_read(shared: &Shared, user: &User, server: &str) -> bool {
    let alias = shared.gateway.as_ref().and_then(|gateway| gateway.alias_of(server));
    match alias {
        Some(alias) => user.may_call(&format!("{alias}__{READ}")).await,
        None => false,
    }
}

/// Whether a URI can be routed to another server: it is not reserved, not too long, and well-formed.
fn is_routable(uri: &str) -> bool {
    let is_reserved = uri.get(..9).is_some_and(|scheme| scheme.eq_ignore_ascii_case("workflow:"));
    let is_plain = !uri.contains(|c: char| c.is_control() || c == ' ');
    !is_reserved && !uri.is_empty() && uri.len() <= URI_BYTES && is_plain
}

/// Assigns distinct URIs to the resources of several servers.
struct UriNames<'s> {
    aliases: Vec<&'s str>,
    taken: BTreeSet<String>,
}

impl<'s> UriNames<'s> {
    fn new(servers: &'s [FederatedServer]) -> Self {
        let aliases = servers.iter().map(|server| server.alias.as_str()).collect();
        Self { aliases, taken: BTreeSet::new() }
    }

    /// The URI under which a resource is offered; `None` if it is not offered.
    fn assign(&mut self, alias: &str, uri: &str) -> Option<String> {
        if !is_routable(uri) {
            return None;
        }
        let looks_qualified = uri.split_once('+').is_some_and(|(prefix, _)| self.aliases.contains(&prefix));
        if !looks_qualified && self.taken.insert(uri.to_owned()) {
            return Some(uri.to_owned());
        }
        let qualified = format!("{alias}+{uri}");
        self.taken.insert(qualified.clone()).then_some(qualified)
    }

    /// The items of all servers, with the URIs under which they are offered.
    fn assign_all<T: Clone>(
        mut self,
        servers: &[FederatedServer],
        items: impl Fn(&Offer) -> &[T],
        uri: impl Fn(&mut T) -> &mut String,
    ) -> Vec<T> {
        let mut all = Vec::new();
        for server in servers {
            for item in items(&server.offer) {
                let mut item = item.clone();
                let Some(assigned) = self.assign(&server.alias, uri(&mut item)) else { continue };
                *uri(&mut item) = assigned;
                all.push(item);
            }
        }
        all
    }
}

/// The resources of other servers that a user may read.
pub(super) async fn resources(shared: &Shared, user: &User) -> Vec<Resource> {
    let servers = servers(shared, user, READ).await;
    UriNames::new(&servers).assign_all(&servers, |offer| &offer.resources, |resource| &mut resource.uri)
}

/// The resource templates of other servers that a user may read.
pub(super) async fn templates(shared: &Shared, user: &User) -> Vec<ResourceTemplate> {
    let servers = servers(shared, user, READ).await;
    UriNames::new(&servers).assign_all(
        &servers,
        |offer| &offer.templates,
        |template| &mut template.uri_template,
    )
}

/// The prompts of other servers that a user may get.
pub(super) async fn prompts(shared: &Shared, user: &User) -> Vec<Prompt> {
    let mut taken: BTreeSet<String> = prompts::NAMES.iter().map(|name| (*name).to_owned()).collect();
    let mut all = Vec::new();
    for server in servers(shared, user, GET).await {
        for prompt in &server.offer.prompts {
            let names = [prompt.name.clone(), format!("{}__{}", server.alias, prompt.name)];
            let Some(name) = names.into_iter().find(|name| !taken.contains(name)) else { continue };
            taken.insert(name.clone());
            let mut prompt = prompt.clone();
            prompt.name = name;
            all.push(prompt);
        }
    }
    all
}

/// The server that a URI is routed to: the one that qualifies it, the first that lists it, the first with a matching
/// template, or the only one.
pub(super) async fn resource_route(shared: &Shared, user: &User, uri: &str) -> Option<Route> {
    if !is_routable(uri) {
        return None;
    }
    let servers = servers(shared, user, READ).await;
    if let Some((alias, rest)) = uri.split_once('+')
        && let Some(server) = servers.iter().find(|server| server.alias == alias)
    {
        return is_routable(rest).then(|| server.route(rest));
    }
    let lists = |server: &&FederatedServer| {
        server.offer.resources.iter().any(|resource| resource.uri == uri)
            || server.offer.templates.iter().any(|template| template.uri_template == uri)
    };
    let has_template = |server: &&FederatedServer| {
        server.offer.templates.iter().any(|template| is_instance(&template.uri_template, uri))
    };
    let only = || servers.first().filter(|_| servers.len() == 1);
    let server = servers.iter().find(lists).or_else(|| servers.iter().find(has_template)).or_else(only);
    server.map(|server| server.route(uri))
}

/// Whether a URI matches a template.
fn is_instance(template: &str, uri: &str) -> bool {
    let mut glob = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((_, after)) = after.split_once('}') else { return false };
        glob.push_str(before);
        glob.push('*');
        rest = after;
    }
    glob.push_str(rest);
    glob.contains('*') && pattern::matches(&glob, uri)
}

async fn prompt_route(shared: &Shared, user: &User, name: &str) -> Option<Route> {
    if prompts::NAMES.contains(&name) {
        return None;
    }
    let servers = servers(shared, user, GET).await;
    if let Some(server) = servers.iter().find(|server| server.has_prompt(name)) {
        return Some(server.route(name));
    }
    let (alias, own) = names::split(name)?;
    let server = servers.iter().find(|server| server.alias == alias && server.has_prompt(own))?;
    Some(server.route(own))
}

/// Reads a resource of another server.
pub(super) async fn read(
    shared: &Shared,
    user: &User,
    context: &RequestContext<RoleServer>,
    request: ReadResourceRequestParams,
) -> Result<ReadResourceResponse, ErrorData> {
    let Some(route) = resource_route(shared, user, &request.uri).await else {
        return Err(super::resources::not_found(&request.uri));
    };
    let input = (request.input_responses.clone(), request.request_state.clone());
    let uri = route.name.clone();
    let build = move |responses, state| {
        let mut params = ReadResourceRequestParams::new(uri.clone());
        (params.input_responses, params.request_state) = (responses, state);
        ClientRequest::ReadResourceRequest(ReadResourceRequest::new(params))
    };
    match exchange(shared, user, context, &route, input, build).await? {
        ServerResult::ReadResourceResult(result) => Ok(result.into()),
        ServerResult::InputRequiredResult(needed) => Ok(needed.into()),
        _ => Err(unexpected(&route)),
    }
}

/// Gets a prompt of another server.
pub(super) async fn prompt(
    shared: &Shared,
    user: &User,
    context: &RequestContext<RoleServer>,
    request: GetPromptRequestParams,
) -> Result<GetPromptResponse, ErrorData> {
    let Some(route) = prompt_route(shared, user, &request.name).await else {
        return Err(prompts::not_found(&request.name));
    };
    let input = (request.input_responses.clone(), request.request_state.clone());
    let (name, arguments) = (route.name.clone(), request.arguments.clone());
    let build = move |responses, state| {
        let mut params = GetPromptRequestParams::new(name.clone());
        params.arguments.clone_from(&arguments);
        (params.input_responses, params.request_state) = (responses, state);
        ClientRequest::GetPromptRequest(GetPromptRequest::new(params))
    };
    match exchange(shared, user, context, &route, input, build).await? {
        ServerResult::GetPromptResult(result) => Ok(result.into()),
        ServerResult::InputRequiredResult(needed) => Ok(needed.into()),
        _ => Err(unexpected(&route)),
    }
}

/// Completes an argument of a prompt or resource template of another server; `None` if no other server has it.
pub(super) async fn complete(
    shared: &Shared,
    user: &User,
    context: &RequestContext<RoleServer>,
    mut request: CompleteRequestParams,
) -> Option<Result<CompleteResult, ErrorData>> {
    let route = match &mut request.r#ref {
        Reference::Prompt(prompt) => {
            let route = prompt_route(shared, user, &prompt.name).await?;
            prompt.name.clone_from(&route.name);
            route
        }
        Reference::Resource(resource) => {
            let route = resource_route(shared, user, &resource.uri).await?;
            resource.uri.clone_from(&route.name);
            route
        }
        _ => return None,
    };
    request.meta = None;
    let request = ClientRequest::CompleteRequest(CompleteRequest::new(request));
    let gateway = shared.gateway.as_ref()?;
    let declared = context.client_capabilities().unwrap_or_default();
    Some(match gateway.forward(&route.server, user.principal(), request, declared).await {
        Ok(ServerResult::CompleteResult(result)) => Ok(result),
        Ok(_) => Err(unexpected(&route)),
        Err(error) => Err(error),
    })
}

fn unexpected(route: &Route) -> ErrorData {
    ErrorData::internal_error(format!("unexpected response of the server `{}`", route.server), None)
}

/// Forwards a request. Input requests of the server go to the client: in its session, or as the result.
async fn exchange(
    shared: &Shared,
    user: &User,
    context: &RequestContext<RoleServer>,
    route: &Route,
    (mut responses, state): (Option<InputResponses>, Option<String>),
    request: impl Fn(Option<InputResponses>, Option<String>) -> ClientRequest,
) -> Result<ServerResult, ErrorData> {
    let gateway = shared.gateway.as_ref().ok_or_else(|| unexpected(route))?;
    let owner = (user.principal().id.clone(), route.clone());
    let mut state = state.map(|handle| shared.request_states.get(&handle, &owner)).transpose()?;
    let mut declared = context.client_capabilities().unwrap_or_default();
    declared.extensions = None;
    for _ in 0..RELAY_ROUNDS {
        let request = request(responses.take(), state.take());
        let result = gateway.forward(&route.server, user.principal(), request, declared.clone()).await?;
        let ServerResult::InputRequiredResult(mut required) = result else { return Ok(result) };
        if is_sessionless(context) {
            required.request_state =
                required.request_state.map(|state| shared.request_states.insert(owner, state));
            return Ok(ServerResult::InputRequiredResult(required));
        }
        let requests = required.input_requests.unwrap_or_default();
        let failed = |error| ErrorData::invalid_request(format!("{}: {error}", route.server), None);
        responses = Some(relayed::send_requests(&context.peer, requests).await.map_err(failed)?);
        state = required.request_state;
    }
    let message = format!("the server `{}` requested input more than {RELAY_ROUNDS} times", route.server);
    Err(ErrorData::internal_error(message, None))
}

/// A user, and the target of their request.
type Owner = (String, Route);

/// The `requestState`s of other servers by handles. Clients receive the handle, which is valid for one user and target.
#[derive(Default)]
pub(super) struct RequestStates(Mutex<VecDeque<(String, Owner, String)>>);

impl RequestStates {
    fn insert(&self, owner: Owner, state: String) -> String {
        let handle = uuid::Uuid::new_v4().to_string();
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if states.len() >= STATES {
            states.pop_front();
        }
        states.push_back((handle.clone(), owner, state));
        handle
    }

    fn get(&self, handle: &str, owner: &Owner) -> Result<String, ErrorData> {
        let states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = states.iter().find(|(known, known_owner, _)| known == handle && known_owner == owner);
        let invalid = || ErrorData::invalid_params("invalid requestState", Some(json!({ "retry": true })));
        found.map(|(.., state)| state.clone()).ok_or_else(invalid)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{FederatedServer, RequestStates, Route, UriNames, is_instance, is_routable};

    #[test]
    fn equal_uris_of_several_servers_are_qualified() {
        let server = |alias: &str| FederatedServer {
            name: alias.to_owned(),
            alias: alias.to_owned(),
            offer: Arc::default(),
        };
        let servers = [server("a"), server("b")];
        let mut uris = UriNames::new(&servers);
        assert_eq!(uris.assign("a", "file:///x").as_deref(), Some("file:///x"));
        assert_eq!(uris.assign("b", "file:///x").as_deref(), Some("b+file:///x"));
        assert_eq!(uris.assign("b", "file:///x"), None, "the same resource twice");
        assert_eq!(uris.assign("b", "a+file:///x").as_deref(), Some("b+a+file:///x"));
        assert_eq!(uris.assign("a", "workflow://runs/1"), None);
        assert_eq!(uris.assign("a", "WORKFLOW://runs/1"), None);
    }

    #[test]
    fn malformed_uris_are_not_offered() {
        assert!(is_routable("file:///a/../b"), "the server interprets `..`");
        for uri in ["", "a b", "a\nb", &"x".repeat(3_000)] {
            assert!(!is_routable(uri), "{uri:?}");
        }
    }

    #[test]
    fn uris_match_their_templates() {
        assert!(is_instance("test://template/{id}/data", "test://template/7/data"));
        assert!(!is_instance("test://template/{id}/data", "test://other/7/data"));
        assert!(!is_instance("test://plain", "test://plain"), "no template");
        assert!(!is_instance("test://{broken", "test://1"));
    }

    #[test]
    fn request_state_is_valid_for_its_user_and_target() {
        let states = RequestStates::default();
        let owner = |user: &str, name: &str| {
            (user.to_owned(), Route { server: "s".to_owned(), name: name.to_owned() })
        };
        let handle = states.insert(owner("ann", "p"), "secret".to_owned());
        assert_eq!(states.get(&handle, &owner("ann", "p")).expect("the state"), "secret");
        assert!(states.get(&handle, &owner("bob", "p")).is_err());
        assert!(states.get(&handle, &owner("ann", "q")).is_err());
        assert!(states.get("forged", &owner("ann", "p")).is_err());
    }
}
