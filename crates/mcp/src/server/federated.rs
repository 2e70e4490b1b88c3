//! Resources, prompts and completions of other servers, offered beside our own.
//!
//! A server's URI or prompt keeps its name unless the name is taken: by ours, or by a server that is named earlier in
//! `federate`. Then it is qualified: `SERVER+URI`, `SERVER__PROMPT`.

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

use super::{Shared, is_modern, prompts, relayed};
use crate::gateway::Offer;
use crate::limits::{RELAY_ROUNDS, STATES, URI_BYTES};
use crate::names;

/// What a user must be allowed to call, after the server's name and `__`, to see resources, and to see prompts.
const READ: &str = "resources/read";
/// See [`READ`].
const GET: &str = "prompts/get";

/// A server whose offer a user may see.
struct Source {
    server: String,
    alias: String,
    offer: Arc<Offer>,
}

/// Where a request goes: a server, and the name or URI that it knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route {
    pub server: String,
    pub name: String,
}

async fn sources(shared: &Shared, user: &User, method: &str) -> Vec<Source> {
    let Some(gateway) = &shared.gateway else { return Vec::new() };
    let listing = shared.settings.federate.iter().map(|server| async move {
        let alias = gateway.alias_of(server)?;
        if !user.may_call(&format!("{alias}__{method}")).await {
            return None;
        }
        let offer = gateway.offer(server, user.principal()).await;
        Some(Source { server: server.clone(), alias: alias.to_owned(), offer })
    });
    futures::future::join_all(listing).await.into_iter().flatten().collect()
}

/// Whether a user may still read resources of a server.
pub(super) async fn may_read(shared: &Shared, user: &User, server: &str) -> bool {
    let alias = shared.gateway.as_ref().and_then(|gateway| gateway.alias_of(server));
    match alias {
        Some(alias) => user.may_call(&format!("{alias}__{READ}")).await,
        None => false,
    }
}

/// Whether a URI may be one of another server: not ours, and fit to be passed on.
fn is_foreign(uri: &str) -> bool {
    let ours = uri.get(..9).is_some_and(|scheme| scheme.eq_ignore_ascii_case("workflow:"));
    !ours && !uri.is_empty() && uri.len() <= URI_BYTES && !uri.contains(|c: char| c.is_control() || c == ' ')
}

/// The names under which URIs of several servers are offered.
struct Uris<'s> {
    aliases: Vec<&'s str>,
    taken: BTreeSet<String>,
}

impl<'s> Uris<'s> {
    fn new(sources: &'s [Source]) -> Self {
        let aliases = sources.iter().map(|source| source.alias.as_str()).collect();
        Self { aliases, taken: BTreeSet::new() }
    }

    /// The URI that is offered; none if the server's URI is not passed on.
    fn offered(&mut self, alias: &str, uri: &str) -> Option<String> {
        if !is_foreign(uri) {
            return None;
        }
        let looks_qualified = uri.split_once('+').is_some_and(|(word, _)| self.aliases.contains(&word));
        if !looks_qualified && self.taken.insert(uri.to_owned()) {
            return Some(uri.to_owned());
        }
        let qualified = format!("{alias}+{uri}");
        self.taken.insert(qualified.clone()).then_some(qualified)
    }
}

/// The resources of other servers that a user may read.
pub(super) async fn resources(shared: &Shared, user: &User) -> Vec<Resource> {
    let sources = sources(shared, user, READ).await;
    let mut uris = Uris::new(&sources);
    let mut all = Vec::new();
    for source in &sources {
        for resource in &source.offer.resources {
            let Some(uri) = uris.offered(&source.alias, &resource.uri) else { continue };
            let mut resource = resource.clone();
            resource.uri = uri;
            all.push(resource);
        }
    }
    all
}

/// The resource templates of other servers.
pub(super) async fn templates(shared: &Shared, user: &User) -> Vec<ResourceTemplate> {
    let sources = sources(shared, user, READ).await;
    let mut uris = Uris::new(&sources);
    let mut all = Vec::new();
    for source in &sources {
        for template in &source.offer.templates {
            let Some(uri) = uris.offered(&source.alias, &template.uri_template) else { continue };
            let mut template = template.clone();
            template.uri_template = uri;
            all.push(template);
        }
    }
    all
}

