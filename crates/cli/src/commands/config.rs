//! `roomette config show`: the settings and where each came from.

use serde_json::json;

use crate::args::ConfigCommand;
use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::output;

/// Shows the settings.
pub fn execute(context: &Context, command: &ConfigCommand) -> Outcome<()> {
    match command {
        ConfigCommand::Show => show(context),
    }
}

fn show(context: &Context) -> Outcome<()> {
    let failed =
        |error: toml::ser::Error| Failure::caused(Kind::Error, "the settings cannot be shown", &error);
    let mut table = toml::Table::try_from(&context.config).map_err(failed)?;
    // Never the password that a database URL may carry.
    let url = context.store_url()?.to_string();
    if let Some(toml::Value::Table(store)) = table.get_mut("store") {
        store.insert("url".into(), toml::Value::String(url));
    }
    if context.json {
        let origins: Vec<_> = context
            .origins
            .iter()
            .map(|(key, layer)| json!({ "key": key, "from": layer.to_string() }))
            .collect();
        let (data, file) = (&context.paths.data, &context.paths.config);
        return output::json(&json!({ "data": data, "file": file, "settings": table, "origins": origins }));
    }
    let mut lines =
        vec![format!("# data: {}", context.paths.data), format!("# file: {}", context.paths.config)];
    for (section, values) in &table {
        lines.push(format!("\n[{section}]"));
        for (name, value) in values.as_table().into_iter().flatten() {
            let origin = context.origins.get(&format!("{section}.{name}"));
            let origin = origin.map(|layer| format!("  # {layer}")).unwrap_or_default();
            lines.push(format!("{name} = {value}{origin}"));
        }
    }
    output::line(&lines.join("\n"))
}
