//! Figures of the API, in the text format of Prometheus. Labels are few and bounded: routes, methods and codes that the
//! program knows, never an id or a name.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// The media type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    route: String,
    method: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Step {
    to: &'static str,
}

/// Figures of one server.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    durations: Family<Route, Histogram, fn() -> Histogram>,
    runs: Family<Step, Counter>,
    readers: Gauge,
    events_sent: Counter<u64, AtomicU64>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

/// From a quarter of a millisecond to 16 s.
fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.000_25, 4.0, 9))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("roomette");
        let requests = Family::default();
        let durations: Family<Route, Histogram, fn() -> Histogram> = Family::new_with_constructor(histogram);
        let (runs, readers, events_sent) = (Family::default(), Gauge::default(), Counter::default());
        registry.register("http_requests", "Answers by route, method and status", requests.clone());
        registry.register(
            "http_request_seconds",
            "From a request to the head of its answer",
            durations.clone(),
        );
        registry.register("runs", "Runs that came to a state through this server", runs.clone());
        registry.register("event_readers", "Streams of events that are open", readers.clone());
        registry.register("events_sent", "Events that were given to streams", events_sent.clone());
        Self { registry, requests, durations, runs, readers, events_sent }
    }
}

impl Metrics {
    /// A request was answered.
    pub(crate) fn answered(&self, route: &str, method: &str, status: u16, took: Duration) {
        let (route, method) = (route.to_owned(), method.to_owned());
        self.durations.get_or_create(&Route { route: route.clone() }).observe(took.as_secs_f64());
        self.requests.get_or_create(&Answered { route, method, status }).inc();
    }

    /// A run came to this state.
    pub(crate) fn run_is(&self, to: &'static str) {
        self.runs.get_or_create(&Step { to }).inc();
    }

    /// A stream was opened, or was closed.
    pub(crate) fn readers(&self, change: i64) {
        self.readers.inc_by(change);
    }

    /// Events were given to a stream.
    pub(crate) fn sent(&self, events: u64) {
        self.events_sent.inc_by(events);
    }

    /// All of them.
    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
