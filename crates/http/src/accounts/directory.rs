//! Users and groups: listed, stored with a revision check, deleted.

use steprail_engine::{AccountKind, Error, Principal, Right, User};

use super::users::is_id;
use super::{Accounts, GroupRecord, Stored, UserRecord, check_capacity};

impl Accounts {
    /// The principal of a user whom the identity provider vouches for. The user is stored, so that their runs continue
    /// after a restart. The provider owns name, email and groups; roles and tools that were granted here stay.
    pub(crate) async fn by_provider(&self, user: &str, known: UserRecord) -> Result<Principal, Error> {
        let is_changed = |record: &UserRecord| {
            (&record.name, &record.email, &record.groups) != (&known.name, &known.email, &known.groups)
        };
        let stored = self.cache().users.get(user).cloned();
        match stored {
            _ if user == self.owner.id => return Err(name_taken(user)),
            None if self.cache().deleted_users.contains(user) => {
                return Err(Error::Denied(format!("the user `{user}` was deleted")));
            }
            Some(stored) if !stored.external => return Err(name_taken(user)),
            Some(stored) if !is_changed(&stored.record) => {}
            _ => self.store_external(user, known).await?,
        }
        self.principal(user).ok_or_else(|| Error::Denied(format!("the user `{user}` is disabled")))
    }

    async fn store_external(&self, user: &str, known: UserRecord) -> Result<(), Error> {
        let _writing = self.writing.lock().await;
        let stored = self.cache().users.get(user).cloned();
        let stored = stored.unwrap_or(Stored {
            revision: 0,
            external: true,
            deleted_at: None,
            record: UserRecord::default(),
        });
        if !stored.external {
            return Err(name_taken(user));
        }
        let UserRecord { name, email, groups, .. } = known;
        let record = UserRecord { name, email, groups, ..stored.record };
        let stored = Stored { revision: stored.revision + 1, record, ..stored };
        self.put(AccountKind::User, user, &stored, None).await
    }

    /// Users by id: all of them for managers, otherwise only the caller.
    pub(crate) fn users(&self, by: &User) -> Vec<(String, Stored<UserRecord>)> {
        let sees_all = by.may(Right::Manage);
        let cache = self.cache();
        let visible = cache.users.iter().filter(|(id, _)| sees_all || **id == by.principal().id);
        visible.map(|(id, stored)| (id.clone(), stored.clone())).collect()
    }

    /// Stores a user. With `expected`, only if the stored revision is that one; 0 means that there is none.
    pub(crate) async fn put_user(
        &self,
        by: &User,
        id: &str,
        record: UserRecord,
        expected: Option<u32>,
    ) -> Result<Stored<UserRecord>, Error> {
        need_manager(by)?;
        record.check().and_then(|()| check_id(id)).map_err(Error::BadInput)?;
        if id == self.owner.id {
            return Err(Error::Conflict(format!(
                "`{id}` owns this server and has every right; the owner cannot be changed"
            )));
        }
        let _writing = self.writing.lock().await;
        let stored = {
            let cache = self.cache();
            let current = cache.users.get(id);
            if cache.deleted_users.contains(id) {
                return Err(id_used(id));
            }
            let is_group = cache.groups.contains_key(id)
                || cache.users.values().any(|user| user.record.groups.iter().any(|group| group == id));
            if is_group && current.is_none() {
                return Err(same_name("group", "user", id));
            }
            if let Some(group) = record.groups.iter().find(|group| cache.is_user(group) || *group == id) {
                return Err(Error::BadInput(format!("`{group}` is the id of a user, not a group")));
            }
            check_capacity(cache.users.len() + cache.deleted_users.len(), current.is_some(), "users")?;
            let external = current.is_some_and(|current| current.external);
            let revision = next_revision(current.map(|current| current.revision), expected)?;
            Stored { revision, external, deleted_at: None, record }
        };
        self.put(AccountKind::User, id, &stored, Some(by.principal())).await?;
        Ok(stored)
    }

