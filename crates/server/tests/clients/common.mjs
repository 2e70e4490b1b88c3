// The smoke test of the TypeScript clients. Each client supplies its own ways to connect, list, call and read.
const TOOLS = `workflow_define workflow_start workflow_status workflow_list_runs
workflow_cancel workflow_events workflow_list_definitions workflow_lookup`.split(/\s+/);
const SPEC = `name: smoke
inputs:
  who: string
steps:
  - id: pause
    kind: sleep
    for: ${process.env.PAUSE ?? '100ms'}
output: 'hello {{inputs.who}}'
`;

const check = (ok, step, actual) => {
  if (!ok) throw new Error(`${step}: got ${JSON.stringify(actual)}`);
};

async function steps(client) {
  const tools = (await client.listTools()).map(tool => tool.name);
  const missing = TOOLS.filter(name => !tools.includes(name));
  check(!missing.length, `1 list tools: ${missing} missing`, tools);
  check(!tools.some(name => name.includes('.')), '1 list tools: a name has a dot', tools);

  const call = async (name, args) => {
    const result = await client.callTool(name, args);
    check(!result.isError, `${name} failed`, result);
    check(result.structuredContent, `${name} returns no structuredContent`, result);
    return result;
  };

  let result = await call('workflow_define', { spec_yaml: SPEC });
  check(result.structuredContent.name === 'smoke', '2 define: wrong name', result);

  result = await call('workflow_start', { name: 'smoke', input: { who: 'world' }, wait_s: 20 });
  check(result.structuredContent.status === 'completed', '3 start: not completed', result);
  check(result.structuredContent.output === 'hello world', '3 start: wrong output', result);
  const run_id = result.structuredContent.run_id;
  const text = result.content.filter(part => part.type === 'text').map(part => part.text);
  check(run_id && text.join('\n').includes(run_id), '3 start: the text does not name the run', result);

  result = await call('workflow_status', { run_id, wait_s: 0 });
  check(result.structuredContent.status === 'completed', '4 status: not completed', result);

  result = await call('workflow_events', { run_id });
  const events = result.structuredContent.events;
  check(Array.isArray(events) && events.length, '5 events: none', result);
  check(events[0].type === 'run_started', '5 events: wrong first event', events[0]);

  const { contents } = await client.readResource(`workflow://runs/${run_id}`);
  check(JSON.stringify(JSON.parse(contents[0].text)).includes(run_id), '6 read the run: no run id', contents);

  const prompts = (await client.listPrompts()).map(prompt => prompt.name);
  check(['author_workflow', 'explain_run'].every(name => prompts.includes(name)), '7 list prompts: one is missing', prompts);

  result = await client.callTool('workflow_status', { run_id: 'no-such-run', wait_s: 0 });
  check(result.isError === true, '8 status of an unknown run: not an error', result);
  return { tools: tools.length, events: events.length, run_id };
}

/** `connect({ kind, target, rest, headers, era })` returns a client. */
export async function main(name, eras, connect) {
  const [kind, target, ...rest] = process.argv.slice(2);
  const fail = message => {
    console.error(`${name}: ${message}`);
    process.exit(1);
  };
  if (!['stdio', 'http'].includes(kind) || !target) {
    fail(`usage: [ERA=${eras.join('|')}] ${process.argv[1]} stdio COMMAND ARGS... | http URL [TOKEN]`);
  }
  const era = process.env.ERA ?? eras[0];
  if (!eras.includes(era)) fail(`unknown ERA: ${era}; use one of ${eras}`);
  setTimeout(() => fail('timed out after 60 s'), 60_000).unref();
  try {
    const headers = kind === 'http' && rest[0] ? { Authorization: `Bearer ${rest[0]}` } : {};
    const client = await connect({ kind, target, rest, headers, era });
    const negotiated = client.protocol >= '2026-07-28' ? 'modern' : 'legacy';
    check(era === 'auto' || era === negotiated, `0 connect: expected ${era}`, client.protocol);
    const report = await steps(client);
    await client.close();
    console.log(JSON.stringify({ client: name, era: negotiated, ok: true, protocol: client.protocol, ...report }));
  } catch (error) {
    fail(error.stack.split('\n    at ')[0]);
  }
}
