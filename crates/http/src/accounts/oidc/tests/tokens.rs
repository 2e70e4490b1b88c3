//! One token at a time: whom it names, or why it is refused.

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use super::super::{Oidc, protected_resource};
use super::issuer::{Key, NOW, claims, open, with, without};

/// What becomes of tokens, a line each.
async fn judged(oidc: &Oidc, tokens: impl IntoIterator<Item = (&str, String)>) -> String {
    let mut lines = String::new();
    for (what, token) in tokens {
        lines += &match oidc.validate(&token).await {
            Ok(identity) => format!("{what}: {}\n", identity.user),
            Err(refused) => format!("{what}: {refused} ({})\n", refused.for_client()),
        };
    }
    lines
}

#[tokio::test]
async fn a_token_says_who_sends_it() {
    let key = Key::ec("a");
    let oidc = open([key.public()]).await;
    let mut claims = claims();
    claims["aud"] = json!(["account", "steprail"]);
    claims["name"] = json!("Ann Doe");
    claims["email"] = json!("ann@example.org");
    claims["groups"] = json!(["ops", "dev"]);
    claims["scope"] = json!("openid runs:write");
    let identity = oidc.validate(&key.sign(&claims)).await.expect("a good token");
    insta::assert_debug_snapshot!(identity, @r#"
    Identity {
        user: "ann",
        name: "Ann Doe",
        email: "ann@example.org",
        groups: [
            "ops",
            "dev",
        ],
        scopes: [
            "openid",
            "runs:write",
        ],
        expires_at: 1800000300,
    }
    "#);
}

#[tokio::test]
async fn what_is_only_shown_may_be_missing_or_odd() {
    let key = Key::ec("a");
    let oidc = open([key.public()]).await;
    let mut claims = claims();
    claims["name"] = json!("Ann\u{1b}[31m");
    claims["preferred_username"] = json!("ann.doe");
    claims["email"] = json!("boss@example.org");
    claims["email_verified"] = json!(false);
    claims["groups"] = Value::Null;
    claims["scp"] = json!(["runs:read"]);
    claims["exp"] = json!(1_800_000_300.5);
    let identity = oidc.validate(&key.sign(&claims)).await.expect("a good token");
    assert_eq!((identity.name.as_str(), identity.email.as_str()), ("ann.doe", ""));
    assert_eq!((identity.groups, identity.scopes), (vec![], vec!["runs:read".to_owned()]));
    assert_eq!(identity.expires_at, NOW + 300);
}

#[tokio::test]
async fn every_accepted_algorithm_is_verified() {
    let (rsa, ec, ec384, ed) = (Key::rsa("rsa"), Key::ec("ec"), Key::ec384("ec384"), Key::ed("ed"));
    let mut keys = [rsa.public(), ec.public(), ec384.public(), ed.public()];
    keys[0] = without(keys[0].take(), "alg");
    let oidc = open(keys).await;
    let of_rsa = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]
        .map(|name| rsa.using(name.parse().expect("an algorithm")));
    for key in of_rsa.iter().chain([&ec, &ec384, &ed]) {
        let good = key.sign(&claims());
        let other = key.sign(&with("sub", "mallory"));
        assert_eq!(oidc.validate(&good).await.expect("a good token").user, "ann", "{:?}", key.algorithm);
        let (said, _) = other.rsplit_once('.').expect("a token");
        let (_, signature) = good.rsplit_once('.').expect("a token");
        let forged = oidc.validate(&format!("{said}.{signature}")).await.expect_err("a forged token");
        assert_eq!(forged.to_string(), "the signature is invalid", "{:?}", key.algorithm);
    }
}

