// Serves one GGUF file in OpenAI's language on loopback, one answer at a time: node server.mjs MODEL.gguf PORT
import {createServer} from "node:http";
import {statSync} from "node:fs";
import {basename} from "node:path";
import {getLlama, LlamaChatSession} from "node-llama-cpp";

const [file, port] = process.argv.slice(2);
const llama = await getLlama({build: "never", gpu: false, logLevel: "error"});
const model = await llama.loadModel({modelPath: file});
const context = await model.createContext({contextSize: 4096, sequences: 1, threads: 1});
const sequence = context.getSequence();
const name = basename(file, ".gguf");
let slot = Promise.resolve();
let inFlight = 0;
let most = 0;

async function answer(body, signal) {
    const started = Date.now();
    const format = body.response_format;
    const grammar = format?.type === "json_schema" ? await llama.createGrammarForJsonSchema(format.json_schema.schema)
        : format?.type === "json_object" ? await llama.getGrammarFor("json") : undefined;
    const said = (role) => body.messages.filter((message) => message.role === role).map((message) => message.content).join("\n");
    await sequence.clearHistory();
    const session = new LlamaChatSession({contextSequence: sequence, systemPrompt: said("system")});
    const before = sequence.tokenMeter.getState();
    const {responseText, stopReason} = await session.promptWithMeta(said("user"), {
        grammar, signal, maxTokens: body.max_tokens ?? 256, temperature: body.temperature ?? 0.7, seed: body.seed,
    });
    const used = sequence.tokenMeter.diff(before);
    console.error(`${used.usedInputTokens} tokens read, ${used.usedOutputTokens} written in ${Math.round((Date.now() - started) / 1000)} s: ${stopReason}`);
    session.dispose();
    return {
        id: "local", object: "chat.completion", created: Math.floor(Date.now() / 1000), model: name,
        choices: [{index: 0, message: {role: "assistant", content: responseText}, finish_reason: stopReason === "maxTokens" ? "length" : "stop"}],
        usage: {
            prompt_tokens: used.usedInputTokens, completion_tokens: used.usedOutputTokens,
            total_tokens: used.usedInputTokens + used.usedOutputTokens,
        },
    };
}

function reply(response, status, body) {
    response.writeHead(status, {"Content-Type": "application/json"});
    response.end(JSON.stringify(body));
}

const server = createServer(async (request, response) => {
    if (request.method === "GET") {
        const meta = {size: statSync(file).size};
        const listed = {object: "list", data: [{id: name, object: "model", owned_by: "local", meta}]};
        return reply(response, 200, request.url === "/most" ? {most} : listed);
    }
    const gone = new AbortController();
    response.on("close", () => gone.abort());
    let text = "";
    for await (const chunk of request) text += chunk;
    most = Math.max(most, ++inFlight);
    slot = slot.then(async () => {
        try {
            if (!gone.signal.aborted) reply(response, 200, await answer(JSON.parse(text), gone.signal));
        } catch (error) {
            if (!gone.signal.aborted) reply(response, 500, {error: {message: String(error)}});
        } finally {
            inFlight--;
        }
    });
});
server.listen(Number(port), "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
