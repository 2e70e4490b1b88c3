//! Who there is: users, groups, tokens and sign-ins, kept in the store and held in memory.

mod attempts;
mod book;
pub(crate) mod oidc;
mod people;
mod token;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use serde::Serialize;
use steprail_core::run::Millis;
use steprail_engine::{
    Access, Account, AccountKind, Engine, Error, Principal, Reads, Right, StoreError, TokenScope, User,
};

pub(crate) use attempts::Attempts;
use book::Book;
pub(crate) use book::Kept;
pub(crate) use people::{Group, Person, Role, is_id};
use token::Secret;
pub(crate) use token::{SignIn, Token};

/// Milliseconds in a day.
pub(crate) const DAY_MS: Millis = 24 * 60 * 60 * 1_000;
/// How long a token is valid if nobody says, and at most.
pub(crate) const TOKEN_DAYS: (u32, u32) = (90, 366);
/// How long a link that signs a browser in can be used.
const LINK_MS: Millis = 10 * 60 * 1_000;
/// Links that can be open at once.
const LINKS: usize = 100;
/// A sign-in that is used is written down again after this.
const SEEN_MS: Millis = 10 * 60 * 1_000;
/// Entries of one kind.
const ENTRIES: usize = 10_000;

/// How long sign-ins last, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lasting {
    /// Without being used.
    pub idle: Millis,
    /// In all.
    pub most: Millis,
}

/// Everybody who is known. What it answers is in memory; what it changes is durable first.
pub(crate) struct Accounts {
    engine: Engine,
    access: Access,
    owner: Principal,
    book: Arc<RwLock<Book>>,
    /// One change at a time: what is compared before a change still holds when it is written.
    writing: tokio::sync::Mutex<()>,
    links: Mutex<HashMap<String, Millis>>,
    lasting: Lasting,
    pub attempts: Attempts,
}

/// Why a token or a cookie is not taken. Whoever shows it is told nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is not one of ours, or was revoked.
    Unknown,
    /// Its time is up.
    Expired,
    /// Its user is gone or disabled.
    NoUser,
}

/// A token to make.
#[derive(Debug, Clone)]
pub(crate) struct NewToken {
    pub user: String,
    pub name: String,
    pub days: u32,
    pub agent: bool,
    pub scope: Option<TokenScope>,
}

/// What a store knows before an engine runs on it, and the rights that follow.
pub(crate) struct Known {
    book: Book,
    pub access: Access,
    owner: Principal,
}

impl Known {
    /// Reads it. The owner of the data directory may do everything.
    pub(crate) fn read(readers: &impl Reads, owner: Principal) -> Result<Self, StoreError> {
        let book = Book::read(readers.accounts()?)?;
        let access = Access::default();
        book.users.keys().for_each(|user| access.grant(user, book.grants(user)));
        access.grant(&owner.id, steprail_engine::Grants::all());
        Ok(Self { book, access, owner })
    }

    /// With the engine that writes.
    pub(crate) fn with(self, engine: Engine, lasting: Lasting) -> Accounts {
        Accounts {
            engine,
            access: self.access,
            owner: self.owner,
            book: Arc::new(RwLock::new(self.book)),
            writing: tokio::sync::Mutex::default(),
            links: Mutex::default(),
            lasting,
            attempts: Attempts::default(),
        }
    }
}

impl Accounts {
    fn book(&self) -> std::sync::RwLockReadGuard<'_, Book> {
        self.book.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The owner of the data directory, in person.
    pub(crate) fn owner(&self) -> &Principal {
        &self.owner
    }

    /// Somebody who is known and not disabled.
    pub(crate) fn principal(&self, user: &str) -> Option<Principal> {
        if user == self.owner.id {
            return Some(self.owner.clone());
        }
        let book = self.book();
        let Kept { entry, .. } = book.users.get(user).filter(|kept| !kept.entry.disabled)?;
        let (name, email) = (entry.name.clone(), entry.email.clone());
        let groups = entry.groups.iter().cloned().collect();
        Some(Principal { name, email, groups, ..Principal::user(user) })
    }

