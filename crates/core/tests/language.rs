//! Tests the evaluation of references, expressions, JSONPath, conditions and templates.

mod common;

use common::Names;
use serde_json::{Value, json};
use steprail_core::budget::Budget;
use steprail_core::expr::{Condition, Function, Template, parse};

fn values() -> Value {
    json!({
        "list": {
            "files": [
                { "uri": "a.txt", "ok": true, "size": 10 },
                { "uri": "b.txt", "ok": false, "size": 20 },
                { "uri": "c.txt", "ok": true, "size": 30 },
            ],
            "one": [{ "uri": "only.txt" }],
            "empty": [],
            "my-key": { "1a": "hyphens and digits" },
        },
        "n": 7,
        "big": 9_007_199_254_740_993_i64,
        "half": 0.5,
        "text": "Hello",
        "json": "{\"a\": [1, 2]}",
        "no": null,
        "yes": true,
        "injected": "{{n}} $n $.list.files",
        "my-step": { "output": 1 },
    })
}

/// Evaluates each line of `script`.
fn evaluated(script: &str, eval: impl Fn(&str, &mut Names) -> Result<Value, String>) -> String {
    let lines = script.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| match eval(line, &mut Names::new(&values())) {
            Ok(value) => format!("{line}\n  => {value}\n"),
            Err(error) => format!("{line}\n  error: {error}\n"),
        })
        .collect()
}

fn expression(text: &str, names: &mut Names) -> Result<Value, String> {
    let expr = parse(text, names).map_err(|problem| format!("{} at {:?}", problem.message, problem.at))?;
    expr.eval(names, &mut Budget::evaluation())
        .map(std::borrow::Cow::into_owned)
        .map_err(|error| format!("{:?}: {error}", error.kind))
}

fn template(text: &str, names: &mut Names) -> Result<Value, String> {
    let mut problems = Vec::new();
    let template = Template::parse(text, names, &mut problems);
    if let Some(problem) = problems.first() {
        return Err(format!("{} at {:?}", problem.message, problem.at));
    }
    template
        .eval(names, &mut Budget::evaluation())
        .map(std::borrow::Cow::into_owned)
        .map_err(|error| error.to_string())
}

#[test]
fn references_resolve_to_values() {
    insta::assert_snapshot!(evaluated(
        r#"
        n
        list.files[0].uri
        list.files[-1].uri
        list["files"][1]['uri']
        list.my-key.1a
        my-step.output
        list.files[n - 6].uri
        list.files[7].uri
        list.nothing.deeper
        text.x
        unknown.x
        list.files[list.one].uri
    "#,
        expression
    ));
}