#[tokio::test]
async fn claims_are_judged() {
    let key = Key::ec("a");
    let oidc = open([key.public()]).await;
    let many: Vec<String> = (0..257).map(|n| n.to_string()).collect();
    let rows = [
        ("wrong issuer", with("iss", "https://id.example/")),
        ("list of issuers", with("iss", json!(["https://id.example"]))),
        ("no issuer", without(claims(), "iss")),
        ("wrong audience", with("aud", "steprail-web")),
        ("wrong audiences", with("aud", json!(["a", "b"]))),
        ("no audience", without(claims(), "aud")),
        ("expired, just", with("exp", NOW - 60)),
        ("expired, within the leeway", with("exp", NOW - 59)),
        ("no expiry", without(claims(), "exp")),
        ("expiry in words", with("exp", "tomorrow")),
        ("expiry beyond all times", with("exp", 1e300)),
        ("expiry before all times", with("exp", -1)),
        ("not yet valid", with("nbf", NOW + 61)),
        ("not yet valid, within the leeway", with("nbf", NOW + 60)),
        ("start in words", with("nbf", "now")),
        ("issued in the future", with("iat", NOW + 61)),
        ("issued in the future, within the leeway", with("iat", NOW + 60)),
        ("no user", without(claims(), "sub")),
        ("empty user", with("sub", "")),
        ("blank user", with("sub", " ")),
        ("user by number", with("sub", 7)),
        ("long user", with("sub", "ä".repeat(256))),
        ("user too long", with("sub", "ä".repeat(257))),
        ("user of two lines", with("sub", "ann\nroot")),
        ("groups as text", with("groups", "ops")),
        ("group by number", with("groups", json!(["ops", 7]))),
        ("empty group", with("groups", json!([""]))),
        ("too many groups", with("groups", json!(many))),
    ];
    let lines = judged(&oidc, rows.map(|(what, claims)| (what, key.sign(&claims)))).await;
    insta::assert_snapshot!(lines.replace(&"ä".repeat(256), "ä…"), @r#"
    wrong issuer: it is from another issuer (the token is not valid)
    list of issuers: it is from another issuer (the token is not valid)
    no issuer: it is from another issuer (the token is not valid)
    wrong audience: it is for another audience (the token is not valid)
    wrong audiences: it is for another audience (the token is not valid)
    no audience: it is for another audience (the token is not valid)
    expired, just: it has expired (the token has expired)
    expired, within the leeway: ann
    no expiry: the claim "exp" is missing (the token is not valid)
    expiry in words: the claim "exp" is no moment (the token is not valid)
    expiry beyond all times: the claim "exp" is no moment (the token is not valid)
    expiry before all times: the claim "exp" is no moment (the token is not valid)
    not yet valid: it is not valid yet (the token is not valid)
    not yet valid, within the leeway: ann
    start in words: the claim "nbf" is no moment (the token is not valid)
    issued in the future: it is not valid yet (the token is not valid)
    issued in the future, within the leeway: ann
    no user: the claim "sub" is missing (the token is not valid)
    empty user: the claim "sub" is empty (the token is not valid)
    blank user: the claim "sub" is empty (the token is not valid)
    user by number: the claim "sub" is no text (the token is not valid)
    long user: ä…
    user too long: the claim "sub" is too long (the token is not valid)
    user of two lines: the claim "sub" has control characters (the token is not valid)
    groups as text: the claim "groups" is no list (the token is not valid)
    group by number: the claim "groups" has an entry that is no name (the token is not valid)
    empty group: the claim "groups" has an entry that is no name (the token is not valid)
    too many groups: the claim "groups" has too many entries (the token is not valid)
    "#);
}

#[tokio::test]
async fn signatures_are_judged() {
    let (rsa, ec, stranger) = (Key::rsa("rsa"), Key::ec("ec"), Key::ec("ec"));
    let secret = EncodingKey::from_secret(b"a secret that somebody published");
    let mut published =
        serde_json::to_value(Jwk::from_encoding_key(&secret, Algorithm::HS256).expect("a key"))
            .expect("JSON");
    published["kid"] = json!("secret");
    let oidc = open([rsa.public(), ec.public(), published]).await;

    let good = ec.sign(&claims());
    let payload = good.split('.').nth(1).expect("a payload");
    let hmac = |kid: &str, secret: &EncodingKey| {
        let header = Header { kid: Some(kid.to_owned()), ..Header::new(Algorithm::HS256) };
        jsonwebtoken::encode(&header, &claims(), secret).expect("a token")
    };
    let embedded = Jwk::from_encoding_key(&stranger.private, Algorithm::ES256).expect("a key");
    let as_rsa = Header { kid: Some("rsa".to_owned()), ..ec.header() };
    let critical = Header { crit: Some(vec!["b64".to_owned()]), ..ec.header() };
    let logout = Header { typ: Some("logout+jwt".to_owned()), ..ec.header() };
    let access = Header { typ: Some("at+JWT".to_owned()), ..ec.header() };
    let odd_kid = Header { kid: Some(format!("{}\n2027 root", "k".repeat(99))), ..ec.header() };

    let lines = judged(
        &oidc,
        [
            // {"alg":"none"}
            ("no signature", format!("eyJhbGciOiJub25lIn0.{payload}.")),
            ("public key as secret", hmac("rsa", &public_as_secret(&rsa))),
            ("published secret", hmac("secret", &secret)),
            ("stranger's key", stranger.sign(&claims())),
            ("key in the token", stranger.sign_as(&Header { jwk: Some(embedded), ..ec.header() }, &claims())),
            ("unknown key", Key::ec("new").sign(&claims())),
            ("unknown key with an odd name", ec.sign_as(&odd_kid, &claims())),
            ("key of another type", ec.sign_as(&as_rsa, &claims())),
            ("key for another algorithm", rsa.using(Algorithm::PS256).sign(&claims())),
            ("extension", ec.sign_as(&critical, &claims())),
            ("note of a logout", ec.sign_as(&logout, &claims())),
            ("access token by name", ec.sign_as(&access, &claims())),
            ("too long", ec.sign(&with("padding", "x".repeat(8 * 1024)))),
            ("no token", "sr_1_secret".to_owned()),
            ("nothing", String::new()),
            ("claims that are none", ec.sign(&json!("ann"))),
            ("a part too many", format!("{good}.{payload}")),
        ],
    )
    .await;
    insta::assert_snapshot!(lines, @r#"
    no signature: it is not a signed JSON web token, or its algorithm is unknown (the token is not valid)
    public key as secret: tokens signed with HS256 are not accepted (the token is not valid)
    published secret: tokens signed with HS256 are not accepted (the token is not valid)
    stranger's key: the signature is invalid (the token is not valid)
    key in the token: the signature is invalid (the token is not valid)
    unknown key: the issuer has no key "new" (the token is not valid)
    unknown key with an odd name: the issuer has no key "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk" (the token is not valid)
    key of another type: its key does not support ES256 (the token is not valid)
    key for another algorithm: its key does not support PS256 (the token is not valid)
    extension: its header has an unsupported field: `crit` (the token is not valid)
    note of a logout: its header has an unsupported field: `typ` is not that of an access token (the token is not valid)
    access token by name: ann
    too long: the token has more than 8192 bytes (the token is not valid)
    no token: it is not a signed JSON web token, or its algorithm is unknown (the token is not valid)
    nothing: it is not a signed JSON web token, or its algorithm is unknown (the token is not valid)
    claims that are none: it is not a signed JSON web token, or its algorithm is unknown (the token is not valid)
    a part too many: it is not a signed JSON web token, or its algorithm is unknown (the token is not valid)
    "#);
}

/// The bytes that everybody knows, as the secret of an HMAC: a verifier that takes a token's word for how it is
/// signed would accept that.
fn public_as_secret(key: &Key) -> EncodingKey {
    EncodingKey::from_secret(key.public().to_string().as_bytes())
}

#[tokio::test]
async fn without_a_name_a_key_must_be_the_only_one_that_fits() {
    let (rsa, ec, other) = (Key::rsa("rsa"), Key::ec("ec"), Key::ec("other"));
    let unnamed = ec.sign_as(&Header::new(Algorithm::ES256), &claims());
    let alone = open([rsa.public(), ec.public()]).await;
    let plain = open([ec.plain()]).await;
    let several = open([ec.public(), other.public()]).await;
    let none = open([rsa.public()]).await;
    let for_encryption = open([rsa.public(), {
        let mut key = ec.public();
        key["use"] = json!("enc");
        key
    }])
    .await;
    let mut lines = String::new();
    for (what, oidc) in [
        ("alone", alone),
        ("says nothing of itself", plain),
        ("several", several),
        ("none", none),
        ("for encryption", for_encryption),
    ] {
        lines += &judged(&oidc, [(what, unnamed.clone())]).await;
    }
    insta::assert_snapshot!(lines, @r#"
    alone: ann
    says nothing of itself: ann
    several: it has no `kid` and the issuer has several keys for ES256 (the token is not valid)
    none: the issuer has no key for ES256 (the token is not valid)
    for encryption: the issuer has no key for ES256 (the token is not valid)
    "#);
}

#[tokio::test]
async fn an_unverified_address_names_nobody() {
    let key = Key::ec("a");
    let mut oidc = open([key.public()]).await;
    oidc.settings.user_claim = "email".to_owned();
    let claims = |verified: Value| {
        let mut claims = with("email", "ann@example.org");
        claims["email_verified"] = verified;
        key.sign(&claims)
    };
    let rows = [
        ("verified", claims(json!(true))),
        ("who knows", claims(Value::Null)),
        ("not verified", claims(json!(false))),
        ("not verified, in words", claims(json!("false"))),
    ];
    insta::assert_snapshot!(judged(&oidc, rows).await, @r#"
    verified: ann@example.org
    who knows: ann@example.org
    not verified: the claim "email" is missing (the token is not valid)
    not verified, in words: the claim "email" is missing (the token is not valid)
    "#);
}

#[test]
fn tokens_of_an_issuer_have_three_parts() {
    let looks = ["eyJh.eyJz.c2ln", "eyJh.eyJz.", "sr_1_secret", "a.b", "a.b.c.d", "a.b.c d", ""];
    assert_eq!(looks.map(Oidc::looks_like_jwt), [true, true, false, false, false, false, false]);
}

#[tokio::test]
async fn clients_are_told_where_to_get_a_token() {
    let oidc = open([Key::ec("a").public()]).await;
    let told = protected_resource("https://rail.example/mcp", oidc.settings());
    insta::assert_snapshot!(format!("{told:#}"), @r#"
    {
      "authorization_servers": [
        "https://id.example"
      ],
      "bearer_methods_supported": [
        "header"
      ],
      "resource": "https://rail.example/mcp",
      "resource_name": "Steprail"
    }
    "#);
}
