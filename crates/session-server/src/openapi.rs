//! The description that the API gives of itself, made of the same routes and types that answer.

use session_api::Problem;
use utoipa::PartialSchema as _;
use utoipa::ToSchema as _;
use utoipa::openapi::path::Parameter;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, Info, OpenApi, Ref, RefOr, Response, Schema, SecurityRequirement};

use crate::routes;

/// The description of the API.
#[must_use]
pub fn document() -> OpenApi {
    let (_, mut api) = routes::described().split_for_parts();
    api.info = Info::new("roomette", env!("CARGO_PKG_VERSION"));
    api.info.description = Some("Sessions, runs, events, approvals and tokens of one installation.".into());
    api.security = Some(vec![SecurityRequirement::new("token", [""; 0])]);
    let components = api.components.get_or_insert_default();
    components.schemas.insert(Problem::name().into_owned(), Problem::schema());
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A token: `rmt_…` of a principal or runner, `rmr_…` of a run."));
    components.security_schemes.insert("token".into(), SecurityScheme::Http(bearer.build()).into());
    for item in api.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.post, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            operation.responses.responses.entry("default".into()).or_insert_with(|| problem().into());
            operation.parameters.iter_mut().flatten().for_each(give_pattern);
        }
    }
    api
}

/// An id is as its description shows it.
fn give_pattern(parameter: &mut RefOr<Parameter>) {
    let RefOr::T(parameter) = parameter else { return };
    let described = parameter.description.as_deref();
    let prefix = described.and_then(|text| text.strip_prefix('`')?.strip_suffix("_…`"));
    if let (Some(prefix), Some(RefOr::T(Schema::Object(schema)))) = (prefix, &mut parameter.schema) {
        schema.pattern = Some(format!("^{prefix}_[0-9a-f]{{32}}$"));
    }
}

fn problem() -> Response {
    let mut response = Response::new("It was refused: the problem says why.");
    let schema = Ref::from_schema_name(Problem::name());
    response.content.insert(session_api::paths::PROBLEM.into(), Content::new(Some(schema)).into());
    response
}
