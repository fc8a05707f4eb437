//! The log of a session: its entries, and how they are appended and read.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use session_core::Event;
use utoipa::{IntoParams, ToSchema};

/// The most events of one append.
pub const APPEND_MAX: usize = 1_000;

/// Events to append, all of them or none.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppendEvents {
    /// The run on whose behalf; may be left out with a run's own token. A principal appends apart from any run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The claim; goes with `run_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u32>,
    /// The events, 1 to 1000.
    pub events: Vec<NewEvent>,
}

/// An event before it has a number.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewEvent {
    /// What kind of thing happened, such as `message`.
    pub kind: String,
    /// What happened, any JSON of at most 1 MiB. Kept byte for byte.
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    /// Who appends it; goes with `producer_seq`. The same pair again with the same content is a no-op.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer: Option<String>,
    /// The producer's own number for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer_seq: Option<u64>,
}

/// What an append came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Appended {
    /// The number of each event, in the order of the request; of one that was there before, its first.
    pub seqs: Vec<u64>,
}

/// Which events are read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventQuery {
    /// Those behind this number; 0 or nothing for the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// The most events of the page, 1 to 1000; 100 without it. A stream takes no notice of it.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// One page of a log.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EventPage {
    /// The events, in order. Fewer than asked for where they are large.
    pub items: Vec<EventView>,
    /// The number behind which the next page begins: that of the last event, or what was asked for.
    pub after: u64,
    /// More of them may be there already.
    pub more: bool,
}

/// An event. What a damaged log holds instead of JSON is shown as text.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Its number.
    pub seq: u64,
    /// When it was appended.
    pub at: Timestamp,
    /// What kind of thing happened.
    pub kind: String,
    /// The run that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// What happened. A stream has it in one line.
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    /// Who appended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer: Option<String>,
    /// The producer's own number for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer_seq: Option<u64>,
}

impl From<&Event> for EventView {
    fn from(event: &Event) -> Self {
        let text = event.body.payload.as_str();
        let payload = RawValue::from_string(text.into()).or_else(|_| serde_json::value::to_raw_value(text));
        let origin = event.body.origin.as_ref();
        Self {
            seq: event.seq.0,
            at: event.at,
            kind: event.body.kind.to_string(),
            run: event.body.run.map(|run| run.to_string()),
            payload: payload.unwrap_or_default(),
            producer: origin.map(|origin| origin.producer.to_string()),
            producer_seq: origin.map(|origin| origin.seq),
        }
    }
}
