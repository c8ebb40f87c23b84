// The openai SDK for Node: its own tool loop, not streamed, then a second question, streamed.
import { createRequire } from "node:module";

const require = createRequire(`${process.argv[2]}/package.json`);
const OpenAI = require("openai").default ?? require("openai");
const model = process.env.MODEL;
const client = new OpenAI({ maxRetries: 0 });
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const weather = { name: "get_weather", description: "The weather of a city.", parameters };

async function chat() {
  const tools = [{ type: "function", function: { ...weather, parse: JSON.parse, function: async () => "sunny" } }];
  const messages = [{ role: "user", content: "Stepwell asks: what is the weather?" }];
  const first = client.chat.completions.runTools({ model, messages, tools });
  await first.finalContent();
  const more = [...first.messages, { role: "user", content: "Stepwell asks: and tomorrow?" }];
  return await client.chat.completions.runTools({ model, messages: more, tools, stream: true }).finalContent();
}

async function responses() {
  const tools = [{ type: "function", strict: false, ...weather }];
  const input = [];
  let answer;
  for (const [question, stream] of [["Stepwell asks: what is the weather?", false], ["Stepwell asks: and tomorrow?", true]]) {
    input.push({ role: "user", content: question });
    for (let calls = [null]; calls.length; ) {
      const asked = { model, input, tools, store: false };
      answer = stream ? await client.responses.stream(asked).finalResponse() : await client.responses.create(asked);
      input.push(...answer.output);
      calls = answer.output.filter((item) => item.type === "function_call");
      for (const call of calls) input.push({ type: "function_call_output", call_id: call.call_id, output: "sunny" });
    }
  }
  return answer.output_text;
}

console.log(JSON.stringify(await { chat, responses }[process.argv[3]]()));
