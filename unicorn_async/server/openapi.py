"""`/openapi.json`: a description of the HTTP endpoints, OpenAPI 3.1."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.server.openapi_schemas import schemas
from unicorn_async.server.protocol.hints import INCLUDABLE

if TYPE_CHECKING:
    from unicorn_async.server.openapi_kinds import Schema

_JSON, _EVENTS, _TEXT = "application/json", "text/event-stream", "text/plain"
_FLAG: Schema = {"type": "string", "enum": ["true", "false"]}
_NUMBER: Schema = {"type": "integer", "minimum": 0}
_INCLUDE: Schema = {"type": "string", "enum": list(INCLUDABLE)}


class Operation(NamedTuple):
    """One method of one path. `body` names a schema; `is_open`: it needs no API key."""

    method: str
    path: str
    summary: str
    body: str | None = None
    media: tuple[str, ...] = (_JSON,)
    query: tuple[tuple[str, Schema], ...] = ()
    is_open: bool = False


_PAGE: tuple[tuple[str, Schema], ...] = (
    ("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
    ("order", {"type": "string", "enum": ["asc", "desc"]}),
    ("after", {"type": "string"}),
    ("include", _INCLUDE),
)
OPERATIONS = (
    Operation("post", "/v1/responses", "Answer, as an object or as events.", "ResponsesRequest", (_JSON, _EVENTS)),
    Operation("post", "/v1/responses/input_tokens", "Count the tokens of a prompt.", "InputTokensRequest"),
    Operation("post", "/v1/responses/compact", "Have a conversation summarised.", "CompactRequest"),
    Operation(
        "get",
        "/v1/responses/{response_id}",
        "Return a stored response, or its events.",
        media=(_JSON, _EVENTS),
        query=(
            ("stream", _FLAG),
            ("starting_after", _NUMBER),
            ("skip_missing", _FLAG),
            ("include", _INCLUDE),
            ("include_obfuscation", {"enum": ["false"]}),
        ),
    ),
    Operation("delete", "/v1/responses/{response_id}", "Forget a response."),
    Operation("post", "/v1/responses/{response_id}/cancel", "End an answer that is under way."),
    Operation("get", "/v1/responses/{response_id}/input_items", "List what it was made from.", query=_PAGE),
    Operation("post", "/v1/chat/completions", "Answer a conversation.", "ChatRequest", (_JSON, _EVENTS)),
    Operation("post", "/v1/completions", "Continue a text.", "CompletionRequest", (_JSON, _EVENTS)),
    Operation("post", "/v1/embeddings", "Return the embeddings of texts.", "EmbeddingRequest"),
    Operation("post", "/tokenize", "Return the tokens of a text or a conversation.", "TokenizeRequest"),
    Operation("post", "/detokenize", "Return the text of tokens.", "DetokenizeRequest"),
    Operation("post", "/apply-template", "Return the prompt of a conversation as text.", "TemplateRequest"),
    Operation("get", "/v1/models", "List the model that is served, and those that may be loaded."),
    Operation("get", "/v1/models/{model}", "Describe a model."),
    Operation("post", "/v1/models/load", "Load a model in place of the one that is served.", "LoadRequest"),
    Operation("post", "/v1/models/unload", "Unload the model.", "UnloadRequest"),
    Operation("post", "/v1/models/placement", "Say where a model would lie.", "PlacementRequest"),
    Operation("get", "/health", "Say how server, model and device are, and what can't be had now.", is_open=True),
    Operation("get", "/ready", "Say whether requests are taken.", is_open=True),
    Operation("get", "/metrics", "Return counters for Prometheus.", media=(_TEXT,)),
    Operation("get", "/openapi.json", "Return this description.", is_open=True),
    Operation("get", "/asyncapi.json", "Return the websocket's.", is_open=True),
)


def description(version: str, *, needs_key: bool) -> dict[str, object]:
    """Return the description; `version` is the server's, and `needs_key` whether it has keys."""
    paths: dict[str, dict[str, object]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "unicorn_async", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "One of the server's, if it has some."}
            },
        },
        "security": [{"key": []}] if needs_key else [{}, {"key": []}],
    }


def _described(operation: Operation) -> dict[str, object]:
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    parameters: list[dict[str, object]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
    ]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in operation.query]
    good = {"description": "Done.", "content": {media: {} for media in operation.media}}
    error = {"schema": {"$ref": "#/components/schemas/Error"}}
    responses: dict[str, object] = {
        "200": good,
        "default": {"description": "Refused, or failed.", "content": {_JSON: error}},
    }
    found: dict[str, object] = {"summary": operation.summary, "responses": responses}
    if parameters:
        found["parameters"] = parameters
    if operation.body is not None:
        schema = {"$ref": f"#/components/schemas/{operation.body}"}
        found["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema}}}
    if operation.is_open:
        found["security"] = []
    return found