    /// Whoever a token belongs to.
    pub(crate) fn by_token(&self, text: &str) -> Result<Principal, Refused> {
        let secret = Secret::read(text).ok_or(Refused::Unknown)?;
        let token = self.book().tokens.get(&secret.id).filter(|token| token.hash.fits(&secret)).cloned();
        let token = token.ok_or(Refused::Unknown)?;
        if token.expires_at <= self.engine.now() {
            return Err(Refused::Expired);
        }
        let principal = self.principal(&token.user).ok_or(Refused::NoUser)?;
        Ok(Principal { agent: token.agent, agent_only: token.agent, scope: token.scope, ..principal })
    }

    /// Whoever an identity provider vouches for. They are kept, so that their runs go on after a restart. What it says about
    /// them counts; what was granted to them here stays.
    pub(crate) async fn by_provider(&self, user: &str, known: Person) -> Result<Principal, Error> {
        let is_new = |kept: &Kept<Person>| {
            (&kept.entry.name, &kept.entry.email, &kept.entry.groups)
                != (&known.name, &known.email, &known.groups)
        };
        let before = self.book().users.get(user).cloned();
        match before {
            _ if user == self.owner.id => return Err(taken(user)),
            Some(kept) if !kept.external => return Err(taken(user)),
            Some(kept) if !is_new(&kept) => {}
            _ => {
                let _writing = self.writing.lock().await;
                let before = self.book().users.get(user).cloned();
                let kept = before.unwrap_or(Kept { revision: 0, external: true, entry: Person::default() });
                if !kept.external {
                    return Err(taken(user));
                }
                let Person { name, email, groups, .. } = known;
                let entry = Person { name, email, groups, ..kept.entry };
                self.keep(
                    AccountKind::User,
                    user,
                    &Kept { revision: kept.revision + 1, external: true, entry },
                )
                .await?;
            }
        }
        self.principal(user).ok_or_else(|| Error::Denied(format!("{user} is disabled")))
    }

    /// Users, by id: all for those who manage them, oneself for others.
    pub(crate) fn users(&self, by: &User) -> Vec<(String, Kept<Person>)> {
        let all = by.may(Right::Manage);
        let seen = |id: &String| all || *id == by.principal().id;
        self.book()
            .users
            .iter()
            .filter(|(id, _)| seen(id))
            .map(|(id, kept)| (id.clone(), kept.clone()))
            .collect()
    }

    /// Stores a user; `before` is the revision that it takes the place of.
    pub(crate) async fn put_user(
        &self,
        by: &User,
        id: &str,
        entry: Person,
        before: Option<u32>,
    ) -> Result<Kept<Person>, Error> {
        Self::need_manager(by)?;
        entry.check().and_then(|()| valid_id(id)).map_err(Error::BadInput)?;
        if id == self.owner.id {
            return Err(Error::Conflict(format!("{id} owns this server and may do everything")));
        }
        let _writing = self.writing.lock().await;
        let kept = {
            let book = self.book();
            let known = book.users.get(id);
            room(book.users.len(), known.is_some(), "users")?;
            let external = known.is_some_and(|known| known.external);
            Kept { revision: next(known.map(|known| known.revision), before)?, external, entry }
        };
        self.keep(AccountKind::User, id, &kept).await?;
        Ok(kept)
    }

    /// Takes a user away, with the user's tokens and sign-ins.
    pub(crate) async fn drop_user(&self, by: &User, id: &str) -> Result<(), Error> {
        Self::need_manager(by)?;
        let _writing = self.writing.lock().await;
        let of_user = {
            let book = self.book();
            if !book.users.contains_key(id) {
                return Err(Error::NotFound(format!("there is no user `{id}`")));
            }
            book.secrets_of(id)
        };
        for (kind, secret) in of_user {
            self.forget(kind, &secret).await?;
        }
        self.forget(AccountKind::User, id).await
    }

