// Asks once through Node's `openai` and prints one JSON object: ask.cjs BASE_URL whole|stream|list
const OpenAI = require("openai");

const [baseURL, how] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "x", maxRetries: 0 });
const asked = {
  model: "m",
  messages: [{ role: "user", content: "Name three colours." }],
  temperature: 0,
  seed: 1,
  max_tokens: 12,
};

const ways = {
  async whole() {
    const { data, response } = await client.chat.completions.create(asked).withResponse();
    return {
      text: data.choices[0].message.content,
      tokens: data.usage.completion_tokens,
      verdict: response.headers.get("slowtok-verdict"),
    };
  },
  async stream() {
    const pieces = [];
    for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
      pieces.push(chunk.choices[0]?.delta?.content ?? "");
    }
    return { pieces };
  },
  async helper() {
    const stream = client.chat.completions.stream({ ...asked, max_tokens: 200, stop: [":"] });
    const done = await stream.finalChatCompletion();
    return { text: done.choices[0].message.content };
  },
  async list() {
    return { models: (await client.models.list()).data.map((model) => model.id) };
  },
  async error() {
    const messages = [{ role: "user", content: "word ".repeat(5000) }];
    const error = await client.chat.completions.create({ ...asked, messages }).catch((e) => e);
    return { status: error.status, error: error.error };
  },
};

ways[how]().then((found) => console.log(JSON.stringify(found)));
