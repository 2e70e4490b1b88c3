//! E-mail to a mail server with STARTTLS and with TLS.

use std::path::Path;
use std::process::{Command, Stdio};

use steprail_notify::{Receipt, Retry, SendError};

use crate::support::{Certificates, Counterpart, approval, open, send, text};

/// The Python with the mail server. Installs it if necessary.
fn python() -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/clients");
    let output = Command::new(script).stderr(Stdio::inherit()).output().expect("the script");
    assert!(output.status.success(), "cannot install the mail server");
    format!("{}/python-aiosmtpd", String::from_utf8(output.stdout).expect("text").trim())
}

fn server(mode: &str, certificates: &Certificates) -> Counterpart {
    let [leaf, key] = certificates.files();
    Counterpart::start(&python(), "smtp_server.py", &[mode, &leaf, &key])
}

fn mail(
    server: &Counterpart,
    tls: &str,
    trusted: &Certificates,
    password: &str,
    to: &str,
) -> Result<Receipt, SendError> {
    let config = format!(
        "timeout = {}.0\ncertificates = [{:?}]\n[channels.c]\ntype = \"email\"\nhost = \"localhost\"\nport = {}\ntls = {tls:?}\n\
         from = \"Steprail <steprail@example.org>\"\nuser = \"ann\"\npassword = {{ secret = {password:?} }}",
        if to.starts_with("hang") { 1 } else { 60 },
        trusted.authority,
        server.port
    );
    send(&*open(&config).expect("channels")["c"], &approval(), to)
}

#[test]
fn mails_are_encrypted_and_authenticated() {
    let certificates = Certificates::new();
    for mode in ["starttls", "tls"] {
        let mut server = server(mode, &certificates);
        mail(&server, mode, &certificates, "open sesame", "Lea <lea@example.org>").unwrap();
        let received = server.next();
        assert_eq!(
            (&received["encrypted"], &received["authenticated"]),
            (&true.into(), &true.into()),
            "{received}"
        );
        assert_eq!(
            (&received["from"], &received["to"][0]),
            (&"steprail@example.org".into(), &"lea@example.org".into())
        );
        // The mail is the same in both modes.
        insta::assert_snapshot!("mail", text(&received["content"]).replace("\r\n", "\n"));
    }
}

#[test]
fn failures_of_mails() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let starttls = server("starttls", &certificates);
    let plain = server("plain", &certificates);
    let good = "open sesame";
    let mut shown = String::new();
    for (name, result) in [
        ("unknown mailbox", mail(&starttls, "starttls", &certificates, good, "nobody@example.org")),
        ("busy mailbox", mail(&starttls, "starttls", &certificates, good, "later@example.org")),
        ("hanging server", mail(&starttls, "starttls", &certificates, good, "hang@example.org")),
        ("wrong password", mail(&starttls, "starttls", &certificates, "PASSWORD", "lea@example.org")),
        ("unknown authority", mail(&starttls, "starttls", &others, good, "lea@example.org")),
        ("server without STARTTLS", mail(&plain, "starttls", &certificates, good, "lea@example.org")),
        ("no address", mail(&starttls, "starttls", &certificates, good, "lea\r\nBcc: x@example.org")),
    ] {
        let error = result.unwrap_err();
        let retry = if error.retry == Retry::Never { "never" } else { "later" };
        assert!(!error.reason.contains("PASSWORD"), "{error}");
        shown += &format!("{name}: {error} → retry {retry}\n");
    }
    insta::assert_snapshot!(shown);
    assert_eq!((starttls.stop(), plain.stop()), (0, 0));
}
