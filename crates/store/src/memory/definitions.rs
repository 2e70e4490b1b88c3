//! Definitions in memory: versions of a name, and the preconditions of a change.

use steprail_core::run::Millis;

use super::tables::{DefinitionRow, Tables};
use crate::{
    Actor, Conflict, Definition, DefinitionChange, DefinitionQuery, Expected, NewDefinition, Proposal,
    Refused, StoreError, WorkflowPins, preconditions,
};

impl Tables {
    pub(super) fn find_definition(&self, which: DefinitionQuery<'_>) -> Option<&Definition> {
        match which {
            DefinitionQuery::Id(id) => self.definitions.get(&id).map(|row| &row.definition),
            DefinitionQuery::Newest(name) => self.versions(name).max_by_key(|known| known.version),
            DefinitionQuery::Version(name, version) => {
                self.versions(name).find(|known| known.version == version)
            }
        }
    }

    /// The versions of a definition that can be started.
    pub(super) fn versions(&self, name: &str) -> impl Iterator<Item = &Definition> {
        self.all_versions(name).filter(|known| !known.deleted)
    }

    fn all_versions(&self, name: &str) -> impl Iterator<Item = &Definition> {
        self.definitions.values().map(|row| &row.definition).filter(move |known| known.name == name)
    }

    /// The last version of a name that was deleted.
    pub(super) fn find_deleted(&self, name: &str) -> Option<&Definition> {
        let of_name = self.definitions.values().filter(|row| !row.hidden && row.definition.name == name);
        let deleted = of_name.map(|row| &row.definition).filter(|known| known.deleted);
        deleted.max_by_key(|known| known.version)
    }

    /// Stores a version. A version that is the same as the newest one, or a hidden one that exists, is not added again.
    fn put_definition(&mut self, new: &NewDefinition, now: Millis) -> Result<Definition, Refused> {
        let known = if new.hidden {
            let is_same_author =
                |known: &&Definition| known.created_by == new.by.id && known.by_agent == new.by.agent;
            let hidden = self.all_versions(&new.name).filter(|known| known.deleted && known.hash == new.hash);
            let hidden = hidden.filter(is_same_author);
            hidden.max_by_key(|known| known.version)
        } else {
            let newest = self.find_definition(DefinitionQuery::Newest(&new.name));
            let deleted = self.find_deleted(&new.name);
            preconditions::check_name(new, newest, deleted)?;
            preconditions::check_agent(newest.or(deleted), Some(&new.by))?;
            newest
        };
        match known.filter(|known| preconditions::is_same(new, known)).map(|known| known.id) {
            Some(id) => Ok(self.pin(id, new)?),
            None => Ok(self.insert_definition(new, now)),
        }
    }

    /// Adds pins of tools and sub-workflows that were unknown when the version was stored.
    fn pin(&mut self, id: i64, new: &NewDefinition) -> Result<Definition, StoreError> {
        let known = self.definition_mut(id)?;
        known.pins.extend(new.pins.iter().map(|(tool, hash)| (tool.clone(), *hash)));
        self.pin_workflows(id, &new.workflows)
    }

    fn definition_mut(&mut self, id: i64) -> Result<&mut Definition, StoreError> {
        let missing = || StoreError::Other("a definition is missing".to_owned());
        Ok(&mut self.definitions.get_mut(&id).ok_or_else(missing)?.definition)
    }

    /// Adds versions of sub-workflows. A name that has one keeps it.
    fn pin_workflows(&mut self, id: i64, workflows: &WorkflowPins) -> Result<Definition, StoreError> {
        let known = self.definition_mut(id)?;
        for (name, pin) in workflows {
            known.workflows.entry(name.clone()).or_insert(*pin);
        }
        Ok(known.clone())
    }

