//! Steps of a run, page by page.

use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use steprail_engine::{ListSteps, StepFilter, StepStatus};

use super::run_view::Step;
use crate::api::{Api, get};
use crate::extract::{Caller, QueryParams, RunParam};
use crate::page::{self, Page};
use crate::problem::Problem;

pub(super) fn routes(api: Api) -> Api {
    let list = get("/api/v1/runs/{run_id}/steps", "List the steps of a run")
        .details(
            "Attempts in the order of their start. A page has at most `limit` attempts, and ends after 1 MiB of inputs and \
             outputs.",
        )
        .query::<StepsQuery>()
        .returns::<Page<Step>>(200, "A page of the attempts.");
    api.route("runs", list, self::list)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StepsQuery {
    /// Only attempts with this status.
    status: Option<StepStatus>,
    /// `steps_next` of the run, or `next` of the previous page.
    cursor: Option<String>,
    /// Maximum number of attempts; 100 by default.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

async fn list(
    Caller(user): Caller,
    RunParam(run): RunParam,
    QueryParams(query): QueryParams<StepsQuery>,
) -> Result<Json<Page<Step>>, Problem> {
    let list = ListSteps {
        filter: query.status.map_or(StepFilter::All, StepFilter::Status),
        after: page::cursor(query.cursor.as_deref())?,
        limit: page::limit(query.limit, 100)?,
        ..ListSteps::default()
    };
    let found = user.steps(run, list).await?;
    let next = found.next().map(|next| next.to_string());
    Ok(Json(Page { items: found.steps.into_iter().map(|step| Step::new(run, step)).collect(), next }))
}
