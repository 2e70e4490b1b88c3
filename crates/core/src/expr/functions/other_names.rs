//! Suggestions for unknown functions: names of other languages and other spellings.

use super::Function;
use crate::diagnostic::nearest;

/// Names that users know from CEL, jq, Jinja, Liquid, JavaScript and Python, with the name here.
const OTHER_NAMES: &[(&[&str], &str)] = &[
    (&["length", "len", "count", "strlen"], "size"),
    (&["includes", "has_key", "hasKey", "containsKey"], "contains"),
    (&["lowerAscii", "toLowerCase", "downcase", "ascii_downcase", "tolower", "lcase"], "lower"),
    (&["upperAscii", "toUpperCase", "upcase", "ascii_upcase", "toupper", "ucase"], "upper"),
    (&["strip", "trimSpace"], "trim"),
    (&["substr", "slice", "mid"], "substring"),
    (&["replaceAll", "gsubText"], "replace"),
    (&["gsub", "sub", "regex_replace"], "regexReplace"),
    (&["match", "test", "search"], "matches"),
    (&["capture", "extract", "regex_search", "exec"], "regexExtract"),
    (&["scan", "findall", "extractAll", "regex_findall"], "regexExtractAll"),
    (&["printf", "sprintf"], "format"),
    (&["ljust"], "padEnd"),
    (&["rjust", "zfill"], "padStart"),
    (&["find", "search_for", "index"], "indexOf"),
    (&["tostring", "str", "to_string", "toString", "text"], "string"),
    (&["tonumber", "float", "double", "parseFloat", "parseInt", "to_number"], "number"),
    (&["integer", "trunc", "uint", "toInt"], "int"),
    (&["div", "divided_by", "floordiv"], "intDiv"),
    (&["greatest", "maximum"], "max"),
    (&["least", "minimum"], "min"),
    (&["average", "mean"], "avg"),
    (&["add", "total", "reduce", "fold"], "sum"),
    (&["ceiling"], "ceil"),
    (&["unique", "uniq", "dedupe", "set"], "distinct"),
    (&["flat", "flatMap", "concat"], "flatten"),
    (&["select", "selectattr", "where", "reject", "findAll"], "filter"),
    (&["collect", "pluck", "transform", "forEach", "each"], "map"),
    (&["any", "some", "exists_one"], "exists"),
    (&["every"], "all"),
    (&["sorted", "order"], "sort"),
    (&["orderBy", "sorted_by"], "sortBy"),
    (&["groupby", "partition"], "groupBy"),
    (&["reversed"], "reverse"),
    (&["toPairs", "items", "to_entries", "dictsort"], "entries"),
    (&["fromPairs", "dict", "from_entries"], "fromEntries"),
    (&["assign", "combine", "extend", "update"], "merge"),
    (&["only"], "pick"),
    (&["except", "without", "del", "delete"], "omit"),
    (&["today", "utcnow", "timestamp", "time", "date"], "now"),
    (&["strptime", "fromdate", "fromdateiso8601", "todate"], "parseTime"),
    (&["strftime", "formatDate", "date_format"], "formatTime"),
    (&["dateAdd", "addDays", "addHours", "plus"], "addTime"),
    (&["dateDiff", "since", "duration"], "timeDiff"),
    (&["toLocal", "tz", "timezone", "astimezone"], "inZone"),
    (&["tojson", "json", "stringify", "dump", "jsonEncode", "quote"], "toJson"),
    (&["fromjson", "parse", "parseJson", "jsonDecode", "loads"], "fromJson"),
    (&["btoa", "b64encode", "base64", "encodeBase64"], "base64Encode"),
    (&["atob", "b64decode", "base64d", "decodeBase64"], "base64Decode"),
    (&["sha256", "sha512", "md5", "sha1", "digest", "checksum"], "hash"),
    (&["uuid4", "guid", "newGuid", "randomUUID", "random"], "uuid"),
    (&["sh", "quote_shell", "shlex_quote"], "shellQuote"),
    (&["uri", "encodeURIComponent", "urlencode", "url_encode", "percentEncode"], "urlEncode"),
    (&["decodeURIComponent", "urldecode", "unquote"], "urlDecode"),
    (&["sql", "quote_literal"], "sqlQuote"),
    (&["coalesce", "orValue", "ifEmpty", "fallback"], "default"),
    (&["defined", "exist"], "has"),
];

/// The function that an unknown name most likely means.
pub(in crate::expr) fn suggestion(name: &str) -> Option<&'static str> {
    let known = OTHER_NAMES.iter().find(|(others, _)| others.contains(&name)).map(|(_, known)| *known);
    let plain = |name: &str| name.replace('_', "").to_lowercase();
    let same = || Function::all().map(|function| function.name).find(|other| plain(other) == plain(name));
    known.or_else(same).or_else(|| nearest(name, Function::all().map(|function| function.name)))
}

#[cfg(test)]
mod tests {
    use super::{OTHER_NAMES, suggestion};
    use crate::expr::Function;

    #[test]
    fn other_names_lead_to_functions() {
        for (others, name) in OTHER_NAMES {
            assert!(Function::from_name(name).is_some(), "{name}");
            for other in *others {
                assert!(Function::from_name(other).is_none(), "{other}");
            }
        }
    }

    #[test]
    fn spelling_does_not_matter() {
        assert_eq!(suggestion("sort_by"), Some("sortBy"));
        assert_eq!(suggestion("starts_with"), Some("startsWith"));
        assert_eq!(suggestion("toUpperCase"), Some("upper"));
        assert_eq!(suggestion("lenght"), None);
        assert_eq!(suggestion("uper"), Some("upper"));
    }
}
