//! E-mail over SMTP, with STARTTLS or TLS. The connection is always encrypted, and the certificate is verified.
//!
//! The operator sets the host of the server, so its address is not restricted. A mail that was sent cannot be withdrawn.

use std::time::{Duration, SystemTime};

use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message as Mail};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, Tls, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::{AsyncSmtpTransport, AsyncTransport, Tokio1Executor};
use serde::{Deserialize, Serialize};
use steprail_core::display;

use super::delivery_key;
use crate::channel::{BoxFuture, Channel, Delivery, Receipt, SendError};
use crate::config::{ConfigError, Resolver};
use crate::limits;
use crate::message::Urgency;
use crate::render::TextForm;
use crate::secret::{Secret, SecretRef};
use crate::template::Templates;

/// The configuration of a channel of type `email`. Addresses are e-mail addresses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmailConfig<S = SecretRef> {
    /// The host of the SMTP server.
    pub host: String,
    /// The port: 587 with STARTTLS and 465 with TLS by default.
    #[serde(default)]
    pub port: Option<u16>,
    /// How the connection is encrypted.
    #[serde(default)]
    pub tls: EmailTls,
    /// The sender.
    pub from: String,
    /// The user name at the server.
    #[serde(default)]
    pub user: Option<String>,
    /// The password at the server.
    #[serde(default = "Option::default")]
    pub password: Option<S>,
    /// Template of the subject.
    #[serde(default)]
    pub title: Option<String>,
    /// Template of the text.
    #[serde(default)]
    pub body: Option<String>,
}

/// How a connection to an SMTP server is encrypted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmailTls {
    /// After the command STARTTLS. A server without it is refused.
    #[default]
    Starttls,
    /// From the start.
    Tls,
}

impl EmailConfig<SecretRef> {
    pub(crate) fn resolve<E>(self, secret: Resolver<'_, E>) -> Result<EmailConfig<Secret>, E> {
        let Self { host, port, tls, from, user, password, title, body } = self;
        let password = password.map(secret).transpose()?;
        Ok(EmailConfig { host, port, tls, from, user, password, title, body })
    }
}

/// The channel.
pub struct Email {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    host: String,
    from: Mailbox,
    password: Option<Secret>,
    timeout: Duration,
    templates: Templates,
}

impl Email {
    /// Opens the channel. `certificates` are trusted in addition to those of the system. A mail is sent within `timeout`.
    pub fn open(
        config: &EmailConfig<Secret>,
        certificates: &[String],
        timeout: Duration,
    ) -> Result<Self, ConfigError> {
        let from: Mailbox = config.from.parse().map_err(|_| {
            ConfigError::new("`from` is not an e-mail address")
                .hint("write `Steprail <steprail@example.org>`")
        })?;
        let tls = tls_parameters(&config.host, certificates)?;
        let (tls, port) = match config.tls {
            EmailTls::Starttls => (Tls::Required(tls), 587),
            EmailTls::Tls => (Tls::Wrapper(tls), 465),
        };
        let mut builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(&config.host)
            .port(config.port.unwrap_or(port))
            .tls(tls)
            .hello_name(ClientId::Domain(from.email.domain().to_owned()))
            .timeout(Some(timeout));
        match (&config.user, &config.password) {
            (Some(user), Some(password)) => {
                builder = builder.credentials(Credentials::new(user.clone(), password.reveal().to_owned()));
            }
            (None, None) => {}
            _ => return Err(ConfigError::new("`user` and `password` belong together")),
        }
        Ok(Self {
            transport: builder.build(),
            host: config.host.clone(),
            from,
            password: config.password.clone(),
            timeout,
            templates: Templates::compile(config.title.as_deref(), config.body.as_deref())?,
        })
    }

    fn mail(&self, delivery: Delivery<'_>) -> Result<Mail, SendError> {
        let message = delivery.message;
        let to: Mailbox = delivery.address.parse().map_err(|_| {
            SendError::permanent(format!("`{}` is not an e-mail address", display::line(delivery.address)))
        })?;
        let since_epoch = Duration::from_millis(u64::try_from(delivery.now).unwrap_or(0));
        let form = TextForm { chars: limits::BODY_CHARS, link: true };
        let id = format!("<{}@{}>", delivery_key(message, delivery.address), self.from.email.domain());
        let mut builder = Mail::builder()
            .from(self.from.clone())
            .to(to)
            .subject(self.templates.title(message))
            .date(SystemTime::UNIX_EPOCH + since_epoch)
            .message_id(Some(id))
            // Programs do not answer such mails (RFC 3834).
            .raw_header(HeaderValue::new(
                HeaderName::new_from_ascii_str("Auto-Submitted"),
                "auto-generated".to_owned(),
            ));
        if message.urgency >= Urgency::High {
            let name = HeaderName::new_from_ascii_str("Importance");
            builder = builder.raw_header(HeaderValue::new(name, "high".to_owned()));
        }
        builder
            .header(ContentType::TEXT_PLAIN)
            .body(self.templates.text(message, form))
            .map_err(|error| SendError::permanent(format!("cannot write the mail: {error}")))
    }

    fn error(&self, error: &lettre::transport::smtp::Error) -> SendError {
        let mut reason = format!("{}: {}", self.host, display::line(&error.to_string()));
        if let Some(password) = &self.password {
            reason = reason.replace(password.reveal(), "‹secret›");
        }
        if error.is_permanent() { SendError::permanent(reason) } else { SendError::transient(reason) }
    }
}

fn tls_parameters(host: &str, certificates: &[String]) -> Result<TlsParameters, ConfigError> {
    let mut builder = TlsParameters::builder(host.to_owned());
    for pem in certificates {
        let certificate = Certificate::from_pem(pem.as_bytes());
        builder = builder.add_root_certificate(
            certificate.map_err(|_| ConfigError::new("a certificate is not valid PEM"))?,
        );
    }
    builder.build_rustls().map_err(|error| ConfigError::new(format!("TLS: {error}")))
}

impl Channel for Email {
    fn send<'f>(&'f self, delivery: Delivery<'f>) -> BoxFuture<'f, Result<Receipt, SendError>> {
        Box::pin(async move {
            let mail = self.mail(delivery)?;
            // The timeout of the transport applies to each command.
            match tokio::time::timeout(self.timeout, self.transport.send(mail)).await {
                Ok(Ok(_)) => Ok(Receipt::default()),
                Ok(Err(error)) => Err(self.error(&error)),
                Err(_) => {
                    let secs = self.timeout.as_secs_f64();
                    Err(SendError::transient(format!(
                        "{} did not accept the mail within {secs} s",
                        self.host
                    )))
                }
            }
        })
    }
}
