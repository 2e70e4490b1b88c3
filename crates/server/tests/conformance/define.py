"""Stores every definition of a directory at a server: define.py URL FOLDER."""

import asyncio
import pathlib
import sys

from mcp import Client


async def main(url: str, folder: str) -> None:
    async with Client(url) as client:
        for path in sorted(pathlib.Path(folder).glob("*.yaml")):
            stored = await client.call_tool("workflow_define", {"spec_yaml": path.read_text()})
            if stored.is_error:
                sys.exit(f"{path.name}: {stored.content[0].text}")


asyncio.run(main(*sys.argv[1:]))
