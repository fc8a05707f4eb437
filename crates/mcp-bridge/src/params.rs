//! Arguments of a tool that its schema wants in headers as well (`x-mcp-header`): something between a client and the bridge may
//! have acted on the header, so it must say what the body says.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::modern::{ModernError, decoded};

/// How deep a schema is looked into.
const DEPTH_MAX: usize = 16;

/// The arguments of a tool that come in headers: under which name, in lower case, and where they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InHeaders(BTreeMap<String, Vec<String>>);

impl InHeaders {
    /// Reads a tool's `inputSchema`. A schema that marks arguments in a way that is not allowed marks none.
    #[must_use]
    pub fn of_schema(schema: &Value) -> Self {
        let mut found = BTreeMap::new();
        if walk(schema, &mut Vec::new(), &mut found).is_some() { Self(found) } else { Self::default() }
    }

    /// The tools of a `tools/list` result that have such arguments, and the name of the next page.
    #[must_use]
    pub fn of_list(result: &str) -> (BTreeMap<String, Self>, Option<String>) {
        let Ok(list) = serde_json::from_str::<Value>(result) else { return Default::default() };
        let tools = list.get("tools").and_then(Value::as_array).into_iter().flatten();
        let read = |tool: &Value| {
            let name = tool.get("name")?.as_str()?.to_owned();
            Some((name, Self::of_schema(tool.get("inputSchema")?)))
        };
        let next = list.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
        (tools.filter_map(read).collect(), next)
    }

    /// No argument is in a header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares headers, by their names in lower case, with the arguments, which are JSON.
    pub fn check<'h>(
        &self,
        arguments: &str,
        header: impl Fn(&str) -> Option<&'h str>,
    ) -> Result<(), ModernError> {
        let arguments: Value = serde_json::from_str(arguments).unwrap_or(Value::Null);
        for (name, path) in &self.0 {
            let value = path.iter().try_fold(&arguments, |within, part| within.get(part));
            let (given, said) = (header(name), value.filter(|value| !value.is_null()));
            let fits = match (given, said) {
                (None, None) => true,
                (Some(given), Some(said)) => decoded(given).is_some_and(|given| is_same(&given, said)),
                (Some(_), None) | (None, Some(_)) => false,
            };
            if !fits {
                let (given, said) = (given.map(str::to_owned), said.map(Value::to_string));
                return Err(ModernError::Mismatch { header: name.clone(), given, said });
            }
        }
        Ok(())
    }
}

/// Collects what is marked below; `None` where something is marked wrongly.
fn walk(schema: &Value, path: &mut Vec<String>, found: &mut BTreeMap<String, Vec<String>>) -> Option<()> {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return Some(()) };
    if path.len() >= DEPTH_MAX {
        return Some(());
    }
    for (name, property) in properties {
        path.push(name.clone());
        if let Some(header) = property.get("x-mcp-header") {
            let header = header.as_str().filter(|header| is_token(header))?;
            let kind = property.get("type").and_then(Value::as_str)?;
            if !matches!(kind, "string" | "integer" | "number" | "boolean") {
                return None;
            }
            let header = format!("mcp-param-{}", header.to_ascii_lowercase());
            if found.insert(header, path.clone()).is_some() {
                return None;
            }
        }
        walk(property, path, found)?;
        path.pop();
    }
    Some(())
}

/// What a header's name is made of (RFC 9110, section 5.6.2).
fn is_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

fn is_same(given: &str, said: &Value) -> bool {
    match said {
        Value::String(said) => given == said,
        Value::Bool(said) => given == said.to_string(),
        Value::Number(said) => {
            let number = |text: &str| text.parse::<f64>().ok().map(f64::to_bits);
            let whole = |text: &str| text.parse::<i128>().ok();
            let said = said.to_string();
            match (whole(given), whole(&said)) {
                (Some(given), Some(said)) => given == said,
                _ => given == said || number(given).is_some_and(|given| number(&said) == Some(given)),
            }
        }
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(schema: &str) -> InHeaders {
        InHeaders::of_schema(&serde_json::from_str(schema).unwrap())
    }

    const SCHEMA: &str = r#"{"type":"object","properties":{
        "region":{"type":"string","x-mcp-header":"Region"},
        "where":{"type":"object","properties":{"zone":{"type":"integer","x-mcp-header":"Zone"}}},
        "list":{"type":"array","items":{"properties":{"x":{"type":"string","x-mcp-header":"X"}}}}}}"#;

    #[test]
    fn a_marked_argument_and_its_header_say_the_same() {
        let check = |arguments: &str, region: Option<&'static str>, zone: Option<&'static str>| {
            let header = |name: &str| if name == "mcp-param-region" { region } else { zone };
            marked(SCHEMA).check(arguments, header).is_ok()
        };
        let both = r#"{"region":"eu","where":{"zone":42}}"#;
        assert!(check(both, Some("eu"), Some("42")) && check(both, Some("eu"), Some("42.0")));
        assert!(check(both, Some("=?base64?ZXU=?="), Some("42")));
        assert!(check("{}", None, None) && check(r#"{"region":null}"#, None, None));
        for (arguments, region, zone) in [
            (both, None, Some("42")),
            (both, Some("eu"), None),
            (both, Some("us"), Some("42")),
            (both, Some("eu"), Some("43")),
            (both, Some("=?base64?!?="), Some("42")),
            ("{}", Some("eu"), None),
            (r#"{"region":null}"#, Some("null"), None),
            (r#"{"region":["eu"]}"#, Some("eu"), None),
        ] {
            assert!(!check(arguments, region, zone), "{arguments} {region:?} {zone:?}");
        }
    }

    #[test]
    fn a_schema_that_marks_wrongly_marks_nothing() {
        for schema in [
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"not a token"}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":""}}}"#,
            r#"{"properties":{"a":{"type":"object","x-mcp-header":"A"}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}"#,
            "{}",
            "7",
        ] {
            assert!(marked(schema).is_empty(), "{schema}");
        }
        assert_eq!(marked(SCHEMA).0.len(), 2);
    }
}
