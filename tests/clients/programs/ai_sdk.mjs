// Vercel's ai SDK: its tool loop over two questions, the second one streamed.
import { createRequire } from "node:module";

const require = createRequire(`${process.argv[2]}/package.json`);
const { generateText, stepCountIs, streamText, tool } = require("ai");
const { createAnthropic } = require("@ai-sdk/anthropic");
const { createOpenAI } = require("@ai-sdk/openai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { z } = require("zod");

const baseURL = process.env.OPENAI_BASE_URL;
const apiKey = process.env.OPENAI_API_KEY;
const name = process.env.MODEL;
const model = {
  chat: () => createOpenAICompatible({ name: "stepwell", baseURL, apiKey, includeUsage: true })(name),
  responses: () => createOpenAI({ baseURL, apiKey })(name),
  messages: () => createAnthropic({ baseURL, apiKey })(name),
}[process.argv[3]]();
const inputSchema = z.object({ city: z.string() });
const execute = async () => "sunny";
const tools = { get_weather: tool({ description: "The weather of a city.", inputSchema, execute }) };

const asked = { model, system: "You help.", tools, stopWhen: stepCountIs(5) };
const messages = [{ role: "user", content: "Stepwell asks: what is the weather?" }];
const first = await generateText({ ...asked, messages });
messages.push(...first.response.messages, { role: "user", content: "Stepwell asks: and tomorrow?" });
let text = "";
const onError = ({ error }) => { throw error; };
for await (const part of streamText({ ...asked, messages, onError }).textStream) text += part;
console.log(JSON.stringify(text));
