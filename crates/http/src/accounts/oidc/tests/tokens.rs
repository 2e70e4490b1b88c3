//! Validation of single tokens: the identity, or the error.

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use super::super::{Oidc, protected_resource};
use super::issuer::{Key, NOW, claims, open, with, without};

/// Validates tokens; one line of output per token.
async fn validated(oidc: &Oidc, tokens: impl IntoIterator<Item = (&str, String)>) -> String {
    let mut lines = String::new();
    for (name, token) in tokens {
        lines += &match oidc.validate(&token).await {
            Ok(identity) => format!("{name}: {}\n", identity.user),
            Err(error) => format!("{name}: {error} ({})\n", error.for_client()),
        };
    }
    lines
}

#[tokio::test]
async fn identity_comes_from_the_claims() {
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
async fn display_claims_are_optional() {
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
        let (unsigned, _) = other.rsplit_once('.').expect("a token");
        let (_, signature) = good.rsplit_once('.').expect("a token");
        let forged = oidc.validate(&format!("{unsigned}.{signature}")).await.expect_err("a forged token");
        assert_eq!(forged.to_string(), "invalid signature", "{:?}", key.algorithm);
    }
}

#[tokio::test]
async fn claims_are_validated() {
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
        ("expiry as text", with("exp", "tomorrow")),
        ("expiry too late", with("exp", 1e300)),
        ("negative expiry", with("exp", -1)),
        ("not yet valid", with("nbf", NOW + 61)),
        ("not yet valid, within the leeway", with("nbf", NOW + 60)),
        ("start as text", with("nbf", "now")),
        ("issued in the future", with("iat", NOW + 61)),
        ("issued in the future, within the leeway", with("iat", NOW + 60)),
        ("no user", without(claims(), "sub")),
        ("empty user", with("sub", "")),
        ("blank user", with("sub", " ")),
        ("user as a number", with("sub", 7)),
        ("long user", with("sub", "ä".repeat(256))),
        ("user too long", with("sub", "ä".repeat(257))),
        ("user with a line break", with("sub", "ann\nroot")),
        ("groups as text", with("groups", "ops")),
        ("group as a number", with("groups", json!(["ops", 7]))),
        ("empty group", with("groups", json!([""]))),
        ("too many groups", with("groups", json!(many))),
    ];
    let lines = validated(&oidc, rows.map(|(what, claims)| (what, key.sign(&claims)))).await;
    insta::assert_snapshot!(lines.replace(&"ä".repeat(256), "ä…"), @r#"
    wrong issuer: wrong issuer (the token is not valid)
    list of issuers: wrong issuer (the token is not valid)
    no issuer: wrong issuer (the token is not valid)
    wrong audience: wrong audience (the token is not valid)
    wrong audiences: wrong audience (the token is not valid)
    no audience: wrong audience (the token is not valid)
    expired, just: the token has expired (the token has expired)
    expired, within the leeway: ann
    no expiry: claim "exp" is missing (the token is not valid)
    expiry as text: claim "exp" is not a valid time (the token is not valid)
    expiry too late: claim "exp" is not a valid time (the token is not valid)
    negative expiry: claim "exp" is not a valid time (the token is not valid)
    not yet valid: the token is not valid yet (the token is not valid)
    not yet valid, within the leeway: ann
    start as text: claim "nbf" is not a valid time (the token is not valid)
    issued in the future: the token is not valid yet (the token is not valid)
    issued in the future, within the leeway: ann
    no user: claim "sub" is missing (the token is not valid)
    empty user: claim "sub" is empty (the token is not valid)
    blank user: claim "sub" is empty (the token is not valid)
    user as a number: claim "sub" is not a string (the token is not valid)
    long user: ä…
    user too long: claim "sub" is too long (the token is not valid)
    user with a line break: claim "sub" contains control characters (the token is not valid)
    groups as text: claim "groups" is not a list (the token is not valid)
    group as a number: claim "groups" has an invalid entry (the token is not valid)
    empty group: claim "groups" has an invalid entry (the token is not valid)
    too many groups: claim "groups" has too many entries (the token is not valid)
    "#);
}

