//! REST: one file per resource, with its routes, its JSON and its handlers.

pub(crate) mod approvals;
mod audit;
mod compat;
mod control;
pub(crate) mod definitions;
pub(crate) mod events;
pub(crate) mod logins;
pub(crate) mod notifications;
pub(crate) mod passkeys;
pub(crate) mod policy;
pub(crate) mod presence;
pub(crate) mod proposals;
pub(crate) mod run_view;
mod runs;
pub(crate) mod schedules;
pub(crate) mod secrets;
pub(crate) mod servers;
pub(crate) mod session;
mod steps;
pub(crate) mod tokens;
pub(crate) mod tools;
pub(crate) mod users;

use super::api::Api;

/// Every route of the REST API.
pub(super) fn all() -> Api {
    let resources = [
        definitions::routes,
        proposals::routes,
        runs::routes,
        steps::routes,
        events::routes,
        control::routes,
        approvals::routes,
        notifications::routes,
        policy::routes,
        schedules::routes,
        tools::routes,
        servers::routes,
        logins::routes,
        secrets::routes,
        users::routes,
        tokens::routes,
        session::routes,
        presence::routes,
        passkeys::routes,
        audit::routes,
        compat::routes,
    ];
    resources.into_iter().fold(Api::new(), |api, routes| routes(api))
}
