//! Figures of a bridge, in the text format of Prometheus. Labels are few and bounded, never an id or a name.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use axum::response::Response;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::text;
use crate::bridge::Bridge;

/// The media type of the text.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: &'static str,
    status: u16,
}

/// Figures of one bridge.
pub(super) struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    durations: Histogram,
    sessions: Gauge,
    tasks: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("roomette_bridge");
        let requests = Family::default();
        // From a quarter of a millisecond to 16 s.
        let durations = Histogram::new(exponential_buckets(0.000_25, 4.0, 9));
        let (sessions, tasks) = (Gauge::default(), Gauge::default());
        registry.register("http_requests", "Answers by method and status", requests.clone());
        let of = "From a request to the head of its answer";
        registry.register("http_request_seconds", of, durations.clone());
        registry.register("sessions", "Sessions in memory", sessions.clone());
        registry.register("tasks", "Tasks that hold a session or a process", tasks.clone());
        Self { registry, requests, durations, sessions, tasks }
    }
}

impl Metrics {
    /// A request was answered.
    pub(super) fn answered(&self, method: &Method, status: StatusCode, took: Duration) {
        self.durations.observe(took.as_secs_f64());
        let answered = Answered { method: named(method), status: status.as_u16() };
        self.requests.get_or_create(&answered).inc();
    }

    /// All of them.
    pub(super) fn page(&self, bridge: &Bridge) -> Response {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.sessions.set(count(bridge.sessions()));
        self.tasks.set(count(bridge.tasks.len()));
        let mut page = String::new();
        match encode(&mut page, &self.registry) {
            Ok(()) => text(StatusCode::OK, CONTENT_TYPE, page),
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", "no figures\n"),
        }
    }
}

/// A method by a name of the program's: a client may think up any.
fn named(method: &Method) -> &'static str {
    let known = [Method::GET, Method::POST, Method::DELETE, Method::OPTIONS];
    let names = ["GET", "POST", "DELETE", "OPTIONS"];
    known.iter().zip(names).find(|(known, _)| *known == method).map_or("other", |(_, name)| name)
}