    /// Deletes a user together with the user's tokens, sessions and schedules. The id is never used again: runs, definitions
    /// and grants that name it would pass to somebody else.
    pub(crate) async fn delete_user(&self, by: &User, id: &str) -> Result<(), Error> {
        need_manager(by)?;
        let _writing = self.writing.lock().await;
        let credentials = {
            let cache = self.cache();
            if !cache.users.contains_key(id) {
                return Err(Error::NotFound(format!("there is no user `{id}`")));
            }
            cache.credentials_of(id)
        };
        for (kind, credential) in credentials {
            self.delete(kind, &credential, Some(by.principal())).await?;
        }
        let deleted_at = Some(self.engine.now());
        let tombstone = Stored { revision: 0, external: false, deleted_at, record: UserRecord::default() };
        self.put(AccountKind::User, id, &tombstone, Some(by.principal())).await?;
        self.engine.end_schedules("its user was deleted", |principal| principal.id == id).await?;
        Ok(())
    }

    /// Groups by name.
    pub(crate) fn groups(&self, by: &User) -> Result<Vec<(String, Stored<GroupRecord>)>, Error> {
        need_manager(by)?;
        Ok(self.cache().groups.iter().map(|(id, stored)| (id.clone(), stored.clone())).collect())
    }

    /// Stores a group. With `expected`, only if the stored revision is that one; 0 means that there is none.
    pub(crate) async fn put_group(
        &self,
        by: &User,
        id: &str,
        record: GroupRecord,
        expected: Option<u32>,
    ) -> Result<Stored<GroupRecord>, Error> {
        need_manager(by)?;
        record.check().and_then(|()| check_id(id)).map_err(Error::BadInput)?;
        let _writing = self.writing.lock().await;
        let revision = {
            let cache = self.cache();
            if cache.is_user(id) && !cache.groups.contains_key(id) {
                return Err(same_name("user", "group", id));
            }
            check_capacity(cache.groups.len(), cache.groups.contains_key(id), "groups")?;
            next_revision(cache.groups.get(id).map(|current| current.revision), expected)?
        };
        let stored = Stored { revision, external: false, deleted_at: None, record };
        self.put(AccountKind::Group, id, &stored, Some(by.principal())).await?;
        Ok(stored)
    }

    /// Deletes a group; its users stay.
    pub(crate) async fn delete_group(&self, by: &User, id: &str) -> Result<(), Error> {
        need_manager(by)?;
        let _writing = self.writing.lock().await;
        if !self.cache().groups.contains_key(id) {
            return Err(Error::NotFound(format!("there is no group `{id}`")));
        }
        self.delete(AccountKind::Group, id, Some(by.principal())).await
    }
}

fn need_manager(by: &User) -> Result<(), Error> {
    by.require(Right::Manage)?;
    if by.principal().agent {
        return Err(Error::Denied("users are managed in person, not by an agent".to_owned()));
    }
    Ok(())
}

/// Definitions may name users and groups without their type, so that one name must not mean both.
fn same_name(existing: &str, new: &str, id: &str) -> Error {
    Error::Conflict(format!("there is a {existing} `{id}`; a {new} needs another name"))
}

fn id_used(id: &str) -> Error {
    Error::Conflict(format!(
        "a user with the id `{id}` was deleted, and ids are never used again; choose another id"
    ))
}

fn name_taken(user: &str) -> Error {
    Error::Denied(format!("the id `{user}` belongs to a local user, not to one of the identity provider"))
}

fn check_id(id: &str) -> Result<(), String> {
    let rule = "an id has up to 128 letters, digits and . _ @ + -, and starts with a letter or a digit";
    if is_id(id) { Ok(()) } else { Err(rule.to_owned()) }
}

/// The revision after the current one, if that is the expected one.
fn next_revision(current: Option<u32>, expected: Option<u32>) -> Result<u32, Error> {
    let current = current.unwrap_or_default();
    match expected {
        Some(expected) if expected != current => Err(Error::Conflict(format!(
            "the revision is {current}, not {expected}; read it again and retry"
        ))),
        _ => Ok(current + 1),
    }
}
