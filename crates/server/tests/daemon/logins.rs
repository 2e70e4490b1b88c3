//! Logins at a terminal, against the real daemon and an authorization server on loopback.

#[path = "../../../mcp/tests/login/authority.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod authority;

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStderr, Stdio};

use serde_json::json;

use super::background::{Background, err, out};
use authority::{Authority, Behaviour};

/// A login that is under way.
struct Login {
    child: Child,
    page: String,
    /// Open until the end, so that the command can go on writing.
    _stderr: Lines<BufReader<ChildStderr>>,
}

impl Login {
    fn begin(data: &Background, arguments: &[&str]) -> Self {
        let mut command = data.command(&[&["login", "crm", "--no-browser"], arguments].concat());
        let mut child = command.stdin(Stdio::piped()).spawn().expect("a command");
        let mut said = BufReader::new(child.stderr.take().expect("its output")).lines();
        let page = said.find_map(|line| {
            let line = line.expect("a line");
            line.trim().starts_with("http").then(|| line.trim().to_owned())
        });
        Self { child, page: page.expect("a page"), _stderr: said }
    }

    fn end(self) -> String {
        out(&self.child.wait_with_output().expect("an end"))
    }
}

async fn data(oauth: serde_json::Value) -> (Background, Authority) {
    let authority = Authority::start(Behaviour::default()).await;
    let servers = json!({ "mcpServers": {
        "crm": { "url": authority.url(), "oauth": oauth }, "local": { "command": "true" },
    } });
    (Background::new(&servers), authority)
}

fn browser(follows: bool) -> reqwest::Client {
    let policy =
        if follows { reqwest::redirect::Policy::default() } else { reqwest::redirect::Policy::none() };
    reqwest::Client::builder().redirect(policy).no_proxy().build().expect("a client")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_on_this_machine_ends_a_login() {
    let (data, _authority) = data(json!({})).await;
    let login = Login::begin(&data, &[]);
    let page = reqwest::Url::parse(&login.page).expect("a URL");
    let (_, callback) = page.query_pairs().find(|(key, _)| key == "redirect_uri").expect("a redirect");
    let forged =
        browser(true).get(format!("{callback}?code=x&state=forged")).send().await.expect("an answer");
    assert_eq!(forged.status(), 404, "a stranger ends nothing");
    let shown = browser(true).get(&login.page).send().await.expect("an answer").text().await.expect("text");
    assert!(shown.contains("return to the terminal"), "{shown}");
    let told = login.end();
    assert!(told.starts_with("logged in at crm for all users\nscopes read\ntokens are renewed"), "{told}");
    assert_eq!(out(&data.run(&["logout", "crm"])), "logged out at crm\n");
    assert!(err(&data.run(&["logout", "crm"])).contains("nobody is logged in at `crm`"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pasted_url_ends_a_login_and_no_token_is_in_clear_anywhere() {
    let (data, authority) = data(json!({ "perUser": true })).await;
    let mut login = Login::begin(&data, &["--json"]);
    let answer = browser(false).get(&login.page).send().await.expect("an answer");
    let redirect = answer.headers()["location"].to_str().expect("text").to_owned();
    let mut stdin = login.child.stdin.take().expect("its input");
    writeln!(stdin, "{redirect}").expect("written");
    let told: serde_json::Value = serde_json::from_str(&login.end()).expect("JSON");
    assert_eq!((&told["renews"], &told["scopes"]), (&json!(true), &json!(["read"])));
    let sent = &authority.requests("token")[0];
    let secrets = ["access-2", "refresh-2", &sent["code"], &sent["code_verifier"]];
    assert_eq!(data.files_with(&secrets), Vec::<String>::new());
    assert!(data.log().contains("logged in"), "the log has everything");
    let listed = data.run(&["secret", "list"]);
    assert_eq!(out(&listed), "", "a login is not listed among secrets");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_is_not_possible_is_refused_with_a_reason() {
    let (data, authority) = data(json!({})).await;
    assert!(err(&data.run(&["login", "local"])).contains("there is no remote server `local`"));
    assert!(err(&data.run(&["login", "unknown"])).contains("there is no remote server `unknown`"));
    let refused = data.piped(&["login", "crm", "--no-browser"], "no URL at all\n");
    assert!(err(&refused).contains("that is not the URL"), "{refused:?}");
    authority.change(|behaviour| behaviour.metadata = json!({ "issuer": "https://evil.example" }));
    assert!(err(&data.run(&["login", "crm", "--no-browser"])).contains("issuer mismatch"));
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_reach_neither_secrets_nor_logins() {
    let (data, _authority) = data(json!({})).await;
    let token = out(&data.run(&["token", "create", "agent"]));
    let base = serve_url(&data);
    for token in [None, Some(token.trim())] {
        for (method, path, body) in [
            ("GET", "/secrets", json!(null)),
            ("PUT", "/secrets/x", json!({ "value": "v" })),
            ("DELETE", "/secrets/x", json!(null)),
            ("POST", "/servers/crm/login", json!({ "redirect_uri": "http://127.0.0.1:9/callback" })),
            ("POST", "/servers/crm/login/finish", json!({ "redirect_url": "http://127.0.0.1:9/?state=x" })),
            ("DELETE", "/servers/crm/login", json!(null)),
        ] {
            let request = browser(false)
                .request(method.parse().expect("a method"), format!("{base}/api/v1{path}"))
                .json(&body);
            let request = token.into_iter().fold(request, reqwest::RequestBuilder::bearer_auth);
            let answer = request.send().await.expect("an answer");
            assert_eq!(answer.status(), 403, "{method} {path}");
        }
    }
}

/// Where the daemon serves HTTP: the link that signs a browser in names it.
fn serve_url(data: &Background) -> String {
    let link = out(&data.run(&["open"]));
    link.split_once("/sign-in").expect("a link").0.to_owned()
}
