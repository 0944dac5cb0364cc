//! What the stores of Google's services share: channels, credentials, and requests with credentials.
//!
//! Promises: a connection to an emulator (named by a variable such as `BIGTABLE_EMULATOR_HOST`) is unencrypted and
//! carries no credential. Every other connection uses TLS and the ordinary credentials, in this order:
//! `GOOGLE_APPLICATION_CREDENTIALS`, the result of `gcloud auth application-default login`, or the metadata server.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use gcp_auth::{Token, TokenProvider};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request};

use crate::error::StoreError;
use crate::stores::grpc::failure::{Failure, answer};
use crate::stores::grpc::request_max;
use crate::stores::{GRPC_CONNECT, address};

const SCOPES: [&str; 1] = ["https://www.googleapis.com/auth/cloud-platform"];

/// The source of credentials, for messages.
pub(super) const DENIED_HINT: &str = "set GOOGLE_APPLICATION_CREDENTIALS to the key file of an account that may read and \
    write there, or run `gcloud auth application-default login`";

/// A service: its address and its credentials.
pub(super) struct Service {
    endpoint: Endpoint,
    /// Whether it is an emulator, which uses no credentials.
    pub(super) is_emulator: bool,
    /// Fetched by one connection, and used by all until it expires.
    token: Mutex<Option<Arc<Token>>>,
}

impl Service {
    /// The emulator that the address (`?emulator=HOST:PORT`) or a variable names, or the service itself.
    pub(super) fn find(url: &str, variable: &str, host: &'static str) -> Result<Service, StoreError> {
        if let Some((_, question)) = url.split_once('?') {
            return match question.split_once('=') {
                Some(("emulator", emulator)) => Service::emulator(url, "`emulator`", emulator),
                _ => Err(address(url, "after `?` only `emulator=HOST:PORT` is known")),
            };
        }
        match std::env::var(variable).ok().filter(|value| !value.is_empty()) {
            Some(emulator) => Service::emulator(url, variable, &emulator),
            None => Service::real(url, host),
        }
    }

    fn emulator(url: &str, variable: &str, emulator: &str) -> Result<Service, StoreError> {
        let host = emulator.strip_prefix("http://").unwrap_or(emulator);
        let endpoint = Endpoint::from_shared(format!("http://{host}"));
        let endpoint = endpoint
            .ok()
            .filter(|endpoint| endpoint.uri().port().is_some())
            .ok_or_else(|| address(url, &format!("{variable} is `{emulator}`, which is no HOST:PORT")))?;
        Ok(Service { endpoint: limited(endpoint), is_emulator: true, token: Mutex::default() })
    }

    fn real(url: &str, host: &'static str) -> Result<Service, StoreError> {
        let endpoint = Endpoint::from_static(host).tls_config(ClientTlsConfig::new().with_native_roots());
        let endpoint = endpoint.map_err(|error| address(url, &format!("TLS cannot be used here: {error}")))?;
        Ok(Service { endpoint: limited(endpoint), is_emulator: false, token: Mutex::default() })
    }

    /// A channel, which connects at its first use.
    pub(super) fn channel(&self) -> Channel {
        self.endpoint.connect_lazy()
    }

    fn known(&self) -> Option<Arc<Token>> {
        // A poisoned lock holds either a complete token or none.
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        token.as_ref().filter(|token| !token.has_expired()).cloned()
    }

    fn learn(&self, token: &Arc<Token>) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(token));
    }
}

fn limited(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(GRPC_CONNECT.time())
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(16 << 20)
        .tcp_nodelay(true)
}

/// What one connection needs to make requests. Connections do not share a token provider, because the provider's own
/// connections belong to an event loop.
#[derive(Clone)]
pub(super) struct Caller {
    service: Arc<Service>,
    provider: Option<Arc<dyn TokenProvider>>,
    /// Tells the service's front end which resource is meant.
    route: MetadataValue<Ascii>,
}

impl Caller {
    /// For requests about what `route` names, such as `table_name=projects/p/instances/i/tables/t`.
    pub(super) fn new(service: Arc<Service>, route: &str) -> Caller {
        let route = MetadataValue::try_from(encoded(route)).unwrap_or_else(|_| MetadataValue::from_static(""));
        Caller { service, provider: None, route }
    }