#[test]
fn operators_follow_json() {
    insta::assert_snapshot!(evaluated(
        r#"
        1 + 2 * 3
        (1 + 2) * 3
        7 / 2
        7 % 4
        7.0 / 2
        n - 1
        n-1
        -n + 1
        n / 0
        9223372036854775807 + 1
        big == 9007199254740993
        big == 9007199254740992
        1 == 1.0
        "1" == 1
        [1, {"a"}]
        [1, 2.0] == [1.0, 2]
        text + ", you"
        text + 1
        text < "World"
        text < 1
        n > 5 and text == "Hello"
        n > 5 && !yes || no
        not n == 7
        !n == 7
        n > 5 ? "big" : "small"
        no ? 1 : yes ? 2 : 3
        7 in [1, 7]
        "uri" in list.one[0]
        "ell" in text
        1 in 2
        true and unknown
        false and list.nothing
        nil == null
        no == nil
        1 < 2 < 3
        'single' == "single"
        "a\"b" == 'a"b'
        1 +
        (1
        99999999999999999999
    "#,
        expression
    ));
}

#[test]
fn functions_check_their_arguments() {
    insta::assert_snapshot!(evaluated(
        r#"
        size(list.files)
        size("é")
        list.files.size()
        list.files | size
        size(n)
        has(list.files)
        has(list.nothing)
        has(no)
        has(1)
        list.nothing | default("none")
        list.nothing.deeper | default("none") | upper
        no | default(3)
        n | default(3)
        default(1 / 0, 2)
        contains(text, "ell")
        [1, 2].contains(2.0)
        contains(list, "files")
        startsWith(text, "He")
        text.endsWith("lo")
        matches(text, "^H.*o$")
        matches(text, text)
        matches(n, "7")
        lower(text)
        trim("  x ")
        join(["a", 1, true], "-")
        split("a,b,c", ",")
        split("abc", "")
        first(list.files).uri
        last(list.files).uri
        first(list.empty)
        first(list.empty) | default("none")
        keys(list)
        string(n)
        string([1, "a"])
        number(" 12.5 ")
        number("twelve")
        toJson(list.one)
        fromJson(json).a[1]
        fromJson(text)
        nope(1)
        size()
    "#,
        expression
    ));
}

#[test]
fn each_example_of_a_function_has_its_value() {
    for function in Function::all() {
        let (example, result) = function.example();
        let mut names = Names::new(&json!({ "order": { "total": 3 } }));
        let expected: Value = serde_json::from_str(result).expect(function.name);
        assert_eq!(expression(example, &mut names), Ok(expected), "{example}");
        assert!(example.contains(&format!("{}(", function.name)), "{example}");
        assert!(function.signature.contains(&format!("{}(", function.name)), "{}", function.signature);
    }
}

/// Every function with every combination of extreme values, up to three arguments.
#[test]
fn functions_return_a_value_or_an_error_for_all_arguments() {
    let extremes = json!([
        null, true, 0, -1, i64::MIN, i64::MAX, u64::MAX, 1e308, -0.0, 0.5, "", "é%-$'\0", "%d%.9f%",
        "9999-12-31T23:59:59Z", "-009999-01-01T00:00:00Z", "P1Y", "UTC", [], [1, "a", null, [[]]],
        [["k", 1]], ["%s"], {}, { "key": "a", "value": {} },
    ]);
    let extremes = extremes.as_array().expect("a list");
    for function in Function::all() {
        for arguments in 0..=3_usize {
            let names = ["a", "b", "c"][..arguments].join(", ");
            let text = format!("{}({names})", function.name);
            let mut names = Names::new(&json!({ "a": 1, "b": 1, "c": 1 }));
            let Ok(expr) = parse(&text, &mut names) else { continue };
            for number in 0..extremes.len().pow(u32::try_from(arguments).expect("a small number")) {
                let at = |place: u32| extremes[number / extremes.len().pow(place) % extremes.len()].clone();
                let values = Names::new(&json!({ "a": at(0), "b": at(1), "c": at(2) }));
                let mut budget = Budget::evaluation();
                let _ = expr.eval(&values, &mut budget);
                assert!(budget.spent() < 200_000, "{text}: {} units", budget.spent());
            }
        }
    }
}

#[test]
fn functions_of_text() {
    insta::assert_snapshot!(evaluated(
        r#"
        "a-b-c".replace("-", "", 1)
        "aaa".replace("a", "aa")
        "abc".replace("", "x")
        "a,b,c".split(",", 0)
        "été".substring(1, 2)
        "été".substring(2, 9)
        "été".substring(2, 9) | default("none")
        "été".indexOf("é")
        "été".lastIndexOf("é")
        "abc".indexOf("x")
        "7".padStart(3, "00")
        "long".padStart(2, "0")
        [1, 2].join()
        "%s and %s".format(["a", [1, 2]])
        "%d %x %X %o %b".format([10, 255, 255, -8, 5])
        "%f|%.0f|%.3e|100%%".format([1.5, 2.5, 1234.5])
        "%d".format([1.5])
        "%s".format([])
        "none".format([1])
        "%q".format([1])
        "%.999f".format([1])
        "%".format([])
        "order 4711".regexExtract("[0-9]+")
        "no digits".regexExtract("[0-9]+")
        "no digits".regexExtract("[0-9]+") | default("none")
        "a=1, b=2".regexExtractAll("([a-z])=([0-9])")
        "aXbX".regexReplace("X", "$$")
        "a b".regexReplace("(a) (b)", "${2} ${1} $9")
        "x".regexReplace("", "-")
        regexExtract(text, text)
    "#,
        expression
    ));
}

#[test]
fn functions_of_numbers() {
    insta::assert_snapshot!(evaluated(
        r#"
        6 / 2
        7 / 2
        -7 / 2
        1 / 3
        6.0 / 2
        0 / 5
        5 / 0
        5.0 / 0
        -9223372036854775807 / -1
        intDiv(-7, 2)
        intDiv(7, 0)
        intDiv(7.5, 2)
        int(-1.9)
        int("x")
        int(1e300)
        round(2.5)
        round(-2.5)
        round(1234.567, -2)
        round(1234, 2)
        round(1.5, 99)
        floor("1")
        abs(-9223372036854775807)
        min(3, 2.5, 7)
        max(["b", "a"])
        min([1, "a"])
        max([])
        max([]) | default(0)
        sum([])
        sum([1, 2])
        sum([0.5, 2])
        sum(["a"])
        sum([9223372036854775807, 1])
        avg([1, 2, 3])
        avg([])
    "#,
        expression
    ));
}

#[test]
fn functions_of_lists_and_maps() {
    insta::assert_snapshot!(evaluated(
        r#"
        list.files.map(f, f.uri)
        list.files | map(f, f.size / 10)
        map(list.files, f, f.uri)
        list.files.filter(f, f.ok).map(f, {uri: f.uri, "big": f.size > n})
        list.files.filter(f, f.ok).sum()
        sum(list.files.map(f, f.size))
        list.files.exists(f, f.size > 15) and list.files.all(f, f.size > 15)
        list.files.sortBy(f, -f.size).map(f, f.uri)
        list.files.sortBy(f, f.ok)
        list.files.groupBy(f, f.ok).map(k, k)
        list.files.groupBy(f, list)
        [[1, 2], [3]].map(row, row.map(cell, cell + size(row)))
        [[1, 2], [3]].map(row, row[*])
        list.my-key.map(k, k)
        text.map(x, x)
        list.files.map(n, n)
        list.files.map(true, 1)
        list.files.map(a-b, 1)
        list.files.map(x + 1, x)
        list.files.map(x)
        list.files.map()
        list.files.map(x, x.map(x, x))
        [1].map(a, [1].map(b, [1].map(c, [1].map(d, a + b + c + d))))
        [1].map(a, [1].map(b, [1].map(c, [1].map(d, [1].map(e, 1)))))
        [1].map(x, x) == x
        [3, 1, 2][0:2]
        [3, 1, 2][-2:]
        [3, 1, 2][:1]
        [3, 1, 2][:]
        [3, 1, 2][2:1]
        [3, 1, 2][5:]
        [3, 1, 2][-9:9]
        text[1:3]
        text[-3:]
        list.files[0:2].map(f, f.uri)
        list.files[n > 5 ? 1 : 0:][0].uri
        n[0:1]
        text["a":]
        text[]
        sort(["b", "a"])
        sort([1, "a"])
        sort([{}])
        distinct([1, 1.0, "1", [1], [1.0], {a: 1}, {a: 1.0}, -0.0, 0])
        reverse("été")
        flatten([[1, [2]], 3], 2)
        flatten([1], 0)
        zip([1], [])
        range(2, 8, 3)
        range(3, 0, -1)
        range(3, 0)
        range(0, 9, 0)
        range(1000000)
        range(-9223372036854775807, 9223372036854775807)
        {}
        {a: 1, b: {c: [2]}}.b.c[0]
        {a: 1, a: 2}
        {1: 2}
        {a 1}
        {a: 1
        merge({a: {b: 1}}, {a: {c: 2}}, {})
        merge({a: 1}, [])
        pick({a: 1}, ["b"])
        omit({a: 1, b: 2}, ["b", "c"])
        fromEntries(entries({a: 1, b: 2})) == {a: 1, b: 2}
        fromEntries([["a"]])
        fromEntries([1])
        sort_by([1])
        list.files.length()
        text.toUpperCase()
        "x".frobnicate()
    "#,
        expression
    ));
}

#[test]
fn functions_of_time_and_encodings() {
    insta::assert_snapshot!(evaluated(
        r#"
        parseTime("2026-11-18")
        parseTime("2026-11-18T14:00:00+01:00")
        parseTime(1700000000)
        parseTime(1700000000.25)
        parseTime("18.11.2026", "%d.%m.%Y")
        parseTime("18.11.2026", "%d.%m.%Y", "Europe/Berlin")
        parseTime("Wed, 18 Nov 2026 13:00:00 +0100", "%a, %d %b %Y %H:%M:%S %z")
        parseTime("soon")
        parseTime("2026-11-18T14:00:00")
        addTime("2026-03-28T12:00:00Z", "1 day")
        addTime("2026-03-28T12:00:00Z", "1 day", "Europe/Berlin")
        addTime("2026-01-31T00:00:00Z", "1 month")
        addTime("2026-01-31T00:00:00Z", -90)
        addTime("2026-01-31T00:00:00Z", "-1h")
        addTime("2026-01-31T00:00:00Z", "soon")
        addTime("2026-01-31T00:00:00Z", 1e300)
        addTime("9999-12-30T00:00:00Z", "1 year")
        addTime("2026", "1h")
        timeDiff("2026-11-18T13:00:00.5Z", "2026-11-18T13:00:00Z")
        timeDiff("2026-11-18T13:00:00+01:00", "2026-11-18T13:00:00Z")
        formatTime("2026-11-18T13:00:00Z", "%Y-%m-%d")
        formatTime("2026-11-18T13:00:00Z", "%!")
        formatTime("2026-11-18T13:00:00Z", "%H", "Mars/Base")
        inZone("2026-11-18T13:00:00.25Z", "America/New_York")
        formatTime(now(), "%d %B", "UTC")
        now() == now()
        fromJson("[1,")
        base64Decode("%%")
        base64Decode("/w==")
        hash({a: 1}) == hash('{"a":1}')
        hash("abc", "sha512")[0:8]
        hash("abc", "md5")
        shellQuote("a b; $(rm)")
        shellQuote(["a", 1, true])
        shellQuote([["a"]])
        shellQuote(null)
        urlEncode(7)
        urlDecode("%zz")
        urlDecode("%ff")
        urlDecode("%C3%BC")
        sqlQuote(null)
        sqlQuote(1.5)
        sqlQuote([1])
        size(uuid())
    "#,
        expression
    ));
}

#[test]
fn jsonpath_returns_a_value_or_a_list() {
    insta::assert_snapshot!(evaluated(
        r"
        $.list.files
        $.list.files[0].uri
        $.list.files[-1].uri
        $['list']['files'][1].uri
        $.list.my-key.1a
        $.list.files[*].uri
        list.files[*].uri
        list.files[?@.size > 15].uri | size
        list..uri
        $.list.one[*].uri
        $.list.empty[*].uri
        $.list.files[?@.ok].uri
        $.list.files[?@.size > 15 && @.ok].uri
        $.list.files[0:2].uri
        $.list..uri
        $.list.files[0,2].uri
        $.list.nothing
        $.list.nothing[*]
        $.nobody
        size($.list.files[?@.ok]) > 1
        $.list.files[?@.x == $.n]
        $..uri
        $[0]
        $.list.files[?@.a[?@.b]]
        $.list..a..b
        $.list.files[?count(@..*) > 1]
    ",
        expression
    ));
}

#[test]
fn templates_keep_types_only_when_whole() {
    insta::assert_snapshot!(evaluated(
        r#"
        plain text
        {{n}}
        {{ n }}
        n is {{n}}
        {{n}}{{n}}
        {{list.one}}
        files: {{list.one}}
        {{no}}
        no: {{no}}
        {{ "}}" }}
        {{ text | lower }} and {{ n > 5 }}
        {{{{n}}
        $$n costs $$5
        $5 and 100$ and US$ x
        $n
        $list.one[0].uri
        about $n.
        $.list.files[1].uri
        $$.list.files
        about $.list.files
        {{injected}}
        got {{injected}}
        {{n
        {{}}
        {{n}
        $unknown
    "#,
        template
    ));
}

#[test]
fn conditions_evaluate_to_booleans() {
    let holds = |text: &str, names: &mut Names| {
        let condition = Condition::parse(text, names).map_err(|problem| problem.message)?;
        condition.holds(names, &mut Budget::evaluation()).map(Value::Bool).map_err(|error| error.to_string())
    };
    insta::assert_snapshot!(evaluated(
        r#"
        n > 5
        {{ n > 5 }}
        text
        no
        list.empty
        list
        0
        ""
        "false"
        $.list.files[?@.ok]
        $.list.files[?@.size > 99]
        $.list.nothing
        $.list.one[0].uri
        list.nothing
        {{n}} == {{n}}
    "#,
        holds
    ));
}

#[test]
fn result_conditions_compare_loosely() {
    let forms = [
        "result == true",
        "result == false",
        "result != nil",
        "result == nil",
        "result == active",
        "result != active",
        "result == \"active\"",
        "result == 5",
        "result == in progress",
        "result.ok == true",
        "result == active and x",
    ];
    let results = [
        json!(true),
        json!("true"),
        json!(false),
        json!("false"),
        json!(null),
        json!(""),
        json!("nil"),
        json!("active"),
        json!(5),
        json!("5"),
        json!("in progress"),
        json!({ "ok": true }),
    ];
    let mut table = String::new();
    for form in forms {
        let holding: Vec<String> = results
            .iter()
            .filter_map(|result| {
                let mut names = Names::new(&json!({ "result": result }));
                let condition = match Condition::parse_result(form, &mut names) {
                    Ok(condition) => condition,
                    Err(problem) => return Some(format!("error: {}", problem.message)),
                };
                match condition.holds(&names, &mut Budget::evaluation()) {
                    Ok(holds) => holds.then(|| result.to_string()),
                    Err(_) => None,
                }
            })
            .collect();
        let holding = if holding.iter().all(|line| line.starts_with("error")) {
            holding[..1].join("")
        } else {
            holding.join(" ")
        };
        table.push_str(&format!("{form}\n  holds for {holding}\n"));
    }
    insta::assert_snapshot!(table);
}

#[test]
fn result_size_is_limited() {
    let long = "x".repeat(600 * 1024);
    let mut names = Names::new(&json!({ "long": long }));
    for text in ["long + long", "join([long, long], \"\")", "toJson([long, long])"] {
        let expr = parse(text, &mut names).unwrap();
        assert!(
            expr.eval(&names, &mut Budget::evaluation()).unwrap_err().to_string().contains("larger than"),
            "{text}"
        );
    }
    let template = Template::parse("{{long}} {{long}}", &mut names, &mut Vec::new());
    assert!(template.eval(&names, &mut Budget::evaluation()).is_err());
}