    /// Makes a user the owner and author of all versions.
    fn adopt(&mut self, name: &str, expected: Expected, by: &Actor) -> Result<(), Refused> {
        let newest = self.find_definition(DefinitionQuery::Newest(name));
        if newest.is_none() {
            return Err(Refused::Conflict(Conflict::NoDefinition(name.to_owned())));
        }
        preconditions::check(name, newest, expected, None)?;
        let versions = self.definitions.values_mut().map(|row| &mut row.definition);
        for version in versions.filter(|known| known.name == name && !known.deleted) {
            version.created_by.clone_from(&by.id);
            version.by_agent = by.agent;
        }
        Ok(())
    }

    fn propose(&mut self, new: &NewDefinition, now: Millis) -> Result<(), Refused> {
        let newest = self.find_definition(DefinitionQuery::Newest(&new.name));
        preconditions::check_name(new, newest, self.find_deleted(&new.name))?;
        let known = self.proposals.get(&new.name);
        preconditions::check_proposer(new, known.map(|known| known.created_by.as_str()))?;
        if known.is_none() {
            let of_user = self.proposals.values().filter(|known| known.created_by == new.by.id).count();
            preconditions::check_proposal_limits(self.proposals.len(), of_user)?;
        }
        let proposal = Proposal {
            name: new.name.clone(),
            hash: new.hash,
            spec_json: new.spec_json.to_string(),
            created_at: now,
            created_by: new.by.id.clone(),
            via: new.by.via.clone(),
        };
        self.proposals.insert(new.name.clone(), proposal);
        Ok(())
    }

    pub(super) fn change_definition(
        &mut self,
        change: &DefinitionChange,
        now: Millis,
    ) -> Result<Option<Definition>, Refused> {
        match change {
            DefinitionChange::Put(new) => return self.put_definition(new, now).map(Some),
            DefinitionChange::Delete { name, expected, owner, by } => {
                self.delete_definition(name, *expected, owner.as_deref(), by.as_ref())?;
            }
            DefinitionChange::PinWorkflows { id, workflows } => {
                return Ok(Some(self.pin_workflows(*id, workflows)?));
            }
            DefinitionChange::Adopt { name, expected, by } => self.adopt(name, *expected, by)?,
            DefinitionChange::Propose(new) => self.propose(new, now)?,
            DefinitionChange::CloseProposal { name, hash, .. } => {
                let found = self.proposals.get(name).map(|found| found.hash);
                preconditions::check_proposal(name, found, *hash)?;
                self.proposals.remove(name);
            }
        }
        Ok(None)
    }

    fn insert_definition(&mut self, new: &NewDefinition, now: Millis) -> Definition {
        let id = self.definitions.last_key_value().map_or(0, |(id, _)| *id) + 1;
        let definition = Definition {
            id,
            name: new.name.clone(),
            version: self.all_versions(&new.name).map(|known| known.version).max().unwrap_or(0) + 1,
            hash: new.hash,
            spec_json: new.spec_json.to_string(),
            created_at: now,
            created_by: new.by.id.clone(),
            by_agent: new.by.agent,
            deleted: new.hidden,
            pins: new.pins.clone(),
            workflows: new.workflows.clone(),
        };
        let row =
            DefinitionRow { definition: definition.clone(), published: new.published, hidden: new.hidden };
        self.definitions.insert(id, row);
        definition
    }

    /// Hides all versions of a definition from new runs.
    fn delete_definition(
        &mut self,
        name: &str,
        expected: Expected,
        owner: Option<&str>,
        by: Option<&Actor>,
    ) -> Result<(), Refused> {
        let newest = self.find_definition(DefinitionQuery::Newest(name));
        if newest.is_none() {
            return Err(Refused::Conflict(Conflict::NoDefinition(name.to_owned())));
        }
        preconditions::check(name, newest, expected, owner)?;
        preconditions::check_agent(newest, by)?;
        let versions = self.definitions.values_mut().filter(|row| row.definition.name == name);
        versions.for_each(|row| row.definition.deleted = true);
        Ok(())
    }
}
