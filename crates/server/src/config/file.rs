//! Reading `steprail.toml`.

use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use steprail_core::diagnostic::{Code, nearest, suggest};
use steprail_core::source::{Source, Span};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::declare::{Key, Section};
use super::keys::{self, SECTIONS};
use super::load::Loader;
use super::problem::Place;
use super::secret;
use super::setting::{Around, Wrong, type_name};

/// Bytes of the file.
const FILE_BYTES: u64 = 1024 * 1024;

type Name<'i> = Spanned<DeString<'i>>;
type Value<'i> = Spanned<DeValue<'i>>;

pub(super) fn read(path: &Path) -> io::Result<Source> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(Source::new(path.display().to_string(), text))
}

/// Takes the settings of a file.
pub(super) fn apply(loader: &mut Loader, source: &Source) {
    let (table, mistakes) = DeTable::parse_recoverable(source.text());
    let masked = Arc::new(mask(source, table.get_ref()));
    let place =
        |span: Range<usize>| Place::File { source: masked.clone(), span: Span::new(span.start, span.end) };
    if !mistakes.is_empty() {
        for mistake in mistakes {
            let span = mistake.span().unwrap_or_default();
            let wrong = Wrong { code: Code::InvalidSyntax, ..Wrong::new(mistake.message()) };
            loader.report(place(span), wrong);
        }
        return;
    }
    let folder = Path::new(source.name()).parent().unwrap_or(Path::new("")).to_owned();
    for (name, value) in in_order(table.get_ref()) {
        let section = match section(name, value) {
            Ok(section) => section,
            Err(wrong) => {
                loader.report(place(name.span()), wrong);
                continue;
            }
        };
        for (name, value) in value.get_ref().as_table().into_iter().flat_map(in_order) {
            let Some(key) = section.keys.iter().find(|key| key.name == name.get_ref()) else {
                loader.report(place(name.span()), unknown_key(section, name.get_ref()));
                continue;
            };
            let around = Around { env: loader.env, folder: &folder };
            let read = (key.read_toml)(&mut loader.config, value, &around);
            let span = read.as_ref().err().and_then(|wrong| wrong.span.clone()).unwrap_or(value.span());
            loader.take(key, read, place(span));
        }
    }
}

/// The entries of a table as they stand in the file.
fn in_order<'t, 'i>(table: &'t DeTable<'i>) -> Vec<(&'t Name<'i>, &'t Value<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    entries
}

fn section(name: &Name, value: &Value) -> Result<&'static Section, Wrong> {
    let name = &**name.get_ref();
    match (SECTIONS.iter().find(|section| section.name == name), value.get_ref()) {
        (Some(section), DeValue::Table(_)) => Ok(section),
        (Some(_), other) => {
            let message = format!("expected a section, found {}", type_name(other));
            Err(Wrong { code: Code::WrongType, ..Wrong::new(message) }.hint(format!("write `[{name}]`")))
        }
        (None, _) => Err(unknown_section(name)),
    }
}

fn unknown_section(name: &str) -> Wrong {
    let sections: Vec<&str> = SECTIONS.iter().map(|section| section.name).collect();
    let elsewhere = keys::all().find(|key| key.name == name).map(belongs);
    let wrong = Wrong { code: Code::UnknownKey, ..Wrong::new(format!("unknown section `{name}`")) };
    wrong.hint(elsewhere.or_else(|| suggest(name, &sections)).unwrap_or_default())
}

fn unknown_key(section: &Section, name: &str) -> Wrong {
    let names: Vec<&str> = section.keys.iter().map(|key| key.name).collect();
    let elsewhere = keys::all().find(|key| key.name == name).map(belongs);
    let message = format!("unknown key `{name}` in [{}]", section.name);
    let wrong = Wrong { code: Code::UnknownKey, ..Wrong::new(message) };
    wrong.hint(elsewhere.or_else(|| suggest(name, &names)).unwrap_or_default())
}

fn belongs(key: &Key) -> String {
    format!("`{}` belongs in [{}]", key.name, key.section)
}

/// The file as it may be shown: what stands where a secret should be named is covered with stars.
fn mask(source: &Source, table: &DeTable) -> Source {
    let mut text = source.text().to_owned();
    for span in secrets(table) {
        let covered = text.get(span.clone()).unwrap_or_default();
        let stars: String = covered.bytes().map(|byte| if byte == b'\n' { '\n' } else { '*' }).collect();
        if !stars.is_empty() {
            text.replace_range(span, &stars);
        }
    }
    Source::new(source.name(), text)
}

/// The places of values that may be secrets: of keys that are called like one that holds a secret, or nearly so, and
/// URLs with passwords.
fn secrets(table: &DeTable) -> Vec<Range<usize>> {
    let secret = |name: &str| {
        let key = keys::all().find(|key| Some(key.name) == nearest_key(name));
        key.is_some_and(|key| key.secret)
    };
    let mut found = Vec::new();
    for (name, value) in table {
        match value.get_ref() {
            value if secret(name.get_ref()) && secret::is_reference(value) => {}
            _ if secret(name.get_ref()) => found.push(value.span()),
            DeValue::String(text) if secret::has_password(text) => found.push(value.span()),
            DeValue::Table(inner) => found.extend(secrets(inner)),
            _ => {}
        }
    }
    found
}

fn nearest_key(name: &str) -> Option<&'static str> {
    let exact = keys::all().map(|key| key.name).find(|known| *known == name);
    exact.or_else(|| nearest(name, keys::all().map(|key| key.name)))
}
