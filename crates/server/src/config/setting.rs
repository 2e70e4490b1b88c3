//! What a value of a setting can do: be read from the file, be read from text, be shown. And the plain types.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::num::NonZeroU32;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use steprail_core::diagnostic::Code;
use steprail_core::spec::value::Period;
use toml::Spanned;
use toml::de::DeValue;

use super::secret::{REDACTED, has_password};

/// A type of settings.
pub(super) trait Setting: Sized {
    /// Values must not be shown.
    const SECRET: bool = false;

    /// What may be written, in a few words.
    fn kind() -> String;

    /// Reads an environment variable or a flag.
    fn from_text(text: &str, around: &Around) -> Result<Self, Wrong>;

    /// Reads a value of the file; most are text there, too.
    fn from_toml(value: &Spanned<DeValue>, around: &Around) -> Result<Self, Wrong> {
        match value.get_ref() {
            DeValue::String(text) => Self::from_text(text, around).map_err(|wrong| wrong.at(value.span())),
            _ => Err(Wrong::other_type::<Self>(value)),
        }
    }

    /// The value as the file has it; none if it is not set.
    fn shown(&self) -> Option<toml::Value>;
}

/// What a value may refer to.
pub(super) struct Around<'a> {
    pub env: &'a BTreeMap<String, String>,
    /// The folder that paths start from.
    pub folder: &'a Path,
}

/// Why a value cannot be taken.
#[derive(Debug)]
pub(super) struct Wrong {
    pub code: Code,
    pub message: String,
    pub hint: Option<String>,
    /// The part of the file, if it is not the whole value.
    pub span: Option<Range<usize>>,
}

impl Wrong {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { code: Code::InvalidValue, message: message.into(), hint: None, span: None }
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Text that is not what it should be; the hint says what may be written.
    pub(super) fn text<T: Setting>(text: &str, what: &str) -> Self {
        let text = if has_password(text) { REDACTED } else { text };
        Self::new(format!("`{text}` is not {what}")).hint(format!("write {}", T::kind()))
    }

    pub(super) fn other_type<T: Setting>(value: &Spanned<DeValue>) -> Self {
        let message = format!("expected {}, found {}", T::kind(), type_name(value.get_ref()));
        Self { code: Code::WrongType, ..Self::new(message) }.at(value.span())
    }

    /// A part of the value keeps its own place.
    pub(super) fn at(mut self, span: Range<usize>) -> Self {
        self.span.get_or_insert(span);
        self
    }
}

/// What a value of the file is called in messages.
pub(super) fn type_name(value: &DeValue) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// What can be shown as it prints.
pub(super) fn printed(value: impl Display) -> toml::Value {
    toml::Value::String(value.to_string())
}

impl Setting for String {
    fn kind() -> String {
        "text".to_owned()
    }

    fn from_text(text: &str, _: &Around) -> Result<Self, Wrong> {
        match text.trim() {
            "" => Err(Wrong::new("the text is empty")),
            text => Ok(text.to_owned()),
        }
    }

    fn shown(&self) -> Option<toml::Value> {
        Some(printed(self))
    }
}

impl Setting for bool {
    fn kind() -> String {
        "`true` or `false`".to_owned()
    }

    fn from_text(text: &str, _: &Around) -> Result<Self, Wrong> {
        text.trim().parse().map_err(|_| Wrong::text::<Self>(text, "a boolean"))
    }

    fn from_toml(value: &Spanned<DeValue>, _: &Around) -> Result<Self, Wrong> {
        value.get_ref().as_bool().ok_or_else(|| Wrong::other_type::<Self>(value))
    }

    fn shown(&self) -> Option<toml::Value> {
        Some((*self).into())
    }
}

impl Setting for NonZeroU32 {
    fn kind() -> String {
        format!("a whole number from 1 to {}", u32::MAX)
    }

    fn from_text(text: &str, _: &Around) -> Result<Self, Wrong> {
        text.trim().parse().map_err(|_| Wrong::new(format!("`{text}` is not {}", Self::kind())))
    }

    fn from_toml(value: &Spanned<DeValue>, _: &Around) -> Result<Self, Wrong> {
        let DeValue::Integer(number) = value.get_ref() else { return Err(Wrong::other_type::<Self>(value)) };
        let count = u32::from_str_radix(number.as_str(), number.radix()).ok().and_then(Self::new);
        count.ok_or_else(|| Wrong::new(format!("`{number}` is not {}", Self::kind())).at(value.span()))
    }

    fn shown(&self) -> Option<toml::Value> {
        Some(self.get().into())
    }
}

/// Units of time and their milliseconds, the longest first.
const UNITS: &[(&str, u128)] = &[("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl Setting for Duration {
    fn kind() -> String {
        "a length of time such as `90s`, `12h`, `1h 30m`, `30d`".to_owned()
    }

    fn from_text(text: &str, _: &Around) -> Result<Self, Wrong> {
        let hint = format!("write {}", Self::kind());
        let period = Period::parse(text.trim()).map_err(|reason| Wrong::new(reason).hint(hint))?;
        match period.millis {
            0 => Err(Wrong::new(format!("`{text}` is no time at all")).hint("`1ms` is the least")),
            millis if millis > Period::LONGEST.millis => {
                Err(Wrong::new(format!("`{text}` is too long")).hint("a thousand years are the most"))
            }
            millis => Ok(Self::from_millis(millis)),
        }
    }

    fn shown(&self) -> Option<toml::Value> {
        let millis = self.as_millis();
        let unit = UNITS.iter().find(|(_, length)| millis.is_multiple_of(*length));
        unit.map(|(unit, length)| printed(format!("{}{unit}", millis / length)))
    }
}

impl<T: Setting> Setting for Option<T> {
    const SECRET: bool = T::SECRET;

    fn kind() -> String {
        T::kind()
    }

    /// Empty text takes back what the file says.
    fn from_text(text: &str, around: &Around) -> Result<Self, Wrong> {
        if text.is_empty() { Ok(None) } else { T::from_text(text, around).map(Some) }
    }

    fn from_toml(value: &Spanned<DeValue>, around: &Around) -> Result<Self, Wrong> {
        T::from_toml(value, around).map(Some)
    }

    fn shown(&self) -> Option<toml::Value> {
        self.as_ref().and_then(T::shown)
    }
}

impl<T: Setting> Setting for Vec<T> {
    fn kind() -> String {
        format!("a list, each {}", T::kind())
    }

    /// Commas stand between the elements.
    fn from_text(text: &str, around: &Around) -> Result<Self, Wrong> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(|part| T::from_text(part, around)).collect()
    }

    fn from_toml(value: &Spanned<DeValue>, around: &Around) -> Result<Self, Wrong> {
        match value.get_ref() {
            DeValue::Array(elements) => {
                elements.iter().map(|element| T::from_toml(element, around)).collect()
            }
            _ => Err(Wrong::other_type::<Self>(value)),
        }
    }

    fn shown(&self) -> Option<toml::Value> {
        Some(toml::Value::Array(self.iter().filter_map(T::shown).collect()))
    }
}
