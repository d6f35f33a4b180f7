// Evaluates DirectML's published ResampleGrad example by every RPC, and then requests from a file, and prints what
// came as one JSON object.
//
//   node client.js HOST:PORT PROTO_FOLDER REQUESTS.json

"use strict";

const fs = require("node:fs");
const grpc = require("@grpc/grpc-js");
const protoLoader = require("@grpc/proto-loader");

const [address, protoFolder, requests] = process.argv.slice(2);
const definition = protoLoader.loadSync("gradwire/v1/gradient_service.proto", {
  includeDirs: [protoFolder],
  keepCase: true,
  longs: Number,
  enums: String,
  oneofs: true,
});
const { gradwire } = grpc.loadPackageDefinition(definition);
const client = new gradwire.v1.GradientService(address, grpc.credentials.createInsecure());

const operator = {
  dml_resample_grad: {
    interpolation_mode: "DML_INTERPOLATION_MODE_NEAREST_NEIGHBOR",
    scales: [0.5, 1.5],
  },
};
const float32 = (...sizes) => ({ data_type: "DATA_TYPE_FLOAT32", sizes });
const header = { operator, input: float32(1, 3), output: float32(2, 2) };

function bytesOf(values) {
  const bytes = Buffer.alloc(values.length * 4);
  values.forEach((value, index) => bytes.writeFloatLE(value, index * 4));
  return bytes;
}

function valuesOf(bytes) {
  return Array.from({ length: bytes.length / 4 }, (_, index) => bytes.readFloatLE(index * 4));
}

function call(method, request) {
  return new Promise((resolve, reject) => {
    client[method](request, (error, reply) => (error ? reject(error) : resolve(reply)));
  });
}

async function evaluate() {
  const request = { ...header, request_id: "from node", data: bytesOf([4, 5, 6]) };
  const reply = await call("Evaluate", request);
  return {
    request_id: reply.request_id,
    sizes: reply.output.sizes,
    values: valuesOf(reply.data),
  };
}

// Chunks of 5 bytes, so that elements are split both ways.
function evaluateStream() {
  return new Promise((resolve, reject) => {
    const stream = client.EvaluateStream();
    const parts = [];
    let opened;
    stream.on("data", (response) => {
      if (response.message === "opened") {
        opened = response.opened;
      } else {
        parts.push(response[response.message].data);
      }
    });
    stream.on("error", reject);
    stream.on("end", () => {
      const lengths = parts.map((part) => part.length);
      const values = valuesOf(Buffer.concat(parts));
      resolve({ sizes: opened.output.sizes, digest: opened.evaluation_digest, lengths, values });
    });
    stream.write({ open: { ...header, max_chunk_bytes: 4096 } });
    const data = bytesOf([4, 5, 6]);
    for (let offset = 0; offset < data.length; offset += 5) {
      stream.write({ chunk: { offset, data: data.subarray(offset, offset + 5) } });
    }
    stream.end();
  });
}

async function refusal() {
  try {
    await call("Evaluate", { ...header, data: bytesOf([4, 5]) });
  } catch (error) {
    const details = error.metadata.get("grpc-status-details-bin");
    return { code: grpc.status[error.code], message: error.details, details: details.length };
  }
  throw new Error("8 bytes were taken for 3 elements");
}

// Each request as JSON of its message, with data in base64; the results' data likewise.
async function everyRequest() {
  const results = [];
  for (const request of JSON.parse(fs.readFileSync(requests))) {
    const reply = await call("Evaluate", request);
    results.push({ sizes: reply.output.sizes, data: reply.data.toString("base64") });
  }
  return results;
}

async function main() {
  const { operators } = await call("ListOperators", {});
  const info = await call("GetServerInfo", {});
  console.log(
    JSON.stringify({
      evaluate: await evaluate(),
      stream: await evaluateStream(),
      refusal: await refusal(),
      results: await everyRequest(),
      operators: operators.map((each) => each.name),
      max_rank: info.limits.max_rank,
    }),
  );
  client.close();
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
