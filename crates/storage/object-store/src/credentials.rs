//! Credentials, and their sources.
//!
//! # Promises
//! - Secrets are in no error, no log and no `Debug`, and their memory is wiped when it is freed. (Buffers of
//!   sockets, and the environment, aren't.)
//! - Credentials that expire are renewed [`RENEWAL`] before, by one request at a time; while that fails they
//!   are used as long as they are valid.
//! - Credentials that the store refuses are renewed, unless the source was asked less than 60 s ago: a store
//!   also refuses what valid credentials don't permit. While the renewal fails they are used as well.

use crate::connection::{Connection, Request};
use crate::endpoint::Endpoint;
use crate::http::Method;
use block::{Error, Payload, Result};
use runtime::Instant;
use runtime::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use zeroize::Zeroizing;

/// Time before their expiration at which credentials are renewed.
pub const RENEWAL: Duration = Duration::from_secs(300);
/// Longest file of credentials, in bytes.
pub const MAX_FILE: u64 = 1 << 20;
/// Address of the metadata service of EC2 instances.
pub const INSTANCE_METADATA: &str = "http://169.254.169.254";

/// Shortest time between a request for credentials and the next one because the store has refused them.
const MIN_INTERVAL: Duration = Duration::from_secs(60);
/// Time limit of all requests for new credentials together.
const RENEWAL_LIMIT: Duration = Duration::from_secs(10);
/// Time limit of one request to the metadata service, which is on the instance's own link.
const METADATA_LIMIT: Duration = Duration::from_secs(2);
/// Largest answer of the metadata service, in bytes.
const MAX_METADATA: usize = 16 << 10;
/// Lifetime of a session with the metadata service, in seconds: more than one renewal takes
/// ([`RENEWAL_LIMIT`]).
const SESSION_SECONDS: &str = "60";

/// An access key, with its secret.
#[derive(Clone)]
pub struct Credentials {
    pub(crate) key: String,
    pub(crate) secret: Zeroizing<String>,
    pub(crate) token: Option<Zeroizing<String>>,
    /// Time of their expiration since 1970; `None` for permanent ones.
    expires: Option<Duration>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Credentials").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Permanent credentials: an access key, its secret, and the token of a session if it has one.
    pub fn new(key: &str, secret: &str, token: Option<&str>) -> Self {
        let secret = Zeroizing::new(secret.to_owned());
        let token = token.map(|token| Zeroizing::new(token.to_owned()));
        Credentials { key: key.to_owned(), secret, token, expires: None }
    }

    /// Reads `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN` of the environment.
    fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let needed = |name: &str| {
            variable(name).map(Zeroizing::new).ok_or_else(|| {
                Error::not_found(format!(
                    "credentials from the environment: {name} isn't set; expected AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
                ))
            })
        };
        let (key, secret) = (needed("AWS_ACCESS_KEY_ID")?, needed("AWS_SECRET_ACCESS_KEY")?);
        let token = variable("AWS_SESSION_TOKEN").map(Zeroizing::new);
        Ok(Credentials::new(&key, &secret, token.as_deref().map(String::as_str)))
    }

    /// Parses a file in the form of `~/.aws/credentials`.
    fn from_file(text: &str, path: &Path, profile: &str) -> Result<Self> {
        let mut found: [Option<&str>; 3] = [None; 3];
        let names = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"];
        let (mut is_inside, mut is_there) = (false, false);
        for line in text.lines().map(str::trim) {
            if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                is_inside = section.trim() == profile;
                is_there |= is_inside;
            } else if let Some((name, value)) = line.split_once('=').filter(|_| is_inside)
                && let Some(place) = names.iter().position(|known| *known == name.trim())
            {
                found[place] = Some(value.trim()).filter(|value| !value.is_empty());
            }
        }
        let missing = |what: &str| {
            Error::not_found(format!(
                "credentials file \"{}\": profile \"{profile}\": {what}",
                path.display()
            ))
        };
        match found {
            _ if !is_there => Err(missing("it doesn't exist; expected a section with this name")),
            [Some(key), Some(secret), token] => Ok(Credentials::new(key, secret, token)),
            _ => Err(missing("expected aws_access_key_id and aws_secret_access_key")),
        }
    }

    /// Parses the answer of the metadata service.
    fn from_metadata(text: &str) -> Option<Self> {
        let answer: serde_json::Value = serde_json::from_str(text).ok()?;
        let field = |name: &str| answer.get(name).and_then(serde_json::Value::as_str);
        let expires: jiff::Timestamp = field("Expiration")?.parse().ok()?;
        let expires = Duration::from_secs(u64::try_from(expires.as_second()).ok()?);
        let new = Credentials::new(field("AccessKeyId")?, field("SecretAccessKey")?, field("Token"));
        Some(Credentials { expires: Some(expires), ..new })
    }

    fn is_valid_for(&self, time: Duration) -> bool {
        self.expires.is_none_or(|expires| expires > runtime::wall_clock() + time)
    }
}

