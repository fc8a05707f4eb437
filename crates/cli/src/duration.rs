//! Durations as people write them: `90s`, `1h 30m`, `7d`, `2w`. A day has 24 hours.

use jiff::{SignedDuration, Span, SpanRelativeTo};
use serde::{Deserialize, Deserializer};

/// The duration that a text stands for.
pub fn parse(text: &str) -> Result<SignedDuration, String> {
    text.parse::<Span>()
        .and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()))
        .map_err(|_| format!("{text:?} is no duration such as 90s, 1h 30m or 7d"))
}

/// A duration in a file or a variable.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SignedDuration, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// A duration in a file or a variable, where it may be left out.
pub fn deserialize_some<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SignedDuration>, D::Error> {
    deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_weeks_are_durations_too() {
        let hours = |text| parse(text).map(|duration| duration.as_hours());
        assert_eq!((hours("7d"), hours("2w"), hours("1h 30m")), (Ok(168), Ok(336), Ok(1)));
        assert_eq!(parse("PT5S"), Ok(SignedDuration::from_secs(5)));
        for bad in ["", "soon", "0", "5 parsecs", "1y"] {
            assert!(parse(bad).unwrap_err().contains("no duration"), "{bad:?}");
        }
    }
}
