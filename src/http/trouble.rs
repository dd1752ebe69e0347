//! Why a request has no answer, as a response.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::client::ReplyError;

/// A refusal: its status, and its text for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub status: StatusCode,
    pub text: String,
}

impl Trouble {
    pub fn new(status: StatusCode, text: impl Into<String>) -> Trouble {
        Trouble { status, text: text.into() }
    }

    /// The request is wrong.
    pub fn wrong(text: impl Into<String>) -> Trouble {
        Trouble::new(StatusCode::BAD_REQUEST, text)
    }

    /// The server cannot answer at present.
    pub fn unavailable(text: impl Into<String>) -> Trouble {
        Trouble::new(StatusCode::SERVICE_UNAVAILABLE, text)
    }

    /// What the client has sent is not allowed, whoever it is.
    pub fn forbidden(text: impl Into<String>) -> Trouble {
        Trouble::new(StatusCode::FORBIDDEN, text)
    }
}

/// The status for an error of the server; the text is the server's.
impl From<&ReplyError> for Trouble {
    fn from(error: &ReplyError) -> Trouble {
        let text = error.to_string();
        let status = match error.code() {
            "NOAUTH" | "WRONGPASS" => StatusCode::UNAUTHORIZED,
            "NOPERM" => StatusCode::FORBIDDEN,
            "NOTHELD" => StatusCode::CONFLICT,
            "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "READONLY" | "MISCONF" | "OOM" | "MOVED" => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ if text.starts_with("ERR unknown command") || text.starts_with("ERR unknown subcommand") => {
                StatusCode::NOT_IMPLEMENTED
            }
            _ if text.starts_with("ERR max number of clients") => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        };
        Trouble { status, text }
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(json!({ "error": self.text }))).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let ask = HeaderValue::from_static("Basic realm=\"portcullis\", charset=\"UTF-8\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
        }
        response
    }
}
