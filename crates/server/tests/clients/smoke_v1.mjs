// The smoke test with `@modelcontextprotocol/sdk`, version 1 of the TypeScript SDK: legacy era only.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { main } from './common.mjs';

await main('typescript v1', ['legacy'], async ({ kind, target, rest, headers }) => {
  const transport =
    kind === 'stdio'
      ? new StdioClientTransport({ command: target, args: rest, env: process.env })
      : new StreamableHTTPClientTransport(new URL(target), { requestInit: { headers } });
  const client = new Client({ name: 'smoke-v1', version: '1.0.0' });
  let protocol;
  // The SDK passes the negotiated version only to the transport.
  const setProtocolVersion = transport.setProtocolVersion?.bind(transport);
  transport.setProtocolVersion = version => {
    protocol = version;
    setProtocolVersion?.(version);
  };
  await client.connect(transport);
  const pages = async (list, key) => {
    const found = [];
    let cursor;
    do {
      const page = await list({ cursor });
      found.push(...page[key]);
      cursor = page.nextCursor;
    } while (cursor);
    return found;
  };
  return {
    protocol,
    listTools: () => pages(params => client.listTools(params), 'tools'),
    listPrompts: () => pages(params => client.listPrompts(params), 'prompts'),
    callTool: (name, args) => client.callTool({ name, arguments: args }),
    readResource: uri => client.readResource({ uri }),
    close: async () => {
      await transport.terminateSession?.();
      await client.close();
    },
  };
});