    /// Groups, by name.
    pub(crate) fn groups(&self, by: &User) -> Result<Vec<(String, Kept<Group>)>, Error> {
        Self::need_manager(by)?;
        Ok(self.book().groups.iter().map(|(id, kept)| (id.clone(), kept.clone())).collect())
    }

    /// Stores a group; `before` is the revision that it takes the place of.
    pub(crate) async fn put_group(
        &self,
        by: &User,
        id: &str,
        entry: Group,
        before: Option<u32>,
    ) -> Result<Kept<Group>, Error> {
        Self::need_manager(by)?;
        entry.check().and_then(|()| valid_id(id)).map_err(Error::BadInput)?;
        let _writing = self.writing.lock().await;
        let revision = {
            let book = self.book();
            room(book.groups.len(), book.groups.contains_key(id), "groups")?;
            next(book.groups.get(id).map(|known| known.revision), before)?
        };
        let kept = Kept { revision, external: false, entry };
        self.keep(AccountKind::Group, id, &kept).await?;
        Ok(kept)
    }

    /// Takes a group away; its users stay.
    pub(crate) async fn drop_group(&self, by: &User, id: &str) -> Result<(), Error> {
        Self::need_manager(by)?;
        let _writing = self.writing.lock().await;
        if !self.book().groups.contains_key(id) {
            return Err(Error::NotFound(format!("there is no group `{id}`")));
        }
        self.forget(AccountKind::Group, id).await
    }

    /// Tokens by id: everybody's for those who manage users, one's own for others.
    pub(crate) fn tokens(&self, by: &User) -> Vec<(String, Token)> {
        let all = by.may(Right::Manage);
        let seen = |token: &Token| all || token.user == by.principal().id;
        let book = self.book();
        let mut tokens: Vec<_> = book
            .tokens
            .iter()
            .filter(|(_, token)| seen(token))
            .map(|(id, token)| (id.clone(), token.clone()))
            .collect();
        tokens.sort_by(|(left, l), (right, r)| (l.created_at, left).cmp(&(r.created_at, right)));
        tokens
    }

    /// Makes a token. Its text is given this once.
    pub(crate) async fn mint(&self, by: &User, new: NewToken) -> Result<(String, Token, String), Error> {
        let who = by.principal();
        if who.agent || who.scope.is_some() {
            return Err(Error::Denied(
                "a token is made by a user in person, not with a token for less".to_owned(),
            ));
        }
        if new.user != who.id {
            by.require(Right::Manage)?;
        }
        if self.principal(&new.user).is_none() {
            return Err(Error::NotFound(format!("there is no user `{}` who can have a token", new.user)));
        }
        if !(1..=TOKEN_DAYS.1).contains(&new.days) {
            return Err(Error::BadInput(format!("a token is valid for 1 to {} days", TOKEN_DAYS.1)));
        }
        let secret = Secret::new().map_err(Error::BadInput)?;
        let created_at = self.engine.now();
        let token = Token {
            user: new.user,
            name: new.name,
            hash: secret.hash(),
            agent: new.agent,
            scope: new.scope,
            created_at,
            expires_at: created_at + Millis::from(new.days) * DAY_MS,
        };
        let _writing = self.writing.lock().await;
        let over = self.book().expired(created_at);
        for id in over {
            self.forget(AccountKind::Token, &id).await?;
        }
        room(self.book().tokens.len(), false, "tokens")?;
        self.keep(AccountKind::Token, &secret.id, &token).await?;
        Ok((secret.id.clone(), token, secret.text()))
    }

