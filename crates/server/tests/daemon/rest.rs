//! REST against schemathesis: valid and invalid requests to every route of the `OpenAPI` document.

use std::process::Command;

use super::support::{Daemon, client, output, steprail, test_file};

/// The checks of every response. Streams are excluded, because they do not end.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,unsupported_method";

#[test]
fn responses_conform_to_the_openapi_document() {
    let tools = test_file("../../../examples/tools.yaml").display().to_string();
    let daemon = Daemon::start(&["--tools", &tools, "--auth", "users", "--durability", "process"]);
    let mut token = Command::new(steprail());
    token.args(["token", "create", "schemathesis", "--person", "--data"]).arg(daemon.folder.path());
    let token = output(&mut token).trim().to_owned();
    let document = daemon.url.replace("/mcp", "/api/openapi.json");
    let mut command = Command::new(client("python-schemathesis"));
    command.args(["-c", "from schemathesis.cli import schemathesis; schemathesis()"]);
    command.args(["run", &document, "--checks", CHECKS]).current_dir(daemon.folder.path());
    command.args(["--exclude-path-regex", "stream$", "--max-examples", "20", "--workers", "2", "--no-color"]);
    command.args(["--phases", "coverage,fuzzing", "--header", &format!("Authorization: Bearer {token}")]);
    output(&mut command);
}
