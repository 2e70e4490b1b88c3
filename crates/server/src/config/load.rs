//! Loading of settings: defaults, the file, the environment, flags. Every problem is reported.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use steprail_core::diagnostic::{Code, nearest};

use super::declare::Key;
use super::keys::{self, Config};
use super::problem::{Problem, SettingSource};
use super::setting::{ReadContext, SettingError};
use super::{FILE, OTHER_VARIABLES, PREFIX, file, rules};
use crate::daemon::DataDir;

impl Config {
    /// Loads the settings. `file` is the argument of `--config`. `flags` are key paths, such as `http.listen`, with their
    /// values as text; lists are separated by commas.
    pub(crate) fn load(
        data_dir: &DataDir,
        file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        flags: &[(&'static str, String)],
    ) -> Result<Self, Vec<Problem>> {
        let env = env.collect();
        let mut loader = Loader { config: Self::default(), problems: Vec::new(), env: &env };
        loader.load_file(data_dir, file);
        loader.load_environment();
        flags.iter().for_each(|(key, text)| loader.load_flag(key, text));
        if loader.problems.is_empty() {
            loader.problems = rules::violations(&loader.config);
        }
        if loader.problems.is_empty() { Ok(loader.config) } else { Err(loader.problems) }
    }

    /// The source of the value of a key, such as `http.listen`.
    pub(crate) fn source(&self, key: &str) -> &SettingSource {
        self.sources.get(key).unwrap_or(&SettingSource::Default)
    }
}

pub(super) struct Loader<'e> {
    pub config: Config,
    pub problems: Vec<Problem>,
    pub env: &'e BTreeMap<String, String>,
}

impl Loader<'_> {
    pub(super) fn report(&mut self, at: SettingSource, error: SettingError) {
        self.problems.push(Problem::new(at, error));
    }

    /// Loads the file. The one in the data directory is optional; a file named by the user must exist.
    fn load_file(&mut self, data_dir: &DataDir, flag: Option<&Path>) {
        let variable = self.env.get("STEPRAIL_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
        let named = flag.map(Path::to_owned).or(variable);
        let path = named.clone().unwrap_or_else(|| data_dir.path().join(FILE));
        match file::read(&path) {
            Ok(source) => file::apply(self, &source),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => {}
            Err(error) => {
                let error = SettingError::new(format!("cannot read {}: {error}", path.display()));
                let by = if flag.is_some() { "--config" } else { "$STEPRAIL_CONFIG" };
                let hint = format!("check the path in {by}");
                self.report(SettingSource::Default, if named.is_some() { error.hint(hint) } else { error });
            }
        }
    }

    fn load_environment(&mut self) {
        let env = self.env;
        let ours = env.iter().filter(|(name, _)| name.starts_with(PREFIX));
        for (name, text) in ours.filter(|(name, _)| !OTHER_VARIABLES.contains(&name.as_str())) {
            let at = SettingSource::Variable(name.clone());
            match keys::all().find(|key| key.variable() == *name) {
                Some(key) => self.load_text(key, text, at),
                None => self.report(at, unknown_variable(name)),
            }
        }
    }

    fn load_flag(&mut self, path: &str, text: &str) {
        let at = SettingSource::Flag(path.to_owned());
        match keys::all().find(|key| key.path == path) {
            Some(key) => self.load_text(key, text, at),
            None => self.report(at, SettingError::new("unknown setting")),
        }
    }

    fn load_text(&mut self, key: &'static Key, text: &str, at: SettingSource) {
        let context = ReadContext { env: self.env, folder: Path::new("") };
        let result = (key.read_text)(&mut self.config, text, &context);
        self.record(key, result, at);
    }

    /// Records the source of a value, or its problem.
    pub(super) fn record(&mut self, key: &'static Key, result: Result<(), SettingError>, at: SettingSource) {
        match result {
            Ok(()) => drop(self.config.sources.insert(key.path, at)),
            Err(error) => self.report(at, error),
        }
    }
}

fn unknown_variable(name: &str) -> SettingError {
    let known: Vec<String> =
        keys::all().map(Key::variable).chain(OTHER_VARIABLES.iter().map(ToString::to_string)).collect();
    // The common prefix would make every name similar.
    let suffix = name.trim_start_matches(PREFIX);
    let near = nearest(suffix, known.iter().map(|name| name.trim_start_matches(PREFIX)));
    let hint = match near {
        Some(near) => format!("did you mean `{PREFIX}{near}`?"),
        None => format!("{PREFIX} is reserved for settings; `steprail config --explain` lists them"),
    };
    SettingError { code: Code::UnknownKey, ..SettingError::new("unknown setting") }.hint(hint)
}
