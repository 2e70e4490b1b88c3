//! Parsing and output of setting values, for plain types.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::num::NonZeroU32;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use steprail_core::diagnostic::Code;
use steprail_core::spec::value::DurationSpec;
use toml::Spanned;
use toml::de::DeValue;

use super::secret::{REDACTED, has_password};

/// A type of settings.
pub(super) trait Setting: Sized {
    /// Whether values must be redacted.
    const SECRET: bool = false;

    /// A description of valid values.
    fn expected() -> String;

    /// Parses the value of an environment variable or a flag.
    fn from_text(text: &str, context: &ReadContext) -> Result<Self, SettingError>;

    /// Parses a value of the file. By default it is a string, parsed as text.
    fn from_toml(value: &Spanned<DeValue>, context: &ReadContext) -> Result<Self, SettingError> {
        match value.get_ref() {
            DeValue::String(text) => Self::from_text(text, context).map_err(|error| error.at(value.span())),
            _ => Err(SettingError::wrong_type::<Self>(value)),
        }
    }

    /// The value as written in the file; `None` if it is not set.
    fn to_toml(&self) -> Option<toml::Value>;
}

/// The context in which a value is parsed.
pub(super) struct ReadContext<'a> {
    pub env: &'a BTreeMap<String, String>,
    /// The base of relative paths.
    pub folder: &'a Path,
}

/// Why a setting is invalid.
#[derive(Debug)]
pub(super) struct SettingError {
    pub code: Code,
    pub message: String,
    pub hint: Option<String>,
    /// Position in the file, if it is not the whole value.
    pub span: Option<Range<usize>>,
}

impl SettingError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { code: Code::InvalidValue, message: message.into(), hint: None, span: None }
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Text that is not a valid `T`. The hint describes valid values.
    pub(super) fn invalid_text<T: Setting>(text: &str, what: &str) -> Self {
        let text = if has_password(text) { REDACTED } else { text };
        Self::new(format!("`{text}` is not {what}")).hint(format!("write {}", T::expected()))
    }

    /// A value of the file that has the wrong type.
    pub(super) fn wrong_type<T: Setting>(value: &Spanned<DeValue>) -> Self {
        let message = format!("expected {}, found {}", T::expected(), type_name(value.get_ref()));
        Self { code: Code::WrongType, ..Self::new(message) }.at(value.span())
    }

    /// Sets the position, unless a part of the value has set it already.
    pub(super) fn at(mut self, span: Range<usize>) -> Self {
        self.span.get_or_insert(span);
        self
    }
}

/// The name of a type in messages.
pub(super) fn type_name(value: &DeValue) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// A string value with the `Display` output of a value.
pub(super) fn string(value: impl Display) -> toml::Value {
    toml::Value::String(value.to_string())
}

impl Setting for String {
    fn expected() -> String {
        "a string".to_owned()
    }

    fn from_text(text: &str, _: &ReadContext) -> Result<Self, SettingError> {
        match text.trim() {
            "" => Err(SettingError::new("the value is empty")),
            text => Ok(text.to_owned()),
        }
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(string(self))
    }
}

impl Setting for bool {
    fn expected() -> String {
        "`true` or `false`".to_owned()
    }

    fn from_text(text: &str, _: &ReadContext) -> Result<Self, SettingError> {
        text.trim().parse().map_err(|_| SettingError::invalid_text::<Self>(text, "a boolean"))
    }

    fn from_toml(value: &Spanned<DeValue>, _: &ReadContext) -> Result<Self, SettingError> {
        value.get_ref().as_bool().ok_or_else(|| SettingError::wrong_type::<Self>(value))
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some((*self).into())
    }
}

impl Setting for NonZeroU32 {
    fn expected() -> String {
        format!("an integer from 1 to {}", u32::MAX)
    }

    fn from_text(text: &str, _: &ReadContext) -> Result<Self, SettingError> {
        text.trim().parse().map_err(|_| SettingError::new(format!("`{text}` is not {}", Self::expected())))
    }

    fn from_toml(value: &Spanned<DeValue>, _: &ReadContext) -> Result<Self, SettingError> {
        let DeValue::Integer(number) = value.get_ref() else {
            return Err(SettingError::wrong_type::<Self>(value));
        };
        let count = u32::from_str_radix(number.as_str(), number.radix()).ok().and_then(Self::new);
        count.ok_or_else(|| {
            SettingError::new(format!("`{number}` is not {}", Self::expected())).at(value.span())
        })
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(self.get().into())
    }
}

/// Units of time and their milliseconds, the longest first.
const UNITS: &[(&str, u128)] = &[("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl Setting for Duration {
    fn expected() -> String {
        "a duration such as `90s`, `12h`, `1h 30m`, `30d`".to_owned()
    }

    fn from_text(text: &str, _: &ReadContext) -> Result<Self, SettingError> {
        let hint = format!("write {}", Self::expected());
        let duration =
            DurationSpec::parse(text.trim()).map_err(|reason| SettingError::new(reason).hint(hint))?;
        match duration.millis {
            0 => Err(SettingError::new(format!("`{text}` is too short")).hint("the minimum is `1ms`")),
            millis if millis > DurationSpec::MAX.millis => {
                Err(SettingError::new(format!("`{text}` is too long"))
                    .hint("the maximum is a thousand years"))
            }
            millis => Ok(Self::from_millis(millis)),
        }
    }

    fn to_toml(&self) -> Option<toml::Value> {
        let millis = self.as_millis();
        let unit = UNITS.iter().find(|(_, length)| millis.is_multiple_of(*length));
        unit.map(|(unit, length)| string(format!("{}{unit}", millis / length)))
    }
}

impl<T: Setting> Setting for Option<T> {
    const SECRET: bool = T::SECRET;

    fn expected() -> String {
        T::expected()
    }

    /// Empty text unsets the setting.
    fn from_text(text: &str, context: &ReadContext) -> Result<Self, SettingError> {
        if text.is_empty() { Ok(None) } else { T::from_text(text, context).map(Some) }
    }

    fn from_toml(value: &Spanned<DeValue>, context: &ReadContext) -> Result<Self, SettingError> {
        T::from_toml(value, context).map(Some)
    }

    fn to_toml(&self) -> Option<toml::Value> {
        self.as_ref().and_then(T::to_toml)
    }
}

impl<T: Setting> Setting for Vec<T> {
    fn expected() -> String {
        format!("a list where each element is {}", T::expected())
    }

    /// Parses elements separated by commas.
    fn from_text(text: &str, context: &ReadContext) -> Result<Self, SettingError> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(|part| T::from_text(part, context)).collect()
    }

    fn from_toml(value: &Spanned<DeValue>, context: &ReadContext) -> Result<Self, SettingError> {
        match value.get_ref() {
            DeValue::Array(elements) => {
                elements.iter().map(|element| T::from_toml(element, context)).collect()
            }
            _ => Err(SettingError::wrong_type::<Self>(value)),
        }
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(toml::Value::Array(self.iter().filter_map(T::to_toml).collect()))
    }
}
