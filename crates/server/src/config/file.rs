//! Parsing of `steprail.toml`.

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
use super::problem::SettingSource;
use super::secret;
use super::setting::{ReadContext, SettingError, type_name};

/// The maximum size of the file.
const FILE_BYTES: u64 = 1024 * 1024;

/// Keys of channels whose values are references to secrets.
const CHANNEL_SECRETS: &[&str] = &["bearer", "key", "password", "proxy", "token", "url"];

type Name<'i> = Spanned<DeString<'i>>;
type Value<'i> = Spanned<DeValue<'i>>;

pub(super) fn read(path: &Path) -> io::Result<Source> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES {
        return Err(io::Error::other("the file is larger than 1 MiB"));
    }
    Ok(Source::new(path.display().to_string(), text))
}

/// Applies the settings of a file.
pub(super) fn apply(loader: &mut Loader, source: &Source) {
    let (table, syntax_errors) = DeTable::parse_recoverable(source.text());
    let masked = Arc::new(mask(source, table.get_ref()));
    let at = |span: Range<usize>| SettingSource::File {
        source: masked.clone(),
        span: Span::new(span.start, span.end),
    };
    if !syntax_errors.is_empty() {
        for syntax_error in syntax_errors {
            let span = syntax_error.span().unwrap_or_default();
            let error =
                SettingError { code: Code::InvalidSyntax, ..SettingError::new(syntax_error.message()) };
            loader.report(at(span), error);
        }
        return;
    }
    let folder = Path::new(source.name()).parent().unwrap_or(Path::new("")).to_owned();
    for (name, value) in in_file_order(table.get_ref()) {
        let section = match section(name, value) {
            Ok(section) => section,
            Err(error) => {
                loader.report(at(name.span()), error);
                continue;
            }
        };
        for (name, value) in value.get_ref().as_table().into_iter().flat_map(in_file_order) {
            let Some(key) = section.keys.iter().find(|key| key.name == name.get_ref()) else {
                loader.report(at(name.span()), unknown_key(section, name.get_ref()));
                continue;
            };
            let context = ReadContext { env: loader.env, folder: &folder };
            let result = (key.read_toml)(&mut loader.config, value, &context);
            let span = result.as_ref().err().and_then(|error| error.span.clone()).unwrap_or(value.span());
            loader.record(key, result, at(span));
        }
    }
}

fn in_file_order<'t, 'i>(table: &'t DeTable<'i>) -> Vec<(&'t Name<'i>, &'t Value<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    entries
}

fn section(name: &Name, value: &Value) -> Result<&'static Section, SettingError> {
    let name = &**name.get_ref();
    match (SECTIONS.iter().find(|section| section.name == name), value.get_ref()) {
        (Some(section), DeValue::Table(_)) => Ok(section),
        (Some(_), other) => {
            let message = format!("expected a section, found {}", type_name(other));
            Err(SettingError { code: Code::WrongType, ..SettingError::new(message) }
                .hint(format!("write `[{name}]`")))
        }
        (None, _) => Err(unknown_section(name)),
    }
}

fn unknown_section(name: &str) -> SettingError {
    let sections: Vec<&str> = SECTIONS.iter().map(|section| section.name).collect();
    let other_section = keys::all().find(|key| key.name == name).map(belongs_in);
    let error =
        SettingError { code: Code::UnknownKey, ..SettingError::new(format!("unknown section `{name}`")) };
    error.hint(other_section.or_else(|| suggest(name, &sections)).unwrap_or_default())
}

fn unknown_key(section: &Section, name: &str) -> SettingError {
    let names: Vec<&str> = section.keys.iter().map(|key| key.name).collect();
    let other_section = keys::all().find(|key| key.name == name).map(belongs_in);
    let message = format!("unknown key `{name}` in [{}]", section.name);
    let error = SettingError { code: Code::UnknownKey, ..SettingError::new(message) };
    error.hint(other_section.or_else(|| suggest(name, &names)).unwrap_or_default())
}

fn belongs_in(key: &Key) -> String {
    format!("`{}` belongs in [{}]", key.name, key.section)
}

/// The file with possible secrets replaced by `*`, for diagnostics.
fn mask(source: &Source, table: &DeTable) -> Source {
    let mut text = source.text().to_owned();
    let of_channels = table.get("notify").and_then(|notify| notify.get_ref().as_table()).map(channel_spans);
    for span in secret_spans(table).into_iter().chain(of_channels.into_iter().flatten()) {
        let secret = text.get(span.clone()).unwrap_or_default();
        let stars: String = secret.bytes().map(|byte| if byte == b'\n' { '\n' } else { '*' }).collect();
        if !stars.is_empty() {
            text.replace_range(span, &stars);
        }
    }
    Source::new(source.name(), text)
}

/// The positions of values that may be secrets: values of keys with the name, or a similar name, of a secret setting, and
/// URLs with passwords. References to secrets are not secret.
fn secret_spans(table: &DeTable) -> Vec<Range<usize>> {
    let is_secret = |name: &str| {
        let nearest = nearest_key(name);
        let key = keys::all().find(|key| Some(key.name) == nearest);
        key.is_some_and(|key| key.secret)
    };
    let mut spans = Vec::new();
    for (name, value) in table {
        let is_secret = is_secret(name.get_ref());
        match value.get_ref() {
            value if is_secret && secret::is_reference(value) => {}
            _ if is_secret => spans.push(value.span()),
            DeValue::String(text) if secret::has_password(text) => spans.push(value.span()),
            DeValue::Table(inner) => spans.extend(secret_spans(inner)),
            _ => {}
        }
    }
    spans
}

/// The positions of texts where channels have references to secrets: someone may have written the secret itself.
fn channel_spans(table: &DeTable) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    for (name, value) in table {
        match value.get_ref() {
            DeValue::Table(inner) => spans.extend(channel_spans(inner)),
            DeValue::String(_) if CHANNEL_SECRETS.contains(&&**name.get_ref()) => spans.push(value.span()),
            _ => {}
        }
    }
    spans
}

fn nearest_key(name: &str) -> Option<&'static str> {
    let exact = keys::all().map(|key| key.name).find(|known| *known == name);
    exact.or_else(|| nearest(name, keys::all().map(|key| key.name)))
}