    /// Revokes a token: it counts for nothing from now on.
    pub(crate) async fn revoke(&self, by: &User, id: &str) -> Result<(), Error> {
        if by.principal().agent || by.principal().scope.is_some() {
            return Err(Error::Denied(
                "a token is revoked by a user in person, not with a token for less".to_owned(),
            ));
        }
        let _writing = self.writing.lock().await;
        let owner = self.book().tokens.get(id).map(|token| token.user.clone());
        match owner {
            Some(owner) if owner == by.principal().id || by.may(Right::Manage) => {}
            _ => return Err(Error::NotFound(format!("there is no token `{id}`"))),
        }
        self.forget(AccountKind::Token, id).await
    }

    /// A link's key with which a browser can be signed in once, as the owner.
    pub(crate) fn link(&self) -> Result<String, Error> {
        let key = Secret::new().map_err(Error::BadInput)?.text();
        let now = self.engine.now();
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|_, until| *until > now);
        if links.len() >= LINKS {
            return Err(Error::Conflict(format!("{LINKS} links are open; use one, or wait ten minutes")));
        }
        links.insert(key.clone(), now + LINK_MS);
        Ok(key)
    }

    /// Whoever a link's key signs in. It works once.
    pub(crate) fn by_link(&self, key: &str) -> Result<Principal, Refused> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        match links.remove(key) {
            Some(until) if until > self.engine.now() => Ok(self.owner.clone()),
            Some(_) => Err(Refused::Expired),
            None => Err(Refused::Unknown),
        }
    }

    /// Signs a browser in; gives what it keeps as a cookie, and for how many seconds.
    pub(crate) async fn sign_in(&self, user: &Principal) -> Result<(String, i64), Error> {
        let secret = Secret::new().map_err(Error::BadInput)?;
        let now = self.engine.now();
        let sign_in = SignIn { user: user.id.clone(), hash: secret.hash(), created_at: now, seen_at: now };
        let _writing = self.writing.lock().await;
        let over = self.book().over(now, self.lasting);
        for id in over {
            self.forget(AccountKind::SignIn, &id).await?;
        }
        room(self.book().sign_ins.len(), false, "sign-ins")?;
        self.keep(AccountKind::SignIn, &secret.id, &sign_in).await?;
        Ok((secret.text(), self.lasting.most / 1_000))
    }

    /// Whoever has signed in with a cookie, and the word that what they change must carry.
    pub(crate) fn by_cookie(&self, text: &str) -> Result<(Principal, String), Refused> {
        let secret = Secret::read(text).ok_or(Refused::Unknown)?;
        let kept = self.book().sign_ins.get(&secret.id).filter(|kept| kept.hash.fits(&secret)).cloned();
        let kept = kept.ok_or(Refused::Unknown)?;
        if kept.is_over(self.engine.now(), self.lasting) {
            return Err(Refused::Expired);
        }
        let principal = self.principal(&kept.user).ok_or(Refused::NoUser)?;
        Ok((principal, secret.csrf()))
    }

    /// A cookie is used: its time without use begins anew. That is written down now and then.
    pub(crate) async fn touch(&self, text: &str) {
        let now = self.engine.now();
        let is_due = |kept: &SignIn| now - kept.seen_at > SEEN_MS && !kept.is_over(now, self.lasting);
        let Some(secret) = Secret::read(text) else { return };
        let find = || {
            self.book()
                .sign_ins
                .get(&secret.id)
                .filter(|kept| kept.hash.fits(&secret) && is_due(kept))
                .cloned()
        };
        if find().is_none() {
            return;
        }
        let _writing = self.writing.lock().await;
        // It may have been signed out meanwhile. If it cannot be written, the sign-in ends a little early.
        if let Some(kept) = find() {
            let _ = self.keep(AccountKind::SignIn, &secret.id, &SignIn { seen_at: now, ..kept }).await;
        }
    }

    /// Signs a browser out.
    pub(crate) async fn sign_out(&self, text: &str) -> Result<(), Error> {
        let Some(secret) = Secret::read(text) else { return Ok(()) };
        let _writing = self.writing.lock().await;
        let is_known = self.book().sign_ins.get(&secret.id).is_some_and(|kept| kept.hash.fits(&secret));
        if is_known { self.forget(AccountKind::SignIn, &secret.id).await } else { Ok(()) }
    }

    /// Whether the word that came with a change is the one of the cookie.
    pub(crate) fn is_csrf(expected: &str, given: &str) -> bool {
        token::same(expected.as_bytes(), given.as_bytes())
    }

    fn need_manager(by: &User) -> Result<(), Error> {
        by.require(Right::Manage)?;
        if by.principal().agent {
            return Err(Error::Denied("users are managed by a user in person, not by an agent".to_owned()));
        }
        Ok(())
    }

    /// Writes an entry, then holds it.
    async fn keep(&self, kind: AccountKind, id: &str, entry: &impl Serialize) -> Result<(), Error> {
        let body = serde_json::to_string(entry).map_err(|error| Error::BadInput(error.to_string()))?;
        let account = Account { kind, id: id.to_owned(), body };
        self.change(Change::Put(account)).await
    }

    /// Deletes an entry, then lets go of it.
    async fn forget(&self, kind: AccountKind, id: &str) -> Result<(), Error> {
        self.change(Change::Drop(kind, id.to_owned())).await
    }

    /// Changes the store, then memory. Whoever asked may go away in between: both happen, or neither.
    async fn change(&self, change: Change) -> Result<(), Error> {
        let (engine, access, book) = (self.engine.clone(), self.access.clone(), self.book.clone());
        let changing = tokio::spawn(async move {
            let (kind, id) = match change {
                Change::Put(account) => {
                    engine.registry().put_account(account.clone()).await?;
                    let changed = (account.kind, account.id.clone());
                    book.write().unwrap_or_else(PoisonError::into_inner).put(account)?;
                    changed
                }
                Change::Drop(kind, id) => {
                    engine.registry().drop_account(kind, &id).await?;
                    book.write().unwrap_or_else(PoisonError::into_inner).remove(kind, &id);
                    (kind, id)
                }
            };
            grant_anew(&access, &book.read().unwrap_or_else(PoisonError::into_inner), kind, &id);
            Ok(())
        });
        changing.await.unwrap_or(Err(Error::Stopped))
    }
}

