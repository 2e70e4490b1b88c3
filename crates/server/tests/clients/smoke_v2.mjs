// The smoke test with `@modelcontextprotocol/client`, version 2 of the TypeScript SDK: legacy era by default.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { main } from './common.mjs';

await main('typescript v2', ['legacy', 'modern', 'auto'], async ({ kind, target, rest, headers, era }) => {
  const transport =
    kind === 'stdio'
      ? new StdioClientTransport({ command: target, args: rest, env: process.env })
      : new StreamableHTTPClientTransport(new URL(target), { requestInit: { headers } });
  const mode = era === 'modern' ? { pin: '2026-07-28' } : era;
  const client = new Client({ name: 'smoke-v2', version: '1.0.0' }, { versionNegotiation: { mode } });
  await client.connect(transport);
  return {
    protocol: client.getNegotiatedProtocolVersion(),
    listTools: async () => (await client.listTools()).tools, // all pages
    listPrompts: async () => (await client.listPrompts()).prompts,
    callTool: (name, args) => client.callTool({ name, arguments: args }),
    readResource: uri => client.readResource({ uri }),
    close: async () => {
      if (client.getProtocolEra() === 'legacy') await transport.terminateSession?.();
      await client.close();
    },
  };
});
