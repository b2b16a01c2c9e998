// Read a Responses stream with @ai-sdk/openai, as opencode does: `node ai_sdk.mjs PREFIX BASE_URL` prints what it parsed.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [prefix, baseURL] = process.argv.slice(2);
const require = createRequire(prefix + '/node_modules/');
const { createOpenAI } = await import(pathToFileURL(require.resolve('@ai-sdk/openai')));
const model = createOpenAI({ baseURL, apiKey: 'k' }).responses('m');
const prompt = [{ role: 'user', content: [{ type: 'text', text: '?' }] }];
const tools = [{ type: 'function', name: 'f', inputSchema: { type: 'object', properties: {} } }];
const { stream } = await model.doStream({ prompt, tools });
const result = { text: '', reasoning: '', calls: [], finish: null, usage: null, errors: [] };
const reader = stream.getReader();
for (;;) {
  const { done, value: part } = await reader.read();
  if (done) break;
  if (part.type === 'text-delta') result.text += part.delta;
  if (part.type === 'reasoning-delta') result.reasoning += part.delta;
  if (part.type === 'tool-call') result.calls.push([part.toolCallId, part.toolName, part.input]);
  if (part.type === 'error') result.errors.push(String(part.error));
  if (part.type === 'finish') Object.assign(result, { finish: part.finishReason, usage: part.usage });
}
console.log(JSON.stringify(result));
