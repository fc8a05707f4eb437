//! Ids of requests: two are the same if their JSON type and value are.

use thiserror::Error;

/// The id of a request. `7` and `"7"` are two; `"a"` and `"\u0061"` are one, and so are `1` and `1.0`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MessageId {
    /// A whole number.
    Integer(i128),
    /// Any other number, as it was written.
    Number(String),
    /// A text.
    Text(String),
}

/// The longest id in bytes of JSON.
pub const ID_MAX: usize = 1_024;

/// Why something is no id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IdError {
    /// `null`, which names nothing: MCP forbids it.
    #[error("it is null")]
    Null,
    /// Not a string and not a number.
    #[error("it is neither a string nor a number")]
    Type,
    /// Longer than anybody needs.
    #[error("it has {0} bytes; {ID_MAX} are allowed")]
    Long(usize),
}

impl MessageId {
    /// Reads an id from its JSON.
    pub fn parse(json: &str) -> Result<Self, IdError> {
        if json.len() > ID_MAX {
            return Err(IdError::Long(json.len()));
        }
        if json == "null" {
            return Err(IdError::Null);
        }
        if json.starts_with('"') {
            return serde_json::from_str(json).map(Self::Text).map_err(|_| IdError::Type);
        }
        if !json.starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
            return Err(IdError::Type);
        }
        // The zeros of `1.0` say nothing; what has an exponent is left as it is.
        let whole = json.split_once('.').filter(|(_, digits)| digits.bytes().all(|digit| digit == b'0'));
        let integer = whole.map_or(json, |(integer, _)| integer).parse();
        Ok(integer.map_or_else(|_| Self::Number(json.to_owned()), Self::Integer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_and_value_make_an_id() {
        let id = |json| MessageId::parse(json).unwrap();
        assert_eq!(id("7"), id("7.0"));
        assert_eq!(id("0"), id("-0"));
        assert_eq!(id(r#""a""#), id(r#""\u0061""#));
        assert_ne!(id("7"), id(r#""7""#));
        assert_ne!(id("7"), id("7.5"));
        assert_ne!(id("18446744073709551616"), id("18446744073709551617"));
        let huge = "9".repeat(200);
        assert_eq!(id(&huge), MessageId::Number(huge.clone()));
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for json in ["true", "[]", "{}", "[1]"] {
            assert_eq!(MessageId::parse(json), Err(IdError::Type), "{json}");
        }
        assert_eq!(MessageId::parse("null"), Err(IdError::Null));
        assert_eq!(MessageId::parse(&"1".repeat(ID_MAX + 1)), Err(IdError::Long(ID_MAX + 1)));
    }
}