#[tokio::test]
async fn signatures_are_validated() {
    let (rsa, ec, other_issuer) = (Key::rsa("rsa"), Key::ec("ec"), Key::ec("ec"));
    let secret = EncodingKey::from_secret(b"a secret that was published");
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
    let embedded = Jwk::from_encoding_key(&other_issuer.private, Algorithm::ES256).expect("a key");
    let as_rsa = Header { kid: Some("rsa".to_owned()), ..ec.header() };
    let critical = Header { crit: Some(vec!["b64".to_owned()]), ..ec.header() };
    let logout = Header { typ: Some("logout+jwt".to_owned()), ..ec.header() };
    let access = Header { typ: Some("at+JWT".to_owned()), ..ec.header() };
    let long_kid = Header { kid: Some(format!("{}\n2027 root", "k".repeat(99))), ..ec.header() };

    let lines = validated(
        &oidc,
        [
            // {"alg":"none"}
            ("no signature", format!("eyJhbGciOiJub25lIn0.{payload}.")),
            ("public key as secret", hmac("rsa", &public_as_secret(&rsa))),
            ("published secret", hmac("secret", &secret)),
            ("key of another issuer", other_issuer.sign(&claims())),
            (
                "key in the token",
                other_issuer.sign_as(&Header { jwk: Some(embedded), ..ec.header() }, &claims()),
            ),
            ("unknown key", Key::ec("new").sign(&claims())),
            ("unknown key with a long id", ec.sign_as(&long_kid, &claims())),
            ("key of another type", ec.sign_as(&as_rsa, &claims())),
            ("key for another algorithm", rsa.using(Algorithm::PS256).sign(&claims())),
            ("critical extension", ec.sign_as(&critical, &claims())),
            ("logout token", ec.sign_as(&logout, &claims())),
            ("access token by type", ec.sign_as(&access, &claims())),
            ("too long", ec.sign(&with("padding", "x".repeat(8 * 1024)))),
            ("API token", "sr_1_secret".to_owned()),
            ("empty token", String::new()),
            ("claims that are not an object", ec.sign(&json!("ann"))),
            ("four parts", format!("{good}.{payload}")),
        ],
    )
    .await;
    insta::assert_snapshot!(lines, @r#"
    no signature: the token is not a signed JWT, or its algorithm is unknown (the token is not valid)
    public key as secret: signature algorithm HS256 is not accepted (the token is not valid)
    published secret: signature algorithm HS256 is not accepted (the token is not valid)
    key of another issuer: invalid signature (the token is not valid)
    key in the token: invalid signature (the token is not valid)
    unknown key: the issuer has no key "new" (the token is not valid)
    unknown key with a long id: the issuer has no key "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk" (the token is not valid)
    key of another type: the key of the token does not support ES256 (the token is not valid)
    key for another algorithm: the key of the token does not support PS256 (the token is not valid)
    critical extension: unsupported header field `crit` (the token is not valid)
    logout token: unsupported header field `typ`: not the type of an access token (the token is not valid)
    access token by type: ann
    too long: the token has more than 8192 bytes (the token is not valid)
    API token: the token is not a signed JWT, or its algorithm is unknown (the token is not valid)
    empty token: the token is not a signed JWT, or its algorithm is unknown (the token is not valid)
    claims that are not an object: the token is not a signed JWT, or its algorithm is unknown (the token is not valid)
    four parts: the token is not a signed JWT, or its algorithm is unknown (the token is not valid)
    "#);
}

/// The public key as an HMAC secret (algorithm confusion): a verifier that trusts the token's `alg` accepts it.
fn public_as_secret(key: &Key) -> EncodingKey {
    EncodingKey::from_secret(key.public().to_string().as_bytes())
}

#[tokio::test]
async fn token_without_kid_needs_a_unique_key() {
    let (rsa, ec, other) = (Key::rsa("rsa"), Key::ec("ec"), Key::ec("other"));
    let unnamed = ec.sign_as(&Header::new(Algorithm::ES256), &claims());
    let single = open([rsa.public(), ec.public()]).await;
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
    for (name, oidc) in [
        ("single key", single),
        ("key without metadata", plain),
        ("several keys", several),
        ("no key", none),
        ("key for encryption", for_encryption),
    ] {
        lines += &validated(&oidc, [(name, unnamed.clone())]).await;
    }
    insta::assert_snapshot!(lines, @r#"
    single key: ann
    key without metadata: ann
    several keys: the token has no `kid`, and the issuer has several keys for ES256 (the token is not valid)
    no key: the issuer has no key for ES256 (the token is not valid)
    key for encryption: the issuer has no key for ES256 (the token is not valid)
    "#);
}

#[tokio::test]
async fn unverified_email_does_not_identify_a_user() {
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
        ("unspecified", claims(Value::Null)),
        ("not verified", claims(json!(false))),
        ("not verified, as text", claims(json!("false"))),
    ];
    insta::assert_snapshot!(validated(&oidc, rows).await, @r#"
    verified: ann@example.org
    unspecified: ann@example.org
    not verified: claim "email" is missing (the token is not valid)
    not verified, as text: claim "email" is missing (the token is not valid)
    "#);
}

#[test]
fn jwts_have_three_parts() {
    let tokens = ["eyJh.eyJz.c2ln", "eyJh.eyJz.", "sr_1_secret", "a.b", "a.b.c.d", "a.b.c d", ""];
    assert_eq!(tokens.map(Oidc::looks_like_jwt), [true, true, false, false, false, false, false]);
}

#[tokio::test]
async fn protected_resource_metadata_names_the_issuer() {
    let oidc = open([Key::ec("a").public()]).await;
    let metadata = protected_resource("https://rail.example/mcp", oidc.settings());
    insta::assert_snapshot!(format!("{metadata:#}"), @r#"
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
