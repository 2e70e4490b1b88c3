//! Putting the sources together: the file, then the environment, then flags. Every problem is told.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use steprail_core::diagnostic::{Code, nearest};

use super::declare::Key;
use super::keys::{self, Config};
use super::problem::{Place, Problem};
use super::setting::{Around, Wrong};
use super::{FILE, OTHER_VARIABLES, PREFIX, file, rules};
use crate::daemon::Home;

impl Config {
    /// Reads the settings. `file` is what the command line names; `flags` are keys such as `http.listen` with their
    /// values as text, in which commas part the elements of a list.
    pub(crate) fn load(
        home: &Home,
        file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        flags: &[(&'static str, String)],
    ) -> Result<Self, Vec<Problem>> {
        let env = env.collect();
        let mut loader = Loader { config: Self::default(), problems: Vec::new(), env: &env };
        loader.file(home, file);
        loader.environment();
        flags.iter().for_each(|(key, text)| loader.flag(key, text));
        if loader.problems.is_empty() {
            loader.problems = rules::broken(&loader.config);
        }
        if loader.problems.is_empty() { Ok(loader.config) } else { Err(loader.problems) }
    }

    /// Where the value of a key, such as `http.listen`, comes from.
    pub(crate) fn place(&self, key: &str) -> &Place {
        self.places.get(key).unwrap_or(&Place::Default)
    }
}

pub(super) struct Loader<'e> {
    pub config: Config,
    pub problems: Vec<Problem>,
    pub env: &'e BTreeMap<String, String>,
}

impl Loader<'_> {
    pub(super) fn report(&mut self, place: Place, wrong: Wrong) {
        self.problems.push(Problem::new(place, wrong));
    }

    /// A file that is named must be there; the one in the data directory may be.
    fn file(&mut self, home: &Home, flag: Option<&Path>) {
        let set = self.env.get("STEPRAIL_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
        let named = flag.map(Path::to_owned).or(set);
        let path = named.clone().unwrap_or_else(|| home.path().join(FILE));
        match file::read(&path) {
            Ok(source) => file::apply(self, &source),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => {}
            Err(error) => {
                let wrong = Wrong::new(format!("cannot read {}: {error}", path.display()));
                let by = if flag.is_some() { "--config" } else { "$STEPRAIL_CONFIG" };
                let hint = format!("{by} names the file");
                self.report(Place::Default, if named.is_some() { wrong.hint(hint) } else { wrong });
            }
        }
    }

    fn environment(&mut self) {
        let env = self.env;
        let ours = env.iter().filter(|(name, _)| name.starts_with(PREFIX));
        for (name, text) in ours.filter(|(name, _)| !OTHER_VARIABLES.contains(&name.as_str())) {
            let place = Place::Variable(name.clone());
            match keys::all().find(|key| key.variable() == *name) {
                Some(key) => self.text(key, text, place),
                None => self.report(place, unknown_variable(name)),
            }
        }
    }

    fn flag(&mut self, path: &str, text: &str) {
        let place = Place::Flag(path.to_owned());
        match keys::all().find(|key| key.path == path) {
            Some(key) => self.text(key, text, place),
            None => self.report(place, Wrong::new("there is no such setting")),
        }
    }

    fn text(&mut self, key: &'static Key, text: &str, place: Place) {
        let around = Around { env: self.env, folder: Path::new("") };
        let read = (key.read_text)(&mut self.config, text, &around);
        self.take(key, read, place);
    }

    /// Remembers where a value came from, or what is wrong with it.
    pub(super) fn take(&mut self, key: &'static Key, read: Result<(), Wrong>, place: Place) {
        match read {
            Ok(()) => drop(self.config.places.insert(key.path, place)),
            Err(wrong) => self.report(place, wrong),
        }
    }
}

/// Names are compared without what they all begin with.
fn unknown_variable(name: &str) -> Wrong {
    let known: Vec<String> =
        keys::all().map(Key::variable).chain(OTHER_VARIABLES.iter().map(ToString::to_string)).collect();
    let word = name.trim_start_matches(PREFIX);
    let near = nearest(word, known.iter().map(|name| name.trim_start_matches(PREFIX)));
    let hint = match near {
        Some(near) => format!("did you mean `{PREFIX}{near}`?"),
        None => {
            format!("variables that begin with {PREFIX} are settings; `steprail config --explain` lists them")
        }
    };
    Wrong { code: Code::UnknownKey, ..Wrong::new("there is no such setting") }.hint(hint)
}
