//! Starts of stored definitions: callers compile the definition and check the inputs, so that neither blocks the engine
//! thread. The kernel only compares the version.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use steprail_store::Principal;

use crate::engine::Engine;
use crate::error::Error;
use crate::kernel::{Compiled, RunSource, check_inputs};
use crate::limits::CACHED_PLANS;
use crate::runs::RunHandle;

/// How often a start whose definition changed meanwhile is prepared again.
const ATTEMPTS: usize = 3;

/// Name of a definition and its version; the newest if `None`.
type PlanKey = (String, Option<u32>);

/// Compiled definitions by name and requested version. An entry can be outdated; the kernel rejects it then.
#[derive(Default)]
pub(crate) struct PlanCache(Mutex<HashMap<PlanKey, Arc<Compiled>>>);

impl PlanCache {
    fn get(&self, key: &PlanKey) -> Option<Arc<Compiled>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn put(&self, key: PlanKey, compiled: Arc<Compiled>) {
        let mut plans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if plans.len() >= CACHED_PLANS {
            plans.clear();
        }
        plans.insert(key, compiled);
    }
}

impl Engine {
    /// Starts a stored definition. If it changes all the time, or cannot be compiled, the kernel does the checks.
    pub(crate) async fn start_named(
        &self,
        name: String,
        version: Option<u32>,
        inputs: Value,
        principal: Principal,
        request_key: Option<String>,
    ) -> Result<RunHandle, Error> {
        let key = (name, version);
        for attempt in 0..ATTEMPTS {
            let known = self.0.plans.get(&key).filter(|_| attempt == 0);
            let is_fresh = known.is_none();
            let compiled = match known {
                Some(known) => known,
                None => match self.compile(&key).await? {
                    Some(compiled) => compiled,
                    None => break,
                },
            };
            let inputs = match check_inputs(&compiled.plan, &inputs) {
                Ok(inputs) => inputs,
                Err(error) if is_fresh => return Err(error),
                // The inputs may be valid for a newer version.
                Err(_) => continue,
            };
            let (name, version) = key.clone();
            let source = RunSource::Checked { name, version, compiled, inputs };
            match self.start_run(source, Value::Null, principal.clone(), request_key.clone()).await {
                Err(Error::VersionConflict(_)) => {}
                started => return started,
            }
        }
        let (name, version) = key;
        self.start_run(RunSource::Named { name, version }, inputs, principal, request_key).await
    }

    /// Reads and compiles a definition. `None` if it does not exist or is damaged, which the kernel reports.
    async fn compile(&self, key: &PlanKey) -> Result<Option<Arc<Compiled>>, Error> {
        let (name, version) = key.clone();
        let definition = self.read(move |readers| readers.definition(&name, version)).await?;
        let Some(compiled) = definition.and_then(|definition| Compiled::new(&definition).ok()) else {
            return Ok(None);
        };
        let compiled = Arc::new(compiled);
        self.0.plans.put(key.clone(), compiled.clone());
        Ok(Some(compiled))
    }
}
