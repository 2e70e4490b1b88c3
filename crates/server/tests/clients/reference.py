"""Connects to each server of a config file with the reference SDK, and prints `NAME NUMBER_OF_TOOLS` for each that responds."""

import asyncio
import json
import sys

from mcp import Client, StdioServerParameters


async def print_tools(name, entry):
    parameters = StdioServerParameters(command=entry["command"], args=entry["args"], env=entry["env"])
    try:
        async with asyncio.timeout(60), Client(parameters) as client:
            print(name, len((await client.list_tools()).tools), flush=True)
    except Exception as error:
        print(f"{name}: {error}", file=sys.stderr)


async def main():
    with open(sys.argv[1]) as file:
        servers = json.load(file)["mcpServers"]
    for name, entry in servers.items():
        await print_tools(name, entry)


asyncio.run(main())
