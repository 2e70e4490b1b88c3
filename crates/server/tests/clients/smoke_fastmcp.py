"""The smoke test with `fastmcp`. With `fastmcp_tasks`, a call that becomes a task waits for its result."""

import os
from contextlib import asynccontextmanager
from importlib.metadata import version

import fastmcp_tasks  # noqa: F401  the import enables tasks
from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

import common


class Fast:
    def __init__(self, client):
        self.client, self.protocol = client, client.protocol_version

    async def tools(self):
        return [tool.name for tool in await self.client.list_tools()]

    async def prompts(self):
        return [prompt.name for prompt in await self.client.list_prompts()]

    async def call(self, name, arguments):
        result = await self.client.call_tool(name, arguments, timeout=40, raise_on_error=False)
        text = "\n".join(part.text for part in result.content if part.type == "text")
        return {"structured": result.structured_content, "text": text, "isError": result.is_error}

    async def read(self, uri):
        return (await self.client.read_resource(uri))[0].text


@asynccontextmanager
async def connect(kind, target, rest, mode):
    if kind == "stdio":
        transport, auth = StdioTransport(target, rest, env=dict(os.environ), keep_alive=False), None
    else:
        transport, auth = StreamableHttpTransport(target), rest[0] if rest and rest[0] else None
    async with Client(transport, auth=auth, mode=mode) as client:
        yield Fast(client)


common.main(f"fastmcp {version('fastmcp')}", connect)
