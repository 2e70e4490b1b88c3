//! `steprail login` against the real daemon and an authorization server on loopback.

#[path = "../../../mcp/tests/login/authority.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod authority;

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStderr, Stdio};

use serde_json::json;

use super::background::{Background, err, out};
use authority::{Authority, Behaviour};

/// A `steprail login` that waits for the browser.
struct Login {
    child: Child,
    page: String,
    /// Kept open, so that the command can write.
    _stderr: Lines<BufReader<ChildStderr>>,
}

impl Login {
    fn start(data: &Background, arguments: &[&str]) -> Self {
        let mut command = data.command(&[&["login", "crm", "--no-browser"], arguments].concat());
        let mut child = command.stdin(Stdio::piped()).spawn().expect("a command");
        let mut lines = BufReader::new(child.stderr.take().expect("its output")).lines();
        let page = lines.find_map(|line| {
            let line = line.expect("a line");
            line.trim().starts_with("http").then(|| line.trim().to_owned())
        });
        Self { child, page: page.expect("a page"), _stderr: lines }
    }

    fn output(self) -> String {
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
async fn local_browser_completes_a_login() {
    let (data, _authority) = data(json!({})).await;
    let login = Login::start(&data, &[]);
    let page = reqwest::Url::parse(&login.page).expect("a URL");
    let (_, callback) = page.query_pairs().find(|(key, _)| key == "redirect_uri").expect("a redirect");
    let forged =
        browser(true).get(format!("{callback}?code=x&state=forged")).send().await.expect("a response");
    assert_eq!(forged.status(), 404, "a forged state is rejected");
    let shown = browser(true).get(&login.page).send().await.expect("a response").text().await.expect("text");
    assert!(shown.contains("return to the terminal"), "{shown}");
    let output = login.output();
    assert!(
        output.starts_with("logged in at crm for all users\nscopes read\ntokens are renewed"),
        "{output}"
    );
    assert_eq!(out(&data.run(&["logout", "crm"])), "logged out at crm\n");
    assert!(err(&data.run(&["logout", "crm"])).contains("there is no login at `crm`"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pasted_url_completes_a_login_and_tokens_are_stored_encrypted() {
    let (data, authority) = data(json!({ "perUser": true })).await;
    let mut login = Login::start(&data, &["--json"]);
    let response = browser(false).get(&login.page).send().await.expect("a response");
    let redirect = response.headers()["location"].to_str().expect("text").to_owned();
    let mut stdin = login.child.stdin.take().expect("its input");
    writeln!(stdin, "{redirect}").expect("written");
    let output: serde_json::Value = serde_json::from_str(&login.output()).expect("JSON");
    assert_eq!((&output["renews"], &output["scopes"]), (&json!(true), &json!(["read"])));
    let sent = &authority.requests("token")[0];
    let secrets = ["access-2", "refresh-2", &sent["code"], &sent["code_verifier"]];
    assert_eq!(data.files_with(&secrets), Vec::<String>::new());
    assert!(data.log().contains("logged in"), "the log level is trace");
    let listed = data.run(&["secret", "list"]);
    assert_eq!(out(&listed), "", "logins are not listed as secrets");
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_login_is_rejected_with_a_reason() {
    let (data, authority) = data(json!({})).await;
    assert!(err(&data.run(&["login", "local"])).contains("there is no remote server `local`"));
    assert!(err(&data.run(&["login", "unknown"])).contains("there is no remote server `unknown`"));
    let rejected = data.piped(&["login", "crm", "--no-browser"], "no URL at all\n");
    assert!(err(&rejected).contains("that is not the URL"), "{rejected:?}");
    authority.change(|behaviour| behaviour.metadata = json!({ "issuer": "https://evil.example" }));
    assert!(err(&data.run(&["login", "crm", "--no-browser"])).contains("issuer mismatch"));
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_cannot_use_secrets_or_logins() {
    let (data, _authority) = data(json!({})).await;
    let token = out(&data.run(&["token", "create", "agent"]));
    let base = base_url(&data);
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
            let response = request.send().await.expect("a response");
            assert_eq!(response.status(), 403, "{method} {path}");
        }
    }
}

/// The base URL of the daemon, from a sign-in link.
fn base_url(data: &Background) -> String {
    let link = out(&data.run(&["open"]));
    link.split_once("/sign-in").expect("a link").0.to_owned()
}
