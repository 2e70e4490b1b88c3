//! REST: one file per resource. A handler reads the request, calls one method as whoever asks, and shows what it gave.

pub(crate) mod approvals;
mod audit;
mod control;
mod definitions;
pub(crate) mod logins;
mod older;
pub(crate) mod people;
mod runs;
mod schedules;
pub(crate) mod secrets;
pub(crate) mod session;
pub(crate) mod tokens;
mod tools;

use super::api::Api;

/// Every route that is described.
pub(super) fn all() -> Api {
    let api = Api::new();
    let api = definitions::routes(api);
    let api = runs::routes(api);
    let api = control::routes(api);
    let api = approvals::routes(api);
    let api = schedules::routes(api);
    let api = tools::routes(api);
    let api = logins::routes(api);
    let api = secrets::routes(api);
    let api = people::routes(api);
    let api = tokens::routes(api);
    let api = session::routes(api);
    let api = audit::routes(api);
    older::routes(api)
}