/// The prompts of other servers.
pub(super) async fn prompts(shared: &Shared, user: &User) -> Vec<Prompt> {
    let mut taken: BTreeSet<String> = prompts::NAMES.iter().map(|name| (*name).to_owned()).collect();
    let mut all = Vec::new();
    for source in sources(shared, user, GET).await {
        for prompt in &source.offer.prompts {
            let qualified = format!("{}__{}", source.alias, prompt.name);
            let names = [prompt.name.clone(), qualified];
            let Some(name) = names.into_iter().find(|name| !taken.contains(name)) else { continue };
            taken.insert(name.clone());
            let mut prompt = prompt.clone();
            prompt.name = name;
            all.push(prompt);
        }
    }
    all
}

/// The server that a URI belongs to: the one that it names, the first that lists it, the first with a template that
/// fits, or the only one.
pub(super) async fn resource_route(shared: &Shared, user: &User, uri: &str) -> Option<Route> {
    if !is_foreign(uri) {
        return None;
    }
    let sources = sources(shared, user, READ).await;
    let to = |source: &Source, uri: &str| Route { server: source.server.clone(), name: uri.to_owned() };
    if let Some((alias, rest)) = uri.split_once('+')
        && let Some(source) = sources.iter().find(|source| source.alias == alias)
    {
        return is_foreign(rest).then(|| to(source, rest));
    }
    let lists = |source: &&Source| {
        source.offer.resources.iter().any(|resource| resource.uri == uri)
            || source.offer.templates.iter().any(|template| template.uri_template == uri)
    };
    let fits = |source: &&Source| {
        source.offer.templates.iter().any(|template| is_instance(&template.uri_template, uri))
    };
    let only = || sources.first().filter(|_| sources.len() == 1);
    let found = sources.iter().find(lists).or_else(|| sources.iter().find(fits)).or_else(only);
    found.map(|source| to(source, uri))
}

/// Whether a URI can come from a template.
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
    let sources = sources(shared, user, GET).await;
    let has = |source: &Source, name: &str| source.offer.prompts.iter().any(|prompt| prompt.name == name);
    let to = |source: &Source, name: &str| Route { server: source.server.clone(), name: name.to_owned() };
    if let Some(source) = sources.iter().find(|source| has(source, name)) {
        return Some(to(source, name));
    }
    let (alias, own) = names::split(name)?;
    sources.iter().find(|source| source.alias == alias && has(source, own)).map(|source| to(source, own))
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
    let given = (request.input_responses.clone(), request.request_state.clone());
    let uri = route.name.clone();
    let make = move |responses, state| {
        let mut params = ReadResourceRequestParams::new(uri.clone());
        (params.input_responses, params.request_state) = (responses, state);
        ClientRequest::ReadResourceRequest(ReadResourceRequest::new(params))
    };
    match exchange(shared, user, context, &route, given, make).await? {
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
        return Err(ErrorData::invalid_params(format!("there is no prompt `{}`", request.name), None));
    };
    let given = (request.input_responses.clone(), request.request_state.clone());
    let (name, arguments) = (route.name.clone(), request.arguments.clone());
    let make = move |responses, state| {
        let mut params = GetPromptRequestParams::new(name.clone());
        params.arguments.clone_from(&arguments);
        (params.input_responses, params.request_state) = (responses, state);
        ClientRequest::GetPromptRequest(GetPromptRequest::new(params))
    };
    match exchange(shared, user, context, &route, given, make).await? {
        ServerResult::GetPromptResult(result) => Ok(result.into()),
        ServerResult::InputRequiredResult(needed) => Ok(needed.into()),
        _ => Err(unexpected(&route)),
    }
}

/// Completes an argument of a prompt or a resource template of another server; none if it is not one of another server.
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
    ErrorData::internal_error(format!("{} answered with something else than a result", route.server), None)
}

