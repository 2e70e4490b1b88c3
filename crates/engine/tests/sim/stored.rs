//! Reads logs and unfinished runs from the store.

use steprail_core::run::{Event, Millis};
use steprail_engine::RunId;

use super::Sim;

impl Sim {
    pub(super) fn events(&self, run: RunId) -> Vec<(Millis, Event)> {
        let store = self.store.lock().expect("the store");
        let mut statement = store
            .connection()
            .prepare_cached(
                "SELECT at, body FROM workflow_events WHERE run_id = (SELECT id FROM workflow_runs WHERE run_id = ?1)
                 ORDER BY seq",
            )
            .expect("a statement");
        let rows = statement
            .query_map([run.to_string()], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))
            .expect("rows");
        rows.map(|row| row.expect("a row"))
            .map(|(at, body)| (at, serde_json::from_str(&body).expect("an event")))
            .collect()
    }

    pub(super) fn all_runs(&self) -> Vec<RunId> {
        let store = self.store.lock().expect("the store");
        let mut statement =
            store.connection().prepare_cached("SELECT run_id FROM workflow_runs").expect("a statement");
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).expect("rows");
        rows.map(|row| row.expect("a row").parse().expect("a run id")).collect()
    }

    pub(super) fn unfinished(&self) -> Vec<RunId> {
        let store = self.store.lock().expect("the store");
        let sql = "SELECT run_id FROM workflow_runs WHERE completed_at IS NULL ORDER BY id";
        let mut statement = store.connection().prepare_cached(sql).expect("a statement");
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).expect("rows");
        rows.map(|row| row.expect("a row").parse().expect("a run id")).collect()
    }
}