    /// A request with the required headers.
    pub(super) async fn request<T>(&mut self, message: T) -> Result<Request<T>, Failure> {
        let mut request = Request::new(message);
        // The service gives up at the same time as the caller.
        request.set_timeout(request_max());
        request.metadata_mut().insert("x-goog-request-params", self.route.clone());
        if !self.service.is_emulator {
            let token = self.token().await?;
            let value = MetadataValue::try_from(format!("Bearer {}", token.as_str()));
            let value = value.map_err(|_| denied("the token has bytes that no header takes".to_owned()))?;
            request.metadata_mut().insert("authorization", value);
        }
        Ok(request)
    }

    async fn token(&mut self) -> Result<Arc<Token>, Failure> {
        if let Some(token) = self.service.known() {
            return Ok(token);
        }
        let provider = match &self.provider {
            Some(provider) => Arc::clone(provider),
            None => {
                let provider = answer(gcp_auth::provider()).await.map_err(no_token)?;
                Arc::clone(self.provider.insert(provider))
            }
        };
        let token = answer(provider.token(&SCOPES)).await.map_err(no_token)?;
        self.service.learn(&token);
        Ok(token)
    }
}

impl From<gcp_auth::Error> for Failure {
    fn from(error: gcp_auth::Error) -> Failure {
        let mut reason = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            reason = format!("{reason}: {error}");
            source = error.source();
        }
        match error {
            // The token server could not be reached.
            gcp_auth::Error::Http(..) => Failure::NotSent(reason),
            _ => denied(reason),
        }
    }
}

/// Without a token, nothing was sent to the store.
fn no_token(failure: Failure) -> Failure {
    match failure {
        Failure::Late => denied(format!("no credentials were found within {} ms", request_max().as_millis())),
        other => other,
    }
}

fn denied(reason: String) -> Failure {
    Failure::Answered(Code::Unauthenticated, reason)
}

/// Percent-encodes everything but letters, digits and `=&-_.~`, as the routing header requires.
fn encoded(route: &str) -> String {
    let mut encoded = String::with_capacity(route.len() + 16);
    for byte in route.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'=' | b'&' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// The parts of an address between slashes. It is an error if their number differs from that of the names, or if one is
/// empty or has characters that no name of Google's has.
pub(super) fn parts<const COUNT: usize>(
    url: &str,
    rest: &str,
    names: [&str; COUNT],
) -> Result<[String; COUNT], StoreError> {
    let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
    let parts: Vec<&str> = rest.trim_end_matches('/').split('/').collect();
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    if parts.len() != COUNT || parts.iter().any(|part| part.is_empty() || !part.bytes().all(allowed)) {
        return Err(address(url, &format!("after `//` it needs {}", names.join("/"))));
    }
    Ok(std::array::from_fn(|part| parts[part].to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulator_is_a_host_and_a_port() {
        assert!(Service::emulator("x://", "X_EMULATOR_HOST", "localhost:9000").unwrap().is_emulator);
        assert!(Service::emulator("x://", "X_EMULATOR_HOST", "http://localhost:9000").unwrap().is_emulator);
        let error = Service::emulator("x://", "X_EMULATOR_HOST", "localhost").err().unwrap();
        assert!(error.to_string().contains("X_EMULATOR_HOST is `localhost`"), "{error}");
    }

    #[test]
    fn an_address_has_as_many_parts_as_it_must() {
        let names = ["PROJECT", "INSTANCE"];
        assert_eq!(parts("u", "p/i/", names).unwrap(), ["p", "i"]);
        for wrong in ["", "p", "p/i/t", "p//", "p/i j", "p/ü"] {
            assert!(parts("u", wrong, names).is_err(), "{wrong}");
        }
    }

    #[test]
    fn routes_are_encoded() {
        assert_eq!(encoded("table_name=projects/p/tables/t:1"), "table_name=projects%2Fp%2Ftables%2Ft%3A1");
    }
}