/// What changes about accounts.
enum Change {
    Put(Account),
    Drop(AccountKind, String),
}

/// Rights that follow from an entry that changed count from the next call on.
fn grant_anew(access: &Access, book: &Book, kind: AccountKind, id: &str) {
    match kind {
        AccountKind::User if book.users.contains_key(id) => access.grant(id, book.grants(id)),
        AccountKind::User => access.revoke(id),
        AccountKind::Group => book.users.keys().for_each(|user| access.grant(user, book.grants(user))),
        AccountKind::Token | AccountKind::SignIn => {}
    }
}

fn taken(user: &str) -> Error {
    Error::Denied(format!("there is a user `{user}` here whom the identity provider does not know"))
}

fn valid_id(id: &str) -> Result<(), String> {
    if is_id(id) {
        Ok(())
    } else {
        {
            Err("an id has up to 128 letters, digits and . _ @ + -, and begins with a letter or a digit"
                .to_owned())
        }
    }
}

fn room(known: usize, is_known: bool, what: &str) -> Result<(), Error> {
    if known >= ENTRIES && !is_known {
        return Err(Error::Conflict(format!("there are {ENTRIES} {what} already")));
    }
    Ok(())
}

/// The revision after the one that is there, if that is the one that was expected: 0 expects none.
fn next(known: Option<u32>, expected: Option<u32>) -> Result<u32, Error> {
    let known = known.unwrap_or_default();
    match expected {
        Some(expected) if expected != known => {
            let message =
                format!("somebody changed it: it is at revision {known}, not {expected}; read it again");
            Err(Error::Conflict(message))
        }
        _ => Ok(known + 1),
    }
}