/// Sends a request on, and asks the client what the server asks: in its session, or by the answer.
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
    let mut state = state.map(|handle| shared.states.open(&handle, &owner)).transpose()?;
    let mut declared = context.client_capabilities().unwrap_or_default();
    declared.extensions = None;
    for _ in 0..RELAY_ROUNDS {
        let made = request(responses.take(), state.take());
        let result = gateway.forward(&route.server, user.principal(), made, declared.clone()).await?;
        let ServerResult::InputRequiredResult(mut needed) = result else { return Ok(result) };
        if is_modern(context) {
            needed.request_state = needed.request_state.map(|state| shared.states.keep(owner, state));
            return Ok(ServerResult::InputRequiredResult(needed));
        }
        let asked = relayed::answers(&context.peer, needed.input_requests.unwrap_or_default()).await;
        let not_answered = |error| ErrorData::invalid_request(format!("{}: {error}", route.server), None);
        responses = Some(asked.map_err(not_answered)?);
        state = needed.request_state;
    }
    Err(ErrorData::internal_error(format!("{} asked more than {RELAY_ROUNDS} times", route.server), None))
}

/// A user, and where their request goes.
type Owner = (String, Route);

/// The `requestState`s of servers, which clients know by handles: each is for one user and one request.
#[derive(Default)]
pub(super) struct States(Mutex<VecDeque<(String, Owner, String)>>);

impl States {
    fn keep(&self, owner: Owner, state: String) -> String {
        let handle = uuid::Uuid::new_v4().to_string();
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if states.len() >= STATES {
            states.pop_front();
        }
        states.push_back((handle.clone(), owner, state));
        handle
    }

    fn open(&self, handle: &str, owner: &Owner) -> Result<String, ErrorData> {
        let states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = states.iter().find(|(known, whose, _)| known == handle && whose == owner);
        let invalid = || ErrorData::invalid_params("invalid requestState", Some(json!({ "retry": true })));
        found.map(|(.., state)| state.clone()).ok_or_else(invalid)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Route, Source, States, Uris, is_foreign, is_instance};

    #[test]
    fn uris_of_several_servers_are_told_apart() {
        let source =
            |alias: &str| Source { server: alias.to_owned(), alias: alias.to_owned(), offer: Arc::default() };
        let sources = [source("a"), source("b")];
        let mut uris = Uris::new(&sources);
        assert_eq!(uris.offered("a", "file:///x").as_deref(), Some("file:///x"));
        assert_eq!(uris.offered("b", "file:///x").as_deref(), Some("b+file:///x"));
        assert_eq!(uris.offered("b", "file:///x"), None, "the same resource twice");
        assert_eq!(uris.offered("b", "a+file:///x").as_deref(), Some("b+a+file:///x"));
        assert_eq!(uris.offered("a", "workflow://runs/1"), None);
        assert_eq!(uris.offered("a", "WORKFLOW://runs/1"), None);
    }

    #[test]
    fn uris_that_cannot_be_passed_on_are_left_out() {
        assert!(is_foreign("file:///a/../b"), "its server decides what `..` means");
        for uri in ["", "a b", "a\nb", &"x".repeat(3_000)] {
            assert!(!is_foreign(uri), "{uri:?}");
        }
    }

    #[test]
    fn templates_fit_their_instances() {
        assert!(is_instance("test://template/{id}/data", "test://template/7/data"));
        assert!(!is_instance("test://template/{id}/data", "test://other/7/data"));
        assert!(!is_instance("test://plain", "test://plain"), "no template");
        assert!(!is_instance("test://{broken", "test://1"));
    }

    #[test]
    fn a_state_is_for_its_user_and_its_request() {
        let states = States::default();
        let owner = |user: &str, name: &str| {
            (user.to_owned(), Route { server: "s".to_owned(), name: name.to_owned() })
        };
        let handle = states.keep(owner("ann", "p"), "secret".to_owned());
        assert_eq!(states.open(&handle, &owner("ann", "p")).expect("the state"), "secret");
        assert!(states.open(&handle, &owner("bob", "p")).is_err());
        assert!(states.open(&handle, &owner("ann", "q")).is_err());
        assert!(states.open("forged", &owner("ann", "p")).is_err());
    }
}
