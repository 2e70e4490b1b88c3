"""The smoke test of the Python clients. Each client supplies its own ways to connect, list, call and read."""

import asyncio
import json
import os
import sys

TOOLS = """workflow_define workflow_start workflow_status workflow_list_runs
workflow_cancel workflow_events workflow_list_definitions workflow_lookup""".split()
SPEC = """name: smoke
inputs:
  who: string
steps:
  - id: pause
    kind: sleep
    for: {pause}
output: 'hello {{{{inputs.who}}}}'
""".format(pause=os.environ.get("PAUSE", "100ms"))


class Failed(Exception):
    pass


def check(ok, step, actual):
    if not ok:
        raise Failed(f"{step}: got {json.dumps(actual, default=str)}")


async def steps(client):
    tools = await client.tools()
    check(not set(TOOLS) - set(tools), f"1 list tools: {sorted(set(TOOLS) - set(tools))} missing", tools)
    check(not [name for name in tools if "." in name], "1 list tools: a name has a dot", tools)

    async def call(name, arguments):
        result = await client.call(name, arguments)
        check(not result["isError"], f"{name} failed", result)
        check(isinstance(result["structured"], dict), f"{name} returns no structuredContent", result)
        return result

    result = await call("workflow_define", {"spec_yaml": SPEC})
    check(result["structured"].get("name") == "smoke", "2 define: wrong name", result)

    result = await call("workflow_start", {"name": "smoke", "input": {"who": "world"}, "wait_s": 20})
    check(result["structured"].get("status") == "completed", "3 start: not completed", result)
    check(result["structured"].get("output") == "hello world", "3 start: wrong output", result)
    run = result["structured"].get("run_id")
    check(run and run in result["text"], "3 start: the text does not name the run", result)

    result = await call("workflow_status", {"run_id": run, "wait_s": 0})
    check(result["structured"].get("status") == "completed", "4 status: not completed", result)

    result = await call("workflow_events", {"run_id": run})
    events = result["structured"].get("events")
    check(isinstance(events, list) and events, "5 events: none", result)
    check(events[0].get("type") == "run_started", "5 events: wrong first event", events[0])

    text = await client.read(f"workflow://runs/{run}")
    check(run in json.dumps(json.loads(text)), "6 read the run: no run id", text)

    prompts = await client.prompts()
    check({"author_workflow", "explain_run"} <= set(prompts), "7 list prompts: one is missing", prompts)

    result = await client.call("workflow_status", {"run_id": "no-such-run", "wait_s": 0})
    check(result["isError"], "8 status of an unknown run: not an error", result)
    return {"tools": len(tools), "events": len(events), "run_id": run}


def leaves(error):
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part)]
    return [error]


def main(name, connect):
    """`connect(kind, target, rest, mode)` is a context manager that yields a client."""
    if len(sys.argv) < 3 or sys.argv[1] not in ("stdio", "http"):
        sys.exit(f"usage: [ERA=legacy|modern|auto] {sys.argv[0]} stdio COMMAND ARGS... | http URL [TOKEN]")
    era = os.environ.get("ERA", "auto")
    if era not in ("legacy", "modern", "auto"):
        sys.exit(f"{name}: unknown ERA: {era}")

    async def smoke():
        # In the libraries, "auto" selects the modern era if the server supports it, otherwise the legacy era.
        async with connect(sys.argv[1], sys.argv[2], sys.argv[3:], "legacy" if era == "legacy" else "auto") as client:
            negotiated = "modern" if client.protocol >= "2026-07-28" else "legacy"
            check(era in ("auto", negotiated), f"0 connect: expected {era}", client.protocol)
            return {"client": name, "era": negotiated, "ok": True, "protocol": client.protocol, **await steps(client)}

    try:
        print(json.dumps(asyncio.run(asyncio.wait_for(smoke(), 60))))
    except BaseException as error:
        sys.exit("\n".join(f"{name}: {type(leaf).__name__}: {leaf}" for leaf in leaves(error)))
