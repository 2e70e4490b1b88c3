"""An MCP server behind the gateway, with the fixture tools of the conformance suite."""

import base64
import struct
import zlib

import mcp.types as types
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError

server = MCPServer("fixture")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PIXEL = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
PIXEL += chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")
SILENCE = b"RIFF" + struct.pack("<I", 36) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8)
SILENCE += b"data" + struct.pack("<I", 0)

text = types.TextContent(type="text", text="This is a simple text response for testing.")
image = types.ImageContent(type="image", data=base64.b64encode(PIXEL).decode(), mimeType="image/png")
audio = types.AudioContent(type="audio", data=base64.b64encode(SILENCE).decode(), mimeType="audio/wav")
resource = types.EmbeddedResource(
    type="resource",
    resource=types.TextResourceContents(uri="test://embedded-resource", mimeType="text/plain", text="An embedded resource."),
)


def result(*content, failed: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=list(content), isError=failed)


@server.tool()
def test_simple_text() -> types.CallToolResult:
    """Returns a text."""
    return result(text)


@server.tool()
def test_image_content() -> types.CallToolResult:
    """Returns an image."""
    return result(image)


@server.tool()
def test_audio_content() -> types.CallToolResult:
    """Returns audio."""
    return result(audio)


@server.tool()
def test_embedded_resource() -> types.CallToolResult:
    """Returns a resource."""
    return result(resource)


@server.tool()
def test_multiple_content_types() -> types.CallToolResult:
    """Returns a text, an image and a resource."""
    return result(text, image, resource)


@server.tool()
def test_error_handling() -> types.CallToolResult:
    """Returns a tool error."""
    return result(types.TextContent(type="text", text="This tool intentionally returns an error for testing"), failed=True)


@server.tool()
async def test_tool_with_progress(context: Context) -> types.CallToolResult:
    """Reports progress."""
    for progress in (0, 50, 100):
        await context.report_progress(progress, 100, f"{progress} %")
    return result(text)


@server.tool()
def protocol_error() -> types.CallToolResult:
    """Fails with a JSON-RPC error."""
    raise MCPError(code=-32603, message="an internal error, on purpose")


if __name__ == "__main__":
    server.run("stdio")
