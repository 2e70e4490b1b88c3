"""The smoke test with `mcp`, the Python SDK."""

import os
from contextlib import asynccontextmanager
from importlib.metadata import version

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

import common


class Sdk:
    def __init__(self, client):
        self.client, self.protocol = client, client.protocol_version

    async def pages(self, what):
        found, page = [], await getattr(self.client, f"list_{what}")()
        while True:
            found += [item.name for item in getattr(page, what)]
            if not page.next_cursor:
                return found
            page = await getattr(self.client, f"list_{what}")(cursor=page.next_cursor)

    async def tools(self):
        return await self.pages("tools")

    async def prompts(self):
        return await self.pages("prompts")

    async def call(self, name, arguments):
        result = await self.client.call_tool(name, arguments, read_timeout_seconds=40)
        text = "\n".join(part.text for part in result.content if part.type == "text")
        return {"structured": result.structured_content, "text": text, "isError": bool(result.is_error)}

    async def read(self, uri):
        return (await self.client.read_resource(uri)).contents[0].text


@asynccontextmanager
async def connect(kind, target, rest, mode):
    if kind == "stdio":
        server = StdioServerParameters(command=target, args=rest, env=dict(os.environ))
        async with Client(server, mode=mode) as client:
            yield Sdk(client)
    else:
        headers = {"Authorization": f"Bearer {rest[0]}"} if rest and rest[0] else {}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            async with Client(streamable_http_client(target, http_client=http), mode=mode) as client:
                yield Sdk(client)


common.main(f"mcp {version('mcp')}", connect)