/// Checks the parsers on any text, for fuzzing: no panic, and errors that don't show it.
///
/// # Panics
/// If a check fails.
pub(crate) fn check_any_text(text: &str) {
    let _ = Credentials::from_metadata(text);
    for profile in ["default", "other"] {
        if let Err(error) = Credentials::from_file(text, Path::new("file"), profile) {
            assert!(error.detail().len() < 200, "{error}");
        }
    }
}

/// Source of credentials.
#[derive(Debug, Clone)]
pub enum CredentialSource {
    /// Permanent credentials of the caller.
    Given(Credentials),
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`.
    Environment,
    /// A file in the form of `~/.aws/credentials`.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Section of the file, such as `default`.
        profile: String,
    },
    /// The role of an EC2 instance, by its metadata service in version 2.
    Instance {
        /// URL of the service: [`INSTANCE_METADATA`], or another one in tests.
        endpoint: String,
    },
}

/// Credentials in use.
struct Current {
    credentials: Rc<Credentials>,
    /// Time at which the source was asked last.
    asked: Instant,
    /// Whether the store has refused them since.
    is_refused: bool,
}

/// Credentials that are renewed.
pub(crate) struct Provider {
    source: CredentialSource,
    current: RefCell<Option<Current>>,
    renewing: Rc<Semaphore>,
}

impl Provider {
    pub fn new(source: CredentialSource) -> Self {
        Provider { source, current: RefCell::new(None), renewing: Semaphore::new(1) }
    }

    /// Returns valid credentials; asks the source if there are none, they expire soon, or the store has
    /// refused them.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the source has none; errors of the source; [`Error::TimedOut`].
    pub async fn get(&self) -> Result<Rc<Credentials>> {
        let current = || {
            let current = self.current.borrow();
            let current = current.as_ref().filter(|current| !current.is_refused)?;
            current.credentials.is_valid_for(RENEWAL).then(|| current.credentials.clone())
        };
        if let Some(current) = current() {
            return Ok(current);
        }
        let renewed = runtime::timeout(RENEWAL_LIMIT, async {
            let _permit = self.renewing.acquire(1).await;
            // Another task may have renewed them meanwhile.
            if let Some(current) = current() {
                return Ok(current);
            }
            let new = Rc::new(self.ask().await?);
            let current = Current { credentials: new.clone(), asked: runtime::now(), is_refused: false };
            self.current.replace(Some(current));
            Ok(new)
        })
        .await
        .unwrap_or_else(|_| {
            Err(Error::timed_out(format!("renewing credentials: not within {RENEWAL_LIMIT:?}")))
        });
        match (renewed, &mut *self.current.borrow_mut()) {
            (Err(_), Some(current)) if current.credentials.is_valid_for(Duration::ZERO) => {
                (current.asked, current.is_refused) = (runtime::now(), false);
                Ok(current.credentials.clone())
            }
            (renewed, _) => renewed,
        }
    }

    /// Marks credentials, which the store has refused, as to be renewed. Returns whether the next request may
    /// have others.
    pub fn refuse(&self, used: &Rc<Credentials>) -> bool {
        let mut current = self.current.borrow_mut();
        let Some(current) = current.as_mut().filter(|current| Rc::ptr_eq(&current.credentials, used)) else {
            // Another request has renewed them.
            return true;
        };
        current.is_refused |= current.asked.elapsed() >= MIN_INTERVAL;
        current.is_refused
    }

    async fn ask(&self) -> Result<Credentials> {
        match &self.source {
            CredentialSource::Given(credentials) => Ok(credentials.clone()),
            CredentialSource::Environment => Credentials::from_environment(|name| std::env::var(name).ok()),
            CredentialSource::File { path, profile } => {
                let text = read(path.clone()).await?;
                Credentials::from_file(&text, path, profile)
            }
            CredentialSource::Instance { endpoint } => {
                let asked = Box::pin(ask_instance(endpoint)).await;
                asked.map_err(|error| {
                    error.in_context(format!("credentials of the instance, from {endpoint}"))
                })
            }
        }
    }
}

/// Reads a file of credentials on another thread.
async fn read(path: PathBuf) -> Result<Zeroizing<String>> {
    let shown = format!("credentials file \"{}\"", path.display());
    let read = runtime::try_blocking(move || {
        let length = std::fs::metadata(&path)?.len();
        if length > MAX_FILE {
            return Ok(Err(length));
        }
        std::fs::read_to_string(&path).map(|text| Ok(Zeroizing::new(text)))
    });
    match read.await? {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(length)) => {
            Err(Error::invalid(format!("{shown}: {length} bytes; expected at most {MAX_FILE}")))
        }
        Err(error) => Err(Error::from_io(&error, &shown)),
    }
}

/// Asks the metadata service for the credentials of the instance's role: a session, the name of the role, and
/// its credentials (IMDSv2).
async fn ask_instance(endpoint: &str) -> Result<Credentials> {
    const ROLES: &str = "/latest/meta-data/iam/security-credentials/";
    let server = Endpoint::parse(endpoint)?;
    let addresses = server.addresses(METADATA_LIMIT).await?;
    let asking = |method, target: String, headers: Vec<(&'static str, String)>| {
        let (addresses, host) = (addresses.clone(), server.host.clone());
        async move {
            // A connection for each: the service may close them.
            let mut connection = Connection::open(&addresses, &host, None, METADATA_LIMIT).await?;
            let request = Request {
                method,
                target: &target,
                headers: &headers,
                body: Payload::new(),
                max_body: MAX_METADATA,
            };
            let first_byte = Cell::new(None);
            let exchange = connection.exchange(&request, METADATA_LIMIT, &first_byte);
            let (response, _) = runtime::timeout(METADATA_LIMIT, exchange).await??;
            match response.head.status {
                200 => Ok(Zeroizing::new(response.text())),
                status => Err(Error::not_found(format!("{target}: status {status}; expected 200"))),
            }
        }
    };
    let seconds = ("x-aws-ec2-metadata-token-ttl-seconds", SESSION_SECONDS.to_owned());
    let session = asking(Method::Put, "/latest/api/token".to_owned(), vec![seconds]).await?;
    let session = || vec![("x-aws-ec2-metadata-token", session.trim().to_owned())];
    let roles = asking(Method::Get, ROLES.to_owned(), session()).await?;
    let role = roles.lines().next().unwrap_or_default().trim();
    if role.is_empty() || role.bytes().any(|byte| !byte.is_ascii_graphic()) {
        return Err(Error::not_found(format!("{ROLES}: no role; expected an instance with a role")));
    }
    let text = asking(Method::Get, format!("{ROLES}{role}"), session()).await?;
    Credentials::from_metadata(&text).ok_or_else(|| {
        Error::protocol(format!(
            "{ROLES}{role}: expected AccessKeyId, SecretAccessKey, Token and Expiration in JSON"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(credentials: &Credentials) -> (&str, &str, Option<&str>) {
        (&credentials.key, &credentials.secret, credentials.token.as_ref().map(|token| &***token))
    }

    #[test]
    fn the_environment_has_key_secret_and_token() {
        let of = |pairs: &[(&str, &str)]| {
            let pairs: Vec<(String, String)> =
                pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            Credentials::from_environment(move |name| {
                pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
            })
        };
        let key = ("AWS_ACCESS_KEY_ID", "key");
        let all = of(&[key, ("AWS_SECRET_ACCESS_KEY", "hidden"), ("AWS_SESSION_TOKEN", "session")]).unwrap();
        assert_eq!(parts(&all), ("key", "hidden", Some("session")));
        assert_eq!(format!("{all:?}"), "Credentials { key: \"key\", .. }");
        let error = of(&[key, ("AWS_SECRET_ACCESS_KEY", " ")]).unwrap_err().to_string();
        assert!(error.contains("AWS_SECRET_ACCESS_KEY isn't set"), "{error}");
    }

    #[test]
    fn a_file_has_profiles() {
        let text = "# comment\n[default]\naws_access_key_id = a\naws_secret_access_key=s=1/+\n\n\
                    [ other ]\naws_secret_access_key = hidden\n";
        let of = |profile| Credentials::from_file(text, Path::new("/c"), profile);
        assert_eq!(parts(&of("default").unwrap()), ("a", "s=1/+", None));
        for (profile, said) in [("other", "expected aws_access_key_id"), ("missing", "it doesn't exist")] {
            let error = of(profile).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("\"/c\"") && !error.contains("hidden"), "{error}");
        }
    }

    #[test]
    fn answers_of_the_metadata_service_have_an_end() {
        let text = r#"{"Code": "Success", "AccessKeyId": "a", "SecretAccessKey": "s", "Token": "t",
                      "Expiration": "2027-01-15T08:00:00Z"}"#;
        let credentials = Credentials::from_metadata(text).unwrap();
        assert_eq!(parts(&credentials), ("a", "s", Some("t")));
        assert_eq!(credentials.expires, Some(Duration::from_secs(1_800_000_000)));
        assert!(Credentials::from_metadata(r#"{"AccessKeyId": "a", "SecretAccessKey": "s"}"#).is_none());
        assert!(Credentials::from_metadata("<html>").is_none());
    }
}
